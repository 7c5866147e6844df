"""Behaviour of the executor on DuckDB files only."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

import sqlexec_rs
from sqlexec_rs import Executor
from sqlexec_rs.cli import main


@pytest.fixture(params=["duckdb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_changed_file_is_read_again(executor: Executor, tmp_path: Path) -> None:
    file = tmp_path / "counter.db"
    for n in (1, 2, 3):
        other = tmp_path / f"{n}.db"
        with duckdb.connect(str(other)) as connection:
            connection.execute(f"CREATE TABLE counter AS SELECT {n} AS n")
        other.replace(file)
        assert executor.execute(f"duckdb:{file}", "SELECT n FROM counter").rows == [(n,)]


@pytest.mark.parametrize("program", ["/no", "", None, "deleted", "other program", "no python there"])
def test_duckdb_runs_where_sys_executable_names_no_interpreter(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedded Python has none, or that of the host program; SQLite never needs it."""
    file, other = tmp_path / "t.db", tmp_path / "app"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS n")
    if program == "other program":
        other.write_text("#!/bin/sh\nexit 9\n")
        other.chmod(0o755)
    sqlite3.connect(tmp_path / "s.sqlite").close()
    missing = program == "no python there"
    for name in ("exec_prefix", "base_exec_prefix") if missing else ():
        monkeypatch.setattr(sys, name, str(tmp_path))
    monkeypatch.setattr(sys, "executable", program if program in (None, "", "/no") else str(other))
    with Executor(threads=1) as executor:
        assert executor.execute(tmp_path / "s.sqlite", "SELECT 1").rows == [(1,)]
        outcome = executor.execute(f"duckdb:{file}", "FROM t")
    if missing:
        assert outcome.status == "db_error"
        assert "there is no python program" in (outcome.error or "")
    else:
        assert outcome.rows == [(7,)]


def test_a_writer_gets_the_lock_of_an_idle_file(executor: Executor, tmp_path: Path) -> None:
    file = tmp_path / "t.db"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
        assert executor.execute(f"duckdb:{file}", "FROM t").status == "db_error", "another process writes"
    assert executor.execute(f"duckdb:{file}", "FROM t").rows == [(1,)]
    end = time.monotonic() + 60
    while True:
        try:
            with duckdb.connect(str(file)) as connection:
                connection.execute("UPDATE t SET n = 2")
            break
        except duckdb.IOException:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert executor.execute(f"duckdb:{file}", "FROM t").rows == [(2,)]


def test_a_path_is_a_database_of_its_own_engine(executor: Executor, database: Any) -> None:
    names = (str(database.file), database.url) * 2
    outcomes = executor.execute_many([(name, "SELECT count(*) FROM item") for name in names])
    assert [outcome.status for outcome in outcomes] == ["db_error", "ok"] * 2


def test_an_invalid_file_is_reported_in_one_line(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 2_000, encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE t(n)")
    for name in ("text", "s.sqlite", "missing", "."):
        outcome = executor.execute(f"duckdb:{tmp_path / name}", "SELECT 1")
        assert outcome.status == "db_error", name
        assert outcome.error
        assert "\n" not in outcome.error
    assert not (tmp_path / "missing").exists()
    assert "duckdb:FILE" in (executor.execute("duck://x", "SELECT 1").error or "")


def test_databases_of_a_worker_are_isolated(database: Any, tmp_path: Path) -> None:
    copies = [f"duckdb:{shutil.copyfile(database.file, tmp_path / f'{i}.db')}" for i in range(10)]
    sql = "SELECT count(DISTINCT database_name) FROM duckdb_tables()"
    with Executor(threads=1) as executor:
        outcomes = executor.execute_many([(name, sql) for name in copies * 2])
        assert [(outcome.rows, outcome.error) for outcome in outcomes] == [([(1,)], None)] * 20
        assert executor.stats()["connections_open"] <= 8


@pytest.mark.slow
def test_memory_is_released_after_each_run(db: str) -> None:
    bomb = "SELECT list(range) FROM range(1000000000)"
    large = "SELECT count(*) FROM (SELECT range, random() AS x FROM range(1000000) ORDER BY x)"
    with Executor(threads=1, worker_memory_bytes=1 << 30) as executor:
        outcomes = executor.execute_many([(db, f"{sql} -- {i}") for i in range(2) for sql in (bomb, large)])
        assert [outcome.status for outcome in outcomes] == ["too_large", "ok"] * 2
        assert executor.stats()["workers_crashed"] == 0


def test_a_missing_wheel_is_reported_with_the_package_name(db: str) -> None:
    script = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "duckdb" else find(name, *more)
from sqlexec_rs.cli import main
sys.exit(main(["run", sys.argv[1], "SELECT 1"]))
"""
    done = subprocess.run([sys.executable, "-c", script, db], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install" in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) == 1


def test_the_command_line_accepts_a_file(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", db, "SELECT id, name FROM item WHERE id < 3", "--format", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["id,name", "1,item", "1", "2,item", "2"]
    with duckdb.connect(tmp_path / "shop.duckdb") as connection:
        connection.execute("CREATE TABLE item AS SELECT 7 AS id")
    golds, predictions = tmp_path / "gold.json", tmp_path / "predictions.jsonl"
    golds.write_text('[{"id": 0, "db_id": "shop", "sql": "FROM item"}]', encoding="utf-8")
    predictions.write_text('{"id": 0, "pred_sql": "SELECT 7"}\n', encoding="utf-8")
    arguments = ["score", "--pred", str(predictions), "--gold", str(golds), "--rules", "bird,test_suite", "--db-root"]
    assert main([*arguments, f"duckdb:{tmp_path}"]) == 0
    assert "shop      1  100.0       100.0" in capsys.readouterr().out
    assert main([*arguments, f"duckdb:{tmp_path / 'nosuch'}"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_worker_cannot_be_started_directly() -> None:
    worker = Path(sqlexec_rs.__file__).with_name("duckdb_worker.py")
    done = subprocess.run([sys.executable, str(worker)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "started by sqlexec_rs" in done.stderr
