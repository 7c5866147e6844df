"""The section `health`: conditions that stop a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class HealthConfig:
    """Conditions under which a run that no longer learns stops; numbers that are not finite always stop it."""

    entropy_floor: Annotated[
        float,
        "Entropy, in nats per token; below it for `health.entropy_steps` steps in a row the run stops. 0 never stops "
        "it.",
    ] = 0.0
    entropy_steps: Annotated[int, "Number of steps in a row below `health.entropy_floor` that stop the run."] = 10
    zero_advantage_patience: Annotated[
        int,
        "Number of rollouts in a row without a group whose rewards differ that stop the run; 0 never stops it.",
    ] = 100
