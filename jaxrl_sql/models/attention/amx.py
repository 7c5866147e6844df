"""Attention as in `xla`, with products by the CPU's bfloat16 matrix unit (`models.ops.cpu`), also in the gradient.

In the forward pass and in the gradient, the operands of products are bfloat16; scores, softmax and sums are in
float32. (In `xla` on a CPU only the result of a gradient's product is rounded to bfloat16.) Letters of shapes are those
of `xla`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxrl_sql.models.attention import xla
from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel
from jaxrl_sql.models.ops import cpu
from jaxrl_sql.models.spec import ModelConfig


def refusal(config: ModelConfig, dtype: DTypeLike) -> str | None:
    """Return why attention of `dtype` is not supported on this CPU, or None."""
    del config
    if dtype != jnp.bfloat16:
        return f"it multiplies bfloat16, and activations are {jnp.dtype(dtype).name}"
    return None if cpu.has_bfloat16_products() else "this processor has no fast products of bfloat16"


def attend_tree(
    levels: Sequence[TreeLevel], scale: float, cap: float | None, window: AttentionWindow | None
) -> tuple[jax.Array, ...]:
    """Attend from each level's queries to the levels above and to their own rows -> [B,R,T,H,Q] per level."""
    return xla.attend_tree(levels, scale, cap, window, xla.MatrixProducts(_score, _weighted_sum))


def _score(q: jax.Array, k: jax.Array) -> jax.Array:
    """Multiply folded queries [B,Rj,X,K,M,Q] with keys [B,Rj,K,S,Q] -> [B,Rj,K,M,X,S] float32."""
    b, r, x, kv_heads, m, _ = q.shape
    return _times_transposed(xla.by_head(q), k).reshape(b, r, kv_heads, m, x, k.shape[3])


def _weighted_sum(weight: jax.Array, v: jax.Array) -> jax.Array:
    """Sum values [B,Rj,K,S,Q] by weights [B,Rj,K,M,X,S] float32 -> [B,Rj,X,K,M,Q] float32."""
    b, r, kv_heads, m, x, s = weight.shape
    summed = _times(weight.astype(v.dtype).reshape(b, r, kv_heads, m * x, s), v)
    return jnp.moveaxis(summed.reshape(b, r, kv_heads, m, x, v.shape[-1]), 4, 2)


@jax.custom_vjp
def _times_transposed(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply a [*N,M,K] with b [*N,S,K] -> [*N,M,S] float32."""
    return cpu.product(a, b, is_transposed=True)


def _times_transposed_backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = residuals
    g = g.astype(a.dtype)
    return cpu.product(g, b).astype(a.dtype), cpu.product(cpu.transpose(g), a).astype(b.dtype)


_times_transposed.defvjp(lambda a, b: (_times_transposed(a, b), (a, b)), _times_transposed_backward)


@jax.custom_vjp
def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply a [*N,M,K] with b [*N,K,S] -> [*N,M,S] float32."""
    return cpu.product(a, b)


def _times_backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = residuals
    g = g.astype(a.dtype)
    return cpu.product(g, b, is_transposed=True).astype(a.dtype), cpu.product(cpu.transpose(a), g).astype(b.dtype)


_times.defvjp(lambda a, b: (_times(a, b), (a, b)), _times_backward)
