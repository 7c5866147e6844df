"""What a snapshot takes of a server's database: tables and columns, their names in the copy, masks and references."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.datagen.snapshot.closure import Reference, Row
from jaxrl_sql.datagen.snapshot.values import KINDS
from jaxrl_sql.types import InputError

Path = tuple[str, ...]
"""A table's name on the server, its schema's before it."""

Record = tuple[str | None, ...]
"""A row as the server writes it, value by value."""

Key = tuple[str, ...]
"""The values of a row by which others refer to it, as the server writes them."""

Take = Callable[[list[tuple[Row, Record]]], None]
"""What takes rows that were read."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the server's; `kind` is one of KINDS, or "" where its type has no form in SQLite.

    `distinct` estimates how many values it has: a number, or below 0 a share of the rows; 0 is unknown.
    """

    name: str
    type: str
    kind: str
    not_null: bool = False
    comment: str = ""
    distinct: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the server's, with whatever its source knows it by; `name` is its name in the copy."""

    path: Path
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    comment: str = ""
    handle: Any = None
    name: str = ""

    @property
    def title(self) -> str:
        """Return the table's name on the server in one text."""
        return ".".join(self.path)

    def column(self, name: str) -> SourceColumn:
        """Return the column of that name."""
        return next(column for column in self.columns if column.name == name)


class SourceReference(NamedTuple):
    """A foreign key of the server's, the types of the child's columns, and what compares a target with a column."""

    child: Path
    columns: tuple[str, ...]
    parent: Path
    targets: tuple[str, ...]
    types: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


class Catalog(NamedTuple):
    """What a role can read of a database, and a line for each thing that it cannot."""

    tables: tuple[SourceTable, ...]
    references: tuple[SourceReference, ...]
    notes: tuple[str, ...] = ()


class TableSample(NamedTuple):
    """Rows chosen by their hash, the smallest first, and what a scan of the whole table counted.

    `nulls` are by column; `bounds` the texts of the smallest and the largest value, where the type has an order.
    """

    rows: list[Row]
    row_count: int
    nulls: Mapping[str, int]
    bounds: Mapping[str, tuple[str, str]]


class Source(Protocol):
    """A server's database as it was at one moment."""

    def read_catalog(self) -> Catalog:
        """Return the tables that can be read."""

    def sample(self, table: TablePlan, rows: int, seed: int) -> TableSample:
        """Return at most `rows` rows of a table, and the statistics of all."""

    def find(self, parent: TablePlan, reference: SourceReference, keys: Sequence[Key]) -> list[Row | None]:
        """Return the rows that have the keys in the reference's targets, in order; None where no row has."""

    def read(self, table: TablePlan, columns: Sequence[str], rows: Sequence[Row], take: Take) -> None:
        """Read the columns of some rows and hand them over, in no order, a few rows at a time."""

    def describe(self) -> Mapping[str, Hashable]:
        """Return what the statistics say of the source: never its password."""

    def close(self) -> None:
        """End the connections."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What is taken of a table: its columns in order, and which of them are masked."""

    source: SourceTable
    columns: tuple[SourceColumn, ...]
    masked: frozenset[str]

    @property
    def name(self) -> str:
        """Return the table's name in the copy."""
        return self.source.name

    @property
    def names(self) -> list[str]:
        """Return the names of the columns that are taken."""
        return [column.name for column in self.columns]

    def keys(self, references: Iterable[Reference]) -> Iterator[tuple[str, ...]]:
        """Yield what is unique in the copy: the primary key, and what is unique or referred to, each if all is taken.

        An empty primary key comes first where the table has none.
        """
        taken = {column.name for column in self.columns}
        first = self.source.primary_key if taken.issuperset(self.source.primary_key) else ()
        yield first
        others = [*self.source.unique, *(one.targets for one in references if one.parent == self.name)]
        seen = {frozenset(first)}
        for key in others:
            if taken.issuperset(key) and frozenset(key) not in seen:
                seen.add(frozenset(key))
                yield key


class Plan(NamedTuple):
    """The tables of a copy by name, its references, each with the server's, and lines that say what was decided."""

    tables: Mapping[str, TablePlan]
    references: Mapping[Reference, SourceReference]
    notes: tuple[str, ...]


def make_plan(catalog: Catalog, leave_out: Sequence[str] = (), mask: Sequence[str] = ()) -> Plan:
    """Return what is taken, without some columns or tables and with some columns masked, by name.

    A name is `table`, `table.column`, or either with the schema before it. Raises InputError for a name that is
    none or several, a type that has no form in SQLite or no mask, and names that SQLite takes for one.
    """
    known = _names(catalog.tables)
    dropped = {_resolve(name, known, "leave-out") for name in leave_out}
    masked = {_resolve(name, known, "mask") for name in mask}
    for path, column in masked:
        if column is None:
            raise InputError(f"--mask {'.'.join(path)} is a table: name its columns, or --leave-out the table")
        if (path, column) in dropped or (path, None) in dropped:
            raise InputError(f"{'.'.join(path)}.{column} is to be masked and to be left out: choose one")
    tables = _name_tables([table for table in catalog.tables if (table.path, None) not in dropped])
    columns = {
        table.path: tuple(column for column in table.columns if (table.path, column.name) not in dropped)
        for table in tables
    }
    _check_columns(tables, columns)
    references, notes = _keep_references(catalog.references, tables, columns)
    added = _spread_masks({(path, column or "") for path, column in masked}, references.values(), tables)
    hidden: dict[Path, set[str]] = defaultdict(set)
    for path, column in [*masked, *added]:
        hidden[path].add(column or "")
    _check_masks(tables, hidden)
    plans = {
        table.name: TablePlan(table, columns[table.path], frozenset(hidden.get(table.path, ()))) for table in tables
    }
    told = [f"{'.'.join(path)}.{column} is masked, too: {why}" for (path, column), why in added.items()]
    return Plan(plans, references, (*catalog.notes, *notes, *told))


def _names(tables: Sequence[SourceTable]) -> dict[str, list[tuple[Path, str | None]]]:
    """Return what each name means: a table, or its column."""
    known: dict[str, list[tuple[Path, str | None]]] = defaultdict(list)
    for table in tables:
        for name in {table.path[-1], table.title}:
            known[name].append((table.path, None))
            for column in table.columns:
                known[f"{name}.{column.name}"].append((table.path, column.name))
    return known


def _resolve(name: str, known: Mapping[str, list[tuple[Path, str | None]]], option: str) -> tuple[Path, str | None]:
    found = known.get(name, [])
    if len(found) > 1:
        choices = ", ".join(".".join([*path, *([column] if column else [])]) for path, column in found)
        raise InputError(f"--{option} {name} may mean {choices}: write the schema before it")
    if not found:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise InputError(
            f"--{option} {name}: there is no such table or column; " + (f"the nearest is {near[0]}" if near else "none")
        )
    return found[0]


def _name_tables(tables: Sequence[SourceTable]) -> list[SourceTable]:
    """Return the tables with their names in the copy: the schema's name before it where two schemas have one."""
    counts = Counter(table.path[-1].casefold() for table in tables)
    owner: dict[str, Path] = {}
    named = []
    for table in tables:
        name = table.path[-1]
        if counts[name.casefold()] > 1 and table.path[0] != "public":
            name = "_".join(table.path)
        if name.casefold() in owner:
            other = ".".join(owner[name.casefold()])
            raise InputError(f"{other} and {table.title} are one name to SQLite: --leave-out one of them")
        if name.casefold().startswith("sqlite_"):
            raise InputError(f"{table.title}: SQLite keeps names that begin with sqlite_ to itself: --leave-out it")
        owner[name.casefold()] = table.path
        named.append(replace(table, name=name))
    return named


def _check_columns(tables: Sequence[SourceTable], columns: Mapping[Path, Sequence[SourceColumn]]) -> None:
    """Refuse tables without columns, columns that SQLite takes for one, and types that have no form there."""
    strange: list[str] = []
    for table in tables:
        seen: dict[str, str] = {}
        for column in columns[table.path]:
            other = seen.setdefault(column.name.casefold(), column.name)
            if other != column.name:
                raise InputError(
                    f"{table.title}: the columns {other} and {column.name} are one to SQLite: --leave-out one of them"
                )
            if not column.kind:
                strange.append(f"{table.title}.{column.name} ({column.type})")
        if not seen:
            raise InputError(f"{table.title} has no columns: --leave-out {table.title}")
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise InputError(
            f"no form in SQLite for the type of {', '.join(strange[:_SHOWN])}{more}: "
            f"--leave-out {' '.join(one.partition(' (')[0] for one in strange[:_SHOWN])}"
        )


def _keep_references(
    references: Sequence[SourceReference],
    tables: Sequence[SourceTable],
    columns: Mapping[Path, Sequence[SourceColumn]],
) -> tuple[dict[Reference, SourceReference], list[str]]:
    """Return the references of which both sides are taken, and a line for each other."""
    names = {table.path: table.name for table in tables}
    taken = {(path, column.name) for path, some in columns.items() for column in some}
    kept: dict[Reference, SourceReference] = {}
    notes: list[str] = []
    for one in references:
        sides = [(one.child, column) for column in one.columns] + [(one.parent, column) for column in one.targets]
        if taken.issuperset(sides):
            kept[Reference(names[one.child], one.columns, names[one.parent], one.targets)] = one
        elif one.child in names:
            child = f"{'.'.join(one.child)} ({', '.join(one.columns)})"
            notes.append(f"{child} refers to nothing in the copy: part of its foreign key is left out")
    return kept, notes


def _spread_masks(
    masked: set[tuple[Path, str]], references: Iterable[SourceReference], tables: Sequence[SourceTable]
) -> dict[tuple[Path, str], str]:
    """Return further columns to mask, and why: what refers to a masked key, and the key that a masked column names."""
    beside: dict[tuple[Path, str], list[tuple[tuple[Path, str], str]]] = defaultdict(list)
    for one in references:
        for column, target in zip(one.columns, one.targets, strict=True):
            child, parent = (one.child, column), (one.parent, target)
            beside[parent].append((child, f"it refers to {'.'.join([*one.parent, target])}"))
            beside[child].append((parent, f"{'.'.join([*one.child, column])} refers to it"))
    by_path = {table.path: table for table in tables}
    added: dict[tuple[Path, str], str] = {}
    left = sorted(masked)
    while left:
        path, name = left.pop()
        kind = by_path[path].column(name).kind
        for (other, its_name), why in beside[path, name]:
            its_kind = by_path[other].column(its_name).kind
            if (KINDS[kind].mask, kind if KINDS[kind].mask == "moment" else "") != (
                KINDS[its_kind].mask,
                its_kind if KINDS[its_kind].mask == "moment" else "",
            ):
                raise InputError(
                    f"{'.'.join([*path, name])} cannot be masked: {why}, and their types differ: --leave-out it"
                )
            if (other, its_name) not in masked and (other, its_name) not in added:
                added[other, its_name] = why
                left.append((other, its_name))
    return added


def _check_masks(tables: Sequence[SourceTable], hidden: Mapping[Path, set[str]]) -> None:
    for table in tables:
        for column in table.columns:
            if column.name in hidden.get(table.path, ()) and not KINDS[column.kind].mask:
                raise InputError(
                    f"{table.title}.{column.name} is of type {column.type}, which has no mask: "
                    f"--leave-out {table.title}.{column.name}"
                )
