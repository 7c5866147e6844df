"""Answers in fewer rows: where each stands."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.batch import GroupBatch, Segment, bucket
from jaxrl_sql.data.pack import with_packed_rows

T = 16


def batch_of(lengths: list[list[int]]) -> GroupBatch:
    """Return a batch of answers of these lengths, which are all that packing looks at."""
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
def test_each_answer_stands_in_one_row_and_meets_no_other(lengths: list[list[int]]) -> None:
    batch = with_packed_rows(batch_of(lengths))
    group = len(lengths[0])
    if batch.packed_start is None or batch.packed_length is None:
        assert batch.packed_start is batch.packed_length is None
        return
    rows = batch.packed_length.shape[1]
    assert rows < group
    assert rows == bucket(rows, smallest=2), "few shapes"
    for own, start, length in zip(lengths, batch.packed_start, batch.packed_length, strict=True):
        held = np.zeros((rows, T), int)
        for size, at in zip(own, start.tolist(), strict=True):
            assert size == 0 or at // T == (at + size - 1) // T, "an answer lies over two rows"
            held.reshape(-1)[at : at + size] += 1
        assert held.max(initial=0) <= 1
        assert held.sum(axis=1).tolist() == length.tolist()
        assert all((row[: length[r]] == 1).all() for r, row in enumerate(held)), "rows have no holes"


def test_short_answers_share_rows_and_long_ones_have_their_own() -> None:
    batch = with_packed_rows(batch_of([[16, 3, 9, 4, 3, 2], [1, 1, 1, 1, 1, 1]]))
    assert np.asarray(batch.packed_length).tolist() == [[16, 16, 5], [6, 0, 0]]
    assert np.asarray(batch.packed_start)[0].tolist() == [0, 29, 16, 25, 32, 35]


def test_answers_that_need_a_row_each_are_left_as_they_are() -> None:
    batch = batch_of([[16, 15, 14], [1, 1, 1]])
    assert with_packed_rows(batch) is batch
