"""The section `health`: conditions that stop a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class HealthConfig:
    """Conditions that stop a run without progress; non-finite numbers always stop it."""

    entropy_floor: Annotated[
        float,
        "Minimum entropy in nats per token; the run stops after `health.entropy_steps` consecutive steps below it. 0 "
        "disables the check.",
    ] = 0.0
    entropy_steps: Annotated[int, "Number of consecutive steps below `health.entropy_floor` that stop the run."] = 10
    zero_advantage_patience: Annotated[
        int,
        "Number of consecutive rollouts without a group of different rewards that stop the run; 0 disables the check.",
    ] = 100
