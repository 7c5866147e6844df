"""From token lists to the grouped batch: lengths, masks and the order of rows."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_sql.batch import bucket
from jaxrl_sql.training.batching.pack import pack_groups, pack_rows, width_by_answer
from jaxrl_sql.training.batching.sft_batches import RowOrder, SftBatch, SftCompletion, SftRow, shuffle_identifiers
from jaxrl_sql.types import Prompt, Trajectory, Turn


def ends_in(ids: tuple[int, ...], learned: int, names: frozenset[int] = frozenset()) -> SftCompletion:
    """Return a completion with a loss mask on its last `learned` tokens."""
    return SftCompletion(ids, tuple(i >= len(ids) - learned for i in range(len(ids))), names)


def test_loss_mask_covers_only_the_learned_end_of_an_answer() -> None:
    rows = [SftRow((1, 2, 3), (ends_in((4, 5, 6, 7), 2), ends_in((8,), 1))), SftRow((9,), (ends_in((0, 0), 2),))]
    batch = pack_rows(rows, databases=3, questions=2, prompt_width=4)
    assert batch.completion.shape == (3, 2, 32)
    assert np.asarray(batch.shared[0].length).tolist() == [3, 1, 1]
    assert np.asarray(batch.completion_len).tolist() == [[4, 1], [2, 0], [0, 0]]
    trained = np.asarray(batch.policy_mask())
    assert trained.sum(axis=-1).tolist() == [[2, 1], [2, 0], [0, 0]]
    assert trained[0, 0, :5].tolist() == [False, False, True, True, False]


def test_loss_mask_may_have_gaps() -> None:
    answer = SftCompletion((4, 0, 5, 6, 7), (False, True, False, True, True))
    batch = pack_rows([SftRow((1,), (answer,))], 1, 1, 2)
    assert np.asarray(batch.policy_mask())[0, 0, :6].tolist() == [False, True, False, True, True, False]


def test_masks_token_equal_to_padding_is_trained() -> None:
    batch = pack_rows([SftRow((0, 0), (ends_in((0, 0, 0), 3),))], 1, 1, 2)
    assert np.asarray(batch.policy_mask()).sum() == 3


def test_groups_keep_the_author_of_each_token() -> None:
    prompt = Prompt("a", (1, 2), "")
    turns = (
        Turn("assistant", (3, 4), (-0.5, -0.6), (-0.4, -0.5)),
        Turn("environment", (5, 6, 7)),
        Turn("assistant", (8,), (-0.7,), (-0.7,)),
    )
    group = [Trajectory(prompt, 0, turns, "stop"), Trajectory(prompt, 1, turns[:1], "length")]
    ones = np.ones((1, 2), np.float32)
    batch = pack_groups([group], reward=ones, weight=ones, longest=8)
    assert np.asarray(batch.completion)[0, 0, :8].tolist() == [3, 4, 5, 6, 7, 8, 0, 0]
    assert np.asarray(batch.policy_mask())[0, 0, :8].tolist() == [True, True, False, False, False, True, False, False]
    np.testing.assert_allclose(np.asarray(batch.rollout_logprobs)[0, 0, [0, 1, 5]], [-0.5, -0.6, -0.7])
    np.testing.assert_allclose(np.asarray(batch.behavior_logprobs)[0, 0, :2], [-0.4, -0.5])
    assert np.asarray(batch.truncated).tolist() == [[False, True]]


def test_answer_longer_than_the_width_raises() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        pack_rows([SftRow((1, 2, 3), (ends_in((1,), 1),))], 1, 1, 2)


def _supervised() -> SftBatch:
    r = np.random.default_rng(0)
    schemas = tuple((d,) for d in r.integers(0, 5, 200).tolist())
    answers = tuple(ends_in(tuple(range(n)), 1) for n in r.integers(1, 90, 200).tolist())
    return SftBatch(schemas, answers, (), (0,) * 200)


def test_every_example_comes_once_per_epoch_with_its_schema_and_width() -> None:
    taught = _supervised()
    order = RowOrder(taught, questions=4, databases=3, seed=0, row_width=width_by_answer)
    for epoch in range(2):
        first = epoch * order.num_batches(1)
        batches = [order.batch(first + i) for i in range(order.num_batches(1))]
        assert sorted(i for rows in batches for row in rows for i in row) == list(range(200))
        for rows in batches:
            assert len(rows) <= 3
            assert len({bucket(len(taught.answers[i].token_ids)) for row in rows for i in row}) == 1
            for row in rows:
                assert len(row) <= 4
                assert len({taught.schemas[i] for i in row}) == 1


def test_order_is_a_function_of_seed_and_number() -> None:
    taught = _supervised()
    a, b = (RowOrder(taught, 4, 3, 7, width_by_answer) for _ in range(2))
    far = b.batch(999)
    assert [a.batch(i) for i in (0, 1, 999)] == [b.batch(0), b.batch(1), far]
    assert RowOrder(taught, 4, 3, 8, width_by_answer).batch(0) != a.batch(0)
    assert a.batch(0) != a.batch(a.num_batches(1))


def test_renaming_is_one_to_one_and_equal_in_schema_question_and_answer() -> None:
    row = SftRow((10, 1, 11, 1, 12), (ends_in((2, 10, 3, 11, 10), 2), ends_in((2, 13, 14, 13), 1, frozenset({3, 13}))))
    message = tuple(range(10, 40))
    got = shuffle_identifiers(row, message, np.random.default_rng(0))
    pairs = set(zip(row.prompt, got.prompt, strict=True))
    for old, new in zip(row.answers, got.answers, strict=True):
        assert old.loss_mask == new.loss_mask
        pairs |= set(zip(old.token_ids, new.token_ids, strict=True))
    mapping = dict(pairs)
    assert len(mapping) == len(pairs)
    assert {old: new for old, new in mapping.items() if old < 10} == {1: 1, 2: 2, 3: 3}
    assert len({mapping[i] for i in (10, 11, 12, 13)}) == 4
    assert mapping[14] == 14, "a word outside schema and SQL was renamed"
    assert {mapping[i] for i in (10, 11, 12, 13)} <= set(message)
    assert got != shuffle_identifiers(row, message, np.random.default_rng(1))
