"""Write a snapshot: a SQLite file, what people wrote about its columns, and the statistics of the whole database."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxrl_sql.data.schema.quote import quote_name
from jaxrl_sql.datagen.snapshot.closure import Reference
from jaxrl_sql.datagen.snapshot.plan import Plan, SourceColumn, TablePlan, TableSample
from jaxrl_sql.datagen.snapshot.values import KINDS
from jaxrl_sql.types import Cell, InputError

# The columns of a file of descriptions, as BIRD has them and `jaxrl_sql.data.schema.describe` reads them.
_DESCRIBED = ("original_column_name", "column_name", "column_description", "data_format", "value_description")


class SnapshotFile:
    """The SQLite file of a snapshot while it is written."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self._plan = plan
        # Nobody reads the file before it is whole, and one that is not is thrown away: it needs no journal.
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        for table in plan.tables.values():
            self._connection.execute(_create_table(table, plan.references))
        self._connection.execute("BEGIN")

    def insert(self, table: TablePlan, rows: Iterable[tuple[Cell, ...]]) -> None:
        """Insert rows of all columns; raises InputError where two values of a key are one to SQLite."""
        places = ", ".join("?" * len(table.columns))
        try:
            self._connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({places})", rows)
        except sqlite3.IntegrityError as error:
            raise InputError(
                f"{table.source.title}: {error} (SQLite has no NaN, and rounds numbers): --leave-out the column"
            ) from None
        except (sqlite3.DataError, OverflowError) as error:
            raise InputError(f"{table.source.title}: a value that SQLite cannot hold ({error})") from None

    def count_distinct(self, table: str, column: str) -> int:
        """Return how many values a column of the copy has, NULL aside."""
        sql = f"SELECT count(DISTINCT {_quoted(column)}) FROM {_quoted(table)}"
        return int(self._connection.execute(sql).fetchone()[0])

    def count_orphans(self) -> Counter[tuple[str, str]]:
        """Return how many rows refer to none, by table and the table that they should refer to."""
        return Counter((table, parent) for table, _, parent, _ in self._connection.execute("PRAGMA foreign_key_check"))

    def commit(self) -> None:
        """Write what was inserted."""
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _quoted(name: str) -> str:
    return quote_name(name, always=True)


def _create_table(table: TablePlan, references: Iterable[Reference]) -> str:
    """Return the statement that makes a table, with its keys and references as the server has them."""
    key, *others = table.keys(references)
    lines = []
    for column in table.columns:
        line = f"{quote_name(column.name)} {KINDS[column.kind].declared}"
        if column.not_null or column.name in key:
            line += " NOT NULL"
        lines.append(line + (" PRIMARY KEY" if key == (column.name,) else ""))
    if len(key) > 1:
        lines.append(f"PRIMARY KEY ({_listed(key)})")
    lines += [f"UNIQUE ({_listed(names)})" for names in others]
    lines += [
        f"FOREIGN KEY ({_listed(one.columns)}) REFERENCES {quote_name(one.parent)} ({_listed(one.targets)})"
        for one in references
        if one.child == table.name
    ]
    inside = ",\n    ".join(lines)
    return f"CREATE TABLE {quote_name(table.name)} (\n    {inside}\n)"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quote_name, names))


def write_descriptions(folder: Path, plan: Plan) -> list[str]:
    """Write the comments of columns, a file a table that has any; return a line for each table that cannot have one."""
    notes = []
    for table in plan.tables.values():
        if not any(column.comment for column in table.columns):
            continue
        if "/" in table.name or "\0" in table.name:
            notes.append(f"{table.source.title}: its comments are in the statistics alone, as no file has its name")
            continue
        folder.mkdir(exist_ok=True)
        with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_DESCRIBED)
            writer.writerows((column.name, "", column.comment, column.type, "") for column in table.columns)
    return notes


def table_statistics(
    table: TablePlan, sample: TableSample, kept: int, file: SnapshotFile, plan: Plan
) -> dict[str, Any]:
    """Return what is known of a whole table: rows, and of each column distinct values, NULLs, smallest and largest."""
    keys = [*table.keys(plan.references), *table.source.unique, table.source.primary_key]
    unique = {key[0] for key in keys if len(key) == 1}
    return {
        "source": table.source.title,
        "comment": table.source.comment,
        "rows": sample.row_count,
        "rows_kept": kept,
        "columns": {
            column.name: _column_statistics(table, column, sample, kept, file, is_unique=column.name in unique)
            for column in table.columns
        },
        "left_out": [column.name for column in table.source.columns if column.name not in table.names],
    }


def _column_statistics(
    table: TablePlan, column: SourceColumn, sample: TableSample, kept: int, file: SnapshotFile, *, is_unique: bool
) -> dict[str, Any]:
    nulls = sample.nulls[column.name]
    rows = sample.row_count
    distinct, is_exact = None, True
    if is_unique:
        distinct = rows - nulls
    elif kept == rows:
        distinct = file.count_distinct(table.name, column.name)
    elif column.distinct:
        is_exact = False
        distinct = round(column.distinct if column.distinct > 0 else -column.distinct * rows)
    low, high = sample.bounds.get(column.name, (None, None))
    return {
        "type": column.type,
        "comment": column.comment,
        "is_masked": column.name in table.masked,
        "null_share": nulls / rows if rows else 0.0,
        "distinct": distinct,
        "distinct_is_exact": is_exact,
        "min": _shown(column.kind, low),
        "max": _shown(column.kind, high),
    }


def _shown(kind: str, text: str | None) -> Cell:
    """Return a value as the copy has it; an infinity, which JSON has not, as a text."""
    if text is None:
        return None
    value = KINDS[kind].convert(text)
    return text if isinstance(value, float) and math.isinf(value) else value


def write_statistics(path: Path, facts: Mapping[str, Any]) -> None:
    """Write the statistics of a database."""
    path.write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
