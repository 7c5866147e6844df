"""Packing of answers into fewer rows: the position of each answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.batch import GroupBatch, Segment, bucket
from jaxrl_sql.models.ops.micro_batches import MicroBatches, order_for_parts, row_counts
from jaxrl_sql.training.batching.pack import order_by_rows, with_packed_rows
from jaxrl_sql.training.sft import positions_per_prompt
from jaxrl_sql.types import InputError, Prompt, Trajectory, Turn

T = 16


def batch_of(lengths: list[list[int]]) -> GroupBatch:
    """Return a batch of answers of these lengths, the only input of packing."""
    length = np.array(lengths, np.int32)
    blank = np.zeros((*length.shape, T), np.float32)
    answer = np.zeros(length.shape, np.float32)
    prompt = Segment(np.zeros((len(lengths), 4), np.int32), np.full(len(lengths), 4, np.int32))
    return GroupBatch((prompt,), blank.astype(np.int32), length, blank > 0, blank, blank, answer, answer, answer > 0)


@given(
    st.integers(1, 9).flatmap(
        lambda g: st.lists(st.lists(st.integers(0, T), min_size=g, max_size=g), min_size=1, max_size=4)
    )
)
@settings(deadline=None, max_examples=150)
def test_each_answer_is_in_one_row_without_overlap(lengths: list[list[int]]) -> None:
    batch = with_packed_rows(batch_of(lengths))
    group = len(lengths[0])
    if batch.packed_start is None or batch.packed_length is None:
        assert batch.packed_start is batch.packed_length is None
        return
    rows = batch.packed_length.shape[1]
    assert rows < group
    assert rows == bucket(rows, smallest=2), "the number of rows is not rounded up"
    for local, start, length in zip(lengths, batch.packed_start, batch.packed_length, strict=True):
        held = np.zeros((rows, T), int)
        for size, at in zip(local, start.tolist(), strict=True):
            assert size == 0 or at // T == (at + size - 1) // T, "an answer spans two rows"
            held.reshape(-1)[at : at + size] += 1
        assert held.max(initial=0) <= 1
        assert held.sum(axis=1).tolist() == length.tolist()
        assert all((row[: length[r]] == 1).all() for r, row in enumerate(held)), "a row has a gap"


def test_short_answers_share_rows_and_long_ones_do_not() -> None:
    batch = with_packed_rows(batch_of([[16, 3, 9, 4, 3, 2], [1, 1, 1, 1, 1, 1]]))
    assert np.asarray(batch.packed_length).tolist() == [[16, 16, 5], [6, 0, 0]]
    assert np.asarray(batch.packed_start)[0].tolist() == [0, 29, 16, 25, 32, 35]


def test_answers_that_need_a_row_each_are_unchanged() -> None:
    batch = batch_of([[16, 15, 14], [1, 1, 1]])
    assert with_packed_rows(batch) is batch


@pytest.mark.parametrize("most", [2, 3, 4, 6, 8, 12, 16, 96])
def test_parts_have_at_most_four_numbers_of_rows(most: int) -> None:
    counts = row_counts(most)
    assert len(counts) <= 4
    assert counts[-1] == most
    assert counts[0] == -(-most // 2)
    assert list(counts) == sorted(set(counts))


@given(st.integers(1, 5), st.integers(1, 6), st.data())
@settings(deadline=None, max_examples=100)
def test_parts_have_prompts_with_equal_numbers_of_rows(size: int, parts: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, 9), min_size=size * parts, max_size=size * parts))
    order = order_for_parts(rows, parts)
    assert sorted(order) == list(range(size * parts))
    # Part i takes prompts i, i + parts, …, as the update splits a batch.
    by_part = [[rows[i] for i in order[part::parts]] for part in range(parts)]
    assert [max(item) for item in by_part] == sorted(rows, reverse=True)[::size]


def test_order_for_parts_follows_blocks_of_one_update() -> None:
    def group(*lengths: int) -> list[Trajectory]:
        turns = [(Turn("assistant", (1,) * size),) for size in lengths]
        return [Trajectory(Prompt("", (1,), ""), i, turn, "stop") for i, turn in enumerate(turns)]

    # In rows of 32: 1, 3, 2, 1 of the first four, and 2, 1, 1, 2 of the others.
    needs = [(4, 4, 4), (30, 20, 20), (20, 20, 4), (1, 1, 1), (30, 4, 4), (2, 2, 2), (8, 8, 8), (17, 17, 1)]
    groups = [group(*lengths) for lengths in needs]
    assert order_by_rows(groups, 32, 0, 4, MicroBatches(2)) == [1, 0, 2, 3, 4, 5, 7, 6]
    assert order_by_rows(groups, 32, 0, 4, MicroBatches(1)) == [1, 2, 0, 3, 4, 7, 5, 6]
    # Two prompts of 64 tokens with two rows of 32 each, the minimum of a part of these groups, on one of two shards.
    two, item = MicroBatches(1, 2 * (64 + 2 * 32), 2), MicroBatches(1, 2 * (64 + 2 * 32) - 1, 2)
    assert order_by_rows(groups, 32, 64, 4, two) == order_by_rows(groups, 32, 0, 4, MicroBatches(1))
    assert order_by_rows(groups, 32, 64, 4, item) == order_by_rows(groups, 32, 0, 4, MicroBatches(2))
    with pytest.raises(ValueError, match="4 prompts are not divisible by 3 parts"):
        order_by_rows(groups, 32, 0, 4, MicroBatches(3))


def test_budget_sets_the_number_of_rows_at_a_time() -> None:
    def chunk_sizes(tokens: int, prompts: int = 6, rows: int = 4) -> tuple[int, int]:
        return MicroBatches(1, tokens).chunk_sizes(prompts, 100, rows, 25)

    assert chunk_sizes(1200) == (6, 4)
    assert chunk_sizes(1199) == (3, 4), "five do not divide six"
    assert chunk_sizes(200) == (1, 4)
    assert chunk_sizes(199) == chunk_sizes(175) == (1, 2), "three rows at a time would leave a part of one"
    assert chunk_sizes(125) == (1, 1)
    assert chunk_sizes(100 + 5 * 25, 1, 16) == (1, 4), "sixteen rows in parts of at most five are four times four"
    with pytest.raises(InputError, match=r"max_tokens_per_device=124: .* and one answer of 25, with padding, are 125"):
        chunk_sizes(124)
    assert MicroBatches(3).parts_of(6, 100, 4, 25) == 3
    assert MicroBatches(1, 600, 2).parts_of(12, 100, 4, 25) == 2
    assert MicroBatches(1, 10_000, 2).parts_of(12, 100, 4, 25) == 1


@pytest.mark.parametrize(("parts", "rows"), [(4, (4, 4, 5, 8)), (2, (5, 8)), (1, (8,))])
def test_supervised_positions_count_the_rows_that_parts_run(parts: int, rows: tuple[int, ...]) -> None:
    """Prompts need 2, 3, 5 and 8 rows of the batch's 8; prompt i is in part i modulo `parts`."""
    batch = batch_of([[T] * need + [0] * (12 - need) for need in (2, 3, 5, 8)])
    assert positions_per_prompt(batch, parts) == 4 + 12 * T
    packed = with_packed_rows(batch)
    assert positions_per_prompt(packed, parts) == 4 + T * sum(rows) / len(rows)
