"""Limits, cancellation, scores and cleanup after a run on each engine."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor, Limits

NUMBERS = {"duckdb": "SELECT range + 1 FROM range(1000000000)"}


def test_a_result_is_truncated_on_request(executor: Executor, db: str, engine: str) -> None:
    for limits in (Limits(max_rows=7, on_excess="cut"), Limits(max_bytes=500, on_excess="cut")):
        outcome = executor.execute(db, NUMBERS.get(engine, "SELECT id FROM item ORDER BY id"), limits=limits)
        assert outcome.is_cut
        assert outcome.rows == [(i + 1,) for i in range(outcome.row_count)]
        assert 5 < outcome.row_count < 40
    unbounded = Limits(max_rows=2**40, max_bytes=2**40)
    assert executor.execute(db, "SELECT id FROM item", limits=unbounded).row_count == 500
    assert executor.execute(db, "SELECT 1").rows == [(1,)]
    exact, numbers = Limits(max_rows=499), "SELECT id FROM item WHERE id <= {}"
    counts, sizes = (499, 500), {"duckdb": (2048, 2049)}.get(engine, ())
    assert [executor.execute(db, numbers.format(n), limits=exact).status for n in counts] == ["ok", "too_large"]
    if sizes:  # the rows of a DuckDB chunk
        exact = Limits(max_rows=2048)
        statuses = [executor.execute(db, f"FROM range({n})", limits=exact).status for n in sizes]
        assert statuses == ["ok", "too_large"]


def test_limits_of_sqlite_are_refused_at_submit(executor: Executor, database: Any, engine: str) -> None:
    limits = {"vm_steps": Limits(vm_steps=10), "heap": Limits(heap_bytes=1)}
    if engine != "duckdb":
        limits["cpu_ms"] = Limits(cpu_ms=10)
    for name, limit in limits.items():
        with pytest.raises(ValueError, match=f"{database.scheme} cannot enforce {name}"):
            executor.execute_many([(database.url, "SELECT 1")], limits=limit)


def test_pairs_are_scored_across_engines(executor: Executor, db: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE item(id, price)")
        connection.executemany("INSERT INTO item VALUES (?, ?)", [(i, i / 4) for i in range(1, 501)])
    sql = "SELECT id, price FROM item WHERE id < 9"
    rows = executor.execute(tmp_path / "t.sqlite", sql).rows
    assert len(rows) == 8
    scores = executor.score_many([db], [sql], [(["id", "price"], rows)], rules=["bird", "test_suite", "soft_f1"])
    assert [scores[rule].tolist() for rule in ("bird", "test_suite", "soft_f1")] == [[1.0]] * 3
    predicted = [sql, "SELECT id, price FROM item WHERE id < 8", "SELECT 1 FROM nothing"]
    assert executor.score_many([db] * 3, predicted, [sql] * 3, rules=["bird"])["bird"].tolist() == [1.0, 0.0, 0.0]


ENDLESS = {
    "duckdb": "SELECT sum(range) FROM range(1000000000000)",
    "postgresql": "SELECT pg_sleep(600)",
    "mariadb": "SELECT SLEEP(600)",
}


def test_a_run_is_cancelled(db: str, engine: str) -> None:
    endless, unlimited = ENDLESS[engine], Limits(timeout_ms=600_000)
    with Executor(threads=1, limits=unlimited) as executor:
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        job = executor.submit([(db, endless), (db, "SELECT 2")])
        wait_for_queue(executor, 1)
        job.cancel()
        assert [outcome.status for outcome in job.result()] == ["cancelled", "cancelled"]
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        executor.submit([(db, endless)])
        wait_for_queue(executor, 0)
        begun = time.monotonic()
    assert time.monotonic() - begun < 30, "close waits for the thread, not for a query"


def wait_for_queue(executor: Executor, length: int) -> None:
    """Wait until a thread has started the first of the queries."""
    end = time.monotonic() + 60
    while executor.stats()["queued"] > length:
        assert time.monotonic() < end
        time.sleep(0.001)


# Queries that change a session, with their statuses, and rows that a later run must return.
TRACES: dict[str, tuple[list[tuple[str, str]], dict[str, list[Any]]]] = {
    "duckdb": (
        [
            ("FROM enable_logging()", ""),
            ("FROM enable_profiling()", ""),
            ("SELECT set_config('threads', '2')", ""),
        ],
        {
            "SELECT current_setting('threads'), current_setting('TimeZone'), current_setting('lock_configuration')": [
                (1, "UTC", 1)
            ],
            "SELECT count(*) FROM duckdb_logs()": [(0,)],
        },
    ),
    "postgresql": (
        [
            ("SHOW search_path; SELECT 1", "forbidden"),
            ("SELECT setseed(0.5)", "ok"),
            ("SELECT set_config('search_path', 'pg_catalog', false)", "ok"),
            ("SELECT set_config('TimeZone', 'Asia/Tokyo', false)", "ok"),
            ("SELECT set_config('default_transaction_read_only', 'off', false)", "ok"),
            ("SELECT pg_advisory_lock(42)", "ok"),
        ],
        {
            "SELECT current_setting('TimeZone'), current_setting('transaction_read_only')": [("UTC", "on")],
            "SELECT count(*) FROM item": [(500,)],
            "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database "
            "WHERE locktype = 'advisory' AND datname = current_database()": [(0,)],
        },
    ),
    "mariadb": (
        [
            ("SELECT @a := 5, @b := 'x'", "ok"),
            ("SELECT GET_LOCK(DATABASE(), 0)", "ok"),
            ("SELECT RAND(3)", "ok"),
        ],
        {
            "SELECT @a, @b": [(None, None)],
            "SELECT COUNT(*) FROM item": [(500,)],
            "SELECT CAST('x' AS SIGNED)": [(0,)],
            "SHOW WARNINGS": [],
            "SELECT @@time_zone, @@tx_read_only, @@character_set_results, @@sql_select_limit": [
                ("+00:00", 1, "utf8mb4", 1_000_001)
            ],
            "SELECT IS_FREE_LOCK(DATABASE())": [(1,)],
        },
    ),
}


def test_a_run_leaves_no_session_state(executor: Executor, db: str, engine: str) -> None:
    changes, wanted = TRACES[engine]
    with Executor(threads=1) as single:
        for sql, status in changes:
            assert single.execute(db, sql).status == (status or single.execute(db, sql).status), sql
            if engine == "duckdb":
                assert {text: single.execute(db, text).rows for text in wanted} == wanted
        for reader in (single, executor):
            assert {text: reader.execute(db, text).rows for text in wanted} == wanted
        for n in (5, 500):  # limits are set for each run
            limits = Limits(max_rows=n, timeout_ms=n * 1_000, on_excess="cut")
            assert single.execute(db, "SELECT id FROM item", limits=limits).row_count == n


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
def test_a_random_seed_does_not_carry_over_to_the_next_run(executor: Executor, db: str) -> None:
    for _ in range(2):
        executor.execute(db, "SELECT setseed(0.5)")
    draws = {executor.execute(db, f"SELECT random() -- {i}").rows[0] for i in range(3)}
    assert len(draws) == 3
