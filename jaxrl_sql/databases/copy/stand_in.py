"""A SQLite file with a copy's names, types and rows: prompts are made from it, while the SQL runs on the engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from jaxrl_sql.databases.copy.planned import PlannedTable, Rules
from jaxrl_sql.databases.copy.source import Rows
from jaxrl_sql.databases.copy_database import copy_descriptions
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.types import InputError


def stand_in(folder: Path, db_id: str) -> Path:
    """Return where a database's stand-in is, in the folder that a copy writes."""
    return folder / "databases" / db_id / f"{db_id}.sqlite"


def write_stand_in(
    path: Path,
    tables: Sequence[PlannedTable],
    rules: Rules,
    rows: Callable[[PlannedTable], Iterable[Rows]],
    described: Path,
) -> None:
    """Write tables as the engine has them, with what was written about their columns beside `described`.

    The file is there when it is whole. Raises InputError where it cannot be written.
    """
    scratch = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.unlink(missing_ok=True)
        with closing(sqlite3.connect(scratch, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            for table in tables:
                connection.execute(_definition(table, rules))
                places = ", ".join("?" * len(table.columns))
                for chunk in rows(table):
                    connection.executemany(f"INSERT INTO {_name(table.name)} VALUES ({places})", map(_storable, chunk))
            connection.execute("COMMIT")
        copy_descriptions(described, path)
        scratch.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): name another --out") from error
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be written ({error}): name another --out") from error


def _definition(table: PlannedTable, rules: Rules) -> str:
    parts = [
        f"{_name(column.name)} {rules.types[column.kind]}{' NOT NULL' if column.not_null else ''}"
        for column in table.columns
    ]
    parts += [f"PRIMARY KEY {_listed(table.primary_key)}"] if table.primary_key else []
    parts += [
        f"FOREIGN KEY {_listed(key.columns)} REFERENCES {_name(key.table)} {_listed(key.targets)}"
        for key in table.foreign_keys
    ]
    return f"CREATE TABLE {_name(table.name)} ({', '.join(parts)})"


def _storable(row: Sequence[object]) -> tuple[object, ...]:
    """Return a row without the escapes that text of broken bytes has."""
    return tuple(cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell for cell in row)


def _name(name: str) -> str:
    return quote_name(name, always=True)


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(map(_name, names))})"
