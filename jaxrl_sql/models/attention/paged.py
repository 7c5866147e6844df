"""Paged attention for decoding by XLA: partial softmax results per KV block, merged per slot.

A decode slot generates one completion at a time. Keys and values are stored in blocks of a fixed number of tokens.
Each block belongs to a sequence, its owner: a prompt, which several slots read, or a completion, which one slot reads.

On one device each slot gathers the partial results of its blocks. On a mesh that splits the blocks, this would send all
partial results to all devices. There each device first merges those of its own blocks per slot, and one partial result
per slot and device is summed, as in blockwise attention (Liu et al. 2023, "Ring attention", arXiv:2310.01889).

Letters of shapes: N slots, Y blocks of C tokens, X sequences of up to J blocks, G slots that may read a sequence, K key
heads, M query heads per key head, Q size of a head.
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

# Logical axes (`parallel.rules`) of the keys or values of a pool of blocks, [Y,K,C,Q].
POOL = ("batch", "kv_heads", "none", "head")


class Score(NamedTuple):
    """Score of a query and a key: their product times `scale`, with a soft `cap` if not None."""

    scale: float
    cap: float | None


@flax.struct.dataclass
class BlockAccess:
    """Access of N decode slots to Y blocks of X sequences (prompts, or completions) in one step.

    Per block:
    owner [Y] int32: the sequence that the block belongs to (X: none)
    slots [Y,G] int32: the slots that may read the block
    valid [Y,1,C] bool: which keys have been written
    key_positions [Y,C], query_positions [Y,G] int32: positions of keys, and of the slots' queries, in the whole text

    Per slot:
    sequence [N] int32: the sequence that the slot reads
    group_index [N] int32: index of the slot among the G of its sequence
    table [N,J] int32: the blocks of its sequence, in order (Y: none)

    num_sequences: X
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
    """One layer of a pool: k, v [Y,K,C,Q], the slots' access, and the visible keys, bool [Y,1,C] or [Y,G,C]."""

    k: jax.Array
    v: jax.Array
    access: BlockAccess
    visible: jax.Array


class PartialAttention(NamedTuple):
    """Unnormalized attention over some of the keys, float32; "…" are any axes, such as blocks or slots.

    max_score […]: the maximum score; total […]: the sum of the weights exp(score - max_score); values […,Q]: the sum of
    the values multiplied by these weights.
    """

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
    folded_weight = weight.astype(v.dtype).reshape(y, heads, g * m, -1)
    values = jnp.einsum("ykxc,ykcq->ykxq", folded_weight, v, preferred_element_type=jnp.float32)
    return PartialAttention(max_score, weight.sum(axis=-1), values.reshape(y, heads, g, m, size))


def _gather(part: PartialAttention, access: BlockAccess) -> PartialAttention:
    """Gather the partial results of each slot's blocks, [N,J,K,M,…]; empty for unused entries of the table."""
    has_block = (access.table < part.max_score.shape[0])[..., None, None]
    max_score, total, values = (x.at[access.table, :, access.group_index[:, None]].get(mode="clip") for x in part)
    return PartialAttention(jnp.where(has_block, max_score, MIN_ROW_MAX), jnp.where(has_block, total, 0.0), values)


def _merge(parts: Sequence[PartialAttention]) -> PartialAttention:
    """Merge partial results [N,J,K,M,…] over axis J, and over all elements of `parts` -> [N,K,M,…]."""
    max_score = jnp.max(jnp.concatenate([part.max_score for part in parts], axis=1), axis=1, keepdims=True)
    total = jnp.zeros(max_score.shape[:1] + max_score.shape[2:], jnp.float32)
    values = jnp.zeros((*total.shape, parts[0].values.shape[-1]), jnp.float32)
    for part in parts:
        # Where a slot has no block, the total is 0, and `values` are those of an arbitrary block. The weight of 0
        # excludes them.
        weight = jnp.where(part.total > 0, jnp.exp(part.max_score - max_score), 0.0)
        total += jnp.sum(part.total * weight, axis=1)
        values += jnp.sum(jnp.where(weight[..., None] > 0, part.values * weight[..., None], 0.0), axis=1)
    return PartialAttention(max_score[:, 0], total, values)


def normalize(total: jax.Array, values: jax.Array) -> jax.Array:
    """Divide weighted values [...,Q] by the sums of weights [...]; zeros for a sum of 0."""
    return values / jnp.where(total > 0, total, 1.0)[..., None]


def _attend_on_mesh(mesh: Any, q: jax.Array, pools: Sequence[PagedKeys], score: Score) -> jax.Array:
    """Attend on a mesh that splits all pools: merge per slot on each device, then across devices."""
    batch_axes = RULES["batch"].mesh_axes
    pool_spec = split_of(mesh, POOL, pools[0].k.shape)
    # If the mesh does not divide the K key heads, it splits the M query heads of each, if it divides M.
    head_axes = (pool_spec[1], None) if pool_spec[1] else (None, split_of(mesh, ("heads",), q.shape[2:3])[0])
    slot_axes = split_of(mesh, ("batch",), q.shape[:1])[0]

    def attend_shard(q: jax.Array, local_pools: Sequence[PagedKeys]) -> jax.Array:
        parts = [_merge_by_owner(_attend_blocks(q, *pool, score), pool.access) for pool in local_pools]
        merged = _merge([PartialAttention(*(x[:, None] for x in part)) for part in parts])
        weight = jnp.exp(merged.max_score - lax.pmax(merged.max_score, batch_axes))
        total, values = merged.total * weight, merged.values * weight[..., None]
        if slot_axes:
            add_devices = partial(lax.psum_scatter, axis_name=batch_axes, scatter_dimension=0, tiled=True)
        else:
            add_devices = partial(lax.psum, axis_name=batch_axes)
        return normalize(add_devices(total), add_devices(values))

    by_block: Any = jax.P(pool_spec[0])
    by_block_and_head: Any = jax.P(pool_spec[0], pool_spec[1])
    replicated: Any = jax.P()
    block_fields = dict.fromkeys(("owner", "slots", "valid", "key_positions", "query_positions"), by_block)
    slot_fields = dict.fromkeys(("sequence", "group_index", "table"), replicated)
    specs = [
        PagedKeys(by_block_and_head, by_block_and_head, replace(pool.access, **block_fields, **slot_fields), by_block)
        for pool in pools
    ]
    attend = jax.shard_map(
        attend_shard,
        mesh=mesh,
        in_specs=(jax.P(None, *head_axes), specs),
        out_specs=jax.P(slot_axes, *head_axes),
        check_vma=False,
    )
    return attend(q, list(pools))


def _merge_by_owner(part: PartialAttention, access: BlockAccess) -> PartialAttention:
    """Merge the partial results of a device's blocks by owner and gather them by slot -> [N,K,M,…].

    Slots without a block on this device get empty results. Owners are numbered from 0 to U - 1. The sum over each
    owner's blocks is a product with the matrix [Y,U] of which block belongs to which owner, because a scatter-add is
    slow and on a GPU not deterministic.
    """
    max_score, total, values = (jnp.moveaxis(x, 2, 1) for x in part)  # [Y,G,K,M,…]
    blocks, owner, sequence = max_score.shape[0], access.owner, access.sequence
    if access.num_sequences < blocks:  # an owner's number is its sequence; the last is for blocks without an owner
        num_owners, owner_of_block, owner_of_slot = access.num_sequences + 1, owner, sequence
        has_block = jnp.ones(sequence.shape, bool)
    else:  # fewer blocks than owners: an owner's number is the index of its first block on this device
        num_owners, owner_of_block = blocks, jnp.argmax(owner[:, None] == owner, axis=1)
        is_of_slot = sequence[:, None] == owner
        owner_of_slot, has_block = jnp.argmax(is_of_slot, axis=1), jnp.any(is_of_slot, axis=1)
    owner_max = jnp.full((num_owners, *max_score.shape[1:]), MIN_ROW_MAX, jnp.float32)
    owner_max = owner_max.at[owner_of_block].max(max_score)
    weight = jnp.where(total > 0, jnp.exp(max_score - owner_max[owner_of_block]), 0.0)
    membership = (owner_of_block[:, None] == jnp.arange(num_owners)).astype(jnp.float32)
    exact: Any = {"precision": lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    values = jnp.where(weight[..., None] > 0, values * weight[..., None], 0.0)
    sums = (jnp.einsum("yu,y...->u...", membership, x, **exact) for x in (total * weight, values))
    max_score, total, values = (x[owner_of_slot, access.group_index] for x in (owner_max, *sums))
    has_block = has_block[:, None, None]
    return PartialAttention(jnp.where(has_block, max_score, MIN_ROW_MAX), jnp.where(has_block, total, 0.0), values)
