"""Advantages, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_sql.algo.advantage import EPSILON, advantages, choose_groups, zero_variance

ONES = np.ones((1, 4), np.float32)


def test_group_divides_by_the_population_std() -> None:
    # mean 0.5, every deviation 0.5, so the std with ddof 0 is 0.5
    got = advantages(np.array([[1.0, 0.0, 1.0, 0.0]], np.float32), ONES, "group")
    unit = 0.5 / (0.5 + EPSILON)
    np.testing.assert_allclose(got, [[unit, -unit, unit, -unit]], rtol=1e-6)


def test_none_only_subtracts_the_mean() -> None:
    got = advantages(np.array([[1.0, 0.1, 0.1, 0.0]], np.float32), ONES, "none")
    np.testing.assert_allclose(got, [[0.7, -0.2, -0.2, -0.3]], atol=1e-6)


def test_batch_uses_the_std_of_all_centred_rewards() -> None:
    rewards = np.array([[1.0, 0.0], [0.5, 0.5]], np.float32)
    # centred: ±0.5, 0, 0 -> variance (0.25 + 0.25) / 4 = 0.125
    got = advantages(rewards, np.ones((2, 2), np.float32), "batch")
    unit = 0.5 / (np.sqrt(0.125) + EPSILON)
    np.testing.assert_allclose(got, [[unit, -unit], [0.0, 0.0]], rtol=1e-5)


def test_leave_one_out_compares_with_the_others() -> None:
    got = advantages(np.array([[1.0, 0.0, 0.5, 0.5]], np.float32), ONES, "leave_one_out")
    np.testing.assert_allclose(got, [[1 - 1 / 3, -2 / 3, 0.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("kind", ["group", "batch", "none", "leave_one_out"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, -1e6])
def test_equal_rewards_give_exactly_zero(kind: str, reward: float) -> None:
    got = advantages(np.full((3, 8), reward, np.float32), np.ones((3, 8), np.float32), kind)
    assert (np.asarray(got) == 0.0).all()


@pytest.mark.parametrize("kind", ["group", "none", "leave_one_out"])
def test_an_answer_of_weight_zero_is_not_in_the_statistics(kind: str) -> None:
    rewards = np.array([[1.0, 0.0, 99.0]], np.float32)
    got = np.asarray(advantages(rewards, np.array([[1.0, 1.0, 0.0]], np.float32), kind))
    alone = np.asarray(advantages(rewards[:, :2], np.ones((1, 2), np.float32), kind))
    np.testing.assert_allclose(got[:, :2], alone, rtol=1e-6)
    assert got[0, 2] == 0.0


def test_a_group_without_any_weight_is_silent() -> None:
    rewards, weight = np.array([[1.0, 0.0]], np.float32), np.zeros((1, 2), np.float32)
    assert (np.asarray(advantages(rewards, weight, "group")) == 0.0).all()
    assert np.asarray(zero_variance(rewards, weight)).tolist() == [True]


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="leave_one_out"):
        advantages(ONES, ONES, "median")


def test_groups_whose_rewards_lie_furthest_apart_are_chosen_first() -> None:
    rewards = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.1, 0.0], [0.0, 1.0]], np.float32)
    weight = np.ones_like(rewards)
    assert choose_groups(rewards, weight, 2) == [1, 4]
    assert choose_groups(rewards, weight, 4) == [1, 4, 3, 0]
    assert choose_groups(rewards, weight, 5) == [1, 4, 3, 0, 2]


def test_a_difference_that_has_no_weight_is_none() -> None:
    rewards = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert choose_groups(rewards, np.array([[1.0, 0.0], [1.0, 1.0]], np.float32), 1) == [1]
