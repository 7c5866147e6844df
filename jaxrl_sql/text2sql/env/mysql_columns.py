"""The columns of a SQLite file that hold numbers: MySQL's comparisons with them need no conversion of a text.

A conversion (`column + 0`) hides the column from SQLite's indexes, so it is written only where a column may hold text.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path

# Declared types whose columns store a text as a number. Those of DATE and STRING do so too, but hold text.
_NUMERIC = re.compile(r".*(INT|REAL|FLOA|DOUB)|(NUM|DEC|BOOL|YEAR|MONEY)", re.IGNORECASE)
_COLUMNS = (
    "SELECT c.name, c.type FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c WHERE t.type IN ('table', 'view')"
)


def numeric_columns(database: str) -> frozenset[str]:
    """Return the names, in lower case, of columns that hold numbers in each table that has the name.

    None of them for a file that is missing or not readable.
    """
    path = Path(database)
    try:
        status = path.stat()
    except (OSError, ValueError):
        return frozenset()
    return _columns_of(str(path.absolute()), status.st_size, status.st_mtime_ns)


@lru_cache(4096)
def _columns_of(path: str, _size: int, _changed: int) -> frozenset[str]:
    try:
        # Immutable: no file appears next to the database, and no lock is taken.
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?immutable=1", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            rows = connection.execute(_COLUMNS).fetchall()
    except sqlite3.Error:
        return frozenset()
    return frozenset(name.lower() for name, _ in rows) - frozenset(
        name.lower() for name, declared in rows if not _NUMERIC.match(declared)
    )
