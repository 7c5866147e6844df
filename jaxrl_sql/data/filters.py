"""Leave out questions whose gold SQL cannot teach anything: it fails, or it returns no rows."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.sqlenv.ports import SqlExecutor
from jaxrl_sql.types import Example

# Outcomes hold rows until they are let go, so golds run a few at a time.
_CHUNK = 256


def usable_golds(
    executor: SqlExecutor, examples: Sequence[Example], drop_empty: bool = True
) -> tuple[list[Example], list[tuple[str, str]]]:
    """Run every gold; return the examples to keep and (uid, reason) of the others, in order.

    Reasons are `gold fails: <status>` and, with `drop_empty`, `gold empty`.
    """
    kept: list[Example] = []
    dropped: list[tuple[str, str]] = []
    for start in range(0, len(examples), _CHUNK):
        chunk = examples[start : start + _CHUNK]
        outcomes = executor.execute_many([(example.db_path, example.gold_sql) for example in chunk])
        for example, outcome in zip(chunk, outcomes, strict=True):
            if outcome.status != "ok":
                dropped.append((example.uid, f"gold fails: {outcome.status}"))
            elif drop_empty and outcome.row_count == 0:
                dropped.append((example.uid, "gold empty"))
            else:
                kept.append(example)
    return kept, dropped
