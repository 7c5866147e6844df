"""What a copy makes of a database: names, types, keys and indexes, and in words what it cannot keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jaxrl_sql.databases.copy.names import new_names
from jaxrl_sql.databases.engines.kinds import Seen, kind_of
from jaxrl_sql.databases.engines.sqlite import Source
from jaxrl_sql.databases.engines.tables import Plan, PlannedColumn, PlannedKey, PlannedTable, Rules, SourceTable
from jaxrl_sql.text2sql.schema.describe import Descriptions, read_descriptions
from jaxrl_sql.text2sql.schema.read import Column, ForeignKey
from jaxrl_sql.types import InputError

# The longest text that a number becomes.
_NUMBER_LENGTH = 25


def plan_copy(source: Source, rules: Rules, left_out: frozenset[tuple[str, str]], *, replaces: bool) -> Plan:
    """Read a database and plan its copy; raises InputError for values that no column of the engine holds.

    With `replaces` texts and floats that the engine has not are replaced, and told.
    """
    planner = _Planner(source, rules, read_descriptions(source.file.path), replaces)
    return planner.plan(left_out)


class _Planner:
    """One database on its way to an engine, and the lines that say what differs."""

    def __init__(self, source: Source, rules: Rules, descriptions: Descriptions, replaces: bool) -> None:
        self.source = source
        self.rules = rules
        self.descriptions = descriptions
        self.replaces = replaces
        self.told: list[str] = []

    def plan(self, left_out: frozenset[tuple[str, str]]) -> Plan:
        there = {(one.name, column.name) for one in self.source.schema().tables for column in one.columns}
        absent = {pair for pair in there if (pair[0].lower(), pair[1].lower()) in left_out}
        self.told += [f"{table}.{column} is left out, and the keys that it is of" for table, column in sorted(absent)]
        tables = [table for table in self.source.tables(left_out) if table.table.columns]
        self.told += self.source.schema().omissions
        self.told += [f"the view {name} is left out" for name in self.source.views()]
        self.told += [
            f"{name}: NOCASE and RTRIM are left out: texts are compared as they are" for name in self.source.collated()
        ]
        names = self._renaming("", [table.name for table in tables])
        columns = {table.name: self._columns(table) for table in tables}
        bare = {table.name: self._own_keys(table, names[table.name], columns[table.name]) for table in tables}
        planned = _parents_first([self._with_foreign_keys(bare[table.name], bare) for table in tables])
        if not self.rules.refers_ahead:
            planned = [self._without_ahead(table, planned[:place]) for place, table in enumerate(planned)]
        return Plan(tuple(_with_keyed(planned)), tuple(self.told))

    def _renaming(self, table: str, names: Sequence[str]) -> dict[str, str]:
        """Return what tables, or a table's columns, will be called; tell of those that are not only in lower case."""
        found, changed = new_names(names, "column" if table else "table", self.rules.names)
        self.told += [f"{f'{table}.' if table else ''}{name!r} is called {found[name]!r}" for name in changed]
        return found

    def _columns(self, table: SourceTable) -> dict[str, PlannedColumn]:
        names = self._renaming(table.name, [column.name for column in table.table.columns])
        pairs = zip(table.table.columns, table.seen, strict=True)
        return {column.name: self._column(table.name, column, seen, names[column.name]) for column, seen in pairs}

    def _column(self, table: str, column: Column, seen: Seen, name: str) -> PlannedColumn:
        where = f"{table}.{column.name}"
        kind = kind_of(column.type, seen)
        if kind not in ("integer", "real", "text", "date", "timestamp", "blob"):
            raise InputError(
                f"{self.source.file.path}: {where} {kind}, for which {self.rules.engine} has no type: "
                f"make them one kind in the file, or give --leave-out '{where}'"
            )
        if seen.is_mixed:
            numbers = seen.integers + seen.reals
            self.told.append(f"{where}: {numbers} numbers beside {seen.texts} texts are copied as texts")
        self._check_values(where, kind, seen)
        return PlannedColumn(
            column.name,
            name,
            kind,  # type: ignore[arg-type]
            column.not_null and not seen.nulls,
            self.descriptions.of(table, column.name),
            max(seen.longest, _NUMBER_LENGTH) if seen.is_mixed else seen.longest,
            seen.widest,
        )

    def _check_values(self, where: str, kind: str, seen: Seen) -> None:
        faults = {
            "with bytes that are no UTF-8": seen.odd,
            "with the character NUL": 0 if self.rules.holds_nul else seen.nul,
            "that are infinite": 0 if self.rules.holds_infinity or kind != "real" else seen.infinite,
        }
        for fault, count in faults.items():
            if count and not self.replaces:
                raise InputError(
                    f"{self.source.file.path}: {where} has {count} values {fault}, which {self.rules.engine} cannot "
                    f"hold: give --replace to change them, or --leave-out '{where}'"
                )
            if count:
                self.told.append(f"{where}: {count} values {fault} are replaced")

    def _own_keys(self, table: SourceTable, name: str, columns: Mapping[str, PlannedColumn]) -> PlannedTable:
        """Plan a table with the keys that are its own, where the rows allow them."""
        nulls = {column.name: seen.nulls for column, seen in zip(table.table.columns, table.seen, strict=True)}
        primary, uniques, indexes = table.table.primary_key, [], []
        if any(nulls[column] for column in primary):
            self.told.append(f"{table.name}: its primary key ({', '.join(primary)}) holds NULL and is only unique")
            uniques, primary = [primary], ()
        uniques += [index.columns for index in table.indexes if index.is_unique]
        indexes = [index.columns for index in table.indexes if not index.is_unique]
        if table.odd_indexes:
            self.told.append(f"{table.name}: {table.odd_indexes} indexes of expressions or of some rows are left out")
        if primary and not self._holds_key(table, "primary key", primary, columns):
            primary = ()
        kept_uniques = [
            unique
            for unique in uniques
            if unique != primary and self._holds_key(table, "unique constraint", unique, columns)
        ]
        fits = [one for one in indexes if self._fits(table, "index", one, columns)]
        return PlannedTable(
            table,
            name,
            tuple(columns.values()),
            _renamed(primary, columns),
            tuple(dict.fromkeys(_renamed(kept_unique, columns) for kept_unique in kept_uniques)),
            tuple(dict.fromkeys(_renamed(fit, columns) for fit in fits)),
        )

    def _holds_key(
        self, table: SourceTable, what: str, names: Sequence[str], columns: Mapping[str, PlannedColumn]
    ) -> bool:
        """Return whether a key's values are still unlike each other; tell where they are not."""
        seen = {column.name: seen for column, seen in zip(table.table.columns, table.seen, strict=True)}
        is_changed = any(seen[name].is_mixed or seen[name].odd or seen[name].nul for name in names)
        if is_changed and self.source.repeated(table.table, names):
            self.told.append(f"{table.name}: the {what} ({', '.join(names)}) is left out: as texts some are equal")
            return False
        return self._fits(table, what, names, columns)

    def _fits(self, table: SourceTable, what: str, names: Sequence[str], columns: Mapping[str, PlannedColumn]) -> bool:
        """Return whether an engine's key has room for the longest values; tell where it has not."""
        most = self.rules.key_length
        length = sum(max(columns[name].longest, 1) for name in names if columns[name].kind in ("text", "blob"))
        if not most or length <= most:
            return True
        self.told.append(
            f"{table.name}: the {what} ({', '.join(names)}) is left out: {self.rules.engine} holds {most} characters"
        )
        return False

    def _with_foreign_keys(self, table: PlannedTable, tables: Mapping[str, PlannedTable]) -> PlannedTable:
        own = {column.source: column for column in table.columns}
        kept: list[PlannedKey] = []
        for key in table.source.table.foreign_keys:
            parent = tables[key.table]
            theirs = {column.source: column for column in parent.columns}
            fault = self._fault(table, key, parent)
            planned = PlannedKey(_renamed(key.columns, own), parent.name, _renamed(key.targets, theirs))
            if fault:
                columns, targets = ", ".join(key.columns), ", ".join(key.targets)
                what = f"{table.source.name}: the foreign key ({columns}) to {key.table} ({targets})"
                self.told.append(f"{what} is left out: {fault}")
            elif planned not in kept:
                kept.append(planned)
        return replace(table, foreign_keys=tuple(kept))

    def _without_ahead(self, table: PlannedTable, before: Sequence[PlannedTable]) -> PlannedTable:
        """Return a table without the foreign keys to itself or to tables that come later; tell of them."""
        there = {one.name for one in before}
        for key in table.foreign_keys:
            if key.table not in there:
                what = f"{table.name}: the foreign key ({', '.join(key.columns)}) to {key.table}"
                self.told.append(f"{what} is left out: {self.rules.engine} wants the rows that it leads to before")
        return replace(table, foreign_keys=tuple(key for key in table.foreign_keys if key.table in there))

    def _fault(self, table: PlannedTable, key: ForeignKey, parent: PlannedTable) -> str:
        """Return why a foreign key cannot be kept, or nothing."""
        own = {column.source: column for column in table.columns}
        theirs = {column.source: column for column in parent.columns}
        if any(own[a].kind != theirs[b].kind for a, b in zip(key.columns, key.targets, strict=True)):
            return "its columns have other types"
        targets = set(_renamed(key.targets, theirs))
        if not any(targets == set(one) for one in (parent.primary_key, *parent.uniques)):
            return "what it refers to is no key"
        count = self.source.orphans(table.source.table, key)
        return f"{count} rows refer to none" if count else ""


def _renamed(names: Iterable[str], columns: Mapping[str, PlannedColumn]) -> tuple[str, ...]:
    return tuple(columns[name].name for name in names)


def _parents_first(tables: Sequence[PlannedTable]) -> list[PlannedTable]:
    """Return the tables in an order in which a table comes after those that it refers to, where there is one."""
    left = {table.name: table for table in tables}
    done: list[PlannedTable] = []
    while left:
        free = [
            one for one in left.values() if not any(key.table in left.keys() - {one.name} for key in one.foreign_keys)
        ]
        chosen = free or [next(iter(left.values()))]
        done += chosen
        for table in chosen:
            del left[table.name]
    return done


def _with_keyed(tables: Sequence[PlannedTable]) -> list[PlannedTable]:
    """Note in each table the columns of all its keys and indexes, and those that others refer to."""
    keyed: dict[str, set[str]] = {table.name: set() for table in tables}
    for table in tables:
        keyed[table.name].update(table.primary_key, *table.uniques, *table.indexes)
        for key in table.foreign_keys:
            keyed[table.name].update(key.columns)
            keyed[key.table].update(key.targets)
    return [replace(table, keyed=frozenset(keyed[table.name])) for table in tables]
