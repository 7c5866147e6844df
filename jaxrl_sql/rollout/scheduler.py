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
import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jaxrl_sql.rollout.kv_blocks import Allocation, BlockTable, PrefixCache
from jaxrl_sql.rollout.sampling import UNFINISHED, GenerationRequest

PREEMPTED = -1
"""The slot of a completion that has none."""


class RequestGroup(NamedTuple):
    """A prompt and those of its samples, first to last, that read one copy of it."""

    prompt: int
    first: int
    last: int

    @property
    def samples(self) -> range:
        """Return their numbers."""
        return range(self.first, self.last)

    @property
    def size(self) -> int:
        """Return how many samples there are."""
        return self.last - self.first


class PromptSequence(NamedTuple):
    """A prompt in a prompt slot: the group that reads it, its KV blocks, and how many completions are unfinished."""

    group: RequestGroup
    blocks: Sequence[int]
    unfinished: int


class QueuedCompletion(NamedTuple):
    """A completion whose prompt is in a prompt slot: the sample of a prompt, and its place in the slot's group."""

    prompt: int
    sample: int
    prompt_slot: int
    group_index: int


class RunningCompletion(NamedTuple):
    """A completion that has tokens, as far as logs were read: its slot (or PREEMPTED) and its tokens of all turns."""

    slot: int
    tokens: int


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

    `fits_prefill` returns whether so many prompts, the longest of so many tokens, are prefilled together.
    """

    slots: int
    chunk_steps: int
    longest: int
    group_size: int
    fits_prefill: Callable[[int, int], bool]

    @property
    def ring(self) -> int:
        """Return the places of the ring: enough for all completions that are queued and not known to have a slot."""
        return 2 * self.slots + self.group_size


@dataclass
class ChunkLog:
    """Events since the last plan.

    From the chunk that was read (number 0: none was): completions `taken` from the ring so far, `lengths` [N] of the
    slots, slot and number of tokens `written` by completion, and how many turns ended. From environments and the
    caller: completions that are `finished`, in order; tokens to append by completion (`observed`); prompts that are
    `cancelled`. `uses_cache`: the weights of the call are still the engine's, so that its prefix cache is valid.
    """

    number: int = 0
    taken: int = 0
    lengths: Any = 0
    written: dict[int, RunningCompletion] = field(default_factory=dict)
    num_ended: int = 0
    finished: list[int] = field(default_factory=list)
    observed: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    uses_cache: bool = True


@dataclass
class SchedulerState:
    """The state of a call between two plans; nothing changes one.

    groups: prompts to be prefilled, in order; sequences: those that hold a prompt slot; completions: of these, by
    number, in the order of age; running: those with tokens; appends: those that wait for tokens to be appended.
    num_begun: completions that an earlier call began, numbered first, of which `resumable` have their prompt in a slot;
    queued: completions that were put into the ring so far, of which `taken` are known to have a slot.
    num_chunks were launched and num_read of them read; one that is launched and not read is in flight.
    """

    request: GenerationRequest
    limits: Limits
    groups: list[RequestGroup]
    prefixes: PrefixCache
    blocks: BlockTable
    free_prompt_slots: list[int]
    num_begun: int
    slot_length: np.ndarray
    known_from: np.ndarray
    recently_ended: int
    sequences: dict[int, PromptSequence] = field(default_factory=dict)
    completions: dict[int, QueuedCompletion] = field(default_factory=dict)
    running: dict[int, RunningCompletion] = field(default_factory=dict)
    appends: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    resumable: int = 0
    queued: int = 0
    taken: int = 0
    num_chunks: int = 0
    num_read: int = 0

    @property
    def is_in_flight(self) -> bool:
        """Return whether a chunk is launched whose log is still to be read."""
        return self.num_read < self.num_chunks

    @property
    def num_waiting(self) -> int:
        """Return how many completions await a slot, as far as is known."""
        return self.queued - self.taken

    def preempted(self) -> list[int]:
        """Return the completions with tokens and without a slot, the oldest first."""
        return sorted(number for number, completion in self.running.items() if completion.slot == PREEMPTED)

    def copied(self) -> SchedulerState:
        """Return a state that may be changed without changing this one."""
        shared = ("request", "limits")
        copies = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in shared}
        return dataclasses.replace(self, **{name: copy.copy(value) for name, value in copies.items()})


@dataclass
class ChunkPlan:
    """The device's next work, in this order, and the state `after` it.

    Prompt slots whose completions are all finished (`freed`); decode slots to release; completions that were cancelled
    (`dropped`, and `num_dropped` of prompts that were not prefilled) or end with their first token (`cut`); prompts to
    prefill; completions that enter the ring (`queued`), or that an earlier call began (`begun`); slots to preempt;
    completions to resume; completions to append tokens to. Where it `launches` a chunk of decode steps follows, with
    the KV blocks in `table` [N,J] of a pool of `num_blocks`, which takes completions up to `tail` of the ring; else the
    last log is read first, or no completion is left.
    """

    after: SchedulerState
    freed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    num_dropped: int = 0
    cut: list[int] = field(default_factory=list)
    prefills: list[PrefillBatch] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    appended: list[int] = field(default_factory=list)
    launches: bool = False
    table: Any = None
    num_blocks: int = 0
    tail: int = 0


def plan(state: SchedulerState, log: ChunkLog) -> ChunkPlan:
    """Return the next chunk's plan, after the events of a log; neither argument is changed."""
    chunk = ChunkPlan(state.copied())
    state = chunk.after
    _note(chunk, log)
    if state.cancelled:
        if state.is_in_flight:  # the contents of slots are known when it is read
            return chunk
        _drop_cancelled(chunk)
        if not state.groups and not state.sequences:
            return chunk
    _admit(chunk, log.uses_cache)
    may_take = _find_room(chunk)
    if may_take is not None:
        chunk.appended, state.appends = state.appends, []
        chunk.launches, chunk.table, chunk.num_blocks = True, state.blocks.table(), state.blocks.num_blocks
        chunk.tail = min(state.taken + may_take, state.queued)
        state.num_chunks += 1
    return chunk


# --- the state at the start and at the end of a call


def cut_groups(request: GenerationRequest, served: Collection[int], size: int) -> list[RequestGroup]:
    """Return the groups of a call's prompts, the next call's last.

    Prompts with the same prefix follow each other, so that it is cached when the next one needs it.
    """
    order = sorted(served, key=lambda i: (request.is_ahead(i), request.prompts[i].token_ids))
    return [
        RequestGroup(i, first, min(first + size, request.samplings[i].n))
        for i in order
        for first in range(0, request.samplings[i].n, size)
    ]


def first_state(
    request: GenerationRequest,
    groups: Sequence[RequestGroup],
    limits: Limits,
    prefixes: PrefixCache,
    blocks: BlockTable,
    prompt_slots: int,
) -> SchedulerState:
    """Return the state of a call that has launched nothing; groups that an earlier call began come first."""
    open_groups = [group for group in groups if _num_wanted(request, group)]
    open_groups.sort(key=lambda group: not any(request.begun_sample(group.prompt, g) for g in group.samples))
    n = limits.slots
    return SchedulerState(
        request, limits, open_groups, prefixes, blocks,
        free_prompt_slots=list(range(prompt_slots - 1, -1, -1)),
        num_begun=sum(
            request.begun_sample(group.prompt, g) is not None and _is_wanted(request, group.prompt, g)
            for group in open_groups
            for g in group.samples
        ),
        slot_length=np.zeros(n, np.int64), known_from=np.zeros(n, np.int64), recently_ended=max(n // 3 + 1, 1),
    )  # fmt: skip


def close(state: SchedulerState) -> PrefixCache:
    """Return the prefix cache at the end of a call, whose prompts give their blocks back."""
    prefixes = copy.copy(state.prefixes)
    for sequence in state.sequences.values():
        prefixes.free(sequence.blocks)
    return prefixes


def _is_wanted(request: GenerationRequest, prompt: int, sample: int) -> bool:
    """Return whether a sample is still to be made: an earlier call may have finished it."""
    begun = request.begun_sample(prompt, sample)
    return begun is None or begun.finish_reason == UNFINISHED


def _num_wanted(request: GenerationRequest, group: RequestGroup) -> int:
    return sum(_is_wanted(request, group.prompt, g) for g in group.samples)


# --- events


def _note(chunk: ChunkPlan, log: ChunkLog) -> None:
    """Bring the state up to the events of a log."""
    state = chunk.after
    if log.number:
        state.num_read, state.taken = log.number, log.taken
        state.slot_length = np.where(log.number >= state.known_from, log.lengths, state.slot_length)
        state.recently_ended = max(log.num_ended, state.recently_ended // 2, 1)
    for number, written in log.written.items():
        before = state.running.get(number)
        state.running[number] = before._replace(tokens=before.tokens + written.tokens) if before else written
    for number in log.finished:
        ended = state.running.pop(number)
        if state.request.turns is not None:
            chunk.released.append(ended.slot)
        _finish(chunk, number)
    for number, observed in log.observed.items():
        slot, tokens = state.running[number]
        state.running[number] = RunningCompletion(slot, tokens + observed)
        _set_length(state, [slot], tokens + observed)
        state.appends.append(number)
    state.cancelled |= log.cancelled


def _set_length(state: SchedulerState, slots: list[int], tokens: int) -> None:
    """Note a length that the host gives to slots; logs have it from the next chunk on."""
    state.slot_length[slots], state.known_from[slots] = tokens, state.num_chunks + 1


def _finish(chunk: ChunkPlan, number: int) -> None:
    """Drop a completion; the last one of a prompt frees the prompt's slot."""
    state = chunk.after
    slot = state.completions.pop(number).prompt_slot
    sequence = state.sequences[slot]
    state.sequences[slot] = sequence._replace(unfinished=sequence.unfinished - 1)
    if sequence.unfinished > 1:
        return
    state.prefixes.free(state.sequences.pop(slot).blocks)
    state.free_prompt_slots.append(slot)
    chunk.freed.append(slot)


def _drop_cancelled(chunk: ChunkPlan) -> None:
    """Free the slots of cancelled prompts, whose waiting completions end with their first token."""
    state = chunk.after
    prompts, state.cancelled = state.cancelled, set()
    chunk.dropped = [number for number in state.running if state.completions[number].prompt in prompts]
    chunk.released += [slot for number in chunk.dropped if (slot := state.running[number].slot) != PREEMPTED]
    _set_length(state, chunk.released, 0)
    for number in chunk.dropped:
        del state.running[number]
        _finish(chunk, number)
    state.appends = [number for number in state.appends if number in state.running]
    chunk.num_dropped = sum(_num_wanted(state.request, group) for group in state.groups if group.prompt in prompts)
    state.groups = [group for group in state.groups if group.prompt not in prompts]
    waiting = range(state.num_begun + state.taken, state.num_begun + state.queued)
    chunk.cut = [number for number in waiting if state.completions[number].prompt in prompts]


# --- admission


def _admit(chunk: ChunkPlan, uses_cache: bool) -> None:
    """Prefill prompts until as many completions await a slot as may end while two chunks run."""
    state = chunk.after
    want = min(max(3 * state.recently_ended, state.limits.group_size), 2 * state.limits.slots)
    while state.groups and state.free_prompt_slots and state.num_waiting < want:
        batch = _next_batch(state, want - state.num_waiting, uses_cache)
        if not batch:
            return
        saved: list[tuple[int, int]] = []
        for prompt_slot, group, allocation in batch:
            if uses_cache:
                ids = state.request.prompts[group.prompt].token_ids
                saved += state.prefixes.insert(ids, allocation.blocks)
            unfinished = _num_wanted(state.request, group)
            state.sequences[prompt_slot] = PromptSequence(group, allocation.blocks, unfinished)
            _enqueue(chunk, prompt_slot, group)
        chunk.prefills.append(PrefillBatch(batch, saved))


def _next_batch(state: SchedulerState, completions: int, uses_cache: bool) -> list[Prefill]:
    """Allocate prompt slots and blocks for the next prompts, as many as are wanted and prefilled at a time.

    A prompt that lacks the same block as one of this batch waits until it is cached, and one that finds too few
    free blocks until others are finished.
    """
    batch: list[Prefill] = []
    coming: set[object] = set()
    longest = 0
    while state.groups and state.free_prompt_slots and completions > 0:
        group = state.groups[0]
        ids = state.request.prompts[group.prompt].token_ids
        missing = state.prefixes.first_missing(ids) if uses_cache else None
        longest = max(longest, len(ids) - (state.prefixes.count_cached(ids) if uses_cache else 0))
        is_full = bool(batch) and not state.limits.fits_prefill(len(batch) + 1, longest)
        if is_full or missing in coming:
            break
        allocation = state.prefixes.allocate(ids)
        if allocation is None:
            break
        if missing is not None:
            coming.add(missing)
        batch.append(Prefill(state.free_prompt_slots.pop(), state.groups.pop(0), allocation))
        completions -= group.size
    return batch


def _enqueue(chunk: ChunkPlan, prompt_slot: int, group: RequestGroup) -> None:
    """Put the completions of a group into the ring; those that an earlier call began wait as preempted ones do."""
    state = chunk.after
    for g in group.samples:
        begun = state.request.begun_sample(group.prompt, g)
        if begun is None:
            number = state.num_begun + state.queued
            state.queued += 1
            chunk.queued.append(number)
        elif begun.finish_reason == UNFINISHED:
            number = state.resumable
            state.resumable += 1
            chunk.begun.append(number)
            state.running[number] = RunningCompletion(PREEMPTED, len(begun.token_ids))
        else:
            continue
        state.completions[number] = QueuedCompletion(group.prompt, g, prompt_slot, g - group.first)


# --- room


def _find_room(chunk: ChunkPlan) -> int | None:
    """Reserve KV blocks for the next chunk -> how many completions it may take from the ring.

    None where they are too few while a chunk is in flight.
    """
    state = chunk.after
    # For all tokens that slots may write until the host looks again.
    reach = np.minimum(state.slot_length + 2 * state.limits.chunk_steps, state.limits.longest)
    if not state.preempted() and state.blocks.reserve(reach):
        return state.num_waiting
    return None if state.is_in_flight else _make_room(chunk)


def _make_room(chunk: ChunkPlan) -> int:
    """Decide which completions have slots; no chunk runs meanwhile, so all lengths are known.

    Those that are in slots stay, the oldest first, as long as there are blocks for a chunk of steps; the others
    are preempted. If all stay, preempted ones are resumed, and after these new ones taken, while there are blocks
    for two chunks of steps: so that they are not preempted at once. Returns how many new ones may be taken.
    """
    state, table = chunk.after, chunk.after.blocks
    steps, n, longest = state.limits.chunk_steps, state.limits.slots, state.limits.longest
    tokens = np.zeros(n, np.int64)

    def reach(number: int, chunks: int) -> tuple[int, int]:
        length = min(state.running[number].tokens + chunks * steps, longest)
        return length, -(-length // table.block_size)

    left = spare = table.levels[-1][0]
    waiting = state.preempted()
    running = sorted(state.running.keys() - set(waiting))
    free = sorted(set(range(n)) - {state.running[number].slot for number in running})
    dropped: list[int] = []
    for number in running:
        tokens[state.running[number].slot], need = reach(number, 1)
        left, spare = left - need, spare - reach(number, 2)[1]
        if left < 0:
            dropped.append(number)
    chunk.preempted = [state.running[number].slot for number in dropped]
    state.running |= {number: state.running[number]._replace(slot=PREEMPTED) for number in dropped}
    state.appends = [number for number in state.appends if number not in dropped]
    tokens[chunk.preempted] = 0
    while not dropped and len(chunk.resumed) < min(len(waiting), len(free)):
        number, slot = waiting[len(chunk.resumed)], free[len(chunk.resumed)]
        tokens[slot], need = reach(number, 2)
        if need > spare:
            break
        spare -= need
        chunk.resumed.append(number)
        state.running[number] = state.running[number]._replace(slot=slot)
        _set_length(state, [slot], state.running[number].tokens)
    state.appends += chunk.resumed
    new = min(2 * steps, longest)
    has_older = dropped or len(chunk.resumed) < len(waiting)
    may_take = 0 if has_older else max(spare, 0) // -(-new // table.block_size)
    free = free[len(chunk.resumed) :]
    tokens[free] = 0
    tokens[free[:may_take]] = new
    has_room = table.reserve(tokens)
    assert has_room, "completions with slots were counted to fit"
    return may_take
