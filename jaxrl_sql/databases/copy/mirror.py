"""Write SQLite mirrors: files with the names, types and rows of a database that was copied to another engine.

Prompts take schema and values from the mirror, because they need a SQLite file. The model's SQL runs on the engine.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from jaxrl_sql.databases.copy_database import copy_descriptions
from jaxrl_sql.databases.engines.kinds import Rows
from jaxrl_sql.databases.engines.sqlite import SqliteWriter
from jaxrl_sql.databases.engines.tables import EngineRules, PlannedTable
from jaxrl_sql.types import InputError


def mirror_path(folder: Path, db_id: str) -> Path:
    """Return the path of a database's SQLite mirror in the output folder of a copy."""
    return folder / "databases" / db_id / f"{db_id}.sqlite"


def write_mirror(
    path: Path,
    tables: Sequence[PlannedTable],
    rules: EngineRules,
    rows: Callable[[PlannedTable], Iterable[Rows]],
    source: Path,
) -> None:
    """Write tables with the engine's names, types and keys, and the column descriptions of the database `source`.

    Unique constraints are omitted, because prompts do not need them. `rows` returns a table's rows. The file is written
    atomically. Raises InputError if it cannot be written.
    """
    scratch = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.unlink(missing_ok=True)
        with closing(sqlite3.connect(scratch, isolation_level=None)) as connection:
            # Not durable, but fast: after a crash the temporary file is written again.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            writer = SqliteWriter(connection, rules)
            for table in tables:
                writer.create([replace(table, uniques=())])
                writer.load(table, rows(table))
            connection.execute("COMMIT")
        copy_descriptions(source, path)
        scratch.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): choose another --out") from error
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be written ({error}): choose another --out") from error
