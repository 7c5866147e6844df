"""The tables of a copy, as planned for an engine, and the limits of an engine.

A copy writes a SQLite database to another engine. `SourceTable` describes a table of the SQLite file, `PlannedTable`
the table that the engine gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxrl_sql.databases.engines.kinds import ColumnKind, ColumnStats
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_names
from jaxrl_sql.text2sql.schema.read import Table


class NameRules(NamedTuple):
    """Rules for the names of tables and columns.

    `length` is the maximum length (0: any), in bytes if `counts_bytes`, else in characters. `reserved` are names that
    no column may have. With `is_basic`, names have no characters beyond the basic multilingual plane. `mark` is the
    quotation mark of names.
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
    """The rules of an engine: its types and names, and the limits of texts, floats and keys.

    `engine` is the engine's name in messages. `types` are the engine's names of the column kinds. `holds_nul`: texts
    may contain the character NUL. `holds_infinity`: floats may be infinite. `key_length` is the maximum total length of
    the texts of a key in characters (0: any). Without `refers_ahead`, a row can only reference rows that exist already,
    in another table.
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
    """The columns of an index in order; with `is_unique`, no two rows have equal values without NULL in them."""

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
    """A planned column: `source` is its name in SQLite, and `name` its name on the engine.

    `longest` and `widest` are the sizes of its largest value, in characters and in bytes.
    """

    source: str
    name: str
    kind: ColumnKind
    not_null: bool = False
    comment: str = ""
    longest: int = 0
    widest: int = 0


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A planned foreign key, with the engine's names: `columns` reference the columns `targets` of `table`."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A planned table, with the engine's names of tables and columns.

    `uniques` and `indexes` have the columns of each unique key and index. `keyed` are the columns of all keys and
    indexes, and those that foreign keys of other tables reference.
    """

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
