"""The agents' tools through the mcp package's client, once over stdio; above all, tools must not write.

The texts below are of the kinds that broke the read-only modes of published servers: a second statement after an
allowed one, a COMMIT that ends a read-only transaction, writes inside WITH, EXPLAIN that executes, functions with
side effects, comments before or within the first word, PRAGMA, ATTACH, VACUUM INTO, COPY, SET ROLE.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import psycopg2
import pymysql
import pytest

from jaxrl_sql.commands.mcp import main
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.serving.mcp import json_cell, make_server, open_database
from sqlexec_rs.servers import Server

if TYPE_CHECKING:
    import mcp

START = Path(__file__).parents[2] / "configs/quickstart_start"
HOSTILE = Path(__file__).parents[1] / "native"

ON_SQLITE = """\
INSERT INTO ship VALUES (9, 'x')
UPDATE ship SET name = 'x'
DELETE FROM ship
DROP TABLE ship
CREATE TABLE x(a)
CREATE TEMP TABLE x(a)
CREATE VIEW v AS SELECT 1
ALTER TABLE ship ADD COLUMN x
REPLACE INTO ship VALUES (1, 'x')
SELECT 1; DROP TABLE ship
SELECT 1; DELETE FROM ship; --
SELECT 1;;DELETE FROM ship
COMMIT; DELETE FROM ship
ROLLBACK; BEGIN IMMEDIATE; DELETE FROM ship; COMMIT
BEGIN EXCLUSIVE
SAVEPOINT x
/* SELECT */ DELETE FROM ship
-- SELECT\\nDELETE FROM ship
/**/DELETE/**/FROM/**/ship
SELECT 1 /* ; */; DELETE FROM ship -- SELECT
WITH x AS (SELECT 1) DELETE FROM ship
WITH x AS (SELECT 1) INSERT INTO ship SELECT 9, 'x'
WITH x AS (DELETE FROM ship RETURNING *) SELECT * FROM x
DELETE FROM ship RETURNING *
EXPLAIN DELETE FROM ship
PRAGMA query_only = 0
PRAGMA writable_schema = 1
PRAGMA writable_schema(1)
PRAGMA user_version = 7
PRAGMA journal_mode = DELETE
PRAGMA wal_checkpoint(TRUNCATE)
SELECT * FROM pragma_user_version(7)
SELECT * FROM pragma_journal_mode('WAL')
ATTACH DATABASE '{out}' AS other
ATTACH 'file:{out}?mode=rwc' AS other
SELECT 1; ATTACH '{out}' AS other
VACUUM
VACUUM INTO '{out}'
REINDEX
ANALYZE
SELECT load_extension('x')
SELECT writefile('{out}', 'x')
SELECT readfile('/etc/passwd')
SELECT edit('x')
SELECT fts3_tokenizer('simple', x'00')
CREATE VIRTUAL TABLE x USING fts5(a)
INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 0, '')
UPDATE sqlite_schema SET sql = ''
DETACH DATABASE main
"""

ON_POSTGRESQL = """\
COMMIT; DROP TABLE item; --
SELECT 1; COMMIT; DROP TABLE item
COMMIT
END; DELETE FROM item
ABORT; DELETE FROM item
/* SELECT */ DELETE FROM item
-- SELECT\\nDELETE FROM item
SELECT 1 /* /* */ ; */; DELETE FROM item
WITH x AS (DELETE FROM item RETURNING *) SELECT * FROM x
EXPLAIN ANALYZE DELETE FROM item
EXPLAIN (ANALYZE) SELECT nextval('numbers')
SELECT set_config('transaction_read_only', 'off', false)
SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE
SET TRANSACTION READ WRITE
BEGIN READ WRITE
SET ROLE postgres
RESET ROLE
SET SESSION AUTHORIZATION postgres
COPY item FROM '/etc/passwd'
COPY (SELECT 1) TO '{out}'
COPY (SELECT 1) TO PROGRAM 'touch {out}'
SELECT lo_export(lo_from_bytea(0, 'x'), '{out}')
SELECT nextval('numbers')
SELECT setval('numbers', 1)
SELECT pg_read_file('/etc/passwd')
SELECT query_to_xml('DELETE FROM item', true, true, '')
SELECT pg_terminate_backend(pg_backend_pid())
CREATE TEMP TABLE x AS SELECT 1
SELECT * INTO x FROM item
DO $$ BEGIN DELETE FROM item; END $$
VACUUM item
ANALYZE item
REFRESH MATERIALIZED VIEW x
LOCK TABLE item
"""

ON_MARIADB = """\
INSERT INTO item VALUES (3, 'c')
SELECT 1; DROP TABLE item
SELECT 1;; DELETE FROM item
COMMIT; DROP TABLE item; -- x
COMMIT
ROLLBACK; DELETE FROM item
/* SELECT */ DELETE FROM item
-- SELECT\\nDELETE FROM item
# SELECT\\nDELETE FROM item
/*! DELETE FROM item */
/*!50000 DELETE */ FROM item
/*M!100100 DROP TABLE item */
SELECT 1 /* ; */; DELETE FROM item # SELECT
SELECT 1 /*! ; DELETE FROM item */
SELECT 1 /*! INTO OUTFILE '{out}' */
SELECT 1 /*M!100100 INTO OUTFILE '{out}' */
SELECT 'x' INTO OUTFILE '{out}'
SELECT 'x' INTO DUMPFILE '{out}'
SELECT name INTO @a FROM item LIMIT 1
SELECT LOAD_FILE('/etc/passwd')
WITH x AS (SELECT 1) DELETE FROM item
WITH x AS (SELECT 1 AS id) UPDATE item JOIN x USING (id) SET name = 'x'
INSERT INTO item WITH x AS (SELECT 9, 'x') SELECT * FROM x
DELETE FROM item RETURNING id
REPLACE INTO item VALUES (1, 'x') RETURNING id
EXPLAIN DELETE FROM item
ANALYZE DELETE FROM item
ANALYZE FORMAT=JSON UPDATE item SET name = 'x'
DESCRIBE DELETE FROM item
SELECT NEXTVAL(numbers)
SELECT NEXT VALUE FOR numbers
SELECT SETVAL(numbers, 50)
SELECT GET_LOCK('x', 1)
DO GET_LOCK('x', 1)
SET tx_read_only = 0
SET SESSION TRANSACTION READ WRITE
SET STATEMENT tx_read_only = 0 FOR DELETE FROM item
SET STATEMENT max_statement_time = 0 FOR SELECT 1
START TRANSACTION READ WRITE
BEGIN
SET ROLE NONE
SET DEFAULT ROLE NONE
SET PASSWORD = PASSWORD('x')
USE mysql
CALL mysql.AddGeometryColumn('a', 'b', 'c', 'd', 1)
PREPARE p FROM 'DELETE FROM item'
EXECUTE IMMEDIATE 'DELETE FROM item'
BEGIN NOT ATOMIC DELETE FROM item; END
IF 1 THEN DELETE FROM item; END IF
HANDLER item OPEN
LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE item
LOAD DATA INFILE '/etc/passwd' INTO TABLE item
SELECT * FROM item FOR UPDATE
LOCK TABLES item WRITE
CREATE TEMPORARY TABLE x AS SELECT 1
FLUSH TABLES
KILL 1
"""

ON_DUCKDB = """\
INSERT INTO item VALUES (3, 'c')
INSERT OR REPLACE INTO item VALUES (1, 'x')
MERGE INTO item USING (SELECT 1 AS id) AS s ON item.id = s.id WHEN MATCHED THEN DELETE
SELECT 1; DROP TABLE item
SELECT 1;; DELETE FROM item
FROM item; DELETE FROM item
COMMIT; DELETE FROM item
ROLLBACK; BEGIN; DELETE FROM item; COMMIT
BEGIN TRANSACTION READ WRITE
/* SELECT */ DELETE FROM item
-- SELECT\\nDELETE FROM item
SELECT 1 /* ; */; DELETE FROM item -- SELECT
WITH x AS (SELECT 1) DELETE FROM item
WITH x AS (DELETE FROM item RETURNING *) SELECT * FROM x
DELETE FROM item RETURNING *
EXPLAIN DELETE FROM item
EXPLAIN ANALYZE DELETE FROM item
EXPLAIN ANALYZE SELECT nextval('numbers')
SELECT nextval('numbers')
SELECT * FROM query('DELETE FROM item')
SELECT * FROM query($$COPY item TO '{out}'$$)
PREPARE p AS DELETE FROM item
EXECUTE p
SET enable_external_access = true
SET lock_configuration = false
SET GLOBAL access_mode = 'READ_WRITE'
RESET enable_external_access
PRAGMA enable_external_access
PRAGMA enable_profiling = 'json'
PRAGMA profiling_output = '{out}'
CALL enable_logging(storage_path = '{out}')
ATTACH '{out}' AS other
ATTACH OR REPLACE '{out}' AS shop
SELECT 1; ATTACH '{out}' AS other
DETACH shop
USE memory
COPY item TO '{out}'
COPY (SELECT 1) TO '{out}' (FORMAT csv)
COPY item FROM '/etc/passwd'
COPY FROM DATABASE shop TO memory
EXPORT DATABASE '{out}'
IMPORT DATABASE '{out}'
INSTALL httpfs
LOAD httpfs
LOAD '{out}'
CREATE SECRET s (TYPE s3)
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_csv('/etc/passwd')
FROM '/etc/passwd'
SELECT getenv('HOME')
CREATE TEMP TABLE x AS SELECT 1
CREATE OR REPLACE MACRO count(x) AS 7
CREATE VIEW x AS SELECT 1
CHECKPOINT
FORCE CHECKPOINT
CALL force_checkpoint()
VACUUM
ANALYZE
"""

Work = Callable[["mcp.Client"], Awaitable[Any]]


def talk(work: Work, db: str, *overrides: str) -> Any:
    """Run a client's work with the tools of a database in this process, and return its result."""
    import mcp

    async def run() -> Any:
        with open_database(db, load_config(EvaluateConfig, None, overrides).executor) as opened:
            async with mcp.Client(make_server(opened, None)) as client:
                return await work(client)

    return anyio.run(run)


def talk_over_stdio(work: Work, *arguments: str) -> Any:
    """Start the command, run a client's work, and return its result."""
    import mcp

    async def run() -> Any:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "jaxrl_sql", "mcp", *arguments], env={**os.environ}
        )
        async with mcp.Client(server) as client:
            return await work(client)

    return anyio.run(run)


def make_tool_calls(name: str, *many: dict[str, Any]) -> Work:
    """Return work that calls a tool repeatedly and returns (is an error, text) of each call."""

    async def work(client: mcp.Client) -> list[tuple[bool, str]]:
        result = []
        for arguments in many:
            reply = await client.call_tool(name, arguments)
            result.append((bool(reply.is_error), "".join(getattr(part, "text", "") for part in reply.content)))
        return result

    return work


@pytest.fixture(scope="module")
def ships(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ships") / "ships.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ship(id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE port(id INTEGER PRIMARY KEY, town TEXT)")
        connection.execute("CREATE INDEX names ON ship(name)")
        connection.executemany("INSERT INTO ship VALUES (?, ?)", [(i, f"ship {i}") for i in range(1, 8)])
        connection.commit()
    return path


def state(folder: Path) -> dict[str, str]:
    """Return the names and hashes of the files in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_command_serves_its_tools_over_stdio(ships: Path) -> None:
    async def work(client: mcp.Client) -> Any:
        tools = (await client.list_tools()).tools
        schema = await client.call_tool("schema", {})
        part = await client.call_tool("schema", {"tables": ["SHIP"]})
        rows = await client.call_tool("query", {"sql": "SELECT id, name FROM ship ORDER BY id"})
        plan = await client.call_tool("explain", {"sql": "SELECT * FROM ship WHERE id = 3"})
        return tools, schema, part, rows, plan

    tools, schema, part, rows, plan = talk_over_stdio(work, f"data.database={ships}", "--max-rows", "3")
    assert [tool.name for tool in tools] == ["schema", "query", "explain"]
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert "CREATE TABLE" in schema.content[0].text
    assert "port" in schema.content[0].text
    assert "port" not in part.content[0].text
    result = json.loads(rows.content[0].text)
    assert result == {"columns": ["id", "name"], "rows": [[i, f"ship {i}"] for i in (1, 2, 3)], "is_cut": True}
    assert "SEARCH ship" in plan.content[0].text


def test_tool_errors_state_the_reason(ships: Path) -> None:
    queries = [{"sql": "SELECT nam FROM ship"}, {"sql": ""}, {"sql": "SELEC 1"}]
    (failed, output), empty, wrong = talk(make_tool_calls("query", *queries), str(ships))
    assert failed
    assert "nam" in output
    assert "name" in output.replace("nam ", "")
    assert empty[0]
    assert wrong[0]
    ((failed, output),) = talk(make_tool_calls("schema", {"tables": ["ships"]}), str(ships))
    assert failed
    assert "port, ship" in output.replace("ship, port", "port, ship")


@pytest.mark.parametrize("tool", ["query", "explain"])
def test_tools_write_nothing_on_sqlite(ships: Path, tool: str) -> None:
    out = ships.parent / "written"
    texts = [line.replace("\\n", "\n").replace("{out}", str(out)) for line in ON_SQLITE.splitlines()]
    before = state(ships.parent)
    result = talk(make_tool_calls(tool, *({"sql": text} for text in texts)), str(ships))
    ran = [text for text, (failed, _) in zip(texts, result, strict=True) if not failed]
    assert ran == (["SELECT * FROM pragma_journal_mode('WAL')"] if tool == "explain" else [])  # a plan calls nothing
    assert state(ships.parent) == before


def test_an_endless_query_is_stopped_and_the_next_runs(ships: Path) -> None:
    endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT sum(x) FROM t"
    limits = ["executor.timeout_ms=60000", "executor.vm_steps=1000000"]
    stopped, next_ = talk(make_tool_calls("query", {"sql": endless}, {"sql": "SELECT 1"}), str(ships), *limits)
    assert stopped[0]
    assert not next_[0]


@pytest.fixture(scope="module")
def serve(start_server: Callable[[str, str], Server]) -> Callable[[str], Server]:
    """Return a function that starts each engine's server once, with a table and a sequence."""
    script = (
        "CREATE TABLE item(id int, name text); INSERT INTO item VALUES (1, 'a'), (2, 'b'); CREATE SEQUENCE numbers;"
    )
    return lru_cache(lambda engine: start_server(engine, script))


ON_SERVERS = {"postgresql": ON_POSTGRESQL, "mariadb": ON_MARIADB}
HELD = {
    "postgresql": """
        SELECT (SELECT string_agg(item::text, ',' ORDER BY id) FROM item), (SELECT is_called FROM numbers),
               (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_largeobject_metadata),
               (SELECT string_agg(rolname || rolsuper, ',' ORDER BY rolname) FROM pg_roles)
    """,
    "mariadb": """
        SELECT (SELECT GROUP_CONCAT(id, name ORDER BY id) FROM item), (SELECT next_not_cached_value FROM numbers),
               (SELECT COUNT(*) FROM information_schema.tables), (SELECT COUNT(*) FROM mysql.global_priv),
               (SELECT MD5(GROUP_CONCAT(priv ORDER BY user)) FROM mysql.global_priv), @@global.tx_read_only,
               IS_FREE_LOCK('x')
    """,
}


def server_state(server: Server) -> Any:
    """Return the state of a server as its owner sees it: rows, tables, the sequence, roles."""
    if server.engine == "postgresql":
        connection: Any = psycopg2.connect(server.owner)
    else:
        url = urlsplit(server.owner)
        connection = pymysql.connect(
            host=url.hostname, port=url.port or 0, user=url.username, password=url.password or "", database=url.path[1:]
        )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(HELD[server.engine])
        return cursor.fetchall()


@pytest.mark.servers
@pytest.mark.parametrize("tool", ["query", "explain"])
@pytest.mark.parametrize("engine", ON_SERVERS)
def test_tools_write_nothing_on_a_server(
    engine: str, tool: str, serve: Callable[[str], Server], tmp_path: Path
) -> None:
    out, harm = tmp_path / "written", HOSTILE / f"hostile_{engine}.sql"
    tmp_path.chmod(0o777)
    more = [line for line in harm.read_text().splitlines() if not line.startswith("--")] if tool == "query" else []
    texts = [line.replace("\\n", "\n").replace("{out}", str(out)) for line in ON_SERVERS[engine].splitlines()]
    server = serve(engine)
    before = server_state(server)
    result = talk(
        make_tool_calls(tool, *({"sql": text} for text in (*texts, *more))),
        server.reader,
        "executor.engine_timeout_ms=1000",
    )
    assert server_state(server) == before
    ran = {text for text, (failed, _) in zip((*texts, *more), result, strict=True) if not failed}
    assert {item.replace(str(out), "{out}") for item in ran & {*texts}} <= (READS if tool == "explain" else HARMLESS)
    assert not out.exists()
    assert not any("root:" in output for _, output in result)


@pytest.mark.parametrize(
    ("tool", "is_hostile"),
    [
        ("query", False),
        pytest.param("explain", False, marks=pytest.mark.slow),
        pytest.param("query", True, marks=pytest.mark.nightly),
    ],
)
def test_tools_write_nothing_on_duckdb(tmp_path: Path, tool: str, is_hostile: bool) -> None:
    """The file of hostile statements is nightly here: the executor's tests run it too."""
    duckdb = pytest.importorskip("duckdb")
    folder, out = tmp_path / "shop", tmp_path / "written"
    folder.mkdir()
    with duckdb.connect(str(folder / "shop.db")) as connection:
        connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT); CREATE SEQUENCE numbers")
        connection.execute("INSERT INTO item VALUES (1, 'a'), (2, 'b')")
    hostile = (HOSTILE / "hostile_duckdb.sql").read_text().splitlines()[1:]
    texts = [line.replace("\\n", "\n").replace("{out}", str(out)) for line in ON_DUCKDB.splitlines()]
    statements = hostile if is_hostile else texts
    before = state(folder)
    calls = ({"sql": text} for text in statements)
    result = talk(make_tool_calls(tool, *calls), f"duckdb:{folder / 'shop.db'}", "executor.engine_timeout_ms=1000")
    assert state(folder) == before
    ran = {text for text, (failed, _) in zip(statements, result, strict=True) if not failed}
    assert ran & {*texts} <= (READS if tool == "explain" else set())
    assert not out.exists()
    assert not any("root:" in output for _, output in result)


# Effects on the session only, which end with the statement, and a file that is NULL without the right to read it.
HARMLESS = {"SELECT GET_LOCK('x', 1)", "SELECT LOAD_FILE('/etc/passwd')"}

# Statements that have a plan; a plan calls no function and writes no file.
READS = HARMLESS | {
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT nextval('numbers')",
    "SELECT setval('numbers', 1)",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT query_to_xml('DELETE FROM item', true, true, '')",
    "SELECT pg_terminate_backend(pg_backend_pid())",
    "SELECT 'x' INTO DUMPFILE '{out}'",
    "SELECT name INTO @a FROM item LIMIT 1",
}


def test_cells_are_json_values() -> None:
    assert [json_cell(x) for x in (None, True, 3, 1.5, b"\x00\xff", "a\udcff")] == [None, True, 3, 1.5, "x'00ff'", "a?"]
    assert [json_cell(x) for x in (float("inf"), float("nan"))] == ["inf", "nan"]
    exact = 2**53 - 1
    assert [json_cell(x) for x in (exact, -exact, exact + 1, -(2**63))] == [
        exact,
        -exact,
        str(exact + 1),
        str(-(2**63)),
    ]
    assert len(json_cell("x" * 5000)) < 2100
    assert json_cell("x" * 5000).endswith("… (5000 characters)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--db", "none.sqlite"], "no such file"),
        (["--db", str(START / "config.json")], "--db: "),
        (["--db", "postgresql://me:x@127.0.0.1:1/x"], "--db: "),
        (["--db", str(START / "config.json"), "--endpoint", "http://127.0.0.1:1/v1"], "needs --model"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1
