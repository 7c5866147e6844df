"""The scheduler: a pure function from the state of a call and the last log to the next chunk's plan.

It works with numbers alone, without JAX and without the model: `plan` decides, and `CallRunner.execute` does the work.
The host is one chunk behind the device, so the state of a slot is older than the device's; `known_from` is the first
chunk whose log includes the host's last change of a slot.

Where KV blocks are too few for all slots the host reads the last log first. Then the oldest completions keep their
slots. The others are preempted: they give their blocks back, and later are computed again from their tokens (vLLM's
recomputation, Kwon et al. 2023, arXiv:2309.06180). Completions that an earlier call began are resumed in the same way.
All decisions follow from the call alone, never from time.
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
    """A completion whose prompt is in a prompt slot: the sample of a prompt, and its index in the slot's group."""

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
    """Prompts that are prefilled together, and the blocks (block, cached block) that are cached afterwards."""

    prompts: Sequence[Prefill]
    saved: Sequence[tuple[int, int]]


class Limits(NamedTuple):
    """Bounds of a call: decode slots, steps per chunk, tokens of a longest completion, and completions per group.

    `fits_prefill` returns whether a number of prompts, with a number of tokens in the longest, are prefilled together.
    """

    slots: int
    chunk_steps: int
    longest: int
    group_size: int
    fits_prefill: Callable[[int, int], bool]


@dataclass
class ChunkLog:
    """Events since the last plan.

    From the chunk that was read (number 0: none was): the number of the next completion to be `taken` from the ring,
    `lengths` [N] of the slots, the slot of each completion with tokens in it (`written`), and how many turns ended.
    From environments and the caller: completions that are `finished`, in order; number of tokens to append by
    completion (`observed`); prompts that are `cancelled`.
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
    """The state of a call between two plans, which change none of it; only new weights empty its prefix cache.

    waiting: prompts to be prefilled, in order; prompt_blocks: the KV blocks of each prompt slot that is taken;
    completions: those of the prompts in these slots, by number, in the order of age; running: the decode slots of those
    that have one; slot_length [N]: their tokens, of all turns, as far as logs were read; preempted: the number of
    tokens of those that lost their slot; appends: running ones that wait for tokens.
    Completions that an earlier call began have the first numbers, up to `carried` so far, and start as preempted ones.
    The others are numbered as they enter the ring: `queued` is the next number, and those from `taken` on await a slot,
    as far as is known.
    num_chunks were launched and num_read of them read; one that is launched and not read is in flight.
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

    freed: prompt slots whose completions are all finished; released: decode slots of finished or cancelled completions.
    dropped: cancelled completions, and num_dropped of prompts that were not prefilled; truncated: cancelled ones in the
    ring, which end with their first token.
    prefills: prompts in batches; queued: completions that enter the ring; carried: completions of an earlier call.
    preempted: decode slots; resumed: completions; appended: completions to append tokens to.
    launches: whether a chunk of decode steps follows, with the KV blocks of `after`; it takes completions before number
    `tail` from the ring. Otherwise the last log is read first, or no completion is left.
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


def plan(state: SchedulerState, log: ChunkLog) -> ChunkPlan:
    """Return the next chunk's plan, after the events of a log; neither argument is changed."""
    state = state.copy()
    chunk = ChunkPlan(state)
    _apply_log(chunk, log)
    if state.cancelled:
        if state.is_in_flight:  # the contents of slots are known when it is read
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


def split_groups(request: GenerationRequest, served: Collection[int], size: int) -> list[RequestGroup]:
    """Return the groups of a call's prompts, the next call's last.

    Prompts with the same prefix follow each other, so that it is cached when the next one needs it.
    """
    order = sorted(served, key=lambda i: (request.is_ahead(i), request.prompts[i].token_ids))
    return [
        RequestGroup(i, first, min(first + size, request.samplings[i].n))
        for i in order
        for first in range(0, request.samplings[i].n, size)
    ]


def initial_state(
    request: GenerationRequest,
    groups: Sequence[RequestGroup],
    limits: Limits,
    prefixes: PrefixCache,
    blocks: BlockTable,
    prompt_slots: int,
) -> SchedulerState:
    """Return the state of a call that has launched nothing; groups that an earlier call began come first."""
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


def _apply_log(chunk: ChunkPlan, log: ChunkLog) -> None:
    """Apply the events of a log to the state."""
    state = chunk.after
    if log.number:
        state.num_read, state.taken = log.number, log.taken
        state.slot_length = np.where(log.number >= state.known_from, log.lengths, state.slot_length)
        state.recently_ended = max(log.num_ended, state.recently_ended // 2, 1)
    state.running |= log.written
    ended = [state.running.pop(number) for number in log.finished]
    if state.request.turns is not None:
        chunk.released += ended
    _finish(chunk, log.finished)
    for number, observed in log.observed.items():
        slot = state.running[number]
        _set_length(state, [slot], state.slot_length[slot] + observed)
    state.appends += log.observed
    state.cancelled |= log.cancelled


def _set_length(state: SchedulerState, slots: list[int], num_tokens: int) -> None:
    """Note a length that the host gives to slots; logs have it from the next chunk on."""
    state.slot_length[slots], state.known_from[slots] = num_tokens, state.num_chunks + 1


def _finish(chunk: ChunkPlan, numbers: Sequence[int]) -> None:
    """Drop completions, in order; the last one of a prompt frees the prompt's slot."""
    state = chunk.after
    ended = [state.completions.pop(number).prompt_slot for number in numbers]
    used = {completion.prompt_slot for completion in state.completions.values()} if ended else set()
    # In the order in which their last completions ended.
    for slot in reversed([slot for slot in dict.fromkeys(reversed(ended)) if slot not in used]):
        state.prefixes.free(state.prompt_blocks.pop(slot))
        state.free_prompt_slots.append(slot)
        chunk.freed.append(slot)


def _drop_cancelled(chunk: ChunkPlan) -> None:
    """Free the slots of cancelled prompts, whose completions in the ring end with their first token."""
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
    """Prefill prompts until as many completions await a slot as may end while two chunks run."""
    state = chunk.after
    target = min(max(3 * state.recently_ended, state.limits.group_size), 2 * state.limits.slots)
    while batch := _next_batch(state, state.taken + target - state.queued):
        saved: list[tuple[int, int]] = []
        for prompt_slot, group, allocation in batch:
            saved += state.prefixes.insert(state.request.prompts[group.prompt].token_ids, allocation.blocks)
            state.prompt_blocks[prompt_slot] = allocation.blocks
            _enqueue(chunk, prompt_slot, group)
        chunk.prefills.append(PrefillBatch(batch, saved))


def _next_batch(state: SchedulerState, completions: int) -> list[Prefill]:
    """Allocate prompt slots and blocks for the next prompts, up to `completions` of them and one prefill.

    A prompt that lacks the same block as one of this batch waits until it is cached, and one that finds too few
    free blocks until others are finished.
    """
    batch: list[Prefill] = []
    pending_blocks: set[object] = set()
    longest = 0
    while state.waiting and state.free_prompt_slots and completions > 0:
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
        completions -= len(group.samples)
    return batch


def _enqueue(chunk: ChunkPlan, prompt_slot: int, group: RequestGroup) -> None:
    """Put the completions of a group into the ring; those that an earlier call began wait as preempted ones do."""
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


# --- room


def _reserve_blocks(chunk: ChunkPlan) -> int | None:
    """Reserve KV blocks for the next chunk -> how many completions it may take from the ring.

    None if they are too few and a chunk is in flight.
    """
    state = chunk.after
    # For all tokens that slots may write until the host looks again.
    reach = np.minimum(state.slot_length + 2 * state.limits.chunk_steps, state.limits.longest)
    if not state.preempted and state.blocks.reserve(reach):
        return state.queued - state.taken
    return None if state.is_in_flight else _preempt_or_resume(chunk)


def _preempt_or_resume(chunk: ChunkPlan) -> int:
    """Decide which completions have slots; no chunk runs meanwhile, so all lengths are known.

    Those that are in slots stay, the oldest first, as long as there are blocks for a chunk of steps; the others
    are preempted. If all stay, preempted ones are resumed, and after these new ones taken, while there are blocks
    for two chunks of steps: so that they are not preempted at once. Returns how many new ones may be taken.
    """
    state, table, limits = chunk.after, chunk.after.blocks, chunk.after.limits

    def reach(lengths: Sequence[int] | np.ndarray, chunks: int) -> np.ndarray:
        return np.minimum(np.array(lengths, np.int64) + chunks * limits.chunk_steps, limits.longest)

    running, waiting = sorted(state.running), sorted(state.preempted)
    free = sorted(set(range(limits.slots)) - set(state.running.values()))
    lengths = state.slot_length[[state.running[number] for number in running]]
    num_blocks = table.pool_sizes[-1][0]
    num_kept = int((table.need(reach(lengths, 1)).cumsum() <= num_blocks).sum())
    spare = num_blocks - int(table.need(reach(lengths, 2)).sum())
    for number in running[num_kept:]:
        slot = state.running.pop(number)
        state.preempted[number] = int(state.slot_length[slot])
        chunk.preempted.append(slot)
    state.appends = [number for number in state.appends if number in state.running]
    if num_kept == len(running):
        need = table.need(reach([state.preempted[number] for number in waiting[: len(free)]], 2))
        chunk.resumed = waiting[: int((need.cumsum() <= spare).sum())]
        spare -= int(need[: len(chunk.resumed)].sum())
    for number, slot in zip(chunk.resumed, free, strict=False):
        state.running[number] = slot
        _set_length(state, [slot], state.preempted.pop(number))
    state.appends += chunk.resumed
    new_length = reach([0], 2)
    may_take = 0 if state.preempted else max(spare, 0) // int(table.need(new_length)[0])
    tokens = np.zeros(limits.slots, np.int64)
    for number, slot in state.running.items():
        tokens[slot] = reach(state.slot_length[[slot]], 2 if number in chunk.resumed else 1)[0]
    tokens[free[len(chunk.resumed) :][:may_take]] = new_length[0]
    has_room = table.reserve(tokens)
    assert has_room, "completions with slots were counted to fit"
    return may_take
