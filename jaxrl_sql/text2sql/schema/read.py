"""Read the schema of a database: tables, columns, and primary and foreign keys.

It uses Python's sqlite3 read-only, since it runs once per database and does not need the native executor's speed.
`render` converts the result to text. Tables and columns that this SQLite cannot read, such as virtual tables of an
extension, are skipped and listed with the reason.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from jaxrl_sql.text2sql.env.hiding import are_readable
from jaxrl_sql.text2sql.schema.cache import Version, version_of
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_names
from jaxrl_sql.text2sql.schema.sqlite_file import concerns_only_one_table, read_file
from jaxrl_sql.types import InputError

POSTGRESQL_SAMPLE = 0x53716C50
"""SQLite's `application_id` in the file of a sample of a PostgreSQL database."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its declared type; `primary_key` is its position in the primary key, from 1; 0 outside of it."""

    name: str
    type: str
    not_null: bool = False
    primary_key: int = 0


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Columns that refer, position by position, to the columns `targets` of `table`."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its columns in declared order."""

    name: str
    columns: tuple[Column, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Return the names of the key's columns in the key's order; empty without a key."""
        key = sorted((column for column in self.columns if column.primary_key), key=lambda column: column.primary_key)
        return tuple(column.name for column in key)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database in order of creation.

    SQLite's internal tables and shadow tables of virtual tables are excluded. Views are separate, as tables without
    keys; in a database with only views, they are its tables. `matched` has (table, column, value) of values that a
    question seems to refer to, from best to worst. It is empty after reading; `prompts.select_schema` sets it.
    `left_out` has (table or table.column, reason) of parts that SQLite cannot read. `is_postgresql`: the file is a
    sample of a PostgreSQL database, so prompts write names and values as PostgreSQL requires.
    """

    tables: tuple[Table, ...]
    matched: tuple[tuple[str, str, str], ...] = ()
    views: tuple[Table, ...] = field(default=(), compare=False)
    left_out: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    is_postgresql: bool = field(default=False, compare=False)

    @property
    def omissions(self) -> tuple[str, ...]:
        """Return a line per skipped table and column."""
        return tuple(f"{name} is skipped: {reason}" for name, reason in self.left_out)


def read_schema(db_path: str | Path, hide: Sequence[str] = ()) -> Schema:
    """Read the schema of a SQLite file without the columns of `hide`, once per version of the file.

    `hide` lists columns that the model must not see, as `table.column` or the name of a table. Raises InputError if the
    file is missing or is not a readable database.
    """
    return _read_version(version_of(db_path, hide))


def part_of(schema: Schema, columns: Collection[tuple[str, str]]) -> Schema:
    """Return the schema of these (table, column) pairs only, without empty tables and incomplete keys.

    Views and `left_out` are not part of the result.
    """
    visible = frozenset(columns)

    def has(table: str, names: tuple[str, ...]) -> bool:
        return all((table, name) in visible for name in names)

    def part(table: Table) -> Table:
        reduced = tuple(column for column in table.columns if (table.name, column.name) in visible)
        if not has(table.name, table.primary_key):
            reduced = tuple(replace(column, primary_key=0) for column in reduced)
        return Table(table.name, reduced, tuple(key for key in table.foreign_keys if is_whole(table.name, key)))

    def is_whole(table: str, key: ForeignKey) -> bool:
        return has(table, key.columns) and has(key.table, key.targets)

    tables = tuple(reduced for table in schema.tables if (reduced := part(table)).columns)
    matched = tuple(match for match in schema.matched if match[:2] in visible)
    return Schema(tables, matched, is_postgresql=schema.is_postgresql)


@lru_cache(maxsize=4096)
def _read_version(version: Version) -> Schema:
    if version.hide:
        return _visible(_read_version(version._replace(hide=())), version)
    try:
        return read_file(version.path, _read_connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter in SQLite's error messages
        raise InputError(f"{version.path}: not a readable SQLite database ({error})") from error


def _read_connection(connection: sqlite3.Connection) -> Schema:
    """Read the schema of an open database."""
    types: dict[str, str] = dict(
        connection.execute(
            "SELECT name, type FROM sqlite_master "
            "WHERE type IN ('table', 'view') AND substr(lower(name), 1, 7) <> 'sqlite_'"
        )
    )
    shadows = _shadow_tables(connection)
    left_out: list[tuple[str, str]] = []
    readable = {name: _read_columns(connection, name, left_out) for name in types if name not in shadows}
    without_keys = {name: Table(name, columns) for name, columns in readable.items() if columns is not None}
    targets = {name.lower(): table for name, table in without_keys.items() if types[name] == "table"}
    tables = tuple(
        replace(
            table, foreign_keys=_resolve_references(table.columns, _read_references(connection, table.name), targets)
        )
        for table in targets.values()
    )
    views = tuple(table for name, table in without_keys.items() if types[name] == "view")
    ((application_id,),) = connection.execute("PRAGMA application_id")
    is_postgresql = application_id == POSTGRESQL_SAMPLE
    return Schema(tables or views, (), views if tables else (), tuple(left_out), is_postgresql)


def _visible(whole: Schema, version: Version) -> Schema:
    """Return the part of a schema that the executor allows queries to read if columns are hidden."""
    listed = (*whole.tables, *whole.views)
    names = [(table.name, column.name) for table in listed for column in table.columns]
    queries = [f"SELECT {quote_name(name, always=True)} FROM {quote_name(table, always=True)}" for table, name in names]
    readable = are_readable(version.path, queries, version.hide)
    visible = {name for name, is_readable in zip(names, readable, strict=True) if is_readable}
    hidden = {name.lower() for name in version.hide}
    left_out = tuple(entry for entry in whole.left_out if entry[0].lower() not in hidden)
    return replace(part_of(whole, visible), views=part_of(Schema(whole.views), visible).tables, left_out=left_out)


def _shadow_tables(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the shadow tables of virtual tables, such as those of full-text search."""
    if sqlite3.sqlite_version_info < (3, 37):
        return frozenset()
    rows = connection.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'")
    return frozenset(name for (name,) in rows)


def _read_columns(
    connection: sqlite3.Connection, table: str, left_out: list[tuple[str, str]]
) -> tuple[Column, ...] | None:
    """Return the columns that queries can read and compare, and record the others; None if no column remains."""
    try:
        # table_xinfo also lists generated columns (hidden = 2, 3), which can be queried; hidden = 1 are not in `*`.
        rows = connection.execute(
            'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid', (table,)
        ).fetchall()
    except sqlite3.Error as error:
        if not concerns_only_one_table(error):
            raise
        left_out.append((table, str(error)))
        return None
    columns = tuple(Column(name, declared or "", bool(not_null), pk) for name, declared, not_null, pk in rows)
    reason = _read_error(connection, table, columns)
    if not reason:
        return columns
    errors = {column.name: _read_error(connection, table, [column]) for column in columns}
    if all(errors.values()):
        left_out.append((table, reason))
        return None
    left_out += [(f"{table}.{name}", error) for name, error in errors.items() if error]
    readable = [column for column in columns if not errors[column.name]]
    if any(column.primary_key and errors[column.name] for column in columns):
        readable = [replace(column, primary_key=0) for column in readable]
    return tuple(readable)


def _read_error(connection: sqlite3.Connection, table: str, columns: Sequence[Column]) -> str:
    """Return why no query can read and compare these columns, or ""; the query is only prepared."""
    names = quote_names((column.name for column in columns), always=True)
    if not names:
        return ""
    try:
        connection.execute(f"EXPLAIN SELECT DISTINCT {names} FROM {quote_name(table, always=True)}").close()
    except sqlite3.Error as error:
        if not concerns_only_one_table(error):
            raise
        return str(error)
    return ""


# A foreign key in SQLite's list: the target table and (column, target column or None) pairs.
_Reference = tuple[str, list[tuple[str, str | None]]]


def _read_references(connection: sqlite3.Connection, table: str) -> list[_Reference]:
    """Return a table's foreign keys in the order of their declaration."""
    # SQLite numbers foreign keys from the last declared to the first.
    rows = connection.execute(
        'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq', (table,)
    )
    references: dict[int, _Reference] = {}
    for key_id, target, column, target_column in rows:
        references.setdefault(key_id, (target, []))[1].append((column, target_column))
    return list(references.values())


def _resolve_references(
    own_columns: tuple[Column, ...], references: list[_Reference], tables: dict[str, Table]
) -> tuple[ForeignKey, ...]:
    """Return foreign keys with names in the spelling of the tables, as SQLite ignores the case of names in references.

    References to a table or column that is not in the schema are omitted. A reference without target columns refers to
    the target's primary key (SQLite, "Foreign Key Support", section 3).
    """
    own_names = {column.name.lower(): column.name for column in own_columns}
    resolved = []
    for target_name, pairs in references:
        target = tables.get(target_name.lower())
        if target is None or any(column.lower() not in own_names for column, _ in pairs):
            continue
        names = {column.name.lower(): column.name for column in target.columns}
        key = target.primary_key
        matches = [
            to if to is not None else (key[i] if len(key) == len(pairs) else None) for i, (_, to) in enumerate(pairs)
        ]
        columns = tuple(own_names[column.lower()] for column, _ in pairs)
        targets = tuple(names[to.lower()] for to in matches if to is not None and to.lower() in names)
        if len(targets) == len(pairs):
            resolved.append(ForeignKey(columns, target.name, targets))
    return tuple(resolved)
