"""The scheduler: a pure function from the state of a call and the last events to the next chunk's plan.

A chunk is a number of decode steps that the device runs without the host. Completions of prefilled prompts wait in a
ring buffer, from which the device assigns them to decode slots. A prompt slot holds a prefilled prompt, and a group is
the samples that share it. KV blocks are pieces of the KV cache with a fixed number of tokens. The completions of a call
are numbered in the order of their prefill, so a smaller number is an older completion.

The scheduler works with numbers alone, without JAX and without the model: `plan` decides, and `CallRunner.execute` does
the work. The host is one chunk behind the device, so it knows an earlier state of each slot than the device has.

If there are too few KV blocks for all slots, the host reads the last log before it launches a chunk. Then the oldest
completions keep their slots. The others are preempted: they lose their blocks, and later are computed again from their
tokens (vLLM's recomputation, Kwon et al. 2023, arXiv:2309.06180). Completions that an earlier call began ("carried")
are resumed in the same way. All decisions follow from the call alone, never from time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from jaxrl_sql.rollout.kv_blocks import Allocation, BlockTable, PrefixCache
from jaxrl_sql.rollout.sampling import GenerationRequest, RequestGroup


class PrefilledCompletion(NamedTuple):
    """A completion whose prompt is in a prompt slot.

    prompt: index in the request; sample: index among the prompt's samples; group_index: index in the slot's group.
    """

    prompt: int
    sample: int
    prompt_slot: int
    group_index: int


class Prefill(NamedTuple):
    """A prompt to be prefilled: its prompt slot, the group that reads it, and its KV blocks."""

    prompt_slot: int
    group: RequestGroup
    allocation: Allocation


class PrefillBatch(NamedTuple):
    """Prompts that are prefilled together; afterwards `saved` blocks (block, cached block) are copied to the cache."""

    prompts: Sequence[Prefill]
    saved: Sequence[tuple[int, int]]


class Limits(NamedTuple):
    """Bounds of a call.

    slots: decode slots, N.
    chunk_steps: decode steps per chunk.
    longest: tokens of the longest completion, over all turns.
    group_size: completions that share a prompt slot.
    fits_prefill: returns whether (number of prompts, tokens of the longest) fit into one prefill.
    """

    slots: int
    chunk_steps: int
    longest: int
    group_size: int
    fits_prefill: Callable[[int, int], bool]


@dataclass
class ChunkEvents:
    """Events since the last plan.

    From the log of the last chunk that was read:
    number: number of the chunk; 0: no chunk was read.
    taken: number of the next completion that a slot takes from the ring.
    lengths [N]: tokens of the completion in each slot.
    written: slot by completion, for completions with tokens in the log.
    num_ended: turns that ended in the chunk.

    From environments and the caller:
    finished: finished completions, in order.
    observed: number of tokens of the observation to append, by completion.
    cancelled: prompts to cancel.
    """

    number: int = 0
    taken: int = 0
    lengths: Any = 0
    written: dict[int, int] = field(default_factory=dict)
    num_ended: int = 0
    finished: list[int] = field(default_factory=list)
    observed: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)


@dataclass
class SchedulerState:
    """The state of a call between two plans.

    `plan` copies it. Only new weights change it in place: they empty its prefix cache.

    waiting: groups whose prompts are to be prefilled, in order.
    prefixes, blocks: allocation of the blocks of prompts and of completions.
    free_prompt_slots: prompt slots without a prompt; prompt_blocks: KV blocks of each other prompt slot.
    slot_length [N]: tokens in each decode slot, of all turns, as far as logs were read.
    known_from [N]: number of the first chunk whose log includes the host's last change of the slot's length.
    recently_ended: most turns that ended in a recent chunk; older chunks count less.
    queued: number of the next completion to enter the ring.
    taken: number of the next completion to leave the ring, as far as logs were read.
    carried: number of carried completions so far. These have the first numbers, and start as preempted completions.
    completions: completions of the prompts in prompt slots, by number.
    running: decode slot by completion.
    preempted: number of tokens by completion, for completions that lost their slot.
    appends: completions in slots to which tokens are to be appended before the next decode step.
    cancelled: prompts whose samples are still to be dropped.
    num_chunks: launched chunks; num_read: chunks whose log was read. A chunk that was not read is in flight.
    """

    request: GenerationRequest
    limits: Limits
    waiting: list[RequestGroup]
    prefixes: PrefixCache
    blocks: BlockTable
    free_prompt_slots: list[int]
    slot_length: np.ndarray
    known_from: np.ndarray
    recently_ended: int
    queued: int
    taken: int
    carried: int = 0
    prompt_blocks: dict[int, Sequence[int]] = field(default_factory=dict)
    completions: dict[int, PrefilledCompletion] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    preempted: dict[int, int] = field(default_factory=dict)
    appends: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    num_chunks: int = 0
    num_read: int = 0

    @property
    def is_in_flight(self) -> bool:
        """Return whether a chunk is launched whose log is still to be read."""
        return self.num_read < self.num_chunks

    def copy(self) -> SchedulerState:
        """Return a copy that can be changed independently."""
        values = vars(self).items()
        return replace(self, **{name: copy.copy(value) for name, value in values if not isinstance(value, tuple | int)})


@dataclass
class ChunkPlan:
    """The device's next work, in this order, and the state `after` it.

    freed: prompt slots whose completions are all finished.
    released: decode slots of finished or cancelled completions.
    dropped: cancelled completions with tokens; num_dropped: cancelled samples whose prompts were not prefilled.
    truncated: cancelled completions in the ring, which end with their first token.
    prefills: prompts in batches.
    queued: completions that enter the ring.
    carried: completions of an earlier call that are now known, and wait as preempted completions.
    preempted: decode slots whose completions lose them.
    resumed: preempted completions that get a slot.
    appended: completions to append tokens to.
    launches: whether a chunk of decode steps follows, with the KV blocks of `after`. Otherwise the last log must be
        read first, or no completion is left.
    tail: the chunk takes completions with smaller numbers from the ring.
    """

    after: SchedulerState
    freed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    num_dropped: int = 0
    truncated: list[int] = field(default_factory=list)
    prefills: list[PrefillBatch] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)
    carried: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    appended: list[int] = field(default_factory=list)
    launches: bool = False
    tail: int = 0


def plan(state: SchedulerState, events: ChunkEvents) -> ChunkPlan:
    """Return the next chunk's plan, after these events; neither argument is changed."""
    state = state.copy()
    chunk = ChunkPlan(state)
    _apply_events(chunk, events)
    if state.cancelled:
        if state.is_in_flight:  # only its log shows which slots the cancelled completions have
            return chunk
        _drop_cancelled(chunk)
    _admit(chunk)
    may_take = _reserve_blocks(chunk) if state.completions else None
    if may_take is not None:
        chunk.appended, state.appends = state.appends, []
        chunk.launches, chunk.tail = True, min(state.taken + may_take, state.queued)
        state.num_chunks += 1
    return chunk


# --- the state at the start of a call


def split_groups(request: GenerationRequest, valid: Collection[int], group_size: int) -> list[RequestGroup]:
    """Return groups of at most `group_size` samples of the valid prompts; prompts of the next call are last.

    Prompts with a common prefix follow each other, so that the prefix is cached when the second prompt needs it.
    """
    order = sorted(valid, key=lambda i: (request.is_ahead(i), request.prompts[i].token_ids))
    return [
        RequestGroup(i, first, min(first + group_size, request.samplings[i].n))
        for i in order
        for first in range(0, request.samplings[i].n, group_size)
    ]


def initial_state(
    request: GenerationRequest,
    groups: Sequence[RequestGroup],
    limits: Limits,
    prefixes: PrefixCache,
    blocks: BlockTable,
    prompt_slots: int,
) -> SchedulerState:
    """Return the state of a call before its first chunk; groups with carried samples are prefilled first.

    `recently_ended` starts at a value with which `_admit` fills all slots.
    """
    waiting = [group for group in groups if request.unfinished_samples(group)]
    waiting.sort(key=lambda group: not any(request.carried_sample(group.prompt, g) for g in group.samples))
    samples = [(group.prompt, g) for group in waiting for g in request.unfinished_samples(group)]
    num_carried = sum(request.carried_sample(*sample) is not None for sample in samples)
    n = limits.slots
    return SchedulerState(
        request, limits, waiting, prefixes, blocks,
        free_prompt_slots=list(range(prompt_slots - 1, -1, -1)),
        slot_length=np.zeros(n, np.int64), known_from=np.zeros(n, np.int64), recently_ended=n // 3 + 1,
        queued=num_carried, taken=num_carried,
    )  # fmt: skip


# --- events


def _apply_events(chunk: ChunkPlan, events: ChunkEvents) -> None:
    """Apply the events to the state."""
    state = chunk.after
    if events.number:
        state.num_read, state.taken = events.number, events.taken
        state.slot_length = np.where(events.number >= state.known_from, events.lengths, state.slot_length)
        state.recently_ended = max(events.num_ended, state.recently_ended // 2, 1)
    state.running |= events.written
    freed_slots = [state.running.pop(number) for number in events.finished]
    # Single-turn completions free their slots on the device. Multi-turn completions pause there until the host acts.
    if state.request.turns is not None:
        chunk.released += freed_slots
    _finish(chunk, events.finished)
    for number, num_tokens in events.observed.items():
        slot = state.running[number]
        _set_length(state, [slot], state.slot_length[slot] + num_tokens)
    state.appends += events.observed
    state.cancelled |= events.cancelled


def _set_length(state: SchedulerState, slots: list[int], num_tokens: int) -> None:
    """Record a length that the host sets in slots; logs include it from the next chunk on."""
    state.slot_length[slots], state.known_from[slots] = num_tokens, state.num_chunks + 1


def _finish(chunk: ChunkPlan, numbers: Sequence[int]) -> None:
    """Remove completions, in order; the last completion of a prompt slot frees the prompt slot."""
    state = chunk.after
    prompt_slots = [state.completions.pop(number).prompt_slot for number in numbers]
    used = {completion.prompt_slot for completion in state.completions.values()} if prompt_slots else set()
    # Free prompt slots in the order in which their last completions ended.
    for slot in reversed([slot for slot in dict.fromkeys(reversed(prompt_slots)) if slot not in used]):
        state.prefixes.free(state.prompt_blocks.pop(slot))
        state.free_prompt_slots.append(slot)
        chunk.freed.append(slot)


def _drop_cancelled(chunk: ChunkPlan) -> None:
    """Free the slots of cancelled prompts; their completions in the ring will end with their first token."""
    state = chunk.after
    prompts, state.cancelled = state.cancelled, set()
    chunk.dropped = [n for n in (*state.running, *state.preempted) if state.completions[n].prompt in prompts]
    chunk.released += [state.running[number] for number in chunk.dropped if number in state.running]
    _set_length(state, chunk.released, 0)
    for number in chunk.dropped:
        state.running.pop(number, None)
        state.preempted.pop(number, None)
    _finish(chunk, chunk.dropped)
    state.appends = [number for number in state.appends if number in state.running]
    unfinished = state.request.unfinished_samples
    chunk.num_dropped = sum(len(unfinished(group)) for group in state.waiting if group.prompt in prompts)
    state.waiting = [group for group in state.waiting if group.prompt not in prompts]
    chunk.truncated = [n for n in range(state.taken, state.queued) if state.completions[n].prompt in prompts]


# --- admission


def _admit(chunk: ChunkPlan) -> None:
    """Prefill prompts until the ring has as many completions as may end before the next prefill.

    The host is one chunk behind, so two chunks may run before it. The target counts three, as a margin.
    """
    state = chunk.after
    target = min(max(3 * state.recently_ended, state.limits.group_size), 2 * state.limits.slots)
    while batch := _next_batch(state, state.taken + target - state.queued):
        saved: list[tuple[int, int]] = []
        for prompt_slot, group, allocation in batch:
            saved += state.prefixes.insert(state.request.prompts[group.prompt].token_ids, allocation.blocks)
            state.prompt_blocks[prompt_slot] = allocation.blocks
            _enqueue(chunk, prompt_slot, group)
        chunk.prefills.append(PrefillBatch(batch, saved))


def _next_batch(state: SchedulerState, num_completions: int) -> list[Prefill]:
    """Allocate prompt slots and blocks for the next prompts, until they have `num_completions` or fill one prefill.

    If two prompts lack the same prefix block, the second waits for a later batch, when the block is cached. A prompt
    also waits if too few blocks are free.
    """
    batch: list[Prefill] = []
    pending_blocks: set[object] = set()
    longest = 0
    while state.waiting and state.free_prompt_slots and num_completions > 0:
        group = state.waiting[0]
        ids = state.request.prompts[group.prompt].token_ids
        cached_tokens, missing = state.prefixes.lookup(ids)
        longest = max(longest, len(ids) - cached_tokens)
        is_full = bool(batch) and not state.limits.fits_prefill(len(batch) + 1, longest)
        if is_full or missing in pending_blocks:
            break
        allocation = state.prefixes.allocate(ids)
        if allocation is None:
            break
        if missing is not None:
            pending_blocks.add(missing)
        batch.append(Prefill(state.free_prompt_slots.pop(), state.waiting.pop(0), allocation))
        num_completions -= len(group.samples)
    return batch


def _enqueue(chunk: ChunkPlan, prompt_slot: int, group: RequestGroup) -> None:
    """Put the completions of a group into the ring; carried completions wait as preempted completions instead."""
    state = chunk.after
    for g in state.request.unfinished_samples(group):
        carried = state.request.carried_sample(group.prompt, g)
        if carried is None:
            number = state.queued
            state.queued += 1
            chunk.queued.append(number)
        else:
            number = state.carried
            state.carried += 1
            chunk.carried.append(number)
            state.preempted[number] = len(carried.token_ids)
        state.completions[number] = PrefilledCompletion(group.prompt, g, prompt_slot, g - group.first)


# --- KV blocks of completions


def _reserve_blocks(chunk: ChunkPlan) -> int | None:
    """Reserve KV blocks for the next chunk and return how many completions it may take from the ring.

    Returns None if the blocks are too few and a chunk is in flight.
    """
    state = chunk.after
    # The known lengths may lack the chunk in flight, so slots may reach these lengths in it and in the next chunk.
    max_lengths = np.minimum(state.slot_length + 2 * state.limits.chunk_steps, state.limits.longest)
    if not state.preempted and state.blocks.reserve(max_lengths):
        return state.queued - state.taken
    return None if state.is_in_flight else _preempt_or_resume(chunk)


def _preempt_or_resume(chunk: ChunkPlan) -> int:
    """Decide which completions have slots, and return how many new completions the chunk may take from the ring.

    No chunk is in flight, so all lengths are known. First, the oldest completions keep their slots, as long as there
    are blocks for a chunk of steps. The others are preempted. If all keep their slots, preempted completions are
    resumed while there are blocks for two chunks of steps, so that they are not preempted again at once. If all are
    resumed, new completions are taken under the same condition.
    """
    state, table, limits = chunk.after, chunk.after.blocks, chunk.after.limits

    def max_lengths(lengths: Sequence[int] | np.ndarray, chunks: int) -> np.ndarray:
        """Return the lengths that completions can reach in this number of chunks."""
        return np.minimum(np.array(lengths, np.int64) + chunks * limits.chunk_steps, limits.longest)

    running, waiting = sorted(state.running), sorted(state.preempted)
    free_slots = sorted(set(range(limits.slots)) - set(state.running.values()))
    lengths = state.slot_length[[state.running[number] for number in running]]
    num_blocks = table.pool_sizes[-1][0]
    num_kept = int((table.num_needed(max_lengths(lengths, 1)).cumsum() <= num_blocks).sum())
    spare_blocks = num_blocks - int(table.num_needed(max_lengths(lengths, 2)).sum())
    for number in running[num_kept:]:
        slot = state.running.pop(number)
        state.preempted[number] = int(state.slot_length[slot])
        chunk.preempted.append(slot)
    state.appends = [number for number in state.appends if number in state.running]
    if num_kept == len(running):
        needed = table.num_needed(max_lengths([state.preempted[number] for number in waiting[: len(free_slots)]], 2))
        chunk.resumed = waiting[: int((needed.cumsum() <= spare_blocks).sum())]
        spare_blocks -= int(needed[: len(chunk.resumed)].sum())
    for number, slot in zip(chunk.resumed, free_slots, strict=False):
        state.running[number] = slot
        _set_length(state, [slot], state.preempted.pop(number))
    state.appends += chunk.resumed
    new_length = max_lengths([0], 2)
    may_take = 0 if state.preempted else max(spare_blocks, 0) // int(table.num_needed(new_length)[0])
    reserved_tokens = np.zeros(limits.slots, np.int64)
    for number, slot in state.running.items():
        reserved_tokens[slot] = max_lengths(state.slot_length[[slot]], 2 if number in chunk.resumed else 1)[0]
    reserved_tokens[free_slots[len(chunk.resumed) :][:may_take]] = new_length[0]
    has_room = table.reserve(reserved_tokens)
    assert has_room, "the blocks of these completions were counted above, so they fit"
    return may_take
