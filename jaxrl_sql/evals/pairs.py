"""Two runs on the same questions: which is better, and where.

The p value is McNemar's exact test: of the questions whose score differs, as many would be better as worse if the runs
were equally good, so the smaller number follows a binomial distribution of chance one half. It takes questions for
independent. The interval of the difference does not: databases are what varies there (`interval`). Where the two
disagree, as with a handful of databases, believe the more cautious one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr

from jaxrl_sql.evals.interval import interval
from jaxrl_sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, InputError


@dataclass(frozen=True, slots=True)
class Paired:
    """The second run against the first by one rule, over the `count` questions that have a score in both.

    `difference` is second - first, with the bounds of its 95 % interval; `better` and `worse` name the questions whose
    score rose and fell; `unpaired` those that have a score in one run alone, because the gold ran there alone.
    """

    rule: str
    count: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
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
    low, high = interval(change, [example.db_id for example, _, _ in both])
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
        mcnemar(len(better), len(worse)),
        better,
        worse,
        unpaired,
    )


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided exact p value of so many questions for the better and for the worse."""
    return min(1.0, 2.0 * float(bdtr(min(better, worse), better + worse, 0.5))) if better + worse else 1.0
