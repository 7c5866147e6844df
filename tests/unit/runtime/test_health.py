"""Health checks of a run: non-finite numbers at once, a collapse after several steps."""

from __future__ import annotations

import math

import jax.numpy as jnp
import pytest

from jaxrl_sql.config import HealthConfig
from jaxrl_sql.runtime.health import Health, HealthError
from jaxrl_sql.training.finite_check import refuse_broken

WELL = {"policy/loss": 0.1, "optim/grad_norm": 1.0, "policy/entropy": 0.5, "reward/zero_variance": 0.5}


@pytest.mark.parametrize("name", ["policy/loss", "optim/grad_norm", "policy/entropy", "policy/kl", "sft/loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_training_metric_stops_at_once(name: str, value: float) -> None:
    with pytest.raises(HealthError, match=rf"step 7 \(grpo\): {name} is {value}; .*lower grpo\.optim\.lr") as caught:
        Health(HealthConfig()).check(7, "grpo", {**WELL, name: value})
    assert "\n" not in str(caught.value)


def test_other_metrics_may_be_non_finite() -> None:
    assert Health(HealthConfig()).check(1, "eval", {"eval/dev/ves": math.nan, "speed/tokens_per_s": math.inf}) is None


def test_lasting_entropy_collapse_is_reported_repeatedly() -> None:
    health = Health(HealthConfig(entropy_floor=0.2, entropy_steps=3, zero_advantage_patience=0))
    low, well = {"policy/entropy": 0.1}, {"policy/entropy": 0.2}
    warnings = [health.check(step, "grpo", x) for step, x in enumerate((low, low, well, low, low, low, low, low, low))]
    assert [reason is not None for reason in warnings] == [False] * 5 + [True, False, False, True]
    assert "below health.entropy_floor=0.2 for 3 steps (now 0.1)" in str(warnings[5])


def test_equal_groups_are_counted_in_steps_with_rollouts() -> None:
    """Evaluations and steps on earlier rollouts have no group metrics and do not count."""
    health = Health(HealthConfig(zero_advantage_patience=2))
    equal = {"reward/zero_variance": 1.0, "reward/mean": 0.25}
    assert health.check(1, "grpo", equal) is None
    assert health.check(2, "grpo", {"policy/entropy": 1.0}) is None
    assert health.counts["equal"] == 1
    reason = health.check(3, "grpo", equal)
    assert reason is not None
    assert "(mean 0.25)" in reason


def test_zero_disables_a_check() -> None:
    health = Health(HealthConfig(entropy_floor=0.0, zero_advantage_patience=0))
    gone = {"policy/entropy": 0.0, "reward/zero_variance": 1.0}
    assert [health.check(step, "grpo", gone) for step in range(300)] == [None] * 300


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_non_finite_and_huge_parameters_are_rejected(bad: float) -> None:
    good = {"w": jnp.ones((3, 4), jnp.bfloat16), "steps": jnp.arange(3), "scale": jnp.full(2, 1e15)}
    refuse_broken(5, "sft", good)
    with pytest.raises(HealthError, match=r"step 5 \(sft\): the parameters .* lower sft\.optim\.lr"):
        refuse_broken(5, "sft", {**good, "w": good["w"].at[1, 2].set(bad)})


def test_sft_steps_have_no_entropy_floor() -> None:
    health = Health(HealthConfig(entropy_floor=0.2, entropy_steps=1))
    assert health.check(1, "sft", {"policy/entropy": 0.1}) is None
    assert health.check(2, "grpo", {"policy/entropy": 0.1}) is not None
