"""Select among several answers to a question by vote, and estimate pass@k.

A candidate is the SQL of one answer. There are two voting methods. By `result`, candidates with equal sets of rows form
a group, and the largest group wins. By `soft` (Arctic-Text2SQL-R1), a candidate's score is the sum of the similarities
(`similarity.py`) of its result to the results of all candidates. Failed candidates do not vote. Empty results vote by
`result`, and have similarity 0 to others by `soft`. Ties go to the first candidate. If all candidates fail, the first
is selected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxrl_sql.text2sql.env.dialect import runnable_sql
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.text2sql.evals.similarity import similarity_matrix
from jaxrl_sql.types import Example, InputError

VOTE_METHODS = ("result", "soft")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of samples at which curves are computed."""

# The number of candidates whose results are in memory at once.
_CHUNK = 512
_FAILED = -1


class Ballot(NamedTuple):
    """The results of a question's candidates, for votes of all or some of them.

    `results[i]` is the index of candidate i's result in order of first occurrence, -1 if it failed. `similarity` [n, n]
    has the pairwise similarities of results, for the vote `soft`.
    """

    sqls: tuple[str | None, ...]
    results: tuple[int, ...]
    similarity: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class VoteResult:
    """The winning candidate's SQL and index, and the `votes` from best to worst.

    By `result`, `votes` has the SQL of the first candidate of each result, and the result's number of votes. By `soft`,
    it has the SQL of each candidate, and the sum of its similarities, including 1 to itself.
    """

    sql: str | None
    index: int
    votes: list[tuple[str, float]]


def ballots(
    executor: SqlExecutor,
    examples: Sequence[Example],
    candidates: Sequence[Sequence[str | None]],
    method: str = "result",
) -> list[Ballot]:
    """Run the candidates `candidates[i]` of each question `examples[i]`.

    Candidates that hit the time limit are retried once alone. Raises InputError for an unknown voting method, and for
    a question without candidates.
    """
    if method not in VOTE_METHODS:
        raise InputError(f"vote {method!r}: there are {', '.join(VOTE_METHODS)}")
    finished: list[Ballot] = []
    waiting: list[tuple[Example, Sequence[str | None]]] = []
    for example, sqls in zip(examples, candidates, strict=True):
        if not sqls:
            raise InputError(f"vote: question {example.uid} has no candidates")
        if waiting and sum(len(batch) for _, batch in waiting) + len(sqls) > _CHUNK:
            finished += _ballots(executor, waiting, method)
            waiting = []
        waiting.append((example, sqls))
    return finished + _ballots(executor, waiting, method)


def _ballots(
    executor: SqlExecutor, questions: Sequence[tuple[Example, Sequence[str | None]]], method: str
) -> list[Ballot]:
    pairs = [
        (example.database, (runnable_sql(sql, example) or "") if sql else "")
        for example, sqls in questions
        for sql in sqls
    ]
    executed = list(zip(pairs, execute_all(executor, pairs), strict=True))
    stopped = dict.fromkeys(pair for pair, outcome in executed if outcome.stopped_by == "wall")
    retried = {pair: executor.execute_many([pair])[0] for pair in stopped}
    outcomes = iter([retried.get(pair, outcome) for pair, outcome in executed])
    question_ballots = []
    for _, sqls in questions:
        candidate_outcomes = [next(outcomes) for _ in sqls]
        question_ballots.append(
            Ballot(
                tuple(sqls),
                _result_indices(candidate_outcomes),
                similarity_matrix(candidate_outcomes) if method == "soft" else None,
            )
        )
    return question_ballots


def _result_indices(outcomes: Sequence[SqlOutcome]) -> tuple[int, ...]:
    """Return the index of each candidate's result, see `Ballot.results`."""
    indices: dict[int | None, int] = {}
    return tuple(
        indices.setdefault(outcome.set_digest, len(indices)) if outcome.status == "ok" else _FAILED
        for outcome in outcomes
    )


def choose(ballot: Ballot, members: Sequence[int] | None = None) -> VoteResult:
    """Count the votes of all candidates, or of those with the indices `members` alone, in that order.

    An index may occur several times; each occurrence is a vote.
    """
    chosen = list(range(len(ballot.sqls)) if members is None else members)
    voters = [i for i in chosen if ballot.results[i] != _FAILED]
    if not voters:
        return VoteResult(ballot.sqls[chosen[0]], chosen[0], [])
    votes: dict[int, float] = {}  # by the first candidate of each result, in order of occurrence
    if ballot.similarity is None:
        first_candidate: dict[int, int] = {}
        for i in voters:
            representative = first_candidate.setdefault(ballot.results[i], i)
            votes[representative] = votes.get(representative, 0.0) + 1.0
    else:
        # As in the released code, a candidate that runs has similarity 1 to itself, and failed ones are in the sum:
        # rounding decides between equal sums there too.
        pairwise = ballot.similarity[np.ix_(chosen, chosen)]
        np.fill_diagonal(pairwise, [ballot.results[i] != _FAILED for i in chosen])
        totals = dict(zip(chosen, pairwise.sum(1).tolist(), strict=True))
        votes = {i: totals[i] for i in voters}
    ranked = sorted(votes, key=lambda i: -votes[i])
    return VoteResult(ballot.sqls[ranked[0]], ranked[0], [(ballot.sqls[i] or "", votes[i]) for i in ranked])


def vote_curve(
    ballots: Sequence[Ballot],
    scores: Sequence[Sequence[float]],
    sizes: Sequence[int] = SIZES,
    *,
    subsets: int = 20,
    seed: int = 0,
) -> dict[int, float]:
    """Return the mean score of the vote by number of samples k, for each k of `sizes`.

    `scores[q][i]` is the score of candidate i of question q. Per question, the score for k samples is the mean over
    `subsets` votes, each by a random subset of k candidates. Sizes above the smallest number of candidates are omitted.
    """
    min_candidates = min((len(ballot.sqls) for ballot in ballots), default=0)
    rng = np.random.Generator(np.random.Philox(seed))
    curve = {}
    for size in sizes:
        if not 1 <= size <= min_candidates:
            continue
        total = 0.0
        for ballot, question_scores in zip(ballots, scores, strict=True):
            n = len(ballot.sqls)
            times = 1 if size == n else subsets
            chosen = ([*range(n)] if size == n else rng.permutation(n)[:size].tolist() for _ in range(times))
            total += sum(question_scores[choose(ballot, subset).index] for subset in chosen) / times
        curve[size] = total / len(ballots)
    return curve


def pass_at_k(right: int, count: int, k: int) -> float:
    """Return pass@k from `count` samples, `right` of them right (Chen et al., 2021).

    The unbiased estimate is 1 - C(count - right, k) / C(count, k). Raises InputError unless 1 <= k <= count.
    """
    if not 1 <= k <= count or not 0 <= right <= count:
        raise InputError(f"pass@{k} of {count} samples, {right} of them right: k must be from 1 to their number")
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def pass_curve(scores: Sequence[Sequence[float]], sizes: Sequence[int] = SIZES) -> Mapping[int, float]:
    """Return the mean pass@k over questions by k; only samples with a score of 1 are right."""
    min_candidates = min((len(question_scores) for question_scores in scores), default=0)
    counted = [(sum(value >= 1.0 for value in question_scores), len(question_scores)) for question_scores in scores]
    return {k: sum(pass_at_k(c, n, k) for c, n in counted) / len(counted) for k in sizes if 1 <= k <= min_candidates}
