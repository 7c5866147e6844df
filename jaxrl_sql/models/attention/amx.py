"""Attention as `xla` computes it, with bfloat16 products by a unit of the CPU (`models.ops.cpu`), also in the gradient.

What is multiplied is rounded to bfloat16, in the gradient too (there `xla`, whose products are widened on a CPU, rounds
the result alone); scores, softmax and sums are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxrl_sql.models.attention import xla
from jaxrl_sql.models.attention.tree import Level, Window
from jaxrl_sql.models.ops import cpu
from jaxrl_sql.models.spec import ModelConfig


def refusal(config: ModelConfig, dtype: DTypeLike) -> str | None:
    """Return why attention of `dtype` is not computed here, or None."""
    del config
    if dtype != jnp.bfloat16:
        return f"it multiplies bfloat16, and activations are {jnp.dtype(dtype).name}"
    return None if cpu.has_bfloat16_products() else "this processor has no fast products of bfloat16"


def attend_tree(
    levels: Sequence[Level], scale: float, cap: float | None, window: Window | None
) -> tuple[jax.Array, ...]:
    """Let every level's queries attend to the levels above and to their own rows -> [B,R,T,H,Q] a level."""
    return xla.attend_tree(levels, scale, cap, window, xla.Products(_score, _mix))


def _score(q: jax.Array, k: jax.Array) -> jax.Array:
    """Multiply queries [B,R,X,K,M,Q] with keys [B,R,K,S,Q] -> [B,R,K,M,X,S] float32."""
    b, r, x, kv_heads, m, size = q.shape
    rows = jnp.transpose(q, (0, 1, 3, 4, 2, 5)).reshape(b, r, kv_heads, m * x, size)
    return _times_turned(rows, k).reshape(b, r, kv_heads, m, x, k.shape[3])


def _mix(weight: jax.Array, v: jax.Array) -> jax.Array:
    """Sum values [B,R,K,S,Q] by weights [B,R,K,M,X,S] float32 -> [B,R,X,K,M,Q] float32."""
    b, r, kv_heads, m, x, s = weight.shape
    mixed = _times(weight.astype(v.dtype).reshape(b, r, kv_heads, m * x, s), v)
    return jnp.moveaxis(mixed.reshape(b, r, kv_heads, m, x, v.shape[-1]), 4, 2)


@jax.custom_vjp
def _times_turned(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply a [*N,M,K] with b [*N,S,K] -> [*N,M,S] float32."""
    return cpu.product(a, b, is_turned=True)


def _times_turned_backward(kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = kept
    g = g.astype(a.dtype)
    return cpu.product(g, b).astype(a.dtype), cpu.product(cpu.turned(g), a).astype(b.dtype)


_times_turned.defvjp(lambda a, b: (_times_turned(a, b), (a, b)), _times_turned_backward)


@jax.custom_vjp
def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply a [*N,M,K] with b [*N,K,S] -> [*N,M,S] float32."""
    return cpu.product(a, b)


def _times_backward(kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = kept
    g = g.astype(a.dtype)
    return cpu.product(g, b, is_turned=True).astype(a.dtype), cpu.product(cpu.turned(a), g).astype(b.dtype)


_times.defvjp(lambda a, b: (_times(a, b), (a, b)), _times_backward)
