"""The tools that agents get, over stdio and by the mcp package's own client; above all, that nothing can be written.

The texts below are of the kinds by which published servers' read-only modes were left: a second statement behind an
allowed one, a COMMIT that ends a read-only transaction, writes inside of WITH, EXPLAIN that runs, functions with side
effects, comments before or within the first word, PRAGMA, ATTACH, VACUUM INTO, COPY, SET ROLE.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import mcp
import pytest

from jaxrl_sql.mcp import cell, main
from sqlexec_rs.servers import Server

START = Path(__file__).parents[2] / "configs/quickstart_start"
HOSTILE = Path(__file__).parents[1] / "native/hostile_postgresql.sql"

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

Work = Callable[[mcp.Client], Awaitable[Any]]


def talk(work: Work, *arguments: str) -> Any:
    """Start the command, let a client do its work, and return what it found."""

    async def run() -> Any:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "jaxrl_sql.mcp", *arguments], env={**os.environ}
        )
        async with mcp.Client(server) as client:
            return await work(client)

    return anyio.run(run)


def called(name: str, *many: dict[str, Any]) -> Work:
    """Return the work that calls a tool again and again: (whether it failed, its text) of each call."""

    async def work(client: mcp.Client) -> list[tuple[bool, str]]:
        found = []
        for arguments in many:
            reply = await client.call_tool(name, arguments)
            found.append((bool(reply.is_error), "".join(getattr(part, "text", "") for part in reply.content)))
        return found

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
    """Return what lies in a folder, and the hash of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_tools_and_what_they_say(ships: Path) -> None:
    async def work(client: mcp.Client) -> Any:
        tools = (await client.list_tools()).tools
        schema = await client.call_tool("schema", {})
        part = await client.call_tool("schema", {"tables": ["SHIP"]})
        rows = await client.call_tool("query", {"sql": "SELECT id, name FROM ship ORDER BY id"})
        plan = await client.call_tool("explain", {"sql": "SELECT * FROM ship WHERE id = 3"})
        return tools, schema, part, rows, plan

    tools, schema, part, rows, plan = talk(work, "--db", str(ships), "--max-rows", "3")
    assert [tool.name for tool in tools] == ["schema", "query", "explain"]
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert "CREATE TABLE" in schema.content[0].text
    assert "port" in schema.content[0].text
    assert "port" not in part.content[0].text
    found = json.loads(rows.content[0].text)
    assert found == {"columns": ["id", "name"], "rows": [[i, f"ship {i}"] for i in (1, 2, 3)], "is_cut": True}
    assert "SEARCH ship" in plan.content[0].text


def test_what_fails_says_why(ships: Path) -> None:
    queries = [{"sql": "SELECT nam FROM ship"}, {"sql": ""}, {"sql": "SELEC 1"}]
    (failed, said), empty, wrong = talk(called("query", *queries), "--db", str(ships))
    assert failed
    assert "nam" in said
    assert "name" in said.replace("nam ", "")
    assert empty[0]
    assert wrong[0]
    ((failed, said),) = talk(called("schema", {"tables": ["ships"]}), "--db", str(ships))
    assert failed
    assert "port, ship" in said.replace("ship, port", "port, ship")


@pytest.mark.parametrize("tool", ["query", "explain"])
def test_nothing_is_written_on_sqlite(ships: Path, tool: str) -> None:
    out = ships.parent / "written"
    texts = [line.replace("\\n", "\n").replace("{out}", str(out)) for line in ON_SQLITE.splitlines()]
    before = state(ships.parent)
    found = talk(called(tool, *({"sql": text} for text in texts)), "--db", str(ships))
    ran = [text for text, (failed, _) in zip(texts, found, strict=True) if not failed]
    assert ran == (["SELECT * FROM pragma_journal_mode('WAL')"] if tool == "explain" else [])  # a plan calls nothing
    assert state(ships.parent) == before


def test_work_without_end_is_stopped_and_the_next_query_runs(ships: Path) -> None:
    endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT sum(x) FROM t"
    limits = ["executor.timeout_ms=1000", "executor.vm_steps=1000000"]
    stopped, next_ = talk(called("query", {"sql": endless}, {"sql": "SELECT 1"}), "--db", str(ships), *limits)
    assert stopped[0]
    assert not next_[0]


@pytest.fixture(scope="module")
def postgresql(start_server: Callable[[str, str], Server]) -> Server:
    script = (
        "CREATE TABLE item(id int, name text); INSERT INTO item VALUES (1, 'a'), (2, 'b'); CREATE SEQUENCE numbers;"
    )
    return start_server("postgresql", script)


@pytest.mark.parametrize("tool", ["query", "explain"])
def test_nothing_is_written_on_postgresql(postgresql: Server, tmp_path: Path, tool: str) -> None:
    out = tmp_path / "written"
    tmp_path.chmod(0o777)
    more = [line for line in HOSTILE.read_text().splitlines() if not line.startswith("--")] if tool == "query" else []
    texts = [line.replace("\\n", "\n").replace("{out}", str(out)) for line in ON_POSTGRESQL.splitlines()]
    look = {"sql": "SELECT count(*), min(id), max(name) FROM item"}
    calls = [look, *({"sql": text} for text in (*texts, *more)), look]
    before, *found, after = talk(called(tool, *calls), "--db", postgresql.reader, "executor.engine_timeout_ms=1000")
    assert not before[0], before[1]
    assert after == before
    ran = {text for text, (failed, _) in zip((*texts, *more), found, strict=True) if not failed}
    assert ran & {*texts} <= (READS if tool == "explain" else set())
    assert not out.exists()


# What has a plan on PostgreSQL; a plan calls no function.
READS = {
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT nextval('numbers')",
    "SELECT setval('numbers', 1)",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT query_to_xml('DELETE FROM item', true, true, '')",
    "SELECT pg_terminate_backend(pg_backend_pid())",
}


def test_a_question_is_answered_by_a_model(ships: Path) -> None:
    arguments = ["--db", str(ships), "--model", str(START), "data.prompt=compact", "evaluate.max_new_tokens=48"]
    ((failed, said), empty) = talk(
        called("ask", {"question": "How many ships are there?"}, {"question": " "}), *arguments
    )
    assert "SELECT" in said
    if not failed:
        assert set(json.loads(said)) == {"sql", "columns", "rows", "is_cut"}
    assert empty == (True, empty[1])
    assert "the question is empty" in empty[1]


def test_cells_are_what_json_has() -> None:
    assert [cell(x) for x in (None, True, 3, 1.5, b"\x00\xff", "a\udcff")] == [None, True, 3, 1.5, "x'00ff'", "a?"]
    assert cell(float("inf")) == "inf"
    assert len(cell("x" * 5000)) < 2100
    assert cell("x" * 5000).endswith("… (5000 characters)")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--db", "none.sqlite"], "no such file"),
        (["--db", str(START / "config.json")], "--db: "),
        (["--db", "postgresql://me:x@127.0.0.1:1/x"], "--db: "),
        (["--db", str(START / "config.json"), "--endpoint", "http://127.0.0.1:1/v1"], "needs --model"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
