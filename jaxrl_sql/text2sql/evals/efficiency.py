"""R-VES: how fast right answers are, beside their golds (BIRD).

A prediction that is right by BIRD's comparison is run in turn with its gold, several times. The ratios gold / predicted
of each pair of runs are averaged without those beyond three standard deviations, and the mean is rewarded in steps:
from 2 on 1.25, from 1 on 1, from 0.5 on 0.75, from 0.25 on 0.5, below 0.25. A question's score is the root of that, 0
for a wrong answer; the leaderboard shows the mean times 100, so that 111.8 is the highest.

The published procedure runs the prediction first in each pair, and what runs second may find in caches what the first
has read. With `r_ves_alternate` the gold is first in every second pair, and a ratio is that of the times which both
took in a pair of either order: each was first once, so two queries that take equally long have the ratio 1, however
much the first one waits.

Times depend on the machine and on what else runs on it: everything here runs alone and one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxrl_sql.text2sql.env.ports import SqlExecutor

RUNS = 100
SPEED_RULES = ("r_ves", "r_ves_alternate")
"""The rules that measure time: BIRD's, and the same where prediction and gold take turns at being first."""
_STEPS = ((2.0, 1.25), (1.0, 1.0), (0.5, 0.75), (0.25, 0.5))
_SLOWEST = 0.25
_SIGMAS = 3.0


def speed_score(
    timer: SqlExecutor, db_path: str, sql: str, golds: Sequence[str], runs: int = RUNS, *, alternates: bool = False
) -> float:
    """Return the score of a right answer, 0.5 to 1.12; of several golds the first that runs is the measure.

    The prediction runs first in each pair of runs, or with `alternates` in the first, third, … of an even number.
    `timer` must keep no results (`timing_executor`): what is answered from memory takes no time. An answer that fails
    now although it ran before (a time limit that it meets now and then) scores as the slowest.
    """
    gold = next((one for one in golds if timer.execute_many([(db_path, one)])[0].status == "ok"), "")
    if alternates:
        orders = [
            (_times(timer, db_path, sql, gold), _times(timer, db_path, gold, sql)) for _ in range((runs + 1) // 2)
        ]
        pairs = [(a[0] + b[1], a[1] + b[0]) for a, b in orders if a and b]
    else:
        pairs = [pair for _ in range(runs) if (pair := _times(timer, db_path, sql, gold))]
    return math.sqrt(step_score(mean_without_outliers([theirs / max(mine, 1e-6) for mine, theirs in pairs])))


def _times(timer: SqlExecutor, db_path: str, first: str, second: str) -> tuple[float, float] | None:
    """Run two queries in this order -> what each took in ms; None where one failed."""
    a, b = (timer.execute_many([(db_path, sql)])[0] for sql in (first, second))
    return (a.elapsed_ms, b.elapsed_ms) if a.status == b.status == "ok" else None


def mean_without_outliers(ratios: Sequence[float]) -> float:
    """Return the mean of what lies within three standard deviations of the mean; 0 of nothing."""
    values = np.asarray(ratios, dtype=np.float64)
    if not values.size:
        return 0.0
    kept = values[np.abs(values - values.mean()) <= _SIGMAS * values.std()]
    return float((kept if kept.size else values).mean())


def step_score(ratio: float) -> float:
    """Return what a time ratio gold / predicted is worth."""
    return next((value for least, value in _STEPS if ratio >= least), _SLOWEST)
