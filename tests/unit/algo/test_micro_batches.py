"""Micro-batches: each prompt, answer and row is in exactly one, and is restored to its position."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.algo.parts import split_answers, split_prompts, split_rows
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.training.batching.pack import share_schemas, with_packed_rows

B, G, P, T = 4, 5, 6, 8


def make_batch() -> GroupBatch:
    """Return a batch in which pairs of prompts share a prefix."""
    r = np.random.default_rng(0)
    prompts = np.arange(B * P, dtype=np.int32).reshape(B, P)
    prompts[1, :3], prompts[3, :2] = prompts[0, :3], prompts[2, :2]
    zeros = np.zeros((B, G, T), np.float32)
    length = np.array([[8, 3, 1, 4, 3], [1, 5, 0, 7, 2], [4, 4, 4, 4, 4], [2, 2, 0, 8, 5]], np.int32)
    arrays: dict[str, Any] = {
        "completion": r.integers(0, 24, (B, G, T)).astype(np.int32), "completion_len": length,
        "loss_mask": np.ones((B, G, T), bool), "behavior_logprobs": zeros, "rollout_logprobs": zeros,
        "reward": np.arange(B * G, dtype=np.float32).reshape(B, G), "weight": np.ones((B, G), np.float32),
        "truncated": np.zeros((B, G), bool),
    }  # fmt: skip
    return GroupBatch(shared=(Segment(prompts, np.array([6, 4, 6, 5], np.int32)),), **arrays)  # type: ignore[arg-type]


def split_and_join(cut: Any, batch: GroupBatch, *sizes: int) -> tuple[GroupBatch, np.ndarray]:
    """Return the micro-batches, and the rewards [B,G] that are joined from them."""

    def both(batch: GroupBatch) -> tuple[GroupBatch, jax.Array]:
        parts, rejoin = cut(batch, *sizes)
        return parts, rejoin(parts.reward)

    parts, rewards = jax.jit(both)(batch)
    return jax.tree.map(np.asarray, parts), np.asarray(rewards)


def test_prompts_are_assigned_to_micro_batches_round_robin() -> None:
    batch = make_batch()
    parts, rewards = split_and_join(split_prompts, batch, 2)
    for number in range(2):
        np.testing.assert_array_equal(parts.completion[number], batch.completion[number::2])
        np.testing.assert_array_equal(parts.shared[0].tokens[number], batch.shared[0].tokens[number::2])
    np.testing.assert_array_equal(rewards, batch.reward)


def test_prompts_with_a_shared_schema_stay_together() -> None:
    batch = share_schemas(make_batch(), 2)
    parts, rewards = split_and_join(split_prompts, batch, 2)
    for number in range(2):
        ours = slice(2 * number, 2 * number + 2)
        np.testing.assert_array_equal(parts.completion[number], batch.completion[ours])
        for got, whole in zip(parts.shared, batch.shared, strict=True):
            np.testing.assert_array_equal(got.tokens[number], whole.tokens[ours])
            np.testing.assert_array_equal(got.length[number], whole.length[ours])
    np.testing.assert_array_equal(rewards, batch.reward)


def test_indivisible_number_of_prompts_is_rejected() -> None:
    with pytest.raises(ValueError, match="4 prompts are not divisible by 3 parts"):
        split_prompts(make_batch(), 3)
    with pytest.raises(ValueError, match="2 schemas of 2 questions are not divisible by 3 parts"):
        split_prompts(share_schemas(make_batch(), 2), 3)


@pytest.mark.parametrize("size", [2, 5])
def test_answers_are_split_in_order_and_the_last_part_is_padded(size: int) -> None:
    batch, count = make_batch(), -(-G // size)
    parts, rewards = split_and_join(split_answers, batch, count, size)
    for number in range(count):
        here = batch.completion[:, number * size : (number + 1) * size]
        np.testing.assert_array_equal(parts.completion[number, :, : here.shape[1]], here)
        assert not parts.completion_len[number, :, here.shape[1] :].any()
        assert not parts.weight[number, :, here.shape[1] :].any()
        np.testing.assert_array_equal(parts.shared[0].tokens[number], batch.shared[0].tokens)
    np.testing.assert_array_equal(rewards, batch.reward)


def test_packed_rows_are_split_in_order_and_each_answer_is_in_one_part() -> None:
    batch = with_packed_rows(make_batch())
    assert batch.packed_length is not None
    assert batch.packed_start is not None
    rows = batch.packed_length.shape[1]
    parts, _ = split_and_join(split_rows, batch, -(-rows // 2), 2)
    assert parts.packed_length is not None
    assert parts.packed_start is not None
    joined = np.moveaxis(parts.packed_length, 0, 1).reshape(B, -1)
    np.testing.assert_array_equal(joined[:, :rows], batch.packed_length)
    assert not joined[:, rows:].any()
    np.testing.assert_array_equal(parts.completion_len.sum(axis=0), batch.completion_len)
    np.testing.assert_array_equal(parts.weight.sum(axis=0), batch.weight)
    for number, start, length in zip(range(len(parts.weight)), parts.packed_start, parts.completion_len, strict=True):
        held = length > 0
        assert (start[held] >= 0).all()
        assert (start[held] + length[held] <= 2 * T).all()
        np.testing.assert_array_equal((start + number * 2 * T)[held], np.asarray(batch.packed_start)[held])
