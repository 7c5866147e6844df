"""Select the tables and columns of a sample, their names in SQLite, and the keys that remain complete."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from jaxrl_sql.databases.engines.catalog import Catalog, CatalogForeignKey, CatalogTable, TablePath
from jaxrl_sql.types import InputError


def choose(catalog: Catalog, leave_out: Sequence[str] = ()) -> Catalog:
    """Return the catalog without the tables and columns `leave_out`, and without the keys that contain them.

    A name in `leave_out` is `table`, `table.column`, or either after the schema, as in `public.orders`. Columns of
    types that SQLite cannot hold are omitted and noted, and so are views and foreign tables if the database has tables.
    Raises InputError for an unknown or ambiguous name, and for names that SQLite considers equal.
    """
    # Here a table is (path, None), and a column (path of its table, name).
    by_name = _tables_and_columns_by_name(catalog.tables)
    excluded = {_resolve(name, by_name) for name in leave_out}
    unsupported, notes = _find_unsupported(catalog.tables, excluded)
    notes = [*catalog.notes, *notes]
    dropped = excluded | unsupported
    tables = []
    for table in _name_tables([table for table in catalog.tables if (table.path, None) not in dropped]):
        chosen = tuple(column for column in table.columns if (table.path, column.name) not in dropped)
        names = {column.name for column in chosen}
        primary_key = table.primary_key
        if not names.issuperset(primary_key):
            notes.append(
                f"{table.title}: no primary key ({', '.join(primary_key)}) in the sample: a column is left out"
            )
            primary_key = ()
        unique = tuple(key for key in table.unique if names.issuperset(key))
        tables.append(replace(table, columns=chosen, primary_key=primary_key, unique=unique))
    _check_columns(tables)
    present = {(table.path, name) for table in tables for name in table.names}
    foreign_keys = []
    for key in catalog.foreign_keys:
        key_columns = [(key.child, name) for name in key.columns] + [(key.parent, name) for name in key.targets]
        if present.issuperset(key_columns):
            foreign_keys.append(key)
        elif (key.child, None) not in dropped:
            parent = ".".join(key.parent)
            notes.append(f"{key.title}: no foreign key to {parent} in the sample: a part of it is left out")
    return Catalog(tuple(tables), tuple(foreign_keys), tuple(notes))


def _find_unsupported(
    tables: Sequence[CatalogTable], excluded: Collection[tuple[TablePath, str | None]]
) -> tuple[set[tuple[TablePath, str | None]], list[str]]:
    """Return the tables and columns that SQLite cannot hold, except those in `excluded`, and a note for each."""
    unsupported: set[tuple[TablePath, str | None]] = set()
    notes = []
    supported = []
    for table in tables:
        chosen = [column for column in table.columns if (table.path, column.name) not in excluded]
        bad_columns = [column for column in chosen if not column.kind]
        if (table.path, None) in excluded or (table.columns and not chosen):
            continue
        if len(bad_columns) == len(chosen):
            unsupported.add((table.path, None))
            notes.append(f"{table.title} is left out: it has no column of a type that SQLite can hold")
            continue
        supported.append(table)
        for column in bad_columns:
            unsupported.add((table.path, column.name))
            notes.append(f"{table.title}.{column.name} is left out: SQLite cannot hold its type ({column.type})")
    views = [table for table in supported if table.is_view]
    if len(views) < len(supported):
        unsupported |= {(view.path, None) for view in views}
        notes += [
            f"{view.title} is left out: it is a view or a foreign table, and the database has tables" for view in views
        ]
    return unsupported, notes


def _tables_and_columns_by_name(tables: Sequence[CatalogTable]) -> dict[str, list[tuple[TablePath, str | None]]]:
    """Map each accepted name to the tables or columns that it may mean."""
    paths_by_name: dict[str, list[tuple[TablePath, str | None]]] = defaultdict(list)
    for table in tables:
        for name in {table.path[-1], table.title}:
            paths_by_name[name].append((table.path, None))
            for column in table.columns:
                paths_by_name[f"{name}.{column.name}"].append((table.path, column.name))
    return paths_by_name


def _resolve(
    name: str, paths_by_name: Mapping[str, list[tuple[TablePath, str | None]]]
) -> tuple[TablePath, str | None]:
    """Return the table or column that a name means; raises InputError unless there is exactly one."""
    matches = paths_by_name.get(name, [])
    if len(matches) > 1:
        choices = ", ".join(".".join([*path, *([column] if column else [])]) for path, column in matches)
        raise InputError(f"--leave-out {name} may mean {choices}: write the schema before it")
    if not matches:
        nearest = difflib.get_close_matches(name, paths_by_name, n=1, cutoff=0.0)
        hint = f"; the nearest is {nearest[0]}" if nearest else ""
        raise InputError(f"--leave-out {name}: there is no such table or column{hint}")
    return matches[0]


def _name_tables(tables: Sequence[CatalogTable]) -> list[CatalogTable]:
    """Return the tables with their names in SQLite.

    If two schemas have tables of the same name, the name is `schema_table`, except in the default schema.
    """
    counts = Counter(table.path[-1].casefold() for table in tables)
    owner: dict[str, CatalogTable] = {}
    named = []
    for table in tables:
        name = table.path[-1]
        if counts[name.casefold()] > 1 and table.path[0] not in ("public", "main"):
            name = "_".join(table.path)
        other = owner.setdefault(name.casefold(), table)
        if other is not table:
            raise InputError(
                f"{other.title} and {table.title} have the same name in SQLite: omit one of them with --leave-out"
            )
        if name.casefold().startswith("sqlite_"):
            raise InputError(
                f"{table.title}: SQLite reserves names that begin with sqlite_: omit the table with --leave-out"
            )
        named.append(replace(table, name=name))
    return named


def _check_columns(tables: Sequence[CatalogTable]) -> None:
    """Reject tables without columns, and columns with equal names in SQLite."""
    for table in tables:
        seen: dict[str, str] = {}
        for column in table.columns:
            other = seen.setdefault(column.name.casefold(), column.name)
            if other != column.name:
                raise InputError(
                    f"{table.title}: columns {other} and {column.name} have the same name in SQLite: omit one "
                    "with --leave-out"
                )
        if not seen:
            raise InputError(f"{table.title} has no columns: omit it with --leave-out {table.title}")


def unique_keys(table: CatalogTable, foreign_keys: Sequence[CatalogForeignKey]) -> list[tuple[str, ...]]:
    """Return the unique keys of a table except its primary key, with the columns that foreign keys reference.

    SQLite requires that a foreign key references a declared key.
    """
    seen = {frozenset(table.primary_key)}
    keys = []
    for key in [*table.unique, *(key.targets for key in foreign_keys if key.parent == table.path)]:
        if frozenset(key) not in seen:
            seen.add(frozenset(key))
            keys.append(key)
    return keys
