"""The section `health`: conditions that stop a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthConfig:
    """When a run that learns nothing any more stops; what is no finite number always stops it.

    `entropy_floor`, in nats a token: below it for `entropy_steps` steps in a row the run stops (0: never).
    `zero_advantage_patience`: so many rollouts in a row without a group whose rewards differ stop it (0: never).
    """

    entropy_floor: float = 0.0
    entropy_steps: int = 10
    zero_advantage_patience: int = 100
