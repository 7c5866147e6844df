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
from jax.typing import DTypeLike

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.ops import cpu


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


AnyWeight = jax.Array | Weight


def wide_slots(params: PyTree) -> PyTree:
    """Return what to differentiate by in place of parameters: zeros in float32 for narrow leaves, the others as are."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32) if _is_narrow(x) else x, params)


def with_slots(params: PyTree, slots: PyTree) -> PyTree:
    """Return parameters whose narrow leaves are Weights with these slots; the other leaves are the slots themselves."""
    return jax.tree.map(lambda x, slot: Weight(x, slot) if _is_narrow(x) else slot, params, slots)


def value_of(weight: AnyWeight) -> jax.Array:
    """Return the array of a weight."""
    return weight.value if isinstance(weight, Weight) else weight


def without_slot(weight: AnyWeight) -> AnyWeight:
    """Return what a backward pass needs of a weight; what it is, too, it tells from this."""
    return Weight(weight.value, None) if isinstance(weight, Weight) else weight


def gradient_of(weight: AnyWeight, total: jax.Array) -> PyTree:
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


def _widened_backward(w: AnyWeight, g: jax.Array) -> tuple[PyTree]:
    return (gradient_of(w, g),)


widened.defvjp(_widened_forward, _widened_backward)


class Turned(NamedTuple):
    """A matrix that lies as [O,I] and is applied as [I,O].

    Turned by `.T` it would be widened: XLA's CPU backend decides which products it has a kernel for before it takes
    the turning into them.
    """

    weight: AnyWeight

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape [I,O] that it is applied in."""
        return self.weight.shape[::-1]


def linear(x: jax.Array, w: AnyWeight | Turned, n_in: int = 1, dtype: DTypeLike | None = None) -> jax.Array:
    """Contract the last `n_in` axes of x [...,*I] with the first `n_in` of w [*I,*O] -> [...,*O].

    The operands are in x's type; the result is too, or in `dtype`, to which it is then summed without rounding.
    """
    return _linear(x, w.weight, n_in, dtype, True) if isinstance(w, Turned) else _linear(x, w, n_in, dtype, False)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _linear(x: jax.Array, w: AnyWeight, n_in: int, dtype: DTypeLike, is_turned: bool) -> jax.Array:
    inner = tuple(range(x.ndim - n_in, x.ndim))
    of_in, _ = _axes(w, n_in, is_turned)
    return _dot(x, value_of(w).astype(x.dtype), inner, of_in, dtype or x.dtype)


def _axes(w: AnyWeight, n_in: int, is_turned: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of a weight that are contracted, and the others."""
    n = len(w.shape)
    cut = n - n_in if is_turned else n_in
    first, last = tuple(range(cut)), tuple(range(cut, n))
    return (last, first) if is_turned else (first, last)


def _linear_forward(
    x: jax.Array, w: AnyWeight, n_in: int, dtype: DTypeLike, is_turned: bool
) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return _linear(x, w, n_in, dtype, is_turned), (x, without_slot(w))


def _linear_backward(
    n_in: int, dtype: DTypeLike, is_turned: bool, kept: tuple[jax.Array, AnyWeight], g: jax.Array
) -> tuple[jax.Array, PyTree]:
    del dtype  # it is g's
    x, weight = kept
    w, g = value_of(weight), g.astype(x.dtype)
    lead = tuple(range(x.ndim - n_in))
    _, of_out = _axes(w, n_in, is_turned)
    dx = _dot(g, w.astype(x.dtype), tuple(range(len(lead), g.ndim)), of_out, x.dtype)
    first, last = (g, x) if is_turned else (x, g)
    cut = first.ndim - len(lead)
    if _has_unit(x, g) or math.prod(w.shape[:cut]) <= math.prod(w.shape[cut:]):
        dw = _dot(first, last, lead, lead, jnp.float32)
    else:
        swapped = _dot(last, first, lead, lead, jnp.float32)
        n_last = w.ndim - cut
        dw = swapped.transpose(*range(n_last, w.ndim), *range(n_last))
    return dx, gradient_of(weight, dw)


_linear.defvjp(_linear_forward, _linear_backward)


@jax.custom_vjp
def scale(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Multiply the last axes of x [...,*O] by w [*O], in x's type."""
    return x * value_of(w).astype(x.dtype)


def _scale_forward(x: jax.Array, w: AnyWeight) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return scale(x, w), (x, without_slot(w))


def _scale_backward(kept: tuple[jax.Array, AnyWeight], g: jax.Array) -> tuple[jax.Array, PyTree]:
    x, w = kept
    return g * value_of(w).astype(x.dtype), gradient_of(w, _sum(x.astype(jnp.float32) * g.astype(jnp.float32), w))


scale.defvjp(_scale_forward, _scale_backward)


@jax.custom_vjp
def shift(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Add w [*O] to the last axes of x [...,*O], in x's type."""
    return x + value_of(w).astype(x.dtype)


def _shift_forward(x: jax.Array, w: AnyWeight) -> tuple[jax.Array, AnyWeight]:
    return shift(x, w), without_slot(w)


def _shift_backward(w: AnyWeight, g: jax.Array) -> tuple[jax.Array, PyTree]:
    return g, gradient_of(w, _sum(g.astype(jnp.float32), w))


shift.defvjp(_shift_forward, _shift_backward)


def _sum(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Add x [...,*O] up over all axes that w [*O] lacks."""
    return jnp.sum(x, axis=tuple(range(x.ndim - len(w.shape))))


def _dot(a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Contract axes `of_a`, a's first or last, with axes `of_b`, b's first or last; round the sums to `dtype` alone."""
    over = ((of_a, of_b), ((), ()))
    has_unit = _has_unit(a, b)
    if a.dtype == dtype and not has_unit:
        return lax.dot_general(a, b, over)
    # XLA's CPU backend has no kernel for some products of bfloat16 that are summed in float32: it gets them widened.
    return lax.platform_dependent(
        a, b,
        cpu=lambda a, b: _plain_dot(a, b, of_a, of_b).astype(dtype) if has_unit
        else lax.dot_general(a.astype(dtype), b.astype(dtype), over),
        default=lambda a, b: lax.dot_general(a, b, over, preferred_element_type=dtype),
    )  # fmt: skip


def _has_unit(a: jax.Array, b: jax.Array) -> bool:
    """Return whether a CPU has a unit for this product."""
    return a.dtype == b.dtype == jnp.bfloat16 and cpu.has_bfloat16_products()


def _plain_dot(a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> jax.Array:
    """Return a product of bfloat16 in float32, as one of two matrices, which is what `cpu.product` takes."""
    of_m, of_s = (tuple(axis for axis in range(x.ndim) if axis not in of) for x, of in ((a, of_a), (b, of_b)))
    k = math.prod(a.shape[axis] for axis in of_a)
    left = a.reshape(-1, k) if of_a[0] else cpu.turned(a.reshape(k, -1))
    right = b.reshape(-1, k) if of_b[0] else b.reshape(k, -1)
    out = cpu.product(left, right, is_turned=bool(of_b[0]))
    return out.reshape([a.shape[axis] for axis in of_m] + [b.shape[axis] for axis in of_s])
