"""A dense product whose weight gradient is laid out for the machine at hand.

Automatic differentiation puts the output's gradient on the left of the weight gradient's product. XLA's CPU backend
writes a left operand out transposed, and fuses into that copy whatever computed it: for an MLP it evaluates the gate's
derivative column by column, which took longer than all matrix products together. Here the narrower operand stands on
the left. The values are the same sums; on GPU and TPU the order makes no difference.
"""

from __future__ import annotations

import math
from functools import partial

import jax
from jax import lax


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x: jax.Array, w: jax.Array, n_in: int = 1) -> jax.Array:
    """Contract the last `n_in` axes of x [...,*I] with the first `n_in` of w [*I,*O] -> [...,*O]."""
    inner = tuple(range(x.ndim - n_in, x.ndim))
    return lax.dot_general(x, w, ((inner, tuple(range(n_in))), ((), ())))


def _forward(x: jax.Array, w: jax.Array, n_in: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return linear(x, w, n_in), (x, w)


def _backward(n_in: int, kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    lead = tuple(range(x.ndim - n_in))
    outer = tuple(range(len(lead), g.ndim))
    dx = lax.dot_general(g, w, ((outer, tuple(range(n_in, w.ndim))), ((), ())))
    if math.prod(w.shape[:n_in]) <= math.prod(w.shape[n_in:]):
        dw = lax.dot_general(x, g, ((lead, lead), ((), ())))
    else:
        swapped = lax.dot_general(g, x, ((lead, lead), ((), ())))
        n_out = w.ndim - n_in
        dw = swapped.transpose(*range(n_out, w.ndim), *range(n_out))
    return dx.astype(x.dtype), dw.astype(w.dtype)


linear.defvjp(_forward, _backward)
