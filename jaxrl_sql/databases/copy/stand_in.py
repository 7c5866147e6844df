"""A SQLite file with a copy's names, types and rows: prompts are made from it, while the SQL runs on the engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from jaxrl_sql.databases.copy_database import copy_descriptions
from jaxrl_sql.databases.engines.kinds import Rows
from jaxrl_sql.databases.engines.sqlite import SqliteWriter
from jaxrl_sql.databases.engines.tables import PlannedTable, Rules
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
            writer = SqliteWriter(connection, rules)
            for table in tables:
                writer.create([replace(table, uniques=())])
                writer.load(table, rows(table))
            connection.execute("COMMIT")
        copy_descriptions(described, path)
        scratch.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): name another --out") from error
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be written ({error}): name another --out") from error
