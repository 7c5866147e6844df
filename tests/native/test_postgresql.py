"""The executor on a PostgreSQL server, which the tests start: statuses, values, limits, and what a role may do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from sqlexec_rs import Executor, Limits, cli
from sqlexec_rs.servers import Server, __main__

SCHEMA = """
CREATE TABLE item(id integer PRIMARY KEY, name text, price numeric(8, 2), is_new boolean, since date, weight float8);
INSERT INTO item SELECT i, 'item ' || i, i / 4.0, i % 2 = 0, date '2020-01-01' + i, i * 0.1
FROM generate_series(1, 500) i;
CREATE VIEW cheap AS SELECT * FROM item WHERE price < 10;
CREATE SEQUENCE numbers;
"""


@pytest.fixture(scope="session")
def server(start_server: Callable[[str, str], Server]) -> Server:
    return start_server("postgresql", SCHEMA)


@pytest.fixture(scope="session")
def db(server: Server) -> str:
    return server.reader


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """Return an executor in processes, which is the default: SQL of a server runs in the server all the same."""
    with Executor(threads=2) as executor:
        yield executor


SMALL = Limits(timeout_ms=20_000, max_rows=10_000, max_bytes=1 << 20)
STATUSES = [
    ("SELECT name FROM item WHERE id = 3", "ok"),
    ("SELECT 1;", "ok"),
    ("  (SELECT 1) UNION (SELECT 2) -- so", "ok"),
    ("WITH a AS (SELECT 1 AS x) SELECT x FROM a", "ok"),
    ("VALUES (1), (2)", "ok"),
    ("TABLE cheap", "ok"),
    ("SELECT '1; DROP TABLE item'", "ok"),
    ("SELECT $$;$$", "ok"),
    ("", "no_sql"),
    ("-- nothing\n /* at all */ ;", "no_sql"),
    ("SELEC 1", "syntax_error"),
    ("SELECT 1 FROM item WHERE", "syntax_error"),
    ("SELECT 'open", "syntax_error"),
    ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
    ("SELECT 1 \0", "syntax_error"),
    ("SELECT nmae FROM item", "schema_error"),
    ("SELECT 1 FROM itm", "schema_error"),
    ("SELECT frobnicate(1)", "schema_error"),
    ("SELECT name FROM item GROUP BY id % 2", "schema_error"),
    ("SELECT 1 / (id - id) FROM item", "runtime_error"),
    ("SELECT name::integer FROM item", "runtime_error"),
    ("SELECT pg_sleep(30)", "timeout"),
    ("SELECT * FROM generate_series(1, 20000)", "too_large"),
    ("SELECT repeat('x', 2000000)", "too_large"),
    ("SELECT 1; SELECT 2", "forbidden"),
    ("DELETE FROM item", "forbidden"),
    ("EXPLAIN ANALYZE DELETE FROM item", "forbidden"),
    ("WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone", "forbidden"),
    ("SELECT 1 AS x INTO made", "forbidden"),
    ("SELECT * FROM item FOR UPDATE", "forbidden"),
    ("SELECT pg_read_file('/etc/passwd')", "forbidden"),
]


@pytest.mark.parametrize(("sql", "status"), STATUSES)
def test_a_text_has_a_status(executor: Executor, db: str, sql: str, status: str) -> None:
    limits = SMALL.replace(timeout_ms=100) if status == "timeout" else SMALL
    outcome = executor.execute(db, sql, limits=limits)
    assert (outcome.status, outcome.error) == (status, None if status == "ok" else outcome.error)
    assert (outcome.error is None) == (status == "ok")


def test_an_error_says_where_and_what_was_meant(executor: Executor, db: str) -> None:
    outcome = executor.execute(db, "SELECT 'é', nmae FROM item")
    assert outcome.hint is not None
    assert "item.name" in outcome.hint
    assert "SELECT 'é', nmae".encode()[outcome.error_offset :] == b"nmae"


VALUES = """
SELECT NULL::text, true, false, 1::smallint, -5, 9223372036854775807, 0.5::real, 1e-7::float8, 'Infinity'::float8,
       1.50::numeric, 7.00::numeric, ''::text, 'é', '\\x00ff'::bytea, ''::bytea, 'a'::char(3), 3::oid
"""


def test_values_are_the_drivers(executor: Executor, db: str) -> None:
    with psycopg2.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute(VALUES)
        (theirs,) = cursor.fetchall()
    (ours,) = executor.execute(db, VALUES).rows
    assert list(ours) == [bytes(value) if isinstance(value, memoryview) else value for value in theirs]
    assert [type(value) for value in ours[:4]] == [type(None), int, int, int]


def test_what_has_no_type_here_is_the_servers_text(executor: Executor, db: str) -> None:
    sql = """SELECT date '2020-02-01', timestamp '2020-02-01 10:00', timestamptz '2020-02-01 10:00+02',
             interval '1 day 2 s',
             ARRAY[1, 2], '{"a":1}'::jsonb, 'b1f5a5f0-0000-4000-8000-000000000000'::uuid, 0.1::numeric, 1e19::numeric"""
    assert executor.execute(db, sql).rows == [
        ("2020-02-01", "2020-02-01 10:00:00", "2020-02-01 08:00:00+00", "1 day 00:00:02", "{1,2}", '{"a": 1}',
         "b1f5a5f0-0000-4000-8000-000000000000", 0.1, 1e19)
    ]  # fmt: skip


def test_parameters_are_bound_by_position(executor: Executor, db: str) -> None:
    values: list[Any] = [7, "é", 0.25, b"\x00\xff", None]
    sql = "SELECT $1 + 1, $2::text, $3 * 2, $4, $5::text"
    assert executor.execute(db, sql, parameters=values).rows == [(8, "é", 0.5, b"\x00\xff", None)]
    assert executor.execute(db, "SELECT $1::int", parameters={"a": 1}).status == "runtime_error"
    assert executor.execute(db, "SELECT $1::int").status == "runtime_error"


def test_nothing_is_left_of_a_run(executor: Executor, db: str) -> None:
    with Executor(threads=1) as one:
        before = one.execute(db, "SHOW search_path; SELECT 1").status, one.execute(db, "SELECT setseed(0.5)").status
        assert before == ("forbidden", "ok")
        for sql in [
            "SELECT set_config('search_path', 'pg_catalog', false)",
            "SELECT set_config('TimeZone', 'Asia/Tokyo', false)",
            "SELECT set_config('default_transaction_read_only', 'off', false)",
            "SELECT pg_advisory_lock(42)",
        ]:
            assert one.execute(db, sql).status == "ok"
        settings = "SELECT current_setting('TimeZone'), current_setting('transaction_read_only')"
        assert one.execute(db, settings).rows == [("UTC", "on")]
        assert one.execute(db, "SELECT count(*) FROM item").rows == [(500,)]
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert executor.execute(db, held).rows == [(0,)]


# What people who mean harm ask of a server, and texts that are too long for a line.
HOSTILE = [
    *Path(__file__).with_name("hostile_postgresql.sql").read_text(encoding="utf-8").splitlines()[1:],
    "SELECT 1 WHERE " + "(" * 20_000 + "true" + ")" * 20_000,
    "SELECT -" + "(" * 5_000 + "1" + ")" * 5_000,
    "SELECT " + " + ".join(["1"] * 50_000),
    "SELECT 1 " + "UNION SELECT 1 " * 5_000,
    f"SELECT '{'x' * 900_000}'",
    "SELECT 1 IN (" + ",".join(map(str, range(100_000))) + ")",
    "SELECT " + ", ".join(["1"] * 2_000),
    "-- \n; DELETE FROM item",
    "SELECT 1\N{LINE SEPARATOR}; DELETE FROM item",
]


def read_state(server: Server) -> str:
    """Return what the server holds and does, as the owner sees it."""
    query = """
        SELECT (SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM item t), (SELECT last_value FROM numbers),
               (SELECT md5(string_agg(c.oid || relname || relacl::text, ',' ORDER BY c.oid)) FROM pg_class c
                WHERE relnamespace = 'public'::regnamespace),
               (SELECT count(*) FROM pg_largeobject_metadata),
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
               (SELECT md5(string_agg(rolname || rolsuper, ',' ORDER BY rolname)) FROM pg_roles),
               (SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND state <> 'idle')
    """
    with psycopg2.connect(server.owner) as connection, connection.cursor() as cursor:
        end = time.monotonic() + 30
        while True:  # a session that was closed in the middle of a run may need a moment to notice
            cursor.execute(query)
            (state,) = cursor.fetchall()
            if state[-1] == 0 or time.monotonic() > end:
                return repr(state)
            connection.rollback()
            time.sleep(0.05)


# What behind EXPLAIN would run something, or tell of another's; none of it is a query.
SMUGGLED = [
    "ANALYZE SELECT pg_sleep(30)",
    "ANALYZE VERBOSE SELECT pg_sleep(30)",
    "(ANALYZE) SELECT pg_sleep(30)",
    "(ANALYZE, BUFFERS) DELETE FROM item",
    "(ANALYZE TRUE) SELECT pg_sleep(30)",
    "(ANALYZE FALSE) SELECT 1",
    "(VALUES) SELECT pg_sleep(30)",
    "VERBOSE SELECT 1",
    "/* */ (/* */ ANALYZE /* */) SELECT pg_sleep(30)",
    "-- \n ANALYZE SELECT pg_sleep(30)",
    "EXPLAIN ANALYZE SELECT pg_sleep(30)",
    "DELETE FROM item",
    "INSERT INTO item(id) VALUES (0) RETURNING id",
    "WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone",
    "CREATE TABLE made AS SELECT 1",
    "SELECT 1 AS x INTO made",
    "REFRESH MATERIALIZED VIEW cheap",
    "EXECUTE p",
    "DECLARE c CURSOR FOR SELECT 1",
    "SELECT 1; DELETE FROM item",
    "SELECT * FROM item FOR UPDATE",
    "SET statement_timeout = 0",
]


def test_a_plan_is_made_and_nothing_of_it_is_run(executor: Executor, server: Server, db: str) -> None:
    before = read_state(server)
    limits = SMALL.replace(timeout_ms=2_000)
    for sql in ("SELECT name, pg_sleep(30) FROM item WHERE id = 3", "(VALUES (1), (2))", "TABLE cheap;", "SELECT 1"):
        plan = executor.explain(db, sql, limits=limits)
        assert (plan.status, plan.columns) == ("ok", ["QUERY PLAN"]), plan.error
        assert not any("actual" in line for (line,) in plan.rows), "nothing was measured"
    plan = executor.explain(db, "SELECT * FROM item WHERE id = $1", [3])
    assert "Index Scan using item_pkey on item" in plan.rows[0][0]
    for sql in SMUGGLED:
        refused = executor.explain(db, sql, limits=limits)
        assert refused.status in {"forbidden", "syntax_error"}, (sql, refused)
        assert refused.stopped_by is None, sql
        assert executor.execute(db, sql, limits=limits).status == refused.status, sql
    assert read_state(server) == before


@pytest.mark.parametrize(
    ("sql", "status"),
    [
        ("", "no_sql"),
        ("SELEC 1", "syntax_error"),
        ("SELECT nmae FROM item", "schema_error"),
        ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
        ("SELECT $1::int", "runtime_error"),
        ("EXPLAIN SELECT 1", "forbidden"),
        ("SHOW work_mem", "forbidden"),
        ("SELECT" + " id," * 400 + " id FROM item ORDER BY " + ",".join(["id + 1"] * 400), "too_large"),
    ],
)
def test_what_has_no_plan_has_the_status_of_a_run(executor: Executor, db: str, sql: str, status: str) -> None:
    outcome = executor.explain(db, sql, limits=SMALL.replace(max_rows=1))
    assert outcome.status == status, outcome
    if sql.startswith("SELECT nmae"):
        assert sql[outcome.error_offset :] == "nmae FROM item"


def test_a_setting_is_shown_as_a_run_sees_it(executor: Executor, db: str) -> None:
    shown = executor.show(db, "TimeZone")
    assert (shown.columns, shown.rows) == (["TimeZone"], [("UTC",)])
    assert executor.show(db, "transaction_read_only").rows == [("on",)]
    with psycopg2.connect(db) as connection:
        assert executor.show(db, "server_version").rows == [(connection.get_parameter_status("server_version"),)]
    assert executor.show(db, "nosuch").status == "schema_error"
    assert executor.show(db, "data_directory").status == "forbidden"
    with pytest.raises(ValueError, match="plain name"):
        executor.show(db, "a; DROP TABLE item")


def test_harm_is_not_done(ask_for_harm: Callable[[str, list[str]], None], server: Server, db: str) -> None:
    before = read_state(server)
    ask_for_harm(db, HOSTILE)
    assert read_state(server) == before
    assert not (Path("/") / "tmp" / "sqlexec-hostile").exists()


def test_sessions_of_one_role_can_end_each_other(server: Server, db: str) -> None:
    attack = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader' AND pid <> pg_backend_pid()"
    )
    with Executor(threads=1) as executor, Executor(threads=1) as other:
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        assert other.execute(db, attack).status == "ok"
        assert executor.execute(db, "SELECT 1").rows == [(1,)], "once more in silence"
        assert executor.stats()["connections_lost"] == 1


def test_a_role_that_can_write_is_refused(executor: Executor, server: Server) -> None:
    outcome = executor.execute(server.owner, "SELECT 1")
    assert outcome.status == "db_error"
    assert outcome.error is not None
    assert "superuser" in outcome.error
    assert "GRANT SELECT ON ALL TABLES" in outcome.error
    server.run("CREATE ROLE writer LOGIN PASSWORD 'w'; CREATE TABLE open(n integer); GRANT INSERT ON open TO writer")
    error = executor.execute(
        server.reader.partition("//")[0] + f"//writer:w@127.0.0.1:{server.port}/postgres", "SELECT 1"
    ).error
    assert error is not None
    assert "it can write to public.open" in error


def test_a_url_that_leads_nowhere_is_one_line_without_its_password(executor: Executor, server: Server) -> None:
    place = f"127.0.0.1:{server.port}/postgres"
    cases = {
        f"postgresql://reader:secret@{place}": "password authentication failed",
        f"postgresql://reader@{place}": "asks for a password",
        f"postgresql://nobody:secret@{place}": "password authentication failed",
        "postgresql://reader:secret@127.0.0.1:1/postgres": "refused",
        "postgresql://reader:secret@127.0.0.1:port/postgres": "port",
        "postgresql://reader:secret@127.0.0.1": "a database",
        "oracle://reader:secret@h/d": "oracle:// is no scheme",
        server.reader[: server.reader.rindex("/")] + "/nosuch": "does not exist",
    }
    for url, why in cases.items():
        outcome = executor.execute(url, "SELECT 1")
        assert outcome.status == "db_error"
        assert outcome.error is not None
        assert why in outcome.error
        assert "\n" not in outcome.error
        assert "secret" not in outcome.error


def test_the_command_line_takes_a_url(
    server: Server, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golds, made = tmp_path / "gold.json", tmp_path / "made.jsonl"
    golds.write_text('[{"id": 0, "db_id": "postgres", "sql": "SELECT name FROM item WHERE name ILIKE \'ITEM 7\'"}]')
    made.write_text('{"id": 0, "pred_sql": "SELECT name FROM item WHERE id = 7"}\n')
    for root in (db, db.rpartition("/")[0], f"{db.rpartition('/')[0]}?roles=16"):
        code = cli.main(["score", "--pred", str(made), "--gold", str(golds), "--db-root", root])
        assert (code, "predictions: ok 1" in (told := capsys.readouterr().out)) == (0, True), told
        assert "postgres  1  100.0" in told
    assert cli.main(["run", db, "SELECT id, name FROM item WHERE id = 2", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["id,name", "2,item 2"]
    assert cli.main(["run", db, "SELECT 1", "--explain"]) == 0
    assert "Result" in capsys.readouterr().out
    assert cli.main(["run", f"postgresql://reader:secret@127.0.0.1:{server.port}/postgres", "SELECT 1"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("db_error: ")
    assert len(told.splitlines()) == 1
    assert "secret" not in told


def test_a_server_without_room_is_a_db_error(server: Server, db: str) -> None:
    with Executor(threads=2) as executor:
        server.run("ALTER ROLE reader CONNECTION LIMIT 0")
        try:
            outcome = executor.execute(db, "SELECT 1")
            assert outcome.status == "db_error"
            assert "too many connections" in (outcome.error or "")
        finally:
            server.run("ALTER ROLE reader CONNECTION LIMIT -1")
        assert executor.execute(db, "SELECT 1").status == "ok"


def test_what_a_server_cannot_be_held_to_is_said(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["check", server.reader]) == 0
    told = capsys.readouterr().out
    assert "the role reader can read, and do nothing else" in told
    assert "temporary files: not bounded" in told
    server.run("ALTER ROLE reader SET temp_file_limit = '1GB'")
    try:
        assert __main__.main(["check", server.reader]) == 0
        assert "temporary files: bounded by temp_file_limit, 1GB" in capsys.readouterr().out
    finally:
        server.run("ALTER ROLE reader RESET temp_file_limit")
    assert __main__.main(["check", server.owner]) == 2
    assert "superuser" in capsys.readouterr().err


def test_a_server_is_started_and_stopped_by_commands(
    servers_folder: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(servers_folder / "another")
    assert __main__.main(["start", "postgresql", "--dir", place]) == 0
    urls = dict(line.split() for line in capsys.readouterr().out.splitlines())
    with Executor(threads=1) as executor:
        assert executor.execute(urls["reader"], "SELECT 1").rows == [(1,)]
    assert __main__.main(["start", "postgresql", "--dir", place]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert __main__.main(["stop", "--dir", place]) == 0
    assert __main__.main(["stop", "--dir", place]) == 2
    assert "no server was started" in capsys.readouterr().err
    with Executor(threads=1) as executor:
        assert executor.execute(urls["reader"], "SELECT 1").status == "db_error"
        assert executor.execute(server.reader, "SELECT 1").status == "ok"
