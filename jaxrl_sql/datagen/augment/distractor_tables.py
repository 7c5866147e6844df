"""Add distractor tables, tables of other databases, to a copy of a database.

Real schemas contain many tables that are irrelevant to a question. Tables are copied with their primary key, some rows,
and the foreign keys whose referenced table is copied too. Tables whose name is in use are skipped.
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
    """A database from which tables may be copied: its name and the path of its SQLite file."""

    db_id: str
    path: str


def add_tables(
    connection: sqlite3.Connection, db_id: str, schema: Schema, donors: Sequence[Donor], count: int, rows: int,
    rng: random.Random, by_similarity: bool = False,
) -> list[Change]:  # fmt: skip
    """Add up to `count` tables with up to `rows` rows each to the database `db_id`, and commit; return the changes.

    Donors are used in random order, or with `by_similarity` in decreasing order of the number of words that their table
    and column names share with `schema`.
    """
    used_names = {str(name).casefold() for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    order = [donor for donor in donors if donor.db_id != db_id]
    rng.shuffle(order)
    if by_similarity:
        schema_words = _schema_words(schema)
        order.sort(key=lambda donor: -len(schema_words & _schema_words(read_schema(donor.path))))
    changes: list[Change] = []
    for donor in order:
        if len(changes) >= count:
            break
        # At most half from one donor, to avoid a second complete database in the copy.
        changes += _copy_from(
            connection, db_id, donor, min(count - len(changes), max(1, count // 2)), rows, used_names, rng
        )
    return changes


def _schema_words(schema: Schema) -> set[str]:
    names = (name for table in schema.tables for name in (table.name, *(column.name for column in table.columns)))
    return {word for name in names for word in re.findall(r"[a-z]{3,}", name.casefold())}


def _copy_from(
    connection: sqlite3.Connection,
    db_id: str,
    donor: Donor,
    count: int,
    rows: int,
    used_names: set[str],
    rng: random.Random,
) -> list[Change]:
    """Copy up to `count` tables of one donor; tables that cannot be copied are skipped.

    `used_names` are the table names in use, in lower case; the names of copied tables are added.
    """
    candidates = [
        table for table in read_schema(donor.path).tables if table.name.casefold() not in used_names and table.columns
    ]
    chosen = [candidates[i] for i in sorted(rng.sample(range(len(candidates)), min(count, len(candidates))))]
    with readable(donor.path) as uri:
        try:
            connection.execute("ATTACH DATABASE ? AS donor", (uri,))
        except sqlite3.Error:
            return []  # another text encoding, or not a database
        changes = _copy_tables(connection, db_id, donor, chosen, rows)
        connection.commit()
        connection.execute("DETACH DATABASE donor")
    used_names |= {change.details["table"].casefold() for change in changes}
    return changes


def _copy_tables(
    connection: sqlite3.Connection, db_id: str, donor: Donor, chosen: Sequence[Table], rows: int
) -> list[Change]:
    """Copy tables of the attached database `donor`; a table that fails is rolled back and skipped."""
    changes = []
    names = {table.name for table in chosen}
    for table in chosen:
        connection.execute("SAVEPOINT copying")
        try:
            connection.execute(_create(table, names))
            columns = ", ".join(quote_name(column.name) for column in table.columns)
            name = quote_name(table.name)
            connection.execute(
                f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM donor.{name} LIMIT ?", (rows,)
            )
            count = connection.execute(f"SELECT COUNT(*) FROM main.{name}").fetchone()[0]
        except sqlite3.Error:
            connection.execute("ROLLBACK TO copying")
            names.discard(table.name)
        else:
            changes.append(Change("distract", db_id, {"table": table.name, "from": donor.db_id, "rows": count}))
        connection.execute("RELEASE copying")
    for table in chosen:
        if table.name in names:
            _delete_orphans(connection, table, names)
    return changes


def _create(table: Table, tables: set[str]) -> str:
    """Return the CREATE TABLE statement of a copied table, with foreign keys to the tables in `tables` only."""
    lines = [
        f"{quote_name(column.name)} {column.type}".rstrip() + (" NOT NULL" if column.not_null else "")
        for column in table.columns
    ]
    if table.primary_key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quote_name, table.primary_key))})")
    for key in table.foreign_keys:
        if key.table in tables:
            columns, targets = (", ".join(map(quote_name, names)) for names in (key.columns, key.targets))
            lines.append(f"FOREIGN KEY ({columns}) REFERENCES {quote_name(key.table)} ({targets})")
    return f"CREATE TABLE main.{quote_name(table.name)} ({', '.join(lines)})"


def _delete_orphans(connection: sqlite3.Connection, table: Table, tables: set[str]) -> None:
    """Delete rows whose foreign key refers to a row that was not copied."""
    for key in table.foreign_keys:
        if key.table in tables and key.table != table.name:
            pairs = zip(key.columns, key.targets, strict=True)
            equal = " AND ".join(f"p.{quote_name(to)} = c.{quote_name(column)}" for column, to in pairs)
            is_set = " AND ".join(f"c.{quote_name(column)} IS NOT NULL" for column in key.columns)
            child, parent = quote_name(table.name), quote_name(key.table)
            connection.execute(
                f"DELETE FROM main.{child} AS c WHERE {is_set} AND NOT EXISTS "
                f"(SELECT 1 FROM main.{parent} AS p WHERE {equal})"
            )
