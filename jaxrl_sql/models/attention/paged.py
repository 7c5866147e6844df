"""Paged attention for decoding by XLA: partial softmax results per KV block, merged per slot.

On one device each decode slot gathers the partial results of its blocks. On a mesh that splits the blocks, this would
send all partial results to all devices. There each device first merges those of its own blocks per slot, and one
partial result per slot and device is summed, as in blockwise attention (Liu et al. 2023, "Ring attention",
arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_sql.models.attention.xla import MASKED_SCORE, MIN_ROW_MAX
from jaxrl_sql.models.ops.token_distribution import soft_cap
from jaxrl_sql.parallel.rules import RULES, split_of

POOL = ("batch", "kv_heads", "none", "head")


class Score(NamedTuple):
    """Score of a query and a key: their product times `scale`, with a soft `cap` if not None."""

    scale: float
    cap: float | None


@flax.struct.dataclass
class BlockAccess:
    """Access of N decode slots to Y blocks of X sequences in one step.

    Per block: owner [Y] int32, its sequence (X: none); slots [Y,G] int32, those that may read it; valid [Y,1,C] bool,
    the written keys; key_positions [Y,C], query_positions [Y,G] int32, in the whole text. Per slot: sequence [N] int32,
    the sequence it reads; group_index [N] int32, its index among the sequence's slots; table [N,J] int32, the
    sequence's blocks (Y: none). num_sequences: X.
    """

    owner: jax.Array
    slots: jax.Array
    valid: jax.Array
    key_positions: jax.Array
    query_positions: jax.Array
    sequence: jax.Array
    group_index: jax.Array
    table: jax.Array
    num_sequences: int = flax.struct.field(pytree_node=False)


class PagedKeys(NamedTuple):
    """One layer of a pool: k, v [Y,K,C,Q], the slots' access, and the visible keys, [Y,1,C] or [Y,G,C]."""

    k: jax.Array
    v: jax.Array
    access: BlockAccess
    visible: jax.Array


class PartialAttention(NamedTuple):
    """Softmax over some of the keys, float32: maximum score [X,…], sum of weights [X,…], weighted values [X,…,Q]."""

    max_score: jax.Array
    total: jax.Array
    values: jax.Array


def paged_attention(q: jax.Array, pools: Sequence[PagedKeys], score: Score) -> jax.Array:
    """Attend from the slots' queries [N,K,M,Q] to all their blocks -> [N,K,M,Q] float32; zeros without a key."""
    mesh = jax.sharding.get_abstract_mesh()
    if all(split_of(mesh, ("batch",), pool.k.shape[:1])[0] for pool in pools):
        return _attend_on_mesh(mesh, q, pools, score)
    merged = _merge([_gather(_attend_blocks(q, *pool, score), pool.access) for pool in pools])
    return normalize(merged.total, merged.values)


def _attend_blocks(
    q: jax.Array, k: jax.Array, v: jax.Array, access: BlockAccess, visible: jax.Array, score: Score
) -> PartialAttention:
    """Return the partial attention of slots [Y,G] to blocks k, v [Y,K,C,Q]: [Y,K,G,M] and [Y,K,G,M,Q]."""
    queries = q.at[access.slots].get(mode="clip")
    y, g, heads, m, size = queries.shape
    folded = jnp.moveaxis(queries, 2, 1).reshape(y, heads, g * m, size)
    scores = jnp.einsum("ykxq,ykcq->ykxc", folded, k, preferred_element_type=jnp.float32)
    scores = soft_cap(scores * score.scale, score.cap).reshape(y, heads, g, m, k.shape[2])
    scores = jnp.where(visible[:, None, :, None], scores, MASKED_SCORE)
    max_score = jnp.maximum(scores.max(axis=-1), MIN_ROW_MAX)
    weight = jnp.exp(scores - max_score[..., None])
    flat = weight.astype(v.dtype).reshape(y, heads, g * m, -1)
    values = jnp.einsum("ykxc,ykcq->ykxq", flat, v, preferred_element_type=jnp.float32)
    return PartialAttention(max_score, weight.sum(axis=-1), values.reshape(y, heads, g, m, size))


def _gather(part: PartialAttention, access: BlockAccess) -> PartialAttention:
    """Gather the partial results of each slot's blocks, [N,J,K,M,…]; empty for unused entries of the table."""
    has_block = (access.table < part.max_score.shape[0])[..., None, None]
    max_score, total, values = (x.at[access.table, :, access.group_index[:, None]].get(mode="clip") for x in part)
    return PartialAttention(jnp.where(has_block, max_score, MIN_ROW_MAX), jnp.where(has_block, total, 0.0), values)


def _merge(parts: Sequence[PartialAttention]) -> PartialAttention:
    """Merge partial results [N,J,K,M,…] along J and across the sequence -> [N,K,M,…]."""
    max_score = jnp.max(jnp.concatenate([part.max_score for part in parts], axis=1), axis=1, keepdims=True)
    total = jnp.zeros(max_score.shape[:1] + max_score.shape[2:], jnp.float32)
    values = jnp.zeros((*total.shape, parts[0].values.shape[-1]), jnp.float32)
    for part in parts:
        # Without a block the total is 0; a weight of 0 excludes the values gathered in its place.
        weight = jnp.where(part.total > 0, jnp.exp(part.max_score - max_score), 0.0)
        total += jnp.sum(part.total * weight, axis=1)
        values += jnp.sum(jnp.where(weight[..., None] > 0, part.values * weight[..., None], 0.0), axis=1)
    return PartialAttention(max_score[:, 0], total, values)


def normalize(total: jax.Array, values: jax.Array) -> jax.Array:
    """Divide weighted values [...,Q] by the sums of weights [...]; zeros for a sum of 0."""
    return values / jnp.where(total > 0, total, 1.0)[..., None]


def _attend_on_mesh(mesh: Any, q: jax.Array, pools: Sequence[PagedKeys], score: Score) -> jax.Array:
    """Attend on a mesh that splits all pools: merge per slot on each device, then across devices."""
    batch = RULES["batch"].mesh_axes
    by_block = split_of(mesh, POOL, pools[0].k.shape)
    # With too few key heads, the query heads of each are split if their number divides.
    heads = (by_block[1], None) if by_block[1] else (None, split_of(mesh, ("heads",), q.shape[2:3])[0])
    by_slot = split_of(mesh, ("batch",), q.shape[:1])[0]

    def attend_here(q: jax.Array, local: Sequence[PagedKeys]) -> jax.Array:
        parts = [_merge_by_owner(_attend_blocks(q, *pool, score), pool.access) for pool in local]
        merged = _merge([PartialAttention(*(x[:, None] for x in part)) for part in parts])
        weight = jnp.exp(merged.max_score - lax.pmax(merged.max_score, batch))
        total, values = merged.total * weight, merged.values * weight[..., None]
        if by_slot:
            add_up = partial(lax.psum_scatter, axis_name=batch, scatter_dimension=0, tiled=True)
        else:
            add_up = partial(lax.psum, axis_name=batch)
        return normalize(add_up(total), add_up(values))

    blocks: Any = jax.P(by_block[0])
    keys: Any = jax.P(by_block[0], by_block[1])
    whole: Any = jax.P()
    of_blocks = dict.fromkeys(("owner", "slots", "valid", "key_positions", "query_positions"), blocks)
    of_slots = dict.fromkeys(("sequence", "group_index", "table"), whole)
    specs = [PagedKeys(keys, keys, replace(pool.access, **of_blocks, **of_slots), blocks) for pool in pools]
    split = jax.shard_map(
        attend_here,
        mesh=mesh,
        in_specs=(jax.P(None, *heads), specs),
        out_specs=jax.P(by_slot, *heads),
        check_vma=False,
    )
    return split(q, list(pools))


def _merge_by_owner(part: PartialAttention, access: BlockAccess) -> PartialAttention:
    """Merge the partial results of a device's blocks by owner and gather them by slot -> [N,K,M,…].

    Slots without a block on this device get empty results. Sums over an owner's blocks are products with its
    membership matrix, because a scatter-add is slow and on a GPU not deterministic.
    """
    max_score, total, values = (jnp.moveaxis(x, 2, 1) for x in part)  # [Y,G,K,M,…]
    blocks, owner, sequence = max_score.shape[0], access.owner, access.sequence
    if access.num_sequences < blocks:
        count, which, at = access.num_sequences + 1, owner, sequence
        is_here = jnp.ones(sequence.shape, bool)
    else:  # fewer blocks than owners: an owner's number is its first block on this device
        count, which = blocks, jnp.argmax(owner[:, None] == owner, axis=1)
        holds = sequence[:, None] == owner
        at, is_here = jnp.argmax(holds, axis=1), jnp.any(holds, axis=1)
    best = jnp.full((count, *max_score.shape[1:]), MIN_ROW_MAX, jnp.float32).at[which].max(max_score)
    weight = jnp.where(total > 0, jnp.exp(max_score - best[which]), 0.0)
    whose = (which[:, None] == jnp.arange(count)).astype(jnp.float32)
    exact: Any = {"precision": lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    values = jnp.where(weight[..., None] > 0, values * weight[..., None], 0.0)
    sums = (jnp.einsum("yu,y...->u...", whose, x, **exact) for x in (total * weight, values))
    max_score, total, values = (x[at, access.group_index] for x in (best, *sums))
    is_here = is_here[:, None, None]
    return PartialAttention(jnp.where(is_here, max_score, MIN_ROW_MAX), jnp.where(is_here, total, 0.0), values)
