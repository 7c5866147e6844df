"""A database's copy before it is written: its tables as an engine will hold them, and what the engine can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxrl_sql.databases.copy.kinds import Kind
from jaxrl_sql.databases.copy.names import NameRules
from jaxrl_sql.databases.copy.source import SourceTable


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
    """A database's tables, parents before their children where that is possible; `told` is what differs, in lines."""

    tables: tuple[PlannedTable, ...]
    told: tuple[str, ...]
