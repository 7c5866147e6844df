"""Write a sample: a SQLite file with declared keys, and the comments of its columns in BIRD's files of descriptions."""

from __future__ import annotations

import csv
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jaxrl_sql.databases.engines.catalog import Catalog, CatalogColumn, CatalogForeignKey, CatalogTable
from jaxrl_sql.databases.sample.choose import unique_keys
from jaxrl_sql.databases.sample.values import KINDS
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_postgresql
from jaxrl_sql.text2sql.schema.read import POSTGRESQL_SAMPLE
from jaxrl_sql.types import Cell, InputError

# A type that lists its values, as MariaDB and DuckDB write it.
_ENUM = re.compile(r"enum\((.*)\)", re.IGNORECASE | re.DOTALL)
# The columns of a file of descriptions, as BIRD has them and `jaxrl_sql.text2sql.schema.describe` reads them.
_DESCRIBED = ("original_column_name", "column_name", "column_description", "data_format", "value_description")


class SampleFile:
    """The SQLite file of a sample while it is written."""

    def __init__(self, path: Path, catalog: Catalog, engine: str) -> None:
        # No journal: the file is not read before it is complete, and an incomplete one is deleted.
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        quote: Callable[[str], str] = quote_postgresql if engine == "postgresql" else quote_name
        if engine == "postgresql":
            self._connection.execute(f"PRAGMA application_id = {POSTGRESQL_SAMPLE}")
        names = {table.path: table.name for table in catalog.tables}
        for table in catalog.tables:
            keys = [(key, names[key.parent]) for key in catalog.foreign_keys if key.child == table.path]
            self._connection.execute(_create_table(table, unique_keys(table, catalog.foreign_keys), keys, quote))
        self._connection.execute("BEGIN")

    def insert(self, table: CatalogTable, rows: Iterable[tuple[Cell, ...]]) -> None:
        """Insert rows of all columns; raises InputError for rows that SQLite cannot hold."""
        placeholders = ", ".join("?" * len(table.columns))
        try:
            self._connection.executemany(
                f"INSERT INTO {quote_name(table.name, always=True)} VALUES ({placeholders})", rows
            )
        except sqlite3.IntegrityError as error:
            raise InputError(
                f"{table.title}: {error}: omit the column with --leave-out (SQLite has no NaN, and rounds numbers), "
                "or run it again if another session changes the table"
            ) from None
        except (sqlite3.DataError, OverflowError) as error:
            raise InputError(f"{table.title}: a value that SQLite cannot hold ({error})") from None

    def count_dangling(self) -> Counter[tuple[str, str]]:
        """Return the number of rows whose foreign key references a missing row, by (table, referenced table)."""
        return Counter((table, parent) for table, _, parent, _ in self._connection.execute("PRAGMA foreign_key_check"))

    def commit(self) -> None:
        """Write the inserted rows."""
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _create_table(
    table: CatalogTable,
    unique: Sequence[tuple[str, ...]],
    foreign_keys: Sequence[tuple[CatalogForeignKey, str]],
    quote: Callable[[str], str],
) -> str:
    """Return the statement that creates a table with its keys; `foreign_keys` has (key, referenced table's name)."""

    def names(columns: Iterable[str]) -> str:
        return ", ".join(map(quote, columns))

    primary = table.primary_key
    lines = []
    for column in table.columns:
        line = f"{quote(column.name)} {KINDS[column.kind].declared}"
        if column.not_null or column.name in primary:
            line += " NOT NULL"
        lines.append(line + (" PRIMARY KEY" if primary == (column.name,) else ""))
    if len(primary) > 1:
        lines.append(f"PRIMARY KEY ({names(primary)})")
    lines += [f"UNIQUE ({names(key)})" for key in unique]
    lines += [
        f"FOREIGN KEY ({names(key.columns)}) REFERENCES {quote(parent)} ({names(key.targets)})"
        for key, parent in foreign_keys
    ]
    inside = ",\n    ".join(lines)
    return f"CREATE TABLE {quote(table.name)} (\n    {inside}\n)"


def write_descriptions(folder: Path, tables: Iterable[CatalogTable]) -> list[str]:
    """Write the comments of columns and the values of enums, one file per table that has any.

    Returns a line for each table whose file cannot be written.
    """
    notes = []
    for table in tables:
        rows = [(column.name, "", column.comment, column.type, _choices(column)) for column in table.columns]
        if not any(comment or choices for _, _, comment, _, choices in rows):
            continue
        if "/" in table.name or "\0" in table.name:
            notes.append(f"{table.title}: no file can have its name, so its comments are left out")
            continue
        folder.mkdir(exist_ok=True)
        with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_DESCRIBED)
            writer.writerows(rows)
    return notes


def _choices(column: CatalogColumn) -> str:
    """Return the values of an enum as SQL literals, or ""."""
    listed = _ENUM.fullmatch(column.type)
    return column.choices or (listed[1] if listed else "")
