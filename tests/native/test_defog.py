"""The rule `defog` against a pandas scorer, written from Defog's description, on thousands of random pairs."""

from __future__ import annotations

import random
import re
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal, assert_series_equal

from sqlexec_rs import Executor


class Case(NamedTuple):
    """Two queries, and whether the question requires a row order."""

    predicted: str
    gold: str
    asks_for_order: bool


# --- Reference ---


def frame_of(connection: sqlite3.Connection, sql: str) -> pd.DataFrame:
    cursor = connection.execute(sql)
    return pd.DataFrame(cursor.fetchall(), columns=[column[0] for column in cursor.description])


def make_unique(names: list[str]) -> list[str]:
    counts = Counter(names)
    return [f"{name}_{index}" if counts[name] > 1 else name for index, name in enumerate(names)]


def first_key(sql: str) -> tuple[list[str], bool] | None:
    """Return the words of a query's first ORDER BY key, and whether it is ASC."""
    clause = re.search(r"ORDER BY[\s\S]*", sql, re.IGNORECASE)
    if clause is None:
        return None
    keys = re.findall(r"(?<=ORDER BY)(.*?)(?=;|,|\)|$)", clause[0], re.IGNORECASE)
    key = [word.rsplit(".", 1)[-1] for word in (keys[0].split() if keys else [])]
    uppercase = {word.upper() for word in key}
    keywords = ("desc", "asc", "nulls", "last", "first", "limit")
    names = [word.replace("(", "") for word in key]
    return [name for name in names if name.lower() not in keywords], "DESC" not in uppercase and "ASC" in uppercase


def normalise(frame: pd.DataFrame, asks_for_order: bool, sql: str | None) -> pd.DataFrame:
    """Drop duplicate rows, order columns by name; order rows by all columns or by the query's first key."""
    frame = frame.drop_duplicates()
    frame = frame.reindex(sorted(frame.columns), axis=1)
    if not asks_for_order:
        frame = frame.sort_values(by=list(frame.columns))
    elif sql is not None and (key := first_key(sql)) is not None:
        names, ascending = key
        others = [name for name in frame.columns if name not in names]
        names = [name for name in names if name in frame.columns]
        frame = frame.sort_values(by=names + others, ascending=ascending)[others + names]
    frame.columns = pd.Index(make_unique(list(frame.columns)))
    return frame.reset_index(drop=True)


def is_repeated(gold: pd.DataFrame, predicted: pd.DataFrame) -> bool:
    try:
        return bool(np.all(gold.values == predicted.values))
    except ValueError:  # sizes of which none is 1
        return False


def has_columns(gold: pd.DataFrame, predicted: pd.DataFrame, asks_for_order: bool) -> bool:
    if gold.empty:
        return False
    gold.columns = pd.Index(make_unique(list(gold.columns)))
    left = predicted.copy()
    left.columns = pd.Index(make_unique(list(predicted.columns)))
    matched: list[str] = []
    for name in gold.columns:
        for other in left.columns:
            wanted = gold[name].sort_values().reset_index(drop=True)
            result = left[other].sort_values().reset_index(drop=True)
            try:
                assert_series_equal(wanted, result, check_dtype=False, check_names=False)
            except AssertionError:
                continue
            matched.append(other)
            left = left.drop(columns=[other])
            break
        else:
            return False
    chosen = predicted[matched].rename(columns=dict(zip(matched, gold.columns, strict=True)))
    try:
        assert_frame_equal(
            normalise(gold, asks_for_order, None), normalise(chosen, asks_for_order, None), check_dtype=False
        )
    except AssertionError:
        return False
    return True


def is_correct(connection: sqlite3.Connection, case: Case) -> bool:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mismatched null-like values", FutureWarning)  # None and NaN, equal for now
        return _is_correct(connection, case)


def _is_correct(connection: sqlite3.Connection, case: Case) -> bool:
    gold, predicted = frame_of(connection, case.gold), frame_of(connection, case.predicted)
    if is_repeated(gold, predicted):
        return True
    try:
        item = normalise(gold, case.asks_for_order, case.gold)
        other = normalise(predicted, case.asks_for_order, case.predicted)
        if item.shape == other.shape:
            with pd.option_context("future.no_silent_downcasting", True):
                if np.all(item.fillna(-99999).values == other.fillna(-99999).values):
                    return True
        return has_columns(gold, predicted, case.asks_for_order)
    except (TypeError, ValueError, KeyError):  # pandas cannot sort or distinguish it
        return False


# --- Random pairs, usually similar ---

CELLS: dict[str, list[Any]] = {
    "numbers": [None, 0, 1, 2, 10, -1, 0.0, 1.0, 2.0, 1.00000001, 1.000001, 1.001, 100000, 100001, 100000.5, -99999],
    "texts": [None, "", "a", "b", "B", "é", "1", "1.0"],
    "all": [None, 0, 1, 2, 1.0, 2.5, "a", "b", "1", b"a", b"1"],
    "few": [0, 1, 1.0, "a", None],
}
NAMES = ["a", "b", "c", "Name", "count(*)"]


def quote(name: str) -> str:
    return '"' + name + '"'


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return "'" + value + "'"
    return repr(value)


def query(draw: random.Random, names: list[str], columns: list[int], rows: list[tuple[Any, ...]], order: bool) -> str:
    chosen = ", ".join(f"column{column + 1} AS {quote(name)}" for name, column in zip(names, columns, strict=True))
    width = max(columns) + 1
    some = rows or [(None,) * width]
    values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in some)
    text = f"SELECT {chosen} FROM (VALUES {values})" + ("" if rows else " WHERE 0")
    if order and draw.random() < 0.8:
        keyword = draw.choice(["ORDER BY", "order by", "Order By"])
        key = draw.choice([*names, "1", *(f"t.{name}" for name in names[:1])])
        key = key if key.isidentifier() or key.isdigit() else quote(names[0])
        way = draw.choice(["", " DESC", " desc", " ASC", " DESC NULLS LAST"])
        rest = draw.choice(["", f", {quote(names[-1])}", "\nLIMIT 3", " LIMIT 5", f",\n {quote(names[-1])} DESC"])
        text = f"{text} {keyword} {draw.choice(['', '  '])}{key}{way}{rest}"
    return text


def case_of(draw: random.Random, cells: list[Any]) -> Case:
    width, few = draw.randint(1, 3), draw.sample(cells, min(len(cells), draw.randint(1, 6)))
    by_column = [draw.choice([few, cells[: len(cells) // 2], few[:1]]) for _ in range(width)]
    rows = [tuple(draw.choice(values) for values in by_column) for _ in range(draw.choice([0, 1, 1, 2, 3, 4, 5]))]
    asks_for_order = draw.random() < 0.4
    names = [draw.choice(NAMES) if draw.random() < 0.2 else NAMES[i] for i in range(width)]
    gold = query(draw, names, [*range(width)], rows, draw.random() < 0.5)
    order = [*range(width)] if draw.random() < 0.4 else draw.sample(range(width), width)
    if draw.random() < 0.4:  # columns next to the gold's
        order.insert(draw.randrange(len(order) + 1), draw.randrange(width))
    predicted = list(rows) if draw.random() < 0.4 else draw.sample(rows, len(rows))
    kind = draw.choice(["same", "same", "changed", "repeated", "shorter", "one column", "empty"])
    if kind == "changed" and predicted:
        row, column = draw.randrange(len(predicted)), draw.randrange(width)
        predicted[row] = (*predicted[row][:column], draw.choice(cells), *predicted[row][column + 1 :])
    elif kind == "repeated" and predicted:
        predicted.append(draw.choice(predicted))
    elif kind == "shorter":
        predicted = predicted[:-1]
    elif kind == "one column":
        order = order[:1]
    elif kind == "empty" and draw.random() < 0.3:
        predicted = []
    is_named_alike = draw.random() < 0.6
    others = [names[column] if is_named_alike else draw.choice(NAMES) for column in order]
    return Case(query(draw, others, order, predicted, draw.random() < 0.5), gold, asks_for_order)


# --- Tests ---


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(threads=2) as ex:
        yield ex


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("defog") / "empty.sqlite"
    sqlite3.connect(path).close()
    path.touch()
    return path


def runs(connection: sqlite3.Connection, case: Case) -> bool:
    try:
        for sql in case[:2]:
            connection.execute(sql).fetchall()
    except sqlite3.Error:
        return False
    return True


@pytest.mark.parametrize("n_pairs", [200, pytest.param(3_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("cells", CELLS)
def test_defog_matches_its_scorer(executor: Executor, database: Path, cells: str, n_pairs: int) -> None:
    draw, connection = random.Random(11), sqlite3.connect(":memory:")
    drawn = [case_of(draw, CELLS[cells]) for _ in range(n_pairs)]
    cases = [case for case in drawn if runs(connection, case)]
    assert len(cases) > n_pairs / 2
    options = [{"asks_for_order": case.asks_for_order} for case in cases]
    predicted, golds = [case.predicted for case in cases], [case.gold for case in cases]
    result = executor.score_many([str(database)] * len(cases), predicted, golds, rules=("defog",), options=options)
    assert set(result["pred_status"].tolist()) == {0}, "every prediction runs"
    theirs = [float(is_correct(connection, case)) for case in cases]
    assert 0.1 < sum(theirs) / len(theirs) < 0.9, "some are right, and some wrong"
    pairs = zip(cases, result["defog"].tolist(), theirs, strict=True)
    assert not [pair for pair in pairs if pair[1] != pair[2]][:3]


T = "FROM (VALUES (1, 'a', 2.5), (2, 'b', 0.5), (3, 'a', 0.5))"


@pytest.mark.parametrize(
    ("predicted", "gold", "asks_for_order", "right"),
    [
        (f"SELECT column2, column1 {T}", f"SELECT column1, column2 {T}", False, True),
        (f"SELECT column2 AS x, column3 AS z, column1 AS y {T}", f"SELECT column1, column2 {T}", False, True),
        (f"SELECT column1 {T}", f"SELECT column1, column2 {T}", False, False),
        (f"SELECT column2 {T}", f"SELECT DISTINCT column2 {T}", False, True),
        # Columns are found with their duplicates.
        (f"SELECT column2 AS x, column2 AS y {T}", f"SELECT DISTINCT column2 {T}", False, False),
        (f"SELECT column1 {T} ORDER BY 1 DESC", f"SELECT column1 {T}", False, True),
        (f"SELECT column1 {T} ORDER BY 1 DESC", f"SELECT column1 {T}", True, False),
        # Sorted by the same column and direction, tied rows may have any order.
        (
            f"SELECT * {T} ORDER BY column3 DESC, column1 DESC",
            f"SELECT * {T} ORDER BY column3 DESC, column1",
            True,
            True,
        ),
        (f"SELECT * {T} ORDER BY column3 ASC", f"SELECT * {T} ORDER BY column3 DESC", True, False),
        ("SELECT 1.000001 AS a", "SELECT 1.0 AS b", False, True),
        ("SELECT 1.000001 AS a", "SELECT 1 AS b", False, False),
        ("SELECT 1 WHERE 0", "SELECT 5", False, True),  # the empty array is repeated no times
        ("SELECT 1, 1, 1", "SELECT 1", False, True),
    ],
)
def test_defog_examples(
    executor: Executor, database: Path, predicted: str, gold: str, asks_for_order: bool, right: bool
) -> None:
    result = executor.score(
        str(database), predicted, gold, rules=("defog",), options={"asks_for_order": asks_for_order}
    )
    assert result["defog"] == float(right)
    assert is_correct(sqlite3.connect(":memory:"), Case(predicted, gold, asks_for_order)) == right
