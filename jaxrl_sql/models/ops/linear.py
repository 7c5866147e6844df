"""Products, scales and shifts of activations by weights, with gradients accumulated in float32.

The gradient of a weight is the product of the output's gradient and the input. Automatic differentiation makes the
output's gradient the left operand. XLA's CPU backend transposes the left operand and fuses its computation into that
copy. For an MLP it evaluates the gate's derivative column by column, which takes longer than all matrix products
together. So this module makes the operand with fewer columns the left one. The sums are the same; on GPU and TPU the
order does not matter.

Weights may have a wider dtype than the activations (float32 master weights for bfloat16 compute). They are cast in the
product, so that no narrow copy is saved for the backward pass, and their gradient is summed in their own dtype without
rounding to that of the activations.

In JAX the gradient of an array has the array's dtype. A gradient is a sum over many terms, such as chunks of logits
or occurrences of a token, and a bfloat16 sum stops growing after some hundred terms. So a bfloat16 weight is passed as
a `Weight`: the array, and a float32 array of zeros that no value depends on. The custom gradients of this module return
the weight's gradient, in float32, as the gradient of the zeros.

"Narrow" means a floating-point type of less than 32 bits.
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
    """Return the tree to differentiate with respect to: float32 zeros for narrow leaves, other leaves unchanged."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32) if _is_narrow(x) else x, params)


def with_float32_leaves(params: PyTree, leaves: PyTree) -> PyTree:
    """Return parameters whose leaves are those of `leaves` (of `float32_leaves`), narrow ones paired as a Weight."""
    return jax.tree.map(lambda x, leaf: Weight(x, leaf) if _is_narrow(x) else leaf, params, leaves)


def value_of(weight: AnyWeight) -> jax.Array:
    """Return the array of a weight."""
    return weight.value if isinstance(weight, Weight) else weight


def without_zeros(weight: AnyWeight) -> AnyWeight:
    """Return the weight as saved for a backward pass: without the zeros, but of the type Weight if it was one."""
    return Weight(weight.value, None) if isinstance(weight, Weight) else weight


def gradient_of(weight: AnyWeight, total: jax.Array) -> PyTree:
    """Return `total`, the float32 gradient, in the structure of a weight.

    For a Weight it is the gradient of the zeros; for an array it is rounded to the array's dtype.
    """
    return Weight(None, total) if isinstance(weight, Weight) else total.astype(weight.dtype)  # type: ignore[arg-type]


def _is_narrow(x: Any) -> bool:
    """Return whether an array has a floating-point type of less than 32 bits."""
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

    I are the input axes and O the output axes of the weight. The weight is cast to x's dtype. The result has x's dtype,
    or `dtype` if it is given, in which the sums are then accumulated.
    """
    return _linear(x, w.weight, n_in, dtype, True) if isinstance(w, Transposed) else _linear(x, w, n_in, dtype, False)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _linear(x: jax.Array, w: AnyWeight, n_in: int, dtype: DTypeLike, is_transposed: bool) -> jax.Array:
    """Compute `linear`; if `is_transposed`, w is stored as [*O,*I]."""
    x_axes = tuple(range(x.ndim - n_in, x.ndim))
    input_axes, _ = _axes(w, n_in, is_transposed)
    return _dot(x, value_of(w).astype(x.dtype), x_axes, input_axes, dtype or x.dtype)


def _axes(w: AnyWeight, n_in: int, is_transposed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the input axes of a weight, which are contracted, and its output axes."""
    n = len(w.shape)
    split = n - n_in if is_transposed else n_in
    first, last = tuple(range(split)), tuple(range(split, n))
    return (last, first) if is_transposed else (first, last)


def _linear_forward(
    x: jax.Array, w: AnyWeight, n_in: int, dtype: DTypeLike, is_transposed: bool
) -> tuple[jax.Array, tuple[jax.Array, AnyWeight]]:
    return _linear(x, w, n_in, dtype, is_transposed), (x, without_zeros(w))


def _linear_backward(
    n_in: int, dtype: DTypeLike, is_transposed: bool, residuals: tuple[jax.Array, AnyWeight], g: jax.Array
) -> tuple[jax.Array, PyTree]:
    del dtype  # g has this dtype
    x, weight = residuals
    w, g = value_of(weight), g.astype(x.dtype)
    batch_axes = tuple(range(x.ndim - n_in))
    _, output_axes = _axes(w, n_in, is_transposed)
    dx = _dot(g, w.astype(x.dtype), tuple(range(len(batch_axes), g.ndim)), output_axes, x.dtype)
    # The weight's first axes come from `first`: the input's, or the output's for a transposed weight.
    first, last = (g, x) if is_transposed else (x, g)
    n_first = first.ndim - len(batch_axes)
    if _has_fast_product(x, g) or math.prod(w.shape[:n_first]) <= math.prod(w.shape[n_first:]):
        dw = _dot(first, last, batch_axes, batch_axes, jnp.float32)
    else:  # the narrower operand on the left, then the result's axes in the weight's order
        swapped = _dot(last, first, batch_axes, batch_axes, jnp.float32)
        n_last = w.ndim - n_first
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


def _dot(a: jax.Array, b: jax.Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Contract axes `a_axes` of a with axes `b_axes` of b; the sums have the type `dtype`.

    The contracted axes are the first or the last of their array. The result has the other axes of a, then those of b.
    """
    dimensions = ((a_axes, b_axes), ((), ()))
    has_fast_product = _has_fast_product(a, b)
    if a.dtype == dtype and not has_fast_product:
        return lax.dot_general(a, b, dimensions)
    # XLA's CPU backend lacks some bfloat16 products with float32 sums, so those run in float32.
    return lax.platform_dependent(
        a, b,
        cpu=lambda a, b: _bfloat16_dot(a, b, a_axes, b_axes).astype(dtype) if has_fast_product
        else lax.dot_general(a.astype(dtype), b.astype(dtype), dimensions),
        default=lambda a, b: lax.dot_general(a, b, dimensions, preferred_element_type=dtype),
    )  # fmt: skip


def _has_fast_product(a: jax.Array, b: jax.Array) -> bool:
    """Return whether both are bfloat16 and this machine's CPU has fast instructions for their product."""
    return a.dtype == b.dtype == jnp.bfloat16 and cpu.has_bfloat16_products()


def _bfloat16_dot(a: jax.Array, b: jax.Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...]) -> jax.Array:
    """Return a bfloat16 product in float32, as `_dot` does, by reshaping both to matrices for `cpu.product`."""
    a_rest, b_rest = (
        tuple(axis for axis in range(x.ndim) if axis not in axes) for x, axes in ((a, a_axes), (b, b_axes))
    )
    k = math.prod(a.shape[axis] for axis in a_axes)
    # The contracted axes are either the first (they start with axis 0) or the last.
    left = a.reshape(-1, k) if a_axes[0] else cpu.transpose(a.reshape(k, -1))
    right = b.reshape(-1, k) if b_axes[0] else b.reshape(k, -1)
    out = cpu.product(left, right, is_transposed=bool(b_axes[0]))
    return out.reshape([a.shape[axis] for axis in a_rest] + [b.shape[axis] for axis in b_rest])
