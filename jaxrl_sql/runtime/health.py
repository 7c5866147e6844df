"""Detect runs that no longer learn: metrics that are not finite, collapsed entropy, groups with equal rewards.

Such a run ends with a message (observation and suggested settings) and exit code 3. The counters are saved with each
checkpoint.

A phase is `sft`, `grpo` or `grpo2`, the second stage. A group is the answers to a prompt in one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxrl_sql.config import HealthConfig
from jaxrl_sql.types import JaxrlSqlError

UNHEALTHY = 3
"""Exit code of a run that a health check stopped."""

FINITE = (
    "sft/loss", "policy/loss", "value/loss", "policy/entropy", "policy/ratio_mean", "policy/kl", "optim/grad_norm",
    "optim/param_norm",
)  # fmt: skip
"""Metrics that stop a run if they are not finite.

The norm of the parameters overflows long before products with them do, so it warns early.
"""


class HealthError(JaxrlSqlError):
    """A run that cannot continue: the observation, and settings to try (commands exit with code 3)."""


class Health:
    """Check the metrics of each step; `counts` has the steps in a row with collapsed entropy and with equal rewards."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self.counts = {"entropy": 0, "equal": 0}

    def check(self, step: int, phase: str, numbers: Mapping[str, float]) -> str | None:
        """Return the problem and settings to try if a collapse has lasted for the configured steps; else None.

        The run then saves a checkpoint and ends. Raises HealthError at once if a metric of `FINITE` is not finite.
        """
        not_finite = [
            f"{name} is {numbers[name]}" for name in FINITE if name in numbers and not math.isfinite(numbers[name])
        ]
        if not_finite:
            raise HealthError(f"step {step} ({phase}): {', '.join(not_finite)}; {stability_advice(phase)}")
        cfg = self._config
        if (
            phase != "sft"
            and "policy/entropy" in numbers
            and self._has_lasted("entropy", numbers["policy/entropy"] < cfg.entropy_floor, cfg.entropy_steps)
        ):
            return (
                f"step {step}: policy/entropy has been below health.entropy_floor={cfg.entropy_floor} for "
                f"{cfg.entropy_steps} steps (now {numbers['policy/entropy']:.2g}): the policy gives one answer per "
                "question and no longer explores; try a grpo.loss.entropy_bonus, a larger grpo.clip.high, a lower "
                "grpo.optim.lr, or a higher sampling.temperature"
            )
        if "reward/zero_variance" in numbers and self._has_lasted(
            "equal", numbers["reward/zero_variance"] >= 1, cfg.zero_advantage_patience
        ):
            return (
                f"step {step}: in {cfg.zero_advantage_patience} rollouts (health.zero_advantage_patience) the answers "
                f"of every group had equal rewards (mean {numbers.get('reward/mean', math.nan):.3g}), so nothing is "
                "learned. If the mean is low, the questions are too hard: try a longer cold start (sft.steps), easier "
                "questions, or a larger grpo.num_generations. If it is high, they are too easy: try harder questions "
                "or a higher sampling.temperature"
            )
        return None

    def _has_lasted(self, counter: str, is_collapsed: bool, steps: int) -> bool:
        """Count a step; return whether the last `steps` steps were all collapsed (0: never), and restart the count."""
        self.counts[counter] = self.counts[counter] + 1 if is_collapsed else 0
        has_lasted = 0 < steps <= self.counts[counter]
        if has_lasted:
            self.counts[counter] = 0
        return has_lasted


def stability_advice(phase: str) -> str:
    """Return settings to try after a phase diverged."""
    section = "sft" if phase == "sft" else "grpo"
    return (
        f"restart, or begin from a checkpoint (jaxrl-sql export RUN --step N), with a lower {section}.optim.lr, "
        f"a longer {section}.optim.warmup_steps or a smaller {section}.optim.max_grad_norm; in bfloat16 try "
        "model.dtype=float32 with model.compute_dtype=bfloat16"
    )
