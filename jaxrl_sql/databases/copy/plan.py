"""Plan the copy of a SQLite database to another engine: names, types, keys and indexes.

Keys that the engine or the rows do not allow are dropped. Each difference from the source is a note, which the copy
command prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jaxrl_sql.databases.copy.names import new_names
from jaxrl_sql.databases.engines.kinds import ColumnStats, kind_of
from jaxrl_sql.databases.engines.sqlite import SqliteReader
from jaxrl_sql.databases.engines.tables import (
    CopyPlan,
    EngineRules,
    PlannedColumn,
    PlannedKey,
    PlannedTable,
    SourceTable,
)
from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.text2sql.schema.describe import Descriptions, read_descriptions
from jaxrl_sql.text2sql.schema.read import Column, ForeignKey
from jaxrl_sql.types import InputError

# Characters of the longest number when it is written as text.
_NUMBER_LENGTH = 25


def plan_copy(
    source: SqliteReader, rules: EngineRules, left_out: frozenset[tuple[str, str]], *, replaces: bool
) -> CopyPlan:
    """Read a database and plan its copy, without the columns `left_out`: (table, column) in lower case.

    Raises InputError for values that the engine cannot store. With `replaces`, such texts and floats will be replaced,
    and only a note reports them.
    """
    planner = _Planner(source, rules, read_descriptions(source.file.path), replaces)
    return planner.plan(left_out)


class _Planner:
    """The planner of one database's copy; `notes` collects the messages about differences."""

    def __init__(self, source: SqliteReader, rules: EngineRules, descriptions: Descriptions, replaces: bool) -> None:
        self.source = source
        self.rules = rules
        self.descriptions = descriptions
        self.replaces = replaces
        self.notes: list[str] = []

    def plan(self, left_out: frozenset[tuple[str, str]]) -> CopyPlan:
        source_columns = {
            (table.name, column.name) for table in self.source.schema().tables for column in table.columns
        }
        absent = {pair for pair in source_columns if (pair[0].lower(), pair[1].lower()) in left_out}
        self.notes += [f"{table}.{column} is omitted, with its keys" for table, column in sorted(absent)]
        tables = [table for table in self.source.tables(left_out) if table.table.columns]
        self.notes += self.source.schema().omissions
        self.notes += [f"the view {name} is omitted" for name in self.source.views()]
        self.notes += [
            f"{name}: NOCASE and RTRIM are dropped: texts are compared byte by byte"
            for name in self.source.find_collated_tables()
        ]
        names = self._renaming("", [table.name for table in tables])
        columns = {table.name: self._columns(table) for table in tables}
        # Foreign keys are added last, because they need the planned keys of the tables that they reference.
        without_foreign_keys = {
            table.name: self._plan_keys(table, names[table.name], columns[table.name]) for table in tables
        }
        planned = _sort_parents_first(
            [self._with_foreign_keys(without_foreign_keys[table.name], without_foreign_keys) for table in tables]
        )
        if not self.rules.refers_ahead:
            planned = [self._drop_forward_references(table, planned[:i]) for i, table in enumerate(planned)]
        return CopyPlan(tuple(_mark_key_columns(planned)), tuple(self.notes))

    def _renaming(self, table: str, names: Sequence[str]) -> dict[str, str]:
        """Return the new names of tables, or of the columns of `table`; note names that change in more than case."""
        renamed, changed = new_names(names, "column" if table else "table", self.rules.names)
        self.notes += [f"{f'{table}.' if table else ''}{name!r} is renamed to {renamed[name]!r}" for name in changed]
        return renamed

    def _columns(self, table: SourceTable) -> dict[str, PlannedColumn]:
        names = self._renaming(table.name, [column.name for column in table.table.columns])
        pairs = zip(table.table.columns, table.stats, strict=True)
        return {column.name: self._column(table.name, column, stats, names[column.name]) for column, stats in pairs}

    def _column(self, table: str, column: Column, stats: ColumnStats, name: str) -> PlannedColumn:
        where = f"{table}.{column.name}"
        kind = kind_of(column.type, stats)
        if kind not in ("integer", "real", "text", "date", "timestamp", "blob"):
            raise InputError(
                f"{self.source.file.path}: {where} {kind}, for which {self.rules.engine} has no type: "
                f"give them one type in the file, or pass --leave-out '{where}'"
            )
        if stats.is_mixed:
            numbers = stats.integers + stats.reals
            counts = f"{quantity(numbers, 'numbers')} and {quantity(stats.texts, 'texts')}"
            self.notes.append(f"{where}: {counts}, all copied as texts")
        self._check_values(where, kind, stats)
        return PlannedColumn(
            column.name,
            name,
            kind,  # type: ignore[arg-type]
            column.not_null and not stats.nulls,
            self.descriptions.of(table, column.name),
            max(stats.longest, _NUMBER_LENGTH) if stats.is_mixed else stats.longest,
            stats.widest,
        )

    def _check_values(self, where: str, kind: str, stats: ColumnStats) -> None:
        """Raise InputError for values that the engine cannot store, or note that they are replaced."""
        problems = {
            "with invalid UTF-8": stats.not_utf8,
            "with the character NUL": 0 if self.rules.holds_nul else stats.nul,
            "equal to infinity": 0 if self.rules.holds_infinity or kind != "real" else stats.infinite,
        }
        for problem, count in problems.items():
            if count and not self.replaces:
                raise InputError(
                    f"{self.source.file.path}: {where} has {quantity(count, 'values')} {problem}, "
                    f"which {self.rules.engine} cannot hold: pass --replace to change them, or --leave-out '{where}'"
                )
            if count:
                self.notes.append(f"{where}: {quantity(count, 'values')} {problem} {agree(count, 'are')} replaced")

    def _plan_keys(self, table: SourceTable, name: str, columns: Mapping[str, PlannedColumn]) -> PlannedTable:
        """Plan a table with its primary key, unique keys and indexes, except those that its rows or the engine refuse.

        `name` is the table's new name; `columns` are its planned columns by their names in SQLite.
        """
        nulls = {column.name: stats.nulls for column, stats in zip(table.table.columns, table.stats, strict=True)}
        primary, uniques, indexes = table.table.primary_key, [], []
        if any(nulls[column] for column in primary):
            self.notes.append(
                f"{table.name}: its primary key ({', '.join(primary)}) has NULL values and becomes a unique key"
            )
            uniques, primary = [primary], ()
        uniques += [index.columns for index in table.indexes if index.is_unique]
        indexes = [index.columns for index in table.indexes if not index.is_unique]
        if table.num_unsupported_indexes:
            self.notes.append(
                f"{table.name}: {table.num_unsupported_indexes} indexes of expressions or partial indexes are dropped"
            )
        if primary and not self._holds_key(table, "primary key", primary, columns):
            primary = ()
        kept_uniques = [
            unique
            for unique in uniques
            if unique != primary and self._holds_key(table, "unique constraint", unique, columns)
        ]
        fits = [index for index in indexes if self._fits(table, "index", index, columns)]
        return PlannedTable(
            table,
            name,
            tuple(columns.values()),
            _new_names(primary, columns),
            tuple(dict.fromkeys(_new_names(kept_unique, columns) for kept_unique in kept_uniques)),
            tuple(dict.fromkeys(_new_names(fit, columns) for fit in fits)),
        )

    def _holds_key(
        self, table: SourceTable, key_type: str, names: Sequence[str], columns: Mapping[str, PlannedColumn]
    ) -> bool:
        """Return whether a key's values are distinct after conversion, and fit; note a key that is dropped.

        `key_type` is its type in messages, such as `primary key`.
        """
        stats = {column.name: stats for column, stats in zip(table.table.columns, table.stats, strict=True)}
        is_changed = any(stats[name].is_mixed or stats[name].not_utf8 or stats[name].nul for name in names)
        if is_changed and self.source.count_repeated_keys(table.table, names):
            self.notes.append(
                f"{table.name}: the {key_type} ({', '.join(names)}) is dropped: some values are equal as texts"
            )
            return False
        return self._fits(table, key_type, names, columns)

    def _fits(
        self, table: SourceTable, key_type: str, names: Sequence[str], columns: Mapping[str, PlannedColumn]
    ) -> bool:
        """Return whether the engine's keys can hold the longest values; note a key that is dropped."""
        max_length = self.rules.key_length
        length = sum(max(columns[name].longest, 1) for name in names if columns[name].kind in ("text", "blob"))
        if not max_length or length <= max_length:
            return True
        self.notes.append(
            f"{table.name}: the {key_type} ({', '.join(names)}) is dropped: "
            f"{self.rules.engine} holds {max_length} characters"
        )
        return False

    def _with_foreign_keys(self, table: PlannedTable, tables: Mapping[str, PlannedTable]) -> PlannedTable:
        """Return a table with its foreign keys; note those that are dropped. `tables` has all tables by source name."""
        own_columns = {column.source: column for column in table.columns}
        keys: list[PlannedKey] = []
        for key in table.source.table.foreign_keys:
            parent = tables[key.table]
            parent_columns = {column.source: column for column in parent.columns}
            reason = self._drop_reason(table, key, parent)
            planned = PlannedKey(
                _new_names(key.columns, own_columns), parent.name, _new_names(key.targets, parent_columns)
            )
            if reason:
                columns, targets = ", ".join(key.columns), ", ".join(key.targets)
                description = f"{table.source.name}: the foreign key ({columns}) to {key.table} ({targets})"
                self.notes.append(f"{description} is dropped: {reason}")
            elif planned not in keys:
                keys.append(planned)
        return replace(table, foreign_keys=tuple(keys))

    def _drop_forward_references(self, table: PlannedTable, earlier_tables: Sequence[PlannedTable]) -> PlannedTable:
        """Return a table without foreign keys to itself or to later tables; note the dropped ones."""
        earlier_names = {earlier.name for earlier in earlier_tables}
        for key in table.foreign_keys:
            if key.table not in earlier_names:
                description = f"{table.name}: the foreign key ({', '.join(key.columns)}) to {key.table}"
                self.notes.append(f"{description} is dropped: {self.rules.engine} needs the referenced rows first")
        return replace(table, foreign_keys=tuple(key for key in table.foreign_keys if key.table in earlier_names))

    def _drop_reason(self, table: PlannedTable, key: ForeignKey, parent: PlannedTable) -> str:
        """Return why a foreign key is dropped, or ""."""
        own_columns = {column.source: column for column in table.columns}
        parent_columns = {column.source: column for column in parent.columns}
        pairs = zip(key.columns, key.targets, strict=True)
        if any(own_columns[name].kind != parent_columns[target].kind for name, target in pairs):
            return "its columns have other types"
        targets = set(_new_names(key.targets, parent_columns))
        if not any(targets == set(key_columns) for key_columns in (parent.primary_key, *parent.uniques)):
            return "it does not reference a key"
        count = self.source.count_orphans(table.source.table, key)
        return f"{quantity(count, 'rows', 'reference')} no row" if count else ""


def _new_names(names: Iterable[str], columns: Mapping[str, PlannedColumn]) -> tuple[str, ...]:
    """Return the engine's names of columns, from their names in SQLite."""
    return tuple(columns[name].name for name in names)


def _sort_parents_first(tables: Sequence[PlannedTable]) -> list[PlannedTable]:
    """Return the tables so that each comes after the tables that it references, if possible."""
    remaining = {table.name: table for table in tables}
    done: list[PlannedTable] = []
    while remaining:
        free = [
            table
            for table in remaining.values()
            if not any(key.table in remaining.keys() - {table.name} for key in table.foreign_keys)
        ]
        # In a cycle of references, one table comes before its parent.
        chosen = free or [next(iter(remaining.values()))]
        done += chosen
        for table in chosen:
            del remaining[table.name]
    return done


def _mark_key_columns(tables: Sequence[PlannedTable]) -> list[PlannedTable]:
    """Set `keyed` of each table: the columns of its keys and indexes, and those that other tables reference."""
    keyed: dict[str, set[str]] = {table.name: set() for table in tables}
    for table in tables:
        keyed[table.name].update(table.primary_key, *table.uniques, *table.indexes)
        for key in table.foreign_keys:
            keyed[table.name].update(key.columns)
            keyed[key.table].update(key.targets)
    return [replace(table, keyed=frozenset(keyed[table.name])) for table in tables]
