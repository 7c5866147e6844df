"""Hidden columns for the executor, and checks whether queries read them.

The setting `data.hide` lists columns (`table.column`) and whole tables (`table`). Prompts omit them, and the executor
refuses queries that read them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlexec_rs import Executor

# The end of the executor's error for a query that reads a hidden column.
_HIDDEN_ERROR = "is hidden"


def hidden_columns(hide: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return all (table, column) pairs, and (table, None) for tables, that `table.column` and `table` may refer to.

    Names may contain points, so each point may separate the table from the column.
    """
    pairs: list[tuple[str, str | None]] = [(entry, None) for entry in hide]
    pairs += [
        (entry[:position], entry[position + 1 :])
        for entry in hide
        for position, char in enumerate(entry)
        if char == "."
    ]
    return pairs


def are_readable(db_path: str, queries: Sequence[str], hide: Sequence[str]) -> list[bool]:
    """Return for each query whether it can be prepared and reads no hidden column."""
    with Executor(threads=1, isolation="thread", hide=hidden_columns(hide)) as executor:
        return [executor.explain(db_path, sql).status == "ok" for sql in queries]


def hidden_reads(queries: Sequence[tuple[str, str]], hide: Sequence[str]) -> list[str]:
    """Return for each (database, SQL) the executor's error if it reads a hidden column, else ""."""
    with Executor(threads=1, hide=hidden_columns(hide)) as executor:
        errors = [executor.explain(db_path, sql).error or "" for db_path, sql in queries]
    return [error if error.endswith(_HIDDEN_ERROR) else "" for error in errors]
