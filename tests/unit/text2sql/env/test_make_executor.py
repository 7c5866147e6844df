"""Construction of the native executor: a run's limits apply, and results have rows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.executor import make_executor, score_rows, timing_executor
from jaxrl_sql.text2sql.env.ports import ScoreRow, SqlExecutor

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
COUNT = (
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT {}) SELECT n, printf('%.500c', 'x') FROM r"
)


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "e.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(a); INSERT INTO t VALUES (1);")
    return str(path)


@pytest.mark.parametrize(
    ("config", "sql", "status"),
    [
        (ExecutorConfig(vm_steps=10_000, timeout_ms=0), ENDLESS, "timeout"),
        (ExecutorConfig(vm_steps=0, timeout_ms=50), ENDLESS, "timeout"),
        (ExecutorConfig(max_rows=10), COUNT.format(11), "too_large"),
        (ExecutorConfig(max_rows=10), COUNT.format(10), "ok"),
        (ExecutorConfig(max_bytes=10_000), COUNT.format(100), "too_large"),
        (ExecutorConfig(threads=1), "SELECT a FROM t", "ok"),
        (ExecutorConfig(sqlite_version="3.40.1"), "SELECT concat(a, 'x') FROM t", "schema_error"),
        (ExecutorConfig(sqlite_version="3.44.0"), "SELECT concat(a, 'x') FROM t", "ok"),
    ],
    ids=["steps", "time", "rows", "rows that fit", "bytes", "default", "older SQLite", "newer SQLite"],
)
def test_configured_limits_apply(db: str, config: ExecutorConfig, sql: str, status: str) -> None:
    executor: SqlExecutor = make_executor(config)
    assert executor.execute_many([(db, sql)])[0].status == status


def test_sql_runs_in_worker_processes_unless_threads_are_configured(db: str) -> None:
    for config, isolation in ((ExecutorConfig(), "process"), (ExecutorConfig(isolation="thread"), "thread")):
        executor = make_executor(config)
        assert (executor.isolation, timing_executor(executor).isolation) == (isolation, isolation)
        assert executor.execute(db, "SELECT a FROM t").rows == [(1,)]
        assert (executor.stats()["workers_started"] > 0) == (isolation == "process")


def test_scores_become_rows(db: str) -> None:
    executor = make_executor(ExecutorConfig(threads=1))
    columns = executor.score_many(
        [db] * 3, ["SELECT a FROM t", "SELECT 2", "SELECT"], ["SELECT 1"] * 3, rules=("bird",)
    )
    assert score_rows(columns, ("bird",)) == [
        ScoreRow("ok", "ok", {"bird": 1.0}),
        ScoreRow("ok", "ok", {"bird": 0.0}),
        ScoreRow("syntax_error", "ok", {"bird": 0.0}),
    ]
    assert isinstance(columns["pred_status"], np.ndarray)
    assert score_rows(executor.score_many([], [], [], ("bird",)), ("bird",)) == []


def test_reason_for_a_stopped_run_is_named(db: str) -> None:
    for config, stop in (
        (ExecutorConfig(vm_steps=10_000), "vm_steps"),
        (ExecutorConfig(timeout_ms=300, vm_steps=0), "wall"),
    ):
        columns = make_executor(config).score_many([db], [ENDLESS], ["SELECT 1"], ("bird",))
        assert score_rows(columns, ("bird",)) == [ScoreRow("timeout", "ok", {"bird": 0.0}, stop)]
