"""Paged attention for decoding as a fused kernel, which reads a prompt's blocks once for all its completions.

Each layer calls the kernel twice. In the first call each row is a prompt: its blocks are read once, with the queries of
all its slots. In the second call each row is a slot: it continues the online softmax of the first call with the slot's
completion blocks. Unused blocks, unused columns of the table and empty sequences cost nothing, and no scores are
written to memory. References: online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867), paged attention (Kwon et
al. 2023, arXiv:2309.06180), shared prompts (Juravsky et al. 2024, arXiv:2402.05099).

`TRITON` is for NVIDIA GPUs and `MOSAIC` for TPUs. `paged.paged_attention` is the reference, and runs on CPUs and on
meshes that split the blocks. On a mesh that splits the heads, each device runs the kernel for its heads.
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

# Query rows that a GPU program holds in registers, and the minimum for its matrix units.
_GPU_ROWS, _GPU_MIN_ROWS = 128, 16
# Tokens that a TPU fetches at a time, into two buffers each of keys and values; and the minimum of query rows.
_TPU_TOKENS, _TPU_MIN_ROWS = 512, 16


class CachedKeys(NamedTuple):
    """A layer's keys of X sequences: k, v [Y,K,C,Q], table [X,J] int32, and their lengths in tokens [X]."""

    k: jax.Array
    v: jax.Array
    table: jax.Array
    length: jax.Array


class Readers(NamedTuple):
    """Map between N slots and E prompts, as in `paged.SlotMap`, and the positions [N] int32 of the slots."""

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
    """Return the kernel for `rollout.attention` = `name` and blocks of these sizes, or None for XLA.

    `num_shards`: number of shards of the pools on a mesh. Raises InputError if no kernel supports the case.
    """
    if name == "xla":
        return None
    depth, kernel = config.head_dim, {"gpu": TRITON, "tpu": MOSAIC}.get(platform)
    reason = ""
    if kernel is None:
        reason = f"its kernels are for GPUs and TPUs, and JAX's platform here is {platform}"
    elif num_shards > 1:
        reason = f"a mesh that splits the batch into {num_shards} parts also splits the KV blocks"
    elif depth not in (64, 128, 256):
        reason = f"a head size of {depth} is not supported, only 64, 128 and 256"
    elif any(size < _GPU_MIN_ROWS or size & (size - 1) for size in blocks):
        reason = f"KV blocks of {', '.join(map(str, blocks))} tokens must be powers of two of at least {_GPU_MIN_ROWS}"
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

    def share(q: jax.Array, prompts: CachedKeys, completions: CachedKeys, readers: Readers) -> jax.Array:
        return attend(kernel, q, prompts, completions, readers, score, window)

    specs = (by_head, cache_specs, cache_specs, jax.P())
    shared = jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=by_head, check_vma=False)
    attended: jax.Array = shared(q, prompts, completions, readers)
    return attended


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

    Slots with completion length 0 read nothing, and prompts of only such slots are not read.
    """
    n, heads, m, size = q.shape
    e, group = readers.slots.shape
    queries = jnp.moveaxis(q.at[readers.slots].get(mode="clip"), 2, 1).reshape(e, heads, group * m, size)
    reads = (completions.length > 0).at[readers.slots].get(mode="fill", fill_value=False)
    # A slot may have moved to another prompt.
    reads &= readers.prompt.at[readers.slots].get(mode="clip") == jnp.arange(e)[:, None]
    position = jnp.repeat(readers.position.at[readers.slots].get(mode="clip"), m, axis=1)
    shared = _QueryRows(queries, position, jnp.zeros(e, jnp.int32))
    read_prompts = prompts._replace(length=jnp.where(reads.any(axis=1), prompts.length, 0))
    part = kernel(shared, read_prompts, None, score, window)

    def of_slots(x: jax.Array, nothing: jax.Array) -> jax.Array:
        by_slot = jnp.moveaxis(x.reshape(e, heads, group, m, *x.shape[3:]), 2, 1)
        return _where(
            read_prompts.length.at[readers.prompt].get(mode="clip") > 0,
            by_slot[readers.prompt, readers.group_index],
            nothing,
        )

    first = prompts.length.at[readers.prompt].get(mode="clip")
    rows = _QueryRows(q, jnp.broadcast_to(readers.position[:, None], (n, m)), first)
    before = PartialAttention(*map(of_slots, part, _nothing(q)))
    read = kernel(rows, completions, before, score, window)
    return normalize(*(_where(completions.length > 0, x, jnp.zeros((), x.dtype)) for x in (read.total, read.values)))


def _where(is_there: jax.Array, x: jax.Array, other: jax.Array) -> jax.Array:
    """Select x [N,*] where `is_there` [N], else `other`."""
    return jnp.where(is_there.reshape(-1, *[1] * (x.ndim - 1)), x, other)


class Grid(NamedTuple):
    """Grid of one call, for the memory traffic other than keys: a program per sequence, with padded rows of queries.

    continues: whether the call continues earlier partial attention.
    """

    sequences: int
    heads: int
    rows: int
    depth: int
    continues: bool

    def bytes_moved(self, width: int, num_sequences: float) -> float:
        """Return the bytes read and written for `num_sequences` non-empty sequences; empty ones cost nothing.

        These are positions, queries of `width` bytes per number, and float32 partial attention before and after:
        maximum, total and values.
        """
        parts = (1 + self.continues) * 4 * self.heads * self.rows * (2 + self.depth)
        return num_sequences * (4 * self.rows + width * self.heads * self.rows * self.depth + parts)

    @property
    def parts(self) -> int:
        """Return the bytes of partial attention in memory before and after the call."""
        return (1 + self.continues) * 4 * self.sequences * self.heads * self.rows * (2 + self.depth)


def grids_of(prompts: int, group: int, slots: int, heads: int, per_key: int, depth: int) -> tuple[Grid, Grid]:
    """Return the grids of a layer's two calls: for prompts with up to `group` slots each, and for slots.

    heads: key heads; per_key: query heads per key head.
    """
    min_rows = max(_GPU_MIN_ROWS, _TPU_MIN_ROWS)
    shared, private = (_padded_rows(rows, min_rows) for rows in (group * per_key, per_key))
    return Grid(prompts, heads, shared, depth, continues=False), Grid(slots, heads, private, depth, continues=True)


def fetch_bytes(tokens: float, heads: int, depth: int, width: int) -> float:
    """Return the bytes of the keys and values of `tokens`, a number of whole blocks."""
    return 2 * tokens * heads * depth * width


def _nothing(queries: jax.Array) -> PartialAttention:
    """Return the partial attention of rows before they read keys."""
    shape = queries.shape
    return PartialAttention(
        jnp.full(shape[:-1], MIN_ROW_MAX, jnp.float32),
        jnp.zeros(shape[:-1], jnp.float32),
        jnp.zeros(shape, jnp.float32),
    )


def _step(
    part: PartialAttention, scores: jax.Array, visible: jax.Array, score: Score, weigh: Callable[[jax.Array], jax.Array]
) -> PartialAttention:
    """Add keys to partial attention [...,R], from their raw scores [...,R,C] and `weigh`, weights -> sums of values."""
    scores = jnp.where(visible, soft_cap(scores * score.scale, score.cap), MASKED_SCORE)
    best = jnp.maximum(part.max_score, scores.max(axis=-1))
    weight = jnp.exp(scores - best[..., None])
    old = jnp.exp(part.max_score - best)
    return PartialAttention(best, part.total * old + weight.sum(axis=-1), part.values * old[..., None] + weigh(weight))


def _visible(index: jax.Array, length: Any, first: Any, position: jax.Array, window: int | None) -> jax.Array:
    """Return whether queries at `position` [R,1] see keys [1,C] of a sequence: all valid ones, or those in a window."""
    is_valid = index < length
    return is_valid if window is None else is_valid & (position - (first + index) < window)


def _padded_rows(count: int, min_rows: int) -> int:
    """Return the padded number of query rows: a power of two of at least `min_rows`."""
    return max(min_rows, pl.next_power_of_2(count))


def _pad(rows: _QueryRows, before: PartialAttention | None, min_rows: int) -> tuple[_QueryRows, tuple[jax.Array, ...]]:
    """Pad queries and partial attention to `_padded_rows` rows."""
    count = rows.queries.shape[2]
    more = _padded_rows(count, min_rows) - count

    def pad(x: jax.Array, axis: int) -> jax.Array:
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])

    return rows._replace(queries=pad(rows.queries, 2), position=pad(rows.position, 1)), tuple(
        pad(x, 2) for x in before or ()
    )


def _cost(rows: _QueryRows, keys: CachedKeys) -> pl.CostEstimate:
    """Return an upper bound of the cost: all columns of the table are read, and all rows written."""
    x, heads, r, size = rows.queries.shape
    tokens = keys.table.size * keys.k.shape[2]
    moved = 2 * tokens * heads * size * keys.k.dtype.itemsize + x * heads * r * size * 12
    return pl.CostEstimate(
        flops=4 * tokens * heads * r * size, bytes_accessed=moved, transcendentals=tokens * heads * r
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
    """Call a kernel with the common operands; unused columns of the table refer to the last block.

    `scalars` [X] int32 follow the three common scalar operands.
    """
    shape = rows.queries.shape
    called = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(part, jnp.float32) for part in (shape[:-1], shape[:-1], shape)],
        cost_estimate=_cost(rows, keys),
        name="paged_attention",
        **options,
    )
    table = jnp.minimum(keys.table, keys.k.shape[0] - 1)
    queries = rows.queries.astype(keys.k.dtype)
    outputs: list[jax.Array] = called(
        keys.length, table, rows.first, *scalars, position, queries, keys.k, keys.v, *before
    )  # fmt: skip
    return outputs


def _triton_kernel(*refs: Any, score: Score, window: int | None) -> None:
    """Read the blocks of one sequence for one head of keys.

    Refs: length [1], table [J], first [1], position [R], q [R,Q], k, v [Y,C,Q], and partial attention before, if
    any, and after.
    """
    length, table, first, position, q, k, v = refs[:7]
    before, after = refs[7:-3], refs[-3:]
    size = k.shape[1]

    @pl.when(length[0] > 0)
    def read() -> None:
        queries, at, count = q[...], position[...][:, None], length[0]

        def body(j: jax.Array, part: PartialAttention) -> PartialAttention:
            block = table[j]
            index = j * size + lax.broadcasted_iota(jnp.int32, (1, size), 1)
            keys, values = k[block], v[block]
            scores = jnp.dot(queries, keys.T, preferred_element_type=jnp.float32)
            visible = _visible(index, count, first[0], at, window)

            def weigh(weight: jax.Array) -> jax.Array:
                return jnp.dot(weight.astype(values.dtype), values, preferred_element_type=jnp.float32)

            return _step(part, scores, jnp.broadcast_to(visible, scores.shape), score, weigh)

        start = PartialAttention(*(ref[...] for ref in before)) if before else _nothing(queries)
        for ref, result in zip(after, lax.fori_loop(0, pl.cdiv(count, size), body, start), strict=True):
            ref[...] = result


def _triton(
    rows: _QueryRows,
    keys: CachedKeys,
    before: PartialAttention | None,
    score: Score,
    window: int | None,
    interpret: bool = False,
) -> PartialAttention:
    """Read blocks on a GPU, with one program per sequence, key head and 128 query rows."""
    count = rows.queries.shape[2]
    rows, earlier = _pad(rows, before, _GPU_MIN_ROWS)
    x, heads, r, size = rows.queries.shape
    tile = min(r, _GPU_ROWS)
    blocks, _, block_size, _ = keys.k.shape
    columns = keys.table.shape[1]

    def of_rows(*more: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, tile, *more), lambda i, h, t: (i, h, t, *(0 for _ in more)))

    scalar = pl.BlockSpec((1,), lambda i, *_: (i,))
    pool = pl.BlockSpec((blocks, None, block_size, size), lambda _, h, __: (0, h, 0, 0))
    parts = [of_rows(), of_rows(), of_rows(size)]
    outputs = _call(
        partial(_triton_kernel, score=score, window=window), rows, keys, earlier, rows.position,
        grid=(x, heads, r // tile),
        in_specs=[
            scalar,
            pl.BlockSpec((None, columns), lambda i, *_: (i, 0)),
            scalar,
            pl.BlockSpec((None, tile), lambda i, _, t: (i, t)),
            of_rows(size),
            pool,
            pool,
            *parts[: len(earlier)],
        ],
        out_specs=parts,
        compiler_params=pltriton.CompilerParams(num_warps=4 if tile * size <= 64 * 128 else 8, num_stages=2),
        interpret=interpret,
    )  # fmt: skip
    return PartialAttention(*(part[:, :, :count] for part in outputs))


def _block_rows(length: jax.Array) -> jax.Array:
    """Return the row index per program, [X] int32: its own, or a neighbour's for an empty sequence.

    Pallas fetches a block only when its index changes. So an empty sequence repeats the index of the last non-empty
    one before it, or of the first non-empty one.
    """
    row_ids = jnp.where(length > 0, jnp.arange(len(length)), -1)
    last = lax.cummax(row_ids)
    return jnp.where(last < 0, jnp.argmax(length > 0), last).astype(jnp.int32)


def _mosaic_kernel(
    length: Any, table: Any, first: Any, block_rows: Any, *refs: Any, score: Score, window: int | None
) -> None:
    """Read the blocks of one sequence for all key heads.

    Scalars: length, first [X], table [X,J], block_rows [X] (`_block_rows`). Refs: position [1,R], q [K,R,Q], k, v
    [Y,K,C,Q] in HBM, partial attention before, if any, and after, double buffers of keys and values for B blocks
    [2,B,K,C,Q], and the semaphores of their copies.
    """
    del block_rows
    position, q, k, v = refs[:4]
    before, after, buffers, arrivals = refs[4:-6], refs[-6:-3], refs[-3:-1], refs[-1]
    i = pl.program_id(0)
    count = length[i]
    per, heads, size, depth = buffers[0].shape[1:]
    chunks = pl.cdiv(count, per * size)

    def with_copies(chunk: jax.Array, b: int, work: Callable[[Any], None]) -> None:
        half = lax.rem(chunk, 2)
        for pool, buffer in zip((k, v), buffers, strict=True):
            block = pool.at[table[i, chunk * per + b]]
            work(pltpu.make_async_copy(block, buffer.at[half, b], arrivals.at[half]))

    def for_blocks(chunk: jax.Array, work: Callable[[Any], None]) -> None:
        """Call `work` with the copy of each block of the sequence in a chunk to the chunk's buffer."""
        for b in range(per):
            pl.when((chunk * per + b) * size < count)(partial(with_copies, chunk, b, work))

    @pl.when(count > 0)
    def read() -> None:
        at = position[...].reshape(1, -1, 1)
        for_blocks(jnp.int32(0), lambda copy: copy.start())

        def body(chunk: jax.Array, part: PartialAttention) -> PartialAttention:
            half = lax.rem(chunk, 2)

            for_blocks(chunk + 1, lambda copy: copy.start())
            for_blocks(chunk, lambda copy: copy.wait())
            keys, values = (jnp.swapaxes(buffer[half], 0, 1).reshape(heads, per * size, depth) for buffer in buffers)
            scores = jnp.einsum("krq,kcq->krc", q[...], keys, preferred_element_type=jnp.float32)
            index = chunk * per * size + lax.broadcasted_iota(jnp.int32, (1, 1, per * size), 2)
            values = jnp.where(jnp.swapaxes(index, 1, 2) < count, values, 0)  # memory that was not fetched may hold NaN
            visible = _visible(index, count, first[i], at, window)

            def weigh(weight: jax.Array) -> jax.Array:
                return jnp.einsum(
                    "krc,kcq->krq", weight.astype(values.dtype), values, preferred_element_type=jnp.float32
                )

            return _step(part, scores, jnp.broadcast_to(visible, scores.shape), score, weigh)

        start = PartialAttention(*(ref[...] for ref in before)) if before else _nothing(q)
        for ref, result in zip(after, lax.fori_loop(0, chunks, body, start), strict=True):
            ref[...] = result


def _mosaic(
    rows: _QueryRows,
    keys: CachedKeys,
    before: PartialAttention | None,
    score: Score,
    window: int | None,
    interpret: Any = False,
) -> PartialAttention:
    """Read blocks on a TPU, with one program per sequence, which prefetches the next 512 tokens."""
    count = rows.queries.shape[2]
    rows, earlier = _pad(rows, before, _TPU_MIN_ROWS)
    x, heads, r, size = rows.queries.shape
    block_size = keys.k.shape[2]
    per = max(1, min(_TPU_TOKENS // block_size, keys.table.shape[1]))

    def of_rows(*more: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, heads, r, *more), lambda i, *scalars: (scalars[3][i], 0, 0, *(0 for _ in more)))

    parts = [of_rows(), of_rows(), of_rows(size)]
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    buffer = pltpu.VMEM((2, per, heads, block_size, size), keys.k.dtype)
    outputs = _call(
        partial(_mosaic_kernel, score=score, window=window), rows, keys, earlier, rows.position[:, None],
        _block_rows(keys.length),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(x,),
            in_specs=[
                pl.BlockSpec((None, 1, r), lambda i, *scalars: (scalars[3][i], 0, 0)), of_rows(size), hbm, hbm,
                *parts[: len(earlier)],
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
