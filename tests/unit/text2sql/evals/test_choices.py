"""Comparison of selection methods, worked out by hand on five questions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.evals.choices import SelectedQuery, compare_choices, table
from jaxrl_sql.types import Example

GOLD, SAME = "SELECT a, b FROM t", "SELECT a, b FROM t WHERE a > 0"
HALF = "SELECT a FROM t"  # half of the gold's columns
WRONG, BAD = "SELECT 7", "SELECT nothing"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with make_executor(ExecutorConfig(threads=1)) as executor:
        yield executor


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("choices") / "c.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    return str(path)


def test_every_selection_is_judged_by_every_rule(db: str, executor: Executor) -> None:
    def question(uid: str, gold: str = GOLD) -> Example:
        return Example(uid, "c", db, "?", gold)

    numbers = compare_choices(
        executor,
        [
            SelectedQuery(question("1"), GOLD, (WRONG, GOLD, HALF), (1, 1, 1)),
            SelectedQuery(question("2"), HALF, (HALF, GOLD, SAME), (2, 1, 2)),  # three votes for the gold's result
            SelectedQuery(question("3"), WRONG, (GOLD, WRONG), (1, 4)),
            SelectedQuery(question("4"), None),
            SelectedQuery(question("5", BAD), GOLD, (WRONG, GOLD), (1, 1)),  # its gold does not run
        ],
    )
    assert numbers["count"] == 5
    assert numbers["gold_failures"] == 1
    shares = {
        way: [4 * numbers[f"{way}{rule}"] for rule in ("bird", "ex_b", "paverl")]
        for way in ("", "first/", "majority/", "best/")
    }
    assert shares == {"": [1, 1, 1.5], "first/": [1, 1, 1.5], "majority/": [1, 1, 1], "best/": [3, 3, 3]}
    assert (numbers["gain/bird"], numbers["gain/paverl"]) == (0, 0)
    assert numbers["gain/bird/low"] <= 0 <= numbers["gain/bird/high"]
    assert table(numbers).rows[2] == ("verbal RL", "25.0", "25.0", "37.5")


def test_ex_is_the_sets_own_rule(db: str, executor: Executor) -> None:
    """Spider 2's golds are tables, and surplus columns do not count; EX_b allows `surplus_columns` of them."""
    example = Example("1", "c", db, "?", "", gold_tables=((("a",), ((1,), (2,))),))
    wide = "SELECT b, a FROM t ORDER BY a"
    local = compare_choices(executor, [SelectedQuery(example, wide, (wide,), (1,))], "spider2", surplus_columns=1)
    assert (local["accuracy"], local["spider2"], local["first/spider2"], local["gain/spider2"]) == (1, 1, 1, 0)
    assert (local["ex_b"], local["paverl"], "bird" in local) == (0, 1, False)
    assert table(local, "spider2").columns == ("", "EX (spider2)", "EX_b", "EX_f")
    assert compare_choices(executor, [SelectedQuery(example, wide, (wide,), (1,))], "spider2", str.upper)["ex_b"] == 1


def test_shares_are_absent_without_a_working_gold(db: str, executor: Executor) -> None:
    numbers = compare_choices(executor, [SelectedQuery(Example("1", "c", db, "?", BAD), GOLD, (GOLD,), (1,))])
    assert numbers["gold_failures"] == 1
    assert "bird" not in numbers
    assert table(numbers).rows[2] == ("verbal RL", "-", "-", "-")
