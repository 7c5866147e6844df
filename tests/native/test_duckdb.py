"""The executor on a file of DuckDB's: statuses, values, limits, and what a text may do."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sqlexec_rs
from sqlexec_rs import Executor, Limits

if os.environ.get("SQLEXEC_SERVERS") != "required":
    pytest.importorskip("duckdb")
import duckdb

SCHEMA = """
CREATE TYPE size AS ENUM ('small', 'large');
CREATE TABLE item(id INTEGER PRIMARY KEY, name VARCHAR, price DECIMAL(8, 2), is_new BOOLEAN, since DATE, weight DOUBLE);
INSERT INTO item SELECT i, 'item ' || i, i / 4.0, i % 2 = 0, DATE '2020-01-01' + i::INTEGER, i * 0.1
FROM range(1, 501) t(i);
CREATE VIEW cheap AS SELECT * FROM item WHERE price < 10;
CREATE SEQUENCE numbers;
"""
HIDDEN = "no text may show this"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("duckdb") / "shop.db"
    with duckdb.connect(str(file)) as connection:
        connection.execute(SCHEMA)
    file.with_name("secret.txt").write_text(HIDDEN, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def db(file: Path) -> str:
    return f"duckdb:{file}"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """Return an executor in threads: SQL of DuckDB runs in a process all the same."""
    with Executor(threads=1, isolation="thread", worker_grace_ms=1_000) as executor:
        yield executor


SMALL = Limits(timeout_ms=20_000, max_rows=10_000, max_bytes=1 << 20)
STATUSES = [
    ("SELECT name FROM item WHERE id = 3", "ok"),
    ("SELECT 1;;", "ok"),
    ("  (SELECT 1) UNION (SELECT 2) -- so", "ok"),
    ("WITH a AS (SELECT 1 AS x) SELECT x FROM a", "ok"),
    ("VALUES (1), (2)", "ok"),
    ("FROM cheap", "ok"),
    ("TABLE cheap", "ok"),
    ("DESCRIBE item", "ok"),
    ("SUMMARIZE item", "ok"),
    ("PIVOT item ON id IN (1, 2) USING sum(price)", "ok"),
    ("SELECT '1; DROP TABLE item'", "ok"),
    ("SELECT $$;$$", "ok"),
    ("", "no_sql"),
    ("-- nothing\n /* at all */ ;", "no_sql"),
    ("SELEC 1", "syntax_error"),
    ("SELECT 'open", "syntax_error"),
    ("SELECT 1 \0", "syntax_error"),
    ("SELECT nmae FROM item", "schema_error"),
    ("SELECT 1 FROM itm", "schema_error"),
    ("SELECT frobnicate(1)", "schema_error"),
    ("SELECT name FROM item GROUP BY id % 2", "schema_error"),
    ("SELECT name::INTEGER FROM item", "runtime_error"),
    ("SELECT error('so')", "runtime_error"),
    ("SELECT sum(range) FROM range(1000000000000)", "timeout"),
    ("SELECT * FROM range(20000)", "too_large"),
    ("SELECT repeat('x', 2000000)", "too_large"),
    ("SELECT list(range) FROM range(1000000000)", "too_large"),
    ("SELECT 1; SELECT 2", "forbidden"),
    ("DELETE FROM item", "forbidden"),
    ("EXPLAIN SELECT 1", "forbidden"),
    ("WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone", "forbidden"),
    ("SELECT * FROM read_text('/etc/passwd')", "forbidden"),
    ("SET threads = 2", "forbidden"),
    ("PRAGMA version", "forbidden"),
    ("SELECT nextval('numbers')", "forbidden"),
]


@pytest.mark.parametrize(("sql", "status"), STATUSES)
def test_a_text_has_a_status(executor: Executor, db: str, sql: str, status: str) -> None:
    limits = SMALL.replace(timeout_ms=100) if status == "timeout" else SMALL
    outcome = executor.execute(db, sql, limits=limits)
    assert (outcome.status, outcome.error) == (status, None if status == "ok" else outcome.error)
    assert (outcome.error is None) == (status == "ok")
    assert outcome.stopped_by == ("wall" if status == "timeout" else None)


def test_an_error_says_where_and_what_was_meant(executor: Executor, db: str) -> None:
    outcome = executor.execute(db, "SELECT 'é', nmae FROM item")
    assert outcome.hint is not None
    assert "name" in outcome.hint
    assert "SELECT 'é', nmae".encode()[outcome.error_offset :] == b"nmae"
    assert "\n" not in (outcome.error or "")


# An expression, and what it is here; `...` is what duckdb's own fetchall gives.
VALUES: list[tuple[str, Any]] = [
    ("NULL", ...),
    ("true", 1),
    ("(-128)::TINYINT", ...),
    ("255::UTINYINT", ...),
    ("9223372036854775807", ...),
    ("18446744073709551615::UBIGINT", float(2**64 - 1)),
    ("(2::HUGEINT) ** 100", float(2**100)),
    ("5::HUGEINT", ...),
    ("12345678901234567890123::BIGNUM", ...),
    ("0.5::FLOAT", ...),
    ("1e-7::DOUBLE", ...),
    ("'Infinity'::DOUBLE", ...),
    ("'-Infinity'::DOUBLE", ...),
    ("1.50::DECIMAL(8, 2)", 1.5),
    ("7.00::DECIMAL(8, 2)", 7),
    ("-0.25::DECIMAL(8, 2)", -0.25),
    ("0::DECIMAL(38, 10)", 0),
    ("0.0000000001::DECIMAL(38, 10)", 1e-10),
    ("10000000000000000000.00::DECIMAL(38, 2)", 1e19),
    ("''", ...),
    ("'é' || chr(0)", ...),
    ("'\\x00\\xFF'::BLOB", ...),
    ("DATE '2020-02-01'", "2020-02-01"),
    ("'infinity'::DATE", "9999-12-31"),
    ("DATE '1001-01-01 (BC)'", ...),
    ("TIME '10:00:00.5'", "10:00:00.500000"),
    ("TIMESTAMP '2020-02-01 10:00:00'", "2020-02-01 10:00:00"),
    ("TIMESTAMP_NS '2020-02-01 10:00:00.123456789'", "2020-02-01 10:00:00.123456"),
    ("INTERVAL '1 month 2 days 3 seconds'", "32 days, 0:00:03"),
    ("'b1f5a5f0-0000-4000-8000-000000000000'::UUID", "b1f5a5f0-0000-4000-8000-000000000000"),
    ("'small'::size", ...),
    ("'101'::BIT", ...),
    ("'{\"a\": 1}'::JSON", ...),
    ("[1, NULL, 3]", "[1, null, 3]"),
    ("[1.50, 2]", "[1.5, 2]"),
    ("{'a': 1, 'b': DATE '2020-02-01'}", '{"a": 1, "b": "2020-02-01"}'),
    ("MAP {'é': [true]}", '{"é": [true]}'),
    ("union_value(n := 2)", ...),
]


def test_values_are_as_the_table_says(executor: Executor, file: Path, db: str) -> None:
    sql = "SELECT " + ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(VALUES))
    with duckdb.connect(str(file), read_only=True) as connection:
        (theirs,) = connection.execute(sql).fetchall()
    outcome = executor.execute(db, sql)
    assert outcome.error is None
    for (text, wanted), ours, their in zip(VALUES, outcome.rows[0], theirs, strict=True):
        assert (ours, type(ours)) == ((their, type(their)) if wanted is ... else (wanted, type(wanted))), text
    ((nan,),) = executor.execute(db, "SELECT 'NaN'::DOUBLE").rows
    assert math.isnan(nan)


@pytest.mark.skipif(importlib.util.find_spec("pytz") is None, reason="duckdb needs pytz for it")
def test_times_with_a_zone_are_in_utc(executor: Executor, db: str) -> None:
    sql = "SELECT TIMESTAMPTZ '2020-02-01 10:00:00+02'"
    assert executor.execute(db, sql).rows == [("2020-02-01 08:00:00+00:00",)]


def test_rows_are_a_gold_of_what_duckdb_fetches(executor: Executor, file: Path, db: str) -> None:
    sql = "SELECT * FROM item"
    with duckdb.connect(str(file), read_only=True) as connection:
        theirs = connection.execute(sql).fetchall()
    columns = ["id", "name", "price", "is_new", "since", "weight"]
    score = executor.score(db, sql, (columns, theirs), rules=("bird", "test_suite"))
    assert (score["bird"], score["test_suite"]) == (1.0, 1.0)
    outcome = executor.execute(db, sql)
    assert outcome.columns == columns
    assert outcome.column_types == ["INTEGER", "VARCHAR", "DECIMAL(8,2)", "BOOLEAN", "DATE", "DOUBLE"]


def test_parameters_are_bound_by_position_and_name(executor: Executor, db: str) -> None:
    values: list[Any] = [7, "é", 0.25, b"\x00\xff", None]
    assert executor.execute(db, "SELECT ? + 1, ?, ? * 2, ?, ?", values).rows == [(8, "é", 0.5, b"\x00\xff", None)]
    assert executor.execute(db, "SELECT $a + $b", {"a": 1, "b": 2}).rows == [(3,)]
    assert executor.execute(db, "SELECT ?").status == "runtime_error"
    assert executor.execute(db, "SELECT 1", [1]).status == "runtime_error"


def test_a_result_is_cut_where_that_is_asked_for(executor: Executor, db: str) -> None:
    for limits in (Limits(max_rows=7, on_excess="cut"), Limits(max_bytes=500, on_excess="cut")):
        outcome = executor.execute(db, "SELECT range + 1 FROM range(1000000000)", limits=limits)
        assert outcome.is_cut
        assert outcome.rows == [(i + 1,) for i in range(outcome.row_count)]
        assert 5 < outcome.row_count < 40
    unbounded = Limits(max_rows=2**40, max_bytes=2**40)
    assert executor.execute(db, "SELECT id FROM item", limits=unbounded).row_count == 500
    exact = Limits(max_rows=2048)
    assert [executor.execute(db, f"FROM range({n})", limits=exact).status for n in (2048, 2049)] == ["ok", "too_large"]


def test_limits_of_sqlite_are_refused_at_submit(executor: Executor, db: str) -> None:
    for limits, name in [(Limits(vm_steps=10), "vm_steps"), (Limits(heap_bytes=1), "heap_bytes")]:
        with pytest.raises(ValueError, match=f"duckdb cannot honour {name}"):
            executor.execute_many([(db, "SELECT 1")], limits=limits)


def test_pairs_are_scored_across_engines(executor: Executor, db: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite") as connection:
        connection.execute("CREATE TABLE item(id, price)")
        connection.executemany("INSERT INTO item VALUES (?, ?)", [(i, i / 4) for i in range(1, 501)])
    connection.close()
    sql = "SELECT id, price FROM item WHERE id < 9"
    rows = executor.execute(tmp_path / "t.sqlite", sql).rows
    scores = executor.score_many([db], [sql], [(["id", "price"], rows)], rules=["bird", "test_suite", "soft_f1"])
    assert [scores[rule].tolist() for rule in ("bird", "test_suite", "soft_f1")] == [[1.0]] * 3
    predicted = [sql, "SELECT id, price FROM item WHERE id < 8", "SELECT 1 FROM nothing"]
    assert executor.score_many([db] * 3, predicted, [sql] * 3, rules=["bird"])["bird"].tolist() == [1.0, 0.0, 0.0]


def test_a_changed_file_is_read_anew(executor: Executor, tmp_path: Path) -> None:
    file = tmp_path / "counter.db"
    for n in (1, 2, 3):
        other = tmp_path / f"{n}.db"
        with duckdb.connect(str(other)) as connection:
            connection.execute(f"CREATE TABLE counter AS SELECT {n} AS n")
        other.replace(file)
        assert executor.execute(f"duckdb:{file}", "SELECT n FROM counter").rows == [(n,)]


def test_a_writer_gets_the_lock_when_nobody_asks(executor: Executor, tmp_path: Path) -> None:
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


def test_one_path_is_a_database_of_each_engine(executor: Executor, file: Path, db: str) -> None:
    outcomes = executor.execute_many([(name, "SELECT count(*) FROM item") for name in (str(file), db) * 2])
    assert [outcome.status for outcome in outcomes] == ["db_error", "ok"] * 2


def test_what_is_no_database_of_duckdbs_is_one_line(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 2_000, encoding="utf-8")
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("CREATE TABLE t(n)")
    connection.close()
    for name in ("text", "s.sqlite", "missing", "."):
        outcome = executor.execute(f"duckdb:{tmp_path / name}", "SELECT 1")
        assert outcome.status == "db_error", name
        assert outcome.error
        assert "\n" not in outcome.error
    assert not (tmp_path / "missing").exists()
    assert "duckdb:FILE" in (executor.execute("duck://x", "SELECT 1").error or "")


def test_a_run_is_cancelled(db: str) -> None:
    endless = "SELECT sum(range) FROM range(1000000000000)"
    with Executor(threads=1) as executor:
        executor.execute(db, "SELECT 1")
        job = executor.submit([(db, endless), (db, "SELECT 1")])
        time.sleep(0.2)
        job.cancel()
        assert [outcome.status for outcome in job.result()] == ["cancelled", "cancelled"]
        assert executor.execute(db, "SELECT 1").rows == [(1,)]
        executor.submit([(db, endless)])


def test_nothing_is_left_of_a_run(executor: Executor, db: str) -> None:
    for _ in range(2):  # a seed of one run is none of the next
        executor.execute(db, "SELECT setseed(0.5)")
    draws = {executor.execute(db, f"SELECT random() -- {i}").rows[0] for i in range(3)}
    assert len(draws) == 3
    settings = "SELECT current_setting('threads'), current_setting('TimeZone'), current_setting('lock_configuration')"
    for sql in ["FROM enable_logging()", "FROM enable_profiling()", "SELECT set_config('threads', '2')"]:
        executor.execute(db, sql)
        assert executor.execute(db, settings).rows == [(1, "UTC", 1)]
        assert executor.execute(db, "SELECT count(*) FROM duckdb_logs()").rows == [(0,)]


def test_many_databases_do_not_meet(file: Path, tmp_path: Path) -> None:
    copies = []
    for i in range(10):
        copy = tmp_path / f"{i}.db"
        shutil.copyfile(file, copy)
        copies.append(f"duckdb:{copy}")
    sql = "SELECT count(DISTINCT database_name) FROM duckdb_tables()"
    with Executor(threads=1) as executor:
        outcomes = executor.execute_many([(name, sql) for name in copies * 2])
        assert [(outcome.rows, outcome.error) for outcome in outcomes] == [([(1,)], None)] * 20
        assert executor.stats()["connections_open"] <= 8


def test_what_one_run_took_of_the_memory_is_there_for_the_next(db: str) -> None:
    bomb = "SELECT list(range) FROM range(1000000000)"
    large = "SELECT count(*) FROM (SELECT range, random() AS x FROM range(1000000) ORDER BY x)"
    with Executor(threads=1, worker_memory_bytes=1 << 30) as executor:
        outcomes = executor.execute_many([(db, f"{sql} -- {i}") for i in range(2) for sql in (bomb, large)])
        assert [outcome.status for outcome in outcomes] == ["too_large", "ok"] * 2
        assert executor.stats()["workers_crashed"] == 0


# What people who mean harm ask of DuckDB, and texts that are too long for a line.
HOSTILE = [
    *Path(__file__).with_name("hostile_duckdb.sql").read_text(encoding="utf-8").splitlines()[1:],
    "SELECT 1 WHERE " + "(" * 20_000 + "true" + ")" * 20_000,
    "SELECT -" + "(" * 5_000 + "1" + ")" * 5_000,
    "SELECT " + "[" * 3_000 + "]" * 3_000,
    "SELECT " + "(SELECT " * 2_000 + "1" + ")" * 2_000,
    "SELECT " + "CASE WHEN true THEN " * 2_000 + "1" + " END" * 2_000,
    "SELECT " + "NOT " * 50_000 + "true",
    "SELECT " + " + ".join(["1"] * 50_000),
    "SELECT 1 " + "UNION SELECT 1 " * 2_000,
    f"SELECT '{'x' * 900_000}'",
    "SELECT 1 IN (" + ",".join(map(str, range(50_000))) + ")",
    "SELECT " + ", ".join(["1"] * 5_000),
    "FROM item" + ", item" * 200,
    "WITH a0 AS (SELECT 1 AS x), "
    + ", ".join(f"a{i} AS (SELECT l.x FROM a{i - 1} l, a{i - 1} r)" for i in range(1, 40))
    + " SELECT count(*) FROM a39",
    "-- \n; DELETE FROM item",
    "SELECT 1\N{LINE SEPARATOR}; DELETE FROM item",
    "SELECT '\x01\x02\x7f' AS \"\x03\"",
]


def read_state(folder: Path) -> dict[str, str]:
    """Return a digest of each file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# What behind EXPLAIN would run something; none of it is a query.
SMUGGLED = [
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
    "CREATE TEMP TABLE made AS SELECT 1",
    "COPY item TO '/tmp/sqlexec-hostile'",
    "EXPORT DATABASE '/tmp/sqlexec-hostile'",
    "ATTACH '/tmp/sqlexec-hostile' AS a",
    "SET threads = 2",
    "PRAGMA enable_profiling",
    "SELECT 1; DELETE FROM item",
    "WITH gone AS (DELETE FROM item RETURNING 1) SELECT * FROM gone",
    "EXECUTE p",
    "PIVOT item ON id USING sum(price)",
]


def test_a_plan_is_made_and_nothing_of_it_is_run(executor: Executor, file: Path, db: str) -> None:
    before = read_state(file.parent)
    limits = SMALL.replace(timeout_ms=5_000)
    for sql in ("SELECT sum(range) FROM range(1000000000000)", "(VALUES (1))", "FROM item", "-- so\nTABLE cheap;"):
        plan = executor.explain(db, sql, limits=limits)
        assert (plan.status, plan.columns) == ("ok", ["explain_key", "explain_value"]), plan.error
        assert plan.rows[0][0] == "physical_plan", "and nothing was measured"
    assert "id = 3" in executor.explain(db, "SELECT * FROM item WHERE id = $a", {"a": 3}).rows[0][1]
    for sql in SMUGGLED:
        refused = executor.explain(db, sql, limits=limits)
        assert refused.status in {"forbidden", "syntax_error"}, (sql, refused)
        assert executor.execute(db, sql, limits=limits).status == refused.status, sql
    assert read_state(file.parent) == before
    assert not Path("/tmp/sqlexec-hostile").exists()  # noqa: S108


@pytest.mark.parametrize(
    ("sql", "status"),
    [
        ("", "no_sql"),
        ("SELEC 1", "syntax_error"),
        ("SELECT nmae FROM item", "schema_error"),
        ("SELECT ?", "runtime_error"),
        ("EXPLAIN SELECT 1", "forbidden"),
        ("SELECT * FROM read_text('/etc/passwd')", "forbidden"),
    ],
)
def test_what_has_no_plan_has_the_status_of_a_run(executor: Executor, db: str, sql: str, status: str) -> None:
    outcome = executor.explain(db, sql, limits=SMALL)
    assert outcome.status == status, outcome
    assert outcome.error_offset == executor.execute(db, sql, limits=SMALL).error_offset
    assert (outcome.error_offset == len("SELECT ")) == ("nmae" in sql)


def test_a_setting_is_shown_as_a_run_sees_it(executor: Executor, db: str) -> None:
    shown = executor.show(db, "threads")
    assert (shown.columns, shown.rows) == (["threads"], [(1,)])
    assert executor.show(db, "enable_external_access").rows == [(0,)]
    unknown = executor.show(db, "nosuch")
    assert (unknown.status, unknown.error_offset) == ("schema_error", None)
    with pytest.raises(ValueError, match="plain name"):
        executor.show(db, "a'); DELETE FROM item")


@pytest.mark.slow
def test_harm_is_not_done(file: Path, db: str) -> None:
    texts = [*HOSTILE, *(f"FROM {read}('{file.with_name('secret.txt')}')" for read in ("read_text", "read_csv"))]
    assert len(texts) >= 60
    before = read_state(file.parent), sorted(Path("/tmp").glob("sqlexec-hostile*"))  # noqa: S108
    limits = Limits(timeout_ms=150, max_rows=10_000, max_bytes=1 << 20)
    late = {}
    with Executor(threads=1, worker_memory_bytes=1 << 30) as executor:
        executor.execute(db, "SELECT 1")
        for sql in texts:
            begun = time.perf_counter()
            outcome = executor.execute(db, sql, limits=limits)
            late[sql[:60]] = outcome.elapsed_ms - 150
            assert time.perf_counter() - begun < 30, sql[:60]
            assert outcome.status != "ok" or outcome.row_count <= 10_000, sql[:60]
            assert HIDDEN not in repr(outcome.rows), sql[:60]
            assert "root:" not in repr(outcome.rows), sql[:60]
            begun = time.perf_counter()
            executor.explain(db, sql, limits=limits)
            assert time.perf_counter() - begun < 30, sql[:60]
        assert executor.execute(db, "SELECT count(*) FROM item").rows == [(500,)]
        stats = executor.stats()
    latest = max(late, key=lambda sql: late[sql])
    p99 = sorted(late.values())[len(late) * 99 // 100]
    print(
        f"{len(texts)} texts, p99 {p99:.0f} and the latest {late[latest]:.0f} ms late ({latest}); "
        f"{stats['workers_killed']} workers killed, {stats['workers_crashed']} crashed"
    )
    assert (read_state(file.parent), sorted(Path("/tmp").glob("sqlexec-hostile*"))) == before  # noqa: S108


def test_without_the_wheel_one_line_says_what_to_install(db: str) -> None:
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


def test_the_command_line_takes_it(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sqlexec_rs.cli import main

    assert main(["run", db, "SELECT id, name FROM item WHERE id < 3", "--format", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["id,name", "1,item", "1", "2,item", "2"]
    with duckdb.connect(tmp_path / "shop.duckdb") as connection:
        connection.execute("CREATE TABLE item AS SELECT 7 AS id")
    golds, made = tmp_path / "gold.json", tmp_path / "made.jsonl"
    golds.write_text('[{"id": 0, "db_id": "shop", "sql": "FROM item"}]', encoding="utf-8")
    made.write_text('{"id": 0, "pred_sql": "SELECT 7"}\n', encoding="utf-8")
    arguments = ["score", "--pred", str(made), "--gold", str(golds), "--rules", "bird,test_suite", "--db-root"]
    assert main([*arguments, f"duckdb:{tmp_path}"]) == 0
    assert "shop      1  100.0       100.0" in capsys.readouterr().out
    assert main([*arguments, f"duckdb:{tmp_path / 'nosuch'}"]) == 2
    assert "there is no" in capsys.readouterr().err


def test_the_worker_is_no_program_of_its_own() -> None:
    worker = Path(sqlexec_rs.__file__).with_name("duckdb_worker.py")
    done = subprocess.run([sys.executable, str(worker)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "started by sqlexec_rs" in done.stderr
