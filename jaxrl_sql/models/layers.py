"""The pieces of a layer beside attention: norm and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, from_one: bool = False) -> jax.Array:
    """Normalise [...,D] to root mean square 1 and scale by `weight` [D]; in float32, returned in x's dtype.

    `from_one`: the weight is stored as its distance from 1, and the scaling is in float32 too (Gemma's way).
    """
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    if from_one:
        return (normed * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
    return normed.astype(x.dtype) * weight.astype(x.dtype)
