"""Stochastic rounding: values computed in float32 and stored in bfloat16.

bfloat16 has 8 significant bits, so rounding to nearest discards relative changes of a thousandth. Stochastic rounding
keeps them in the mean.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxrl_sql.batch import PyTree


class Bfloat16State(NamedTuple):
    """State of an optimizer with floating-point leaves in bfloat16; updates: number of updates, int32 scalar."""

    updates: jax.Array
    state: PyTree


def in_bfloat16(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Store the state of an optimizer in bfloat16 between updates, which compute in float32.

    The random numbers depend only on the number of the update, so a resumed run rounds the same way.
    """

    def init(params: PyTree) -> Bfloat16State:
        return Bfloat16State(jnp.zeros((), jnp.int32), _narrow(inner.init(to_float32(params)), jax.random.key(0)))

    def update(grads: PyTree, state: Bfloat16State, params: PyTree = None) -> tuple[PyTree, Bfloat16State]:
        updates, new = inner.update(to_float32(grads), to_float32(state.state), params)
        key = jax.random.fold_in(jax.random.key(0), state.updates)
        return updates, Bfloat16State(state.updates + 1, _narrow(new, key))

    return optax.GradientTransformation(init, update)


def in_float32(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Store the state of an optimizer in float32, where optax would use the dtype of the parameters."""

    def init(params: PyTree) -> PyTree:
        return inner.init(to_float32(params))

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return inner.update(to_float32(grads), state, params)

    return optax.GradientTransformation(init, update)


def apply_updates(params: PyTree, updates: PyTree, step: jax.Array) -> PyTree:
    """Add updates to parameters; sums of bfloat16 parameters are rounded stochastically with the step's key.

    With a learning rate of 1e-6 an update is far below the last bit of a weight of 0.02, and rounding to nearest would
    discard it.
    """
    key, count = jax.random.fold_in(jax.random.key(1), step), iter(range(len(jax.tree.leaves(params))))

    def add_rounded(x: jax.Array, update: jax.Array) -> jax.Array:
        at = next(count)
        if x.dtype != jnp.bfloat16:
            return (x + update).astype(x.dtype)
        return _round(x.astype(jnp.float32) + update.astype(jnp.float32), jax.random.fold_in(key, at))

    return jax.tree.map(add_rounded, params, updates)


def to_float32(tree: PyTree) -> PyTree:
    """Cast floating-point leaves to float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _narrow(tree: PyTree, key: jax.Array) -> PyTree:
    """Round float32 leaves to bfloat16 stochastically, with the exact value as mean."""
    leaves, structure = jax.tree.flatten(tree)
    rounded = [_round(x, jax.random.fold_in(key, i)) if x.dtype == jnp.float32 else x for i, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, rounded)


def _round(x: jax.Array, key: jax.Array) -> jax.Array:
    """Add noise below the last bit of bfloat16, then truncate: a carry into that bit rounds up."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    cut = (bits + noise) & jnp.uint32(0xFFFF0000)
    return jnp.where(jnp.isfinite(x), lax.bitcast_convert_type(cut, jnp.float32), x).astype(jnp.bfloat16)
