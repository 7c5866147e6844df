"""Inputs of attention in one layer: the levels of the tree of segments, and a sliding window.

A tree of segments stores shared text once. Level 0 has one row per prompt; each row of a further level continues a row
of the level before, as completions continue their prompt. A row of a level with Rj rows is the parent of R/Rj
consecutive rows of a level with R rows.

Letters of shapes in this package: B prompts, R rows per prompt, T tokens per row, H query heads, K key heads, M = H/K
query heads per key head, Q size of a head, N decode slots. For the keys of an ancestor level: Rj rows, S tokens per
row. X = (R/Rj)·T: the queries of all rows below one row of such a level, as one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_sql.parallel.rules import split_of

# Logical axes (`parallel.rules`) of queries and of keys.
Q_AXES = ("batch", "none", "none", "heads", "none")
K_AXES = ("batch", "none", "kv_heads", "none", "none")


class TreeLevel(NamedTuple):
    """A segment in one layer: R rows of T tokens for each of B prompts, below the rows of the level before it.

    q [B,R,T,H,Q]; k, v [B,R,K,T,Q] (the axis of heads before that of tokens, so a head's tokens are one matrix)
    length [B,R] int32: number of valid tokens per row
    positions [B,R,T] int32: position of each token in its text, after the valid tokens of its ancestor rows

    A query sees all valid tokens of its ancestor rows, and the tokens of its own row up to itself. The output is 0 for
    a row without tokens in itself and its ancestors, and finite but meaningless after a row's length.

    Packed rows hold several sequences (answers) each, which do not see each other; the fields are None otherwise:
    owner [B,R,T] int32: index of the sequence, among the G of its prompt, that each token belongs to (-1: unused)
    starts [B,G] int32: start of each sequence among the R·T positions of its prompt's rows
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    length: jax.Array
    positions: jax.Array
    owner: jax.Array | None = None
    starts: jax.Array | None = None


class AttentionWindow(NamedTuple):
    """A sliding window: the last `size` positions, including the query's own.

    `slides`: whether this layer has the window. It is a traced scalar in a scan over layers.
    """

    size: int
    slides: bool | jax.Array


def valid_keys(level: TreeLevel) -> jax.Array:
    """Return whether each key of a level is a valid token, [B,R,T] bool."""
    return jnp.arange(level.k.shape[3]) < level.length[..., None]


def restrict_to_window(
    window: AttentionWindow | None, visible: jax.Array, key_positions: jax.Array, query_positions: jax.Array
) -> jax.Array:
    """Restrict the mask of visible keys to those within a window.

    visible: bool, broadcastable to [B,Rj,X,S]; key_positions [B,Rj,S], query_positions [B,R,T]. Positions continue
    through the tree, so a window can reach from a row into its ancestors.
    """
    if window is None:
        return visible
    folded = query_positions.reshape(*key_positions.shape[:2], -1, 1)
    is_near = folded - key_positions[:, :, None] < window.size
    return visible & is_near if window.slides is True else visible & (is_near | ~jnp.asarray(window.slides))


def has_visible_tokens(levels: tuple[TreeLevel, ...]) -> jax.Array:
    """Return whether each row of the last level has a token in itself or its ancestors, [B,R] bool."""
    rows = levels[-1].length.shape[1]
    lengths = [jnp.repeat(level.length, rows // level.length.shape[1], axis=1) for level in levels]
    return jnp.stack(lengths).sum(axis=0) > 0


def on_mesh(
    attend: Callable[[tuple[TreeLevel, ...], AttentionWindow | None], tuple[jax.Array, ...]],
    levels: Sequence[TreeLevel],
    window: AttentionWindow | None = None,
) -> tuple[jax.Array, ...]:
    """Call a fused kernel on each device of the mesh, with the device's prompts and heads and with all their tokens.

    JAX's partitioner cannot partition some kernels. Others it may shard along tokens, because the mesh axis `tensor`
    splits the tokens of activations between layers (`transformer.CARRIED`), and these kernels reject such shards. If
    `tensor` does not divide the number of key heads, keys are repeated per query head. Without a mesh the kernel is
    called directly.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attend(tuple(levels), window)
    q_spec, k_spec = (split_of(mesh, axes, x.shape) for axes, x in ((Q_AXES, levels[0].q), (K_AXES, levels[0].k)))
    if q_spec[3] != k_spec[2]:  # only the query heads are split
        ratio = levels[0].q.shape[3] // levels[0].k.shape[2]
        levels = [level._replace(k=jnp.repeat(level.k, ratio, 2), v=jnp.repeat(level.v, ratio, 2)) for level in levels]
        k_spec = jax.P(q_spec[0], None, q_spec[3], None, None)
    row_spec = jax.P(q_spec[0], None)
    packed_specs = [None if level.owner is None else row_spec for level in levels]
    level_specs = tuple(TreeLevel(q_spec, k_spec, k_spec, row_spec, row_spec, spec, spec) for spec in packed_specs)  # type: ignore[arg-type] # specs
    slides = False if window is None else window.slides

    def attend_shard(levels: tuple[TreeLevel, ...], slides: bool | jax.Array) -> tuple[jax.Array, ...]:
        return attend(levels, None if window is None else AttentionWindow(window.size, slides))

    specs = (level_specs, jax.P())
    out = (q_spec,) * len(levels)
    return jax.shard_map(attend_shard, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)(tuple(levels), slides)
