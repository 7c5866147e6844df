"""Intervals of 95 %: how far a share would move with other databases of the same kind.

Questions on one database share its schema, its names and its difficulties, so they are not independent: databases are
what varies. How much they do is the jackknife's variance of the mean, each database left out once, and a quantile of
Student's t with one degree of freedom less than databases keeps the interval honest with few of them (Cameron and
Miller 2015). With one database alone its questions are taken for independent: the interval says nothing of others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

_LEVEL = 0.95


def interval(values: np.ndarray, databases: Sequence[str]) -> tuple[float, float]:
    """Return the bounds of the mean of values [Q], one database's name a value; (0, 0) of nothing.

    The mean and t standard errors about it, within -1 to 1 (or to 0 where no value is negative), or as far as values
    go beyond. The error is at least that of independent questions. Where all values are the same, another question
    could differ by 1: they lie as far about it as Wilson's bound of 0 of Q. One value says nothing: all is possible.
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
    """Return the bounds of a share, the mean of values [Q] in [0, 1]; (0, 0) of nothing.

    Wilson's score interval (Wilson 1927), with t for the normal quantile and of as many questions as would vary so
    much were they independent (Kish 1965), at most Q. It is never empty, so also with none or all right. What may
    exceed 1 (`r_ves`) is no share, and has the interval of a mean. Of one question nothing is known: (0, 1).
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
    """Return the variance of the mean when each database is left out once, and the quantile of t that belongs to it."""
    _, groups = np.unique(np.asarray(databases, dtype=str), return_inverse=True)
    if groups.max() == 0:
        groups = np.arange(len(values))
    sums, counts = np.bincount(groups, weights=values), np.bincount(groups)
    without = (sums.sum() - sums) / (len(values) - counts)
    number = len(counts)
    variance = (number - 1) / number * float(np.square(without - values.mean()).sum())
    return variance, float(stdtrit(number - 1, (1 + _LEVEL) / 2))


def _wilson(share: float, count: float, t: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `count` independent questions at a quantile."""
    wide = 1 + t * t / count
    middle = (share + t * t / (2 * count)) / wide
    half = t * math.sqrt(share * (1 - share) / count + t * t / (4 * count * count)) / wide
    return middle - half if share > 0 else 0.0, middle + half if share < 1 else 1.0
