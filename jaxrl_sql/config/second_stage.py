"""The section `second_stage`: a second stage of reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SecondStageConfig:
    """A second stage of `steps` steps from the best evaluated checkpoint of the first (PaVeRL-SQL); 0 steps: none.

    Its rate begins at that of the first stage's peak when accuracy rose and levelled off, at half of the rate that the
    best checkpoint had when it only fluctuated, and falls by a cosine to `final_lr_ratio` of it.
    """

    steps: int = 0
    final_lr_ratio: float = 0.1
