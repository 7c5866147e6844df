"""The section `second_stage`: a second stage of reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class SecondStageConfig:
    """A second stage of reinforcement learning from the first stage's checkpoint with the best evaluation (PaVeRL-SQL).

    Its learning rate starts at the first stage's peak if accuracy rose and levelled off, and at half of the best
    checkpoint's rate if accuracy only fluctuated. It decays by a cosine.
    """

    steps: Annotated[int, "Number of steps of the second stage; 0 skips it."] = 0
    final_lr_ratio: Annotated[float, "Rate at the end of the second stage, as a share of its first rate."] = 0.1
