"""Numbers that are computed in float32 and kept in bfloat16, rounded up or down by chance.

bfloat16 has 8 significant bits: what moves by a thousandth of itself at a time would by rounding to the nearest never
move at all. Rounded by chance it moves as it should in the mean.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxrl_sql.batch import PyTree


class Narrow(NamedTuple):
    """An optimizer's state with its floating-point leaves in bfloat16; updates int32 scalar."""

    updates: jax.Array
    state: PyTree


def in_bfloat16(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Keep the state of an optimizer in bfloat16 between updates; it computes in float32 as before.

    The random numbers of the rounding depend on the number of the update alone, so a run that resumes rounds alike.
    """

    def init(params: PyTree) -> Narrow:
        return Narrow(jnp.zeros((), jnp.int32), _narrow(inner.init(widen(params)), jax.random.key(0)))

    def update(grads: PyTree, state: Narrow, params: PyTree = None) -> tuple[PyTree, Narrow]:
        updates, new = inner.update(widen(grads), widen(state.state), params)
        key = jax.random.fold_in(jax.random.key(0), state.updates)
        return updates, Narrow(state.updates + 1, _narrow(new, key))

    return optax.GradientTransformation(init, update)


def in_float32(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Keep the state of an optimizer in float32, whatever the parameters are in: optax makes it of their type."""

    def init(params: PyTree) -> PyTree:
        return inner.init(widen(params))

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return inner.update(widen(grads), state, params)

    return optax.GradientTransformation(init, update)


def apply_updates(params: PyTree, updates: PyTree, step: jax.Array) -> PyTree:
    """Add updates to parameters; those in bfloat16 are added to in float32 and rounded by chance, by the step's key.

    At a rate of 1e-6 an update is far below the last bit of a weight of 0.02: rounded to the nearest, hardly any moves.
    """
    key, count = jax.random.fold_in(jax.random.key(1), step), iter(range(len(jax.tree.leaves(params))))

    def moved(x: jax.Array, update: jax.Array) -> jax.Array:
        at = next(count)
        if x.dtype != jnp.bfloat16:
            return (x + update).astype(x.dtype)
        return _round(x.astype(jnp.float32) + update.astype(jnp.float32), jax.random.fold_in(key, at))

    return jax.tree.map(moved, params, updates)


def widen(tree: PyTree) -> PyTree:
    """Bring floating-point leaves to float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _narrow(tree: PyTree, key: jax.Array) -> PyTree:
    """Round float32 leaves to bfloat16, up or down by chance, such that the mean is what was rounded."""
    leaves, structure = jax.tree.flatten(tree)
    rounded = [_round(x, jax.random.fold_in(key, i)) if x.dtype == jnp.float32 else x for i, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, rounded)


def _round(x: jax.Array, key: jax.Array) -> jax.Array:
    """Add noise below the last bit that bfloat16 keeps, then cut: a carry into that bit rounds up."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    cut = (bits + noise) & jnp.uint32(0xFFFF0000)
    return jnp.where(jnp.isfinite(x), lax.bitcast_convert_type(cut, jnp.float32), x).astype(jnp.bfloat16)
