"""Paired comparison of two runs on the same questions.

Questions on one database share its schema and difficulties, so they are not independent: the databases are the sample.
The p value is from a sign-flip test over databases (Fisher's randomization test): if the runs are equally good, each
database's summed difference is equally likely with either sign. McNemar's exact test counts questions: among those
whose score differs, better and worse are equally likely. It assumes independent questions, so it rejects too often if
databases differ. The interval of the difference is clustered by database, too (`interval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr

from jaxrl_sql.text2sql.evals.interval import interval
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, InputError

_SIGNIFICANCE = 0.05
_TOLERANCE = 1e-9
# The sign-flip test is exact for up to 20 databases: the 2**19 totals, one per choice of signs, take 4 MiB. For more
# databases, 4369 * 15 = 65,535 random choices of signs are computed in rounds, which limits the memory.
_EXACT_DATABASES, _FLIPS, _FLIP_ROUNDS = 20, 4369, 15


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """The second run compared with the first by one rule, over the `count` questions with a score in both.

    `difference` is second - first, and `low` and `high` bound its 95 % interval. `p_value` is from the sign-flip test
    over the `databases`, `p_mcnemar` from McNemar's test. `better` and `worse` are the ids of questions whose score
    rose and fell. `unpaired` are questions with a score in only one run, because the gold failed in the other.
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
) -> PairedComparison:
    """Compare the verdicts `first[i]` and `second[i]` on `examples[i]` by one rule.

    Raises InputError if they are on different questions, or if no question has a score by the rule in both runs.
    """
    triples = list(zip(examples, first, second, strict=True))
    for example, left, right in triples:
        if not example.uid == left.uid == right.uid:
            raise InputError(
                f"runs of different questions: {example.uid}, {left.uid} and {right.uid} have the same index"
            )
    unpaired = tuple(example.uid for example, left, right in triples if (rule in left.scores) != (rule in right.scores))
    scored_in_both = [triple for triple in triples if rule in triple[1].scores and rule in triple[2].scores]
    if not scored_in_both:
        raise InputError(f"runs to compare: no question has a score by {rule!r} in both")
    before = np.array([left.scores[rule] for _, left, _ in scored_in_both])
    after = np.array([right.scores[rule] for _, _, right in scored_in_both])
    change = after - before
    databases = [example.db_id for example, _, _ in scored_in_both]
    low, high = interval(change, databases)
    better = tuple(example.uid for (example, _, _), gain in zip(scored_in_both, change, strict=True) if gain > 0)
    worse = tuple(example.uid for (example, _, _), gain in zip(scored_in_both, change, strict=True) if gain < 0)
    return PairedComparison(
        rule,
        len(scored_in_both),
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
    """Return the two-sided exact p value of McNemar's test for `better` and `worse` questions."""
    return min(1.0, 2.0 * float(bdtr(min(better, worse), better + worse, 0.5))) if better + worse else 1.0


def sign_flip(change: np.ndarray, databases: Sequence[str]) -> float:
    """Return the two-sided p value of changes [Q], with a database name per change, from sign flips per database.

    Exact for up to 20 databases with a difference, else from 65,535 random flips with a fixed seed.
    """
    _, clusters = np.unique(np.asarray(databases, dtype=str), return_inverse=True)
    sums = np.bincount(clusters, weights=change)  # per database
    sums = sums[np.abs(sums) > _TOLERANCE]
    observed = abs(float(sums.sum())) - _TOLERANCE
    if len(sums) <= _EXACT_DATABASES:
        # The first sign is +: the other half of the choices has the opposite totals, and totals count without sign.
        totals = sums[:1]
        for value in sums[1:]:
            totals = np.concatenate((totals + value, totals - value))
        return float(np.mean(np.abs(totals) >= observed)) if len(sums) else 1.0
    rng = np.random.default_rng(0)
    rounds = (2 * rng.integers(0, 2, (_FLIPS, len(sums)), dtype=np.int8) - 1 for _ in range(_FLIP_ROUNDS))
    hits = sum(int(np.count_nonzero(np.abs(signs @ sums) >= observed)) for signs in rounds)
    return (1 + hits) / (1 + _FLIPS * _FLIP_ROUNDS)  # the observed signs are one of the choices


def caution(databases: int) -> str:
    """Return a warning about the significance that few databases can reach; "" for six or more."""
    if databases <= 1:
        return "1 database: the interval and McNemar's p are over its questions, and the sign-flip p is always 1"
    if databases == 2:
        return "2 databases: the interval is useless and the sign-flip p is at least 0.5, so no difference can be shown"
    min_p = 2 / 2**databases  # two of the choices of signs have the largest difference
    warning = f"{databases} databases: the sign-flip p is at least {min_p:.2g}, so no difference can be shown at 5 %"
    return warning if min_p > _SIGNIFICANCE else ""
