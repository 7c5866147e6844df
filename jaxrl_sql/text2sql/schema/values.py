"""What stands in the columns of a database: the most frequent values, and the least and greatest of numbers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jaxrl_sql.text2sql.schema.cache import Version, kept, version_of
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import Column, Table, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import read_file, skip_unreadable
from jaxrl_sql.types import InputError

# The name of entries in the cache on disk: another number when what is found, or how it is written, changes.
_KIND = "values-3"

# Large tables are known by their first rows: a schema is read at a run's start, of each of its databases.
_ROWS = 100_000
_FREQUENT = 3
_LONGEST = 40

Value = int | float | str


class Values(NamedTuple):
    """A column's most frequent values, up to three; `low` and `high` of a column of numbers alone, else None.

    Values are counted in a table's first 100,000 rows, NULL and '' aside; equally frequent ones are in SQLite's order.
    Text is one line of up to 40 characters; blobs are left out.
    """

    frequent: tuple[Value, ...] = ()
    low: int | float | None = None
    high: int | float | None = None


NO_VALUES = Values()

ColumnValues = Mapping[tuple[str, str], Values]
"""What stands in the columns, by table and column."""


def read_values(db_path: str | Path, hide: Sequence[str] = ()) -> ColumnValues:
    """Read the values of (table, column), once for each content of the file (`jaxrl_sql.text2sql.schema.cache`).

    Those of the columns of `hide` are not read.

    Raises InputError when the file is missing or is not a readable database.
    """
    return _read_version(version_of(db_path, hide))


@lru_cache(maxsize=4096)
def _read_version(version: Version) -> ColumnValues:
    return kept(_KIND, version, _load, _dump, lambda: _read(version))


def _read(version: Version) -> ColumnValues:
    path = version.path
    schema = read_schema(path, version.hide)

    def read(connection: sqlite3.Connection) -> dict[tuple[str, str], Values]:
        values = {}
        for table in schema.tables:
            for column in table.columns:
                values[table.name, column.name] = NO_VALUES
                with skip_unreadable(path, f"{table.name}.{column.name}"):
                    values[table.name, column.name] = _read_column(connection, table, column)
        return values

    try:
        return MappingProxyType(read_file(path, read))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: of SQLite's words, where they quote no text
        raise InputError(f"{path}: values cannot be read ({error})") from error


def _dump(values: ColumnValues) -> bytes:
    return json.dumps([[*names, *found] for names, found in values.items()]).encode()


def _load(raw: bytes) -> ColumnValues:
    return MappingProxyType(
        {(table, column): Values(tuple(frequent), low, high) for table, column, frequent, low, high in json.loads(raw)}
    )


def _read_column(connection: sqlite3.Connection, table: Table, column: Column) -> Values:
    name, source = (quote_name(text, always=True) for text in (column.name, table.name))
    some = f"(SELECT {name} AS v FROM {source} LIMIT {_ROWS}) WHERE v <> ''"
    frequent = connection.execute(
        f"SELECT v FROM {some} AND typeof(v) <> 'blob' GROUP BY v ORDER BY count(*) DESC, v LIMIT {_FREQUENT}"
    ).fetchall()
    low, high, texts = connection.execute(
        f"SELECT min(v), max(v), count(CASE WHEN typeof(v) IN ('text', 'blob') THEN 1 END) FROM {some}"
    ).fetchone()
    values = tuple(_short(value) for (value,) in frequent)
    return Values(values) if texts else Values(values, low, high)


def _short(value: Value) -> Value:
    if not isinstance(value, str):
        return value
    line = " ".join(value.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
