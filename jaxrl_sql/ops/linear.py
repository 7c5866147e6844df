"""What weights do to activations (products, scales, shifts), with gradients that are summed in float32.

Automatic differentiation puts the output's gradient on the left of the weight gradient's product. XLA's CPU backend
writes a left operand out transposed, and fuses into that copy whatever computed it: for an MLP it evaluates the gate's
derivative column by column, which took longer than all matrix products together. Here the narrower operand stands on
the left. The values are the same sums; on GPU and TPU the order makes no difference.

Weights may be kept in a wider type than the activations (float32 masters under bfloat16 compute). They are narrowed
here, so that no narrow copy of them is kept for the backward pass, and their gradient comes out of the sum in the
masters' type: it is never rounded to the activations' on the way.

JAX's gradient of an array is of the array's type. Added up in bfloat16 over pieces of logits, or over the places where
a token stands, it comes to a halt after some hundred addends. A `Weight` is a narrow array with a slot of zeros in
float32 beside it, which nothing reads: its gradient is the slot's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Weight(NamedTuple):
    """A weight in a narrow type, and the slot, float32 of its shape, that its gradient is taken by."""

    value: jax.Array
    slot: jax.Array | None

    @property
    def dtype(self) -> Any:
        """Return the type that the weight is kept in."""
        return self.value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the weight's shape."""
        return self.value.shape

    @property
    def T(self) -> Weight:  # noqa: N802 - an array's name for it
        """Return the matrix transposed."""
        return Weight(self.value.T, None if self.slot is None else self.slot.T)


AnyWeight = jax.Array | Weight


def wide_slots(params: Any) -> Any:
    """Return what to differentiate by in place of parameters: zeros in float32 for narrow leaves, the others as are."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32) if _is_narrow(x) else x, params)


def with_slots(params: Any, slots: Any) -> Any:
    """Return parameters whose narrow leaves are Weights with these slots; the other leaves are the slots themselves."""
    return jax.tree.map(lambda x, slot: Weight(x, slot) if _is_narrow(x) else slot, params, slots)


def value_of(weight: AnyWeight) -> jax.Array:
    """Return the array of a weight."""
    return weight.value if isinstance(weight, Weight) else weight


def without_slot(weight: AnyWeight) -> AnyWeight:
    """Return what a backward pass needs of a weight; what it is, too, it tells from this."""
    return Weight(weight.value, None) if isinstance(weight, Weight) else weight


def gradient_of(weight: AnyWeight, total: jax.Array) -> Any:
    """Return a sum in float32 as the gradient of a weight: of its slot, or rounded to the array's own type."""
    return Weight(None, total) if isinstance(weight, Weight) else total.astype(weight.dtype)  # type: ignore[arg-type]


def _is_narrow(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32)


@jax.custom_vjp
def widened(w: AnyWeight) -> jax.Array:
    """Return a weight in float32, with its gradient."""
    return value_of(w).astype(jnp.float32)


def _widened_forward(w: AnyWeight) -> tuple[jax.Array, AnyWeight]:
    return widened(w), without_slot(w)


def _widened_backward(w: AnyWeight, g: jax.Array) -> tuple[Any]:
    return (gradient_of(w, g),)


widened.defvjp(_widened_forward, _widened_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def linear(x: jax.Array, w: AnyWeight, n_in: int = 1, dtype: Any = None) -> jax.Array:
    """Contract the last `n_in` axes of x [...,*I] with the first `n_in` of w [*I,*O] -> [...,*O].

    The operands are in x's type; the result is too, or in `dtype`, to which it is then summed without rounding.
    """
    inner = tuple(range(x.ndim - n_in, x.ndim))
    return _dot(x, value_of(w).astype(x.dtype), inner, tuple(range(n_in)), dtype or x.dtype)


def _linear_forward(x: jax.Array, w: AnyWeight, n_in: int, dtype: Any) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return linear(x, w, n_in, dtype), (x, without_slot(w))


def _linear_backward(n_in: int, dtype: Any, kept: tuple[jax.Array, AnyWeight], g: jax.Array) -> tuple[jax.Array, Any]:
    del dtype  # it is g's
    x, weight = kept
    w, g = value_of(weight), g.astype(x.dtype)
    lead = tuple(range(x.ndim - n_in))
    outer = tuple(range(len(lead), g.ndim))
    dx = _dot(g, w.astype(x.dtype), outer, tuple(range(n_in, w.ndim)), x.dtype)
    if math.prod(w.shape[:n_in]) <= math.prod(w.shape[n_in:]):
        dw = _dot(x, g, lead, lead, jnp.float32)
    else:
        swapped = _dot(g, x, lead, lead, jnp.float32)
        n_out = w.ndim - n_in
        dw = swapped.transpose(*range(n_out, w.ndim), *range(n_out))
    return dx, gradient_of(weight, dw)


linear.defvjp(_linear_forward, _linear_backward)


@jax.custom_vjp
def scale(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Multiply the last axes of x [...,*O] by w [*O], in x's type."""
    return x * value_of(w).astype(x.dtype)


def _scale_forward(x: jax.Array, w: AnyWeight) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return scale(x, w), (x, without_slot(w))


def _scale_backward(kept: tuple[jax.Array, AnyWeight], g: jax.Array) -> tuple[jax.Array, Any]:
    x, w = kept
    return g * value_of(w).astype(x.dtype), gradient_of(w, _sum(x.astype(jnp.float32) * g.astype(jnp.float32), w))


scale.defvjp(_scale_forward, _scale_backward)


@jax.custom_vjp
def shift(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Add w [*O] to the last axes of x [...,*O], in x's type."""
    return x + value_of(w).astype(x.dtype)


def _shift_forward(x: jax.Array, w: AnyWeight) -> tuple[jax.Array, AnyWeight]:
    return shift(x, w), without_slot(w)


def _shift_backward(w: AnyWeight, g: jax.Array) -> tuple[jax.Array, Any]:
    return g, gradient_of(w, _sum(g.astype(jnp.float32), w))


shift.defvjp(_shift_forward, _shift_backward)


def _sum(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Add x [...,*O] up over all axes that w [*O] lacks."""
    return jnp.sum(x, axis=tuple(range(x.ndim - len(w.shape))))


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
