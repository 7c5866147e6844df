"""Tables as an engine will hold them, and the limits of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxrl_sql.databases.engines.kinds import Kind, Seen
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_names
from jaxrl_sql.text2sql.schema.read import Table


class NameRules(NamedTuple):
    """How long a name may be (0: any), in bytes or characters, and which columns an engine has for itself.

    `is_basic` takes no character beyond the basic multilingual plane. `mark` is the sign around names.
    """

    length: int = 0
    counts_bytes: bool = False
    reserved: frozenset[str] = frozenset()
    is_basic: bool = False
    mark: str = '"'

    def quoted(self, name: str) -> str:
        """Return a name between marks, which are doubled inside."""
        return quote_name(name, always=True, mark=self.mark)

    def listed(self, names: Iterable[str]) -> str:
        """Return names between marks, with commas."""
        return quote_names(names, always=True, mark=self.mark)


class Rules(NamedTuple):
    """What an engine holds: how it names things, and what a text, a float and a key may not hold.

    `key_length` is the most characters that all texts of a key may have together (0: any). Without `refers_ahead` a
    foreign key leads to a row of another table that was there before. `types` are what it calls the kinds of columns.
    """

    engine: str
    types: Mapping[Kind, str]
    names: NameRules = NameRules()
    holds_nul: bool = True
    holds_infinity: bool = True
    key_length: int = 0
    refers_ahead: bool = True


@dataclass(frozen=True, slots=True)
class Index:
    """Columns that an index is of, in its order; `is_unique` ones hold no two equal rows without NULL."""

    columns: tuple[str, ...]
    is_unique: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as it is declared, and its values by column: `seen[i]` is of the i-th."""

    table: Table
    seen: tuple[Seen, ...]
    indexes: tuple[Index, ...]
    odd_indexes: int = 0

    @property
    def name(self) -> str:
        """Return the table's name."""
        return self.table.name


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column as it will be; `source` is what SQLite calls it. `longest` in characters, `widest` in bytes."""

    source: str
    name: str
    kind: Kind
    not_null: bool = False
    comment: str = ""
    longest: int = 0
    widest: int = 0


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """Columns that refer to columns of another table, all as they will be called."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table as it will be. `keyed` are the columns of all keys and indexes."""

    source: SourceTable
    name: str
    columns: tuple[PlannedColumn, ...]
    primary_key: tuple[str, ...] = ()
    uniques: tuple[tuple[str, ...], ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[PlannedKey, ...] = ()
    keyed: frozenset[str] = frozenset()


class Plan(NamedTuple):
    """A database's tables, parents before children if possible, and notes on differences from the source."""

    tables: tuple[PlannedTable, ...]
    notes: tuple[str, ...]
