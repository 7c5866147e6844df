"""The buffer of tokens on hand-made logs, and on random logs against a loop over all cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.rollout.decode import End, StepLog
from jaxrl_sql.rollout.token_buffer import ChunkContents, TokenBuffer, Tokens


def make_log(completions: Sequence[Sequence[int]], ends: Sequence[Sequence[int]] = ()) -> StepLog:
    """Return the log with these rows of completion numbers [steps,N]; token and log-probabilities follow from place."""
    completion = np.array(completions, np.int32)
    place = np.arange(completion.size, dtype=np.int32).reshape(completion.shape)
    end = np.array(ends, np.int32) if len(ends) else np.zeros_like(completion)
    logprob = -place.astype(np.float32) / 3
    # The values of cells without a token are arbitrary.
    logprob[completion < 0] = np.nan
    length = np.zeros(completion.shape[1], np.int32)
    return StepLog(completion, place, logprob, logprob * 2, end, length, np.int32(0))  # type: ignore[arg-type] # NumPy's


def tokens_at(*places: int) -> Tokens:
    """Return the tokens of `make_log` at these places of the flat log."""
    logprob = -np.array(places, np.float32) / np.float32(3)
    return Tokens(places, tuple(logprob.tolist()), tuple((logprob * 2).tolist()))


def test_slot_ends_two_completions_and_starts_a_third() -> None:
    """Slot 0 has completion 7, then 8, then 9; slot 1 has 5, which ends at the last step; slot 2 is idle."""
    buffer = TokenBuffer()
    log = make_log(
        [[7, 5, -1], [8, 5, -1], [8, 5, -1], [9, 5, -1]],
        [[End.TOKEN, 0, 0], [0, 0, 0], [End.STRING, 0, 0], [0, End.LENGTH, 0]],
    )
    contents = buffer.append(log)
    assert contents == ChunkContents(
        numbers=[7, 8, 9, 5],
        slots=[0, 0, 0, 1],
        ended=[(7, End.TOKEN), (8, End.STRING), (5, End.LENGTH)],
        num_tokens=8,
        num_steps=4,
        is_finite=True,
    )
    assert buffer.pop(7) == tokens_at(0)
    assert buffer.pop(8) == tokens_at(3, 6)
    assert buffer.pop(5) == tokens_at(1, 4, 7, 10)
    assert buffer.get(9) == tokens_at(9)
    assert buffer.get(8) == Tokens(), "a removed completion still has tokens"


def test_values_are_python_numbers() -> None:
    buffer = TokenBuffer()
    buffer.append(make_log([[0], [0]]))
    ids, logprobs, behavior_logprobs = buffer.get(0)
    assert [type(value) for value in (*ids, *logprobs, *behavior_logprobs)] == [int] * 2 + [float] * 4


def test_completions_that_end_in_one_step_are_in_the_order_of_their_numbers() -> None:
    ends = [[0, 0, End.TOKEN], [End.TOKEN, End.TOKEN, 0]]
    contents = TokenBuffer().append(make_log([[6, 4, 9], [6, 4, -1]], ends))
    assert [number for number, _ in contents.ended] == [9, 4, 6]
    assert {type(end) for _, end in contents.ended} == {End}


def test_empty_chunk_has_no_completion() -> None:
    buffer = TokenBuffer()
    nothing = ChunkContents([], [], [], 0, 0, is_finite=True)
    assert buffer.append(make_log([[-1, -1]] * 3)) == nothing
    buffer.append(make_log([[2, -1]]))
    assert buffer.append(make_log([[-1, -1]] * 3)) == nothing
    assert buffer.get(2) == tokens_at(0)


def test_steps_that_did_not_run_are_not_counted() -> None:
    contents = TokenBuffer().append(make_log([[1, -1], [-1, 3], [-1, -1], [-1, -1]]))
    assert (contents.num_steps, contents.num_tokens) == (2, 2)


@pytest.mark.parametrize("field", ["logprob", "behavior_logprob"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_reported(field: str, value: float) -> None:
    log = make_log([[1, -1], [1, 2]])
    getattr(log, field)[1, 0] = value
    assert not TokenBuffer().append(log).is_finite


def test_completion_keeps_its_tokens_while_others_use_its_slot() -> None:
    """Completion 0 is preempted and later continues in another slot."""
    buffer = TokenBuffer()
    buffer.append(make_log([[0, 1]] * 2))
    buffer.append(make_log([[2, 1]] * 40))
    buffer.append(make_log([[2, 0]]))
    assert buffer.get(0) == tokens_at(0, 2).join(tokens_at(1))
    assert buffer.get(2) == tokens_at(*range(0, 80, 2)).join(tokens_at(0))
    assert buffer.get(1) == tokens_at(1, 3).join(tokens_at(*range(1, 80, 2)))


def test_next_turn_starts_without_the_tokens_of_the_turn_before() -> None:
    buffer = TokenBuffer()
    buffer.append(make_log([[0], [0]], [[0], [End.STRING]]))
    assert buffer.pop(0) == tokens_at(0, 1)
    assert buffer.pop(0) == Tokens(), "the next turn has tokens of the turn before"
    buffer.append(make_log([[0]]))
    assert buffer.get(0) == tokens_at(0)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_random_chunks_equal_a_loop_over_all_cells(data: st.DataObject) -> None:
    slots, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    buffer, expected = TokenBuffer(), dict[int, Tokens]()
    current, taken = [-1] * slots, 0
    for _ in range(data.draw(st.integers(1, 6))):
        completion, end = np.full((steps, slots), -1), np.zeros((steps, slots), int)
        ended = list[tuple[int, End]]()
        for step in range(steps):
            last = []
            for slot in range(slots):
                if current[slot] < 0 and data.draw(st.booleans()):
                    current[slot], taken = taken, taken + 1
                if current[slot] < 0:
                    continue
                number = completion[step, slot] = current[slot]
                expected[number] = expected.get(number, Tokens()).join(tokens_at(step * slots + slot))
                if reason := data.draw(st.sampled_from([End.NOT, End.NOT, *End])):
                    end[step, slot], current[slot] = reason, -1
                    last.append((number, reason))
            ended += sorted(last)
        contents = buffer.append(make_log(completion.tolist(), end.tolist()))
        assert contents.ended == ended
        assert contents.num_tokens == (completion >= 0).sum()
        assert sorted(contents.numbers) == np.unique(completion[completion >= 0]).tolist()
        for number, slot in zip(contents.numbers, contents.slots, strict=True):
            assert number in completion[:, slot]
        for number, _ in ended:
            assert buffer.pop(number) == expected.pop(number)
        for number, tokens in expected.items():
            assert buffer.get(number) == tokens
