"""Verdicts on hand-made cases: every rule, failures, several golds, suites, unanswerable questions, speed."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jaxrl_sql.text2sql.env.executor import Executor, Limits, timing_executor
from jaxrl_sql.text2sql.evals.efficiency import mean_without_outliers, speed_score, step_score
from jaxrl_sql.text2sql.evals.score_predictions import RULES, score_predictions
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, InputError

EXACT = ("bird", "refined", "test_suite", "spider2", "ex_b", "ehrsql")


def question(db: str, gold: str, **more: Any) -> Example:
    return Example("q", "t", db, "?", gold, **more)


def verdict_of(
    executor: Executor, example: Example, sql: str | None, rules: Sequence[str] = EXACT, **more: Any
) -> Verdict:
    return score_predictions(executor, [example], [sql], rules, **more)[0]


# 120 of them, of three digits.
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 219)"

# Gold and prediction; the exact rules that accept it; the reasons for differences.
CASES: dict[str, tuple[str, str, set[str], tuple[str, ...]]] = {
    "equal SQL": ("SELECT a, b FROM t", "SELECT a, b FROM t", set(EXACT), ()),
    "wrong": ("SELECT a FROM t", "SELECT b FROM t", set(), ()),
    "other order": (
        "SELECT a FROM t ORDER BY a", "SELECT a FROM t ORDER BY a DESC",
        {"bird", "refined", "spider2", "ex_b", "ehrsql"}, ("order",),
    ),
    "unordered gold": ("SELECT a FROM t", "SELECT a FROM t ORDER BY a DESC", set(EXACT), ()),
    "missing duplicates": ("SELECT b FROM t", "SELECT DISTINCT b FROM t", {"bird"}, ("duplicates",)),
    "surplus duplicates": (
        "SELECT DISTINCT b FROM t", "SELECT b FROM t", {"bird", "ex_b"}, ("duplicates",),
    ),
    "columns in another order": (
        "SELECT a, b FROM t", "SELECT b, a FROM t", {"refined", "test_suite", "spider2", "ex_b"}, ("column_order",),
    ),
    "permuted cells per row": (
        "SELECT 1, 2 UNION ALL SELECT 3, 4", "SELECT 2, 1 UNION ALL SELECT 3, 4", {"refined"}, ("cells",),
    ),
    "surplus column": ("SELECT a FROM t", "SELECT a, b FROM t", {"spider2", "ex_b"}, ("more_columns",)),
    "surplus row found by its key": (
        "SELECT b, a FROM t WHERE b = 'y'", "SELECT b, a FROM t WHERE b IN ('x', 'y')", {"ex_b"}, ("more_rows",),
    ),
    "nearly equal": ("SELECT 0.5", "SELECT 0.503", {"spider2", "ex_b"}, ("values",)),
    "number as text": ("SELECT 7", "SELECT '7'", {"spider2", "ex_b", "ehrsql"}, ("values",)),
    "rounded to three digits": ("SELECT 7.25", "SELECT 7.2504", {"spider2", "ex_b", "ehrsql"}, ("values",)),
    "the hundredth row is the last that EHRSQL compares": (
        f"{NUMBERS} SELECT i FROM n", f"{NUMBERS} SELECT i + 100 * (i > 199) FROM n", {"ehrsql"}, ("first_rows",),
    ),
    "nearly an integer": ("SELECT 7", "SELECT 7.001", {"spider2"}, ("values",)),
    "the LIMIT cuts ties": ("SELECT a FROM t ORDER BY c DESC LIMIT 1", "SELECT 2", set(), ("ties",)),
    "both empty": ("SELECT a FROM t WHERE a > 9", "SELECT a, b FROM t WHERE a > 9", set(EXACT), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_exact_rules_and_reasons(executor: Executor, db: str, name: str) -> None:
    gold, sql, right, reasons = CASES[name]
    verdict = verdict_of(executor, question(db, gold), sql)
    assert ({rule for rule in EXACT if verdict.is_right(rule)}, verdict.reasons) == (right, reasons)


# Gold and prediction on t; a graded rule and its score, worked out by hand.
GRADED = [
    # Cells 1..4 against 1, 2: shared 2 of 2 predicted, of 4 gold; rows 2 of 4.
    ("qatch", "SELECT a FROM t", "SELECT a FROM t WHERE a < 3", (1 + 0.5 + 0.5) / 3),
    # One row of two: precision 1, recall 1/2.
    ("soft_f1", "SELECT a FROM t WHERE a < 3", "SELECT 1", 2 / 3),
    # One of two columns of all rows.
    ("paverl", "SELECT a, b FROM t", "SELECT a, 0 FROM t", 0.5),
    # Nine more rows are within the evaluation's slack of 30 and beyond the reward's of 5.
    ("paverl", "SELECT 'x', 1", "SELECT 'x', 1 UNION ALL SELECT 'k' || value, 2 FROM json_each('[1,2,3,4,5,6,7,8,9]')",
     1.0),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "gold", "sql", "expected"), GRADED)
def test_graded_rules(executor: Executor, db: str, rule: str, gold: str, sql: str, expected: float) -> None:
    assert verdict_of(executor, question(db, gold), sql, (rule,)).scores == {rule: pytest.approx(expected)}


def test_surplus_columns_are_counted_up_to_k(executor: Executor, db: str) -> None:
    example = question(db, "SELECT a FROM t")
    for columns, right in ((None, True), (3, True), (2, False), (1, False)):
        how = {"surplus_columns": columns}
        verdict = verdict_of(executor, example, "SELECT a, b, c FROM t", ("ex_b",), options=how)
        assert verdict.is_right("ex_b") is right, columns


def test_spider2_accepts_tables_and_their_columns(executor: Executor, db: str) -> None:
    table = (("a", "what"), ((1, "?"), (2, "?"), (3, "?"), (4, "?")))
    example = question(db, "", gold_tables=(table,), options={"condition_cols": [0]})
    verdict = verdict_of(executor, example, "SELECT b, a FROM t", ("spider2", "bird"))
    assert verdict.scores == {"spider2": 1.0, "bird": 0.0}
    assert verdict_of(
        executor, dataclasses.replace(example, options={}), "SELECT b, a FROM t", ("spider2",)
    ).scores == {"spider2": 0.0}
    in_order = dataclasses.replace(example, options={"condition_cols": [0], "ignore_order": False})
    assert verdict_of(executor, in_order, "SELECT a FROM t ORDER BY a DESC", ("spider2",)).scores == {"spider2": 0.0}


def test_all_databases_of_a_suite_must_agree(executor: Executor, db: str, variant: str) -> None:
    example = question(db, "SELECT b FROM t WHERE a = 1", suite=(db, variant))
    verdict = verdict_of(executor, example, "SELECT 'x'", ("test_suite", "bird", "suite"))
    assert verdict.scores == {"test_suite": 1.0, "bird": 1.0, "suite": 0.0}
    assert verdict.reasons == ("variants",)
    assert verdict_of(executor, example, "SELECT 'x'", ("test_suite", "suite")).scores == {
        "test_suite": 1.0,
        "suite": 0.0,
    }
    assert verdict_of(executor, example, "SELECT b FROM t WHERE a < 2", ("suite",)).scores == {"suite": 1.0}
    alone = verdict_of(executor, question(db, "SELECT 1"), "SELECT 1", ("test_suite", "suite"))
    assert alone.scores == {"test_suite": 1.0}, "a rule without a suite has a score"
    broken = verdict_of(
        executor, dataclasses.replace(example, suite=(db, variant + "x")), "SELECT 'x'", ("bird", "suite")
    )
    assert (broken.scores, broken.suite_gold_status) == ({"bird": 1.0}, "db_error")


def test_prediction_and_gold_failures_are_distinguished(executor: Executor, db: str) -> None:
    gold, endless = (
        "SELECT a FROM t",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n",
    )
    cases: list[tuple[str, str | None, tuple[str, str, dict[str, float], str]]] = [
        (gold, "SELECT nope FROM t", ("schema_error", "ok", {"bird": 0.0}, "")),
        (gold, "SELECT a FROM", ("syntax_error", "ok", {"bird": 0.0}, "")),
        (gold, None, ("no_sql", "ok", {"bird": 0.0}, "")),
        (gold, "", ("no_sql", "ok", {"bird": 0.0}, "")),
        (gold, endless, ("timeout", "ok", {"bird": 0.0}, "wall")),
        (endless, gold, ("ok", "timeout", {}, "")),
        ("SELECT nope FROM t", gold, ("ok", "schema_error", {}, "")),
        ("SELECT nope FROM t", None, ("no_sql", "schema_error", {}, "")),
    ]
    with Executor(threads=2, limits=Limits(timeout_ms=500)) as hasty:
        verdicts = score_predictions(hasty, [question(db, gold) for gold, _, _ in cases], [sql for _, sql, _ in cases])
    assert [(v.status, v.gold_status, v.scores, v.stop) for v in verdicts] == [expected for _, _, expected in cases]
    assert verdicts[4].pred_ms > 100 < verdicts[5].gold_ms


def test_other_dialects_and_several_golds(executor: Executor, db: str) -> None:
    mysql = question(db, "SELECT b || '!' FROM t", dialect="mysql")
    verdicts = score_predictions(executor, [mysql, mysql], ["SELECT CONCAT(b, '!') FROM t", "SELECT ) b"])
    assert [(v.status, v.scores) for v in verdicts] == [("ok", {"bird": 1.0}), ("syntax_error", {"bird": 0.0})]
    several = question(db, "SELECT 0", other_golds=("SELECT nope", "SELECT a FROM t"))
    assert verdict_of(executor, several, "SELECT a FROM t").is_right("bird")


def test_unanswerable_question_is_right_without_sql(executor: Executor, db: str) -> None:
    example = question(db, "", answerable=False)
    verdicts = score_predictions(executor, [example] * 4, [None, "  ", "SELECT 1", "SELECT nope"], ("bird", "refined"))
    assert [(v.status, v.scores["bird"], v.scores["refined"], v.gold_status) for v in verdicts] == [
        ("no_sql", 1.0, 1.0, "ok"),
        ("no_sql", 1.0, 1.0, "ok"),
        ("ok", 0.0, 0.0, "ok"),
        ("schema_error", 0.0, 0.0, "ok"),
    ]


def test_progress_counts_questions_up_to_all(executor: Executor, db: str) -> None:
    questions = [question(db, f"SELECT {i}") for i in range(70)] + [question(db, "", answerable=False)]
    sqls = [*(f"SELECT {i % 2}" for i in range(70)), None]
    reports: list[int] = []
    verdicts = score_predictions(executor, questions, sqls, on_progress=reports.append)
    assert [verdict.is_right("bird") for verdict in verdicts] == [True, True, *[False] * 68, True]
    assert reports == [32, 64, 70, 71]


def test_options_apply_to_all_questions(executor: Executor, db: str) -> None:
    example = question(db, "SELECT count(DISTINCT b) FROM t")
    assert not verdict_of(executor, example, "SELECT count(b) FROM t").is_right("test_suite")
    stripped = verdict_of(executor, example, "SELECT count(b) FROM t", options={"strip_distinct": True})
    assert (stripped.is_right("test_suite"), stripped.reasons) == (True, ())
    with pytest.raises(InputError, match='no option is named "strip"'):
        verdict_of(executor, example, "SELECT 1", options={"strip": True})


def test_timed_out_query_is_retried_once_for_all_questions(db: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    with Executor(threads=1, limits=Limits(timeout_ms=500)) as hasty:
        examples = [question(db, endless)] * 40 + [question(db, "SELECT 1")] * 40
        sqls = [f"SELECT {i}" for i in range(40)] + [endless] * 40
        verdicts = score_predictions(hasty, examples, sqls)
        assert hasty.stats()["timeout"] == 3, "once in the batch, once more as a gold and once more as a prediction"
    assert {(v.status, v.gold_status) for v in verdicts} == {("ok", "timeout"), ("timeout", "ok")}


def test_rule_names_are_validated(executor: Executor, db: str) -> None:
    with pytest.raises(InputError, match=r"rules 'ex': there are bird"):
        verdict_of(executor, question(db, "SELECT 1"), "SELECT 1", ("ex",))
    with pytest.raises(InputError, match="are missing"):
        verdict_of(executor, question(db, "SELECT 1"), "SELECT 1", ())
    with pytest.raises(InputError, match="timing_executor"):
        verdict_of(executor, question(db, "SELECT 1"), "SELECT 1", ("r_ves",))
    assert score_predictions(executor, [], [], RULES[:-2]) == []


def test_speed_score_is_a_step_function() -> None:
    assert [step_score(ratio) for ratio in (3, 2, 1.99, 1, 0.99, 0.5, 0.49, 0.25, 0.1)] == [
        1.25, 1.25, 1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.25,
    ]  # fmt: skip
    # Of 20 ones and a 50 the mean is 70 / 21 and the deviation about 10.4: 50 is beyond three of them.
    assert mean_without_outliers([1.0] * 20 + [50.0]) == 1.0
    assert mean_without_outliers([1.0, 3.0]) == 2.0
    assert mean_without_outliers([]) == 0.0


class Ordered:
    """A timer that records its queries in order."""

    def __init__(self, timer: Executor) -> None:
        self.timer = timer
        self.ran: list[str] = []

    def execute_many(self, requests: Sequence[tuple[str, str]]) -> Any:
        self.ran += [sql for _, sql in requests]
        return self.timer.execute_many(requests)


@pytest.mark.parametrize(
    ("rule", "order"),
    [("r_ves", ["mine", "gold"] * 4), ("r_ves_alternate", ["mine", "gold", "gold", "mine"] * 2)],
)
def test_prediction_and_gold_alternate_in_going_first(executor: Executor, db: str, rule: str, order: list[str]) -> None:
    names = {"SELECT 1 AS mine": "mine", "SELECT 1 AS gold": "gold"}
    with timing_executor(executor) as timer:
        ordered: Any = Ordered(timer)
        (verdict,) = score_predictions(
            executor, [question(db, "SELECT 1 AS gold")], ["SELECT 1 AS mine"], (rule,), timer=ordered, timed_runs=4
        )
    assert [names[sql] for sql in ordered.ran] == ["gold", *order], "the gold alone first, to check that it runs"
    assert [*verdict.scores] == [rule]
    assert 0.5 <= verdict.scores[rule] <= math.sqrt(1.25)


def published_r_ves(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return BIRD's R-VES of a right answer, from the mean ratio without outliers beyond three deviations."""
    ratios = [theirs / mine for mine, theirs in zip(predicted, gold, strict=True)]
    mean = sum(ratios) / len(ratios)
    deviation = math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / len(ratios))
    remaining = [ratio for ratio in ratios if mean - 3 * deviation < ratio < mean + 3 * deviation] or ratios
    ratio = sum(remaining) / len(remaining)
    if ratio >= 2:
        return math.sqrt(1.25)
    if ratio >= 1:
        return 1.0
    if ratio >= 0.5:
        return math.sqrt(0.75)
    return math.sqrt(0.5) if ratio >= 0.25 else math.sqrt(0.25)


class Timed:
    """A timer with fixed times: `first` is the extra time of the first query of each pair."""

    def __init__(self, times: dict[str, list[float]], first: float) -> None:
        self.times = {sql: iter(taken) for sql, taken in times.items()}
        self.first, self.runs = first, -1  # the gold alone, to check that it runs

    def execute_many(self, requests: Sequence[tuple[str, str]]) -> list[Any]:
        ((_, sql),) = requests
        late = self.first if self.runs >= 0 and self.runs % 2 == 0 else 0.0
        self.runs += 1
        return [SimpleNamespace(status="ok", elapsed_ms=(next(self.times[sql]) if self.runs else 1.0) + late)]


@pytest.mark.parametrize("seed", range(40))
def test_speed_equals_the_published_procedure(seed: int) -> None:
    draw = random.Random(seed)
    scale = draw.choice([0.1, 0.4, 0.7, 1.5, 3.0])
    mine = [draw.lognormvariate(0, 0.3) * draw.choice([1.0] * 30 + [50.0]) for _ in range(100)]
    theirs = [draw.lognormvariate(0, 0.3) * scale for _ in range(100)]
    timer: Any = Timed({"mine": mine, "gold": theirs}, 0.0)
    assert speed_score(timer, "d", "mine", ["gold"]) == published_r_ves(mine, theirs)


@pytest.mark.parametrize("waits", [0.3, 2.0, 2.74, 20.0])
def test_alternation_removes_the_first_queries_handicap(waits: float) -> None:
    """Both take a millisecond, and the first of a pair more: the published procedure rates the prediction slow."""
    same = {"mine": [1.0] * 100, "gold": [1.0] * 100}
    published: Any = Timed(same, waits)
    paid = published_r_ves([1.0 + waits] * 100, [1.0] * 100)
    assert speed_score(published, "d", "mine", ["gold"]) == paid < 1
    fair: Any = Timed(same, waits)
    assert speed_score(fair, "d", "mine", ["gold"], alternates=True) == 1.0


def test_faster_query_is_rated_faster_with_alternation() -> None:
    """A prediction in a third of the gold's time is rated twice as fast, and the gold against it half as fast."""
    times = {"quick": [1.0] * 100, "slow": [3.0] * 100}
    timers: list[Any] = [Timed(times, 0.5), Timed(times, 0.5)]
    # (3 + 3.5) / (1.5 + 1) = 2.6
    assert speed_score(timers[0], "d", "quick", ["slow"], alternates=True) == math.sqrt(1.25)
    assert speed_score(timers[1], "d", "slow", ["quick"], alternates=True) == math.sqrt(0.5)


def test_speed_is_measured_again_each_time(executor: Executor, db: str) -> None:
    slow = "SELECT count(*) FROM t, json_each('[" + ",".join("0" * 2000) + "]') AS x, t AS u, t AS v"
    quick = f"SELECT {4 * 2000 * 16}"
    with timing_executor(executor) as timer:
        examples = [question(db, slow), question(db, quick), question(db, quick), question(db, "SELECT nope")]
        verdicts = score_predictions(
            executor, examples, [quick, slow, "SELECT 0", quick], ("r_ves",), timer=timer, timed_runs=5
        )
        assert timer.stats()["runs"] >= 20
        assert speed_score(timer, db, "SELECT nope", ["SELECT 1"], runs=2) == 0.5, "an answer that now fails"
    assert [v.scores for v in verdicts] == [{"r_ves": math.sqrt(1.25)}, {"r_ves": 0.5}, {"r_ves": 0.0}, {}]
