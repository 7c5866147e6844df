"""Tests of two paired runs: the sign-flip test over databases, by hand, by an oracle, and on equal runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxrl_sql.text2sql.evals.pairs import caution, mcnemar, sign_flip


def p_of(sums: list[float]) -> float:
    """Return the p value of databases with these summed differences; each question contributes at most 1."""
    sizes = [max(1, round(abs(value))) for value in sums]
    change = np.repeat([value / size for value, size in zip(sums, sizes, strict=True)], sizes)
    return sign_flip(change, [str(i) for i, size in enumerate(sizes) for _ in range(size)])


BY_HAND = [
    ([2], 1.0),
    ([2, 1], 2 / 4),
    ([1, 1], 2 / 4),
    ([3, -3], 1.0),
    ([1] * 6, 2 / 64),
    ([0, 2, 0, 1], 2 / 4),
    ([0], 1.0),
]


@pytest.mark.parametrize(("sums", "expected"), BY_HAND)
def test_sign_flips_by_hand(sums: list[float], expected: float) -> None:
    assert p_of(sums) == expected


def test_exact_flips_equal_the_enumeration_of_signs() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        sums = rng.integers(-6, 9, 9)
        totals = [abs(int(np.dot(signs, sums))) for signs in itertools.product((-1, 1), repeat=len(sums))]
        assert p_of(list(sums)) == pytest.approx(np.mean([total >= abs(sums.sum()) for total in totals]))


def test_random_flips_of_many_databases_approximate_the_exact_p() -> None:
    sums = [3, -1, 2, 2, -2, 1, 4, 1, -1, 2] * 3
    ways = {0: 1}
    for value in sums:
        later: dict[int, int] = {}
        for total, count in ways.items():
            for signed in (total + value, total - value):
                later[signed] = later.get(signed, 0) + count
        ways = later
    exact = sum(count for total, count in ways.items() if abs(total) >= sum(sums)) / 2 ** len(sums)
    assert p_of(list(map(float, sums))) == pytest.approx(exact, rel=0.1)
    assert p_of([1.0] * 40) == pytest.approx(1 / 65_536), "the smallest p of random flips"


@pytest.mark.parametrize("databases", [8, 12])
def test_false_positive_rate_of_equal_runs_is_one_in_twenty(databases: int) -> None:
    """Each database shifts the difference at random, with mean 0; McNemar's test reports that as a difference."""
    rng = np.random.default_rng(11)
    names = [str(i) for i in range(databases) for _ in range(50)]
    flips, counts = [], []
    for _ in range(400):
        shift = np.repeat(np.clip(rng.normal(0, 0.1, databases), -0.15, 0.15), 50)
        chance = rng.random(len(names))
        change = (chance < 0.15 + shift).astype(float) - (chance > 0.85 + shift)
        flips.append(sign_flip(change, names) < 0.05)
        counts.append(mcnemar(int((change > 0).sum()), int((change < 0).sum())) < 0.05)
    assert 0.02 < np.mean(flips) < 0.09
    assert np.mean(counts) > 0.2


def test_few_databases_cannot_show_a_difference() -> None:
    assert (
        caution(1) == "1 database: the interval and McNemar's p are over its questions, and the sign-flip p is always 1"
    )
    assert (
        caution(2)
        == "2 databases: the interval is useless and the sign-flip p is at least 0.5, so no difference can be shown"
    )
    assert caution(5) == "5 databases: the sign-flip p is at least 0.062, so no difference can be shown at 5 %"
    assert caution(6) == ""
