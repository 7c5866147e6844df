"""Two runs on the same questions: which is better, and where.

Questions on one database share its schema and its difficulties, so they are not independent: databases are what varies.
The p value is of a sign-flip test over databases (Fisher's randomization test): if the runs were equally good, each
database's summed difference could as well have the other sign. McNemar's exact test counts questions: of those whose
score differs, as many would be better as worse. It takes questions for independent, and where databases differ it calls
many equal runs different. The interval of the difference is by databases, too (`interval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr

from jaxrl_sql.text2sql.evals.interval import interval
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, InputError

_LEVEL = 0.05
_EQUAL = 1e-9
# 2**19 totals of exact flips take 4 MiB.
_EXACT_DATABASES, _FLIPS, _FLIP_ROUNDS = 20, 4369, 15


@dataclass(frozen=True, slots=True)
class Paired:
    """The second run against the first by one rule, over the `count` questions that have a score in both.

    `difference` is second - first, with the bounds of its 95 % interval; `p_value` is the sign-flip test's over the
    `databases`, `p_mcnemar` McNemar's; `better` and `worse` name the questions whose score rose and fell; `unpaired`
    those that have a score in one run alone, because the gold ran there alone.
    """

    rule: str
    count: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    databases: int
    p_value: float
    p_mcnemar: float
    better: tuple[str, ...]
    worse: tuple[str, ...]
    unpaired: tuple[str, ...]


def compare_runs(
    examples: Sequence[Example],
    first: Sequence[Verdict],
    second: Sequence[Verdict],
    rule: str,
) -> Paired:
    """Compare two runs, `first[i]` and `second[i]` of `examples[i]`; InputError when they are of other questions."""
    rows = list(zip(examples, first, second, strict=True))
    for example, one, other in rows:
        if not example.uid == one.uid == other.uid:
            raise InputError(
                f"runs of different questions: {example.uid}, {one.uid} and {other.uid} stand in one place"
            )
    unpaired = tuple(example.uid for example, one, other in rows if (rule in one.scores) != (rule in other.scores))
    both = [row for row in rows if rule in row[1].scores and rule in row[2].scores]
    if not both:
        raise InputError(f"runs to compare: no question has a score by {rule!r} in both")
    before = np.array([one.scores[rule] for _, one, _ in both])
    after = np.array([other.scores[rule] for _, _, other in both])
    change = after - before
    databases = [example.db_id for example, _, _ in both]
    low, high = interval(change, databases)
    better = tuple(example.uid for (example, _, _), by in zip(both, change, strict=True) if by > 0)
    worse = tuple(example.uid for (example, _, _), by in zip(both, change, strict=True) if by < 0)
    return Paired(
        rule,
        len(both),
        float(before.mean()),
        float(after.mean()),
        float(change.mean()),
        low,
        high,
        len(set(databases)),
        sign_flip(change, databases),
        mcnemar(len(better), len(worse)),
        better,
        worse,
        unpaired,
    )


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided exact p value of so many questions for the better and for the worse."""
    return min(1.0, 2.0 * float(bdtr(min(better, worse), better + worse, 0.5))) if better + worse else 1.0


def sign_flip(change: np.ndarray, databases: Sequence[str]) -> float:
    """Return the two-sided p value of changes [Q], one database's name a change, by flipping the signs of databases.

    Exact for up to 20 databases with a difference, else by 65,535 random flips with a fixed seed.
    """
    _, groups = np.unique(np.asarray(databases, dtype=str), return_inverse=True)
    sums = np.bincount(groups, weights=change)
    sums = sums[np.abs(sums) > _EQUAL]
    least = abs(float(sums.sum())) - _EQUAL
    if len(sums) <= _EXACT_DATABASES:
        totals = sums[:1]  # the other half has the opposite signs
        for value in sums[1:]:
            totals = np.concatenate((totals + value, totals - value))
        return float(np.mean(np.abs(totals) >= least)) if len(sums) else 1.0
    rng = np.random.default_rng(0)
    signs = (2 * rng.integers(0, 2, (_FLIPS, len(sums)), dtype=np.int8) - 1 for _ in range(_FLIP_ROUNDS))
    hits = sum(int(np.count_nonzero(np.abs(part @ sums) >= least)) for part in signs)
    return (1 + hits) / (1 + _FLIPS * _FLIP_ROUNDS)


def caution(databases: int) -> str:
    """Return what so few databases cannot show, or nothing for six or more."""
    if databases <= 1:
        return "1 database: the interval and McNemar's p are of its questions alone, and the sign-flip p is always 1"
    if databases == 2:
        return "2 databases: the interval is useless and the sign-flip p is at least 0.5, so no difference can be shown"
    least = 2 / 2**databases
    few = f"{databases} databases: the sign-flip p is at least {least:.2g}, so no difference can be shown at 5 %"
    return few if least > _LEVEL else ""
