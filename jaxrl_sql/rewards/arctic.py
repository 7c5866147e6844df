"""The reward of Arctic-Text2SQL-R1: 1 for a right result, 0.1 for a query that runs, 0 for the rest.

A result over the row cap has the status `too_large`: it did not run within the limits and is never equal to anything.
"""

from __future__ import annotations

from jaxrl_sql.sqlenv.ports import ScoreRow
from jaxrl_sql.types import Reward

RULE = "bird"
_EXECUTES = 0.1


def arctic_reward(row: ScoreRow) -> Reward:
    """Return 1 / 0.1 / 0 with parts `correct` and `executes` (each 0 or 1)."""
    executes = row.pred_status == "ok"
    correct = executes and row.gold_status == "ok" and row.scores.get(RULE, 0.0) == 1.0
    total = 1.0 if correct else _EXECUTES if executes else 0.0
    return Reward(total, {"correct": float(correct), "executes": float(executes)})
