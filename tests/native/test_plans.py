"""Plans and settings of SQLite, in threads and in processes; the other engines have their own tests."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from sqlexec_rs import Executor, Limits


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE)")
        connection.execute("CREATE INDEX by_name ON item(name)")
        connection.executemany("INSERT INTO item(name) VALUES (?)", [(f"item {i}",) for i in range(50)])
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    return path


ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
PLANNED = [
    "SELECT name FROM item WHERE id = 3",
    "SELECT name FROM item WHERE name LIKE 'item 1%'",
    "  SELECT 1 -- so",
    ENDLESS,
]


@pytest.mark.parametrize("sql", PLANNED)
def test_a_plan_matches_sqlite_and_runs_nothing(executor: Executor, shop: Path, sql: str) -> None:
    """The steps are those of Python's sqlite3, whose version may number them differently."""
    plan = executor.explain(shop, sql, limits=Limits(vm_steps=100_000))
    assert (plan.status, plan.columns) == ("ok", ["id", "parent", "notused", "detail"]), plan.error
    with sqlite3.connect(shop) as connection:
        theirs = connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
    connection.close()
    assert [row[3] for row in plan.rows] == [row[3] for row in theirs]


def test_a_plan_and_a_run_are_cached_separately(executor: Executor, shop: Path) -> None:
    sql = "SELECT count(*) FROM item"
    for _ in range(2):
        assert executor.execute(shop, sql).rows == [(50,)]
        assert executor.explain(shop, sql).rows[0][3].startswith("SCAN item")
    assert executor.score(shop, sql, sql)["bird"] == 1.0


def test_parameters_are_bound_as_in_a_run(executor: Executor, shop: Path) -> None:
    sql = "SELECT name FROM item WHERE id = ?"
    assert "SEARCH item" in executor.explain(shop, sql, [3]).rows[0][3]
    assert executor.explain(shop, sql).status == "runtime_error"
    assert executor.explain(shop, sql, [1, 2]).status == "runtime_error"


# Texts that are not queries, or that would be another statement after EXPLAIN QUERY PLAN.
REFUSED = [
    ("", "no_sql"),
    (";; -- nothing", "no_sql"),
    ("SELECT 1; SELECT 2", "forbidden"),
    ("SELECT 1; DELETE FROM item", "forbidden"),
    ("DELETE FROM item", "forbidden"),
    ("UPDATE item SET name = ''", "forbidden"),
    ("INSERT INTO item(name) VALUES ('x') RETURNING id", "forbidden"),
    ("WITH a AS (SELECT 1) DELETE FROM item", "forbidden"),
    ("CREATE TABLE made AS SELECT 1", "forbidden"),
    ("DROP TABLE item", "forbidden"),
    ("ATTACH '/tmp/sqlexec-hostile' AS a", "forbidden"),
    ("VACUUM", "forbidden"),
    ("VACUUM INTO '/tmp/sqlexec-hostile'", "forbidden"),
    ("ANALYZE", "forbidden"),
    ("REINDEX", "forbidden"),
    ("BEGIN", "forbidden"),
    ("SAVEPOINT a", "forbidden"),
    ("PRAGMA user_version = 8", "forbidden"),
    ("PRAGMA journal_mode = wal", "forbidden"),
    ("PRAGMA writable_schema = 1", "forbidden"),
    ("SELECT load_extension('x')", "forbidden"),
    ("SELECT writefile('/tmp/sqlexec-hostile', 'x')", "schema_error"),
    ("EXPLAIN SELECT 1", "syntax_error"),
    ("QUERY PLAN SELECT 1", "syntax_error"),
    ("SELEC 1", "syntax_error"),
    ("SELECT nmae FROM item", "schema_error"),
    ("SELECT 1 \0", "syntax_error"),
    ("SELECT " + " + ".join(["1"] * 2_000), "too_large"),
    ("SELECT 1 ORDER BY " + ", ".join(["1"] * 129), "too_large"),
]


@pytest.mark.parametrize(("sql", "status"), REFUSED)
def test_refused_statements_are_not_planned(executor: Executor, shop: Path, sql: str, status: str) -> None:
    before = hashlib.sha256(shop.read_bytes()).hexdigest()
    outcome = executor.explain(shop, sql)
    assert outcome.status == status, outcome
    assert hashlib.sha256(shop.read_bytes()).hexdigest() == before
    assert not Path("/tmp/sqlexec-hostile").exists()  # noqa: S108


def test_an_error_has_an_offset_and_a_hint(executor: Executor, shop: Path) -> None:
    sql = "-- first\n SELECT 'é', nmae FROM item"
    planned, run = executor.explain(shop, sql), executor.execute(shop, sql)
    assert sql.encode()[planned.error_offset :] == b"nmae FROM item"
    assert (planned.error, planned.error_offset, planned.hint) == (run.error, run.error_offset, run.hint)


def test_limits_apply_to_plans(executor: Executor, shop: Path) -> None:
    sql = "SELECT 1 UNION SELECT 2 UNION SELECT 3"
    assert executor.explain(shop, sql, limits=Limits(max_rows=2)).status == "too_large"
    cut = executor.explain(shop, sql, limits=Limits(max_rows=2, on_excess="cut"))
    assert (cut.is_cut, len(cut.rows)) == (True, 2)
    assert executor.explain(shop, sql, limits=Limits(max_sql_length=5)).status == "too_large"


def test_show_reads_allowed_pragmas(executor: Executor, shop: Path) -> None:
    shown = executor.show(shop, "user_version")
    assert (shown.columns, shown.rows) == (["user_version"], [(7,)])
    for name in ("journal_mode", "nosuch", "wal_checkpoint", "incremental_vacuum", "optimize"):
        assert executor.show(shop, name).status == "forbidden", name
    for name in ("user_version = 8", "user_version(8)", "a;b", "a.b.c", "", "1", "é", "a--"):
        with pytest.raises(ValueError, match="plain name"):
            executor.show(shop, name)
    assert executor.show("oracle://h/d", "a").status == "db_error"
