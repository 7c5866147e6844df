"""R-VES: speed of right answers relative to their golds, the reference queries (BIRD).

A prediction that is right by BIRD's comparison and its gold run alternately, several times. The time ratios gold /
predicted of the pairs are averaged without outliers beyond three standard deviations. The mean ratio has a reward: 1.25
for at least 2, 1 for at least 1, 0.75 for at least 0.5, 0.5 for at least 0.25, else 0.25. The score is the square root
of the reward, and 0 for a wrong answer. The leaderboard reports the mean times 100, with a maximum of 111.8.

The published procedure runs the prediction first in each pair, so the second query may benefit from warm caches. With
`r_ves_alternate`, the gold runs first in every second pair, and a ratio is taken over two pairs of opposite order.
Equally fast queries then have the ratio 1.

Times depend on the machine and its load, so everything here runs alone and sequentially.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxrl_sql.text2sql.env.ports import SqlExecutor

RUNS = 100
"""The number of pairs of runs per right answer, as in BIRD's script."""
SPEED_RULES = ("r_ves", "r_ves_alternate")
"""The rules that measure time: BIRD's, and its variant in which prediction and gold alternate at running first."""
# (The lowest time ratio gold / predicted, its reward).
_STEPS = ((2.0, 1.25), (1.0, 1.0), (0.5, 0.75), (0.25, 0.5))
_SLOWEST = 0.25
_SIGMAS = 3.0


def speed_score(
    timer: SqlExecutor, db_path: str, sql: str, golds: Sequence[str], runs: int = RUNS, *, alternates: bool = False
) -> float:
    """Return the score of a right answer, 0.5 to 1.12, relative to the first gold that runs.

    There are `runs` pairs of runs, in each of which the prediction runs first. With `alternates`, their number is even,
    and the gold runs first in every second pair. `timer` must not cache results (`timing_executor`). An answer that
    fails in all runs here, for example at a time limit, gets the lowest score.
    """
    gold = next((candidate for candidate in golds if timer.execute_many([(db_path, candidate)])[0].status == "ok"), "")
    if alternates:
        orders = [
            (_times(timer, db_path, sql, gold), _times(timer, db_path, gold, sql)) for _ in range((runs + 1) // 2)
        ]
        # Times of the prediction and of the gold, each over both orders.
        pairs = [(a[0] + b[1], a[1] + b[0]) for a, b in orders if a and b]
    else:
        pairs = [pair for _ in range(runs) if (pair := _times(timer, db_path, sql, gold))]
    return math.sqrt(step_score(mean_without_outliers([gold / max(prediction, 1e-6) for prediction, gold in pairs])))


def _times(timer: SqlExecutor, db_path: str, first: str, second: str) -> tuple[float, float] | None:
    """Run two queries in this order and return their times in ms; None if either failed."""
    a, b = (timer.execute_many([(db_path, sql)])[0] for sql in (first, second))
    return (a.elapsed_ms, b.elapsed_ms) if a.status == b.status == "ok" else None


def mean_without_outliers(ratios: Sequence[float]) -> float:
    """Return the mean of the values within three standard deviations of the mean; 0 if empty."""
    values = np.asarray(ratios, dtype=np.float64)
    if not values.size:
        return 0.0
    inliers = values[np.abs(values - values.mean()) <= _SIGMAS * values.std()]
    return float((inliers if inliers.size else values).mean())


def step_score(ratio: float) -> float:
    """Return the reward of a time ratio gold / predicted."""
    return next((value for least, value in _STEPS if ratio >= least), _SLOWEST)
