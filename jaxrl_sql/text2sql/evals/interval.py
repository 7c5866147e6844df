"""95 % confidence intervals of shares, clustered by database.

Questions on one database share its schema, names and difficulties, so they are not independent: the databases are the
sample. The variance is the jackknife variance of the mean, with one database removed at a time. Student's t with one
degree of freedom less than databases keeps the coverage with few databases (Cameron and Miller 2015). With a single
database, questions count as independent, and the interval does not extend to other databases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

_CONFIDENCE = 0.95


def interval(values: np.ndarray, databases: Sequence[str]) -> tuple[float, float]:
    """Return the interval of the mean of values [Q], with a database name per value; (0, 0) if empty.

    The interval is the mean plus and minus t standard errors; the error is at least that of independent questions. It
    is clipped to the possible range: [0, 1] for shares, [-1, 1] for differences of shares, or the range of the values
    if it is wider. Values count as differences if any is negative or all are 0. If all values are equal, the half-width
    is Wilson's upper bound for 0 right answers of Q. A single value has the full range as its interval.
    """
    if not len(values):
        return 0.0, 0.0
    mean, minimum, maximum = float(values.mean()), min(float(values.min()), 0.0), max(float(values.max()), 1.0)
    minimum = min(minimum, -1.0) if minimum < 0 or not values.any() else minimum
    if len(values) == 1:
        return minimum, maximum
    variance, t = _jackknife(values, databases)
    variance = max(variance, float(values.var()) / (len(values) - 1))
    half = t * math.sqrt(variance) if np.ptp(values) else _wilson(0.0, len(values), t)[1]
    return max(mean - half, minimum), min(mean + half, maximum)


def share_interval(values: np.ndarray, databases: Sequence[str]) -> tuple[float, float]:
    """Return the interval of a share, the mean of values [Q] in [0, 1]; (0, 0) if empty.

    This is Wilson's score interval (Wilson 1927) with t instead of the normal quantile. Its sample size is the
    effective number of independent questions (Kish 1965), at most Q. It has a positive width even at 0 and 1. Values
    above 1 (of the rule `r_ves`, the speed of right answers) get the interval of a mean. A single question has (0, 1).
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
    """Return the jackknife variance of the mean over databases, and the quantile of t for a 95 % interval.

    With a single database, each question is a cluster of its own.
    """
    _, clusters = np.unique(np.asarray(databases, dtype=str), return_inverse=True)
    if clusters.max() == 0:
        clusters = np.arange(len(values))
    sums, counts = np.bincount(clusters, weights=values), np.bincount(clusters)
    means_without_one = (sums.sum() - sums) / (len(values) - counts)
    n_clusters = len(counts)
    variance = (n_clusters - 1) / n_clusters * float(np.square(means_without_one - values.mean()).sum())
    return variance, float(stdtrit(n_clusters - 1, (1 + _CONFIDENCE) / 2))


def _wilson(share: float, count: float, t: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `count` independent questions at quantile `t`."""
    scale = 1 + t * t / count
    center = (share + t * t / (2 * count)) / scale
    half = t * math.sqrt(share * (1 - share) / count + t * t / (4 * count * count)) / scale
    return center - half if share > 0 else 0.0, center + half if share < 1 else 1.0
