"""Paged attention for decoding as a fused kernel, which reads a prompt's blocks once for all its completions.

A decode slot generates one completion at a time. Keys and values are stored in blocks of C tokens. The table of a
sequence, which is a prompt or a completion, lists its blocks.

Each layer calls the kernel twice. In the first call each sequence is a prompt: its blocks are read once, with the
queries of all its slots. In the second call each sequence is the completion of a slot: it continues the online softmax
of the first call with the slot's completion blocks. Unused blocks, unused columns of the table and empty sequences cost
nothing, and no scores are written to memory. References: online softmax (Milakov and Gimelshein 2018,
arXiv:1805.02867), paged attention (Kwon et al. 2023, arXiv:2309.06180), shared prompts (Juravsky et al. 2024,
arXiv:2402.05099).

`TRITON` is for NVIDIA GPUs and `MOSAIC` for TPUs. `paged.paged_attention` is the reference, and runs on CPUs and on
meshes that split the blocks. On a mesh that splits the heads, each device runs the kernel for its heads.

Letters of shapes: N slots, E prompts, G slots per prompt, X sequences of a call (E or N) with up to J blocks each, Y
blocks, K key heads, M query heads per key head, Q size of a head. R: rows of queries per sequence and key head, which
are G·M in the first call and M in the second, plus padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from jaxrl_sql.models.attention.paged import PartialAttention, Score, normalize
from jaxrl_sql.models.attention.xla import MASKED_SCORE, MIN_ROW_MAX
from jaxrl_sql.models.ops.token_distribution import soft_cap
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.parallel.rules import split_of
from jaxrl_sql.types import InputError

# Maximum number of query rows per GPU program, limited by its registers, and minimum, given by its matrix units.
_GPU_ROWS, GPU_MIN_ROWS = 128, 16
# Number of tokens whose keys and values a TPU fetches at a time, and minimum number of query rows. Keys and values have
# two buffers each, so that the next tokens are fetched during the computation.
_TPU_TOKENS, TPU_MIN_ROWS = 512, 16


class CachedKeys(NamedTuple):
    """A layer's keys and values of X sequences.

    k, v [Y,K,C,Q]: all blocks of the pool; table [X,J] int32: the blocks of each sequence, in order; length [X] int32:
    tokens per sequence, 0 if it is not to be read.
    """

    k: jax.Array
    v: jax.Array
    table: jax.Array
    length: jax.Array


class Readers(NamedTuple):
    """Map between N slots and E prompts, as in `models.paged.SlotMap`, and the positions of the slots' queries.

    slots [E,G] int32: the slots of each prompt (N: no slot); prompt, group_index [N] int32: the prompt of a slot, and
    its index among the prompt's slots; position [N] int32: in the whole text.
    """

    slots: jax.Array
    prompt: jax.Array
    group_index: jax.Array
    position: jax.Array


class _QueryRows(NamedTuple):
    """Queries [X,K,R,Q] of X sequences, their positions [X,R], and the position of each sequence's first key [X]."""

    queries: jax.Array
    position: jax.Array
    first: jax.Array


# A kernel: (rows, keys, partial attention so far or None, score, window or None) -> partial attention including these
# keys, undefined for empty sequences.
Kernel = Callable[[_QueryRows, CachedKeys, PartialAttention | None, Score, int | None], PartialAttention]


def kernel_for(name: str, config: ModelConfig, blocks: Sequence[int], platform: str, num_shards: int) -> Kernel | None:
    """Return the kernel for `rollout.attention` = `name`, or None for XLA.

    blocks: block sizes, in tokens, of all pools; platform: JAX's name; num_shards: number of shards of the pools on a
    mesh. Raises InputError if no kernel supports the case.
    """
    if name == "xla":
        return None
    head_dim, kernel = config.head_dim, {"gpu": TRITON, "tpu": MOSAIC}.get(platform)
    reason = ""
    if kernel is None:
        reason = f"its kernels are for GPUs and TPUs, and JAX's platform here is {platform}"
    elif num_shards > 1:
        reason = f"a mesh that splits the batch into {num_shards} parts also splits the KV blocks"
    elif head_dim not in (64, 128, 256):
        reason = f"a head size of {head_dim} is not supported, only 64, 128 and 256"
    elif any(size < GPU_MIN_ROWS or size & (size - 1) for size in blocks):
        reason = f"KV blocks of {', '.join(map(str, blocks))} tokens must be powers of two of at least {GPU_MIN_ROWS}"
    if reason:
        raise InputError(f"rollout.attention={name}: {reason}; possible here: xla")
    return kernel


def attend_on_mesh(
    kernel: Kernel,
    q: jax.Array,
    prompts: CachedKeys,
    completions: CachedKeys,
    readers: Readers,
    score: Score,
    window: int | None,
) -> jax.Array:
    """Call `attend` on each device with its heads, because JAX cannot partition a kernel.

    Each device has all blocks (`kernel_for`), and all heads if `tensor` does not divide the number of key heads.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attend(kernel, q, prompts, completions, readers, score, window)
    by_head = split_of(mesh, ("none", "kv_heads", "none", "none"), q.shape)
    cache_specs = CachedKeys(by_head, by_head, jax.P(), jax.P())  # type: ignore[arg-type] # a tree of specs

    def attend_shard(q: jax.Array, prompts: CachedKeys, completions: CachedKeys, readers: Readers) -> jax.Array:
        return attend(kernel, q, prompts, completions, readers, score, window)

    specs = (by_head, cache_specs, cache_specs, jax.P())
    attend_all = jax.shard_map(attend_shard, mesh=mesh, in_specs=specs, out_specs=by_head, check_vma=False)
    output: jax.Array = attend_all(q, prompts, completions, readers)
    return output


def attend(
    kernel: Kernel,
    q: jax.Array,
    prompts: CachedKeys,
    completions: CachedKeys,
    readers: Readers,
    score: Score,
    window: int | None,
) -> jax.Array:
    """Attend from queries [N,K,M,Q] of slots to blocks of prompts and completions -> [N,K,M,Q] float32.

    Slots with completion length 0 are idle: they get zeros, and prompts of idle slots only are not read. `window`: size
    of the layer's sliding window in tokens, or None.
    """
    n, heads, m, size = q.shape
    e, group = readers.slots.shape
    prompt_queries = jnp.moveaxis(q.at[readers.slots].get(mode="clip"), 2, 1).reshape(e, heads, group * m, size)
    is_active = (completions.length > 0).at[readers.slots].get(mode="fill", fill_value=False)
    # `slots` of a prompt may still list a slot that has moved to another prompt.
    is_active &= readers.prompt.at[readers.slots].get(mode="clip") == jnp.arange(e)[:, None]
    position = jnp.repeat(readers.position.at[readers.slots].get(mode="clip"), m, axis=1)
    prompt_rows = _QueryRows(prompt_queries, position, jnp.zeros(e, jnp.int32))
    active_prompts = prompts._replace(length=jnp.where(is_active.any(axis=1), prompts.length, 0))
    prompt_part = kernel(prompt_rows, active_prompts, None, score, window)

    def by_slot(x: jax.Array, empty: jax.Array) -> jax.Array:
        """Select each slot's part of a result for prompts; `empty` if its prompt was not read."""
        grouped = jnp.moveaxis(x.reshape(e, heads, group, m, *x.shape[3:]), 2, 1)
        return _where(
            active_prompts.length.at[readers.prompt].get(mode="clip") > 0,
            grouped[readers.prompt, readers.group_index],
            empty,
        )

    first_position = prompts.length.at[readers.prompt].get(mode="clip")
    slot_rows = _QueryRows(q, jnp.broadcast_to(readers.position[:, None], (n, m)), first_position)
    before = PartialAttention(*map(by_slot, prompt_part, _empty_part(q)))
    result = kernel(slot_rows, completions, before, score, window)
    is_read = completions.length > 0
    return normalize(*(_where(is_read, x, jnp.zeros((), x.dtype)) for x in (result.total, result.values)))


def _where(condition: jax.Array, x: jax.Array, otherwise: jax.Array) -> jax.Array:
    """Select x [N,*] where `condition` [N] is true, else `otherwise`."""
    return jnp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, otherwise)


def _empty_part(queries: jax.Array) -> PartialAttention:
    """Return the partial attention of queries that have not attended to any key."""
    shape = queries.shape
    return PartialAttention(
        jnp.full(shape[:-1], MIN_ROW_MAX, jnp.float32),
        jnp.zeros(shape[:-1], jnp.float32),
        jnp.zeros(shape, jnp.float32),
    )


def _add_keys(
    part: PartialAttention,
    scores: jax.Array,
    visible: jax.Array,
    score: Score,
    weighted_sum: Callable[[jax.Array], jax.Array],
) -> PartialAttention:
    """Add keys to partial attention [...,R], a step of the online softmax.

    scores [...,R,C]: raw products of queries and keys; weighted_sum: weights [...,R,C] -> sums of values [...,R,Q].
    """
    scores = jnp.where(visible, soft_cap(scores * score.scale, score.cap), MASKED_SCORE)
    max_score = jnp.maximum(part.max_score, scores.max(axis=-1))
    weight = jnp.exp(scores - max_score[..., None])
    rescale = jnp.exp(part.max_score - max_score)
    return PartialAttention(
        max_score,
        part.total * rescale + weight.sum(axis=-1),
        part.values * rescale[..., None] + weighted_sum(weight),
    )


def _visible(index: jax.Array, length: Any, first: Any, position: jax.Array, window: int | None) -> jax.Array:
    """Return whether queries see the keys of a sequence: all valid keys, or those in a window; [R,C], or [1,C].

    index [1,C]: indices of keys in the sequence; length: its tokens; first: position of its first key; position [R,1]:
    of the queries.
    """
    is_valid = index < length
    return is_valid if window is None else is_valid & (position - (first + index) < window)


def padded_rows(count: int, min_rows: int) -> int:
    """Return the padded number of query rows: a power of two of at least `min_rows`."""
    return max(min_rows, pl.next_power_of_2(count))


def _pad(rows: _QueryRows, before: PartialAttention | None, min_rows: int) -> tuple[_QueryRows, tuple[jax.Array, ...]]:
    """Pad queries and partial attention to `padded_rows` rows."""
    count = rows.queries.shape[2]
    padding = padded_rows(count, min_rows) - count

    def pad(x: jax.Array, axis: int) -> jax.Array:
        return jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)])

    return rows._replace(queries=pad(rows.queries, 2), position=pad(rows.position, 1)), tuple(
        pad(x, 2) for x in before or ()
    )


def _cost(rows: _QueryRows, keys: CachedKeys) -> pl.CostEstimate:
    """Return an upper bound of the cost: all columns of the table are read, and all rows written.

    It informs XLA's scheduler. Bytes: keys and values, and about 12 per element of the queries, for their reading (4)
    and for partial attention before and after (4 each). Operations: two products of 2 operations per pair of query and
    key, and an exponential.
    """
    x, heads, r, size = rows.queries.shape
    tokens = keys.table.size * keys.k.shape[2]
    bytes_accessed = 2 * tokens * heads * size * keys.k.dtype.itemsize + x * heads * r * size * 12
    return pl.CostEstimate(
        flops=4 * tokens * heads * r * size, bytes_accessed=bytes_accessed, transcendentals=tokens * heads * r
    )


def _call(
    kernel: Callable[..., None],
    rows: _QueryRows,
    keys: CachedKeys,
    before: Sequence[jax.Array],
    position: jax.Array,
    *scalars: jax.Array,
    **options: Any,
) -> list[jax.Array]:
    """Call a kernel with the common operands -> maximum, total and values of the partial attention.

    Unused columns of the table are changed to refer to the last block. before: the arrays of earlier partial attention,
    or empty. position: the rows' positions in the layout that the kernel expects. `scalars` [X] int32 follow the three
    common scalar operands. `options`: those of `pallas_call`.
    """
    shape = rows.queries.shape
    call = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(part, jnp.float32) for part in (shape[:-1], shape[:-1], shape)],
        cost_estimate=_cost(rows, keys),
        name="paged_attention",
        **options,
    )
    table = jnp.minimum(keys.table, keys.k.shape[0] - 1)
    queries = rows.queries.astype(keys.k.dtype)
    outputs: list[jax.Array] = call(
        keys.length, table, rows.first, *scalars, position, queries, keys.k, keys.v, *before
    )  # fmt: skip
    return outputs


def _triton_kernel(*refs: Any, score: Score, window: int | None) -> None:
    """Attend to the blocks of one sequence for one key head.

    Refs: length [1], table [J], first [1], position [R], q [R,Q], k, v [Y,C,Q], and maximum, total and values of
    partial attention: three refs before, if any, and three after.
    """
    length, table, first, position, q, k, v = refs[:7]
    before, after = refs[7:-3], refs[-3:]
    block_size = k.shape[1]

    @pl.when(length[0] > 0)
    def attend_to_blocks() -> None:
        queries, query_position, num_tokens = q[...], position[...][:, None], length[0]

        def add_block(j: jax.Array, part: PartialAttention) -> PartialAttention:
            block = table[j]
            index = j * block_size + lax.broadcasted_iota(jnp.int32, (1, block_size), 1)
            keys, values = k[block], v[block]
            scores = jnp.dot(queries, keys.T, preferred_element_type=jnp.float32)
            visible = _visible(index, num_tokens, first[0], query_position, window)

            def weighted_sum(weight: jax.Array) -> jax.Array:
                return jnp.dot(weight.astype(values.dtype), values, preferred_element_type=jnp.float32)

            return _add_keys(part, scores, jnp.broadcast_to(visible, scores.shape), score, weighted_sum)

        start = PartialAttention(*(ref[...] for ref in before)) if before else _empty_part(queries)
        num_blocks = pl.cdiv(num_tokens, block_size)
        for ref, result in zip(after, lax.fori_loop(0, num_blocks, add_block, start), strict=True):
            ref[...] = result


def _triton(
    rows: _QueryRows,
    keys: CachedKeys,
    before: PartialAttention | None,
    score: Score,
    window: int | None,
    interpret: bool = False,
) -> PartialAttention:
    """Attend to blocks on a GPU, with one program per sequence, key head and 128 query rows; a `Kernel`."""
    count = rows.queries.shape[2]
    rows, before_arrays = _pad(rows, before, GPU_MIN_ROWS)
    x, heads, r, size = rows.queries.shape
    tile = min(r, _GPU_ROWS)
    blocks, _, block_size, _ = keys.k.shape
    columns = keys.table.shape[1]

    # The indices of a program are its sequence i, key head h and tile of rows t.
    def row_spec(*trailing: int) -> pl.BlockSpec:
        """Return the spec of an array [X,K,R,*trailing]."""
        return pl.BlockSpec((None, None, tile, *trailing), lambda i, h, t: (i, h, t, *(0 for _ in trailing)))

    scalar = pl.BlockSpec((1,), lambda i, *_: (i,))
    pool = pl.BlockSpec((blocks, None, block_size, size), lambda _, h, __: (0, h, 0, 0))
    parts = [row_spec(), row_spec(), row_spec(size)]
    outputs = _call(
        partial(_triton_kernel, score=score, window=window), rows, keys, before_arrays, rows.position,
        grid=(x, heads, r // tile),
        in_specs=[
            scalar,
            pl.BlockSpec((None, columns), lambda i, *_: (i, 0)),
            scalar,
            pl.BlockSpec((None, tile), lambda i, _, t: (i, t)),
            row_spec(size),
            pool,
            pool,
            *parts[: len(before_arrays)],
        ],
        out_specs=parts,
        compiler_params=pltriton.CompilerParams(num_warps=4 if tile * size <= 64 * 128 else 8, num_stages=2),
        interpret=interpret,
    )  # fmt: skip
    return PartialAttention(*(part[:, :, :count] for part in outputs))


def _block_rows(length: jax.Array) -> jax.Array:
    """Return the sequence whose rows each program fetches, [X] int32: its own, or a neighbour's if its own is empty.

    Pallas fetches an operand only when its index changes. So an empty sequence repeats the index of the last non-empty
    sequence before it; if there is none, that of the first non-empty sequence.
    """
    non_empty = jnp.where(length > 0, jnp.arange(len(length)), -1)
    last_non_empty = lax.cummax(non_empty)
    return jnp.where(last_non_empty < 0, jnp.argmax(length > 0), last_non_empty).astype(jnp.int32)


def _mosaic_kernel(
    length: Any, table: Any, first: Any, block_rows: Any, *refs: Any, score: Score, window: int | None
) -> None:
    """Attend to the blocks of one sequence for all key heads.

    A sequence is read in chunks of P blocks (_TPU_TOKENS tokens), each of which is copied to a buffer. Scalars:
    length, first [X], table [X,J], block_rows [X] (`_block_rows`, which only the operands' specs use). Refs: position
    [1,R], q [K,R,Q], k, v [Y,K,C,Q] in HBM, three of partial attention before, if any, and three after, double buffers
    of keys and values [2,P,K,C,Q], and the semaphores of their copies.
    """
    del block_rows
    position, q, k, v = refs[:4]
    before, after, buffers, semaphores = refs[4:-6], refs[-6:-3], refs[-3:-1], refs[-1]
    i = pl.program_id(0)
    num_tokens = length[i]
    chunk_blocks, heads, block_size, head_dim = buffers[0].shape[1:]
    chunk_tokens = chunk_blocks * block_size

    def with_copies(chunk: jax.Array, b: int, action: Callable[[Any], None]) -> None:
        """Call `action` with the copies of keys and values of block b in a chunk."""
        half = lax.rem(chunk, 2)
        for pool, buffer in zip((k, v), buffers, strict=True):
            block = pool.at[table[i, chunk * chunk_blocks + b]]
            action(pltpu.make_async_copy(block, buffer.at[half, b], semaphores.at[half]))

    def for_blocks(chunk: jax.Array, action: Callable[[Any], None]) -> None:
        """Call `action` with the copy of each block of the sequence in a chunk to the chunk's buffer."""
        for b in range(chunk_blocks):
            pl.when((chunk * chunk_blocks + b) * block_size < num_tokens)(partial(with_copies, chunk, b, action))

    @pl.when(num_tokens > 0)
    def attend_to_blocks() -> None:
        query_position = position[...].reshape(1, -1, 1)
        for_blocks(jnp.int32(0), lambda copy: copy.start())

        def add_chunk(chunk: jax.Array, part: PartialAttention) -> PartialAttention:
            half = lax.rem(chunk, 2)
            for_blocks(chunk + 1, lambda copy: copy.start())
            for_blocks(chunk, lambda copy: copy.wait())
            keys, values = (
                jnp.swapaxes(buffer[half], 0, 1).reshape(heads, chunk_tokens, head_dim) for buffer in buffers
            )
            scores = jnp.einsum("krq,kcq->krc", q[...], keys, preferred_element_type=jnp.float32)
            index = chunk * chunk_tokens + lax.broadcasted_iota(jnp.int32, (1, 1, chunk_tokens), 2)
            # Memory that was not fetched may hold NaN.
            values = jnp.where(jnp.swapaxes(index, 1, 2) < num_tokens, values, 0)
            visible = _visible(index, num_tokens, first[i], query_position, window)

            def weighted_sum(weight: jax.Array) -> jax.Array:
                return jnp.einsum(
                    "krc,kcq->krq", weight.astype(values.dtype), values, preferred_element_type=jnp.float32
                )

            return _add_keys(part, scores, jnp.broadcast_to(visible, scores.shape), score, weighted_sum)

        start = PartialAttention(*(ref[...] for ref in before)) if before else _empty_part(q)
        for ref, result in zip(
            after, lax.fori_loop(0, pl.cdiv(num_tokens, chunk_tokens), add_chunk, start), strict=True
        ):
            ref[...] = result


def _mosaic(
    rows: _QueryRows,
    keys: CachedKeys,
    before: PartialAttention | None,
    score: Score,
    window: int | None,
    interpret: Any = False,
) -> PartialAttention:
    """Attend to blocks on a TPU, with one program per sequence, which prefetches the next 512 tokens; a `Kernel`."""
    count = rows.queries.shape[2]
    rows, before_arrays = _pad(rows, before, TPU_MIN_ROWS)
    x, heads, r, size = rows.queries.shape
    block_size = keys.k.shape[2]
    chunk_blocks = max(1, min(_TPU_TOKENS // block_size, keys.table.shape[1]))

    def row_spec(*trailing: int) -> pl.BlockSpec:
        """Return the spec of an array [X,K,R,*trailing]; program i fetches the rows of `_block_rows`[i], scalar 3."""
        return pl.BlockSpec(
            (None, heads, r, *trailing), lambda i, *scalars: (scalars[3][i], 0, 0, *(0 for _ in trailing))
        )

    parts = [row_spec(), row_spec(), row_spec(size)]
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    buffer = pltpu.VMEM((2, chunk_blocks, heads, block_size, size), keys.k.dtype)
    outputs = _call(
        partial(_mosaic_kernel, score=score, window=window), rows, keys, before_arrays, rows.position[:, None],
        _block_rows(keys.length),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(x,),
            in_specs=[
                pl.BlockSpec((None, 1, r), lambda i, *scalars: (scalars[3][i], 0, 0)), row_spec(size), hbm, hbm,
                *parts[: len(before_arrays)],
            ],
            out_specs=parts,
            scratch_shapes=[buffer, buffer, pltpu.SemaphoreType.DMA((2,))],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret,
    )  # fmt: skip
    return PartialAttention(*(part[:, :, :count] for part in outputs))


TRITON: Kernel = _triton
MOSAIC: Kernel = _mosaic
TRITON_INTERPRETED: Kernel = partial(_triton, interpret=True)
MOSAIC_INTERPRETED: Kernel = partial(_mosaic, interpret=pltpu.InterpretParams())
