"""The catalog of a server's database or a DuckDB file: tables, columns and keys, from which a sample is selected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

TablePath = tuple[str, str]
"""The schema of a table (MariaDB: its database), and its name there."""

TextRow = tuple[str | None, ...]
"""A row with each value as the text that the server writes for it; None is NULL."""

KeyValues = tuple[str, ...]
"""The values of a foreign key's columns in one row, as the server writes them."""

NUMBERS = frozenset({"integer", "whole", "numeric", "float"})
"""The kinds whose texts are numbers."""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column: `type` is the server's name of its type.

    `kind` is a key of `KINDS` in `sample.values`, by which values are converted, or "" for a type that SQLite cannot
    hold. `choices` are the values of an enum as SQL literals, or "".
    """

    name: str
    type: str
    kind: str
    not_null: bool = False
    comment: str = ""
    choices: str = ""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table, or a view.

    `unique` has the columns of each unique key. `order` are the columns by which its first rows are selected. `name` is
    its name in the SQLite sample; `sample.choose` sets it.
    """

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

    `types` are those of the child's columns: for MySQL their kinds, else the server's names. `operators` compare each
    target with the child's value; only PostgreSQL sets them.
    """

    child: TablePath
    columns: tuple[str, ...]
    parent: TablePath
    targets: tuple[str, ...]
    types: tuple[str, ...]
    operators: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the child's table and columns as one text."""
        return f"{'.'.join(self.child)} ({', '.join(self.columns)})"


class Catalog(NamedTuple):
    """The tables that a role can read, their foreign keys, and `notes`: a message for each omission."""

    tables: tuple[CatalogTable, ...]
    foreign_keys: tuple[CatalogForeignKey, ...]
    notes: tuple[str, ...] = ()
