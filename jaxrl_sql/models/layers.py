"""Parts of the decoder other than attention: token embedding, RMSNorm and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.ops.linear import AnyWeight, gradient_of, scale, to_float32, value_of, without_zeros
from jaxrl_sql.parallel.rules import constrain

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


# Logical axes (`parallel.rules`) of an embedding table [V,D] during a lookup: only V is sharded, and D is gathered
# before. If both were sharded, XLA's partitioner would replicate the whole table on each device.
TABLE_AXES = ("vocab", "none")


@jax.custom_vjp
def lookup(table: AnyWeight, tokens: jax.Array) -> jax.Array:
    """Return the rows of a table [V,D] at tokens [...] -> [...,D].

    Gradients are summed in float32, because a bfloat16 sum stops growing after some hundred occurrences of a token.
    """
    return constrain(value_of(table), TABLE_AXES)[tokens]


def _lookup_forward(table: AnyWeight, tokens: jax.Array) -> tuple[jax.Array, tuple[AnyWeight, jax.Array]]:
    return lookup(table, tokens), (without_zeros(table), tokens)


def _lookup_backward(residuals: tuple[AnyWeight, jax.Array], g: jax.Array) -> tuple[PyTree, None]:
    table, tokens = residuals
    total = jnp.zeros(table.shape, jnp.float32).at[tokens].add(g.astype(jnp.float32))
    return gradient_of(table, constrain(total, TABLE_AXES)), None


lookup.defvjp(_lookup_forward, _lookup_backward)


def rms_norm(x: jax.Array, weight: AnyWeight, eps: float, is_zero_centered: bool = False) -> jax.Array:
    """Normalize [...,D] to root mean square 1 and scale by `weight` [D]; in float32, returned in x's dtype.

    `is_zero_centered`: scale by 1 + weight, in float32 too, as Gemma does.
    """
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    if is_zero_centered:
        return (normed * (1.0 + to_float32(weight))).astype(x.dtype)
    return scale(normed.astype(x.dtype), weight)
