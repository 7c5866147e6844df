"""Products, scales and shifts of activations by weights, with gradients accumulated in float32.

Automatic differentiation makes the output's gradient the left operand of the weight gradient's product. XLA's CPU
backend transposes the left operand and fuses its computation into that copy. For an MLP it evaluates the gate's
derivative column by column, which takes longer than all matrix products together. So this module makes the narrower
operand the left one. The sums are the same; on GPU and TPU the order does not matter.

Weights may have a wider dtype than the activations (float32 master weights for bfloat16 compute). They are cast in the
product, so that no narrow copy is saved for the backward pass, and their gradient is summed in their own dtype without
rounding to that of the activations.

In JAX the gradient of an array has the array's dtype. A bfloat16 sum over pieces of logits or occurrences of a token
stops growing after some hundred terms. A `Weight` is a narrow array with an unused float32 array of zeros, whose
gradient is that of the array in float32.
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
    """A weight in a narrow dtype, and float32 zeros of its shape, with respect to which it is differentiated."""

    value: jax.Array
    zeros: jax.Array | None

    @property
    def dtype(self) -> Any:
        """Return the dtype of the weight."""
        return self.value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the weight's shape."""
        return self.value.shape


AnyWeight = jax.Array | Weight


def float32_leaves(params: PyTree) -> PyTree:
    """Return the tree to differentiate with respect to: float32 zeros for narrow leaves, and the other leaves."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32) if _is_narrow(x) else x, params)


def with_float32_leaves(params: PyTree, leaves: PyTree) -> PyTree:
    """Return parameters with narrow leaves as Weights with zeros, and the other leaves from `leaves`."""
    return jax.tree.map(lambda x, leaf: Weight(x, leaf) if _is_narrow(x) else leaf, params, leaves)


def value_of(weight: AnyWeight) -> jax.Array:
    """Return the array of a weight."""
    return weight.value if isinstance(weight, Weight) else weight


def without_zeros(weight: AnyWeight) -> AnyWeight:
    """Return the weight as saved for a backward pass, which still shows whether it is a Weight."""
    return Weight(weight.value, None) if isinstance(weight, Weight) else weight


def gradient_of(weight: AnyWeight, total: jax.Array) -> PyTree:
    """Return a float32 sum as gradient of a weight: of its zeros, or rounded to the array's dtype."""
    return Weight(None, total) if isinstance(weight, Weight) else total.astype(weight.dtype)  # type: ignore[arg-type]


def _is_narrow(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32)


@jax.custom_vjp
def to_float32(w: AnyWeight) -> jax.Array:
    """Return a weight in float32, with its gradient."""
    return value_of(w).astype(jnp.float32)


def _to_float32_forward(w: AnyWeight) -> tuple[jax.Array, AnyWeight]:
    return to_float32(w), without_zeros(w)


def _to_float32_backward(w: AnyWeight, g: jax.Array) -> tuple[PyTree]:
    return (gradient_of(w, g),)


to_float32.defvjp(_to_float32_forward, _to_float32_backward)


class Transposed(NamedTuple):
    """A matrix stored as [O,I] and applied as [I,O].

    With `.T` XLA's CPU backend would convert it to float32, because it selects kernels before it fuses transpositions.
    """

    weight: AnyWeight

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape [I,O] in which it is applied."""
        return self.weight.shape[::-1]


def linear(x: jax.Array, w: AnyWeight | Transposed, n_in: int = 1, dtype: DTypeLike | None = None) -> jax.Array:
    """Contract the last `n_in` axes of x [...,*I] with the first `n_in` of w [*I,*O] -> [...,*O].

    The operands have x's dtype. So has the result unless `dtype` is given, in which it is then accumulated.
    """
    return _linear(x, w.weight, n_in, dtype, True) if isinstance(w, Transposed) else _linear(x, w, n_in, dtype, False)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _linear(x: jax.Array, w: AnyWeight, n_in: int, dtype: DTypeLike, is_transposed: bool) -> jax.Array:
    inner = tuple(range(x.ndim - n_in, x.ndim))
    of_in, _ = _axes(w, n_in, is_transposed)
    return _dot(x, value_of(w).astype(x.dtype), inner, of_in, dtype or x.dtype)


def _axes(w: AnyWeight, n_in: int, is_transposed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the contracted axes of a weight, and the others."""
    n = len(w.shape)
    cut = n - n_in if is_transposed else n_in
    first, last = tuple(range(cut)), tuple(range(cut, n))
    return (last, first) if is_transposed else (first, last)


def _linear_forward(
    x: jax.Array, w: AnyWeight, n_in: int, dtype: DTypeLike, is_transposed: bool
) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return _linear(x, w, n_in, dtype, is_transposed), (x, without_zeros(w))


def _linear_backward(
    n_in: int, dtype: DTypeLike, is_transposed: bool, residuals: tuple[jax.Array, AnyWeight], g: jax.Array
) -> tuple[jax.Array, PyTree]:
    del dtype  # it is g's
    x, weight = residuals
    w, g = value_of(weight), g.astype(x.dtype)
    lead = tuple(range(x.ndim - n_in))
    _, of_out = _axes(w, n_in, is_transposed)
    dx = _dot(g, w.astype(x.dtype), tuple(range(len(lead), g.ndim)), of_out, x.dtype)
    first, last = (g, x) if is_transposed else (x, g)
    cut = first.ndim - len(lead)
    if _has_fast_product(x, g) or math.prod(w.shape[:cut]) <= math.prod(w.shape[cut:]):
        dw = _dot(first, last, lead, lead, jnp.float32)
    else:
        swapped = _dot(last, first, lead, lead, jnp.float32)
        n_last = w.ndim - cut
        dw = swapped.transpose(*range(n_last, w.ndim), *range(n_last))
    return dx, gradient_of(weight, dw)


_linear.defvjp(_linear_forward, _linear_backward)


@jax.custom_vjp
def scale(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Multiply the last axes of x [...,*O] by w [*O], in x's dtype."""
    return x * value_of(w).astype(x.dtype)


def _scale_forward(x: jax.Array, w: AnyWeight) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return scale(x, w), (x, without_zeros(w))


def _scale_backward(residuals: tuple[jax.Array, AnyWeight], g: jax.Array) -> tuple[jax.Array, PyTree]:
    x, w = residuals
    return g * value_of(w).astype(x.dtype), gradient_of(w, _sum(x.astype(jnp.float32) * g.astype(jnp.float32), w))


scale.defvjp(_scale_forward, _scale_backward)


@jax.custom_vjp
def shift(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Add w [*O] to the last axes of x [...,*O], in x's dtype."""
    return x + value_of(w).astype(x.dtype)


def _shift_forward(x: jax.Array, w: AnyWeight) -> tuple[jax.Array, AnyWeight]:
    return shift(x, w), without_zeros(w)


def _shift_backward(w: AnyWeight, g: jax.Array) -> tuple[jax.Array, PyTree]:
    return g, gradient_of(w, _sum(g.astype(jnp.float32), w))


shift.defvjp(_shift_forward, _shift_backward)


def _sum(x: jax.Array, w: AnyWeight) -> jax.Array:
    """Sum x [...,*O] over the axes that w [*O] does not have."""
    return jnp.sum(x, axis=tuple(range(x.ndim - len(w.shape))))


def _dot(a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Contract axes `of_a`, a's first or last, with axes `of_b`, b's first or last; round only the sums to `dtype`."""
    over = ((of_a, of_b), ((), ()))
    has_fast_product = _has_fast_product(a, b)
    if a.dtype == dtype and not has_fast_product:
        return lax.dot_general(a, b, over)
    # XLA's CPU backend lacks some bfloat16 products with float32 sums, so those run in float32.
    return lax.platform_dependent(
        a, b,
        cpu=lambda a, b: _plain_dot(a, b, of_a, of_b).astype(dtype) if has_fast_product
        else lax.dot_general(a.astype(dtype), b.astype(dtype), over),
        default=lambda a, b: lax.dot_general(a, b, over, preferred_element_type=dtype),
    )  # fmt: skip


def _has_fast_product(a: jax.Array, b: jax.Array) -> bool:
    """Return whether the CPU has fast instructions for this product."""
    return a.dtype == b.dtype == jnp.bfloat16 and cpu.has_bfloat16_products()


def _plain_dot(a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> jax.Array:
    """Return a bfloat16 product in float32, reshaped to two matrices for `cpu.product`."""
    of_m, of_s = (tuple(axis for axis in range(x.ndim) if axis not in of) for x, of in ((a, of_a), (b, of_b)))
    k = math.prod(a.shape[axis] for axis in of_a)
    left = a.reshape(-1, k) if of_a[0] else cpu.transpose(a.reshape(k, -1))
    right = b.reshape(-1, k) if of_b[0] else b.reshape(k, -1)
    out = cpu.product(left, right, is_transposed=bool(of_b[0]))
    return out.reshape([a.shape[axis] for axis in of_m] + [b.shape[axis] for axis in of_s])
