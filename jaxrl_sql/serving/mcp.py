"""The MCP server: tools for agents that query a database and generate SQL with a model.

The tools cannot write. The executor runs one read-only statement per call in a sandbox with limits, and the tool
returns the first rows of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.databases.sample.options import is_external
from jaxrl_sql.inference.ask import Asker, database_example, log_line
from jaxrl_sql.runtime.plain import exact
from jaxrl_sql.text2sql.env.address import url_with_password
from jaxrl_sql.text2sql.env.executor import Executor, ExecutorError, Outcome, make_executor
from jaxrl_sql.types import Example, InputError, JaxrlSqlError

NEEDED = "the MCP server needs the package mcp: pip install 'jaxrl-sql[mcp]'"

MAX_ROWS = 200
"""Default maximum number of rows that a tool returns."""
LIMITS = {"timeout_ms": 30_000, "engine_timeout_ms": 30_000, "vm_steps": 3_000_000_000, "max_bytes": 16 << 20}
"""Default limits of a query: settings of the section `executor`."""
# Largest length of a cell (characters, or bytes of binary data) and of a schema (characters) in a reply.
_MAX_CELL = 2_000
_MAX_SCHEMA = 40_000


class McpDatabase:
    """Read-only access to a database: queries, plans and schema. `name` is a file, or the URL of a server.

    A result has up to `max_rows` rows. The schema of a database of another engine than SQLite is that of a sample, a
    small SQLite file. `leave_out` are tables and columns ("TABLE", "TABLE.COLUMN") that this sample omits, and
    `stand_in` is a SQLite file shown instead of the sample. `hide` are columns ("TABLE.COLUMN") of a SQLite file that
    queries may not read. `report` gets lines about tables that the schema omits.
    """

    def __init__(
        self,
        name: str,
        stand_in: Path | None,
        executor: Executor,
        max_rows: int,
        leave_out: Sequence[str] = (),
        hide: Sequence[str] = (),
        report: Callable[[str], object] = log_line,
    ) -> None:
        self.hide, self._report = hide, report
        self.name, self.stand_in, self.leave_out, self.executor = name, stand_in, leave_out, executor
        self.address = url_with_password(name) if is_external(name) else str(Path(name))
        limits = executor.limits
        truncation: dict[str, Any] = {"max_rows": max_rows, "on_excess": "cut"}  # "cut" instead of failing the query
        engine_limits = limits.other_engines
        self.limits = limits.replace(
            **truncation, other_engines=engine_limits.replace(**truncation) if engine_limits else None
        )

    @cached_property
    def example(self) -> Example:
        """Return an example with an empty question on the database; a server's database is represented by a sample."""
        from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

        database = database_example(self.name, self.stand_in, self.leave_out, self._report)
        return hide_in_example(database, self.hide)

    def query(self, sql: str) -> dict[str, Any]:
        """Run one read-only statement and return its first rows; raises JaxrlSqlError, with a hint, if it fails."""
        return json_table(self.executor.execute(self.address, sql, limits=self.limits))

    def explain(self, sql: str) -> dict[str, Any]:
        """Return the engine's plan of a statement without running it; raises JaxrlSqlError if it has none."""
        return json_table(self.executor.explain(self.address, sql, limits=self.limits))

    def schema(self, tables: Sequence[str] | None) -> str:
        """Return tables and views as CREATE TABLE statements, or only names if the statements are too long.

        `tables` names some of them; None: all. A comment at the end lists which of them are views, and for a full
        schema the tables and columns that SQLite cannot read. Raises JaxrlSqlError for an unknown name.
        """
        from jaxrl_sql.text2sql.schema.read import read_schema
        from jaxrl_sql.text2sql.schema.render import ddl, names_only, quote_of

        full_schema = read_schema(self.example.db_path, self.example.hide)
        requested = {name.casefold() for name in tables or ()}
        all_tables = (*full_schema.tables, *full_schema.views)
        table_names = {table.name.casefold(): table.name for table in all_tables}
        if unknown := sorted(requested - table_names.keys()):
            raise JaxrlSqlError(f"no table {unknown[0]!r}; there are {', '.join(table_names.values())}")
        selection = replace(
            full_schema,
            tables=tuple(table for table in all_tables if not requested or table.name.casefold() in requested),
        )
        text = ddl(selection)
        views = [quote_of(full_schema)(view.name) for view in full_schema.views if view in selection.tables]
        notes = [f"views: {', '.join(views)}"] if views else []
        notes += () if requested else full_schema.omissions
        comments = "".join(f"\n\n-- {line}" for line in notes)[:_MAX_SCHEMA]
        if len(text) <= _MAX_SCHEMA:
            return text + comments
        names = names_only(selection)[:_MAX_SCHEMA] + comments
        return f"{names}\n(names only, because the schema is long: pass `tables` to see types and keys)"


def json_table(outcome: Outcome) -> dict[str, Any]:
    """Return a query's result in the types of JSON: `columns`, `rows`, and `is_cut` if there were more rows.

    Raises JaxrlSqlError with status, reason and hint for a failed query.
    """
    if outcome.status != "ok":
        parts = [outcome.status, *(part for part in (outcome.error, outcome.hint) if part)]
        raise JaxrlSqlError(": ".join(parts[:2]) + (f" ({parts[2]})" if len(parts) > 2 else ""))
    rows = [[json_cell(value) for value in row] for row in outcome.rows]
    return {"columns": outcome.columns, "rows": rows, "is_cut": outcome.is_cut}


def json_cell(value: Any) -> Any:
    """Return a value for JSON: large integers and infinities as text, bytes in hexadecimal, long texts truncated."""
    if value is None or isinstance(value, bool | int):
        return exact(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no infinity
    text = f"x'{value[:_MAX_CELL].hex()}'" if isinstance(value, bytes) else str(value)
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}… ({len(text)} characters)"


def answer_question(database: McpDatabase, asker: Asker, question: str, evidence: str) -> dict[str, Any]:
    """Have a model write the SQL that answers a question, run it, and return both.

    Raises JaxrlSqlError for an answer without SQL, and for SQL that fails.
    """
    if not question.strip():
        raise JaxrlSqlError("the question is empty")
    (reply,) = asker.answer([replace(database.example, question=question, evidence=evidence)])
    note = f" ({reply.note})" if reply.note else ""
    if reply.sql is None:
        raise JaxrlSqlError(f"no SQL in the model's answer{note}")
    answer = {"sql": reply.sql, "finish_reason": reply.finish_reason, "note": reply.note}
    try:
        return answer | database.query(reply.sql)
    except (JaxrlSqlError, ExecutorError) as error:
        raise JaxrlSqlError(f"{error}; the model wrote: {reply.sql}{note}") from error


def make_server(database: McpDatabase, asker: Asker | None) -> Any:
    """Return the MCP server (of the package mcp) with a database's tools.

    The tool that answers questions is present if there is an `asker`, a model. Raises InputError if the package is
    missing.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise InputError(NEEDED) from error
    server = MCPServer(
        "jaxrl-sql", log_level="WARNING", instructions="Look at the schema, then query: nothing can be written."
    )
    read_only = ToolAnnotations(read_only_hint=True, destructive_hint=False)

    def as_tool(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (JaxrlSqlError, ExecutorError) as error:
            raise ToolError(str(error)) from error

    @server.tool(annotations=read_only)
    def schema(tables: list[str] | None = None) -> str:
        """Show the tables and views as CREATE TABLE statements; `tables` names some of them."""
        text: str = as_tool(lambda: database.schema(tables))
        return text

    @server.tool(annotations=read_only)
    def query(sql: str) -> dict[str, Any]:
        """Run one SQL statement that reads, and return its columns and first rows (`is_cut`: there were more).

        Integers beyond 2^53 are text.
        """
        rows: dict[str, Any] = as_tool(lambda: database.query(sql))
        return rows

    @server.tool(annotations=read_only)
    def explain(sql: str) -> dict[str, Any]:
        """Show the engine's plan for one SQL statement, without running it."""
        plan: dict[str, Any] = as_tool(lambda: database.explain(sql))
        return plan

    if asker is not None:
        model = asker

        @server.tool(annotations=read_only)
        def ask(question: str, evidence: str = "") -> dict[str, Any]:
            """Have a model write the SQL that answers a question, run it, and return both.

            `evidence` is background knowledge. With the finish reason `length` the answer, and perhaps its SQL, is
            cut; `note` reports that.
            """
            answer: dict[str, Any] = as_tool(lambda: answer_question(database, model, question, evidence))
            return answer

    return server


@contextmanager
def open_database(
    name: str,
    config: ExecutorConfig,
    hide: Sequence[str] = (),
    *,
    stand_in: Path | None = None,
    leave_out: Sequence[str] = (),
    max_rows: int = MAX_ROWS,
    report: Callable[[str], object] = log_line,
) -> Iterator[McpDatabase]:
    """Open a database, a SQLite file or a server's URL, with an executor; the parameters are those of `McpDatabase`.

    Raises InputError if the database cannot be read, and for an unknown name in `leave_out` or `hide`.
    """
    with make_executor(config, hide) as executor:
        database = McpDatabase(name, stand_in, executor, max_rows, leave_out, hide, report)
        try:
            outcome = executor.execute(database.address, "SELECT 1")
        except ExecutorError as error:
            raise InputError(f"--db: {error}") from error
        if outcome.status != "ok":
            raise InputError(f"--db: {outcome.status}: {outcome.error or ''}")
        if leave_out or hide:
            database.schema(None)  # an unknown name fails before a client is served
        yield database
