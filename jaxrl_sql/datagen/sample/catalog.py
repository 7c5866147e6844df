"""A server's database as data: tables, columns and keys. `Source` is the interface of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jaxrl_sql.types import InputError

TablePath = tuple[str, str]
"""The schema of a table (MariaDB: its database), and its name there."""

Record = tuple[str | None, ...]
"""A row as the server writes it, value by value."""

Key = tuple[str, ...]
"""The values of a foreign key, as the server writes them."""

LOCK_SECONDS = 1
"""How long a read waits for a lock of another session."""

READ_SECONDS = 5
"""How long a read may take. An ALTER TABLE of another session waits at most this long."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `kind` is one of `values.KINDS`, or "" for a type that SQLite cannot hold."""

    name: str
    type: str
    kind: str
    not_null: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `order` are the columns by which its first rows are selected, `name` is its name in SQLite."""

    path: TablePath
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()
    name: str = ""

    @property
    def title(self) -> str:
        """Return the name on the server as one text."""
        return ".".join(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(column.name for column in self.columns)


class ForeignKey(NamedTuple):
    """Columns of `child` that reference the columns `targets` of `parent`, position by position.

    `types` are those of the child's columns. `operators` compare a target with a value (PostgreSQL).
    """

    child: TablePath
    columns: tuple[str, ...]
    parent: TablePath
    targets: tuple[str, ...]
    types: tuple[str, ...]
    operators: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the table and the columns that reference."""
        return f"{'.'.join(self.child)} ({', '.join(self.columns)})"


class Catalog(NamedTuple):
    """The tables that a role can read, their foreign keys, and a line for each omission."""

    tables: tuple[Table, ...]
    foreign_keys: tuple[ForeignKey, ...]
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """A server's database. Each read is a read-only transaction that ends within READ_SECONDS."""

    def catalog(self) -> Catalog:
        """Return the tables that the role can read."""

    def first_rows(self, table: Table, count: int) -> list[Record]:
        """Return the first rows of a table by its `order`."""

    def parents(self, parent: Table, key: ForeignKey, keys: Sequence[Key]) -> list[Record]:
        """Return the rows of `parent` that have the keys; a row may come twice."""

    def close(self) -> None:
        """Close the connection."""


def locked(title: str) -> InputError:
    """Return the error for a table that another session locks."""
    return InputError(f"{title} is locked by another session for more than {LOCK_SECONDS} s: run it again later")


def changed(title: str) -> InputError:
    """Return the error for a table whose definition changed after the catalog was read."""
    return InputError(f"{title} was changed while it was sampled: run it again")


def too_slow(title: str) -> InputError:
    """Return the error for a read that took too long."""
    return InputError(f"{title}: a read took more than {READ_SECONDS} s: --leave-out the table, or its large columns")
