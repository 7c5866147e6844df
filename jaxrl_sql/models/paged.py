"""Decoding from a paged KV cache, in which completions share the keys and values of their prompt.

A decode slot generates one completion at a time. Keys and values are in pools of KV blocks of C tokens. A *prompt*
block belongs to a prompt and is read by up to G slots that decode its completions; a *completion* block belongs to one
slot. In a step every block is multiplied with the queries of the slots that read it, and each slot merges the partial
results of its blocks into one softmax. So a prompt's keys are neither copied per completion nor gathered per step, and
memory is reserved block by block as sequences grow.

These functions are not differentiated: the trainer scores completions with `transformer.prediction_states`.

Letters of shapes: N slots, E prompts, X sequences (prompts or completions) of up to J blocks each, Y blocks of a pool,
T new tokens per sequence, K key heads, M query heads per key head, Q size of a head, D width of the model, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.attention.paged import POOL, BlockAccess, PagedKeys, Score, paged_attention
from jaxrl_sql.models.attention.paged_kernel import CachedKeys, Kernel, Readers, attend_on_mesh
from jaxrl_sql.models.attention.tree import restrict_to_window
from jaxrl_sql.models.attention.xla import MaskedKeys, attend
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.models.stacked_layers import layer_of
from jaxrl_sql.models.transformer import (
    HasWindow,
    Layer,
    angles_of,
    embed,
    last_state,
    norm,
    output_and_mlp,
    qkv_heads,
    rotary_positions,
    scale_of,
    window_of,
)
from jaxrl_sql.parallel.rules import constrain


class PagedModel(NamedTuple):
    """Static arguments of decoding.

    config: the model; compute_dtype: of activations (None: that of the parameters); kernel: computes the attention of a
    decode step (None: XLA does).
    """

    config: ModelConfig
    compute_dtype: DTypeLike | None = None
    kernel: Kernel | None = None


@flax.struct.dataclass
class KVPool:
    """KV blocks of all layers: k and v are tuples of L arrays [Y,K,C,Q]."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]

    @property
    def num_blocks(self) -> int:
        """Return Y, the number of blocks."""
        return self.k[0].shape[0]

    @property
    def block_size(self) -> int:
        """Return C, the tokens of a block."""
        return self.k[0].shape[2]


LayerKV = tuple[jax.Array, jax.Array]
"""The keys and values of a layer in a pool, [Y,K,C,Q] each."""


@flax.struct.dataclass
class BlockMap:
    """Map between X sequences and their blocks; an index out of range means no block or no sequence.

    table [X,J] int32: the blocks of a sequence, in order; owner [Y] int32: the sequence of each block; start [Y]
    int32: the index of a block's first token in its sequence.
    """

    table: jax.Array
    owner: jax.Array
    start: jax.Array


class PagedCache(NamedTuple):
    """A pool and the map of its blocks."""

    pool: KVPool
    blocks: BlockMap


class PagedPrefix(NamedTuple):
    """The cached tokens of X sequences: `length` [X] tokens each, in the blocks of table [X,J], in order."""

    pool: KVPool
    table: jax.Array
    length: jax.Array


@flax.struct.dataclass
class SlotMap:
    """Map between N decode slots and E prompts.

    slots [E,G] int32: the slots that decode completions of each prompt (N: no slot)
    prompt, group_index [N] int32: the prompt of a slot, and the slot's index among those of its prompt
    prompt_length [E] int32: number of tokens per prompt
    """

    slots: jax.Array
    prompt: jax.Array
    group_index: jax.Array
    prompt_length: jax.Array


def init_pool(config: ModelConfig, num_blocks: int, block_size: int, dtype: DTypeLike) -> KVPool:
    """Return a pool of empty blocks; a mesh splits blocks over the batch axes and heads over `tensor`."""
    shape = (num_blocks, config.n_kv_heads, block_size, config.head_dim)
    keys, values = (tuple(constrain(jnp.zeros(shape, dtype), POOL) for _ in range(config.n_layers)) for _ in range(2))
    return KVPool(keys, values)


def grow_keys(keys: jax.Array, num_blocks: int) -> jax.Array:
    """Pad the keys (or values) of a layer [Y,K,C,Q] to `num_blocks` blocks."""
    return constrain(jnp.pad(keys, ((0, num_blocks - keys.shape[0]), (0, 0), (0, 0), (0, 0))), POOL)


def copy_blocks(source: KVPool, blocks: jax.Array, target: KVPool, targets: jax.Array) -> KVPool:
    """Copy `blocks` [X] int32 of the pool `source` to blocks `targets` [X] of `target`; return the changed pool.

    A target out of range is skipped.
    """

    def copy(source: jax.Array, target: jax.Array) -> jax.Array:
        return constrain(target.at[targets].set(source.at[blocks].get(mode="clip"), mode="drop"), POOL)

    return jax.tree.map(copy, source, target)


def _window_flags(config: ModelConfig) -> Sequence[HasWindow]:
    """Return for each layer whether it has a sliding window."""
    return config.sliding.layers if config.sliding else (False,) * config.n_layers


def _window(config: ModelConfig, has_window: HasWindow) -> int | None:
    """Return the size of a layer's sliding window, or None."""
    return config.sliding.size if config.sliding is not None and has_window else None


def _visible(config: ModelConfig, has_window: HasWindow, access: BlockAccess) -> jax.Array:
    """Return the visible keys of each block in a layer: all valid ones [Y,1,C], or those in a window [Y,G,C]."""
    window = _window(config, has_window)
    if window is None:
        return access.valid
    distance = access.query_positions[..., None] - access.key_positions[:, None]
    return access.valid & (distance < window)


def prompt_access(blocks: BlockMap, slot_map: SlotMap, positions: jax.Array, block_size: int) -> BlockAccess:
    """Return the access of slots, whose queries are at positions [N], to prompt blocks of `block_size` tokens."""
    key_positions = blocks.start[:, None] + jnp.arange(block_size)
    length = slot_map.prompt_length.at[blocks.owner].get(mode="fill", fill_value=0)
    slots = slot_map.slots.at[blocks.owner].get(mode="clip")
    return BlockAccess(
        owner=_current_owner(blocks, block_size),
        slots=slots,
        valid=(key_positions < length[:, None])[:, None],
        key_positions=key_positions,
        query_positions=positions.at[slots].get(mode="clip"),
        sequence=slot_map.prompt,
        group_index=slot_map.group_index,
        table=blocks.table.at[slot_map.prompt].get(mode="clip"),
        num_sequences=blocks.table.shape[0],
    )


def completion_access(
    blocks: BlockMap, length: jax.Array, prompt_length: jax.Array, positions: jax.Array, block_size: int
) -> BlockAccess:
    """Return the access of slots to completion blocks of `block_size` tokens.

    length, prompt_length [N]: tokens of each slot's completion and of its prompt; positions [N]: of the slots' queries.
    """
    index = blocks.start[:, None] + jnp.arange(block_size)
    cached_length = length.at[blocks.owner].get(mode="fill", fill_value=0)
    slots = blocks.owner[:, None]
    return BlockAccess(
        owner=_current_owner(blocks, block_size),
        slots=slots,
        valid=(index < cached_length[:, None])[:, None],
        key_positions=prompt_length.at[slots].get(mode="clip") + index,
        query_positions=positions.at[slots].get(mode="clip"),
        sequence=jnp.arange(length.shape[0]),
        group_index=jnp.zeros_like(length),
        table=blocks.table,
        num_sequences=blocks.table.shape[0],
    )


def _current_owner(blocks: BlockMap, block_size: int) -> jax.Array:
    """Return the owners of blocks [Y]; X (no owner) for a block that is not in its owner's table.

    So a stale owner of a released block has no effect.
    """
    assigned = blocks.table.at[blocks.owner, blocks.start // block_size].get(mode="fill", fill_value=-1)
    return jnp.where(assigned == jnp.arange(blocks.owner.shape[0]), blocks.owner, blocks.table.shape[0])


# Attention of a decode step: (queries [N,K,M,Q], has_window, keys and values of both pools) -> [N,K,M,Q] float32.
CacheAttention = Callable[[jax.Array, HasWindow, Sequence[LayerKV]], jax.Array]


def _make_xla_attention(
    model: PagedModel,
    prompts: PagedCache,
    completions: PagedCache,
    slot_map: SlotMap,
    lengths: tuple[jax.Array, jax.Array],
    active: jax.Array,
    positions: jax.Array,
) -> CacheAttention:
    """Return the attention by XLA: partial results per block, merged per slot.

    lengths: two arrays [N], the tokens of the slots' prompts, and of their completions before this step. active [N]
    bool: slots that append a token. positions [N]: of the slots' queries.
    """
    config, block_size, (prompt_length, length) = model.config, completions.pool.block_size, lengths
    accesses = (
        prompt_access(prompts.blocks, slot_map, positions, prompts.pool.block_size),
        completion_access(completions.blocks, length + active, prompt_length, positions, block_size),
    )

    def attend_to_cache(q: jax.Array, has_window: HasWindow, pools: Sequence[LayerKV]) -> jax.Array:
        paged_keys = [
            PagedKeys(*kv, access, _visible(config, has_window, access))
            for kv, access in zip(pools, accesses, strict=True)
        ]
        return paged_attention(q, paged_keys, Score(scale_of(config), config.attn_score_cap))

    return attend_to_cache


def _make_kernel_attention(
    model: PagedModel,
    prompts: PagedCache,
    completions: PagedCache,
    slot_map: SlotMap,
    lengths: tuple[jax.Array, jax.Array],
    active: jax.Array,
    positions: jax.Array,
) -> CacheAttention:
    """Return the attention by the model's kernel, which reads each used block once.

    The arguments are those of `_make_xla_attention`.
    """
    config, kernel, length = model.config, model.kernel, lengths[1]
    assert kernel is not None
    tables_and_lengths = (
        (prompts.blocks.table, slot_map.prompt_length),
        (completions.blocks.table, jnp.where(active, length + 1, 0)),
    )
    readers = Readers(slot_map.slots, slot_map.prompt, slot_map.group_index, positions)

    def attend_to_cache(q: jax.Array, has_window: HasWindow, pools: Sequence[LayerKV]) -> jax.Array:
        prompt_keys, completion_keys = (
            CachedKeys(*kv, table, length) for kv, (table, length) in zip(pools, tables_and_lengths, strict=True)
        )
        score = Score(scale_of(config), config.attn_score_cap)
        return attend_on_mesh(kernel, q, prompt_keys, completion_keys, readers, score, _window(config, has_window))

    return attend_to_cache


def decode_tokens(
    params: PyTree,
    model: PagedModel,
    prompts: PagedCache,
    completions: PagedCache,
    slot_map: SlotMap,
    token: jax.Array,
    length: jax.Array,
    active: jax.Array,
) -> tuple[jax.Array, KVPool]:
    """Append one token [N] to each active slot -> the states [N,D] that predict the next, and the completions' pool.

    active [N] bool. length [N] int32: the completion tokens of a slot before this token, whose keys and values are
    written at that index; the host has reserved its block. Slots that are inactive or have no block write nothing, and
    their states have no meaning.
    """
    config, (completion_pool, blocks) = model.config, completions
    prompt_length = slot_map.prompt_length.at[slot_map.prompt].get(mode="clip")
    rotary = rotary_positions(config, (prompt_length + length)[:, None, None])
    positions = rotary.positions[:, 0, 0]
    block_size = completion_pool.block_size
    block = jnp.take_along_axis(blocks.table, (length // block_size)[:, None], axis=1, mode="clip")[:, 0]
    block = jnp.where(active & (length // block_size < blocks.table.shape[1]), block, completion_pool.num_blocks)
    make_attention = _make_kernel_attention if model.kernel is not None else _make_xla_attention
    attend_to_cache = make_attention(model, prompts, completions, slot_map, (prompt_length, length), active, positions)
    x = embed(params, config, token[:, None, None], model.compute_dtype)

    @partial(jax.jit, static_argnames="has_window")  # traced once per value of has_window
    def step(
        layer: Layer, has_window: HasWindow, x: jax.Array, completion: LayerKV, prompt: LayerKV
    ) -> tuple[jax.Array, LayerKV]:
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(has_window, rotary))
        k, v = (
            constrain(pool.at[block, :, length % block_size].set(new[:, 0, :, 0].astype(pool.dtype), mode="drop"), POOL)
            for pool, new in zip(completion, (k, v), strict=True)
        )
        q = q.reshape(q.shape[0], config.n_kv_heads, -1, config.head_dim)
        attended = attend_to_cache(q, has_window, (prompt, (k, v)))
        attended = attended.astype(x.dtype).reshape(x.shape[0], 1, 1, config.n_heads, config.head_dim)
        return output_and_mlp(layer, config, x, attended), (k, v)

    x, pool = _run_layers(step, params, config, x, completion_pool, prompts.pool)
    return norm(config, x[:, 0, 0], params["final_norm"]), pool


def _run_layers(
    step: Callable[[Layer, HasWindow, jax.Array, LayerKV, LayerKV], tuple[jax.Array, LayerKV]],
    params: PyTree,
    config: ModelConfig,
    x: jax.Array,
    updated_pool: KVPool,
    other_pool: KVPool,
) -> tuple[jax.Array, KVPool]:
    """Run the layers one after the other -> states, and the updated pool.

    `step` runs a layer: it gets the keys and values of both pools, and returns the states and its updated ones.
    """
    updated = []
    for i, (has_window, *layer_kvs) in enumerate(
        zip(_window_flags(config), _by_layer(updated_pool), _by_layer(other_pool), strict=True)
    ):
        x, layer_kv = step(layer_of(params, i), has_window, x, *layer_kvs)
        updated.append(layer_kv)
    keys, values = zip(*updated, strict=True)
    return x, KVPool(k=keys, v=values)


def _by_layer(pool: KVPool) -> list[LayerKV]:
    """Return keys and values of a pool, layer by layer."""
    return list(zip(pool.k, pool.v, strict=True))


# Return the keys before the new tokens, with their masks: (has_window, a layer's keys and values of the updated pool,
# those of the other pool) -> keys to attend to.
Past = Callable[[HasWindow, LayerKV, LayerKV], list[MaskedKeys]]
# Write a layer's new keys (or values) [X,K,T,Q] into those of a pool.
Write = Callable[[jax.Array, jax.Array], jax.Array]


def _run_tokens(
    params: PyTree,
    model: PagedModel,
    tokens: jax.Array,
    length: jax.Array,
    start: jax.Array,
    pools: tuple[KVPool, KVPool],
    past: Past,
    write: Write,
) -> tuple[jax.Array, KVPool]:
    """Run tokens [X,T] with lengths [X] from positions start [X] -> last states [X,D], and the updated pool.

    `pools`: the pool to update, and another that `past` may read. `write` stores new keys and values in the first.
    """
    config, t = model.config, tokens.shape[1]
    positions = _positions(start, tokens)
    rotary = rotary_positions(config, positions)
    causal = (jnp.arange(t) < length[:, None])[:, None, None] & jnp.tril(jnp.ones((t, t), bool))

    @partial(jax.jit, static_argnames="has_window")
    def step(
        layer: Layer, has_window: HasWindow, x: jax.Array, updated: LayerKV, other: LayerKV
    ) -> tuple[jax.Array, LayerKV]:
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(has_window, rotary))
        updated = constrain(write(updated[0], k[:, 0]), POOL), constrain(write(updated[1], v[:, 0]), POOL)
        new_keys = (k, v, restrict_to_window(window_of(config, has_window), causal, positions, positions))
        keys = [*past(has_window, updated, other), new_keys]
        attended = attend(q, keys, scale_of(config), config.attn_score_cap)
        return output_and_mlp(layer, config, x, attended), updated

    x = embed(params, config, tokens[:, None], model.compute_dtype)
    x, pool = _run_layers(step, params, config, x, *pools)
    return last_state(norm(config, x[:, 0], params["final_norm"]), length), pool


def _gather_past(
    config: ModelConfig, table: jax.Array, length: jax.Array, first: jax.Array, query_positions: jax.Array
) -> Callable[[HasWindow, LayerKV], MaskedKeys]:
    """Return a function that gathers a layer's keys and values of X sequences, with their mask.

    table [X,J]: the blocks of each sequence; length [X]: its tokens; first [X]: the position of its first token;
    query_positions [X,1,T]. The gathered copy, [X,K,J·C,Q] per layer, is worthwhile for many queries per sequence, but
    not for the single query of a decode step.
    """
    x, j = table.shape

    def gather(has_window: HasWindow, layer_kv: LayerKV) -> MaskedKeys:
        index = jnp.arange(j * layer_kv[0].shape[2])
        valid = (index < length[:, None])[:, None, None]
        key_positions = (first[:, None] + index)[:, None]
        k, v = (
            jnp.moveaxis(cached.at[table].get(mode="clip"), 2, 1).reshape(x, 1, config.n_kv_heads, -1, config.head_dim)
            for cached in layer_kv
        )
        return k, v, restrict_to_window(window_of(config, has_window), valid, key_positions, query_positions)

    return gather


def _positions(start: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the positions [X,1,T] of tokens [X,T] that begin at start [X]."""
    return (start[:, None] + jnp.arange(tokens.shape[1]))[:, None]


def prefill_prompts(
    params: PyTree, model: PagedModel, past: PagedPrefix, tokens: jax.Array, length: jax.Array, has_past: bool
) -> tuple[jax.Array, KVPool]:
    """Prefill a chunk of X prompts, tokens [X,T] with lengths [X] -> last states [X,D], and the prompts' pool.

    A long prompt is prefilled in several chunks, one per call. `past`: the cached tokens before the chunk, in a table
    that already includes the chunk's blocks. T and the lengths of `past` are multiples of the block size. `has_past`
    (static): False if the chunk is the first of each prompt.
    """
    pool, table, start = past
    block_size = pool.block_size
    num_blocks = tokens.shape[1] // block_size
    index = start[:, None] // block_size + jnp.arange(num_blocks)
    blocks = jnp.take_along_axis(table, index, axis=1, mode="fill", fill_value=pool.num_blocks)
    blocks = jnp.where(jnp.arange(num_blocks) * block_size < length[:, None], blocks, pool.num_blocks).reshape(-1)

    def write(cached: jax.Array, new: jax.Array) -> jax.Array:
        by_block = new.reshape(new.shape[0], new.shape[1], num_blocks, block_size, new.shape[3])
        by_block = jnp.moveaxis(by_block, 2, 1).reshape(-1, new.shape[1], block_size, new.shape[3])
        return cached.at[blocks].set(by_block.astype(cached.dtype), mode="drop")

    gather = _gather_past(model.config, table, start, jnp.zeros_like(start), _positions(start, tokens))

    def past_keys(has_window: HasWindow, prompts: LayerKV, _: LayerKV) -> list[MaskedKeys]:
        return [gather(has_window, prompts)] if has_past else []

    # Prompts need no second pool, so the same pool is passed again and not read.
    return _run_tokens(params, model, tokens, length, start, (pool, pool), past_keys, write)


def extend_completions(
    params: PyTree,
    model: PagedModel,
    prompt: PagedPrefix,
    completion: PagedPrefix,
    tokens: jax.Array,
    length: jax.Array,
) -> tuple[jax.Array, KVPool]:
    """Append tokens [X,T] with lengths [X] to X completions -> last states [X,D], and their pool.

    This serves observations of an environment, and completions that resume after preemption. The completions' tables
    include blocks for the new tokens.
    """
    pool, table, cached_length = completion
    block_size = pool.block_size
    index = cached_length[:, None] + jnp.arange(tokens.shape[1])
    block = jnp.take_along_axis(table, index // block_size, axis=1, mode="fill", fill_value=pool.num_blocks)
    block = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], block, pool.num_blocks)

    def write(cached: jax.Array, new: jax.Array) -> jax.Array:
        by_token = jnp.moveaxis(new, 2, 1).astype(cached.dtype)
        return cached.at[block, :, index % block_size].set(by_token, mode="drop")

    start = prompt.length + cached_length
    positions = _positions(start, tokens)
    gather_prompt = _gather_past(model.config, prompt.table, prompt.length, jnp.zeros_like(cached_length), positions)
    gather_completion = _gather_past(model.config, table, cached_length, prompt.length, positions)

    def past_keys(has_window: HasWindow, completions: LayerKV, prompts: LayerKV) -> list[MaskedKeys]:
        return [gather_prompt(has_window, prompts), gather_completion(has_window, completions)]

    return _run_tokens(params, model, tokens, length, start, (pool, prompt.pool), past_keys, write)
