"""Sums, means and maxima over masked elements, safe for gradients and for masks that are empty."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked_sum(x: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Sum `x` where `mask` holds; masked elements have no value and no gradient, whatever they are (NaN too)."""
    return jnp.sum(jnp.where(mask, x, 0.0), axis=axis)


def masked_mean(x: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Average `x` where `mask` holds, and 0 where it holds nowhere."""
    return masked_sum(x, mask, axis) / jnp.maximum(jnp.sum(mask, axis=axis), 1)


def masked_max(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Take the largest `x` where `mask` holds, and 0 where it holds nowhere."""
    return jnp.where(jnp.any(mask), jnp.max(x, initial=-jnp.inf, where=mask), 0.0)
