"""Stochastic rounding of bfloat16 numbers for updates smaller than the last bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.models.ops.stochastic_rounding import apply_updates


def test_small_updates_of_weights_in_bfloat16_add_up() -> None:
    start = jax.random.normal(jax.random.key(0), (4000,)) * 0.02
    params, step = {"w": start.astype(jnp.bfloat16)}, jax.jit(apply_updates)
    begun = np.asarray(params["w"], np.float32)
    for i in range(50):
        params = step(params, {"w": jnp.full((4000,), -1e-6)}, jnp.asarray(i))
    moved = np.asarray(params["w"], np.float32) - begun
    assert params["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(moved.mean(), -5e-5, rtol=0.1)


def test_float32_weights_are_not_rounded() -> None:
    params = {"w": jnp.array([1.0, 2.0]), "b": jnp.zeros(())}
    moved = apply_updates(params, {"w": jnp.array([0.5, -1.0]), "b": jnp.ones(())}, jnp.asarray(3))
    np.testing.assert_array_equal(moved["w"], [1.5, 1.0])
    assert moved["b"] == 1
