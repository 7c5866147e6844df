"""Write generated databases as SQLite files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from jaxrl_sql.datagen.synth.spec import AnnotatedTable, SynthDatabase

SQL_TYPES = {"id": "INTEGER", "int": "INTEGER", "year": "INTEGER", "bool": "INTEGER", "real": "REAL"}


def create_table(table: AnnotatedTable) -> str:
    """Return the CREATE TABLE of a table, with its key, types and references."""
    lines = [
        f"  {column.name} {SQL_TYPES.get(column.kind, 'TEXT')}{' PRIMARY KEY' if column is table.key else ''}"
        for column in table.stored
    ]
    lines += [
        f"  FOREIGN KEY ({reference.column.name}) REFERENCES {reference.table}({reference.target})"
        for reference in table.references
    ]
    return f"CREATE TABLE {table.name} (\n" + ",\n".join(lines) + "\n)"


def write_database(database: SynthDatabase, path: Path) -> None:
    """Write a database to a new file, in one transaction and without a journal (a lost file can be regenerated)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        for table in database.tables:
            connection.execute(create_table(table))
            rows = list(zip(*(column.values for column in table.stored), strict=True))
            placeholders = ", ".join("?" * len(table.stored))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({placeholders})", rows)
        connection.execute("COMMIT")
    finally:
        connection.close()
