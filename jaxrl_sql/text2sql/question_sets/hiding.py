"""Apply the setting `data.hide`, a list of columns that the model must not see, to a set of questions.

An entry is `table.column`, or a table's name for all of its columns. Hidden columns are in no prompt, the executor
rejects SQL that reads one, and questions whose gold reads one are skipped.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence

from jaxrl_sql.text2sql.benchmarks import Benchmark
from jaxrl_sql.text2sql.env.hiding import hidden_reads
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import Example, InputError

# SQLite ignores the case of ASCII letters only.
_FOLD = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def hide_in_benchmark(benchmark: Benchmark, hide: Sequence[str]) -> Benchmark:
    """Return a set whose examples hide these columns; questions whose gold reads one are skipped with a reason.

    Raises InputError for a set on a database engine other than SQLite, and if every gold reads a hidden column.
    """
    if not hide:
        return benchmark
    if on_engine := next((example for example in benchmark.examples if example.engine_url), None):
        refuse_hide(hide, f"the engine of {on_engine.uid} is {on_engine.dialect}")
    golds = [(example.db_path, sql) for example in benchmark.examples for sql in _sql_of(example)]
    refusals = dict(zip(golds, hidden_reads(golds, hide), strict=True))
    usable: list[Example] = []
    skipped: list[tuple[str, str]] = []
    for example in benchmark.examples:
        refusal = next((reason for sql in _sql_of(example) if (reason := refusals[example.db_path, sql])), "")
        if refusal:
            skipped.append((example.uid, f"gold refused: {refusal}"))
        else:
            usable.append(dataclasses.replace(example, hide=tuple(hide)))
    if skipped and not usable:
        raise InputError(f"data.hide=[{', '.join(hide)}]: no question is left; {skipped[0][0]}: {skipped[0][1]}")
    return benchmark._replace(
        examples=tuple(usable),
        skipped=(*benchmark.skipped, *skipped),
        order=benchmark.order or tuple(example.uid for example in benchmark.examples),
    )


def _sql_of(example: Example) -> tuple[str, ...]:
    """Return the golds and the demonstration of an example."""
    return tuple(sql for sql in (example.gold_sql, *example.other_golds, example.demonstration) if sql)


def hide_in_example(example: Example, hide: Sequence[str]) -> Example:
    """Return a question with these columns of its database hidden.

    Raises InputError like `check_hide`, for a database engine other than SQLite, and if no column remains.
    """
    if not hide:
        return example
    if example.engine_url:
        refuse_hide(hide, "the database is one of another engine")
    check_hide(hide, [example.db_path])
    if not read_schema(example.db_path, hide).tables:
        raise InputError(f"data.hide=[{', '.join(hide)}] hides everything in {example.db_path}")
    return dataclasses.replace(example, hide=tuple(hide))


def check_hide(hide: Sequence[str], db_paths: Iterable[str]) -> None:
    """Raise InputError for a name that is no table or column of these databases, and suggest the nearest."""
    unmatched, names = {entry.translate(_FOLD): entry for entry in hide}, dict[str, None]()
    for path in dict.fromkeys(db_paths) if unmatched else ():
        for table in read_schema(path).tables:
            for name in (table.name, *(f"{table.name}.{column.name}" for column in table.columns)):
                unmatched.pop(name.translate(_FOLD), None)
                names[name] = None
        if not unmatched:
            return
    for entry in unmatched.values():
        nearest = difflib.get_close_matches(entry, [name for name in names if ("." in name) == ("." in entry)], 1, 0.0)
        raise InputError(f"data.hide: no table or column {entry}; the nearest is {(nearest or [*names])[0]}")


def refuse_hide(hide: Sequence[str], where: str) -> None:
    """Raise InputError if `hide` is not empty, as the database is not a SQLite file; `where` says which it is."""
    if hide:
        table = hide[0].partition(".")[0]
        raise InputError(
            f"data.hide=[{', '.join(hide)}] is for SQLite files, and {where}. On a server, let the read-only role read "
            f"only the other columns (REVOKE SELECT ON {table} FROM reader; GRANT SELECT (…) ON {table} TO reader), "
            f"and omit the column from the sample with --leave-out {hide[0]}"
        )
