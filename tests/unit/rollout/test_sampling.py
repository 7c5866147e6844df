"""Parameters that float32 cannot represent are refused, and extreme ones leave a token with positive probability."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models.ops.token_distribution import SamplingMetadata, sample_tokens
from jaxrl_sql.models.ops.truncation import Truncation
from jaxrl_sql.rollout import SamplingParams
from jaxrl_sql.types import InputError

SMALLEST = float(np.finfo(np.float32).tiny)
# Compile one program for all parameters instead of one per operation.
sample_compiled = jax.jit(sample_tokens, static_argnames="truncation")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("top_k", 2**31, "top_k must be at least 0 and below 2 to the 31"),
        ("top_k", -1, "top_k must be at least 0"),
        ("top_p", 1e-50, "top_p must be at least 1.2e-38 and at most 1"),
        ("top_p", SMALLEST / 2, "top_p must be at least"),
        ("top_p", math.nan, "top_p must be at least"),
        ("min_p", 1e-50, "min_p must be 0, or at least 1.2e-38 and at most 1"),
        ("min_p", 1.5, "min_p must be 0"),
        ("temperature", -1.0, "temperature must be at least 0"),
        ("temperature", 1e-38, "temperature must be 0, or at least 1e-6 and at most 1e6"),
        ("temperature", math.inf, "temperature must be 0, or"),
        ("temperature", math.nan, "temperature must be at least 0"),
        ("repetition_penalty", math.inf, "repetition_penalty must be at least 1e-6 and at most 1e6"),
        ("repetition_penalty", 1e39, "repetition_penalty must be"),
        ("repetition_penalty", 1e-38, "repetition_penalty must be"),
        ("repetition_penalty", math.nan, "repetition_penalty must be"),
    ],
)
def test_values_outside_the_devices_range_are_refused(name: str, value: float, says: str) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as refused:
        SamplingParams(**arguments)
    assert str(refused.value).startswith(f"sampling: {says}")


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
@pytest.mark.parametrize("penalty", [1e-6, 1e6])
@pytest.mark.parametrize("rest", [{}, {"top_k": 2**31 - 1}, {"top_p": SMALLEST}, {"min_p": SMALLEST}])
def test_extreme_parameters_leave_a_token_with_positive_probability(
    temperature: float, penalty: float, rest: dict[str, Any]
) -> None:
    """All tokens occurred, so the penalty applies to each logit of both signs."""
    sampling = SamplingParams(temperature=temperature, repetition_penalty=penalty, **rest)
    kinds = {name: np.int32 if name == "top_k" else np.float32 for name in SamplingMetadata._fields}
    on_device = SamplingMetadata(**{name: np.full(2, getattr(sampling, name), kind) for name, kind in kinds.items()})
    logits = np.array([[-900.0, -50.0, 0.0, 1000.0], [-900.0, -1000.0, -2.0, -1.0]], np.float32)
    keys = jax.random.split(jax.random.key(0), 2)
    result = sample_compiled(keys, logits, on_device, np.ones(logits.shape, bool))
    assert np.isfinite(result.behavior_logprob).all()
    assert (np.asarray(result.behavior_logprob) <= 0).all()


def test_extreme_parameters_give_probabilities_in_one_compiled_program() -> None:
    """Fusion may round a product differently."""
    rest: tuple[dict[str, Any], ...] = ({}, {"top_k": 5}, {"top_p": SMALLEST}, {"min_p": SMALLEST})
    cases = list(itertools.product((1e-6, 1e-3, 1.0, 1e6), (1e-6, 0.5, 1.0, 1e6), (3.0, 30.0, 3000.0), rest))
    samplings = [
        SamplingParams(temperature=temperature, repetition_penalty=penalty, **more)
        for temperature, penalty, _, more in cases
    ]
    on_device = SamplingMetadata(
        **{
            name: np.array(
                [getattr(sampling, name) for sampling in samplings], np.int32 if name == "top_k" else np.float32
            )
            for name in SamplingMetadata._fields
        }
    )
    r = np.random.default_rng(0)
    spread = np.array([scale for _, _, scale, _ in cases])[:, None]
    logits = jnp.asarray(r.normal(0, spread, (len(cases), 1000)), jnp.float32)
    seen = jnp.asarray(r.random(logits.shape) < 0.7)
    keys = jax.random.split(jax.random.key(0), len(cases))
    # Compile with the default options, not with those of the tests.
    level = {"xla_backend_optimization_level": 3}
    sample = jax.jit(sample_tokens, static_argnames="truncation", compiler_options=level)
    for is_truncated in (True, False):
        drawn = sample(keys, logits, on_device, seen, truncation=Truncation(*[is_truncated] * 3))
        for numbers in (drawn.logprob, drawn.behavior_logprob):
            assert np.isfinite(numbers).all()
            assert (np.asarray(numbers) <= 1e-5).all()
        assert ((np.asarray(drawn.token) >= 0) & (np.asarray(drawn.token) < logits.shape[1])).all()
