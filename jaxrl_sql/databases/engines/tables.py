"""Planned tables of an engine, and the limits of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxrl_sql.databases.engines.kinds import ColumnKind, ColumnStats
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_names
from jaxrl_sql.text2sql.schema.read import Table


class NameRules(NamedTuple):
    """The maximum length of a name (0: any), in bytes or characters, and the reserved column names of an engine.

    `is_basic` rejects characters beyond the basic multilingual plane. `mark` is the quotation mark of names.
    """

    length: int = 0
    counts_bytes: bool = False
    reserved: frozenset[str] = frozenset()
    is_basic: bool = False
    mark: str = '"'

    def quote_name(self, name: str) -> str:
        """Return a quoted name; quotation marks inside are doubled."""
        return quote_name(name, always=True, mark=self.mark)

    def quote_list(self, names: Iterable[str]) -> str:
        """Return quoted names, separated by commas."""
        return quote_names(names, always=True, mark=self.mark)


class EngineRules(NamedTuple):
    """The rules of an engine: names, and the limits of texts, floats and keys.

    `key_length` is the maximum total length of the texts of a key in characters (0: any). Without `refers_ahead`, a
    foreign key must refer to an existing row of another table. `types` are the engine's names of the column kinds.
    """

    engine: str
    types: Mapping[ColumnKind, str]
    names: NameRules = NameRules()
    holds_nul: bool = True
    holds_infinity: bool = True
    key_length: int = 0
    refers_ahead: bool = True


@dataclass(frozen=True, slots=True)
class Index:
    """The columns of an index in order; with `is_unique`, no two rows without NULL are equal."""

    columns: tuple[str, ...]
    is_unique: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as declared, and statistics of its values: `stats[i]` for the i-th column.

    `num_unsupported_indexes`: expression and partial indexes, which are not copied.
    """

    table: Table
    stats: tuple[ColumnStats, ...]
    indexes: tuple[Index, ...]
    num_unsupported_indexes: int = 0

    @property
    def name(self) -> str:
        """Return the table's name."""
        return self.table.name


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A planned column; `source` is its name in SQLite, `longest` is in characters, `widest` in bytes."""

    source: str
    name: str
    kind: ColumnKind
    not_null: bool = False
    comment: str = ""
    longest: int = 0
    widest: int = 0


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A planned foreign key, with the new names of columns and tables."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A planned table; `keyed` are the columns of all keys and indexes."""

    source: SourceTable
    name: str
    columns: tuple[PlannedColumn, ...]
    primary_key: tuple[str, ...] = ()
    uniques: tuple[tuple[str, ...], ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[PlannedKey, ...] = ()
    keyed: frozenset[str] = frozenset()


class CopyPlan(NamedTuple):
    """A database's tables, parents before children if possible, and notes on differences from the source."""

    tables: tuple[PlannedTable, ...]
    notes: tuple[str, ...]
