"""Every rule against a small, slow Python reference, written from its description."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sqlexec_rs import RULE_NAMES, Executor

# Slow examples on a busy machine are no failure.
SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
N_EXAMPLES = pytest.mark.parametrize("n_examples", [80, pytest.param(1_000, marks=pytest.mark.nightly)])

Row = tuple[Any, ...]
Rows = list[Row]
Pair = tuple[int, Rows, int, Rows]
Column = tuple[str, list[Any]]  # text, float or int, and its values

CELLS = st.one_of(
    st.none(),
    st.integers(-1, 2),
    st.sampled_from([0.0, 1.0, 10.0, -0.0, 0.5, 0.004, 1.004, 1.02, 1e-5, 1e16, 1.5e300]),
    st.sampled_from([10, 2**53, 2**53 + 1, 2**63 - 1]),
    st.sampled_from(["", "a", "1", "1.0", "10", "007", "é", "None", "b", "NA"]),
    st.sampled_from([b"", b"a", b"1", b"\xff'"]),
)
FEW = st.sampled_from([0, 1, 1.0, None, "a"])


@st.composite
def pairs(draw: st.DrawFn, cells: st.SearchStrategy[Any] = CELLS, max_width: int = 4) -> Pair:
    """Draw two tables, often similar: other cells of the same set, or a shuffle of rows and columns with a change."""
    width = draw(st.integers(1, max_width))
    left = draw(st.lists(st.tuples(*[cells] * width), max_size=6))
    kind = draw(st.sampled_from(["other", "same width", "shuffled", "shuffled", "changed", "shorter"]))
    if kind in {"other", "same width"}:
        other = width if kind == "same width" else draw(st.integers(1, max_width))
        return width, left, other, draw(st.lists(st.tuples(*[cells] * other), max_size=6))
    order = draw(st.permutations(range(width)))
    right = [tuple(row[i] for i in order) for row in draw(st.permutations(left))]
    if kind == "changed" and right:
        index = draw(st.integers(0, len(right) - 1))
        right[index] = (draw(cells), *right[index][1:])
    if kind == "shorter":
        right = right[: draw(st.integers(0, len(right)))]
    return width, left, width, right


# --- References: predicted rows, gold rows, and widths where rows do not determine them ---


def bird(predicted: Rows, gold: Rows, _widths: tuple[int, int]) -> float:
    return float(set(predicted) == set(gold))


def refined_key(value: Any) -> tuple[int, Any]:
    kind = 0 if value is None else 1 if isinstance(value, int | float) else 2 if isinstance(value, str) else 3
    return kind, 0 if value is None else value


def compare_refined(predicted: Rows, gold: Rows, _widths: tuple[int, int]) -> float:
    left, right = ([tuple(sorted(row, key=refined_key)) for row in rows] for rows in (predicted, gold))
    return float(Counter(left) == Counter(right))


def by_text(row: Row) -> Row:
    return tuple(sorted(row, key=lambda value: str(value) + str(type(value))))


def spider_suite(predicted: Rows, gold: Rows, widths: tuple[int, int], *, ordered: bool) -> float:
    if not predicted and not gold:
        return 1.0
    if len(predicted) != len(gold) or widths[0] != widths[1]:
        return 0.0
    left, right = [by_text(row) for row in predicted], [by_text(row) for row in gold]
    if (left != right) if ordered else (set(left) != set(right)):
        return 0.0
    for order in itertools.permutations(range(widths[0])):
        moved = [tuple(row[i] for i in order) for row in predicted]
        if moved == gold if ordered else Counter(moved) == Counter(gold):
            return 1.0
    return 0.0


def qatch(predicted: Rows, gold: Rows, _widths: tuple[int, int]) -> float:
    if not predicted or not gold:
        return float(not predicted and not gold)
    left, right = ({cell for row in rows for cell in row} for rows in (predicted, gold))
    shared = len(left & right)
    sizes = sorted((len(predicted), len(gold)))
    return (shared / len(left) + shared / len(right) + sizes[0] / sizes[1]) / 3


def number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text) if set(text.strip()) <= set("0123456789+-.eE") else None
    return None


def normalise(values: list[Any]) -> Column:
    parsed = [None if v is None or v == "" else number(v) if isinstance(v, str) else v for v in values]
    blank = [v is None or v == "" for v in values]
    if any(isinstance(p, bytes) or (p is None and not b) for p, b in zip(parsed, blank, strict=True)):
        return "text", ["-10000000000" if v is None else str(v) for v in values]
    whole = [int(v) if isinstance(v, int) or (isinstance(v, str) and v.isdecimal()) else None for v in values]
    if values and all(w is not None for w in whole):
        return "int", whole
    return "float", [-1e10 if p is None else float(p) for p in parsed]


def close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 0.005


def same_column(left: Column, right: Column) -> bool:
    if not left[1] and not right[1]:
        return True
    if "text" in {left[0], right[0]} or left[0] == right[0] == "int":
        return left[0] == right[0] and sorted(left[1]) == sorted(right[1])
    prepared = [sorted(round(v, 3) if k == "float" else v for v in values) for k, values in (left, right)]
    if left[0] != right[0]:
        return prepared[0] == prepared[1]
    return len(prepared[0]) == len(prepared[1]) and all(map(close, *prepared))


def count_matches(reference: list[Column], others: list[Column]) -> int:
    unused, n = list(others), 0
    for column in reference:
        for index, other in enumerate(unused):
            if same_column(column, other):
                del unused[index]
                n += 1
                break
    return n


def key_of(columns: list[Column]) -> Column:
    return next(column for kind in ("text", "float", "int") for column in columns if column[0] == kind)


def filter_by_key(smaller: list[Column], larger: list[Column], drop: bool = False) -> list[Column] | None:
    kind, key = key_of(smaller)
    for other, values in larger:
        rows = [v in key or (kind == "float" and any(close(v, k) for k in key)) for v in values if other == kind]
        if other == kind and sum(rows) >= len(set(key)):
            remaining = [row for row, keep in enumerate(rows) if keep]
            if drop and len(remaining) > len(key):
                remaining = list({tuple(vs[row] for _, vs in larger): row for row in reversed(remaining)}.values())
            if len(remaining) != len(key):
                return None
            return [(k, [vs[row] for row in remaining]) for k, vs in larger]
    return None


def sub_multiset(part: Column, whole: Column) -> bool:
    if part[0] != whole[0]:
        return False
    if part[0] != "float":
        return not Counter(part[1]) - Counter(whole[1])
    rest = sorted(whole[1])
    for value in sorted(part[1]):
        index = next((i for i, other in enumerate(rest) if close(value, other)), None)
        if index is None:
            return False
        del rest[: index + 1]
    return True


def paverl(predicted: Rows, gold: Rows, widths: tuple[int, int], slack: int = 5, *, drop: bool = False) -> float:
    left = [normalise([row[i] for row in predicted]) for i in range(widths[0])]
    right = [normalise([row[i] for row in gold]) for i in range(widths[1])]
    if abs(len(predicted) - len(gold)) > slack or bool(predicted) != bool(gold):
        return 0.0
    if not gold:
        return min(widths) / widths[1]
    if len(predicted) == len(gold):
        n = count_matches(right, left)
    elif len(predicted) > len(gold):
        remaining = filter_by_key(right, left, drop)
        n = 0 if remaining is None else count_matches(right, remaining)
    elif widths[1] == 1 and sub_multiset(key_of(left), right[0]):
        n = widths[0]
    else:
        remaining = filter_by_key(left, right)
        n = 0 if remaining is None else count_matches(remaining, left)
    return min(len(predicted), len(gold)) * min(n, widths[1]) / (len(gold) * widths[1])


# --- Tests ---


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(threads=1) as ex:
        yield ex


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "empty.sqlite"
    sqlite3.connect(path).close()
    path.touch()
    return path


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def as_sql(width: int, rows: Rows) -> str:
    if not rows:
        return "SELECT " + ", ".join(["1"] * width) + " WHERE 0"
    return "VALUES " + ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)


def ours(ex: Executor, database: Path, rule: str, pair: Pair, **options: Any) -> float:
    width, left, other, right = pair
    gold = ([f"c{i}" for i in range(other)], right)
    value: float = ex.score(database, as_sql(width, left), gold, rules=(rule,), options=options)[rule]
    return value


SIMPLE: dict[str, Callable[[Rows, Rows, tuple[int, int]], float]] = {
    "bird": bird, "refined": compare_refined, "qatch": qatch, "paverl": paverl,
}  # fmt: skip


@pytest.mark.parametrize("rule", SIMPLE)
@N_EXAMPLES
def test_a_rule_matches_its_reference(executor: Executor, database: Path, rule: str, n_examples: int) -> None:
    @settings(SETTINGS, max_examples=n_examples)
    @given(pair=pairs())
    def check(pair: Pair) -> None:
        width, left, other, right = pair
        expected = pytest.approx(SIMPLE[rule](left, right, (width, other)), abs=1e-12)
        assert ours(executor, database, rule, pair) == expected

    check()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("cells", [CELLS, FEW], ids=["many", "few"])
@N_EXAMPLES
def test_test_suite_matches_its_reference(
    executor: Executor, database: Path, cells: st.SearchStrategy[Any], ordered: bool, n_examples: int
) -> None:
    @settings(SETTINGS, max_examples=n_examples)
    @given(pair=pairs(cells, 5))
    @example(pair=(2, [(1, 10)], 2, [(1.0, 10.0)]))
    @example(pair=(2, [(1, 2)], 2, [(2.0, 1.0)]))
    def check(pair: Pair) -> None:
        width, left, other, right = pair
        expected = spider_suite(left, right, (width, other), ordered=ordered)
        assert ours(executor, database, "test_suite", pair, ordered=ordered) == expected

    check()


numbers = st.one_of(st.none(), st.integers(0, 3), st.sampled_from([0.0, 1.0, 1.004, 1.006, 2.5, "1", "x", ""]))


@N_EXAMPLES
def test_paverl_filters_by_key(executor: Executor, database: Path, n_examples: int) -> None:
    @settings(SETTINGS, max_examples=n_examples)
    @given(pair=pairs(numbers, 3), slack=st.sampled_from([0, 1, 5, 30]))
    def check(pair: Pair, slack: int) -> None:
        width, left, other, right = pair
        expected = paverl(left, right, (width, other), slack)
        assert ours(executor, database, "paverl", pair, row_slack=slack) == pytest.approx(expected, abs=1e-12)

    check()


def test_paverl_example_is_capped(executor: Executor, database: Path) -> None:
    predicted = [("a", 1, 2, 3), ("b", 1, 2, 3), ("c", 1, 2, 3)]
    assert ours(executor, database, "paverl", (4, predicted, 1, [("a",), ("b",), ("c",), ("d",)])) == 0.75
    assert ours(executor, database, "paverl", (1, [("00501",)], 1, [(501,)])) == 1.0
    assert ours(executor, database, "paverl", (1, [("NA",)], 1, [("NA",)])) == 1.0


@st.composite
def draw_repeated(draw: st.DrawFn) -> Pair:
    """Draw a gold and a prediction with repeated rows, as without DISTINCT, and perhaps other rows."""
    width, gold, _, other = draw(pairs(numbers, 3))
    again = draw(st.lists(st.sampled_from(gold), max_size=4)) if gold else []
    rest = draw(st.sampled_from([[], [row[:width] for row in other if len(row) >= width][:1]]))
    return width, draw(st.permutations(gold + again + rest)), width, gold


@N_EXAMPLES
def test_ex_b_matches_the_paverl_reference(executor: Executor, database: Path, n_examples: int) -> None:
    @settings(SETTINGS, max_examples=2 * n_examples)
    @given(
        pair=st.one_of(pairs(numbers, 3), draw_repeated()),
        slack=st.sampled_from([0, 5, 30]),
        surplus=st.sampled_from([None, 1, 2]),
        drop=st.booleans(),
    )
    def check(pair: Pair, slack: int, surplus: int | None, drop: bool) -> None:
        width, left, other, right = pair
        share = paverl(left, right, (width, other), slack, drop=drop)
        expected = float(share == pytest.approx(1.0, abs=1e-12) and (surplus is None or width - other < surplus))
        options = {"row_slack": slack, "drop_duplicates": drop}
        assert ours(executor, database, "paverl", pair, **options) == pytest.approx(share, abs=1e-12)
        assert ours(executor, database, "ex_b", pair, surplus_columns=surplus, **options) == expected

    check()


def test_a_missing_distinct_is_right_only_in_evaluation(executor: Executor, database: Path) -> None:
    gold = [("a", 1), ("b", 2)]
    pair: Pair = (2, [*gold, ("a", 1)], 2, gold)
    result = [ours(executor, database, rule, pair, drop_duplicates=True) for rule in ("ex_b", "paverl")]
    assert result == [1.0, 1.0]
    assert ours(executor, database, "paverl", pair) == 0.0


def test_an_integer_is_compared_exactly_with_a_float(executor: Executor, database: Path) -> None:
    result = [ours(executor, database, "paverl", (1, [(value,)], 1, [(7,)])) for value in (7, 7.0, 7.001, 6.999, "7")]
    assert result == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert ours(executor, database, "paverl", (1, [(7.001,)], 1, [(7.0,)])) == 1.0


def test_ex_b_counts_surplus_columns(executor: Executor, database: Path) -> None:
    pair: Pair = (3, [("a", 1, 2), ("b", 3, 4)], 1, [("b",), ("a",)])
    result = [ours(executor, database, "ex_b", pair, surplus_columns=k) for k in (None, 3, 2, 1)]
    assert result == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="surplus_columns must be at least 1"):
        ours(executor, database, "ex_b", pair, surplus_columns=0)


@N_EXAMPLES
def test_equal_row_sets_have_equal_digests(executor: Executor, database: Path, n_examples: int) -> None:
    @settings(SETTINGS, max_examples=n_examples)
    @given(pair=pairs())
    def check(pair: Pair) -> None:
        width, left, other, right = pair
        first, second = (executor.execute(database, as_sql(*side)) for side in ((width, left), (other, right)))
        assert (first.set_digest == second.set_digest) == (set(left) == set(right))

    check()


def test_failed_queries_have_no_digest(executor: Executor, database: Path) -> None:
    assert executor.execute(database, "SELECT nope").set_digest is None


def test_row_order_counts_if_the_gold_has_order_by(executor: Executor, database: Path) -> None:
    up, down = "SELECT 1 AS x UNION SELECT 2 ORDER BY x", "SELECT 1 AS x UNION SELECT 2 ORDER BY x DESC"

    def score(gold: str, **options: Any) -> float:
        return float(executor.score(database, up, gold, rules=("test_suite",), options=options)["test_suite"])

    assert score(up) == 1.0
    assert score(down) == 0.0
    assert score(down, ordered=False) == 1.0
    assert score("SELECT 2 UNION ALL SELECT 1 /* Order By */") == 0.0
    assert score("SELECT 2 UNION ALL SELECT 1") == 1.0


def test_distinct_is_stripped_on_request(executor: Executor, database: Path) -> None:
    predicted = "SELECT count(DISTINCT x) FROM (SELECT 1 AS x UNION ALL SELECT 1)"
    gold = "SELECT count(x) FROM (SELECT 1 AS x UNION ALL SELECT 1)"
    assert executor.score(database, predicted, gold)["bird"] == 0.0
    assert executor.score(database, predicted, gold, options={"strip_distinct": True})["bird"] == 1.0
    both = executor.score_many([database] * 2, [predicted] * 2, [gold] * 2, options=[None, {"strip_distinct": True}])
    assert both["bird"].tolist() == [0.0, 1.0]


ALIKE: dict[str, Rows] = {
    "all bits": [tuple((n >> i) & 1 for i in range(8)) for n in range(256)],
    "even parity": [tuple((n >> i) & 1 for i in range(8)) for n in range(256) if n.bit_count() % 2 == 0],
    "one hot": [tuple(int(i == n) for i in range(8)) for n in range(8)],
    "latin square": [tuple((i + n) % 8 for i in range(8)) for n in range(8)],
    "latin square of another group": [tuple(i ^ n for i in range(8)) for n in range(8)],
    "constant": [(1,) * 8] * 50,
    "two blocks": [tuple((n >> (i // 4)) & 1 for i in range(8)) for n in range(4)] * 3,
    "cycle edges": [tuple(int(i in {n, (n + 1) % 8}) for i in range(8)) for n in range(8)],
    "two squares": [tuple(int(i in {n, n // 4 * 4 + (n + 1) % 4}) for i in range(8)) for n in range(8)],
}


@pytest.mark.parametrize("name", ALIKE)
def test_similar_columns_are_compared_in_bounded_time(executor: Executor, database: Path, name: str) -> None:
    """Eight columns with equal value counts, against a permutation and against very similar columns."""
    rows = ALIKE[name]
    moved = [tuple(row[i] for i in (3, 1, 7, 0, 5, 2, 6, 4)) for row in reversed(rows)]
    assert ours(executor, database, "test_suite", (8, rows, 8, moved)) == 1.0
    for other, relatives in ALIKE.items():
        if other != name and len(relatives) == len(rows):
            assert ours(executor, database, "test_suite", (8, rows, 8, relatives)) == 0.0, other


def test_every_rule_has_a_test() -> None:
    """Four have theirs in test_scorers.py, and one in test_defog.py."""
    others = {"soft_f1", "spider2", "ehrsql", "ehrsql_2022", "defog"}
    assert set(RULE_NAMES) == {*SIMPLE, "test_suite", "ex_b"} | others


def test_unknown_options_are_refused(executor: Executor, database: Path) -> None:
    with pytest.raises(ValueError, match='no option is named "order"; the options are asks_for_order, condition_cols'):
        executor.score(database, "SELECT 1", "SELECT 1", options={"order": True})
    with pytest.raises(ValueError, match="1 options for 2 items"):
        executor.score_many([database] * 2, ["SELECT 1"] * 2, ["SELECT 1"] * 2, options=[{}])
