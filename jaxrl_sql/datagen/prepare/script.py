"""Build a SQLite database from an untrusted script of CREATE and INSERT statements, as Gretel's data set has them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.files import statements

# Scripts must not access other files, settings or modules.
_DENIED = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_CREATE_VTABLE}
# Limit of SQLite instructions per script, which is checked after every `_INSTRUCTIONS_PER_CHECK`.
_MAX_INSTRUCTIONS = 50_000_000
_INSTRUCTIONS_PER_CHECK = 10_000


def make_database(path: Path, script: str) -> str:
    """Build a database from a script, replacing an existing file; return the error, or ""."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    remaining_checks = _MAX_INSTRUCTIONS // _INSTRUCTIONS_PER_CHECK

    def is_over() -> bool:
        nonlocal remaining_checks
        remaining_checks -= 1
        return remaining_checks < 0

    def authorize(action: int, _first: str | None, function: str | None, *_: str | None) -> int:
        is_loading = action == sqlite3.SQLITE_FUNCTION and function in ("load_extension", "readfile", "writefile")
        return sqlite3.SQLITE_DENY if action in _DENIED or is_loading else sqlite3.SQLITE_OK

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.set_authorizer(authorize)
        connection.set_progress_handler(is_over, _INSTRUCTIONS_PER_CHECK)
        try:
            connection.execute("BEGIN")
            for statement in statements(script):
                connection.execute(statement)
            connection.execute("COMMIT")
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            reason = f"its script fails: {str(error).splitlines()[0]}"
        else:
            return ""
    path.unlink(missing_ok=True)
    return reason
