"""Masked reductions: values computed by hand, and no NaN from masked elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import bucket
from jaxrl_sql.models.ops.masked import masked_max, masked_mean, masked_sum
from jaxrl_sql.models.ops.rng import Purpose, base_key, fold


def test_masked_reductions_by_hand() -> None:
    x, mask = jnp.array([1.0, 2.0, jnp.nan, -8.0]), jnp.array([True, True, False, False])
    assert float(masked_sum(x, mask)) == 3.0
    assert float(masked_mean(x, mask)) == 1.5
    assert float(masked_max(x, mask)) == 2.0
    assert float(masked_max(-jnp.abs(x), mask)) == -1.0


def test_empty_mask_gives_zero_and_no_gradient() -> None:
    x, mask = jnp.array([jnp.nan, jnp.inf]), jnp.zeros(2, bool)
    for reduction in (masked_sum, masked_mean, masked_max):
        assert float(reduction(x, mask)) == 0.0
    assert (np.asarray(jax.grad(masked_mean)(x, mask)) == 0.0).all()


def test_buckets_waste_at_most_a_third() -> None:
    for length in range(1, 3000):
        size = bucket(length)
        assert size >= length
        assert size == 32 or size * 2 <= 3 * length
    assert len({bucket(n) for n in range(1, 4097)}) == 15


def test_keys_differ_by_purpose_and_by_every_number() -> None:
    keys = [base_key(0, Purpose.ROLLOUT), base_key(0, Purpose.EVAL), base_key(1, Purpose.ROLLOUT)]
    keys += [fold(keys[0], 0), fold(keys[0], 1), fold(keys[0], 0, 0), fold(keys[0], 0, 1), fold(keys[0], 1, 0)]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(keys)
