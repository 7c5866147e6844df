"""The scheduler on hand-made states and on simulated slots, without a model.

`Slots` simulates the device: slots take completions from the ring, and each completion has turns of known lengths.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.rollout.kv_blocks import BlockTable, PrefixCache
from jaxrl_sql.rollout.sampling import UNFINISHED, GenerationRequest, RequestGroup, Sample, SamplingParams
from jaxrl_sql.rollout.scheduler import (
    ChunkEvents,
    ChunkPlan,
    Limits,
    PrefilledCompletion,
    SchedulerState,
    initial_state,
    plan,
    split_groups,
)
from jaxrl_sql.types import Prompt

SIZE, STEPS = 4, 4


def fits_prefill(rows: int, longest: int) -> bool:
    return rows * longest <= 32


def make_state(
    prompts: Sequence[Sequence[int]],
    n: int = 1,
    slots: int = 2,
    longest: int = 16,
    blocks: int = 16,
    prompt_blocks: int = 40,
    pool_sizes: Sequence[tuple[int, int]] = (),
    **call: Any,
) -> SchedulerState:
    """Return the state of a call before its first launch, for prompts with these tokens; `call` as in `generate`."""
    request = GenerationRequest(
        [Prompt(str(i), tuple(ids), "") for i, ids in enumerate(prompts)],
        [SamplingParams(n=n, max_new_tokens=longest)] * len(prompts),
        0,
        call.get("turns"),
        ahead=call.get("ahead"),
        carried={(sample.prompt_index, sample.index): sample for sample in call.get("carried", ())},
    )
    group_size = min(n, slots)
    cache = PrefixCache(SIZE)
    cache.open(prompt_blocks, capacity=8)
    table = BlockTable(SIZE, slots, [*pool_sizes, (blocks, -(-longest // SIZE))])
    limits = Limits(slots, STEPS, longest, group_size, fits_prefill)
    groups = split_groups(request, range(len(prompts)), group_size)
    return initial_state(request, groups, limits, cache, table, 2 * slots)


def carried_sample(prompt: int, tokens: int, reason: str = UNFINISHED) -> Sample:
    return Sample(prompt, 0, (1,) * tokens, (0.0,) * tokens, (0.0,) * tokens, "", reason)


def mid_call(tokens: Mapping[int, int], is_in_flight: bool = False, **sizes: Any) -> SchedulerState:
    """Return a state in which completion i of prompt i has `tokens[i]` tokens, in slot i if it exists.

    Blocks are reserved only for these tokens.
    """
    state = make_state([[i] * 5 for i in tokens], **sizes)
    slots = state.limits.slots
    lengths = np.array([*tokens.values(), *[0] * slots][:slots])
    state.blocks.reserve(lengths)
    allocations = {i: state.prefixes.allocate([i] * 5) for i in tokens}
    return replace(
        state,
        waiting=[],
        free_prompt_slots=[],
        prompt_blocks={i: allocation.blocks for i, allocation in allocations.items() if allocation},
        completions={i: PrefilledCompletion(i, 0, i, 0) for i in tokens},
        running={i: i for i in tokens if i < slots},
        preempted={i: count for i, count in tokens.items() if i >= slots},
        slot_length=lengths,
        queued=len(tokens),
        taken=len(tokens),
        num_chunks=3,
        num_read=2 if is_in_flight else 3,
    )


def prefilled(chunk: ChunkPlan) -> list[list[int]]:
    """Return the prompts of each batch."""
    return [[prefill.group.prompt for prefill in batch.prompts] for batch in chunk.prefills]


# --- admission


def test_prompts_are_prefilled_in_batches_until_enough_completions_wait() -> None:
    chunk = plan(make_state([[i] * 9 for i in range(8)], slots=2), ChunkEvents())
    # Three times the one slot that may have ended, and at most the 4 prompt slots; 3 rows of 9 are 27 tokens.
    assert prefilled(chunk) == [[0, 1, 2]]
    assert chunk.queued == [0, 1, 2]
    assert [group.prompt for group in chunk.after.waiting] == [3, 4, 5, 6, 7]
    assert (chunk.launches, chunk.tail) == (True, 3)
    chunk = plan(make_state([[i] * 12 for i in range(8)], slots=2), ChunkEvents())
    assert prefilled(chunk) == [[0, 1], [2]]


def test_number_of_waiting_completions_follows_ended_turns() -> None:
    """The limit is three times the turns that ended with the last chunk, or half of the previous estimate."""
    chunk = plan(make_state([[i] * 4 for i in range(40)], n=2, slots=12, blocks=48), ChunkEvents())
    assert len(chunk.queued) == 16
    written = {i: i for i in range(8)}
    chunk = plan(chunk.after, ChunkEvents(1, 16, np.full(12, 4), written, 8, list(range(8))))
    assert (chunk.after.recently_ended, len(chunk.queued)) == (8, 24)
    chunk = plan(chunk.after, ChunkEvents(2, 40, np.full(12, 4), {}, 0))
    assert chunk.after.recently_ended == 4


def test_prompt_without_free_blocks_waits_and_blocks_later_prompts() -> None:
    state = make_state([[0] * 8, [1] * 20, [2] * 4], prompt_blocks=5)
    chunk = plan(state, ChunkEvents())
    assert prefilled(chunk) == [[0]]
    log = ChunkEvents(1, 1, np.array([2, 0]), {0: 0}, 1, [0])
    chunk = plan(chunk.after, log)
    assert chunk.freed == [0]
    assert prefilled(chunk) == [[1]]


def test_prompt_with_an_equal_first_block_waits_for_the_caching_batch() -> None:
    chunk = plan(make_state([[7] * 4 + [i] * 3 for i in range(3)], slots=4), ChunkEvents())
    assert prefilled(chunk) == [[0], [1, 2]]
    (first, second) = chunk.prefills
    ((block, cached),) = first.saved
    assert block == first.prompts[0].allocation.blocks[0]
    assert [prefill.allocation.copies[0][0] for prefill in second.prompts] == [cached, cached]


def test_prompts_of_the_next_call_follow_the_current_call() -> None:
    state = make_state([[9] * 9, [8] * 9, [1] * 9], ahead=2)
    assert [group.prompt for group in state.waiting] == [1, 0, 2]


def test_prompts_are_not_cached_once_the_weights_are_newer() -> None:
    state = plan(make_state([[7] * 9] * 4), ChunkEvents()).after
    assert state.prefixes.cached
    state.prefixes.reset()
    state.prefixes.capacity = 0
    chunk = plan(replace(state, num_read=1, recently_ended=6), ChunkEvents())
    assert prefilled(chunk) == [[3]]
    assert [prefill.allocation.cached_tokens for batch in chunk.prefills for prefill in batch.prompts] == [0]
    assert not chunk.after.prefixes.cached


# --- preemption and resumption


def test_oldest_completions_keep_their_slots() -> None:
    """Three completions of 8 tokens and 4 more steps need 9 blocks, and there are 7."""
    chunk = plan(mid_call({0: 8, 1: 8, 2: 8}, slots=3, blocks=7), ChunkEvents())
    assert chunk.launches
    assert chunk.preempted == [2]
    assert chunk.after.preempted == {2: 8}
    assert chunk.after.blocks.slot_blocks.tolist() == [3, 3, 0]


def test_all_younger_completions_are_preempted_with_a_large_one() -> None:
    """The second needs 4 blocks and 2 are free; the third would fit, but is younger."""
    chunk = plan(mid_call({0: 8, 1: 12, 2: 2}, slots=3, blocks=5), ChunkEvents())
    assert chunk.preempted == [1, 2]


def test_nothing_is_preempted_while_a_chunk_is_in_flight() -> None:
    state = mid_call({0: 8, 1: 8, 2: 8}, is_in_flight=True, slots=3, blocks=7)
    chunk = plan(state, ChunkEvents())
    assert not chunk.launches
    assert chunk.preempted == []
    assert chunk.after.is_in_flight
    written = {i: i for i in range(3)}
    chunk = plan(chunk.after, ChunkEvents(3, 3, np.array([12, 12, 12]), written))
    assert chunk.launches
    assert chunk.preempted == [1, 2], "the preempted completions are not the youngest two"


def test_oldest_preempted_completions_are_resumed_first() -> None:
    """Completion 0 finished and freed 8 blocks. Completion 1 with two chunks of steps needs 4, 2 needs 4, 3 waits."""
    state = mid_call({0: 8, 1: 8, 2: 8, 3: 2}, slots=2, blocks=8)
    state.slot_length[1] = 4
    chunk = plan(state, ChunkEvents(3, 4, np.array([9, 8]), {0: 0, 1: 1}, 1, [0]))
    assert chunk.freed == [0]
    assert (chunk.preempted, chunk.resumed, chunk.appended) == ([], [2], [2])
    assert chunk.after.running[2] == 0
    assert chunk.after.slot_length.tolist() == [8, 8]
    assert chunk.after.preempted == {3: 2}
    assert chunk.tail == 4


def test_log_from_before_a_resumption_does_not_set_the_slots_length() -> None:
    state = plan(mid_call({0: 8, 1: 8, 2: 8}, slots=2, blocks=8), ChunkEvents(3, 3, np.array([9, 8]), {}, 1, [0])).after
    assert state.running[2] == 0
    assert state.known_from.tolist() == [4, 0]
    after = plan(state, ChunkEvents(3, 3, np.array([99, 9]))).after
    assert after.slot_length.tolist() == [8, 9]


def test_new_completions_wait_for_preempted_ones() -> None:
    """3 blocks are free: the preempted completion needs 4, and a new completion would need 2."""
    state = mid_call({0: 4, 1: 12}, slots=2, blocks=6)
    state.preempted[1] = int(state.slot_length[state.running.pop(1)])
    state = replace(state, waiting=[RequestGroup(0, 0, 1)], free_prompt_slots=[3, 2])
    chunk = plan(state, ChunkEvents())
    assert (chunk.launches, chunk.resumed, chunk.queued) == (True, [], [2])
    assert chunk.tail == 2, "the ring changed"


# --- carried samples of an earlier call


def test_carried_samples_come_first_and_resume_from_their_tokens() -> None:
    carried = [carried_sample(2, 5), carried_sample(1, 3, "stop")]
    state = make_state([[i] * 9 for i in range(4)], carried=carried)
    assert [group.prompt for group in state.waiting] == [2, 0, 3], "the finished sample is drawn again"
    chunk = plan(state, ChunkEvents())
    assert (chunk.carried, chunk.resumed, chunk.appended) == ([0], [0], [0])
    assert chunk.after.completions[0] == PrefilledCompletion(2, 0, 0, 0)
    assert (chunk.after.running[0], chunk.after.slot_length[0]) == (0, 5)
    assert chunk.queued == [1, 2, 3][: len(chunk.queued)], "numbers do not continue after the carried samples"
    assert chunk.launches


def test_carried_sample_waits_for_the_chunk_in_flight() -> None:
    state = make_state([[1] * 9], carried=[carried_sample(0, 5)])
    chunk = plan(replace(state, num_chunks=1), ChunkEvents())
    assert (chunk.carried, chunk.resumed, chunk.launches) == ([0], [], False)
    chunk = plan(chunk.after, ChunkEvents(1, 1, np.zeros(2, int)))
    assert (chunk.carried, chunk.resumed, chunk.launches) == ([], [0], True)


# --- observations


def test_observations_are_appended_and_their_tokens_counted() -> None:
    chunk = plan(mid_call({0: 4, 1: 6}, turns=object), ChunkEvents(3, 2, np.array([4, 6]), observed={1: 5}))
    assert chunk.appended == [1]
    assert chunk.after.running[1] == 1
    assert chunk.after.slot_length.tolist() == [4, 11]
    assert chunk.after.blocks.slot_blocks.tolist() == [3, 4], "blocks are not for two chunks or the longest completion"
    assert chunk.after.appends == []


def test_observation_without_free_blocks_waits_and_resumes_with_all_tokens() -> None:
    state = mid_call({0: 8, 1: 8}, is_in_flight=True, blocks=5, turns=object)
    chunk = plan(state, ChunkEvents(observed={1: 3}))
    assert not chunk.launches
    assert (chunk.appended, chunk.after.appends) == ([], [1])
    chunk = plan(chunk.after, ChunkEvents(3, 2, np.array([10, 8]), {0: 0}))
    assert (chunk.preempted, chunk.appended, chunk.after.appends) == ([1], [], [])
    log = ChunkEvents(4, 2, np.array([12, 8]), {0: 0}, 1, [0])
    chunk = plan(chunk.after, log)
    assert chunk.released == [0], "the host did not free the paused slot of a dialogue"
    assert (chunk.resumed, chunk.appended) == ([1], [1])
    assert (chunk.after.running[1], chunk.after.slot_length[0]) == (0, 11)


# --- cancellation


def test_cancellation_waits_for_the_chunk_in_flight_and_frees_slots_and_blocks() -> None:
    state = mid_call({0: 8, 1: 8, 2: 3}, is_in_flight=True, blocks=7)
    state = replace(state, waiting=[RequestGroup(1, 0, 1)])
    chunk = plan(state, ChunkEvents(cancelled={1}))
    assert (chunk.launches, chunk.dropped, chunk.after.cancelled) == (False, [], {1})
    chunk = plan(chunk.after, ChunkEvents(3, 3, np.array([9, 9]), {i: i for i in range(2)}))
    assert (chunk.dropped, chunk.num_dropped, chunk.released, chunk.freed) == ([1], 1, [1], [1])
    assert chunk.after.waiting == []
    assert chunk.launches
    assert chunk.resumed == [2]
    assert chunk.after.running == {0: 0, 2: 1}
    assert chunk.after.slot_length.tolist() == [9, 3]
    assert chunk.after.preempted == {}


def test_waiting_completions_of_a_cancelled_prompt_end_with_their_first_token() -> None:
    state = plan(make_state([[1] * 9, [2] * 9, [3] * 9, [4] * 9], slots=2), ChunkEvents()).after
    log = ChunkEvents(1, 2, np.array([4, 4]), {i: i for i in range(2)}, cancelled={0, 2, 3})
    chunk = plan(state, log)
    assert (chunk.dropped, chunk.truncated, chunk.num_dropped) == ([0], [2], 1)
    assert sorted(chunk.after.completions) == [1, 2]


def test_call_with_nothing_pending_launches_nothing() -> None:
    chunk = plan(mid_call({0: 8, 1: 8}), ChunkEvents(cancelled={0, 1}))
    assert not chunk.launches
    assert sorted(chunk.after.prefixes.free_blocks) == list(range(40))


def test_nothing_is_launched_after_the_last_completion() -> None:
    chunk = plan(mid_call({0: 8, 1: 8}), ChunkEvents(finished=[0, 1]))
    assert (chunk.freed, chunk.launches) == ([0, 1], False)


# --- pools


def test_pool_grows_with_the_lengths() -> None:
    state, device = make_state([[1] * 5, [2] * 5], longest=40, blocks=20, pool_sizes=[(5, 3), (10, 10)]), Slots({}, 40)
    sizes = []
    for chunk in device.serve(state):
        sizes.append(chunk.after.blocks.num_blocks)
        assert not chunk.preempted
    assert sizes == sorted(sizes)
    assert set(sizes) == {5, 10, 20}


def test_pool_for_a_single_full_length_completion_serves_all() -> None:
    device = Slots({}, 16)
    plans = list(device.serve(make_state([[i] * 5 for i in range(4)], slots=3, blocks=4)))
    assert sorted(device.finished) == [0, 1, 2, 3]
    assert sum(len(chunk.preempted) for chunk in plans) > 0


# --- whole calls


@dataclass
class Slots:
    """Simulated decode slots for calls whose completion i has turns of `turns[i]` tokens, or one of `longest`."""

    turns: Mapping[int, Sequence[int]]
    longest: int
    ring: dict[int, int] = field(default_factory=dict)
    taken: int = 0
    number: list[int | None] = field(default_factory=list)
    length: dict[int, int] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    turn: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)

    def execute(self, chunk: ChunkPlan, state: SchedulerState) -> ChunkEvents | None:
        """Execute a plan's work and chunk -> the chunk's log; ended turns are in `num_ended`."""
        n = state.limits.slots
        self.number = self.number or [None] * n
        self.cut |= set(chunk.truncated)
        for slot in (*chunk.released, *chunk.preempted):
            self.number[slot] = None
        for number in chunk.queued:
            self.ring[number] = self.turns.get(number, [self.longest])[0]
        for number in chunk.carried:
            self.length[number] = len(state.request.carried_sample(*chunk.after.completions[number][:2]).token_ids)
        for number in chunk.resumed:
            slot = chunk.after.running[number]
            assert self.number[slot] is None
            self.number[slot] = number
        for number in chunk.appended:
            self.paused.discard(number)
            self.length[number] = int(chunk.after.slot_length[chunk.after.running[number]])
        if not chunk.launches:
            return None
        table, num_blocks = chunk.after.blocks.table(), chunk.after.blocks.num_blocks
        log, capacity = ChunkEvents(), (table < num_blocks).sum(axis=1) * SIZE
        held = table[table < num_blocks].tolist()
        assert len(set(held)) == len(held), "a block has two holders"
        for _ in range(STEPS):
            self._step(chunk, state, log, capacity)
        log.number, log.taken = chunk.after.num_chunks, self.taken
        log.lengths = np.array([0 if number is None else self.length[number] for number in self.number])
        return log

    def _step(self, chunk: ChunkPlan, state: SchedulerState, log: ChunkEvents, capacity: np.ndarray) -> None:
        for slot in range(len(self.number)):
            if self.number[slot] is None and self.taken < chunk.tail:
                self.number[slot] = self.taken
                self.length[self.taken] = 0
                self.taken += 1
            number = self.number[slot]
            if number is None or number in self.paused:
                continue
            turns = self.turns.get(number, [self.longest])
            self.length[number] += 1
            self.left[number] = self.left.get(number, turns[0]) - 1
            assert self.length[number] <= capacity[slot], "a token has no block"
            log.written[number] = slot
            if self.left[number] and self.length[number] < self.longest and number not in self.cut:
                continue
            log.num_ended += 1
            turn = self.turn[number] = self.turn.get(number, 0) + 1
            if state.request.turns is None:
                self.number[slot] = None
            else:
                self.paused.add(number)
            if turn < len(turns) and self.length[number] + 1 < self.longest and state.request.turns is not None:
                self.left[number] = turns[turn]
                log.observed[number] = min(turn, self.longest - self.length[number] - 1)
            else:
                log.finished.append(number)

    def serve(self, state: SchedulerState, cancelled: Mapping[int, set[int]] | None = None) -> Any:
        """Yield the plans of a call until nothing is left, one chunk late. `cancelled` maps plans to prompts."""
        log, before, launches, self.taken = ChunkEvents(), None, 0, state.taken
        while state.waiting or state.completions:
            log.cancelled |= (cancelled or {}).get(launches, set())
            frozen = pickle.dumps((state, log))
            chunk = plan(state, log)
            assert pickle.dumps((state, log)) == frozen, "a plan changes its input state"
            check_order(state, log, chunk)
            for number in chunk.dropped:
                self.finished.append(number)
            launched = self.execute(chunk, chunk.after)
            state, log = chunk.after, before or ChunkEvents()
            self.finished += log.finished
            before, launches = launched, launches + 1
            if chunk.launches:
                yield chunk
            assert launches < 2_000, "a completion waits forever"
        assert sorted(state.prefixes.free_blocks) == list(range(state.prefixes.num_blocks)), "a block was lost"


def check_order(state: SchedulerState, log: ChunkEvents, chunk: ChunkPlan) -> None:
    """Check that older completions precede younger ones, and that prompts keep their order."""
    after = chunk.after
    if chunk.launches and after.preempted:
        assert max(after.running, default=-1) < min(after.preempted), "a younger completion keeps its slot"
        taken = log.taken if log.number else state.taken
        assert chunk.tail == taken, "a new completion is taken before a preempted one"
    groups = [group for group in state.waiting if group.prompt not in log.cancelled | state.cancelled]
    admitted = [prefill.group for batch in chunk.prefills for prefill in batch.prompts]
    assert admitted == groups[: len(admitted)], "a prompt overtakes another"


@pytest.mark.parametrize("n_examples", [60, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_no_completion_waits_forever_in_any_call(n_examples: int) -> None:
    """Check that random calls end, finish each completion once, store every token, and serve the oldest first."""

    @settings(deadline=None, max_examples=n_examples)
    @given(st.data())
    def holds_for(data: st.DataObject) -> None:
        n, slots = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
        prompts = data.draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=6))
        longest = data.draw(st.integers(1, 24))
        need = -(-longest // SIZE)
        blocks = data.draw(st.integers(need, need * slots))
        pool_sizes = [(max(blocks // 2, 1), need)] if data.draw(st.booleans()) and blocks > 1 else []
        kind = data.draw(st.sampled_from(["plain", "dialogues", "cancelled", "carried"]))
        carried = [
            carried_sample(i, min(data.draw(st.integers(1, longest)), longest - 1))
            for i in range(len(prompts))
            if i % 2
        ]
        state = make_state(
            prompts, n, slots, longest, blocks, data.draw(st.integers(4, 20)), pool_sizes,
            turns=object if kind == "dialogues" else None, carried=carried if kind == "carried" and longest > 1 else (),
        )  # fmt: skip
        lengths = st.lists(st.integers(1, longest), min_size=1, max_size=3 if kind == "dialogues" else 1)
        total = n * len(prompts)
        turns = {number: data.draw(lengths) for number in range(total)}
        cancelled = {data.draw(st.integers(0, 12)): {data.draw(st.integers(0, len(prompts) - 1))}}
        device = Slots(turns, longest)
        launches = len(list(device.serve(state, cancelled if kind == "cancelled" else None)))
        assert len(set(device.finished)) == len(device.finished)
        assert kind == "cancelled" or sorted(device.finished) == list(range(total))
        # Each launch with preemptions gives at least the oldest completion a chunk of steps.
        assert launches <= 2 * total * (need + 4) + 4

    holds_for()
