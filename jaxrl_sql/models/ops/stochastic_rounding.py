"""Stochastic rounding: values computed in float32 and stored in bfloat16.

bfloat16 has 8 significant bits, so rounding to nearest discards relative changes of a thousandth. Stochastic rounding
rounds up or down at random, so that the expected result equals the exact value. Small changes then have an effect on
average.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxrl_sql.batch import PyTree


class Bfloat16State(NamedTuple):
    """State of an optimizer with its float32 leaves in bfloat16; updates: number of updates so far, int32 scalar."""

    updates: jax.Array
    state: PyTree


def in_bfloat16(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Store the state of an optimizer in bfloat16 between updates, which compute in float32.

    The random numbers depend only on the number of the update, so a resumed run rounds the same way. The constant key
    0 differs from that of `apply_updates`.
    """

    def init(params: PyTree) -> Bfloat16State:
        return Bfloat16State(jnp.zeros((), jnp.int32), _to_bfloat16(inner.init(to_float32(params)), jax.random.key(0)))

    def update(grads: PyTree, state: Bfloat16State, params: PyTree = None) -> tuple[PyTree, Bfloat16State]:
        updates, new_state = inner.update(to_float32(grads), to_float32(state.state), params)
        key = jax.random.fold_in(jax.random.key(0), state.updates)
        return updates, Bfloat16State(state.updates + 1, _to_bfloat16(new_state, key))

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

    step: number of earlier updates, int32 scalar. With a learning rate of 1e-6 an update is far below the last bit of
    a weight of 0.02, and rounding to nearest would discard it.
    """
    key, leaf_indices = jax.random.fold_in(jax.random.key(1), step), iter(range(len(jax.tree.leaves(params))))

    def add_rounded(x: jax.Array, update: jax.Array) -> jax.Array:
        leaf_index = next(leaf_indices)
        if x.dtype != jnp.bfloat16:
            return (x + update).astype(x.dtype)
        total = x.astype(jnp.float32) + update.astype(jnp.float32)
        return _round_stochastically(total, jax.random.fold_in(key, leaf_index))

    return jax.tree.map(add_rounded, params, updates)


def to_float32(tree: PyTree) -> PyTree:
    """Cast floating-point leaves to float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _to_bfloat16(tree: PyTree, key: jax.Array) -> PyTree:
    """Round float32 leaves to bfloat16 stochastically; other leaves are unchanged."""
    leaves, structure = jax.tree.flatten(tree)
    rounded = [
        _round_stochastically(x, jax.random.fold_in(key, i)) if x.dtype == jnp.float32 else x
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, rounded)


def _round_stochastically(x: jax.Array, key: jax.Array) -> jax.Array:
    """Round float32 to bfloat16, up with a probability equal to the share of the last bit that truncation would drop.

    bfloat16 is the upper half of a float32. Uniform noise is added to the lower half, which is then truncated: a carry
    into the upper half rounds up. Infinities and NaN are unchanged.
    """
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    truncated = (bits + noise) & jnp.uint32(0xFFFF0000)
    return jnp.where(jnp.isfinite(x), lax.bitcast_convert_type(truncated, jnp.float32), x).astype(jnp.bfloat16)
