"""Translate golds that were generated on a sample of a server's database, and run them on the server."""

from __future__ import annotations

from collections.abc import Callable

from jaxrl_sql.databases.engines.kinds import affinity_of
from jaxrl_sql.databases.sample.external import ExternalDatabase
from jaxrl_sql.text2sql.env.address import parse_address
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.env.scopes import EngineColumn, EngineSchema, EngineTable
from jaxrl_sql.text2sql.env.to_engine import to_engine
from jaxrl_sql.text2sql.question_sets.filters import is_trivial
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError

GoldTranslator = Callable[[str], dict[str, str] | str]
"""Translates a gold from SQLite; returns the fields of the question's record that name the translation and the server.

If the gold cannot be translated, fails there, or returns no row or only 0 or NULL, returns the reason.
"""

# The names of column kinds in `EngineColumn`, by the types that a sample declares.
_KINDS = {
    "INTEGER": "integer",
    "REAL": "real",
    "TEXT": "text",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "BOOLEAN": "boolean",
    "BLOB": "blob",
}


def make_gold_translator(executor: Executor, database: ExternalDatabase) -> GoldTranslator:
    """Return a function that translates golds for a server; the function raises InputError if it cannot connect."""
    schema = _schema(database)

    def translate(sql: str) -> dict[str, str] | str:
        translated = to_engine(sql, database.engine, schema)
        if translated is None:
            return "cannot be translated for the server"
        outcome = executor.execute(database.url, translated)
        if outcome.status == "db_error":
            raise InputError(parse_address(database.url).redact(outcome.error))  # it begins with the URL
        if outcome.status != "ok":
            return f"fails on the server ({' '.join((outcome.error or outcome.status).split())})"
        if not outcome.row_count or (outcome.row_count == 1 and is_trivial(outcome.rows)):
            return "returns nothing on the server, or only 0 or NULL"
        return {"sql": translated, "dialect": database.engine, "db": database.public_url, "sqlite_sql": sql}

    return translate


def _schema(database: ExternalDatabase) -> EngineSchema:
    """Return the tables of a server's database, read from its sample, for the translation."""
    tables = {}
    for table in read_schema(database.sample_path).tables:
        columns = {
            column.name.lower(): EngineColumn(column.name, _KINDS.get(column.type, ""), affinity_of(column.type))
            for column in table.columns
        }
        key = tuple(name.lower() for name in table.primary_key)
        tables[table.name.lower()] = EngineTable(table.name, columns, key)
    return tables
