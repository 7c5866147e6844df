"""The work on the device: a model with its pools of KV blocks, and the arrays of one call, which executes plans.

A KV block holds the keys and values of a fixed number of successive tokens. There are three pools of them: prompts,
completions, and the prefix cache. A plan (`scheduler.ChunkPlan`) has the prompts to prefill and the changes of decode
slots before a chunk of decode steps. Array letter X: entries of a batch, with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import PyTree, bucket, pad_tokens
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.attention.paged_kernel import kernel_for
from jaxrl_sql.models.ops import rng
from jaxrl_sql.models.paged import BlockMap, KVPool, PagedModel
from jaxrl_sql.models.stacked_layers import split_layers
from jaxrl_sql.rollout import decode
from jaxrl_sql.rollout.decode import (
    ChunkConfig,
    DecodeSlots,
    DecodeState,
    ObservationBatch,
    PrefillChunk,
    PromptSlots,
    RequestRing,
    StepLog,
    StopCriteria,
    empty_prompt_states,
    empty_request,
    empty_slots,
    mark_seen,
    on_devices,
    release_slots,
    resume_requests,
)
from jaxrl_sql.rollout.engine_config import EngineConfig, EngineSizes, power_of_two
from jaxrl_sql.rollout.kv_blocks import PrefixCache, block_owner
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.rollout.scheduler import ChunkPlan, Prefill, PrefillBatch, SchedulerState
from jaxrl_sql.rollout.stats import RolloutStats

NO_BLOCK = np.iinfo(np.int32).max
Row = TypeVar("Row")
COPIED_BLOCKS = 32
"""The blocks that a program copies from or to the prefix cache: always as many, so each direction has one program."""


class ModelRunner:
    """A model with its KV cache, kept from one call of the engine to the next.

    `params` are those of the next call. A running call uses the weights of its start, which may be older. Programs
    consume the pools that they write (JAX's donation), so only this object has references to them.
    """

    def __init__(self, model: ModelConfig, params: PyTree, config: EngineConfig) -> None:
        sizes = (config.block_size, config.completion_block_size)
        kernel = kernel_for(config.attention, model, sizes, jax.default_backend(), config.num_shards)
        self.model = PagedModel(model, config.compute_dtype, kernel)
        self.params = params
        self.config = config
        self._split: tuple[PyTree, PyTree] | None = None
        self.release()

    def weights(self) -> PyTree:
        """Return the parameters with separate arrays for each layer, as programs take them.

        They are split once, until the parameters change.
        """
        if self._split is None or self._split[0] is not self.params:
            self._split = None
            self._split = (self.params, split_layers(self.params))
        return self._split[1]

    def release(self) -> None:
        """Free all KV blocks, and the copies of weights by layer; the next call allocates them again."""
        self._split = None
        self.prefix_cache = PrefixCache(self.config.block_size)
        self.prompt_pool: KVPool | None = None
        self.prefix_pool: KVPool | None = None
        self.completion_pool: KVPool | None = None
        self.prefix_pool_sizes: list[int] = []

    # --- the sizes of the pools

    def open_pools(self, sizes: EngineSizes) -> EngineSizes:
        """Allocate the pools of a call, or reuse pools of the same size, and return their sizes.

        With `pads_to_max` the pool of prompts never shrinks, so that one program serves all calls.
        """
        if self.config.pads_to_max:
            sizes = sizes._replace(prompt_blocks=max(sizes.prompt_blocks, _num_blocks(self.prompt_pool)))
        self.prefix_pool_sizes = self.config.prefix_pool_sizes(sizes)
        if _num_blocks(self.prompt_pool) != sizes.prompt_blocks:
            self.prompt_pool = None  # free the old pool first
            self.prompt_pool = self._new_pool(sizes.prompt_blocks, self.config.block_size)
        capacity = min(self.config.prefix_cache_tokens // self.config.block_size, sizes.prefix_blocks)
        self.prefix_cache.open(sizes.prompt_blocks, capacity)
        completion_blocks, _ = self.config.completion_pool_sizes(sizes)[0]
        if _num_blocks(self.completion_pool) != completion_blocks:
            self.completion_pool = None  # free the old pool first
            self.completion_pool = self._new_pool(completion_blocks, self.config.completion_block_size)
        return sizes

    def resize_completions(self, blocks: int) -> None:
        """Grow the pool of completions to `blocks` blocks, layer by layer, so that at most one layer exists twice."""
        if _num_blocks(self.completion_pool) == blocks:
            return
        pool, self.completion_pool = self.completion_pool, None
        assert pool is not None, "open_pools comes first"
        keys, values = list(pool.k), list(pool.v)
        del pool
        for layers in (keys, values):
            for i in range(len(layers)):
                layers[i] = decode.grow_keys(layers[i], blocks)
        self.completion_pool = KVPool(tuple(keys), tuple(values))

    def _new_pool(self, blocks: int, block_size: int) -> KVPool:
        return decode.new_pool(self.model.config, blocks, block_size, self.cache_dtype)

    @property
    def cache_dtype(self) -> np.dtype:
        """Return the dtype of keys and values, and of the hidden states."""
        if self.prompt_pool is not None:
            return self.prompt_pool.k[0].dtype
        return jnp.dtype(self.model.compute_dtype or jax.tree.leaves(self.params)[0].dtype)

    # --- the prefix cache

    def load_prefixes(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the prefix cache to blocks of prompts: (cached block, block) each."""
        if self.prefix_pool is not None and self.prompt_pool is not None:
            for cached, blocks in _copy_batches(copies, self.prompt_pool.num_blocks):
                self.prompt_pool = decode.copy_blocks(self.prefix_pool, cached, self.prompt_pool, blocks)

    def save_prefixes(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of prompts to blocks of the prefix cache: (block, cached block) each."""
        # In a small cache a block may be evicted and cached again in a batch: only the last copy to it counts.
        copies = [(block, target) for target, block in {target: block for block, target in copies}.items()]
        if copies and self.prompt_pool is not None:
            pool = self._reserve_prefixes(1 + max(target for _, target in copies))
            for blocks, targets in _copy_batches(copies, pool.num_blocks):
                pool = decode.copy_blocks(self.prompt_pool, blocks, pool, targets)
                self.prefix_pool = pool

    def _reserve_prefixes(self, blocks: int) -> KVPool:
        """Return the pool of the prefix cache, grown to at least `blocks` blocks."""
        num_blocks = next(size for size in self.prefix_pool_sizes if size >= blocks)
        if self.prefix_pool is None:
            self.prefix_pool = self._new_pool(num_blocks, self.config.block_size)
        elif num_blocks > self.prefix_pool.num_blocks:
            pools = (self.prefix_pool.k, self.prefix_pool.v)
            self.prefix_pool = KVPool(*(tuple(decode.grow_keys(keys, num_blocks) for keys in pool) for pool in pools))
        return self.prefix_pool

    def decode_state(self, slots: DecodeSlots) -> DecodeState:
        """Return the state that decoding changes. Programs consume it, so their result must replace pool and slots."""
        assert self.completion_pool is not None, "open_pools comes first"
        return DecodeState(self.completion_pool, slots)


def _num_blocks(pool: KVPool | None) -> int:
    return 0 if pool is None else pool.num_blocks


def _copy_batches(pairs: Sequence[tuple[int, int]], padding: int) -> Iterator[np.ndarray]:
    """Yield the pairs in arrays [2,COPIED_BLOCKS]; the last is padded with `padding`, which must be out of range."""
    for first in range(0, len(pairs), COPIED_BLOCKS):
        part = pairs[first : first + COPIED_BLOCKS]
        columns = np.full((2, COPIED_BLOCKS), padding, np.int32)
        columns[:, : len(part)] = np.array(part).T
        yield columns


class Continuation(NamedTuple):
    """Tokens to append to the completion in a decode slot: an observation, or all tokens of a resumed completion.

    max_length: new maximum length of the completion, over all turns.
    stop_state: state of the automaton of its stop strings, after the current turn's tokens.
    """

    slot: int
    tokens: Sequence[int]
    max_length: int
    stop_state: int


class CallRunner:
    """The arrays of one call: its decode slots, its prompt slots, and the ring of completions that wait for a slot.

    start_states: start state of the automaton of each set of stop strings.
    first: number of the first completion to enter the ring. Each is at its number modulo the ring's size.
    weights: the weights at the start of the call.
    table [E,J], lengths [E]: KV blocks and tokens of the prompt in each prompt slot.
    """

    def __init__(
        self,
        runner: ModelRunner,
        request: GenerationRequest,
        chunk_config: ChunkConfig,
        stops: StopCriteria,
        start_states: Mapping[tuple[str, ...], int],
        sizes: EngineSizes,
        first: int,
        stats: RolloutStats,
    ) -> None:
        self.runner, self.config, self.weights = runner, runner.config, runner.weights()
        self.request, self.chunk_config, self.stats = request, chunk_config, stats
        self.start_states, self.stops = start_states, on_devices(stops)
        model, dtype, penalizes = runner.model.config, runner.cache_dtype, chunk_config.penalizes
        self.hidden, self.seen = empty_prompt_states(model, sizes.prompt_slots, dtype, penalizes)
        n = self.config.max_num_seqs
        self.slots = empty_slots(model, n, sizes.prompt_slots, sizes.group_size, dtype, penalizes, first)
        self.table = np.full((sizes.prompt_slots, sizes.prompt_columns), NO_BLOCK, np.int32)
        self.lengths = np.zeros(sizes.prompt_slots, np.int32)
        # Room for the most completions that `scheduler._admit` lets wait, and the last group, which may exceed them.
        self.ring: Any = empty_request(2 * n + sizes.group_size)
        self.keys = _all_keys(request, self.config.purpose)

    def execute(self, plan: ChunkPlan, continuations: Sequence[Continuation]) -> StepLog | None:
        """Do a plan's work and return the log of the launched decode steps (None: none were launched).

        `continuations` are the tokens of the plan's `appended` completions.
        """
        self.prepare(plan, continuations)
        if not plan.launches:
            return None
        (self.runner.completion_pool, self.slots), log = decode.decode_chunk(*self.decode_arguments(plan))
        self.stats.chunks += 1
        return log

    def prepare(self, plan: ChunkPlan, continuations: Sequence[Continuation]) -> None:
        """Do a plan's work before its decode steps."""
        self.table[plan.freed] = NO_BLOCK
        self.ring.max_length[self._ring_indices(plan.truncated)] = 1  # they end with their first token
        self._release(plan.released)
        for batch in plan.prefills:
            self._prefill(batch)
        self._write_requests(self.ring, self._ring_indices(plan.queued), plan.queued, plan.after)
        self._release(plan.preempted)
        self.stats.preemptions += len(plan.preempted)
        self._resume(plan)
        if plan.launches:
            self.runner.resize_completions(plan.after.blocks.num_blocks)
        if continuations:
            self._append(continuations, plan.after.blocks.table())

    def prompt_slots(self) -> PromptSlots:
        """Return the prompt slots as arguments of programs."""
        num_blocks = self.runner.prefix_cache.num_blocks
        table: Any = np.minimum(self.table, num_blocks)  # NO_BLOCK becomes the first index that is out of range
        blocks = BlockMap(table, *block_owner(table, num_blocks, self.config.block_size))
        lengths: Any = self.lengths.copy()
        return PromptSlots(blocks, lengths, self.hidden, self.seen)

    def decode_arguments(self, plan: ChunkPlan) -> tuple[Any, ...]:
        """Return the arguments of `decode.decode_chunk` for a plan."""
        # The ring is copied, because the host may change it while the program runs.
        blocks, table = plan.after.blocks, plan.after.blocks.table()
        return (
            self.weights, self.chunk_config, self.runner.prompt_pool, self.prompt_slots(),
            self.runner.decode_state(self.slots),
            BlockMap(table, *block_owner(table, blocks.num_blocks, blocks.block_size)),
            RequestRing(jax.tree.map(np.copy, self.ring), np.int32(plan.tail)), self.stops,
        )  # fmt: skip

    # --- slots

    def _release(self, slots: Sequence[int]) -> None:
        """Free decode slots."""
        n = self.config.max_num_seqs
        if slots:
            self.slots = release_slots(self.slots, _pad(slots, n, n))

    def _resume(self, plan: ChunkPlan) -> None:
        """Put a plan's resumed completions into slots; `_append` then adds the tokens that they had."""
        if not plan.resumed:
            return
        x = power_of_two(len(plan.resumed))
        slots = [plan.after.running[number] for number in plan.resumed]
        requests = empty_request(x)
        self._write_requests(requests, np.arange(len(slots)), plan.resumed, plan.after)
        self.slots = resume_requests(
            self.slots, _pad(slots, x, self.config.max_num_seqs), requests, self.prompt_slots()
        )

    def _append(self, continuations: Sequence[Continuation], table: np.ndarray) -> None:
        """Append tokens to completions in slots, before the next decode steps; table [N,J] has the slots' KV blocks."""
        max_tokens, prompts = self.config.prefill_chunk, self.prompt_slots()
        for first in range(0, max(len(continuation.tokens) for continuation in continuations) or 1, max_tokens):
            pieces = [piece._replace(tokens=piece.tokens[first : first + max_tokens]) for piece in continuations]
            # A slot must resume also after an empty observation, which is an empty first piece.
            pieces = [piece for piece in pieces if piece.tokens or not first]
            for batch in _batches(pieces, self.config.fits_prefill):
                counts, max_piece = self.config.prefill_shapes(len(batch), max(len(piece.tokens) for piece in batch))
                for x, rows in split_rows(batch, counts):
                    self._append_rows(rows, x, max_piece, table, prompts)

    def _append_rows(
        self, batch: Sequence[Continuation], x: int, max_piece: int, table: np.ndarray, prompts: PromptSlots
    ) -> None:
        """Append the tokens of up to `x` continuations, padded to `x` rows of `max_piece` tokens."""
        runner = self.runner
        slot, tokens, max_length, stop_state = zip(*batch, strict=True)
        padded, length = pad_tokens([*tokens, *[()] * (x - len(batch))], max_piece)
        observation = ObservationBatch(
            _pad(slot, x, self.config.max_num_seqs), padded, length, _pad(max_length, x, 0), _pad(stop_state, x, 0)
        )
        runner.completion_pool, self.slots = decode.append_observation(
            self.weights, runner.model, runner.prompt_pool, prompts, runner.decode_state(self.slots), table,
            observation,
        )  # fmt: skip

    # --- requests

    def _ring_indices(self, numbers: Sequence[int]) -> np.ndarray:
        return np.array(numbers, np.int64) % len(self.ring.completion)

    def _write_requests(self, arrays: Any, indices: np.ndarray, numbers: Sequence[int], state: SchedulerState) -> None:
        """Write the requests of completions into the host's `arrays` (a DecodeRequest) at `indices` [X]."""
        if not numbers:
            return
        completions = [state.completions[number] for number in numbers]
        prompt, sample, prompt_slot, group_index = (list(column) for column in zip(*completions, strict=True))
        samplings = [self.request.samplings[i] for i in prompt]
        arrays.completion[indices], arrays.prompt_slot[indices], arrays.group_index[indices] = (
            numbers,
            prompt_slot,
            group_index,
        )
        arrays.max_length[indices] = [sampling.max_new_tokens for sampling in samplings]
        arrays.start_state[indices] = [self.start_states[tuple(sampling.stop)] for sampling in samplings]
        arrays.pauses[indices] = self.request.turns is not None
        arrays.key[indices] = self.keys[prompt, sample]
        for name, values in arrays.sampling._asdict().items():
            values[indices] = [getattr(sampling, name) for sampling in samplings]

    # --- prompts

    def _prefill(self, batch: PrefillBatch) -> None:
        """Prefill a batch of prompts, without their cached tokens, in chunks of whole blocks."""
        self.runner.load_prefixes([pair for prompt in batch.prompts for pair in prompt.allocation.copies])
        longest = max(self._num_uncached(prompt) for prompt in batch.prompts)
        counts, _ = self.config.prefill_shapes(len(batch.prompts), longest, self.config.block_size)
        for x, rows in split_rows(batch.prompts, counts):
            ids = [self.request.prompts[prompt.group.prompt].token_ids for prompt in rows]
            self._prefill_chunks(rows, ids, x)
            if self.seen is not None:  # for repetition penalties
                slots = _pad([prompt.prompt_slot for prompt in rows], x, len(self.lengths))
                tokens, length = pad_tokens(
                    [*ids, *[()] * (x - len(ids))], self.table.shape[1] * self.config.block_size
                )
                self.seen = mark_seen(self.seen, slots, tokens, length)
        self.runner.save_prefixes(batch.saved)

    def _num_uncached(self, prompt: Prefill) -> int:
        """Return the number of a prompt's tokens that are not cached."""
        return len(self.request.prompts[prompt.group.prompt].token_ids) - prompt.allocation.cached_tokens

    def _prefill_chunks(self, prompts: Sequence[Prefill], ids: Sequence[tuple[int, ...]], x: int) -> None:
        """Compute the KV blocks of up to `x` prompts, from their cached tokens on, and their last hidden states.

        Each program computes the next tokens of all prompts, until the longest prompt is complete.
        """
        block_size = self.config.block_size
        tokens_per_row = self.config.prefill_shapes(len(prompts), max(map(self._num_uncached, prompts)), block_size)[1]
        start, length = np.zeros(x, np.int32), np.zeros(x, np.int32)
        table = np.full((x, self.table.shape[1]), self.runner.prefix_cache.num_blocks, np.int32)
        for row, (prompt_slot, _, (blocks, cached_tokens, _)) in enumerate(prompts):
            start[row], length[row] = cached_tokens, len(ids[row])
            table[row, : len(blocks)] = blocks
            self.table[prompt_slot, : len(blocks)] = blocks
            self.lengths[prompt_slot] = length[row]
            self.stats.prompt_tokens += int(length[row])
            self.stats.reused_tokens += cached_tokens
        chunk_tokens = -(-tokens_per_row // block_size) * block_size
        while (start < length).any():
            count = np.clip(length - start, 0, chunk_tokens)
            chunks = [tokens[start[row] : start[row] + chunk_tokens] for row, tokens in enumerate(ids)]
            padded, _ = pad_tokens([*chunks, *[()] * (x - len(prompts))], chunk_tokens)
            completed_slots = np.full(x, len(self.lengths), np.int32)  # out of range: the prompt is not complete
            for row, (prompt_slot, _, _) in enumerate(prompts):
                if start[row] < length[row] <= start[row] + chunk_tokens:
                    completed_slots[row] = prompt_slot
            has_past = bool(self.config.pads_to_max or ((start > 0) & (count > 0)).any())
            chunk, runner = PrefillChunk(padded, count, start, table, completed_slots), self.runner
            runner.prompt_pool, self.hidden = decode.prefill_chunk(
                self.weights, runner.model, runner.prompt_pool, self.hidden, chunk, has_past
            )
            self.stats.padded_tokens += padded.size
            start = np.minimum(start + chunk_tokens, length)


def split_rows(rows: Sequence[Row], counts: Iterable[int]) -> Iterator[tuple[int, Sequence[Row]]]:
    """Yield each count of `counts`, with the next rows, of which there are at most `count`."""
    first = 0
    for count in counts:
        yield count, rows[first : first + count]
        first += count


def _batches(pieces: Sequence[Continuation], fits: Callable[[int, int], bool]) -> Iterator[list[Continuation]]:
    """Split pieces into batches, short ones first, since a batch is padded to its longest piece."""
    batch: list[Continuation] = []
    for piece in sorted(pieces, key=lambda piece: len(piece.tokens)):
        if batch and not fits(len(batch) + 1, len(piece.tokens)):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _pad(values: Sequence[int], length: int, padding: int) -> np.ndarray:
    return np.array([*values, *[padding] * (length - len(values))], np.int32)


def _all_keys(request: GenerationRequest, purpose: rng.Purpose) -> np.ndarray:
    """Return the random keys [prompts,samples,2] of a call's samples; both sizes are padded."""
    seeds = np.zeros((4, bucket(len(request.prompts))), np.int32)
    for i, sampling in enumerate(request.samplings):
        seeds[:, i] = sampling.seed, *request.key_numbers(i)
    max_samples = max((sampling.n for sampling in request.samplings), default=1)
    return np.asarray(_sample_keys(*seeds, purpose, power_of_two(max_samples)))


@partial(jax.jit, static_argnames=("purpose", "samples"))
def _sample_keys(
    seed: jax.Array, step: jax.Array, prompt: jax.Array, first: jax.Array, purpose: rng.Purpose, samples: int
) -> jax.Array:
    """Derive the random keys of `samples` successive samples of each of X prompts; return [X,samples,2] uint32.

    seed [X], step [X], prompt [X]: numbers that the prompt's keys derive from; first [X]: index of its first sample.
    """

    def sample_key(seed: jax.Array, step: jax.Array, prompt: jax.Array, sample: jax.Array) -> jax.Array:
        return jax.random.key_data(rng.fold(rng.base_key(seed, purpose), step, prompt, sample))

    over_samples = jax.vmap(sample_key, in_axes=(None, None, None, 0))
    over_prompts = jax.vmap(over_samples)
    return over_prompts(seed, step, prompt, first[:, None] + jnp.arange(samples))
