"""Select training questions by the execution of their golds (the correct SQL), by text, prompt length and pass rate.

Training uses `usable_golds` and `keep_only`; the other filters are steps of the command `data filter`. Each of these
returns the examples to keep, in order, and the dropped ones with a reason and the numbers that it is based on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import FilterSettings
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.text2sql.files.jsonl import read_ids
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.types import Example, InputError

# Outcomes keep their rows in memory, so golds run in chunks.
_CHUNK = 256


class DroppedQuestion(NamedTuple):
    """A dropped question with the reason, and the numbers that it is based on, such as `rows` of the gold's result.

    `error` is the database's message about a gold that failed, or "".
    """

    uid: str
    reason: str
    numbers: Mapping[str, float] = {}
    error: str = ""


Filtered = tuple[list[Example], list[DroppedQuestion]]
"""The examples to keep and the dropped ones, both in order."""

DropReason = tuple[str, Mapping[str, float]]
"""The reason to drop a question ("": keep it) and its numbers."""


def usable_golds(
    executor: SqlExecutor,
    examples: Sequence[Example],
    drop_empty: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[Example], list[tuple[str, str]]]:
    """Run every gold; return the examples to keep and (uid, reason) of the others, in order.

    Reasons are `gold fails: <status>` and, with `drop_empty`, `gold empty`. The first is followed by `, over vm_steps`
    if the executor's limit of SQLite VM steps stopped the gold. `on_progress` receives the number of golds that have
    run.
    """
    kept_examples, dropped = by_gold(executor, examples, FilterSettings(empty_gold=drop_empty), on_progress)
    return kept_examples, [(item.uid, item.reason) for item in dropped]


def keep_only(examples: Iterable[Example], path: str | Path, limit: int = 0) -> list[Example]:
    """Return the first `limit` (0: all) examples whose ids are in a file; raises InputError if there are none."""
    ids = read_ids(path)
    kept_examples = [example for example in examples if example.uid in ids]
    if not kept_examples:
        raise InputError(f"{path}: none of its {len(ids)} ids is a question of this set")
    return kept_examples[:limit] if limit > 0 else kept_examples


def by_gold(
    executor: SqlExecutor,
    examples: Sequence[Example],
    cfg: FilterSettings,
    on_progress: Callable[[int], None] | None = None,
) -> Filtered:
    """Run every gold and drop questions whose gold fails, exceeds a limit, or returns no rows, as `cfg` requests.

    The limits are `max_gold_ms` in milliseconds and `max_gold_steps` in steps of SQLite's virtual machine (VM), which
    do not depend on the machine's speed. `on_progress` receives the number of golds that have run.
    """
    kept_examples: list[Example] = []
    dropped: list[DroppedQuestion] = []
    for example, outcome in _run_golds(executor, examples, on_progress):
        if reason := _gold_reason(outcome, cfg):
            numbers = {"rows": outcome.row_count, "vm_steps": outcome.vm_steps, "ms": round(outcome.elapsed_ms, 3)}
            dropped.append(DroppedQuestion(example.uid, reason, numbers, " ".join((outcome.error or "").split())))
        else:
            kept_examples.append(example)
    return kept_examples, dropped


def _split_by_reason(pairs: Iterable[tuple[Example, DropReason]]) -> Filtered:
    """Split examples into those to keep and those to drop."""
    kept_examples: list[Example] = []
    dropped: list[DroppedQuestion] = []
    for example, (reason, numbers) in pairs:
        if reason:
            dropped.append(DroppedQuestion(example.uid, reason, numbers))
        else:
            kept_examples.append(example)
    return kept_examples, dropped


def _run_golds(
    executor: SqlExecutor, examples: Sequence[Example], on_progress: Callable[[int], None] | None
) -> Iterator[tuple[Example, SqlOutcome]]:
    for start in range(0, len(examples), _CHUNK):
        if on_progress:
            on_progress(start)
        chunk = examples[start : start + _CHUNK]
        outcomes = execute_all(executor, [(example.database, example.gold_sql) for example in chunk])
        yield from zip(chunk, outcomes, strict=True)


def _gold_reason(outcome: SqlOutcome, cfg: FilterSettings) -> str:
    """Return why a question is dropped after its gold ran, or ""."""
    if outcome.status != "ok":
        over = ", over vm_steps" if outcome.stopped_by == "vm_steps" else ""
        return f"gold fails: {outcome.status}{over}" if cfg.failing_gold else ""
    if cfg.max_gold_steps and outcome.vm_steps > cfg.max_gold_steps:
        return f"gold over {cfg.max_gold_steps} VM steps"
    if cfg.max_gold_ms and outcome.elapsed_ms > cfg.max_gold_ms:
        return f"gold over {cfg.max_gold_ms} ms"
    return "gold empty" if cfg.empty_gold and outcome.row_count == 0 else ""


def by_text(examples: Sequence[Example], cfg: FilterSettings) -> Filtered:
    """Drop questions whose id is in the file `cfg.noisy`, a list of wrong golds, and golds of unsuitable length."""
    noisy = read_ids(cfg.noisy) if cfg.noisy else frozenset()

    def find_reason(example: Example) -> DropReason:
        characters = len(example.gold_sql)
        return (
            ("noisy gold", {})
            if example.uid in noisy
            else (_length_reason(characters, cfg), {"characters": characters})
        )

    return _split_by_reason((example, find_reason(example)) for example in examples)


def _length_reason(characters: int, cfg: FilterSettings) -> str:
    if characters < cfg.min_sql_characters:
        return f"gold under {cfg.min_sql_characters} characters"
    is_long = 0 < cfg.max_sql_characters < characters
    return f"gold over {cfg.max_sql_characters} characters" if is_long else ""


def without_repeats(examples: Sequence[Example]) -> Filtered:
    """Drop repeated questions on the same database; case and punctuation are ignored."""
    seen: set[tuple[str, str]] = set()

    def find_reason(example: Example) -> DropReason:
        key = example.db_path, plain_words(example.question)
        reason = "asked before" if key in seen else ""
        seen.add(key)
        return reason, {}

    return _split_by_reason((example, find_reason(example)) for example in examples)


def is_trivial(rows: Sequence[Sequence[object]]) -> bool:
    """Return whether a result is a single row of only 0 and NULL, which many wrong queries return, too."""
    return len(rows) == 1 and all(value is None or value == 0 for value in rows[0])


def plain_words(text: str) -> str:
    """Return a text without punctuation, case-folded and NFKC-normalized, with words separated by single spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Unicode's categories of punctuation (P), separators (Z) and control characters (C) become spaces.
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PZC" else c for c in folded).split())


def by_prompt(questions: PromptSet, max_tokens: int) -> Filtered:
    """Drop questions whose prompt has more than `max_tokens` tokens."""

    def find_reason(tokens: int) -> DropReason:
        return f"prompt over {max_tokens} tokens" if tokens > max_tokens else "", {"tokens": tokens}

    pairs = zip(questions.examples, questions.prompts, strict=True)
    return _split_by_reason((example, find_reason(len(prompt.token_ids))) for example, prompt in pairs)


def by_pass_rate(
    examples: Sequence[Example], rates: Mapping[str, tuple[int, int]], low: float, high: float
) -> Filtered:
    """Keep questions whose share of right answers is in [low, high].

    `rates` maps each id to the number of right answers and the number of answers that could be judged.
    """

    def find_reason(right: int, total: int) -> DropReason:
        numbers = {"right": right, "of": total}
        if not total:
            return "no verdict on its answers", numbers
        # Compare counts, not quotients, so that 3 of 10 is not below 0.3.
        reason = "seldom right" if right < low * total - 1e-9 else "often right" if right > high * total + 1e-9 else ""
        return reason, numbers

    return _split_by_reason((example, find_reason(*rates[example.uid])) for example in examples)


def by_choice(examples: Sequence[Example], chosen: frozenset[str], reason: str) -> Filtered:
    """Keep the examples whose ids are in `chosen`, and drop the others with `reason`."""
    return _split_by_reason((example, ("" if example.uid in chosen else reason, {})) for example in examples)
