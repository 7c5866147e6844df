"""Several answers to a question: which one the others speak for, and how likely one of k is right.

Two ways to vote, see RECIPES in the documentation: by `result`, candidates whose results are equal sets of rows vote
for one another, and the result with most votes wins; `soft` (Arctic-Text2SQL-R1), each candidate is as good as its
result is similar to those of the others. Candidates that fail do not vote; those that return nothing do by `result`,
and are similar to nothing by `soft`. Of equals the one seen first wins. Where nothing runs, the first candidate stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxrl_sql.text2sql.env.dialect import as_run
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.text2sql.evals.similarity import likeness_of
from jaxrl_sql.types import Example, InputError

HOW = ("result", "soft")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

# Results of so many candidates are held at once.
_CHUNK = 512
_FAILED = -1


class Ballot(NamedTuple):
    """What the candidates of a question returned, ready to be counted, whole or in part.

    `results[i]` numbers the result of candidate i in the order in which results are first seen, -1 where it failed.
    `likeness` [n, n] says how similar the results of two candidates are, for the vote `soft`.
    """

    sqls: tuple[str | None, ...]
    results: tuple[int, ...]
    likeness: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that won, and the votes of each result: the SQL of the first that returned it, and how many.

    By `soft` these are the candidates and their summed similarities. Best first.
    """

    sql: str | None
    index: int
    votes: list[tuple[str, float]]


def ballots(
    executor: SqlExecutor, examples: Sequence[Example], candidates: Sequence[Sequence[str | None]], how: str = "result"
) -> list[Ballot]:
    """Run the candidates of many questions, `candidates[i]` of `examples[i]`.

    What the wall clock stopped is tried once more by itself. Raises InputError for another way to vote, and for a
    question without candidates.
    """
    if how not in HOW:
        raise InputError(f"vote {how!r}: there are {', '.join(HOW)}")
    found: list[Ballot] = []
    waiting: list[tuple[Example, Sequence[str | None]]] = []
    for example, sqls in zip(examples, candidates, strict=True):
        if not sqls:
            raise InputError(f"vote: question {example.uid} has no candidates")
        if waiting and sum(len(one) for _, one in waiting) + len(sqls) > _CHUNK:
            found += _ballots(executor, waiting, how)
            waiting = []
        waiting.append((example, sqls))
    return found + _ballots(executor, waiting, how)


def _ballots(executor: SqlExecutor, asked: Sequence[tuple[Example, Sequence[str | None]]], how: str) -> list[Ballot]:
    pairs = [(one.database, (as_run(sql, one) or "") if sql else "") for one, sqls in asked for sql in sqls]
    ran = list(zip(pairs, execute_all(executor, pairs), strict=True))
    stopped = dict.fromkeys(pair for pair, one in ran if one.stopped_by == "wall")
    again = {pair: executor.execute_many([pair])[0] for pair in stopped}
    outcomes = iter([again.get(pair, one) for pair, one in ran])
    found = []
    for _, sqls in asked:
        mine = [next(outcomes) for _ in sqls]
        found.append(Ballot(tuple(sqls), _numbered(mine), likeness_of(mine) if how == "soft" else None))
    return found


def _numbered(outcomes: Sequence[SqlOutcome]) -> tuple[int, ...]:
    numbers: dict[int | None, int] = {}
    return tuple(
        numbers.setdefault(outcome.set_digest, len(numbers)) if outcome.status == "ok" else _FAILED
        for outcome in outcomes
    )


def choose(ballot: Ballot, members: Sequence[int] | None = None) -> Choice:
    """Count the votes of all candidates, or of `members` alone, in their order."""
    chosen = list(range(len(ballot.sqls)) if members is None else members)
    voters = [i for i in chosen if ballot.results[i] != _FAILED]
    if not voters:
        return Choice(ballot.sqls[chosen[0]], chosen[0], [])
    votes: dict[int, float] = {}  # by the candidate that stands for them, in the order in which they are seen
    if ballot.likeness is None:
        first: dict[int, int] = {}
        for i in voters:
            leader = first.setdefault(ballot.results[i], i)
            votes[leader] = votes.get(leader, 0.0) + 1.0
    else:
        among = ballot.likeness[np.ix_(voters, voters)]
        votes = dict(zip(voters, (among.sum(1) - among.diagonal()).tolist(), strict=True))
    ranked = sorted(votes, key=lambda i: -votes[i])
    return Choice(ballot.sqls[ranked[0]], ranked[0], [(ballot.sqls[i] or "", votes[i]) for i in ranked])


def vote_curve(
    ballots: Sequence[Ballot],
    scores: Sequence[Sequence[float]],
    sizes: Sequence[int] = SIZES,
    *,
    subsets: int = 20,
    seed: int = 0,
) -> dict[int, float]:
    """Return the mean score of the vote by its size, from one set of samples a question.

    `scores[q][i]` is what candidate i of question q scores. A vote of k is the mean over random subsets of k
    candidates, `subsets` of them a question; sizes above the fewest candidates of a question are left out.
    """
    fewest = min((len(ballot.sqls) for ballot in ballots), default=0)
    rng = np.random.Generator(np.random.Philox(seed))
    curve = {}
    for size in sizes:
        if not 1 <= size <= fewest:
            continue
        total = 0.0
        for ballot, own_scores in zip(ballots, scores, strict=True):
            n = len(ballot.sqls)
            times = 1 if size == n else subsets
            chosen = ([*range(n)] if size == n else rng.permutation(n)[:size].tolist() for _ in range(times))
            total += sum(own_scores[choose(ballot, subset).index] for subset in chosen) / times
        curve[size] = total / len(ballots)
    return curve


def pass_at_k(right: int, count: int, k: int) -> float:
    """Return the chance that one of k out of `count` samples is right, `right` of which are (Chen et al., 2021).

    The unbiased estimate 1 - C(count - right, k) / C(count, k). Raises InputError unless 1 <= k <= count.
    """
    if not 1 <= k <= count or not 0 <= right <= count:
        raise InputError(f"pass@{k} of {count} samples, {right} of them right: k must be from 1 to their number")
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def pass_curve(scores: Sequence[Sequence[float]], sizes: Sequence[int] = SIZES) -> Mapping[int, float]:
    """Return pass@k by k over questions, from the scores of their samples: 1 is right, whatever is less is not."""
    fewest = min((len(own_scores) for own_scores in scores), default=0)
    counted = [(sum(value >= 1.0 for value in own_scores), len(own_scores)) for own_scores in scores]
    return {k: sum(pass_at_k(c, n, k) for c, n in counted) / len(counted) for k in sizes if 1 <= k <= fewest}
