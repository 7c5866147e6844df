"""95 % confidence intervals of shares, clustered by database.

Questions on one database share its schema, names and difficulties, so they are not independent: the databases are the
sample. Their variance is the jackknife variance of the mean, with one database removed at a time. Student's t with one
degree of freedom less than databases keeps the coverage with few databases (Cameron and Miller 2015). With a single
database, questions count as independent, and the interval does not extend to other databases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

_LEVEL = 0.95


def interval(values: np.ndarray, databases: Sequence[str]) -> tuple[float, float]:
    """Return the interval of the mean of values [Q], with a database name per value; (0, 0) if empty.

    The interval is the mean plus and minus t standard errors. It is clipped to [-1, 1] ([0, 1] without negative
    values), or to the range of the values if wider. The error is at least that of independent questions. If all values
    are equal, the half-width is Wilson's upper bound of 0 out of Q. A single value has the full range as its interval.
    """
    if not len(values):
        return 0.0, 0.0
    mean, least, most = float(values.mean()), min(float(values.min()), 0.0), max(float(values.max()), 1.0)
    least = min(least, -1.0) if least < 0 or not values.any() else least
    if len(values) == 1:
        return least, most
    variance, t = _jackknife(values, databases)
    variance = max(variance, float(values.var()) / (len(values) - 1))
    half = t * math.sqrt(variance) if np.ptp(values) else _wilson(0.0, len(values), t)[1]
    return max(mean - half, least), min(mean + half, most)


def share_interval(values: np.ndarray, databases: Sequence[str]) -> tuple[float, float]:
    """Return the interval of a share, the mean of values [Q] in [0, 1]; (0, 0) if empty.

    This is Wilson's score interval (Wilson 1927) with t instead of the normal quantile. Its sample size is the
    effective number of independent questions (Kish 1965), at most Q. It has a positive width even at 0 and 1. Values
    above 1 (`r_ves`) get the interval of a mean. A single question has (0, 1).
    """
    if len(values) == 1 and 0 <= values[0] <= 1:
        return 0.0, 1.0
    if len(values) < 2 or values.min() < 0 or values.max() > 1:
        return interval(values, databases)
    share = float(values.mean())
    variance, t = _jackknife(values, databases)
    spread = share * (1 - share)
    return _wilson(share, spread / variance if variance * len(values) > spread else len(values), t)


def _jackknife(values: np.ndarray, databases: Sequence[str]) -> tuple[float, float]:
    """Return the jackknife variance of the mean over databases, and the matching quantile of t."""
    _, clusters = np.unique(np.asarray(databases, dtype=str), return_inverse=True)
    if clusters.max() == 0:
        clusters = np.arange(len(values))
    sums, counts = np.bincount(clusters, weights=values), np.bincount(clusters)
    without = (sums.sum() - sums) / (len(values) - counts)
    number = len(counts)
    variance = (number - 1) / number * float(np.square(without - values.mean()).sum())
    return variance, float(stdtrit(number - 1, (1 + _LEVEL) / 2))


def _wilson(share: float, count: float, t: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `count` independent questions at quantile `t`."""
    wide = 1 + t * t / count
    middle = (share + t * t / (2 * count)) / wide
    half = t * math.sqrt(share * (1 - share) / count + t * t / (4 * count * count)) / wide
    return middle - half if share > 0 else 0.0, middle + half if share < 1 else 1.0
