"""Find the numeric columns of a SQLite file, with which MySQL's comparisons need no conversion.

A conversion (`column + 0`) prevents the use of indexes, so only columns that may contain text get one.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path

# Declared types whose columns store numeric text as numbers. DATE and STRING do so, too, but contain text.
_NUMERIC = re.compile(r".*(INT|REAL|FLOA|DOUB)|(NUM|DEC|BOOL|YEAR|MONEY)", re.IGNORECASE)
_COLUMNS = (
    "SELECT c.name, c.type FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c WHERE t.type IN ('table', 'view')"
)


def numeric_columns(database: str) -> frozenset[str]:
    """Return the column names, in lower case, that are numeric in every table that has them.

    Empty for a missing or unreadable file.
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
        # Immutable: SQLite creates no files next to the database and takes no lock.
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?immutable=1", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            rows = connection.execute(_COLUMNS).fetchall()
    except sqlite3.Error:
        return frozenset()
    return frozenset(name.lower() for name, _ in rows) - frozenset(
        name.lower() for name, declared in rows if not _NUMERIC.match(declared)
    )
