"""Decoding from a paged KV cache, in which completions share the keys and values of their prompt.

Keys and values are in pools of KV blocks of C tokens. A *prompt* block belongs to a prompt and is read by up to G
slots that decode its completions; a *completion* block belongs to one slot. In a step every block is multiplied with
the queries of the slots that read it, and each slot merges the partial results of its blocks into one softmax. So a
prompt's keys are neither copied per completion nor gathered per step, and memory is reserved block by block as
sequences grow.

These functions are not differentiated: the trainer scores completions with `transformer.prediction_states`.
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
from jaxrl_sql.models.attention.tree import narrow
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
    """Static arguments of decoding: the configuration and the dtype of activations (None: the parameters').

    `kernel` computes the attention of a decode step (None: XLA).
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
    """The cached tokens of X sequences: the first `length` [X] in the blocks of table [X,J]."""

    pool: KVPool
    table: jax.Array
    length: jax.Array


@flax.struct.dataclass
class SlotMap:
    """Map between N decode slots and E prompts.

    slots [E,G] int32: the slot of the g-th completion of a prompt (N: no slot); prompt, group_index [N] int32: the
    prompt of a slot and its g; prompt_length [E] int32: the tokens of each prompt.
    """

    slots: jax.Array
    prompt: jax.Array
    group_index: jax.Array
    prompt_length: jax.Array


def init_pool(config: ModelConfig, num_blocks: int, block_size: int, dtype: DTypeLike) -> KVPool:
    """Return a pool of empty blocks; a mesh splits blocks over the batch axes and heads over `tensor`."""
    shape = (num_blocks, config.n_kv_heads, block_size, config.head_dim)
    halves = [tuple(constrain(jnp.zeros(shape, dtype), POOL) for _ in range(config.n_layers)) for _ in range(2)]
    return KVPool(*halves)


def grow_keys(keys: jax.Array, num_blocks: int) -> jax.Array:
    """Pad the keys (or values) of a layer [Y,K,C,Q] to `num_blocks` blocks."""
    return constrain(jnp.pad(keys, ((0, num_blocks - keys.shape[0]), (0, 0), (0, 0), (0, 0))), POOL)


def copy_blocks(source: KVPool, blocks: jax.Array, target: KVPool, targets: jax.Array) -> KVPool:
    """Copy blocks [X] int32 of a pool to blocks `targets` [X] of another; a target out of range is skipped."""

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        return constrain(new.at[targets].set(old.at[blocks].get(mode="clip"), mode="drop"), POOL)

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


def prompt_access(blocks: BlockMap, slot_map: SlotMap, positions: jax.Array, size: int) -> BlockAccess:
    """Return the access of slots at positions [N] to prompt blocks of `size` tokens."""
    keys = blocks.start[:, None] + jnp.arange(size)
    length = slot_map.prompt_length.at[blocks.owner].get(mode="fill", fill_value=0)
    slots = slot_map.slots.at[blocks.owner].get(mode="clip")
    return BlockAccess(
        owner=_current_owner(blocks, size),
        slots=slots,
        valid=(keys < length[:, None])[:, None],
        key_positions=keys,
        query_positions=positions.at[slots].get(mode="clip"),
        sequence=slot_map.prompt,
        group_index=slot_map.group_index,
        table=blocks.table.at[slot_map.prompt].get(mode="clip"),
        num_sequences=blocks.table.shape[0],
    )


def completion_access(
    blocks: BlockMap, length: jax.Array, prompt_length: jax.Array, positions: jax.Array, size: int
) -> BlockAccess:
    """Return the access of slots to completion blocks; length, prompt_length [N] are tokens per slot."""
    index = blocks.start[:, None] + jnp.arange(size)
    cached_length = length.at[blocks.owner].get(mode="fill", fill_value=0)
    slots = blocks.owner[:, None]
    return BlockAccess(
        owner=_current_owner(blocks, size),
        slots=slots,
        valid=(index < cached_length[:, None])[:, None],
        key_positions=prompt_length.at[slots].get(mode="clip") + index,
        query_positions=positions.at[slots].get(mode="clip"),
        sequence=jnp.arange(length.shape[0]),
        group_index=jnp.zeros_like(length),
        table=blocks.table,
        num_sequences=blocks.table.shape[0],
    )


def _current_owner(blocks: BlockMap, size: int) -> jax.Array:
    """Return the owners of blocks [Y]; X (no owner) for a block that is not in its owner's table."""
    at = blocks.table.at[blocks.owner, blocks.start // size].get(mode="fill", fill_value=-1)
    return jnp.where(at == jnp.arange(blocks.owner.shape[0]), blocks.owner, blocks.table.shape[0])


# Attention of a decode step: (queries [N,K,M,Q], has_window, keys and values of both pools) -> [N,K,M,Q] f32.
ReadCache = Callable[[jax.Array, HasWindow, Sequence[tuple[jax.Array, jax.Array]]], jax.Array]


def _make_block_reader(
    model: PagedModel,
    prompts: PagedCache,
    completions: PagedCache,
    slot_map: SlotMap,
    lengths: tuple[jax.Array, jax.Array],
    active: jax.Array,
    positions: jax.Array,
) -> ReadCache:
    """Return the attention by XLA: partial results per block, merged per slot.

    `lengths` [N] are the tokens of the slots' prompts, and of their completions before this step.
    """
    config, size, (prompt_length, length) = model.config, completions.pool.block_size, lengths
    access = (
        prompt_access(prompts.blocks, slot_map, positions, prompts.pool.block_size),
        completion_access(completions.blocks, length + active, prompt_length, positions, size),
    )

    def read(q: jax.Array, has_window: HasWindow, pools: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
        paged = [
            PagedKeys(*kv, blocks, _visible(config, has_window, blocks))
            for kv, blocks in zip(pools, access, strict=True)
        ]
        return paged_attention(q, paged, Score(scale_of(config), config.attn_score_cap))

    return read


def _make_kernel_reader(
    model: PagedModel,
    prompts: PagedCache,
    completions: PagedCache,
    slot_map: SlotMap,
    lengths: tuple[jax.Array, jax.Array],
    active: jax.Array,
    positions: jax.Array,
) -> ReadCache:
    """Return the attention by the model's kernel, which reads each used block once."""
    config, kernel, length = model.config, model.kernel, lengths[1]
    assert kernel is not None
    tables = (
        (prompts.blocks.table, slot_map.prompt_length),
        (completions.blocks.table, jnp.where(active, length + 1, 0)),
    )
    readers = Readers(slot_map.slots, slot_map.prompt, slot_map.group_index, positions)

    def read(q: jax.Array, has_window: HasWindow, pools: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
        shared, private = (CachedKeys(*kv, *blocks) for kv, blocks in zip(pools, tables, strict=True))
        score = Score(scale_of(config), config.attn_score_cap)
        return attend_on_mesh(kernel, q, shared, private, readers, score, _window(config, has_window))

    return read


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

    length [N] int32: the completion tokens of a slot before this one, which is written at that index; the host has
    reserved its block. Slots that are inactive or have no block write nothing, and their states have no meaning.
    """
    config, (completion_pool, blocks) = model.config, completions
    prompt_length = slot_map.prompt_length.at[slot_map.prompt].get(mode="clip")
    rotary = rotary_positions(config, (prompt_length + length)[:, None, None])
    positions = rotary.positions[:, 0, 0]
    size = completion_pool.block_size
    block = jnp.take_along_axis(blocks.table, (length // size)[:, None], axis=1, mode="clip")[:, 0]
    block = jnp.where(active & (length // size < blocks.table.shape[1]), block, completion_pool.num_blocks)
    read = _make_kernel_reader if model.kernel is not None else _make_block_reader
    attend_to = read(model, prompts, completions, slot_map, (prompt_length, length), active, positions)
    x = embed(params, config, token[:, None, None], model.compute_dtype)

    @partial(jax.jit, static_argnames="has_window")  # traced once per value of has_window
    def step(
        layer: Layer, has_window: HasWindow, x: jax.Array, completion: LayerKV, prompt: LayerKV
    ) -> tuple[jax.Array, LayerKV]:
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(has_window, rotary))
        k, v = (
            constrain(pool.at[block, :, length % size].set(new[:, 0, :, 0].astype(pool.dtype), mode="drop"), POOL)
            for pool, new in zip(completion, (k, v), strict=True)
        )
        q = q.reshape(q.shape[0], config.n_kv_heads, -1, config.head_dim)
        attended = attend_to(q, has_window, (prompt, (k, v)))
        attended = attended.astype(x.dtype).reshape(x.shape[0], 1, 1, config.n_heads, config.head_dim)
        return output_and_mlp(layer, config, x, attended), (k, v)

    x, pool = _run_layers(step, params, config, x, completion_pool, prompts.pool)
    return norm(config, x[:, 0, 0], params["final_norm"]), pool


def _run_layers(
    step: Callable[[Layer, HasWindow, jax.Array, LayerKV, LayerKV], tuple[jax.Array, LayerKV]],
    params: PyTree,
    config: ModelConfig,
    x: jax.Array,
    target: KVPool,
    other: KVPool,
) -> tuple[jax.Array, KVPool]:
    """Run the layers, each with its keys and values of two pools -> states, and the updated first pool."""
    updated = []
    for i, (has_window, *pools) in enumerate(zip(_window_flags(config), _pairs(target), _pairs(other), strict=True)):
        x, pair = step(layer_of(params, i), has_window, x, *pools)
        updated.append(pair)
    keys, values = zip(*updated, strict=True)
    return x, KVPool(k=keys, v=values)


def _pairs(pool: KVPool) -> list[LayerKV]:
    """Return keys and values of a pool, layer by layer."""
    return list(zip(pool.k, pool.v, strict=True))


# Keys before the new tokens: (has_window, a layer's updated keys and values, those of another pool) -> keys to read.
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

    `pools`: the pool to update, and another that `past` may read.
    """
    config, t = model.config, tokens.shape[1]
    positions = _positions(start, tokens)
    rotary = rotary_positions(config, positions)
    causal = (jnp.arange(t) < length[:, None])[:, None, None] & jnp.tril(jnp.ones((t, t), bool))

    @partial(jax.jit, static_argnames="has_window")
    def step(
        layer: Layer, has_window: HasWindow, x: jax.Array, pair: LayerKV, other: LayerKV
    ) -> tuple[jax.Array, LayerKV]:
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(has_window, rotary))
        pair = constrain(write(pair[0], k[:, 0]), POOL), constrain(write(pair[1], v[:, 0]), POOL)
        new = (k, v, narrow(window_of(config, has_window), causal, positions, positions))
        attended = attend(q, [*past(has_window, pair, other), new], scale_of(config), config.attn_score_cap)
        return output_and_mlp(layer, config, x, attended), pair

    x = embed(params, config, tokens[:, None], model.compute_dtype)
    x, pool = _run_layers(step, params, config, x, *pools)
    return last_state(norm(config, x[:, 0], params["final_norm"]), length), pool


def _gather_past(
    config: ModelConfig, table: jax.Array, length: jax.Array, first: jax.Array, queries: jax.Array
) -> Callable[[HasWindow, LayerKV], MaskedKeys]:
    """Return a function that gathers the blocks of table [X,J]: length [X] tokens, the first at position first [X].

    Gathering keys, [X,K,J·C,Q] per layer, pays off for many queries, not for a single one.
    """
    x, j = table.shape

    def read(has_window: HasWindow, pair: LayerKV) -> MaskedKeys:
        index = jnp.arange(j * pair[0].shape[2])
        valid = (index < length[:, None])[:, None, None]
        keys = (first[:, None] + index)[:, None]
        k, v = (
            jnp.moveaxis(cached.at[table].get(mode="clip"), 2, 1).reshape(x, 1, config.n_kv_heads, -1, config.head_dim)
            for cached in pair
        )
        return k, v, narrow(window_of(config, has_window), valid, keys, queries)

    return read


def _positions(start: jax.Array, tokens: jax.Array) -> jax.Array:
    return (start[:, None] + jnp.arange(tokens.shape[1]))[:, None]


def prefill_prompts(
    params: PyTree, model: PagedModel, past: PagedPrefix, tokens: jax.Array, length: jax.Array, has_past: bool
) -> tuple[jax.Array, KVPool]:
    """Prefill a chunk of X prompts, tokens [X,T] with lengths [X] -> last states [X,D], and the prompts' pool.

    `past`: the cached tokens before the chunk, in a table that includes the chunk's blocks; T and the past's lengths
    are multiples of the block size. `has_past` (static): False if every chunk is the first of its prompt.
    """
    pool, table, start = past
    size = pool.block_size
    count = tokens.shape[1] // size
    index = start[:, None] // size + jnp.arange(count)
    blocks = jnp.take_along_axis(table, index, axis=1, mode="fill", fill_value=pool.num_blocks)
    blocks = jnp.where(jnp.arange(count) * size < length[:, None], blocks, pool.num_blocks).reshape(-1)

    def write(cached: jax.Array, new: jax.Array) -> jax.Array:
        blocked = new.reshape(new.shape[0], new.shape[1], count, size, new.shape[3])
        blocked = jnp.moveaxis(blocked, 2, 1).reshape(-1, new.shape[1], size, new.shape[3])
        return cached.at[blocks].set(blocked.astype(cached.dtype), mode="drop")

    read = _gather_past(model.config, table, start, jnp.zeros_like(start), _positions(start, tokens))

    def past_keys(has_window: HasWindow, prompts: LayerKV, _: LayerKV) -> list[MaskedKeys]:
        return [read(has_window, prompts)] if has_past else []

    # Prompts read no second pool.
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

    The completions' tables include blocks for the new tokens.
    """
    pool, table, cached_length = completion
    size = pool.block_size
    index = cached_length[:, None] + jnp.arange(tokens.shape[1])
    block = jnp.take_along_axis(table, index // size, axis=1, mode="fill", fill_value=pool.num_blocks)
    block = jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], block, pool.num_blocks)

    def write(cached: jax.Array, new: jax.Array) -> jax.Array:
        by_token = jnp.moveaxis(new, 2, 1).astype(cached.dtype)
        return cached.at[block, :, index % size].set(by_token, mode="drop")

    start = prompt.length + cached_length
    queries = _positions(start, tokens)
    read_prompt = _gather_past(model.config, prompt.table, prompt.length, jnp.zeros_like(cached_length), queries)
    read_completion = _gather_past(model.config, table, cached_length, prompt.length, queries)

    def past_keys(has_window: HasWindow, completions: LayerKV, prompts: LayerKV) -> list[MaskedKeys]:
        return [read_prompt(has_window, prompts), read_completion(has_window, completions)]

    return _run_tokens(params, model, tokens, length, start, (pool, prompt.pool), past_keys, write)
