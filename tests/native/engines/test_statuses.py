"""Statuses of queries on each engine, error offsets, and session settings."""

from __future__ import annotations

from typing import Any

import pytest

from sqlexec_rs import Executor, Limits

# Queries with the same status on all engines, and those of one engine.
COMMON = [
    ("SELECT name FROM item WHERE id = 3", "ok"),
    ("SELECT 1;", "ok"),
    ("  (SELECT 1) UNION (SELECT 2) -- so", "ok"),
    ("WITH a AS (SELECT 1 AS x) SELECT x FROM a", "ok"),
    ("VALUES (1), (2)", "ok"),
    ("SELECT '1; DROP TABLE item'", "ok"),
    ("", "no_sql"),
    ("-- nothing\n /* at all */ ;", "no_sql"),
    ("SELEC 1", "syntax_error"),
    ("SELECT 'open", "syntax_error"),
    ("SELECT 1 \0", "syntax_error"),
    ("SELECT nmae FROM item", "schema_error"),
    ("SELECT 1 FROM itm", "schema_error"),
    ("SELECT frobnicate(1)", "schema_error"),
    ("SELECT repeat('x', 2000000)", "too_large"),
    ("SELECT 1; SELECT 2", "forbidden"),
    ("DELETE FROM item", "forbidden"),
]
STATUSES = {
    "duckdb": [
        ("SELECT 1;;", "ok"),
        ("FROM cheap", "ok"),
        ("TABLE cheap", "ok"),
        ("DESCRIBE item", "ok"),
        ("SUMMARIZE item", "ok"),
        ("PIVOT item ON id IN (1, 2) USING sum(price)", "ok"),
        ("SELECT $$;$$", "ok"),
        ("SELECT name FROM item GROUP BY id % 2", "schema_error"),
        ("SELECT name::INTEGER FROM item", "runtime_error"),
        ("SELECT error('so')", "runtime_error"),
        ("SELECT sum(range) FROM range(1000000000000)", "timeout"),
        ("SELECT * FROM range(20000)", "too_large"),
        ("SELECT list(range) FROM range(1000000000)", "too_large"),
        ("EXPLAIN SELECT 1", "forbidden"),
        ("WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone", "forbidden"),
        ("SELECT * FROM read_text('/etc/passwd')", "forbidden"),
        ("SET threads = 2", "forbidden"),
        ("PRAGMA version", "forbidden"),
        ("SELECT nextval('numbers')", "forbidden"),
    ],
    "postgresql": [
        ("TABLE cheap", "ok"),
        ("SELECT $$;$$", "ok"),
        ("SELECT 1 FROM item WHERE", "syntax_error"),
        ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
        ("SELECT name FROM item GROUP BY id % 2", "schema_error"),
        ("SELECT 1 / (id - id) FROM item", "runtime_error"),
        ("SELECT name::integer FROM item", "runtime_error"),
        ("SELECT pg_sleep(30)", "timeout"),
        ("SELECT * FROM generate_series(1, 20000)", "too_large"),
        ("EXPLAIN ANALYZE DELETE FROM item", "forbidden"),
        ("WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone", "forbidden"),
        ("SELECT 1 AS x INTO copied", "forbidden"),
        ("SELECT * FROM item FOR UPDATE", "forbidden"),
        ("SELECT count(DISTINCT id) OVER () FROM item", "forbidden"),
        ("SELECT * FROM elsewhere.public.item", "forbidden"),
        ("SELECT set_config('port', '1', true)", "forbidden"),
        ("SELECT repeat('a', 600000000) || repeat('b', 600000000)", "too_large"),
        ("SELECT * FROM XMLTABLE('//a' PASSING '<a/>' COLUMNS b text PATH '.')", "forbidden"),
        ("SELECT to_date(name, name) FROM item", "forbidden"),
        ("SELECT to_date('2020-02-01', 'YYYY-MM-DD') FROM item WHERE id = 1", "ok"),
        ("SELECT pg_read_file('/etc/passwd')", "forbidden"),
    ],
    "mariadb": [
        ("  (SELECT 1) UNION (SELECT 2); -- so", "ok"),
        ("# a comment\nSELECT 'it\\'s; so'", "ok"),
        ("SHOW TABLES", "ok"),
        ("EXPLAIN SELECT * FROM item", "ok"),
        ("SELECT 1 FROM item WHERE", "syntax_error"),
        ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
        ("SELECT id FROM item a, item b", "schema_error"),
        ("SELECT *", "syntax_error"),
        ("SELECT id FROM item WHERE id = (SELECT SUM(SUM(id)) FROM item)", "schema_error"),
        ("WITH a AS (SELECT 1), a AS (SELECT 2) SELECT * FROM a", "schema_error"),
        ("WITH RECURSIVE a AS (SELECT * FROM a) SELECT * FROM a", "schema_error"),
        ("SELECT 'a' COLLATE utf8mb4_bin = 'b' COLLATE utf8mb4_general_ci", "schema_error"),
        ("SELECT 1 FROM item WHERE id IN (SELECT id FROM item LIMIT 1)", "forbidden"),
        ("SELECT '/*!', \"/*M!\" AS `/*!`", "ok"),
        ("SELECT 'a' /* b /*! c */", "ok"),
        ("SELECT 'it\\'s', 1 /*! , 2 */", "forbidden"),
        ("SELECT ENCRYPT('x', '$6$rounds=999999999$abc')", "forbidden"),
        ("SELECT JSON_OVERLAPS('[1]', '[1]')", "forbidden"),
        ("SELECT SFORMAT('{:>2000000000}', 'x')", "forbidden"),
        ("SELECT 9223372036854775807 + 1", "runtime_error"),
        ("SELECT (SELECT id FROM item)", "runtime_error"),
        ("SELECT SLEEP(30)", "timeout"),
        ("SELECT BENCHMARK(1000000000, MD5('x'))", "timeout"),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t", "timeout"),
        ("SELECT * FROM seq_1_to_20000", "too_large"),
        ("SELECT * FROM seq_1_to_20000 LIMIT 20000", "too_large"),
        ("SELECT repeat('x', 2000000000)", "too_large"),
        ("SELECT 1 INTO @a", "forbidden"),
        ("SELECT 1 INTO OUTFILE '/tmp/sqlexec-hostile'", "forbidden"),
        ("SET STATEMENT max_statement_time=0 FOR SELECT 1", "forbidden"),
        ("SELECT /*! 1 */", "forbidden"),
        ("SELECT * FROM mysql.global_priv", "forbidden"),
    ],
}
CASES = [(engine, sql, status) for engine in STATUSES for sql, status in COMMON + STATUSES[engine]]


@pytest.mark.parametrize(("engine", "sql", "status"), CASES, indirect=["engine"])
def test_each_query_has_its_status(
    executor: Executor, db: str, small: Limits, engine: str, sql: str, status: str
) -> None:
    limits = small.replace(timeout_ms=100) if status == "timeout" else small
    outcome = executor.execute(db, sql, limits=limits)
    assert (outcome.status, outcome.error) == (status, None if status == "ok" else outcome.error)
    assert (outcome.error is None) == (status == "ok")
    if engine == "duckdb":
        assert outcome.stopped_by == ("wall" if status == "timeout" else None)


# A query with an error, its possible offsets, and a name in the hint.
ERRORS = {
    "duckdb": ("SELECT 'é', nmae FROM item", {"nmae FROM item"}, "name"),
    "postgresql": ("SELECT 'é', nmae FROM item", {"nmae FROM item"}, "item.name"),
    "mariadb": ("SELECT 'é' FRM item WHERE x y", {"item WHERE x y", "y"}, ""),
}


def test_an_error_has_its_offset_in_bytes_and_a_hint(executor: Executor, db: str, engine: str) -> None:
    sql, rests, name = ERRORS[engine]
    outcome = executor.execute(db, sql)
    assert sql.encode()[outcome.error_offset :].decode() in rests
    assert name in (outcome.hint or "")
    assert "\n" not in (outcome.error or "")


# Statements that cannot be planned, where at most one row is allowed.
UNPLANNED = {
    "duckdb": [
        ("SELECT ?", "runtime_error"),
        ("EXPLAIN SELECT 1", "forbidden"),
        ("SELECT * FROM read_text('/etc/passwd')", "forbidden"),
    ],
    "postgresql": [
        ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
        ("SELECT $1::int", "runtime_error"),
        ("EXPLAIN SELECT 1", "forbidden"),
        ("SHOW work_mem", "forbidden"),
        ("SELECT" + " id," * 400 + " id FROM item ORDER BY " + ",".join(["id + 1"] * 400), "too_large"),
    ],
    "mariadb": [
        ("SELECT 1 FROM item WHERE", "syntax_error"),
        ("SELECT 1 UNION SELECT 2", "too_large"),
        ("SHOW TABLES", "forbidden"),
    ],
}
NEVER_PLANNED = [("", "no_sql"), ("SELEC 1", "syntax_error"), ("SELECT nmae FROM item", "schema_error")]


def test_queries_without_a_plan_have_a_status(executor: Executor, db: str, small: Limits, engine: str) -> None:
    limits = small.replace(max_rows=1)
    for sql, status in NEVER_PLANNED + UNPLANNED[engine]:
        outcome = executor.explain(db, sql, limits=limits)
        assert outcome.status == status, outcome
        if engine != "mariadb" and "nmae" in sql:
            assert sql[outcome.error_offset :] == "nmae FROM item"
        if engine == "duckdb":
            assert outcome.error_offset == executor.execute(db, sql, limits=limits).error_offset
            assert (outcome.error_offset == len("SELECT ")) == ("nmae" in sql)


SETTINGS: dict[str, list[tuple[str, Any]]] = {
    "duckdb": [("threads", 1), ("enable_external_access", 0)],
    "postgresql": [("TimeZone", "UTC"), ("transaction_read_only", "on")],
    "mariadb": [("time_zone", "+00:00"), ("global.tx_read_only", 0)],
}


def test_show_returns_the_setting_of_a_run(executor: Executor, database: Any, db: str, engine: str) -> None:
    for setting, value in SETTINGS[engine]:
        shown = executor.show(db, setting)
        assert (shown.status, shown.rows) == ("ok", [(value,)])
    assert executor.show(db, SETTINGS[engine][0][0]).columns == [SETTINGS[engine][0][0]]
    unknown = executor.show(db, "nosuch")
    assert unknown.status == "schema_error"
    assert engine != "duckdb" or unknown.error_offset is None
    for name in ("a; DROP TABLE item", "a'); DELETE FROM item"):
        with pytest.raises(ValueError, match="plain name"):
            executor.show(db, name)
    if engine == "postgresql":
        assert executor.show(db, "server_version").rows == database.fetch("SHOW server_version")
        assert executor.show(db, "data_directory").status == "forbidden"
    if engine == "mariadb":
        assert executor.show(db, "max_statement_time", limits=Limits(timeout_ms=7_000)).rows == [(7,)]
