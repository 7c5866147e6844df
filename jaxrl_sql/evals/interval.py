"""Intervals by bootstrap: how far a share would move with other databases of the same kind.

Questions on one database share its schema, its names and its difficulties, so they are not independent: databases
are resampled, with all their questions. With one database alone its questions are, and the interval says nothing of
other databases. Where every resample has the same mean, as when all answers are wrong, resampling says that nothing
could differ, which is not so: a share then has Wilson's score interval of its questions (Wilson 1927).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

RESAMPLES = 2_000
_LEVEL = 0.95
_BLOCK = 500
_EQUAL = 1e-9  # means of the same values differ by what was rounded when they were added up


def resampled_means(values: np.ndarray, databases: Sequence[str], seed: int = 0, n: int = RESAMPLES) -> np.ndarray:
    """Return the means [n] of values [Q] when whole databases, one name a value, are resampled with replacement."""
    _, groups = np.unique(np.asarray(databases, dtype=str), return_inverse=True)
    if groups.max(initial=0) == 0:
        groups = np.arange(len(values))
    sums = np.bincount(groups, weights=values)
    counts = np.bincount(groups).astype(np.float64)
    rng = np.random.Generator(np.random.Philox(seed))
    chance = np.full(len(counts), 1 / len(counts))
    # In blocks: with one database the times that each is taken are a matrix of n by Q.
    counted = (rng.multinomial(len(counts), chance, size=min(_BLOCK, n - at)) for at in range(0, n, _BLOCK))
    return np.concatenate([times @ sums / (times @ counts) for times in counted])


def interval(values: np.ndarray, databases: Sequence[str], seed: int = 0, n: int = RESAMPLES) -> tuple[float, float]:
    """Return the bounds of the middle 95 % of the resampled means; (0, 0) of nothing."""
    if not len(values):
        return 0.0, 0.0
    low, high = np.quantile(resampled_means(values, databases, seed, n), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def share_interval(
    values: np.ndarray, databases: Sequence[str], seed: int = 0, n: int = RESAMPLES
) -> tuple[float, float]:
    """Return the bounds of the 95 % interval of a share, the mean of values in [0, 1]; (0, 0) of nothing.

    Resampled, or Wilson's where all resamples agree. What may exceed 1 (`r_ves`) is no share and always resampled.
    """
    low, high = interval(values, databases, seed, n)
    if len(values) and high - low < _EQUAL and values.min() >= 0 and values.max() <= 1:
        return wilson(float(values.mean()), len(values))
    return low, high


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `count` independent questions."""
    z = NormalDist().inv_cdf((1 + _LEVEL) / 2)
    wide = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / wide
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / wide
    return middle - half if share > 0 else 0.0, middle + half if share < 1 else 1.0
