"""Sums, means and maxima over the elements where a mask is true.

Empty masks are allowed, and NaN outside the mask affects neither values nor gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked_sum(x: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Sum `x` where `mask` is true; other elements, even NaN, affect neither the value nor the gradient."""
    return jnp.sum(jnp.where(mask, x, 0.0), axis=axis)


def masked_mean(x: jax.Array, mask: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Average `x` where `mask` is true; 0 for an empty mask."""
    return masked_sum(x, mask, axis) / jnp.maximum(jnp.sum(mask, axis=axis), 1)


def masked_variance(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the variance (ddof 0) of `x` where `mask` is true."""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def standardize(x: jax.Array, mask: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Scale `x` to mean 0 and standard deviation 1 (ddof 0) where `mask` is true; 0 elsewhere."""
    centred = jnp.where(mask, x - masked_mean(x, mask), 0.0)
    return centred / (jnp.sqrt(masked_variance(x, mask)) + epsilon)


def sum_and_count(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of masked `x` and the number of true elements; both can be added over parts before the mean."""
    return masked_sum(x, mask), jnp.sum(mask).astype(jnp.float32)


def masked_max(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the maximum of `x` where `mask` is true; 0 for an empty mask."""
    return jnp.where(jnp.any(mask), jnp.max(x, initial=-jnp.inf, where=mask), 0.0)
