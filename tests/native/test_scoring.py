"""Scores: all forms of golds, arrays, duplicates, and caches by their counters."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlexec_rs import RULE_NAMES, STATUS_NAMES, Executor, Limits

# Slow examples on a busy machine are no failure.
SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

cells = st.one_of(
    st.none(),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0**53, -0.0]),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1]),
    st.sampled_from(["", "a", "1", "1.0", "é"]),
    st.sampled_from([b"", b"a", b"1"]),
)


Rows = list[tuple[object, ...]]
Pair = tuple[int, Rows, int, Rows]


@st.composite
def tables(draw: st.DrawFn, width: int) -> Rows:
    return draw(st.lists(st.tuples(*[cells] * width), max_size=6))


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    width = draw(st.integers(1, 3))
    other = draw(st.one_of(st.just(width), st.integers(1, 3)))
    left = draw(tables(width))
    right = draw(st.one_of(tables(other), st.permutations(left).map(lambda rows: rows + rows[:1])))
    return width, left, len(right[0]) if right else other, right


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_database(tmp_path_factory.mktemp("db") / "t.sqlite")
    time.sleep(2.1)  # a new file's identity changes once its time stamp can be trusted, which drops its results
    return path


@pytest.fixture(scope="module")
def thread_executor() -> Iterator[Executor]:
    with Executor(threads=2) as ex:
        yield ex


def make_database(path: Path, n: int = 10) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(i, str(i % 3)) for i in range(n)])
    connection.commit()
    connection.close()
    return path


def literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case float():
            return f"{value!r}"
        case _:
            return str(value)


def as_sql(width: int, rows: list[tuple[object, ...]]) -> str:
    if not rows:
        return "SELECT " + ", ".join(["1"] * width) + " WHERE 0"
    return "VALUES " + ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)


@pytest.mark.parametrize("n_examples", [100, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_bird_matches_python_set_equality(thread_executor: Executor, database: Path, n_examples: int) -> None:

    @settings(SETTINGS, max_examples=n_examples)
    @given(pairs())
    def holds_for(pair: Pair) -> None:
        width, left, other, right = pair
        expected = float(set(left) == set(right))
        names = [f"c{i}" for i in range(other)]
        score = thread_executor.score(database, as_sql(width, left), [as_sql(other, right)])
        assert (score["pred_status"], score["gold_status"], score["bird"]) == ("ok", "ok", expected)
        assert thread_executor.score(database, as_sql(width, left), (names, right))["bird"] == expected

    holds_for()


def test_score_many_gives_arrays_in_order(executor: Executor, database: Path) -> None:
    predicted = ["SELECT a FROM t", "SELECT b FROM t", "SELECT x FROM t", None, "DELETE FROM t"]
    arrays = executor.score_many([database] * 5, predicted, ["SELECT a FROM t ORDER BY a DESC"] * 5)
    assert arrays["bird"].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [STATUS_NAMES[i] for i in arrays["pred_status"]] == ["ok", "ok", "schema_error", "no_sql", "forbidden"]
    assert [STATUS_NAMES[i] for i in arrays["gold_status"]] == ["ok"] * 5
    assert arrays["pred_rows"].tolist() == [10, 10, 0, 0, 0]
    assert {name: array.dtype for name, array in arrays.items()} == {
        "pred_status": np.uint8,
        "gold_status": np.uint8,
        "pred_stop": np.uint8,
        "pred_rows": np.int64,
        "gold_rows": np.int64,
        "pred_ms": np.float64,
        "gold_ms": np.float64,
        "bird": np.float64,
    }


def test_a_gold_is_sql_a_table_an_outcome_or_a_list(executor: Executor, database: Path) -> None:
    sql = "SELECT b, count(*) FROM t GROUP BY b"
    table = (["b", "n"], [["0", 4.0], ("1", 3), ("2", True + 2)])
    outcome = executor.execute(database, sql)
    golds: list[Any] = [sql, table, outcome, ["SELECT 1", table], [outcome], ["SELECT nonsense", sql]]
    for gold in golds:
        score = executor.score(str(database), sql, gold)
        assert (score["bird"], score["gold_status"]) == (1.0, "ok"), gold
    assert executor.score(database, sql, ["SELECT 1", "SELECT nonsense"])["bird"] == 0.0
    assert executor.score(database, sql, "SELECT nonsense")["gold_status"] == "schema_error"


def test_a_list_of_databases_must_all_match(executor: Executor, database: Path, tmp_path: Path) -> None:
    other = make_database(tmp_path / "other.sqlite", n=12)
    constant, real = "SELECT 10", "SELECT count(*) FROM t"
    assert executor.score(database, constant, real)["bird"] == 1.0
    assert executor.score([database, other], constant, real)["bird"] == 0.0
    assert executor.score([database, other], real, real)["bird"] == 1.0
    missing = executor.score([database, tmp_path / "missing.sqlite"], real, real)
    assert (missing["bird"], missing["pred_status"]) == (0.0, "db_error")


def test_equal_items_run_and_compare_once(database: Path, isolation: str) -> None:
    with Executor(threads=2, isolation=isolation) as ex:
        predicted = ["SELECT a FROM t WHERE a < 5"] * 6 + ["SELECT a FROM t WHERE a < 4"] * 2
        golds = ["SELECT a FROM t WHERE a <= 4"] * 8
        assert ex.score_many([database] * 8, predicted, golds)["bird"].tolist() == [1.0] * 6 + [0.0] * 2
        stats = ex.stats()
        assert (stats["requests"], stats["runs"], stats["duplicates"], stats["comparisons"]) == (16, 3, 13, 2)
        ex.score_many([database] * 8, predicted, golds)
        stats = ex.stats()
        assert (stats["runs"], stats["gold_hits"], stats["cache_hits"]) == (3, 1, 2)
        assert stats["gold_bytes"] > 0


def test_golds_stay_cached_when_candidates_are_evicted(database: Path, isolation: str) -> None:
    with Executor(threads=1, cache_bytes=20_000, isolation=isolation) as ex:
        ex.score(database, "SELECT 1", "SELECT 2")
        ex.execute_many([(database, f"SELECT {i}, hex(zeroblob(300))") for i in range(200)])
        assert ex.stats()["cache_bytes"] <= 20_000
        before = ex.stats()
        ex.score(database, "SELECT 1", "SELECT 2")
        after = ex.stats()
        assert (after["gold_hits"] - before["gold_hits"], after["runs"] - before["runs"]) == (1, 1)


def test_limits_are_part_of_the_cache_key(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as ex:
        assert ex.execute(database, "SELECT a FROM t").status == "ok"
        assert ex.execute(database, "SELECT a FROM t", limits=Limits(max_rows=3)).status == "too_large"
        assert ex.execute(database, "SELECT a FROM t").status == "ok"
        assert (ex.stats()["runs"], ex.stats()["cache_hits"]) == (2, 1)


def test_a_changed_file_is_detected_immediately(tmp_path: Path, isolation: str) -> None:
    path = make_database(tmp_path / "t.sqlite")
    with Executor(threads=2, isolation=isolation) as ex, sqlite3.connect(path) as connection:
        for i in range(5):
            assert ex.execute(path, "SELECT count(*) FROM t").rows == [(10 + i,)]
            assert ex.execute(path, "SELECT count(*) FROM t").rows == [(10 + i,)]
            connection.execute("INSERT INTO t VALUES (1, 'x')")
            connection.commit()
        assert ex.stats()["cache_hits"] == 5
        connection.execute("DELETE FROM t WHERE b = 'x'")
        connection.commit()
        path.unlink()
        make_database(path, n=2)
        assert ex.execute(path, "SELECT count(*) FROM t").rows == [(2,)]
    connection.close()


def test_invalid_arguments_raise_in_one_line(executor: Executor, database: Path) -> None:
    with pytest.raises(ValueError, match=r"no rule is named \"birds\"; the rules are bird"):
        executor.score(database, "SELECT 1", "SELECT 1", rules=("birds",))
    with pytest.raises(ValueError, match="2 db_paths, 1 pred_sqls, 1 golds"):
        executor.score_many([database] * 2, ["SELECT 1"], ["SELECT 1"])
    with pytest.raises(TypeError, match="pred_sqls must be a sequence, not a str"):
        executor.score_many([database], "SELECT 1", ["SELECT 1"])
    with pytest.raises(ValueError, match="gold row 1 has 1 values for 2 columns"):
        executor.score(database, "SELECT 1", (["a", "b"], [(1, 2), (1,)]))
    with pytest.raises(TypeError, match=r"a value must be None, int, float, str, bytes, .* not list"):
        executor.score(database, "SELECT 1", (["a"], [([],)]))
    with pytest.raises(TypeError, match="SQL must be a str or None, not int"):
        executor.execute(database, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one database"):
        executor.score([], "SELECT 1", "SELECT 1")


def test_an_empty_batch_gives_empty_arrays(executor: Executor) -> None:
    for options in (None, {}, []):
        arrays = executor.score_many([], [], [], rules=("bird", "qatch"), options=options)
        assert {name: (array.shape, array.dtype) for name, array in arrays.items()}["qatch"] == ((0,), np.float64)
        assert {len(array) for array in arrays.values()} == {0}
    job = executor.submit_score([], [], [])
    assert (job.done(), job.progress(), job.result()["bird"].tolist()) == (True, (0, 0), [])
    assert executor.execute_many([]) == []


def test_score_without_rules_returns_statuses(executor: Executor, database: Path) -> None:
    assert set(executor.score(database, "SELECT 1", "SELECT 1", rules=())) == {
        "pred_status", "gold_status", "pred_stop", "pred_rows", "gold_rows", "pred_ms", "gold_ms"
    }  # fmt: skip


def test_a_gold_without_columns_or_rows_is_compared(executor: Executor, database: Path) -> None:
    empty, item = "SELECT a, b FROM t WHERE 0", "SELECT 1"
    for gold in (([], []), (["a"], []), (["a", "b", "c"], [])):
        scores = [executor.score(database, sql, gold, rules=RULE_NAMES) for sql in (empty, item)]
        assert [score["gold_status"] for score in scores] == ["ok", "ok"]
        for rule in ("bird", "refined", "test_suite", "qatch", "soft_f1"):
            assert [score[rule] for score in scores] == [1.0, 0.0], (rule, gold)
        assert all(0.0 <= score[rule] <= 1.0 for score in scores for rule in RULE_NAMES)
    rows_of_nothing = executor.score(database, item, ([], [(), ()]), rules=RULE_NAMES)
    assert {rule: rows_of_nothing[rule] for rule in ("bird", "refined", "test_suite", "qatch")} == {
        "bird": 0.0,
        "refined": 0.0,
        "test_suite": 0.0,
        "qatch": 1 / 6,  # no cell is shared, and there is one row for two
    }


def test_each_item_has_its_own_options(executor: Executor, database: Path) -> None:
    gold, pred = "SELECT a, b FROM t", "SELECT a FROM t"
    options = [None, {"condition_cols": [0]}, {}, {"condition_cols": [1]}]
    arrays = executor.score_many([database] * 4, [pred] * 4, [gold] * 4, rules=("spider2",), options=options)
    assert arrays["spider2"].tolist() == [0.0, 1.0, 0.0, 0.0]
    arrays = executor.score_many([database] * 2, [pred] * 2, [gold] * 2, rules=("spider2",), options=options[1])
    assert arrays["spider2"].tolist() == [1.0, 1.0]


def test_all_forms_of_golds_and_databases_can_be_mixed(executor: Executor, database: Path, tmp_path: Path) -> None:
    other = make_database(tmp_path / "other.sqlite", n=12)
    count = "SELECT count(*) FROM t"
    paths = [database, [database], [database, other], (other, database), str(other), [database, other]]
    golds: list[Any] = [
        count,
        (["n"], [(10,)]),
        (["n"], [(10,)]),
        ["SELECT 10", count],
        ["SELECT 10", "SELECT 12"],
        ["SELECT 10", "SELECT 12"],
    ]
    arrays = executor.score_many(paths, [count] * 6, golds)
    # In the last item each gold is right on one database only.
    assert arrays["bird"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert [STATUS_NAMES[i] for i in arrays["gold_status"]] == ["ok"] * 6


def test_thousands_of_items_keep_their_order(executor: Executor, database: Path) -> None:
    n = 5_000
    predicted = [f"SELECT {i % 7}" for i in range(n)]
    golds = [f"SELECT {i % 5}" for i in range(n)]
    arrays = executor.score_many([database] * n, predicted, golds, rules=("bird", "refined"))
    expected = [float(i % 7 == i % 5) for i in range(n)]
    assert arrays["bird"].tolist() == expected
    assert arrays["refined"].tolist() == expected


def test_an_invalid_item_is_named_by_its_index(executor: Executor, database: Path) -> None:
    three = [database] * 3, ["SELECT 1"] * 3
    with pytest.raises(ValueError, match="item 2: gold row 0 has 2 values for 1 columns"):
        executor.score_many(*three, ["SELECT 1", "SELECT 1", (["a"], [(1, 2)])])
    with pytest.raises(
        TypeError, match=r"item 1: a gold tuple must be \(columns, rows\); pass several golds as a list"
    ):
        executor.score_many(*three, ["SELECT 1", ("SELECT 1", "SELECT 2"), "SELECT 1"])
    with pytest.raises(TypeError, match="item 0: SQL must be a str or None, not bytes"):
        executor.score_many([database], [b"SELECT 1"], ["SELECT 1"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match='item 1: no option is named "order"'):
        executor.score_many(*three, ["SELECT 1"] * 3, options=[None, {"order": True}, None])
    with pytest.raises(ValueError, match="item 2: an item needs at least one gold"):
        executor.score_many(*three, ["SELECT 1", "SELECT 1", []])
    for options, message in (([], "0 options for 3 items"), ([None] * 4, "4 options for 3 items")):
        with pytest.raises(ValueError, match=message):
            executor.score_many(*three, ["SELECT 1"] * 3, options=options)
    with pytest.raises(ValueError, match="a gold outcome must be ok"):
        executor.score(database, "SELECT 1", executor.execute(database, "SELEC"))
    with pytest.raises(TypeError, match="a gold must be SQL"):
        executor.score(database, "SELECT 1", None)  # type: ignore[arg-type]
