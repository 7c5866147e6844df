"""Inputs of attention in one layer: the levels of the tree of segments, and a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_sql.parallel.rules import split_of

Q_AXES = ("batch", "none", "none", "heads", "none")
K_AXES = ("batch", "none", "kv_heads", "none", "none")


class TreeLevel(NamedTuple):
    """A segment in one layer: R rows of T tokens for each of B prompts, below the rows of the level before it.

    q [B,R,T,H,Q]; k, v [B,R,K,T,Q] (heads outside tokens: a head's tokens are one matrix); length [B,R] int32 valid
    tokens; positions [B,R,T] int32, which continue those of the ancestors' valid tokens. A query sees all valid tokens
    of its ancestor rows, and the tokens of its own row up to itself. In packed rows it sees only tokens of its own
    owner [B,R,T] int32 (-1: unused); an owner's tokens start at starts [B,G] int32 among the R·T positions of all rows.
    The output is 0 for a row without own and preceding tokens, and finite but meaningless after a row's length.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    length: jax.Array
    positions: jax.Array
    owner: jax.Array | None = None
    starts: jax.Array | None = None


class AttentionWindow(NamedTuple):
    """A sliding window: the last `size` positions including the query's own, if `slides` (scalar) is true."""

    size: int
    slides: bool | jax.Array


def valid_keys(level: TreeLevel) -> jax.Array:
    """Return whether each key of a level is a valid token, [B,R,T] bool."""
    return jnp.arange(level.k.shape[3]) < level.length[..., None]


def narrow(window: AttentionWindow | None, seen: jax.Array, keys: jax.Array, queries: jax.Array) -> jax.Array:
    """Restrict visible keys to those within a window.

    seen: bool, broadcastable to [B,Rj,X,S]; positions of keys [B,Rj,S] and queries [B,R,T], X = (R/Rj)·T. Positions
    continue through the tree, so a window can reach from a row into its ancestors.
    """
    if window is None:
        return seen
    folded = queries.reshape(*keys.shape[:2], -1, 1)
    near = folded - keys[:, :, None] < window.size
    return seen & near if window.slides is True else seen & (near | ~jnp.asarray(window.slides))


def reads_anything(levels: tuple[TreeLevel, ...]) -> jax.Array:
    """Return whether each row of the last level has a token in itself or its ancestors, [B,R] bool."""
    rows = levels[-1].length.shape[1]
    lengths = [jnp.repeat(level.length, rows // level.length.shape[1], axis=1) for level in levels]
    return jnp.stack(lengths).sum(axis=0) > 0


def on_mesh(
    attend: Callable[[tuple[TreeLevel, ...], AttentionWindow | None], tuple[jax.Array, ...]],
    levels: Sequence[TreeLevel],
    window: AttentionWindow | None = None,
) -> tuple[jax.Array, ...]:
    """Call a fused kernel per device, with the device's prompts and heads and with whole tokens.

    JAX's partitioner cannot partition some kernels and may shard others along tokens, as `tensor` does between layers,
    which they reject. If `tensor` does not divide the number of key heads, keys are repeated per query head. Without a
    mesh the kernel is called directly.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attend(tuple(levels), window)
    by_query, by_key = (split_of(mesh, axes, x.shape) for axes, x in ((Q_AXES, levels[0].q), (K_AXES, levels[0].k)))
    if by_query[3] != by_key[2]:
        ratio = levels[0].q.shape[3] // levels[0].k.shape[2]
        levels = [level._replace(k=jnp.repeat(level.k, ratio, 2), v=jnp.repeat(level.v, ratio, 2)) for level in levels]
        by_key = jax.P(by_query[0], None, by_query[3], None, None)
    by_row = jax.P(by_query[0], None)
    of_rows = [None if level.owner is None else by_row for level in levels]
    splits = tuple(TreeLevel(by_query, by_key, by_key, by_row, by_row, packed, packed) for packed in of_rows)  # type: ignore[arg-type] # specs
    slides = False if window is None else window.slides

    def share(levels: tuple[TreeLevel, ...], slides: bool | jax.Array) -> tuple[jax.Array, ...]:
        return attend(levels, None if window is None else AttentionWindow(window.size, slides))

    specs = (splits, jax.P())
    out = (by_query,) * len(levels)
    return jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)(tuple(levels), slides)
