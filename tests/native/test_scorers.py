"""Rules against published scorers, rewritten from their descriptions, on thousands of random pairs of tables."""

from __future__ import annotations

import csv
import io
import math
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from sqlexec_rs import Executor

Row = tuple[Any, ...]
N_PAIRS = pytest.mark.parametrize("n_pairs", [800, pytest.param(4_000, marks=pytest.mark.nightly)])


class Pair(NamedTuple):
    """Two tables; widths are separate from rows, since a table may have no rows."""

    width: int
    predicted: list[Row]
    gold_width: int
    gold: list[Row]


# --- References ---


def soft_f1(pair: Pair) -> float:
    """BIRD mini-dev: per row the values shared with the gold row, and those in only one of both."""
    if not pair.predicted and not pair.gold:
        return 1.0
    predicted, gold = list(dict.fromkeys(pair.predicted)), list(dict.fromkeys(pair.gold))
    shared = surplus = missing = 0.0
    for i in range(max(len(predicted), len(gold))):
        if i >= len(gold):
            surplus += 1
        elif i >= len(predicted):
            missing += 1
        else:
            shared += len([value for value in predicted[i] if value in gold[i]]) / len(gold[i])
            surplus += len([value for value in predicted[i] if value not in gold[i]]) / len(gold[i])
            missing += len([value for value in gold[i] if value not in predicted[i]]) / len(gold[i])
    if not shared:
        return 0.0
    precision, recall = shared / (shared + surplus), shared / (shared + missing)
    return 2 * precision * recall / (precision + recall)


# Texts that pandas reads as missing.
MISSING = set(
    ",#N/A,#N/A N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>,N/A,NA,NULL,NaN,None,n/a,nan,null".split(",")
)
INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*|[+-]?inf(inity)?", re.IGNORECASE)


def through_csv(width: int, rows: Sequence[Row]) -> list[list[Any]]:
    """Write rows to CSV and read the columns back, each with the type that all its texts allow."""
    file = io.StringIO()
    csv.writer(file).writerows([["" if value is None else str(value) for value in row] for row in rows])
    file.seek(0)
    result = list(csv.reader(file))
    return [parse_values([row[c] for row in result]) for c in range(width)]


def parse_values(texts: list[str]) -> list[Any]:
    some = [text for text in texts if text not in MISSING]

    def read(kind: Callable[[str], Any]) -> list[Any]:
        return [None if text in MISSING else kind(text) for text in texts]

    if some and all(text.lower() in ("true", "false") for text in some):
        return read(lambda text: text.lower() == "true")
    # Digits of more than 64 bits prevent numbers, unless a fraction made the earlier integers floats.
    odd = next((text for text in some if not INTEGER.fullmatch(text) or int(text) >= 2**64), "")
    is_huge = INTEGER.fullmatch(odd)
    if not all(NUMBER.fullmatch(text) and (INTEGER.fullmatch(text) or finite(text)) for text in some) or is_huge:
        return read(str)
    if odd:
        return read(float)
    # Unsigned 64-bit integers cannot be combined with negative or missing ones.
    if any(int(text) >= 2**63 for text in some) and (len(some) < len(texts) or any(int(text) < 0 for text in some)):
        return read(str)
    return read(float) if len(some) < len(texts) else read(int)


def finite(text: str) -> bool:
    return "inf" in text.lower() or math.isfinite(float(text))


def spider2(pair: Pair, wanted: Sequence[int] = (), ignore_order: bool = True) -> float:
    gold = through_csv(pair.gold_width, pair.gold)
    chosen = [gold[c] for c in wanted or range(pair.gold_width)]
    return float(
        all(
            any(same_vector(column, other, ignore_order) for other in values(through_csv(pair.width, pair.predicted)))
            for column in values(chosen)
        )
    )


def values(columns: list[list[Any]]) -> list[list[Any]]:
    """Return a table's columns: all-numeric columns with a float become floats; a missing value is 0."""
    kinds = {float if value is None else type(value) for column in columns for value in column}
    if kinds == {int, float}:
        columns = [[value if value is None else float(value) for value in column] for column in columns]
    return [[0 if value is None else value for value in column] for column in columns]


def same_vector(item: list[Any], other: list[Any], ignore_order: bool) -> bool:
    if ignore_order:
        item, other = (sorted(v, key=lambda x: (str(x), isinstance(x, int | float))) for v in (item, other))
    return len(item) == len(other) and all(map(same_value, item, other))


def same_value(a: Any, b: Any) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=0.01)
    return bool(a == b)


def ehrsql(pair: Pair) -> float:
    """EHRSQL 2024: texts of rounded floats and missing values, the first hundred of the sorted rows."""

    def answer(rows: list[Row]) -> str:
        return str(sorted([[text_of(value) for value in row] for row in rows])[:100])

    return float(answer(pair.predicted) == answer(pair.gold))


def ehrsql_2022(pair: Pair) -> float:
    """EHRSQL 2022: the first hundred rows in their order, each as Python prints it, sorted."""

    def answer(rows: list[Row]) -> str:
        return str(sorted(str(row) for row in rows[:100]))

    return float(answer(pair.predicted) == answer(pair.gold))


def text_of(value: Any) -> str:
    try:
        return str(round(float(value), 3))
    except (TypeError, ValueError):
        return str(value)


# --- Random pairs, usually similar ---


def pairs(seed: int, cells: Sequence[Any], n_pairs: int, max_rows: int = 5) -> list[Pair]:
    draw = random.Random(seed)
    return [pair(draw, cells, max_rows) for _ in range(n_pairs)]


def pair(draw: random.Random, cells: Sequence[Any], max_rows: int) -> Pair:
    width = draw.randint(1, 3)
    few = draw.sample(cells, min(len(cells), draw.randint(2, 6)))  # so that values repeat

    def table(columns: int) -> list[Row]:
        return [tuple(draw.choice(few) for _ in range(columns)) for _ in range(draw.randint(0, max_rows))]

    gold = table(width)
    kind = draw.choice(["other", "same width", "moved", "moved", "changed", "changed", "repeated", "shorter"])
    if kind in ("other", "same width"):
        other = width if kind == "same width" else draw.randint(1, 3)
        return Pair(other, table(other), width, gold)
    order = [*range(width)] if draw.random() < 0.5 else draw.sample(range(width), width)
    predicted = [tuple(row[i] for i in order) for row in draw.sample(gold, len(gold))]
    if kind == "changed" and predicted:
        row, column = draw.randrange(len(predicted)), draw.randrange(width)
        predicted[row] = (*predicted[row][:column], draw.choice(cells), *predicted[row][column + 1 :])
    if kind == "repeated" and predicted:
        predicted.append(draw.choice(predicted))
    return Pair(width, predicted[:-1] if kind == "shorter" else predicted, width, gold)


NUMBERS = [
    None,
    0,
    1,
    2,
    10,
    -1,
    2**53 + 1,
    2**62,
    0.0,
    -0.0,
    1.0,
    1.004,
    1.0004,
    1.02,
    0.0625,
    2.0015,
    -0.0004,
    1e-5,
    1e16,
]
NUMBERS += [5000000000, 5000000000.4, 500000000, 500000000.8, 1.5e300, math.inf]
TEXTS = [
    "",
    "a",
    "b",
    "é",
    "1",
    "01",
    "1.0",
    "1.004",
    "2.5",
    " 2 ",
    "10",
    "1e3",
    ".5",
    "5.",
    "+5",
    "-0",
    "1_0",
    "0x1",
    "1e400",
    "1e",
]
TEXTS += [
    "NA",
    "None",
    "nan",
    "NULL",
    "n/a",
    "na",
    "NaN",
    "-nan",
    "inf",
    "-Infinity",
    "True",
    "false",
    "TRUE",
    "it's",
    'a,"b"',
]
TEXTS += ["12345678901234567890123", "18446744073709551615", "0", "a b", "1 2", "Infinity"]
BLOBS = [b"", b"a", b"1", b"it's", b"\xff\n"]
CELLS: dict[str, list[Any]] = {
    "all": [*NUMBERS, *TEXTS, *BLOBS],
    "numbers": NUMBERS,
    "texts": [None, *TEXTS],
    "numbers and their texts": [
        None, 0, 1, 2, 10, 1000, 1.0, 2.5, 0.5, 1.004, "1", "1.0", "01", "2.5", "", "NA", "10", "nan", "1e3",
    ],
    "truths": [None, 0, 1, 0.0, 1.0, "True", "false", "TRUE", "FALSE", "NA", "x"],
    "few": [0, 1, 1.0, "a", None],
}  # fmt: skip


# --- Tests ---


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(threads=2) as ex:
        yield ex


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scorers") / "empty.sqlite"
    sqlite3.connect(path).close()
    path.touch()
    return str(path)


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case float() if math.isinf(value):
            return "9e999"
    return repr(value)


def as_sql(width: int, rows: Sequence[Row]) -> str:
    if not rows:
        return "SELECT " + ", ".join(["1"] * width) + " WHERE 0"
    return "VALUES " + ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)


def verdicts(
    ex: Executor, database: str, rule: str, arguments: Sequence[Pair], options: Sequence[dict[str, Any]] | None = None
) -> list[float]:
    predicted = [as_sql(argument.width, argument.predicted) for argument in arguments]
    golds = [([f"c{i}" for i in range(item.gold_width)], item.gold) for item in arguments]
    arrays = ex.score_many([database] * len(arguments), predicted, golds, rules=(rule,), options=options)
    assert set(arrays["pred_status"].tolist()) == {0}, "every prediction runs"
    return [float(value) for value in arrays[rule]]


def differing(
    arguments: Sequence[Pair], ours: Sequence[float], theirs: Sequence[float]
) -> list[tuple[Pair, float, float]]:
    """Return a few of the pairs with different verdicts, and both verdicts."""
    assert 0.02 < sum(value == 1.0 for value in theirs) / len(theirs) < 0.98, "some are right, and some wrong"
    return [item for item in zip(arguments, ours, theirs, strict=True) if abs(item[1] - item[2]) > 1e-12][:3]


REFERENCES: dict[str, Callable[[Pair], float]] = {
    "soft_f1": soft_f1, "spider2": spider2, "ehrsql": ehrsql, "ehrsql_2022": ehrsql_2022,
}  # fmt: skip


@N_PAIRS
@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("rule", REFERENCES)
def test_a_rule_matches_its_published_scorer(
    executor: Executor, database: str, rule: str, cells: str, n_pairs: int
) -> None:
    tables = pairs(7, CELLS[cells], n_pairs)
    assert not differing(
        tables, verdicts(executor, database, rule, tables), [REFERENCES[rule](argument) for argument in tables]
    )


@N_PAIRS
def test_spider2_with_row_order_and_condition_columns(executor: Executor, database: str, n_pairs: int) -> None:
    arguments, draw = pairs(8, CELLS["numbers and their texts"], n_pairs), random.Random(9)
    wanted = [draw.sample(range(argument.gold_width), draw.randint(0, argument.gold_width)) for argument in arguments]
    ignored = [draw.random() < 0.5 for _ in arguments]
    options = [{"condition_cols": a, "ignore_order": b} for a, b in zip(wanted, ignored, strict=True)]
    theirs = [spider2(*item) for item in zip(arguments, wanted, ignored, strict=True)]
    assert not differing(arguments, verdicts(executor, database, "spider2", arguments, options), theirs)


@N_PAIRS
@pytest.mark.parametrize("rule", ["ehrsql", "ehrsql_2022"])
def test_ehrsql_compares_the_first_hundred_rows(executor: Executor, database: str, n_pairs: int, rule: str) -> None:
    """Tables of about a hundred rows, which differ in a row before or after the hundredth."""
    draw = random.Random(10)
    tables = []
    for _ in range(n_pairs // 10):
        gold = [(i, draw.choice("ab")) for i in draw.sample(range(400), draw.choice([90, 99, 100, 101, 120, 150]))]
        predicted = draw.sample(gold, len(gold)) if draw.random() < 0.7 else [*gold]
        if draw.random() < 0.7:
            predicted[draw.randrange(len(predicted))] = (draw.randrange(400), "a")
        tables.append(Pair(2, predicted[: draw.choice([None, None, -1, 100])], 2, gold))
    assert not differing(
        tables, verdicts(executor, database, rule, tables), [REFERENCES[rule](argument) for argument in tables]
    )


@pytest.mark.parametrize(
    ("rule", "predicted", "gold", "expected"),
    [
        ("soft_f1", [(1, 1)], [(1, 2)], 0.8),
        ("soft_f1", [(1, 2)], [(1, 1)], 2 / 3),
        ("spider2", [("1",), ("a",)], [("01",), ("a",)], 0.0),
        ("spider2", [("1",), ("2",)], [("01",), ("2",)], 1.0),
        ("spider2", [(5000000000.4,)], [(5000000000,)], 1.0),
        ("spider2", [("NA",), ("x",)], [(None,), ("x",)], 1.0),
        ("ehrsql", [("2.00049",), (None,)], [("None",), (2,)], 1.0),
        ("ehrsql", [(1,), (1,)], [(1,)], 0.0),
        ("ehrsql", [(1, 2)], [(2, 1)], 0.0),
        ("ehrsql", [], [], 1.0),
        ("ehrsql_2022", [(1,), ("a",)], [("a",), (1,)], 1.0),
        ("ehrsql_2022", [(1.0,)], [(1,)], 0.0),
        ("ehrsql_2022", [(1,), (1,)], [(1,)], 0.0),
    ],
)
def test_scorer_examples(
    executor: Executor, database: str, rule: str, predicted: list[Row], gold: list[Row], expected: float
) -> None:
    item = Pair(len((predicted or [(0,)])[0]), predicted, len((gold or [(0,)])[0]), gold)
    assert verdicts(executor, database, rule, [item]) == [pytest.approx(expected)]


def test_undecodable_bytes_are_dropped_by_ehrsql(executor: Executor, database: str) -> None:
    result = executor.score(database, "SELECT CAST(x'61ff62' AS TEXT)", "SELECT 'ab'", rules=("ehrsql",))
    assert result["ehrsql"] == 1.0
