"""Stages of GRPO in a run, their progress, and the start of a second one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxrl_sql.algo.optim import make_schedule
from jaxrl_sql.config import OptimConfig


@dataclass(frozen=True)
class Stage:
    """A stage of GRPO: its name in the metrics, the run's step before its first, number of steps, and optimizer."""

    name: str
    first: int
    steps: int
    optim: OptimConfig

    @property
    def last(self) -> int:
        """Return the run's step after which the stage is over."""
        return self.first + self.steps

    def rate(self, update: int, per_step: int) -> float:
        """Return the learning rate of one of the stage's updates, counted from 0; earlier ones have that of 0."""
        return float(make_schedule(self.optim, self.steps * per_step)(max(update, 0)))


@dataclass
class Progress:
    """The part of a checkpoint that is no array: data cursor, first evaluation, each [step, rating], a rate."""

    cursor: int = 0
    before: dict[str, float] = field(default_factory=dict)
    history: list[list[float]] = field(default_factory=list)
    rate: float = 0.0


def has_risen(ratings: Sequence[float]) -> bool:
    """Return whether a course of evaluations rose (and perhaps levelled off) or only went up and down.

    It rose if the mean of its later half exceeds that of its earlier half by more than the random difference of
    neighbours.
    """
    half = len(ratings) // 2
    if not half:
        return False
    noise = float(np.std(np.diff(ratings))) / 2**0.5
    return float(np.mean(ratings[-half:]) - np.mean(ratings[:half])) > noise
