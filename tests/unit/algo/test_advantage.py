"""Advantages against values computed by hand."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_sql.algo import advantage
from jaxrl_sql.algo.advantage import EPSILON, choose_groups, reward_last_token, zero_variance

# One compiled program per shape; without jit each operation would be compiled separately.
advantages = jax.jit(advantage.advantages, static_argnames=("kind", "ddof"))
gae = jax.jit(advantage.gae)


ONES = np.ones((1, 4), np.float32)


def test_group_scale_divides_by_the_population_std() -> None:
    # mean 0.5, each deviation 0.5: the std with ddof 0 is 0.5
    got = advantages(np.array([[1.0, 0.0, 1.0, 0.0]], np.float32), ONES, "group")
    unit = 0.5 / (0.5 + EPSILON)
    np.testing.assert_allclose(got, [[unit, -unit, unit, -unit]], rtol=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_group_scale_divides_by_the_std_with_the_configured_ddof(ddof: int) -> None:
    """Answers of weight 0 are excluded; ddof 1 is the `std` of torch, which TRL and verl use."""
    r = np.random.default_rng(0)
    for group in (2, 5, 16):
        rewards = r.normal(0.4, 0.3, (6, group)).astype(np.float32)
        weight = np.ones_like(rewards)
        weight[0, 2:3] = 0
        got = np.asarray(advantages(rewards, weight, "group", ddof))
        for row, remaining, result in zip(rewards, weight > 0, got, strict=True):
            mean, n = sum(row[remaining]) / remaining.sum(), remaining.sum()
            std = (sum((x - mean) ** 2 for x in row[remaining]) / (n - ddof)) ** 0.5
            np.testing.assert_allclose(
                result, np.where(remaining, (row - mean) / (std + EPSILON), 0.0), rtol=1e-4, atol=1e-5
            )


def test_scale_none_only_subtracts_the_mean() -> None:
    got = advantages(np.array([[1.0, 0.1, 0.1, 0.0]], np.float32), ONES, "none")
    np.testing.assert_allclose(got, [[0.7, -0.2, -0.2, -0.3]], atol=1e-6)


def trl_batch(rewards: np.ndarray) -> np.ndarray:
    """Scale like TRL's `scale_rewards="batch"`: torch's `std` (ddof 1) over all rewards."""
    mean = rewards.mean(axis=1, keepdims=True)
    return np.asarray((rewards - mean) / (rewards.std(ddof=1) + 1e-4))


def test_batch_scale_divides_by_the_std_of_all_rewards_like_trl() -> None:
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], np.float32)
    # mean 0.5, six deviations of 0.5: 6 · 0.25 / 5 = 0.3
    got = advantages(rewards, np.ones((3, 2), np.float32), "batch")
    unit = 0.5 / (np.sqrt(0.3) + 1e-4)
    np.testing.assert_allclose(got, [[unit, -unit], [0.0, 0.0], [0.0, 0.0]], rtol=1e-5)
    r = np.random.default_rng(0)
    for shape in ((1, 2), (3, 4), (16, 8)):
        rewards = r.choice([0.0, 0.1, 1.0], shape).astype(np.float32) + r.normal(0, 0.1, shape).astype(np.float32)
        got = advantages(rewards, np.ones(shape, np.float32), "batch")
        np.testing.assert_allclose(got, trl_batch(rewards), rtol=2e-5, atol=1e-6)


def test_batch_centered_uses_the_std_of_all_centred_rewards() -> None:
    rewards = np.array([[1.0, 0.0], [0.5, 0.5]], np.float32)
    # centred: ±0.5, 0, 0: variance (0.25 + 0.25) / 4 = 0.125
    got = advantages(rewards, np.ones((2, 2), np.float32), "batch_centered")
    unit = 0.5 / (np.sqrt(0.125) + EPSILON)
    np.testing.assert_allclose(got, [[unit, -unit], [0.0, 0.0]], rtol=1e-5)


def test_leave_one_out_subtracts_the_mean_of_the_other_answers() -> None:
    got = advantages(np.array([[1.0, 0.0, 0.5, 0.5]], np.float32), ONES, "leave_one_out")
    np.testing.assert_allclose(got, [[1 - 1 / 3, -2 / 3, 0.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("kind", ["group", "batch", "batch_centered", "none", "leave_one_out"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0, -1e6])
def test_equal_rewards_give_zero_advantage_exactly(kind: str, reward: float) -> None:
    got = advantages(np.full((3, 8), reward, np.float32), np.ones((3, 8), np.float32), kind)
    assert (np.asarray(got) == 0.0).all()


@pytest.mark.parametrize("kind", ["group", "batch", "batch_centered", "none", "leave_one_out"])
def test_answers_of_weight_zero_are_excluded_from_the_statistics(kind: str) -> None:
    rewards = np.array([[1.0, 0.0, 99.0]], np.float32)
    got = np.asarray(advantages(rewards, np.array([[1.0, 1.0, 0.0]], np.float32), kind))
    alone = np.asarray(advantages(rewards[:, :2], np.ones((1, 2), np.float32), kind))
    np.testing.assert_allclose(got[:, :2], alone, rtol=1e-6)
    assert got[0, 2] == 0.0


def test_group_without_weight_has_zero_advantage() -> None:
    rewards, weight = np.array([[1.0, 0.0]], np.float32), np.zeros((1, 2), np.float32)
    assert (np.asarray(advantages(rewards, weight, "group")) == 0.0).all()
    assert np.asarray(zero_variance(rewards, weight)).tolist() == [True]


def test_unknown_advantage_kind_is_rejected() -> None:
    with pytest.raises(ValueError, match="leave_one_out"):
        advantages(ONES, ONES, "median")


def test_groups_with_the_largest_reward_spread_are_chosen_first() -> None:
    rewards = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.1, 0.0], [0.0, 1.0]], np.float32)
    weight = np.ones_like(rewards)
    assert choose_groups(rewards, weight, 2) == [1, 4]
    assert choose_groups(rewards, weight, 4) == [1, 4, 3, 0]
    assert choose_groups(rewards, weight, 5) == [1, 4, 3, 0, 2]


def test_group_choice_ignores_answers_without_weight() -> None:
    rewards = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert choose_groups(rewards, np.array([[1.0, 0.0], [1.0, 1.0]], np.float32), 1) == [1]


REWARD = np.array([[[0.0, -0.1, 1.0]]], np.float32)
VALUES = np.array([[[0.5, 0.2, 0.4]]], np.float32)


@pytest.mark.parametrize(
    ("discount", "gae_lambda", "expected"),
    [
        # One-step residuals: 0.2 - 0.5; -0.1 + 0.4 - 0.2; 1 - 0.4.
        (1.0, 0.0, [-0.3, 0.1, 0.6]),
        # Remaining reward minus the value: 0.9 - 0.5; 0.9 - 0.2; 1 - 0.4.
        (1.0, 1.0, [0.4, 0.7, 0.6]),
        # Backwards: 1 - 0.4 = 0.6; (-0.1 + 0.5·0.4 - 0.2) + 0.25·0.6 = 0.05; (0.5·0.2 - 0.5) + 0.25·0.05.
        (0.5, 0.5, [-0.3875, 0.05, 0.6]),
    ],
)
def test_gae_by_hand(discount: float, gae_lambda: float, expected: list[float]) -> None:
    result, returns = gae(REWARD, VALUES, np.ones((1, 1, 3), bool), discount, gae_lambda)  # type: ignore[arg-type]
    np.testing.assert_allclose(result[0, 0], expected, atol=1e-6)
    np.testing.assert_allclose(returns, result + VALUES, atol=1e-6)


def test_gae_skips_environment_tokens() -> None:
    """Environment tokens between and after the policy's tokens change neither the numbers nor the discounting."""
    mask = np.array([[[False, True, False, False, True, True, False]]])
    rewards, values = (np.full((1, 1, 7), 9.0, np.float32) for _ in range(2))
    rewards[mask], values[mask] = REWARD[0, 0], VALUES[0, 0]
    spread, returns = gae(rewards, values, mask, 0.9, 0.8)  # type: ignore[arg-type]
    close, _ = gae(REWARD, VALUES, np.ones((1, 1, 3), bool), 0.9, 0.8)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.asarray(spread)[mask], close[0, 0], rtol=1e-6)
    assert (np.asarray(spread)[~mask] == 0).all()
    assert (np.asarray(returns)[~mask] == 0).all()


def test_reward_is_paid_at_the_last_policy_token() -> None:
    mask = np.array([[[True, True, False, True, False], [False, False, False, False, False]]])
    paid = reward_last_token(np.array([[2.0, 5.0]], np.float32), mask)  # type: ignore[arg-type]
    np.testing.assert_array_equal(paid, [[[0, 0, 0, 2, 0], [0, 0, 0, 0, 0]]])


def test_groups_of_a_database_are_selected_together() -> None:
    """Two of three databases with three groups each are chosen, and the two groups of largest spread in each."""
    spread = [0.2, 0.9, 0.1, 1.0, 0.0, 0.0, 0.4, 0.0, 0.5]
    rewards = np.array([[0.0, item] for item in spread], np.float32)
    assert choose_groups(rewards, np.ones((9, 2)), 4, prompts_per_schema=2, sampled_per_schema=3) == [1, 0, 3, 4]
    assert choose_groups(rewards, np.ones((9, 2)), 2, prompts_per_schema=2, sampled_per_schema=3) == [1, 0]
