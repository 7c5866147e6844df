"""Read what a prompt says about a database: tables, columns, keys and how they refer to each other.

Reading goes through Python's own sqlite3, read-only: it happens once a database, not once a candidate, so it needs
none of the native executor's speed. `jaxrl_sql.data.schema.render` turns the result into text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from jaxrl_sql.data.schema.cache import Version, version_of
from jaxrl_sql.data.schema.quote import quote_name
from jaxrl_sql.sqlenv.hiding import are_readable
from jaxrl_sql.types import InputError


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it was declared; `primary_key` is its place in the key, from 1, or 0."""

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
        """Return the names of the key's columns in the key's order; empty when there is none."""
        key = sorted((column for column in self.columns if column.primary_key), key=lambda column: column.primary_key)
        return tuple(column.name for column in key)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database in the order in which they were created.

    Views are left out, SQLite's own tables, and those in which virtual ones keep what they hold.
    `matched` are (table, column, value) that a question seems to mean, the best first: none as a schema is read.
    """

    tables: tuple[Table, ...]
    matched: tuple[tuple[str, str, str], ...] = ()


def read_schema(db_path: str | Path, hide: Sequence[str] = ()) -> Schema:
    """Read the schema of a SQLite file without the columns of `hide`, once for each version of the file.

    Raises InputError when the file is missing or is not a readable database.
    """
    return _read_version(version_of(db_path, hide))


def part_of(schema: Schema, columns: Collection[tuple[str, str]]) -> Schema:
    """Return the schema of these columns alone: tables without any are left out, and keys that are not whole."""
    kept = frozenset(columns)

    def has(table: str, names: tuple[str, ...]) -> bool:
        return all((table, name) in kept for name in names)

    def part(table: Table) -> Table:
        shown = tuple(column for column in table.columns if (table.name, column.name) in kept)
        if not has(table.name, table.primary_key):
            shown = tuple(replace(column, primary_key=0) for column in shown)
        return Table(table.name, shown, tuple(key for key in table.foreign_keys if is_whole(table.name, key)))

    def is_whole(table: str, key: ForeignKey) -> bool:
        return has(table, key.columns) and has(key.table, key.targets)

    tables = tuple(shown for table in schema.tables if (shown := part(table)).columns)
    return Schema(tables, tuple(match for match in schema.matched if match[:2] in kept))


def open_read_only(path: str | Path) -> sqlite3.Connection:
    """Open a database to read it.

    Raises InputError for an empty file whose log is not empty, as it is while the database is copied over: SQLite would
    delete the log, on a read-only connection, too.
    """
    path = Path(path).resolve()
    log = Path(f"{path}-wal")
    if path.is_file() and not path.stat().st_size and log.is_file() and log.stat().st_size:
        raise InputError(f"{path}: is empty, and {log.name} is not: wait until it is copied, or restore the file")
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)


def connect(path: str | Path) -> sqlite3.Connection:
    """Open a database to read it; text that is no UTF-8 is replaced where it is not."""
    connection = open_read_only(path)
    connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return connection


@lru_cache(maxsize=4096)
def _read_version(version: Version) -> Schema:
    path = version.path
    if version.hide:
        return _visible(_read_version(version._replace(hide=())), version)
    try:
        with closing(connect(path)) as connection:
            found = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(lower(name), 1, 7) <> 'sqlite_'"
            ).fetchall()
            shadows = _shadow_tables(connection)
            names = [name for (name,) in found if name not in shadows]
            columns = {name: _read_columns(connection, name) for name in names}
            references = {name: _read_references(connection, name) for name in names}
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: of SQLite's words, where they quote no text
        raise InputError(f"{path}: not a readable SQLite database ({error})") from error
    bare = {name.lower(): Table(name, columns[name]) for name in names}
    return Schema(tuple(Table(name, columns[name], _resolve(columns[name], references[name], bare)) for name in names))


def _visible(whole: Schema, version: Version) -> Schema:
    """Return the part of a schema that the executor lets queries read, where columns are hidden."""
    names = [(table.name, column.name) for table in whole.tables for column in table.columns]
    queries = [f"SELECT {quote_name(name, always=True)} FROM {quote_name(table, always=True)}" for table, name in names]
    readable = are_readable(version.path, queries, version.hide)
    return part_of(whole, {name for name, is_readable in zip(names, readable, strict=True) if is_readable})


def _shadow_tables(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the tables in which virtual ones, such as those of full-text search, keep what they hold."""
    if sqlite3.sqlite_version_info < (3, 37):
        return frozenset()
    rows = connection.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'")
    return frozenset(name for (name,) in rows)


def _read_columns(connection: sqlite3.Connection, table: str) -> tuple[Column, ...]:
    # table_xinfo also lists generated columns (hidden = 2, 3), which can be queried; hidden = 1 cannot be seen by `*`.
    rows = connection.execute(
        'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid', (table,)
    )
    return tuple(Column(name, declared or "", bool(not_null), pk) for name, declared, not_null, pk in rows)


# A foreign key as SQLite lists it: the target table and (column, target column or None) pairs.
_Reference = tuple[str, list[tuple[str, str | None]]]


def _read_references(connection: sqlite3.Connection, table: str) -> list[_Reference]:
    # SQLite numbers foreign keys from the last declared to the first.
    rows = connection.execute(
        'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq', (table,)
    )
    found: dict[int, _Reference] = {}
    for key_id, target, column, target_column in rows:
        found.setdefault(key_id, (target, []))[1].append((column, target_column))
    return list(found.values())


def _resolve(own: tuple[Column, ...], references: list[_Reference], tables: dict[str, Table]) -> tuple[ForeignKey, ...]:
    """Give each reference the names as the tables spell them; drop one whose table or column does not exist.

    A reference without target columns means the target's primary key (SQLite, "Foreign Key Support", section 3).
    """
    spelled = {column.name.lower(): column.name for column in own}
    resolved = []
    for target_name, pairs in references:
        target = tables.get(target_name.lower())
        if target is None:
            continue
        names = {column.name.lower(): column.name for column in target.columns}
        key = target.primary_key
        wanted = [
            to if to is not None else (key[i] if len(key) == len(pairs) else None) for i, (_, to) in enumerate(pairs)
        ]
        columns = tuple(spelled.get(column.lower(), column) for column, _ in pairs)
        targets = tuple(names[to.lower()] for to in wanted if to is not None and to.lower() in names)
        if len(targets) == len(pairs):
            resolved.append(ForeignKey(columns, target.name, targets))
    return tuple(resolved)
