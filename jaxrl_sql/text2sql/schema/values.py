"""Column values of a database: the most frequent values, and the minimum and maximum of numeric columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jaxrl_sql.text2sql.schema.cache import Version, load_or_compute, version_of
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import Column, Table, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import read_file, skip_unreadable
from jaxrl_sql.types import InputError

# The name of entries in the disk cache; the number must change with the content or the format.
_CACHE_KIND = "values-3"

# The maximum number of rows read per table, since a run reads the values of all of its databases at the start.
_MAX_ROWS = 100_000
_NUM_FREQUENT = 3
_MAX_CHARS = 40

Value = int | float | str


class Values(NamedTuple):
    """A column's most frequent values, up to three, and the minimum and maximum of a numeric column.

    `low` and `high` are None if the column has any text or blob. Values are counted in a table's first 100,000 rows,
    without NULL and ''; equally frequent values are in SQLite's order. Text is one line of up to 40 characters; blobs
    are omitted.
    """

    frequent: tuple[Value, ...] = ()
    low: int | float | None = None
    high: int | float | None = None


NO_VALUES = Values()

ColumnValues = Mapping[tuple[str, str], Values]
"""Values by table and column."""


def read_values(db_path: str | Path, hide: Sequence[str] = ()) -> ColumnValues:
    """Read values by (table, column), once per content of the file (`jaxrl_sql.text2sql.schema.cache`).

    The columns of `hide` (`table.column` or a table's name), which the model must not see, are excluded. Raises
    InputError if the file is missing or is not a readable database.
    """
    return _read_version(version_of(db_path, hide))


@lru_cache(maxsize=4096)
def _read_version(version: Version) -> ColumnValues:
    return load_or_compute(_CACHE_KIND, version, _load, _dump, lambda: _read(version))


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
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter in SQLite's error messages
        raise InputError(f"{path}: values cannot be read ({error})") from error


def _dump(values: ColumnValues) -> bytes:
    return json.dumps([[*names, *values_of_column] for names, values_of_column in values.items()]).encode()


def _load(raw: bytes) -> ColumnValues:
    return MappingProxyType(
        {(table, column): Values(tuple(frequent), low, high) for table, column, frequent, low, high in json.loads(raw)}
    )


def _read_column(connection: sqlite3.Connection, table: Table, column: Column) -> Values:
    """Query the values of a column in the first rows of its table."""
    name, source = (quote_name(text, always=True) for text in (column.name, table.name))
    rows_sql = f"(SELECT {name} AS v FROM {source} LIMIT {_MAX_ROWS}) WHERE v <> ''"
    frequent = connection.execute(
        f"SELECT v FROM {rows_sql} AND typeof(v) <> 'blob' GROUP BY v ORDER BY count(*) DESC, v LIMIT {_NUM_FREQUENT}"
    ).fetchall()
    low, high, texts = connection.execute(
        f"SELECT min(v), max(v), count(CASE WHEN typeof(v) IN ('text', 'blob') THEN 1 END) FROM {rows_sql}"
    ).fetchone()
    values = tuple(_as_one_line(value) for (value,) in frequent)
    return Values(values) if texts else Values(values, low, high)


def _as_one_line(value: Value) -> Value:
    """Return a text as one line of up to 40 characters, and a number unchanged."""
    if not isinstance(value, str):
        return value
    line = " ".join(value.split())
    return line if len(line) <= _MAX_CHARS else line[: _MAX_CHARS - 1] + "…"
