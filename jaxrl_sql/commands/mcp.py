"""Give agents a database to read, over the Model Context Protocol: `jaxrl-sql mcp --db FILE|URL` speaks on stdio.

Four tools: `schema`, `query`, `explain` and, with `--model M` (or `--endpoint URL`, whose model is called M), `ask`.
Nothing that they are given can write: one statement that reads, run by the executor in a sandbox, within its budgets,
of whose result the first `--max-rows` rows are returned. Values are set by `key.sub=value`, as for `ask`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxrl_sql.commands.arguments import ALL, EXIT_CODES, Parser, add_config, add_endpoint, add_leave_out
from jaxrl_sql.commands.ask import Ask, configuration, database_of, opened
from jaxrl_sql.commands.running import prepare_process, report_errors, run_or_print
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.databases.sample.options import is_served, refuse_leave_out
from jaxrl_sql.runtime.plain import exact
from jaxrl_sql.text2sql.env.address import open_url
from jaxrl_sql.text2sql.env.executor import Executor, ExecutorError, Outcome, make_executor
from jaxrl_sql.types import Example, InputError, JaxrlSqlError

NEEDED = "agents are spoken to by the package mcp: pip install 'jaxrl-sql[mcp]'"

_LIMITS = {"timeout_ms": 30_000, "engine_timeout_ms": 30_000, "vm_steps": 3_000_000_000, "max_bytes": 16 << 20}
_LONGEST_CELL = 2_000
_LONGEST_SCHEMA = 40_000


class Database:
    """A database that is only read: what runs on it, and what it is like. `name` is a file, or the URL of a server."""

    def __init__(
        self,
        name: str,
        stand_in: Path | None,
        executor: Executor,
        max_rows: int,
        leave_out: Sequence[str] = (),
        hide: Sequence[str] = (),
    ) -> None:
        self.hide = hide
        self.name, self.stand_in, self.leave_out, self.executor = name, stand_in, leave_out, executor
        self.address = open_url(name) if is_served(name) else str(Path(name))
        limits = executor.limits
        cut: dict[str, Any] = {"max_rows": max_rows, "on_excess": "cut"}
        elsewhere = limits.other_engines
        self.limits = limits.replace(**cut, other_engines=elsewhere.replace(**cut) if elsewhere else None)

    @cached_property
    def example(self) -> Example:
        """Return a question without words on it; of a server's a sample is taken, which shows what it is like."""
        from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

        return hide_in_example(database_of(self.name, self.stand_in, self.leave_out), self.hide)

    def query(self, sql: str) -> dict[str, Any]:
        """Run one statement that reads and return its first rows; raises JaxrlSqlError, with a hint, where it fails."""
        return table(self.executor.execute(self.address, sql, limits=self.limits))

    def explain(self, sql: str) -> dict[str, Any]:
        """Return the engine's plan of a statement, of which nothing is run; raises JaxrlSqlError where it has none."""
        return table(self.executor.explain(self.address, sql, limits=self.limits))

    def schema(self, tables: Sequence[str] | None) -> str:
        """Return some tables and views (None: all) as CREATE TABLE statements; of very many their names alone.

        Views are named as such, and so are tables and columns that SQLite cannot read.
        """
        from jaxrl_sql.text2sql.schema.quote import quote_name
        from jaxrl_sql.text2sql.schema.read import read_schema
        from jaxrl_sql.text2sql.schema.render import ddl, names_only

        whole = read_schema(self.example.db_path, self.example.hide)
        wanted = {name.casefold() for name in tables or ()}
        listed = (*whole.tables, *whole.views)
        known = {table.name.casefold(): table.name for table in listed}
        if unknown := sorted(wanted - known.keys()):
            raise JaxrlSqlError(f"no table {unknown[0]!r}; there are {', '.join(known.values())}")
        part = replace(whole, tables=tuple(table for table in listed if not wanted or table.name.casefold() in wanted))
        text = ddl(part)
        views = [quote_name(view.name) for view in whole.views if view in part.tables]
        notes = [f"views: {', '.join(views)}"] * bool(views) + list(() if wanted else whole.omissions)
        below = "".join(f"\n\n-- {line}" for line in notes)[:_LONGEST_SCHEMA]
        if len(text) <= _LONGEST_SCHEMA:
            return text + below
        short = names_only(part)[:_LONGEST_SCHEMA] + below
        return f"{short}\n(names alone, as there is much: name some `tables` to see their columns' types and keys)"


def table(outcome: Outcome) -> dict[str, Any]:
    """Return a result as JSON has it; raises JaxrlSqlError with status, reason and hint where there is none."""
    if outcome.status != "ok":
        said = [outcome.status, *(part for part in (outcome.error, outcome.hint) if part)]
        raise JaxrlSqlError(": ".join(said[:2]) + (f" ({said[2]})" if len(said) > 2 else ""))
    rows = [[cell(value) for value in row] for row in outcome.rows]
    return {"columns": outcome.columns, "rows": rows, "is_cut": outcome.is_cut}


def cell(value: Any) -> Any:
    """Return a value as clients read JSON: large integers as text, bytes in hexadecimal, long texts cut."""
    if value is None or isinstance(value, bool | int):
        return exact(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinity
    text = f"x'{value[:_LONGEST_CELL].hex()}'" if isinstance(value, bytes) else str(value)
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}… ({len(text)} characters)"


class Asker:
    """A model that is asked on one thread, which opens it at the first question: a mesh is a thread's own."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self._pool = ThreadPoolExecutor(1)
        self._stack = ExitStack()
        self._ask: Ask | None = None

    def close(self) -> None:
        """Let go of the model."""
        self._pool.submit(self._stack.close).result()
        self._pool.shutdown()

    def answer(self, example: Example) -> dict[str, Any]:
        """Return the SQL that answers a question, and the finish reason of its answer."""
        return self._pool.submit(self._answer, example).result()

    def _answer(self, example: Example) -> dict[str, Any]:
        if self._ask is None:
            self._ask = self._stack.enter_context(opened(self.config))
        reply = self._ask([example])[0]
        return {"sql": reply.sql, "finish_reason": reply.finish_reason, "note": reply.note}


def make_server(database: Database, asker: Asker | None) -> Any:
    """Return the server of a database's tools; without an `asker` none answers questions."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise InputError(NEEDED) from error
    server = MCPServer(
        "jaxrl-sql", log_level="WARNING", instructions="Look at the schema, then query: nothing can be written."
    )
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False)

    def told(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (JaxrlSqlError, ExecutorError) as error:
            raise ToolError(str(error)) from error

    @server.tool(annotations=reads)
    def schema(tables: list[str] | None = None) -> str:
        """Show the tables and views as CREATE TABLE statements; `tables` names some of them."""
        text: str = told(lambda: database.schema(tables))
        return text

    @server.tool(annotations=reads)
    def query(sql: str) -> dict[str, Any]:
        """Run one SQL statement that reads, and return its columns and first rows (`is_cut`: there were more).

        Integers beyond 2^53 are text.
        """
        found: dict[str, Any] = told(lambda: database.query(sql))
        return found

    @server.tool(annotations=reads)
    def explain(sql: str) -> dict[str, Any]:
        """Show the engine's plan for one SQL statement, without running it."""
        found: dict[str, Any] = told(lambda: database.explain(sql))
        return found

    if asker is not None:
        model = asker

        @server.tool(annotations=reads)
        def ask(question: str, evidence: str = "") -> dict[str, Any]:
            """Have a model write the SQL that answers a question, run it, and return both.

            `evidence` is background knowledge. With the finish reason `length` the answer, and perhaps its SQL, is
            cut; `note` reports that.
            """
            if not question.strip():
                raise ToolError("the question is empty")
            example = replace(told(lambda: database.example), question=question, evidence=evidence)
            found: dict[str, Any] = told(lambda: model.answer(example))
            note = f" ({found['note']})" if found["note"] else ""
            if found["sql"] is None:
                raise ToolError(f"no SQL in the model's answer{note}")
            try:
                return found | database.query(found["sql"])
            except (JaxrlSqlError, ExecutorError) as error:
                raise ToolError(f"{error}; the model wrote: {found['sql']}{note}") from error

    return server


@contextmanager
def opened_database(given: argparse.Namespace, config: TrainConfig) -> Iterator[Database]:
    """Open the database of a command line; raises InputError where it cannot be read."""
    with make_executor(config.executor, config.data.hide) as executor:
        database = Database(given.db, given.stand_in, executor, given.max_rows, given.leave_out, config.data.hide)
        try:
            outcome = executor.execute(database.address, "SELECT 1")
        except ExecutorError as error:
            raise InputError(f"--db: {error}") from error
        if outcome.status != "ok":
            raise InputError(f"--db: {outcome.status}: {outcome.error or ''}")
        if given.leave_out or config.data.hide:
            database.schema(None)  # an unknown name fails before a client is served
        yield database


def serve(given: argparse.Namespace) -> int:
    """Serve until the client goes away; return the exit code."""
    check_keys(given.config, given.overrides)  # before a model is looked for on the hub
    limits: Mapping[str, Any] = {"executor": dict(_LIMITS)}
    if given.endpoint and not given.model:
        raise InputError("--endpoint needs --model, the name that the server has for it")
    config = (
        configuration(given, given.overrides) if given.model else load_config(given.config, given.overrides, limits)
    )
    if not is_served(given.db) and not Path(given.db).is_file():  # before a model is fetched for it
        found = "is a folder: name the file in it" if Path(given.db).is_dir() else "no such file"
        raise InputError(f"--db {given.db}: {found}")
    if is_served(given.db):
        from jaxrl_sql.text2sql.question_sets.hiding import refuse_hide

        refuse_hide(config.data.hide, "--db names a database of another engine")
    else:
        refuse_leave_out(given.leave_out, given.db)

    def speak(config: TrainConfig) -> int:
        with opened_database(given, config) as database:
            asker = Asker(config) if given.model else None
            try:
                make_server(database, asker).run("stdio")
            finally:
                if asker is not None:
                    asker.close()
        return 0

    return run_or_print(speak, config, given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, serve, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, (*ALL, "evaluate"), EXIT_CODES)
    parser.add_argument(
        "--db", required=True, metavar="FILE|URL", help="a SQLite file, postgresql://…, mysql://…; it is only read"
    )
    parser.add_argument("--stand-in", type=Path, metavar="FILE", help="a SQLite file that shows what the URL's is like")
    add_leave_out(parser, several=False)
    parser.add_argument("--model", help="what answers questions: a run, a Hugging Face folder, a hub name, a GGUF file")
    add_endpoint(parser, "evaluate")
    parser.add_argument("--recipe", help="whose form and prompt it is asked in (default: as it was trained)")
    parser.add_argument("--n", type=int, help="how many answers to sample, of which a vote takes one")
    parser.add_argument(
        "--max-rows", type=int, default=200, help="rows of a result that are told (default: %(default)s)"
    )
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the defaults")
    given = parser.parse_intermixed_args(arguments)
    if given.max_rows < 1:
        parser.error(f"--max-rows must be at least 1, not {given.max_rows}")
    if given.stand_in and not is_served(given.db):
        parser.error(f"--stand-in {given.stand_in} is for a --db of another engine; {given.db} shows itself")
    prepare_process()
    return report_errors(lambda: serve(given))


if __name__ == "__main__":
    sys.exit(main())
