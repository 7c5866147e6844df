"""Summaries, intervals, paired runs, repeats and dialogues, on tables small enough to count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxrl_sql.text2sql.evals.dialogues import dialogue_metrics, turns_taken
from jaxrl_sql.text2sql.evals.interval import interval, share_interval
from jaxrl_sql.text2sql.evals.numbers import spread, weighted_mean
from jaxrl_sql.text2sql.evals.pairs import compare_runs, mcnemar
from jaxrl_sql.text2sql.evals.summary import summarize
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, InputError


def example(uid: str, db_id: str = "one", gold: str = "SELECT a FROM t", difficulty: str = "") -> Example:
    return Example(uid, db_id, "db", "?", gold, difficulty=difficulty)


def verdict(
    uid: str, bird: float, test_suite: float = 0.0, status: str = "ok", reasons: tuple[str, ...] = ()
) -> Verdict:
    return Verdict(uid, "SELECT 1", status, scores={"bird": bird, "test_suite": test_suite}, reasons=reasons)


def test_summary_counts() -> None:
    examples = [
        example("q1", "one", "SELECT a FROM t"),
        example("q2", "one", "SELECT a FROM t ORDER BY a LIMIT 1"),
        example("q3", "two", "SELECT a FROM t", "challenging"),
        example("q4", "two", "SELECT a FROM t"),
        example("q5", "two", "SELECT a FROM t"),
    ]
    verdicts = [
        verdict("q1", 1.0, 1.0),
        verdict("q2", 1.0, 0.0, reasons=("order", "ties")),
        verdict("q3", 0.0, 0.0, status="timeout"),
        Verdict("q4", "SELECT 1", "ok", "timeout"),
        Verdict("q5", None, "no_sql", "schema_error"),
    ]
    summary = summarize(examples, verdicts, "bird")
    numbers = summary.metrics()
    assert (numbers["count"], numbers["bird/count"]) == (5.0, 3.0)
    assert numbers["bird"] == pytest.approx(2 / 3), "of the questions whose gold ran"
    assert numbers["accuracy"] == pytest.approx(2 / 5), "of all, like a leaderboard"
    assert (numbers["test_suite"], numbers["valid"]) == (pytest.approx(1 / 3), pytest.approx(3 / 5))
    assert (numbers["gold_failures"], numbers["gold_timeouts"]) == (2.0, 1.0)
    assert (numbers["status/timeout"], numbers["gold_status/schema_error"]) == (1.0, 1.0)
    assert (numbers["bird/database/one"], numbers["bird/database/two"]) == (1.0, 0.0)
    assert (numbers["count/database/two"], numbers["bird/hardness/challenging"]) == (3.0, 0.0)
    assert (numbers["bird/hardness/easy"], numbers["count/hardness/easy"]) == (1.0, 3.0)
    assert (numbers["bird/hardness/medium"], numbers["bird/feature/limit"]) == (1.0, 1.0)
    assert (numbers["sensitive/order"], numbers["sensitive/ties"], numbers["sensitive/duplicates"]) == (1.0, 1.0, 0.0)
    assert summary.reasons["order"] == ("q2",)
    assert summary.failed_golds == (("q4", "timeout"), ("q5", "schema_error"))
    assert 0.0 <= numbers["bird/low"] < 0.01 < numbers["bird"] < 0.99 < numbers["bird/high"] <= 1.0, "two databases"
    assert "reliability/0" not in numbers


def test_reliability_rewards_abstention_and_penalizes_errors() -> None:
    mute = [Example(f"m{i}", "one", "db", "?", "", answerable=False) for i in range(2)]
    examples = [*(example(f"q{i}") for i in range(4)), *mute]
    verdicts = [
        verdict("q0", 1.0),
        verdict("q1", 0.0),  # wrong
        verdict("q2", 0.0, status="no_sql"),  # no SQL: no reward and no penalty
        Verdict("q3", "SELECT 1", "ok", "timeout"),  # its gold fails, so no answer is right
        verdict("m0", 1.0, status="no_sql"),  # no SQL, which is right
        verdict("m1", 0.0),  # SQL for an unanswerable question: wrong
    ]
    numbers = summarize(examples, verdicts, "bird").metrics()
    result = [numbers[f"reliability/{cost}"] for cost in ("0", "5", "10", "N")]
    assert result == pytest.approx([2 / 6, (2 - 3 * 5) / 6, (2 - 3 * 10) / 6, (2 - 3 * 6) / 6])


def test_group_without_a_score_has_no_number() -> None:
    examples = [example("q1", "one"), example("q2", "two")]
    numbers = summarize(examples, [verdict("q1", 1.0), Verdict("q2", "x", "ok", "timeout")]).metrics()
    assert "bird/database/two" not in numbers
    assert numbers["count/database/two"] == 1.0


def test_empty_summary() -> None:
    assert summarize([], []).metrics()["count"] == 0.0


def test_share_has_wilsons_interval_with_t_of_the_databases() -> None:
    # t of 2 degrees of freedom is 4.302653: the limit of 0 of n is t^2 / (n + t^2).
    low, high = share_interval(np.zeros(60), [f"d{i % 3}" for i in range(60)])
    assert (low, high) == (0.0, pytest.approx(18.512820 / 78.512820, abs=1e-6))
    assert share_interval(np.ones(60), [f"d{i % 3}" for i in range(60)]) == (pytest.approx(1 - high), 1.0)
    # Equal databases equal independent questions: Wilson's interval of 5 of 10, t of 4 degrees.
    halves = share_interval(np.array([0.0, 1.0] * 5), [f"d{i // 2}" for i in range(10)])
    half = 0.5 * 2.776445 / math.sqrt(10 + 2.776445**2)
    assert halves == (pytest.approx(0.5 - half, abs=1e-6), pytest.approx(0.5 + half, abs=1e-6))
    # Two databases with opposite results: the interval is almost [0, 1].
    opposite = share_interval(np.array([1.0, 1.0, 0.0, 0.0]), ["a", "a", "b", "b"])
    assert opposite[0] < 0.01
    assert opposite[1] > 0.99
    assert share_interval(np.array([1.0]), ["a"]) == (0.0, 1.0)
    assert share_interval(np.array([0.0]), ["a"]) == (0.0, 1.0), "one question gives no information, right or wrong"
    assert share_interval(np.array([]), []) == (0.0, 0.0)
    assert share_interval(np.full(5, 1.118), list("abcde"))[1] == 1.118, "speed may exceed 1 and is no share"
    examples = [example(f"q{i}", f"d{i % 3}") for i in range(60)]
    numbers = summarize(examples, [verdict(item.uid, 0.0) for item in examples], "bird").metrics()
    assert (numbers["bird"], numbers["bird/low"], numbers["bird/high"]) == (0.0, 0.0, high)


def test_mean_has_t_errors_over_databases() -> None:
    # Means of 0.2, 0.4 and 0.6 per database of equal size: the error of 0.4 is 0.2 / sqrt(3).
    values = np.repeat([0.2, 0.4, 0.6], 4) - 0.4
    half = 4.302653 * 0.2 / math.sqrt(3)
    result = interval(values, [name for name in "abc" for _ in range(4)])
    assert result == (pytest.approx(-half, abs=1e-6), pytest.approx(half, abs=1e-6))
    assert interval(np.zeros(60), ["a", "b", "c"] * 20) == pytest.approx((-0.235793, 0.235793), abs=1e-6)
    assert interval(np.array([-1.0]), ["a"]) == (-1.0, 1.0), "one question gives no information"
    assert interval(np.array([]), []) == (0.0, 0.0)


def test_questions_of_one_database_count_as_independent() -> None:
    low, high = share_interval(np.array([1.0, 0.0] * 50), ["a"] * 100)
    # The deviation of a share of 1/2 over 100 is 0.05.
    assert (low, high) == (pytest.approx(0.4, abs=0.02), pytest.approx(0.6, abs=0.02))


def coverage(share: float, alike: float, databases: int, runs: int = 400) -> float:
    """Return the interval's coverage of the true share over databases; `alike` correlates their questions."""
    rng = np.random.default_rng(7)
    scale = (1 - alike) / alike
    held = 0
    for _ in range(runs):
        sizes = np.maximum(2, rng.lognormal(3.3, 0.6, databases)).astype(int)
        names = np.repeat(np.arange(databases), sizes)
        local = rng.beta(share * scale, (1 - share) * scale, databases)
        low, high = share_interval((rng.random(len(names)) < local[names]).astype(float), list(map(str, names)))
        held += low <= share <= high
    return held / runs


@pytest.mark.slow
@pytest.mark.parametrize("databases", [2, 3, 5, 10, 20])
def test_intervals_contain_the_true_share(databases: int) -> None:
    result = {(share, alike): coverage(share, alike, databases) for share in (0.2, 0.5) for alike in (0.02, 0.1, 0.3)}
    result[0.03, 0.02] = coverage(0.03, 0.02, databases)
    assert min(result.values()) >= 0.9, result


# Better and worse; the exact p value: twice the sum of C(n, i) / 2^n up to the smaller.
MCNEMAR = [(0, 0, 1.0), (5, 5, 1.0), (5, 0, 2 / 32), (0, 5, 2 / 32), (8, 2, 2 * (1 + 10 + 45) / 1024), (1, 0, 1.0)]


@pytest.mark.parametrize(("better", "worse", "expected"), MCNEMAR)
def test_mcnemar(better: int, worse: int, expected: float) -> None:
    assert mcnemar(better, worse) == pytest.approx(expected)


def test_mcnemar_of_many_pairs() -> None:
    # By the normal distribution: (6100 - 5900) / sqrt(12000) with the continuity correction.
    z = (200 - 1) / math.sqrt(12_000)
    assert mcnemar(6_100, 5_900) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-3)


def test_paired_runs_name_the_changes() -> None:
    examples = [example(f"q{i}", f"db{i % 3}") for i in range(6)]
    first = [verdict(f"q{i}", float(i < 2)) for i in range(5)] + [Verdict("q5", "x", "ok", "timeout")]
    second = [verdict(f"q{i}", float(i > 0)) for i in range(6)]
    result = compare_runs(examples, first, second, "bird")
    assert (result.first, result.second, result.difference) == (0.4, 0.8, pytest.approx(0.4))
    assert (result.better, result.worse, result.unpaired) == (("q2", "q3", "q4"), ("q0",), ("q5",))
    assert result.p_mcnemar == pytest.approx(2 * (1 + 4) / 16)
    # Sums per database: 0 (q0 and q3), 1 (q4) and 1 (q2); two of four sign flips of the last two are as large.
    assert (result.databases, result.p_value) == (3, 2 / 4)
    assert result.low <= result.difference <= result.high
    with pytest.raises(InputError, match="different questions: q0"):
        compare_runs(examples, first[::-1], second, "bird")
    with pytest.raises(InputError, match="no question has a score by 'suite'"):
        compare_runs(examples, first, second, "suite")


def test_runs_and_benchmarks_are_averaged() -> None:
    runs = [{"bird": 0.5, "one": 1.0}, {"bird": 0.6}, {"bird": 0.7}]
    assert spread(runs) == {"bird": (pytest.approx(0.6), pytest.approx(0.1))}
    assert spread(runs[:1])["one"] == (1.0, 0.0)
    assert weighted_mean([(0.5, 100), (0.8, 300)]) == pytest.approx(0.725)
    for bad in (lambda: spread([]), lambda: weighted_mean([])):
        with pytest.raises(InputError):
            bad()


def dialogue(*queries: str, solution: str = "") -> list[tuple[str, str]]:
    turns = []
    for sql in queries:
        turns += [("assistant", f"<think>hm</think><sql>{sql}</sql>"), ("environment", "<observation>…</observation>")]
    end = f"<solution>{solution}</solution>" if solution else "<think>no idea</think>"
    return [*turns, ("assistant", f"<think>so</think>{end}")]


def test_dialogues_are_counted_by_turns_and_behaviour() -> None:
    dialogues = [
        dialogue("PRAGMA table_info(t)", "SELECT a FROM t", solution="SELECT a FROM t"),
        dialogue("SELECT a FROM t", "select  a from t;", solution="SELECT b FROM t"),
        dialogue(solution="SELECT 1"),
        dialogue("SELECT name FROM sqlite_master"),
    ]
    verdicts = [verdict("a", 1.0), verdict("b", 0.0), verdict("c", 1.0), Verdict("d", None, "no_sql", "timeout")]
    numbers = dialogue_metrics(dialogues, verdicts, "bird")
    assert [turns_taken(item) for item in dialogues] == [3, 3, 1, 2]
    assert numbers == {
        "bird/turns/1": 1.0, "count/turns/1": 1.0, "bird/turns/3": 0.5, "count/turns/3": 2.0,
        "dialogue/queries": 5 / 4, "dialogue/lookups": 2 / 4, "dialogue/repeated": 1 / 4, "dialogue/unprobed": 2 / 4,
        "dialogue/unsolved": 1 / 4, "turns/mean": 9 / 4,
    }  # fmt: skip
    assert dialogue_metrics([], [], "bird") == {}
    assert turns_taken("<sql>x</sql><observation>y</observation><solution>z</solution>") == 2
