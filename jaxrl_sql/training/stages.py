"""Stages of GRPO in a run and their progress.

A stage is a series of GRPO steps with one optimizer and learning-rate schedule. PaVeRL-SQL's recipe has two: the second
restarts from the first one's best checkpoint, at a rate that depends on the course of its evaluations (`has_risen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxrl_sql.algo.optim import make_schedule
from jaxrl_sql.config import OptimConfig


@dataclass(frozen=True)
class Stage:
    """A stage of GRPO: its name in the metrics, the run's steps before it, its number of steps, and its optimizer."""

    name: str
    steps_before: int
    steps: int
    optim: OptimConfig

    @property
    def last(self) -> int:
        """Return the last step of the stage, counted over the run."""
        return self.steps_before + self.steps

    def rate(self, update: int, per_step: int) -> float:
        """Return the learning rate of update `update`, counted from 0 over the stage; a negative index counts as 0.

        `per_step` is the number of updates per step.
        """
        return float(make_schedule(self.optim, self.steps * per_step)(max(update, 0)))


@dataclass
class Progress:
    """The part of a GRPO checkpoint that is no array.

    - `cursor` is the number of questions that rollouts have taken from the order of the training questions.
    - `before` has the metrics of the evaluation before GRPO.
    - `history` has [step, rating] of each evaluation; the rating is the value of `run.best_by`.
    - `rate` is the second stage's initial learning rate; 0 in the first stage.
    """

    cursor: int = 0
    before: dict[str, float] = field(default_factory=dict)
    history: list[list[float]] = field(default_factory=list)
    rate: float = 0.0


def has_risen(ratings: Sequence[float]) -> bool:
    """Return whether a series of evaluations rose (and perhaps levelled off) instead of only going up and down.

    It rose if the mean of its later half exceeds that of its earlier half by more than the noise of one evaluation. The
    noise is estimated from the differences of neighbours.
    """
    half = len(ratings) // 2
    if not half:
        return False
    # The difference of two independent values has the square root of 2 times the deviation of one.
    noise = float(np.std(np.diff(ratings))) / 2**0.5
    return float(np.mean(ratings[-half:]) - np.mean(ratings[:half])) > noise
