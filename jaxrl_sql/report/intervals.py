"""Shares of right answers with their 95 % intervals, and paired differences of two evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_sql.report.groups import AnswerGroup
from jaxrl_sql.text2sql.evals.interval import interval, share_interval

Evaluations = Mapping[str, Mapping[int, Sequence[AnswerGroup]]]
"""The groups of evaluations by phase (`eval/SPLIT`) and step."""


def share_of(mean: float, count: int, groups: Sequence[AnswerGroup]) -> dict[str, float] | None:
    """Return a share as `mean`, with the ends `low` and `high` of its 95 % interval; None if it is not finite.

    `mean` is the share of right answers to `count` questions. If `groups` has all of these answers, the interval is
    over databases: questions on a database are not independent. Else it is over questions as if independent.
    """
    if not math.isfinite(mean):
        return None
    if len(groups) == count and count:
        low, high = share_interval(np.array([score_of(group) for group in groups]), [group["db"] for group in groups])
    else:
        right = round(mean * count)
        low, high = share_interval(np.array([1.0] * right + [0.0] * (count - right)), [""] * count)
    return {"mean": mean, "low": low, "high": high}


def difference_of(before: Sequence[AnswerGroup], after: Sequence[AnswerGroup], count: int) -> dict[str, float] | None:
    """Return the paired difference of two evaluations of the same `count` questions, in the form of `share_of`.

    None if answers are missing.
    """
    scores_before = {group["uid"]: score_of(group) for group in before}
    if not count or len(before) != count or scores_before.keys() != {group["uid"] for group in after}:
        return None
    change = np.array([score_of(group) - scores_before[group["uid"]] for group in after])
    low, high = interval(change, [group["db"] for group in after])
    return {"mean": float(change.mean()), "low": low, "high": high}


def score_of(group: AnswerGroup) -> float:
    """Return the score of a question's first answer; 0 without a score."""
    return float(group["answers"][0]["reward"] or 0.0) if group["answers"] else 0.0
