"""A dense product whose weight gradient is laid out for the machine at hand.

Automatic differentiation puts the output's gradient on the left of the weight gradient's product. XLA's CPU backend
writes a left operand out transposed, and fuses into that copy whatever computed it: for an MLP it evaluates the gate's
derivative column by column, which took longer than all matrix products together. Here the narrower operand stands on
the left. The values are the same sums; on GPU and TPU the order makes no difference.

Weights may be kept in a wider type than the activations (float32 masters under bfloat16 compute). They are narrowed
here, so that no narrow copy of them is kept for the backward pass, and their gradient comes out of the product in the
masters' type: it is never rounded to the activations' on the way.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def linear(x: jax.Array, w: jax.Array, n_in: int = 1, dtype: Any = None) -> jax.Array:
    """Contract the last `n_in` axes of x [...,*I] with the first `n_in` of w [*I,*O] -> [...,*O].

    The operands are in x's type; the result is too, or in `dtype`, to which it is then summed without rounding.
    """
    inner = tuple(range(x.ndim - n_in, x.ndim))
    return _dot(x, w.astype(x.dtype), inner, tuple(range(n_in)), dtype or x.dtype)


def _forward(x: jax.Array, w: jax.Array, n_in: int, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return linear(x, w, n_in, dtype), (x, w)


def _backward(n_in: int, dtype: Any, kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    del dtype  # it is g's
    x, w = kept
    g = g.astype(x.dtype)
    lead = tuple(range(x.ndim - n_in))
    outer = tuple(range(len(lead), g.ndim))
    dx = _dot(g, w.astype(x.dtype), outer, tuple(range(n_in, w.ndim)), x.dtype)
    wide = jnp.promote_types(x.dtype, w.dtype)
    if math.prod(w.shape[:n_in]) <= math.prod(w.shape[n_in:]):
        dw = _dot(x, g, lead, lead, wide)
    else:
        swapped = _dot(g, x, lead, lead, wide)
        n_out = w.ndim - n_in
        dw = swapped.transpose(*range(n_out, w.ndim), *range(n_out))
    return dx, dw.astype(w.dtype)


def _dot(a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...], dtype: Any) -> jax.Array:
    """Contract axes `of_a` with axes `of_b`; the sums are rounded to `dtype` alone."""
    over = ((of_a, of_b), ((), ()))
    if a.dtype == dtype:
        return lax.dot_general(a, b, over)
    # XLA's CPU backend has no kernel for some products of bfloat16 that are summed in float32: it gets them widened.
    return lax.platform_dependent(
        a, b,
        cpu=lambda a, b: lax.dot_general(a.astype(dtype), b.astype(dtype), over),
        default=lambda a, b: lax.dot_general(a, b, over, preferred_element_type=dtype),
    )  # fmt: skip


linear.defvjp(_forward, _backward)
