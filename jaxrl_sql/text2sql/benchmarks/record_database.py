"""Read the database and the SQL dialect that a record of a user's file names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.text2sql.benchmarks.gather import text_field
from jaxrl_sql.text2sql.env.address import is_address, parse_address
from jaxrl_sql.types import DIALECTS, InputError, Record

DATABASE_FIELDS = ("db_id", "database", "db_name", "dbname", "db", "db_path")
"""Fields that may hold a database: its name, its file, or its URL on a server."""

DIALECT_FIELDS = ("dialect", "sql_dialect")
"""Fields that hold the dialect of the SQL."""

_FILE_EXTENSIONS = (".sqlite", ".db", ".sqlite3", ".duckdb")
_DUCKDB = "duckdb:"
_SPELLINGS = {"postgres": "postgresql", "mariadb": "mysql", "sqlite3": "sqlite"}


class RecordDatabase(NamedTuple):
    """A record's database: its name, file or URL, the dialect, and an error if these are unusable; "" if unknown."""

    name: str = ""
    path: str = ""
    url: str = ""
    dialect: str = ""
    error: str = ""


def record_database(record: Record, folder: Path) -> RecordDatabase:
    """Return the database that a record names; files are relative to `folder`.

    Each field of `DATABASE_FIELDS` may hold a name, a file or a URL; the first of each kind counts.
    """
    dialect = text_field(record, *DIALECT_FIELDS).lower()
    dialect = _SPELLINGS.get(dialect, dialect)
    if dialect and dialect not in DIALECTS:
        return RecordDatabase(error=f"dialect {dialect!r} is not one of {', '.join(DIALECTS)}")
    name = path = url = ""
    for field in DATABASE_FIELDS:
        text = text_field(record, field)
        if is_address(text) or text.startswith(_DUCKDB):
            url = url or text
        elif field == "db_path" or text.endswith(_FILE_EXTENSIONS):
            path = path or text
        else:
            name = name or text
    if path.endswith(".duckdb"):
        path, url = "", url or f"{_DUCKDB}{path}"
    if url.startswith(_DUCKDB):
        file = folder / url.removeprefix(_DUCKDB)
        return RecordDatabase(name or file.stem, url=f"{_DUCKDB}{file}", dialect=dialect)
    if url:
        return _complete_url(RecordDatabase(name, dialect=dialect), url)
    return RecordDatabase(name or Path(path).stem, str(folder / path) if path else "", dialect=dialect)


def _complete_url(named: RecordDatabase, url: str) -> RecordDatabase:
    """Return the database of a server's URL; if the URL names no database, the record's `db_id` is added to it."""
    try:
        address = parse_address(url)
    except InputError as error:
        return RecordDatabase(error=str(error))
    database = address.database or named.name
    if not database:
        return RecordDatabase(error=f"{address.shown}: the URL names no database: add it, or a column db_id")
    return named._replace(name=named.name or database, url=address.url(database))
