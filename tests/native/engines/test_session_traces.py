"""No statement changes the verdict of a later one through its session, even inside a view or a function."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sqlexec_rs import Executor
from sqlexec_rs.servers import Server

OBJECTS = {
    "postgresql": """
        CREATE TABLE item(id integer, name text);
        INSERT INTO item VALUES (1, 'saw');
        CREATE VIEW zone AS SELECT set_config('TimeZone', 'Asia/Tokyo', false) AS z;
        CREATE VIEW digits AS SELECT set_config('extra_float_digits', '-15', false) AS z;
        CREATE VIEW "Dou""ble" AS SELECT set_config('search_path', 'other', false) AS z;
        CREATE VIEW locks AS SELECT pg_advisory_lock(7)::text AS z;
        CREATE VIEW seed AS SELECT setseed(0.5)::text AS z;
        CREATE FUNCTION round(text) RETURNS text AS $$
            SELECT set_config('TimeZone', 'Asia/Tokyo', false) $$ LANGUAGE sql;
        CREATE FUNCTION moved(item) RETURNS text AS $$
            SELECT set_config('TimeZone', 'Asia/Tokyo', false) $$ LANGUAGE sql;
        CREATE FUNCTION prepares() RETURNS integer AS $$ BEGIN EXECUTE 'PREPARE p AS SELECT 1'; RETURN 1; END $$
            LANGUAGE plpgsql;
        CREATE FUNCTION holds() RETURNS integer AS $$
            BEGIN EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1'; RETURN 1; END $$ LANGUAGE plpgsql;
        CREATE FUNCTION listens() RETURNS integer AS $$ BEGIN EXECUTE 'LISTEN c'; RETURN 1; END $$ LANGUAGE plpgsql;
        CREATE FUNCTION sets() RETURNS integer AS $$ BEGIN SET TimeZone = 'Asia/Tokyo'; RETURN 1; END $$
            LANGUAGE plpgsql;
        CREATE TABLE secured(id integer);
        INSERT INTO secured VALUES (1);
        CREATE FUNCTION allows() RETURNS boolean AS $$
            SELECT set_config('TimeZone', 'Asia/Tokyo', false) <> '' $$ LANGUAGE sql;
        ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
        CREATE POLICY moved ON secured USING (allows());
    """,
    "mariadb": """
        CREATE TABLE item(id integer, name text);
        INSERT INTO item VALUES (1, 'saw'), (2, 'nail');
        CREATE VIEW locks AS SELECT GET_LOCK('trace', 0) AS z;
        DELIMITER //
        CREATE FUNCTION moves() RETURNS integer BEGIN SET time_zone = '+09:00', @trace = 1; RETURN 1; END //
        DELIMITER ;
        CREATE VIEW zone AS SELECT moves() AS z;
        CREATE VIEW number AS SELECT LAST_INSERT_ID(7) AS z;
    """,
}

TRACES = {
    "postgresql": [
        "SELECT * FROM zone",
        'SELECT z FROM "zone"',
        "TABLE zone",
        "SELECT * FROM digits",
        'SELECT * FROM "Dou""ble"',
        'SELECT * FROM U&"zon\\0065"',
        "SELECT * FROM locks",
        "SELECT * FROM seed",
        "SELECT round('a'::text)",
        "SELECT item.moved FROM item",
        "SELECT (1::bigint).pg_advisory_lock",
        "SELECT (1::bigint) . pg_advisory_lock",
        "SELECT (ARRAY[1::bigint])[1].pg_advisory_lock",
        "SELECT set_config('TimeZone', 'Asia/Tokyo', false)",
        "SELECT pg_advisory_lock(7)",
        "SELECT setseed(0.5)",
        "SELECT prepares()",
        "SELECT holds()",
        "SELECT listens()",
        "SELECT sets()",
        "SELECT * FROM secured",
    ],
    "mariadb": [
        "SELECT * FROM locks",
        "SELECT * FROM `locks`",
        "SELECT * FROM zone",
        "SELECT * FROM number",
        "SELECT @trace := 1",
        "SELECT GET_LOCK('trace', 0)",
        "SELECT LAST_INSERT_ID(7)",
        "SELECT CAST('x' AS integer)",
        "SELECT SQL_CALC_FOUND_ROWS * FROM item LIMIT 1",
    ],
    "duckdb": [
        "SELECT setseed(0.5)",
        "SET VARIABLE trace = 1",
        "PRAGMA default_null_order = 'nulls_last'",
        "CREATE TEMP TABLE trace AS SELECT 1",
        "CREATE TEMP MACRO trace() AS 1",
        "ATTACH ':memory:' AS trace",
        "PREPARE trace AS SELECT 1",
        "PIVOT item ON name USING count(*)",
        "SELECT * FROM query('SELECT 1')",
    ],
    "sqlite": [
        "PRAGMA case_sensitive_like = 1",
        "PRAGMA reverse_unordered_selects = 1",
        "SELECT * FROM pragma_case_sensitive_like(1)",
        "ATTACH ':memory:' AS trace",
        "CREATE TEMP TABLE trace AS SELECT 1",
        "CREATE TEMP VIEW item AS SELECT 7 AS id",
        "SELECT last_insert_rowid(), changes(), total_changes()",
        "SELECT random(), randomblob(4)",
    ],
}

PROBES = {
    "postgresql": [
        "SELECT CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS text), CAST(0.1::float8 * 3 AS text)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        "SELECT count(*) FROM pg_prepared_statements",
        "SELECT count(*) FROM pg_cursors WHERE name <> 'sqlexec'",
        "SELECT count(*) FROM pg_listening_channels()",
        "SELECT random() IN (SELECT r FROM (VALUES (0.2499104187659246), (0.985085221913427)) t(r))",
        "SELECT current_setting('search_path')",
        "SELECT id FROM item",
    ],
    "mariadb": [
        "SELECT FROM_UNIXTIME(0)",
        "SELECT @trace",
        "SELECT IS_FREE_LOCK('trace')",
        "SELECT LAST_INSERT_ID()",
        "SELECT FOUND_ROWS()",
        "SELECT ROW_COUNT()",
        "SHOW WARNINGS",
        "SELECT @@warning_count, @@error_count, @@identity, @@sql_mode",
        "SELECT id FROM item",
    ],
    "duckdb": [
        "SELECT getvariable('trace')",
        "SELECT trace()",
        "SELECT * FROM trace",
        "SELECT * FROM (VALUES (1), (NULL)) t(a) ORDER BY a",
        "SELECT count(*) FROM duckdb_databases() WHERE NOT internal",
        "SELECT count(*) FROM duckdb_types() WHERE NOT internal",
        "SELECT random() = 0.8511931396926259",
    ],
    "sqlite": [
        "SELECT 'a' LIKE 'A'",
        "SELECT id FROM item",
        "SELECT name FROM pragma_database_list ORDER BY 1",
        "SELECT * FROM trace",
        "SELECT last_insert_rowid(), changes(), total_changes()",
    ],
}


@pytest.fixture(params=TRACES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(engine: str, server_database: Callable[[str, str], Server], tmp_path: Path) -> str:
    if engine in OBJECTS:
        script = OBJECTS[engine]
        return server_database(engine, script).reader
    file = tmp_path / "shop.db"
    if engine == "sqlite":
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript("CREATE TABLE item(id, name); INSERT INTO item VALUES (1, 'saw'), (2, 'nail')")
        return str(file)
    import duckdb

    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE item(id integer, name text); INSERT INTO item VALUES (1, 'saw'), (2, 'nail')")
    return f"duckdb:{file}"


def test_statements_do_not_change_later_outcomes(engine: str, url: str) -> None:
    def probe(executor: Executor) -> list[tuple[str, list[tuple[object, ...]]]]:
        outcomes = [executor.execute(url, sql) for sql in PROBES[engine]]
        return [(outcome.status, outcome.rows) for outcome in outcomes]

    with Executor(threads=1) as fresh:
        expected = probe(fresh)
    for trace in TRACES[engine]:
        with Executor(threads=1) as executor:
            for _ in range(2):
                executor.execute(url, "SELECT id FROM item")
                executor.execute(url, trace)
                for sql, outcome, usual in zip(PROBES[engine], probe(executor), expected, strict=True):
                    assert outcome == usual, f"{sql} after {trace}"


def test_a_view_created_during_a_session_leaves_no_session_state(server_database: Callable[[str, str], Server]) -> None:
    server = server_database("postgresql", "CREATE TABLE item(id integer);")
    with Executor(threads=1) as executor:
        assert executor.execute(server.reader, "SELECT * FROM item").status == "ok"
        server.run("CREATE VIEW zone AS SELECT set_config('TimeZone', 'Asia/Tokyo', false) AS z")
        assert executor.execute(server.reader, "SELECT * FROM zone").rows == [("Asia/Tokyo",)]
        sql = "SELECT CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS text)"
        assert executor.execute(server.reader, sql).rows == [("2020-01-01 00:00:00+00",)]
