"""A run that cannot learn says so: numbers that are none at once, a collapse once it has lasted."""

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
def test_what_is_no_number_stops_at_once(name: str, value: float) -> None:
    with pytest.raises(HealthError, match=rf"step 7 \(grpo\): {name} is {value}; .*lower grpo\.optim\.lr") as caught:
        Health(HealthConfig()).check(7, "grpo", {**WELL, name: value})
    assert "\n" not in str(caught.value)


def test_other_numbers_may_be_none() -> None:
    assert Health(HealthConfig()).check(1, "eval", {"eval/dev/ves": math.nan, "speed/tokens_per_s": math.inf}) is None


def test_a_collapse_has_to_last_and_is_counted_anew_after_it_was_told() -> None:
    health = Health(HealthConfig(entropy_floor=0.2, entropy_steps=3, zero_advantage_patience=0))
    low, well = {"policy/entropy": 0.1}, {"policy/entropy": 0.2}
    output = [health.check(step, "grpo", x) for step, x in enumerate((low, low, well, low, low, low, low, low, low))]
    assert [reason is not None for reason in output] == [False] * 5 + [True, False, False, True]
    assert "below health.entropy_floor=0.2 for 3 steps (now 0.1)" in str(output[5])


def test_equal_groups_are_counted_in_steps_that_drew_some() -> None:
    """Steps that learn from an older draw say nothing about groups, and neither do evaluations."""
    health = Health(HealthConfig(zero_advantage_patience=2))
    equal = {"reward/zero_variance": 1.0, "reward/mean": 0.25}
    assert health.check(1, "grpo", equal) is None
    assert health.check(2, "grpo", {"policy/entropy": 1.0}) is None
    assert health.counts["equal"] == 1
    reason = health.check(3, "grpo", equal)
    assert reason is not None
    assert "(mean 0.25)" in reason


def test_zero_leaves_a_check_out() -> None:
    health = Health(HealthConfig(entropy_floor=0.0, zero_advantage_patience=0))
    gone = {"policy/entropy": 0.0, "reward/zero_variance": 1.0}
    assert [health.check(step, "grpo", gone) for step in range(300)] == [None] * 300


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_parameters_that_nothing_can_be_computed_with_are_refused(bad: float) -> None:
    good = {"w": jnp.ones((3, 4), jnp.bfloat16), "steps": jnp.arange(3), "scale": jnp.full(2, 1e15)}
    refuse_broken(5, "sft", good)
    with pytest.raises(HealthError, match=r"step 5 \(sft\): the parameters .* lower sft\.optim\.lr"):
        refuse_broken(5, "sft", {**good, "w": good["w"].at[1, 2].set(bad)})


def test_a_cold_start_may_be_as_sure_as_it_likes() -> None:
    health = Health(HealthConfig(entropy_floor=0.2, entropy_steps=1))
    assert health.check(1, "sft", {"policy/entropy": 0.1}) is None
    assert health.check(2, "grpo", {"policy/entropy": 0.1}) is not None
