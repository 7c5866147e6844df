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

Carry = Callable[[str], dict[str, str] | None]
"""Translates a SQLite gold and returns the server's fields of a question's line; None if uninformative there."""

_KINDS = {
    "INTEGER": "integer",
    "REAL": "real",
    "TEXT": "text",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "BLOB": "blob",
}


def carry_to(executor: Executor, database: ExternalDatabase) -> Carry:
    """Return a function that translates golds for a server; the function raises InputError if it cannot connect."""
    schema = _schema(database)

    def carry(sql: str) -> dict[str, str] | None:
        written = to_engine(sql, database.engine, schema)
        outcome = executor.execute(database.url, written) if written else None
        if outcome is not None and outcome.status == "db_error":
            raise InputError(f"{database.public_url}: {parse_address(database.url).redact(outcome.error)}")
        if written is None or outcome is None or outcome.status != "ok" or not outcome.row_count:
            return None
        if outcome.row_count == 1 and is_trivial(outcome.rows):
            return None
        return {"sql": written, "dialect": database.engine, "db": database.public_url, "sqlite_sql": sql}

    return carry


def _schema(database: ExternalDatabase) -> EngineSchema:
    tables = {}
    for table in read_schema(database.sample_path).tables:
        columns = {
            column.name.lower(): EngineColumn(column.name, _KINDS.get(column.type, ""), affinity_of(column.type))
            for column in table.columns
        }
        key = tuple(name.lower() for name in table.primary_key)
        tables[table.name.lower()] = EngineTable(table.name, columns, key)
    return tables
