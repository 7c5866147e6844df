"""Votes by both rules, their curves, and pass@k, worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.evals.similarity import count_values, similarity
from jaxrl_sql.text2sql.evals.vote import Ballot, VoteResult, ballots, choose, pass_at_k, pass_curve, vote_curve
from jaxrl_sql.types import Example, InputError

# Candidates; the index of the winner.
BY_RESULT: dict[str, tuple[list[str | None], int]] = {
    "most votes": (["SELECT 1", "SELECT 2", "SELECT 3 - 1"], 1),
    "first of equals": (["SELECT 1", "SELECT 2", "SELECT 2.0", "SELECT 1.0"], 0),
    "sets of rows": (["SELECT 9", "SELECT b FROM t", "SELECT DISTINCT b FROM t ORDER BY b DESC"], 1),
    "failed candidates do not vote": (["SELECT x", "SELECT y", None, "SELECT 1"], 3),
    "empty results vote": (["SELECT 1", "SELECT a FROM t WHERE a > 9", "SELECT a, b FROM t WHERE 0"], 1),
    "nothing runs": (["SELECT x", None, "SELECT y"], 0),
    "no SQL": ([None, None], 0),
}  # fmt: skip


def vote(executor: Executor, example: Example, candidates: list[str | None], how: str = "result") -> VoteResult:
    return choose(ballots(executor, [example], [candidates], how)[0])


@pytest.mark.parametrize("name", BY_RESULT)
def test_vote_by_result(executor: Executor, db: str, name: str) -> None:
    candidates, index = BY_RESULT[name]
    choice = vote(executor, Example("q", "t", db, "?", ""), candidates)
    assert (choice.index, choice.sql) == (index, candidates[index])


def test_votes_are_counted_in_descending_order(executor: Executor, db: str) -> None:
    candidates = ["SELECT 1", "SELECT 2", None, "SELECT 2.0", "SELECT a FROM t WHERE 0"]
    choice = vote(executor, Example("q", "t", db, "?", ""), candidates)
    assert choice.votes == [("SELECT 2", 2.0), ("SELECT 1", 1.0), ("SELECT a FROM t WHERE 0", 1.0)]
    assert vote(executor, Example("q", "t", db, "?", ""), [None]).votes == []


BY_LIKENESS: dict[str, tuple[list[str | None], int]] = {
    # 1 and 2 have half of their values in common, 3 has none.
    "the most similar": (["SELECT 7 AS a", "SELECT a FROM t", "SELECT a FROM t WHERE a < 3"], 1),
    "columns pair by name": (["SELECT 1 AS x", "SELECT 1 AS y", "SELECT 1 AS y, 2 AS z"], 1),
    "empty results are similar to none": (["SELECT a FROM t WHERE 0"] * 3 + ["SELECT 1 AS a", "SELECT 1 AS a"], 3),
    "failed candidates do not vote": ([None, "SELECT x", "SELECT 1 AS a"], 2),
    "nothing runs": (["SELECT x", None], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_LIKENESS)
def test_vote_by_similarity(executor: Executor, db: str, name: str) -> None:
    candidates, index = BY_LIKENESS[name]
    assert vote(executor, Example("q", "t", db, "?", ""), candidates, "soft").index == index


def test_similarity_by_hand() -> None:
    left = count_values(["a", "b"], [(1, "x"), (1, "y"), (2, "y")])
    right = count_values(["b", "c"], [("y", 0), ("y", 0), ("z", 0)])
    # Both sides have only b: y is common twice, of y twice, x and z once each; over a, b and c.
    assert similarity(left, right) == pytest.approx((2 / 4) / 3)
    assert similarity(left, left) == 1.0
    assert similarity(left, count_values(["a"], [])) == 0.0
    # The second column of a name pairs with the second.
    assert similarity(count_values(["a", "a"], [(1, 2)]), count_values(["a", "a"], [(1, 3)])) == 0.5


def test_candidates_with_equal_sets_of_rows_may_be_dissimilar(executor: Executor, db: str) -> None:
    sqls = ["SELECT b FROM t WHERE b IS NOT NULL", "SELECT column1 AS b FROM (VALUES ('x'), ('x'), ('y'))"]
    (ballot,) = ballots(executor, [Example("q", "t", db, "?", "")], [sqls], "soft")
    assert ballot.results == (0, 0)
    assert ballot.similarity is not None
    assert ballot.similarity[0, 1] == pytest.approx(2 / 4)


def test_failed_candidates_are_refused(executor: Executor, db: str) -> None:
    example = Example("q7", "t", db, "?", "")
    with pytest.raises(InputError, match="vote 'hard'"):
        vote(executor, example, ["SELECT 1"], "hard")
    with pytest.raises(InputError, match="q7 has no candidates"):
        vote(executor, example, [])


def test_candidates_of_another_dialect_are_translated(executor: Executor, db: str) -> None:
    example = Example("q", "t", db, "?", "", dialect="mysql")
    assert vote(executor, example, ["SELECT ) x", "SELECT CONCAT('a', 'b')"]).index == 1


def test_part_of_a_ballot_is_counted_alone() -> None:
    ballot = Ballot(("a", "b", "c", "d"), (0, 1, -1, 1))
    assert [choose(ballot, part).index for part in ([0, 1], [1, 0], [2, 0], [2], [3, 0, 1])] == [0, 1, 0, 2, 3]


def test_curve_is_the_mean_over_subsets() -> None:
    # Three of four are right: pairs tie unless both agree, and the first one wins.
    ballot, worth = Ballot(("a",) * 4, (0, 0, 0, 1)), [1.0, 1.0, 1.0, 0.0]
    curve = vote_curve([ballot], [worth], (1, 2, 3, 4, 8), subsets=4_000)
    subsets = list(itertools.permutations(range(4), 3))
    exact = sum(worth[choose(ballot, subset).index] for subset in subsets) / len(subsets)
    assert curve == {
        1: pytest.approx(0.75, abs=0.03),
        2: pytest.approx(0.75, abs=0.03),
        3: pytest.approx(exact),
        4: 1.0,
    }
    assert vote_curve([ballot] * 3, [worth] * 3, (1,), seed=1) == vote_curve([ballot] * 3, [worth] * 3, (1,), seed=1)
    assert vote_curve([], []) == {}


def test_pass_at_k_is_the_share_of_subsets_with_a_right_candidate() -> None:
    for n, right in ((5, 2), (6, 0), (4, 4), (7, 1)):
        marks = np.arange(n) < right
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(range(n), k))
            exact = sum(marks[list(subset)].any() for subset in subsets) / len(subsets)
            assert pass_at_k(right, n, k) == pytest.approx(exact)
    assert pass_curve([[1.0, 0.0], [0.5, 0.0, 1.0]], (1, 2, 3)) == {
        1: pytest.approx((1 / 2 + 1 / 3) / 2),
        2: pytest.approx((1 + 2 / 3) / 2),
    }
    for bad in ((1, 4, 5), (1, 4, 0), (5, 4, 1)):
        with pytest.raises(InputError, match="k must be"):
            pass_at_k(*bad)
