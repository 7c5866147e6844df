"""Values bound to the parameters of a statement, compared with sqlite3's."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sqlexec_rs import Executor, Limits

VALUES: list[Any] = [None, 0, -(2**63), 2**63 - 1, 0.5, -0.0, float("inf"), "", "é", "a\0b", b"", b"\x00\xff", True]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL, raw BLOB)")
    connection.executemany("INSERT INTO item VALUES (?, ?, ?, ?)", [(1, "nail", 0.5, b"n"), (2, "saw", 12.0, b"s")])
    connection.commit()
    connection.close()
    time.sleep(2.1)  # a new file's identity changes once its time stamp can be trusted, which drops its results
    return path


def test_values_are_bound_as_sqlite3_binds_them(executor: Executor, database: Path) -> None:
    sql = "SELECT ?, typeof(?1), ?1 IS NULL"
    wanted = [sqlite3.connect(database).execute(sql, (value,)).fetchall() for value in VALUES]
    pairs = [(database, sql, (value,)) for value in VALUES]
    got = [outcome.rows for outcome in executor.execute_many(pairs)]
    assert got == wanted
    assert [type(rows[0][0]) for rows in got] == [type(rows[0][0]) for rows in wanted]
    (not_a_number,) = executor.execute(database, "SELECT ?", [float("nan")]).rows
    assert not_a_number == (None,)


def test_parameters_are_bound_by_position_or_name(executor: Executor, database: Path) -> None:
    by_position = executor.execute(database, "SELECT name FROM item WHERE id = ? AND price < ?", (1, 100))
    by_name = executor.execute(database, "SELECT name FROM item WHERE id = :id AND price < @top", {"id": 1, "top": 2})
    assert by_position.rows == by_name.rows == [("nail",)]
    more = {"id": 2, "nobody": 3}
    assert executor.execute(database, "SELECT name FROM item WHERE id = :id", more).rows == [("saw",)]
    job = executor.submit([(database, "SELECT ?", (i,)) for i in range(5)] + [(database, "SELECT 5")])
    assert [outcome.rows for outcome in job.result()] == [[(i,)] for i in range(6)]


@pytest.mark.parametrize(
    ("sql", "parameters", "error"),
    [
        ("SELECT ?", None, "the statement has parameters, but no values are given"),
        ("SELECT ?, ?", (1,), "the statement has 2 parameters, but 1 values are given"),
        ("SELECT 1", (1,), "the statement has 0 parameters, but 1 values are given"),
        ("SELECT :a, :b", {"a": 1}, "no value is given for the parameter :b"),
        ("SELECT ?", {"a": 1}, "no value is given for the parameter ?"),
    ],
)
def test_mismatched_parameters_are_a_runtime_error(
    executor: Executor, database: Path, sql: str, parameters: Any, error: str
) -> None:
    outcome = executor.execute(database, sql, parameters)
    assert (outcome.status, outcome.error) == ("runtime_error", error)


def test_invalid_parameters_raise_before_execution(executor: Executor, database: Path) -> None:
    with pytest.raises(TypeError, match="parameters must be a sequence or a dict, not str"):
        executor.execute(database, "SELECT ?", "a")
    with pytest.raises(TypeError, match=r"a value must be None, int, .* not list"):
        executor.execute(database, "SELECT ?", [[1]])
    with pytest.raises(ValueError, match="an integer does not fit in 64 bits"):
        executor.execute(database, "SELECT ?", [2**63])
    with pytest.raises(TypeError, match=r"each item must be \(db_path, sql\) or \(db_path, sql, parameters\)"):
        executor.submit([(database, "SELECT 1", (), None)])  # type: ignore[list-item]


def test_parameters_are_not_sql_and_respect_limits(executor: Executor, database: Path) -> None:
    attack = "nail' OR 1 = 1 --"
    assert executor.execute(database, "SELECT name FROM item WHERE name = ?", [attack]).rows == []
    long = executor.execute(database, "SELECT ?", ["x" * 1_000], limits=Limits(max_length=100))
    assert (long.status, long.error) == ("too_large", "string or blob too big")
    endless = "WITH RECURSIVE r(x) AS (SELECT ? UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
    late = executor.execute(database, endless, [1], limits=Limits(timeout_ms=None, vm_steps=100_000))
    assert (late.status, late.stopped_by) == ("timeout", "vm_steps")
    ends = "a" * 40_000
    slow = executor.execute(database, "SELECT ? LIKE ?", [ends, "%a" * 400 + "b"], limits=Limits(timeout_ms=200))
    assert slow.status in {"ok", "timeout"}
    assert slow.elapsed_ms < 2_000


def test_bound_values_are_part_of_the_cache_key(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as executor:
        values = [1, 1.0, "1", b"1", None, 0.0, -0.0]
        pairs = [(database, "SELECT typeof(?1), ?1", (value,)) for value in values]
        first = [outcome.rows for outcome in executor.execute_many(pairs)]
        assert [rows[0][0] for rows in first] == ["integer", "real", "text", "blob", "null", "real", "real"]
        assert [str(rows[0][1]) for rows in first[-2:]] == ["0.0", "-0.0"]
        runs = executor.stats()["runs"]
        assert [outcome.rows for outcome in executor.execute_many(pairs)] == first
        assert executor.stats()["runs"] == runs == len(values), "the second time they came from the cache"
        by_name = [executor.execute(database, "SELECT :a", {name: 1}).status for name in "ab"]
        assert by_name == ["ok", "runtime_error"]


UTC = dt.UTC
PLAIN = [
    (np.int64(3), 3),
    (np.uint8(3), 3),
    (np.float32(0.5), 0.5),
    (np.float64("nan"), None),
    (np.bool_(True), 1),
    (np.str_("é"), "é"),
    (np.bytes_(b"a"), b"a"),
    (np.array(7), 7),
    (np.datetime64("2024-01-31"), "2024-01-31"),
    (np.datetime64("2024-01-31T10:20:30.000000001"), "2024-01-31 10:20:30"),
    (np.datetime64("NaT"), None),
    (Decimal("0.10"), 0.1),
    (Decimal("9007199254740993.00"), 9007199254740993),
    (Decimal("1e30"), 1e30),
    (Decimal("NaN"), None),
    (Decimal("Infinity"), float("inf")),
    (dt.date(2024, 1, 31), "2024-01-31"),
    (dt.time(10, 20), "10:20:00"),
    (dt.datetime(2024, 1, 31, 10, 20, 30, 500), "2024-01-31 10:20:30.000500"),  # noqa: DTZ001
    (dt.datetime(2024, 1, 31, 10, 20, tzinfo=UTC), "2024-01-31 10:20:00+00:00"),
    (bytearray(b"ab"), b"ab"),
    (memoryview(b"ab"), b"ab"),
]


def test_values_of_other_types_are_bound_and_scored_as_cells(executor: Executor, database: Path) -> None:
    values, cells = zip(*PLAIN, strict=True)
    outcomes = executor.execute_many([(database, "SELECT ?", (value,)) for value in values])
    got = [outcome.rows[0][0] for outcome in outcomes]
    assert got == list(cells)
    assert [type(cell) for cell in got] == [type(cell) for cell in cells]
    golds = [(["x"], [(value,)]) for value in values]
    arrays = executor.score_many([database] * len(values), ["SELECT '2024-01-31'"] * len(values), golds)
    assert arrays["bird"].tolist() == [float(cell == "2024-01-31") for cell in cells]
    assert executor.score(database, "SELECT 0.1", (["x"], [(Decimal("0.1"),)]))["bird"] == 1.0


@pytest.mark.parametrize(
    "value", [object(), 1j, dt.timedelta(1), np.timedelta64(1, "s"), np.array([1]), {}, np.complex64(1)]
)
def test_unsupported_values_are_refused(executor: Executor, database: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="a value must be None"):
        executor.execute(database, "SELECT ?", [value])
