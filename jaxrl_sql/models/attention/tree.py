"""What attention sees of a layer: the levels of the tree of blocks, and a sliding layer's window."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Level(NamedTuple):
    """A block in one layer: R rows of T tokens for each of B prompts, below the rows of the level before it.

    q [B,R,T,H,Q]; k, v [B,R,K,T,Q] (heads outside tokens: a head's tokens are one matrix); length [B,R] int32 valid
    tokens; positions [B,R,T] int32, which go on where the ancestors' valid tokens end. A query sees all valid tokens
    of its ancestor rows, and of its own row those up to itself. A row that no token precedes or holds reads zeros;
    what queries beyond a row's length read is finite and means nothing.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    length: jax.Array
    positions: jax.Array


class Window(NamedTuple):
    """A sliding layer's reach: the last `size` positions, the query's own among them, where `slides` (scalar) holds."""

    size: int
    slides: bool | jax.Array


def valid_keys(level: Level) -> jax.Array:
    """Return which keys of a level exist, [B,R,T] bool."""
    return jnp.arange(level.k.shape[3]) < level.length[..., None]


def narrow(window: Window | None, seen: jax.Array, keys: jax.Array, queries: jax.Array) -> jax.Array:
    """Narrow the keys that are seen to those within a window.

    seen: bool, broadcastable to [B,Rj,X,S]; positions of keys [B,Rj,S] and queries [B,R,T], X = (R/Rj)·T. Positions
    go on through the tree, so a window that reaches from a row into its ancestors is the plain sequence's.
    """
    if window is None:
        return seen
    folded = queries.reshape(*keys.shape[:2], -1, 1)
    near = folded - keys[:, :, None] < window.size
    return seen & near if window.slides is True else seen & (near | ~jnp.asarray(window.slides))


def reads_anything(levels: tuple[Level, ...]) -> jax.Array:
    """Say of the last level's rows whether there is a token in them or in their ancestors, [B,R] bool."""
    rows = levels[-1].length.shape[1]
    lengths = [jnp.repeat(level.length, rows // level.length.shape[1], axis=1) for level in levels]
    return jnp.stack(lengths).sum(axis=0) > 0
