"""Hostile queries: no engine runs, measures or changes anything for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sqlexec_rs import Executor, Limits, Outcome

HIDDEN = "no text may show this"


class Plans(NamedTuple):
    """Texts after EXPLAIN, on one engine."""

    planned: tuple[str, ...]
    """Texts with a plan, which would take long or wait."""
    is_unmeasured: Callable[[Outcome], bool]
    """Whether an outcome is a plan without measurements."""
    bound: tuple[str, Any]
    """A query with a parameter, and its value."""
    is_bound: Callable[[Outcome], bool]
    """Whether the plan of that query depends on the value."""
    smuggled: tuple[str, ...]
    """Texts that would run, measure or change something behind EXPLAIN."""


DUCKDB = Plans(
    planned=("SELECT sum(range) FROM range(1000000000000)", "(VALUES (1))", "FROM item", "-- so\nTABLE cheap;"),
    is_unmeasured=lambda plan: plan.columns == ["explain_key", "explain_value"] and plan.rows[0][0] == "physical_plan",
    bound=("SELECT * FROM item WHERE id = $a", {"a": 3}),
    is_bound=lambda plan: "id = 3" in plan.rows[0][1],
    smuggled=(
        "ANALYZE SELECT sum(range) FROM range(1000000000000)",
        "(ANALYZE) SELECT sum(range) FROM range(1000000000000)",
        "(ANALYZE, FORMAT json) FROM item",
        "(FORMAT json) SELECT 1",
        "(FORMAT text) ANALYZE",
        "(VALUES) ANALYZE SELECT 1",
        "-- \n ANALYZE FROM item",
        "ANALYZE item",
        "EXPLAIN ANALYZE SELECT 1",
        "DELETE FROM item",
        "CREATE TEMP TABLE copied AS SELECT 1",
        "COPY item TO '/tmp/sqlexec-hostile'",
        "EXPORT DATABASE '/tmp/sqlexec-hostile'",
        "ATTACH '/tmp/sqlexec-hostile' AS a",
        "SET threads = 2",
        "PRAGMA enable_profiling",
        "SELECT 1; DELETE FROM item",
        "WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone",
        "EXECUTE p",
        "PIVOT item ON id USING sum(price)",
    ),
)
POSTGRESQL = Plans(
    planned=("SELECT name, pg_sleep(30) FROM item WHERE id = 3", "(VALUES (1), (2))", "TABLE cheap;", "SELECT 1"),
    is_unmeasured=lambda plan: plan.columns == ["QUERY PLAN"] and not any("actual" in line for (line,) in plan.rows),
    bound=("SELECT * FROM item WHERE id = $1", [3]),
    is_bound=lambda plan: "Index Scan using item_pkey on item" in plan.rows[0][0],
    smuggled=(
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
        "CREATE TABLE copied AS SELECT 1",
        "SELECT 1 AS x INTO copied",
        "REFRESH MATERIALIZED VIEW cheap",
        "EXECUTE p",
        "DECLARE c CURSOR FOR SELECT 1",
        "SELECT 1; DELETE FROM item",
        "SELECT * FROM item FOR UPDATE",
        "SET statement_timeout = 0",
    ),
)
MARIADB = Plans(
    planned=(
        "SELECT name, SLEEP(30) FROM item WHERE id = 3",
        "(SELECT 1)",
        "WITH a AS (SELECT 1) SELECT * FROM a;",
    ),
    is_unmeasured=lambda plan: (
        "possible_keys" in plan.columns and not any(column.startswith("r_") for column in plan.columns)
    ),
    bound=("SELECT * FROM item WHERE id = ?", [3]),
    is_bound=lambda plan: plan.rows[0][plan.columns.index("key")] == "PRIMARY",
    smuggled=(
        "ANALYZE SELECT SLEEP(30)",
        "ANALYZE FORMAT=JSON SELECT SLEEP(30)",
        "FORMAT=JSON SELECT SLEEP(30)",
        "EXTENDED SELECT 1",
        "PARTITIONS SELECT 1",
        "FOR CONNECTION 1",
        "item",
        "item id",
        "mysql.user",
        "(ANALYZE SELECT SLEEP(30))",
        "/*! ANALYZE */ SELECT SLEEP(30)",
        "/*M! ANALYZE */ SELECT SLEEP(30)",
        "# \n ANALYZE SELECT SLEEP(30)",
        "EXPLAIN SELECT 1",
        "SHOW PROCESSLIST",
        "DESCRIBE item",
        "DELETE FROM item",
        "UPDATE item SET id = 0",
        "INSERT INTO item(id) VALUES (0)",
        "REPLACE INTO item(id) VALUES (0)",
        "SELECT 1; DELETE FROM item",
        "SET STATEMENT max_statement_time=0 FOR SELECT SLEEP(30)",
    ),
)
PLANS = {"duckdb": DUCKDB, "postgresql": POSTGRESQL, "mariadb": MARIADB}


def test_explain_plans_and_runs_nothing(executor: Executor, database: Any, small: Limits, engine: str) -> None:
    plans, before = PLANS[engine], database.read_state()
    for sql in plans.planned:
        plan = executor.explain(database.url, sql, limits=small)
        assert plan.status == "ok", plan.error
        assert plans.is_unmeasured(plan), plan.rows
    sql, values = plans.bound
    assert plans.is_bound(executor.explain(database.url, sql, values))
    for sql in plans.smuggled:
        refused = executor.explain(database.url, sql, limits=small)
        assert refused.status in {"forbidden", "syntax_error"}, (sql, refused)
        assert refused.stopped_by is None, sql
        if engine != "mariadb":  # it runs EXPLAIN, SHOW and DESCRIBE as queries
            assert executor.execute(database.url, sql, limits=small).status == refused.status, sql
    if engine == "mariadb":
        text = "SELECT 1 FROM item INTO OUTFILE '/tmp/sqlexec-hostile'"
        assert executor.explain(database.url, text).status == "forbidden"
    assert database.read_state() == before
    assert not list(Path("/tmp").glob("sqlexec-hostile*"))  # noqa: S108


def hostile_texts(engine: str) -> list[str]:
    """Return the queries of an engine's file, and queries that are too long for a line."""
    lines = Path(__file__).parents[1].joinpath(f"hostile_{engine}.sql").read_text(encoding="utf-8").splitlines()[1:]
    in_process = engine == "duckdb"
    texts = [
        *lines,
        "SELECT 1 WHERE " + "(" * 20_000 + "true" + ")" * 20_000,
        "SELECT -" + "(" * 5_000 + "1" + ")" * 5_000,
        "SELECT " + " + ".join(["1"] * 50_000),
        "SELECT 1 " + "UNION SELECT 1 " * (2_000 if in_process else 5_000),
        f"SELECT '{'x' * 900_000}'",
        "SELECT 1 IN (" + ",".join(map(str, range(50_000 if in_process else 100_000))) + ")",
        "SELECT " + ", ".join(["1"] * (2_000 if engine == "postgresql" else 5_000)),
        "-- \n; DELETE FROM item",
        "SELECT 1\N{LINE SEPARATOR}; DELETE FROM item",
    ]
    if in_process:
        texts += [
            "SELECT " + "[" * 3_000 + "]" * 3_000,
            "SELECT " + "(SELECT " * 2_000 + "1" + ")" * 2_000,
            "SELECT " + "CASE WHEN true THEN " * 2_000 + "1" + " END" * 2_000,
            "SELECT " + "NOT " * 50_000 + "true",
            "FROM item" + ", item" * 200,
            "WITH a0 AS (SELECT 1 AS x), "
            + ", ".join(f"a{i} AS (SELECT l.x FROM a{i - 1} l, a{i - 1} r)" for i in range(1, 40))
            + " SELECT count(*) FROM a39",
            "SELECT '\x01\x02\x7f' AS \"\x03\"",
        ]
    return texts


@pytest.mark.parametrize(
    "engine", [pytest.param("duckdb", marks=pytest.mark.slow), "postgresql", "mariadb"], indirect=True
)
def test_hostile_queries_end_and_change_nothing(database: Any, engine: str) -> None:
    texts = hostile_texts(engine)
    if database.file is not None:
        secret = database.file.with_name("secret.txt")
        secret.write_text(HIDDEN, encoding="utf-8")
        texts += [f"FROM {function}('{secret}')" for function in ("read_text", "read_csv")]
    assert len(texts) >= 60
    before = database.read_state()
    limits = Limits(timeout_ms=150, max_rows=10_000, max_bytes=1 << 20)
    late = {}
    with Executor(threads=1, worker_memory_bytes=1 << 30) as executor:
        executor.execute(database.url, "SELECT 1")
        for sql in texts:
            for call in (executor.execute, executor.explain):
                begun = time.perf_counter()
                outcome = call(database.url, sql, limits=limits)
                late[sql[:60]] = time.perf_counter() - begun
                assert late[sql[:60]] < 30, sql[:60]
                assert outcome.status != "ok" or outcome.row_count <= 10_000, sql[:60]
                assert HIDDEN not in repr(outcome.rows), sql[:60]
                assert "root:" not in repr(outcome.rows), sql[:60]
        assert executor.execute(database.url, "SELECT count(*) FROM item").rows == [(500,)]
    latest = max(late, key=lambda sql: late[sql])
    print(f"{len(texts)} texts, the latest took {late[latest]:.2f} s ({latest})")
    assert database.read_state() == before
    assert not list(Path("/tmp").glob("sqlexec-hostile*"))  # noqa: S108
