"""The queue of prompts: which are prefilled when, into which KV blocks, and the ring of completions to decode."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.batch import bucket, pad_tokens
from jaxrl_sql.models.ops import rng
from jaxrl_sql.models.paged import BlockMap
from jaxrl_sql.rollout.decode import (
    DecodeRequest,
    PrefillChunk,
    PromptSlots,
    RequestRing,
    empty_prompt_states,
    empty_request,
    mark_seen,
)
from jaxrl_sql.rollout.engine_config import power_of_two
from jaxrl_sql.rollout.kv_blocks import Allocation, block_owner
from jaxrl_sql.rollout.model_runner import ModelRunner
from jaxrl_sql.rollout.sampling import UNFINISHED, GenerationRequest, Sample
from jaxrl_sql.rollout.stats import RolloutStats

NONE = np.iinfo(np.int32).max


class RequestGroup(NamedTuple):
    """A prompt and those of its samples, first to last, that read one copy of it."""

    prompt: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Return how many samples there are."""
        return self.last - self.first

    @property
    def samples(self) -> range:
        """Return their numbers."""
        return range(self.first, self.last)


@dataclass
class PromptSequence:
    """A prompt in a prompt slot: the group that reads it, its KV blocks, and how many completions are unfinished."""

    group: RequestGroup
    allocation: Allocation
    unfinished: int


class QueuedCompletion(NamedTuple):
    """A completion that was queued for a slot: the sample of a prompt, and the prompt slot that it reads."""

    prompt: int
    sample: int
    prompt_slot: int


_Batch = list[tuple[int, RequestGroup, Allocation]]


class PrefillQueue:
    """The prompts of a call, from the queue to their prompt slots, and their completions, from there into the ring.

    Completions are numbered in the order in which they are queued, after those that an earlier call began (`begun`,
    which the host puts into slots). The ring holds those that await a decode slot, in this order; the device takes them
    so and says how many it took (`taken`).
    """

    def __init__(
        self,
        runner: ModelRunner,
        request: GenerationRequest,
        served: Collection[int],
        start_states: Mapping[tuple[str, ...], int],
        stats: RolloutStats,
    ) -> None:
        self.runner, self.config, self.params = runner, runner.config, runner.params
        self.weights = runner.weights()
        self.request, self.start_states, self.stats = request, start_states, stats
        prompts, samplings = request.prompts, request.samplings
        n, most = self.config.max_num_seqs, max((samplings[i].n for i in served), default=1)
        size = self.config.group_size(most)
        # Prompts with the same prefix stand together, so that it is cached when the next one needs it.
        order = sorted(served, key=lambda i: (request.is_ahead(i), prompts[i].token_ids))
        cut = [
            RequestGroup(i, first, min(first + size, samplings[i].n))
            for i in order
            for first in range(0, samplings[i].n, size)
        ]
        groups = [group for group in cut if any(self._is_wanted(group.prompt, g) for g in group.samples)]
        # What an earlier call began goes on first.
        groups.sort(key=lambda group: not any(request.begun_sample(group.prompt, g) for g in group.samples))
        self.groups = deque(groups)
        longest = max(self.config.max_prompt_bucket, *(len(prompts[i].token_ids) for i in served), 1)
        completion = max((samplings[i].longest for i in served), default=1)
        self.sizes = runner.at_least_open(self.config.sizes(len(cut), most, longest, completion))
        num_slots, self.columns = self.sizes.prompt_slots, self.sizes.prompt_columns
        self.sequences: dict[int, PromptSequence] = {}
        self.free_slots = list(range(num_slots - 1, -1, -1))
        self.table = np.full((num_slots, self.columns), NONE, np.int32)
        self.lengths = np.zeros(num_slots, np.int32)
        self.completions: dict[int, QueuedCompletion] = {}
        self.begun: dict[int, Sample] = {}
        self.num_begun = sum(
            request.begun_sample(group.prompt, g) is not None and self._is_wanted(group.prompt, g)
            for group in groups
            for g in group.samples
        )
        self.queued = 0
        # Enough for all completions that can be queued and are not known to have been taken.
        self.ring = empty_request(2 * n + size)
        self.taken = 0
        places = np.zeros((4, bucket(len(prompts))), np.int32)
        for i, sampling in enumerate(samplings):
            places[:, i] = sampling.seed, *request.key_place(i)
        most = max((sampling.n for sampling in samplings), default=1)
        self.keys = np.asarray(_sample_keys(*places, self.config.purpose, power_of_two(most)))
        self.levels = self.config.levels(self.sizes)
        runner.open_pools(self.sizes, self.levels[0][0])
        penalizes = any(samplings[i].repetition_penalty != 1 for i in served)
        self.hidden, self.seen = empty_prompt_states(runner.model.config, num_slots, runner.cache_dtype, penalizes)

    @property
    def num_waiting(self) -> int:
        """Return how many completions await a slot, as far as is known."""
        return self.queued - self.taken

    @property
    def uses_cache(self) -> bool:
        """Return whether prompts go through the prefix cache: not once the weights are newer than this call's."""
        return self.params is self.runner.params

    def prompt_slots(self) -> PromptSlots:
        """Return the prompts as the device needs them."""
        total = self.runner.prefix_cache.num_blocks
        table: Any = np.minimum(self.table, total)
        blocks = BlockMap(table, *block_owner(table, total, self.config.block_size))
        lengths: Any = self.lengths.copy()
        return PromptSlots(blocks, lengths, self.hidden, self.seen)

    def request_ring(self, may_take: int | None = None) -> RequestRing:
        """Return the ring as the device needs it, which takes no more than `may_take` of it (None: all)."""
        tail = self.queued if may_take is None else min(self.taken + may_take, self.queued)
        return RequestRing(jax.tree.map(np.copy, self.ring), np.int32(tail))

    def requests(self, numbers: Sequence[int], count: int) -> DecodeRequest:
        """Return the requests of some completions, filled up to `count` places."""
        found = empty_request(count)
        self._write(found, np.arange(len(numbers)), numbers)
        return found

    def finish(self, prompt_slot: int) -> None:
        """Note that a completion of a prompt is finished; the last one frees the prompt's slot."""
        sequence = self.sequences[prompt_slot]
        sequence.unfinished -= 1
        if not sequence.unfinished:
            self._free(prompt_slot)

    def _free(self, prompt_slot: int) -> None:
        self.runner.prefix_cache.free(self.sequences.pop(prompt_slot).allocation.blocks)
        self.table[prompt_slot] = NONE
        self.free_slots.append(prompt_slot)

    def cancel(self, prompts: Collection[int]) -> int:
        """Drop what is not prefilled of some prompts, and return how many completions these are.

        What awaits a slot already ends with its first token.
        """
        dropped = [group for group in self.groups if group.prompt in prompts]
        self.groups = deque(group for group in self.groups if group.prompt not in prompts)
        for at in range(self.taken, self.queued):
            if self.completions[self.num_begun + at].prompt in prompts:
                self.ring.max_length[at % self.ring.completion.shape[0]] = 1
        return sum(group.size for group in dropped)

    def close(self) -> None:
        """Free all prompt slots."""
        for prompt_slot in list(self.sequences):
            self._free(prompt_slot)

    def admit(self, want: int) -> bool:
        """Prefill prompts until `want` completions await a slot; return whether there was any to prefill."""
        before = len(self.completions)
        while self.groups and self.free_slots and self.num_waiting < want:
            batch = self._next_batch(want - self.num_waiting)
            if not batch:
                break
            try:
                self._prefill(batch)
            except BaseException:
                # What counts as cached may not have been written.
                self.runner.prefix_cache.reset()
                for prompt_slot, _, allocation in batch:
                    if prompt_slot not in self.sequences:
                        self.runner.prefix_cache.free(allocation.blocks)
                raise
        return len(self.completions) > before

    def _next_batch(self, completions: int) -> _Batch:
        """Allocate prompt slots and blocks for the next prompts, as many as are wanted and prefilled at a time.

        A prompt that lacks the same block as one of this batch waits until it is cached, and one that finds too few
        free blocks until others are finished.
        """
        cache = self.runner.prefix_cache
        batch: _Batch = []
        coming: set[object] = set()
        longest = 0
        room = self.ring.completion.shape[0] - self.num_waiting
        while self.groups and self.free_slots and completions > 0:
            group = self.groups[0]
            ids = self.request.prompts[group.prompt].token_ids
            missing = cache.first_missing(ids) if self.uses_cache else None
            new = len(ids) - (cache.count_cached(ids) if self.uses_cache else 0)
            longest = max(longest, new)
            is_full = bool(batch) and not self.config.fits_prefill(len(batch) + 1, longest, self.config.block_size)
            if is_full or missing in coming or group.size > room:
                break
            allocation = cache.allocate(ids)
            if allocation is None:
                break
            if missing is not None:
                coming.add(missing)
            batch.append((self.free_slots.pop(), self.groups.popleft(), allocation))
            completions -= group.size
            room -= group.size
        return batch

    def _prefill(self, batch: _Batch) -> None:
        """Prefill what is not cached of a batch of prompts, in chunks of whole blocks, and queue their completions."""
        at_least = self.config.prefill_shape(1, 1)[0] * self.columns if self.config.max_prompt_bucket else 0
        self.runner.load_prefixes([pair for _, _, allocation in batch for pair in allocation.copies], at_least)
        self._run_chunks(batch)
        if self.seen is not None:
            self.seen = self._mark_seen(self.seen, batch)
        written: list[tuple[int, int]] = []
        for prompt_slot, group, allocation in batch:
            if self.uses_cache:
                ids = self.request.prompts[group.prompt].token_ids
                written.extend(self.runner.prefix_cache.insert(ids, allocation.blocks))
            wanted = sum(self._is_wanted(group.prompt, g) for g in group.samples)
            self.sequences[prompt_slot] = PromptSequence(group, allocation, wanted)
            self._enqueue(prompt_slot, group)
        self.runner.save_prefixes(written, at_least)

    def _run_chunks(self, batch: _Batch) -> None:
        """Write the blocks of a batch of prompts, from their cached tokens on, and keep their last states."""
        size = self.config.block_size
        prompts = [self.request.prompts[group.prompt].token_ids for _, group, _ in batch]
        new = [len(ids) - allocation.cached_tokens for ids, (_, _, allocation) in zip(prompts, batch, strict=True)]
        x, longest = self.config.prefill_shape(len(batch), max(new), size)
        start, length = np.zeros(x, np.int32), np.zeros(x, np.int32)
        table = np.full((x, self.columns), self.runner.prefix_cache.num_blocks, np.int32)
        for row, (prompt_slot, _, (blocks, cached_tokens, _)) in enumerate(batch):
            start[row], length[row] = cached_tokens, len(prompts[row])
            table[row, : len(blocks)] = blocks
            self.table[prompt_slot] = NONE
            self.table[prompt_slot, : len(blocks)] = blocks
            self.lengths[prompt_slot] = length[row]
            self.stats.prompt_tokens += int(length[row])
            self.stats.reused_tokens += cached_tokens
        width = -(-longest // size) * size
        while (start < length).any():
            count = np.clip(length - start, 0, width)
            ids = [ids[start[row] : start[row] + width] for row, ids in enumerate(prompts)]
            tokens, _ = pad_tokens([*ids, *[()] * (x - len(batch))], width)
            ends = np.full(x, len(self.lengths), np.int32)
            for row, (prompt_slot, _, _) in enumerate(batch):
                if start[row] < length[row] <= start[row] + width:
                    ends[row] = prompt_slot
            chunk = PrefillChunk(tokens, count, start, table, ends)
            has_past = bool(self.config.max_prompt_bucket or ((start > 0) & (count > 0)).any())
            self.hidden = self.runner.prefill(self.weights, self.hidden, chunk, has_past)
            self.stats.padded_tokens += tokens.size
            start = np.minimum(start + width, length)

    def _mark_seen(self, seen: jax.Array, batch: _Batch) -> jax.Array:
        """Mark the tokens of a batch of prompts, for repetition penalties."""
        x = self.config.prefill_shape(len(batch), 1)[0]
        slots = np.full(x, len(self.lengths), np.int32)
        slots[: len(batch)] = [prompt_slot for prompt_slot, _, _ in batch]
        ids = [self.request.prompts[group.prompt].token_ids for _, group, _ in batch]
        tokens, length = pad_tokens([*ids, *[()] * (x - len(ids))], self.columns * self.config.block_size)
        return mark_seen(seen, slots, tokens, length)

    def _enqueue(self, prompt_slot: int, group: RequestGroup) -> None:
        """Put the completions of a group into the ring, but those that an earlier call began into `begun`."""
        fresh = list[int]()
        for g in group.samples:
            begun = self.request.begun_sample(group.prompt, g)
            if begun is None:
                fresh.append(self.num_begun + self.queued + len(fresh))
                self.completions[fresh[-1]] = QueuedCompletion(group.prompt, g, prompt_slot)
            elif self._is_wanted(group.prompt, g):
                number = len(self.completions) - self.queued - len(fresh)
                self.completions[number] = QueuedCompletion(group.prompt, g, prompt_slot)
                self.begun[number] = begun
        if fresh:
            self._write(self.ring, (np.array(fresh) - self.num_begun) % self.ring.completion.shape[0], fresh)
        self.queued += len(fresh)

    def take_begun(self) -> dict[int, Sample]:
        """Return what goes on of an earlier call and has its prompt in a slot since this was last asked, by number."""
        begun, self.begun = self.begun, {}
        return begun

    def _is_wanted(self, prompt: int, sample: int) -> bool:
        """Return whether a sample is still to be made: an earlier call may have finished it."""
        begun = self.request.begun_sample(prompt, sample)
        return begun is None or begun.finish_reason == UNFINISHED

    def _write(self, requests: Any, place: np.ndarray, numbers: Sequence[int]) -> None:
        """Write the requests of completions into arrays, at places [X]."""
        queued = [self.completions[number] for number in numbers]
        samplings = [self.request.samplings[one.prompt] for one in queued]
        requests.completion[place] = numbers
        requests.prompt_slot[place] = [one.prompt_slot for one in queued]
        requests.group_index[place] = [one.sample - self.sequences[one.prompt_slot].group.first for one in queued]
        requests.max_length[place] = [sampling.max_new_tokens for sampling in samplings]
        requests.start_state[place] = [self.start_states[sampling.stops] for sampling in samplings]
        requests.pauses[place] = self.request.turns is not None
        requests.key[place] = self.keys[[one.prompt for one in queued], [one.sample for one in queued]]
        for name, values in requests.sampling._asdict().items():
            values[place] = [getattr(sampling, name) for sampling in samplings]


@partial(jax.jit, static_argnames=("purpose", "samples"))
def _sample_keys(
    seed: jax.Array, step: jax.Array, prompt: jax.Array, first: jax.Array, purpose: rng.Purpose, samples: int
) -> jax.Array:
    """Derive the keys of so many samples, from number `first` [X] on, of prompts [X] with seeds [X] at steps [X].

    Returns [X,samples,2] uint32.
    """

    def one(seed: jax.Array, step: jax.Array, prompt: jax.Array, sample: jax.Array) -> jax.Array:
        return jax.random.key_data(rng.fold(rng.base_key(seed, purpose), step, prompt, sample))

    over_samples = jax.vmap(one, in_axes=(None, None, None, 0))
    over_prompts = jax.vmap(over_samples)
    return over_prompts(seed, step, prompt, first[:, None] + jnp.arange(samples))
