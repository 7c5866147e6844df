"""SQLite: read a file that is copied to another engine, as a consistent snapshot, and write a file."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from jaxrl_sql.databases.engines.base import DatabaseWriter
from jaxrl_sql.databases.engines.kinds import (
    CHUNK,
    ColumnStats,
    Rows,
    column_stats,
    declares_dates,
    decode_text,
    merge_stats,
)
from jaxrl_sql.databases.engines.tables import EngineRules, Index, NameRules, PlannedTable, SourceTable
from jaxrl_sql.text2sql.schema.cache import content_of
from jaxrl_sql.text2sql.schema.read import ForeignKey, Schema, Table, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import open_read_only
from jaxrl_sql.types import InputError

_NAMES = NameRules()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A SQLite file, its identifier (`db_id`, as in benchmarks), and a hash of its content at the start of the copy."""

    db_id: str
    path: Path
    digest: str


class SqliteReader:
    """A SQLite file that is read in one transaction, so that changes of other sessions are not visible."""

    def __init__(self, file: SourceFile, connection: sqlite3.Connection) -> None:
        self.file = file
        self.connection = connection

    def tables(self, left_out: frozenset[tuple[str, str]]) -> list[SourceTable]:
        """Read each table once and return it with its statistics, without the columns `left_out`.

        `left_out` has (table, column) pairs in lower case.
        """
        return [self._table(_without(table, left_out)) for table in self.schema().tables]

    def schema(self) -> Schema:
        """Return the declared tables, without views."""
        schema, views = read_schema(self.file.path), self.views()
        return replace(schema, tables=tuple(table for table in schema.tables if table.name not in views))

    def views(self) -> list[str]:
        """Return the names of views, which are not copied."""
        return [name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]

    def find_collated_tables(self) -> list[str]:
        """Return the names of tables with a column of the collation NOCASE or RTRIM, not compared byte by byte."""
        tables = self.connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL")
        return [name for name, sql in tables if re.search(r"\bcollate\s+['\"`\[]?(nocase|rtrim)\b", sql, re.IGNORECASE)]

    def rows(self, table: Table) -> Iterator[Rows]:
        """Yield a table's rows, CHUNK at a time, as SQLite holds them."""
        names = _NAMES.quote_list(column.name for column in table.columns)
        cursor = self.connection.execute(f"SELECT {names} FROM {_NAMES.quote_name(table.name)}")
        while rows := cursor.fetchmany(CHUNK):
            yield rows

    def count_orphans(self, table: Table, key: ForeignKey) -> int:
        """Return the number of rows with a dangling foreign key."""
        columns = [f"c.{_NAMES.quote_name(name)}" for name in key.columns]
        targets = [f"p.{_NAMES.quote_name(name)}" for name in key.targets]
        refers = " AND ".join(f"{name} IS NOT NULL" for name in columns)
        equal = " AND ".join(f"{target} = {column}" for target, column in zip(targets, columns, strict=True))
        parent, child = map(_NAMES.quote_name, (key.table, table.name))
        parent_query = f"SELECT 1 FROM {parent} AS p WHERE {equal}"
        return self._count(f"SELECT COUNT(*) FROM {child} AS c WHERE {refers} AND NOT EXISTS ({parent_query})")

    def count_repeated_keys(self, table: Table, columns: Sequence[str]) -> int:
        """Return how many combinations of values of `columns` are in several rows after conversion to text."""
        texts = [f"CAST({_NAMES.quote_name(name)} AS TEXT)" for name in columns]
        is_set = " AND ".join(f"{text} IS NOT NULL" for text in texts)
        name = _NAMES.quote_name(table.name)
        repeated = f"SELECT 1 FROM {name} WHERE {is_set} GROUP BY {', '.join(texts)} HAVING COUNT(*) > 1"
        return self._count(f"SELECT COUNT(*) FROM ({repeated})")

    def _count(self, sql: str) -> int:
        return int(self.connection.execute(sql).fetchone()[0])

    def _table(self, table: Table) -> SourceTable:
        stats = [ColumnStats() for _ in table.columns]
        dated = [declares_dates(column.type) for column in table.columns]
        for rows in self.rows(table):
            columns = zip(stats, zip(*rows, strict=True), dated, strict=True)
            stats = [merge_stats(before, column_stats(values, counts_dates=dates)) for before, values, dates in columns]
        indexes = list(self._indexes(table))
        supported = [index for index in indexes if index is not None]
        return SourceTable(table, tuple(stats), tuple(supported), len(indexes) - len(supported))

    def _indexes(self, table: Table) -> Iterator[Index | None]:
        """Yield a table's indexes except the primary key's, in the order of creation.

        A partial index, or an index on expressions or omitted columns, is None.
        """
        names_by_lowercase = {column.name.lower(): column.name for column in table.columns}
        indexes = self.connection.execute(
            'SELECT name, "unique", origin, partial FROM pragma_index_list(?) ORDER BY seq DESC', (table.name,)
        ).fetchall()
        for name, is_unique, origin, is_partial in indexes:
            if origin == "pk":
                continue
            parts = self.connection.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,)).fetchall()
            columns = [names_by_lowercase.get(str(column).lower()) for (column,) in parts]
            named_columns = tuple(column for column in columns if column is not None)
            yield (
                Index(named_columns, bool(is_unique)) if len(named_columns) == len(columns) and not is_partial else None
            )


@contextmanager
def open_source(file: SourceFile) -> Iterator[SqliteReader]:
    """Open a file for a consistent read; raises InputError if it cannot be read or changes meanwhile."""
    try:
        with closing(open_read_only(file.path)) as connection:
            connection.text_factory = decode_text
            # The snapshot begins with the first read of a transaction.
            connection.execute("BEGIN")
            connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            yield SqliteReader(file, connection)
    except sqlite3.Error as error:
        raise InputError(f"{file.path}: cannot be read ({error})") from error
    if content_of(file.path) != file.digest:
        raise InputError(f"{file.path} changed during the copy: run the command again without concurrent writers")


class SqliteWriter(DatabaseWriter):
    """A SQLite file to write, with the types of the engine whose `rules` are given."""

    declares_keys = True

    def __init__(self, connection: sqlite3.Connection, rules: EngineRules) -> None:
        super().__init__(connection, rules._replace(names=_NAMES), sqlite3.Error)

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        """Insert a table's rows; bytes that are not UTF-8 become `?`."""
        placeholders = ", ".join("?" * len(table.columns))
        for chunk in rows:
            self.connection.executemany(
                f"INSERT INTO {self.quote_name(table.name)} VALUES ({placeholders})", map(_storable, chunk)
            )


def _storable(row: Sequence[object]) -> tuple[object, ...]:
    """Return a row with `?` for each surrogate in its texts, by which `decode_text` represents an invalid byte."""
    return tuple(cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell for cell in row)


def _without(table: Table, left_out: frozenset[tuple[str, str]]) -> Table:
    """Return a table without some columns and their foreign keys."""
    columns = tuple(column for column in table.columns if (table.name.lower(), column.name.lower()) not in left_out)
    if len({column.name for column in columns} & {*table.primary_key}) < len(table.primary_key):
        # The rest of a primary key need not be unique.
        columns = tuple(replace(column, primary_key=0) for column in columns)
    keys = tuple(
        key
        for key in table.foreign_keys
        if not any((table.name.lower(), name.lower()) in left_out for name in key.columns)
        and not any((key.table.lower(), name.lower()) in left_out for name in key.targets)
    )
    return Table(table.name, columns, keys)
