"""The catalog of a server's database: tables, columns and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

TablePath = tuple[str, str]
"""The schema of a table (MariaDB: its database), and its name there."""

TextRow = tuple[str | None, ...]
"""A row as the server writes it, value by value."""

KeyValues = tuple[str, ...]
"""The values of a foreign key, as the server writes them."""

NUMBERS = frozenset({"integer", "whole", "numeric", "float"})
"""The kinds whose texts are numbers."""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column; `kind` is one of `KINDS` in `sample.values`, or "" for a type that SQLite cannot hold."""

    name: str
    type: str
    kind: str
    not_null: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table, or a view; `order` are the columns by which its first rows are selected, `name` its name in SQLite."""

    path: TablePath
    columns: tuple[CatalogColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()
    name: str = ""
    is_view: bool = False

    @property
    def title(self) -> str:
        """Return the name on the server as one text."""
        return ".".join(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(column.name for column in self.columns)


class CatalogForeignKey(NamedTuple):
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

    tables: tuple[CatalogTable, ...]
    foreign_keys: tuple[CatalogForeignKey, ...]
    notes: tuple[str, ...] = ()
