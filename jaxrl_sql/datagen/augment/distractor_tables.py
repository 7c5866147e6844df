"""Add tables of other databases to a copy: schemas in use hold much that a question is not about.

Tables come with keys, some rows, and those references that still lead to a table; none whose name is taken.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.augment.change import Change
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import Schema, Table, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import readable


class Donor(NamedTuple):
    """A database that tables may be taken from."""

    db_id: str
    path: str


def add_tables(
    connection: sqlite3.Connection, db_id: str, own: Schema, donors: Sequence[Donor], count: int, rows: int,
    rng: random.Random, is_alike: bool = False,
) -> list[Change]:  # fmt: skip
    """Add up to `count` tables with up to `rows` rows each, in a transaction of the caller's connection.

    Donors are taken in random order, or with `is_alike` those first whose schemas have the most words in common.
    """
    taken = {str(name).casefold() for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    order = [donor for donor in donors if donor.db_id != db_id]
    rng.shuffle(order)
    if is_alike:
        words = _words(own)
        order.sort(key=lambda donor: -len(words & _words(read_schema(donor.path))))
    changes: list[Change] = []
    for donor in order:
        if len(changes) >= count:
            break
        # A few of each, so that one more database does not stand whole beside the first.
        changes += _take(connection, db_id, donor, min(count - len(changes), max(1, count // 2)), rows, taken, rng)
    return changes


def _words(schema: Schema) -> set[str]:
    names = (name for table in schema.tables for name in (table.name, *(column.name for column in table.columns)))
    return {word for name in names for word in re.findall(r"[a-z]{3,}", name.casefold())}


def _take(
    connection: sqlite3.Connection, db_id: str, donor: Donor, count: int, rows: int, taken: set[str], rng: random.Random
) -> list[Change]:
    """Take up to `count` tables of one donor; a table that cannot be copied is passed over."""
    free = [table for table in read_schema(donor.path).tables if table.name.casefold() not in taken and table.columns]
    chosen = [free[i] for i in sorted(rng.sample(range(len(free)), min(count, len(free))))]
    with readable(donor.path) as uri:
        try:
            connection.execute("ATTACH DATABASE ? AS donor", (uri,))
        except sqlite3.Error:
            return []  # another text encoding, or no more than a name
        changes = _copy_tables(connection, db_id, donor, chosen, rows)
        connection.commit()
        connection.execute("DETACH DATABASE donor")
    taken |= {change.details["table"].casefold() for change in changes}
    return changes


def _copy_tables(
    connection: sqlite3.Connection, db_id: str, donor: Donor, chosen: Sequence[Table], rows: int
) -> list[Change]:
    changes = []
    names = {table.name for table in chosen}
    for table in chosen:
        connection.execute("SAVEPOINT taking")
        try:
            connection.execute(_create(table, names))
            columns = ", ".join(quote_name(column.name) for column in table.columns)
            name = quote_name(table.name)
            connection.execute(
                f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM donor.{name} LIMIT ?", (rows,)
            )
            held = connection.execute(f"SELECT COUNT(*) FROM main.{name}").fetchone()[0]
        except sqlite3.Error:
            connection.execute("ROLLBACK TO taking")
            names.discard(table.name)
        else:
            changes.append(Change("distract", db_id, {"table": table.name, "from": donor.db_id, "rows": held}))
        connection.execute("RELEASE taking")
    for table in chosen:
        if table.name in names:
            _drop_lost(connection, table, names)
    return changes


def _create(table: Table, beside: set[str]) -> str:
    """Write the table again, with references to the tables that come along alone."""
    lines = [
        f"{quote_name(column.name)} {column.type}".rstrip() + (" NOT NULL" if column.not_null else "")
        for column in table.columns
    ]
    if table.primary_key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote_name, table.primary_key))})")
    for key in table.foreign_keys:
        if key.table in beside:
            own, theirs = (", ".join(map(quote_name, names)) for names in (key.columns, key.targets))
            lines.append(f"FOREIGN KEY ({own}) REFERENCES {quote_name(key.table)} ({theirs})")
    return f"CREATE TABLE main.{quote_name(table.name)} ({', '.join(lines)})"


def _drop_lost(connection: sqlite3.Connection, table: Table, beside: set[str]) -> None:
    """Delete rows whose reference was cut off with the rows that did not come along."""
    for key in table.foreign_keys:
        if key.table in beside and key.table != table.name:
            pairs = zip(key.columns, key.targets, strict=True)
            equal = " AND ".join(f"p.{quote_name(to)} = c.{quote_name(own)}" for own, to in pairs)
            known = " AND ".join(f"c.{quote_name(column)} IS NOT NULL" for column in key.columns)
            child, parent = quote_name(table.name), quote_name(key.table)
            connection.execute(
                f"DELETE FROM main.{child} AS c WHERE {known} AND NOT EXISTS "
                f"(SELECT 1 FROM main.{parent} AS p WHERE {equal})"
            )
