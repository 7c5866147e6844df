"""Updates of one step on a tabular policy, against values computed by hand."""

from __future__ import annotations

import dataclasses
import math
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_sql.algo.advantage import EPSILON, advantages
from jaxrl_sql.algo.loss import Loss, aggregate, grpo_loss
from jaxrl_sql.algo.step import init_state, make_step, slice_prompts
from jaxrl_sql.algo.updates import advantage_fields, make_advantage_fn, make_old_logprob_fn, make_updates
from jaxrl_sql.batch import GroupBatch, Segment, TrainState
from jaxrl_sql.config import ClipConfig, GrpoConfig, KlConfig, LossConfig, PpoConfig, replace_values
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs, score

B, G, T, V = 4, 3, 5, 6
PLAIN = GrpoConfig(loss=LossConfig(tis_clip_max=0.0), group_std_ddof=0)
PPO = dataclasses.replace(PLAIN, algorithm="ppo")
SGD = optax.sgd(0.5)


def table(trainable: Any, frozen: Any, batch: GroupBatch) -> TokenLogprobs:
    """Read a policy from a table: position t samples from softmax(theta[t]), and its value is value[t]."""
    del frozen
    scored = score(jnp.broadcast_to(trainable["theta"], (*batch.completion.shape, V)), batch.completion)
    values = trainable.get("value")
    return scored if values is None else scored._replace(value=jnp.broadcast_to(values, batch.completion.shape))


score_table = jax.jit(table)
compute_advantages = jax.jit(advantage_fields, static_argnames=("cfg", "advantage"))


def make_theta(seed: int) -> dict[str, Any]:
    return {"theta": jnp.asarray(np.random.default_rng(seed).normal(size=(T, V)), jnp.float32)}


def make_batch(seed: int = 0, b: int = B, **arguments: Any) -> GroupBatch:
    r = np.random.default_rng(seed)
    shape = (b, G, T)
    batch = GroupBatch(
        shared=(Segment(jnp.asarray(np.zeros((b, 2), np.int32)), jnp.asarray(np.full((b,), 2))),),
        completion=jnp.asarray(r.integers(0, V, shape)),
        completion_len=jnp.asarray(r.integers(1, T + 1, shape[:2])),
        loss_mask=jnp.asarray(r.random(shape) < 0.8),
        behavior_logprobs=jnp.asarray(np.full(shape, -1.8, np.float32)),
        rollout_logprobs=jnp.asarray(np.full(shape, -1.8, np.float32)),
        reward=jnp.asarray(r.random(shape[:2]), jnp.float32),
        weight=jnp.asarray(np.ones(shape[:2], np.float32)),
        truncated=jnp.asarray(np.zeros(shape[:2], bool)),
    )
    return dataclasses.replace(batch, **arguments)


def learn(cfg: GrpoConfig, batch: GroupBatch, start: Any = None, reference: Any = None, **local: Any) -> Any:
    start = make_theta(1) if start is None else start
    state = init_state(jax.tree.map(jnp.copy, start), SGD, reference=reference)
    return grpo_step(cfg, **local)(state, batch)


@cache
def grpo_step(cfg: GrpoConfig, loss: Any = None, advantage: Any = None) -> Any:
    """Return the advantage computation and the updates of a step; equal configs share compiled programs."""
    add_advantages, update = make_advantage_fn(table, cfg, advantage), make_updates(table, cfg, SGD, loss)

    def step(state: TrainState, batch: GroupBatch) -> tuple[TrainState, Any]:
        batch, result = add_advantages(state, batch)
        state, metrics = update(state, batch)
        return state, {**metrics, **result}

    return step


def assert_same(got: Any, want: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), got, want)


def test_first_update_is_the_gradient_of_the_clipped_loss_at_ratio_one() -> None:
    """Computed independently: at ratio 1 the loss is -A logprob, a mean over tokens."""
    batch, start = make_batch(), make_theta(1)
    rewards = np.asarray(batch.reward)
    unit = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + EPSILON)
    mask = np.asarray(batch.policy_mask())

    def by_hand(theta: jax.Array) -> jax.Array:
        logprob = jnp.take_along_axis(
            jnp.broadcast_to(jax.nn.log_softmax(theta), (B, G, T, V)), batch.completion[..., None], axis=-1
        )[..., 0]
        return -jnp.sum(jnp.where(mask, logprob * unit[..., None], 0.0)) / mask.sum()

    state, metrics = learn(PLAIN, batch)
    assert_same(state.trainable["theta"], start["theta"] - 0.5 * jax.jit(jax.grad(by_hand))(start["theta"]))
    assert int(state.step) == 1
    assert float(metrics["policy/ratio_max"][0]) == 1.0
    assert float(metrics["policy/advantage_size"][0]) == pytest.approx(np.abs(unit[..., None] * mask).sum(), rel=1e-5)


def test_all_updates_of_a_step_compare_with_the_policy_before_the_first() -> None:
    cfg = dataclasses.replace(PLAIN, num_iterations=2, minibatches=2, clip=ClipConfig(high=0.02))
    batch, start = make_batch(), make_theta(1)
    state, metrics = learn(cfg, batch)
    known = dataclasses.replace(
        batch,
        old_logprobs=score_table(start, None, batch).logprob,
        advantage=advantages(batch.reward, batch.weight, "group")[..., None],
    )
    step = make_step(table, partial(grpo_loss, cfg=cfg, on_policy=False), SGD)
    expected = init_state(jax.tree.map(jnp.copy, start), SGD)
    for first in (0, 2, 0, 2):
        expected, _ = step(expected, slice_prompts(known, first, first + 2))
    assert int(state.step) == 4
    assert_same(state.trainable, expected.trainable)
    assert float(metrics["policy/ratio_max"][0]) > 1.03
    clipped, tokens = metrics["policy/clip_fraction_high"]
    assert 0 < float(clipped) < float(tokens)
    assert float(tokens) == 2 * float(batch.policy_mask().sum())


def test_each_update_is_reported_when_the_one_before_has_finished() -> None:
    cfg = dataclasses.replace(PLAIN, num_iterations=2, minibatches=2)
    add_advantages, update = make_advantage_fn(table, cfg), make_updates(table, cfg, SGD)
    state = init_state(jax.tree.map(jnp.copy, make_theta(1)), SGD)
    batch, _ = add_advantages(state, make_batch())
    reports: list[int] = []
    state, _ = update(state, batch, reports.append)
    assert reports == [0, 1, 2, 3]  # the caller waits for the last
    assert_same(state.trainable, learn(cfg, make_batch())[0].trainable)


def test_several_updates_without_stored_old_logprobs_are_an_error() -> None:
    batch = make_batch(advantage=jnp.ones((B, G, 1)))
    with pytest.raises(ValueError, match="has no old_logprobs, which several updates need"):
        grpo_loss(score_table(make_theta(1), None, batch), batch, PLAIN, on_policy=False)


def test_old_logprobs_of_a_batch_are_used() -> None:
    """Batch RL: two calls learn from samples of one fixed policy, and the second still compares with that policy."""
    cfg = dataclasses.replace(PLAIN, kl=KlConfig(coef=0.1, placement="reward"))
    sampling_params, reference, blocks = make_theta(1), make_theta(2), [make_batch(0), make_batch(3)]
    state = init_state(jax.tree.map(jnp.copy, sampling_params), SGD, reference=reference)
    stored = [make_old_logprob_fn(table)(state, block) for block in blocks]
    updates = grpo_step(cfg)
    state, first = updates(state, stored[0])
    state, second = updates(state, stored[1])
    np.testing.assert_array_equal(stored[1].old_logprobs, score_table(sampling_params, None, blocks[1]).logprob)
    assert float(first["policy/ratio_max"][0]) == pytest.approx(1.0, abs=1e-6)
    assert float(second["policy/ratio_max"][0]) > 1.001
    # The KL is that of the sampling policy, so the policy's move between the calls does not change it.
    again = make_old_logprob_fn(table)(init_state(sampling_params, SGD), blocks[1])
    _, alone = updates(init_state(jax.tree.map(jnp.copy, sampling_params), SGD, reference=reference), again)
    assert float(second["policy/kl"][0]) == pytest.approx(float(alone["policy/kl"][0]), rel=1e-6)


def test_storing_old_logprobs_again_keeps_the_first() -> None:
    batch = make_batch(old_logprobs=jnp.full((B, G, T), -7.0))
    stored = make_old_logprob_fn(table)(init_state(make_theta(1), SGD), batch)
    assert (np.asarray(stored.old_logprobs) == -7.0).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_subtracted_before_the_advantage(kind: str) -> None:
    """Two answers of two tokens each; old - reference is (0.2, 0.2) and (-0.3, 0.2).

    The second answer's second token belongs to the environment and has no cost. So k1 sums to 0.4 and -0.3, k2 to
    0.04 and 0.045, k3 to 2·(exp(-0.2) - 0.8) and exp(0.3) - 1.3. For kl = 0.5 and rewards 1 and 0 the unscaled
    advantage is ±(1 - 0.5·(cost₁ - cost₂)) / 2.
    """
    sums = {
        "k1": (0.4, -0.3), "k2": (0.04, 0.045), "k3": (2 * (math.exp(-0.2) - 0.8), math.exp(0.3) - 1.3)
    }[kind]  # fmt: skip
    cfg = dataclasses.replace(PLAIN, kl=KlConfig(coef=0.5, placement="reward", estimator=kind), advantage="none")
    batch = make_batch(
        completion=np.zeros((1, 2, 2), np.int32), completion_len=np.array([[2, 2]], np.int32),
        loss_mask=np.array([[[True, True], [True, False]]]), reward=np.array([[1.0, 0.0]], np.float32),
        weight=np.ones((1, 2), np.float32), truncated=np.zeros((1, 2), bool),
        reference_logprobs=np.full((1, 2, 2), -1.0, np.float32),
        old_logprobs=np.array([[[-0.8, -0.8], [-1.3, -0.8]]], np.float32),
    )  # fmt: skip
    result, metrics = compute_advantages(batch, cfg, partial(advantages, kind="none"))
    half = (1 - 0.5 * (sums[0] - sums[1])) / 2
    np.testing.assert_allclose(result["advantage"], [[[half], [-half]]], rtol=1e-5)
    assert float(metrics["policy/kl"][0]) == pytest.approx(sum(sums), rel=1e-5)
    assert float(metrics["policy/kl"][1]) == 3.0


def test_kl_in_the_reward_equals_a_smaller_reward() -> None:
    batch, start, reference = make_batch(), make_theta(1), make_theta(2)
    cfg = dataclasses.replace(
        PLAIN, kl=KlConfig(coef=0.2, placement="reward", estimator="k1"), advantage="leave_one_out"
    )
    mask = np.asarray(batch.policy_mask())
    gap = np.asarray(score_table(start, None, batch).logprob - score_table(reference, None, batch).logprob)
    less = dataclasses.replace(batch, reward=batch.reward - 0.2 * np.where(mask, gap, 0).sum(-1))
    got, _ = learn(cfg, batch, reference=reference)
    want, _ = learn(dataclasses.replace(cfg, kl=dataclasses.replace(cfg.kl, coef=0.0)), less)
    plain, _ = learn(dataclasses.replace(cfg, kl=dataclasses.replace(cfg.kl, coef=0.0)), batch)
    assert_same(got.trainable, want.trainable)
    assert np.abs(np.asarray(got.trainable["theta"] - plain.trainable["theta"])).max() > 1e-3


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_answer_without_weight_changes_nothing(algorithm: str, placement: str) -> None:
    cfg = dataclasses.replace(PLAIN, kl=KlConfig(coef=0.2, placement=placement), algorithm=algorithm, advantage="batch")
    weight = jnp.ones((B, G)).at[1, 2].set(0.0)
    start = {**make_theta(1), "value": np.linspace(0.0, 0.5, T, dtype=np.float32)}
    start = start if algorithm == "ppo" else make_theta(1)
    results = []
    for reward, token in ((0.0, 0), (math.nan, 5)):
        batch = make_batch(weight=weight)
        batch = dataclasses.replace(
            batch,
            reward=batch.reward.at[1, 2].set(reward),
            completion=batch.completion.at[1, 2].set(token),
            completion_len=batch.completion_len.at[1, 2].set(T if token else 1),
        )
        results.append(learn(cfg, batch, start, reference=make_theta(2))[0].trainable)
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert np.isfinite(np.asarray(results[0]["theta"])).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"kl": KlConfig(coef=0.1, placement="reward")},
        {
            "kl": KlConfig(coef=0.1, estimator="k2"),
            "loss": LossConfig(importance_sampling_level="sequence", agg_mode="sequence_mean"),
            "advantage": "batch",
        },
        {
            "algorithm": "ppo",
            "ppo": PpoConfig(gae_lambda=0.9),
            "kl": KlConfig(coef=0.1, placement="reward"),
            "num_iterations": 2,
        },
        {
            "loss": LossConfig(agg_mode="constant", mask_truncated=True, entropy_bonus=0.1),
            "clip": ClipConfig(dual=2.0),
        },
    ],
)
@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_gradient_accumulation_changes_no_result(changes: dict[str, Any], parts: int) -> None:
    """Parts differ in the number of tokens and of truncated answers; statistics are those of the whole batch."""
    cfg = dataclasses.replace(GrpoConfig(group_std_ddof=0), **changes)
    start = make_theta(1) | ({"value": np.linspace(0.0, 0.5, T, dtype=np.float32)} if cfg.algorithm == "ppo" else {})
    batch = make_batch(truncated=jnp.zeros((B, G), bool).at[0].set(True).at[2, 1].set(True))
    whole, expected = learn(cfg, batch, start, make_theta(2))
    got, metrics = learn(dataclasses.replace(cfg, gradient_accumulation_steps=parts), batch, start, make_theta(2))
    assert_same(got.trainable, whole.trainable)
    assert_same(metrics, expected)


def test_indivisible_batch_is_rejected() -> None:
    with pytest.raises(ValueError, match="4 prompts are not divisible by 3 minibatches"):
        learn(dataclasses.replace(PLAIN, minibatches=3), make_batch())


def test_recipe_may_define_its_advantage_and_loss() -> None:
    def signs(rewards: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sign(rewards - 0.5) * weight

    def plain_loss(scored: TokenLogprobs, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool) -> Loss:
        assert on_policy
        return Loss(*aggregate(-scored.logprob * batch.advantage, batch.policy_mask(), batch.weight > 0, cfg.loss), {})

    got, _ = learn(PLAIN, make_batch(), advantage=signs, loss=plain_loss)
    want, _ = learn(PLAIN, make_batch(), advantage=signs)
    assert_same(got.trainable, want.trainable)
    assert np.abs(np.asarray(got.trainable["theta"] - learn(PLAIN, make_batch())[0].trainable["theta"])).max() > 1e-3


def test_ppo_advantage_uses_values_and_not_the_group() -> None:
    """Each answer has two tokens; values are 0.5 and 0.2, rewards 1 and 0; lambda 1, discount 1.

    Advantages are reward - value: (0.5, 0.8) and (-0.5, -0.2), with mean 0.15 and variance
    (0.35² + 0.65² + 0.65² + 0.35²) / 4 = 0.2725. Returns are the rewards, with variance 0.25. The residual variance is
    0.2725, so the explained variance is -9 %.
    """
    batch = make_batch(
        completion=np.zeros((2, 1, 2), np.int32), completion_len=np.full((2, 1), 2, np.int32),
        loss_mask=np.ones((2, 1, 2), bool), reward=np.array([[1.0], [0.0]], np.float32),
        weight=np.ones((2, 1), np.float32),
        truncated=np.zeros((2, 1), bool), old_values=np.array([[[0.5, 0.2]], [[0.5, 0.2]]], np.float32),
    )  # fmt: skip
    result, metrics = compute_advantages(batch, PPO, partial(advantages, kind="group"))
    std = math.sqrt(0.2725)
    np.testing.assert_allclose(result["advantage"][:, 0] * std, [[0.35, 0.65], [-0.65, -0.35]], atol=1e-5)
    np.testing.assert_allclose(result["returns"][:, 0], [[1, 1], [0, 0]], atol=1e-6)
    explained, spread = metrics["value/explained_variance"]
    assert float(explained / spread) == pytest.approx(-0.09, abs=1e-6)


def test_ppo_learns_values_and_the_better_token() -> None:
    """The first token alone decides the reward: its value and its probability rise."""
    cfg = dataclasses.replace(PPO, num_iterations=2, minibatches=2, ppo=PpoConfig(value_clip=0.0, value_coef=2.0))
    r = np.random.default_rng(5)
    start = {"theta": jnp.zeros((T, V)), "value": jnp.zeros(T)}
    state = init_state(start, SGD)
    updates = grpo_step(cfg)
    value_losses = []
    for seed in range(8):
        tokens = r.integers(0, V, (B, G, T))
        batch = make_batch(
            seed, completion=jnp.asarray(tokens), completion_len=np.full((B, G), T, np.int32),
            loss_mask=np.ones((B, G, T), bool), reward=jnp.asarray(2.0 + (tokens[..., 0] == 3), jnp.float32),
        )  # fmt: skip
        state, metrics = updates(state, batch)
        value_losses.append(float(metrics["value/loss"][0]))
    assert int(state.step) == 32
    assert value_losses[-1] < 0.2 * value_losses[0]
    np.testing.assert_allclose(state.trainable["value"], np.full(T, 2.2), atol=0.3)
    chances = np.asarray(jax.nn.softmax(state.trainable["theta"][0]))
    assert chances.argmax() == 3
    assert chances[3] > 0.3


def test_ppo_without_a_value_head_is_rejected() -> None:
    with pytest.raises(ValueError, match="no value head"):
        learn(PPO, make_batch())


def test_update_reports_all_metrics() -> None:
    cfg = replace_values(PPO, {"kl": KlConfig(coef=0.1), "loss.tis_clip_max": 1.5})
    start = make_theta(1) | {"value": jnp.zeros(T)}
    _, metrics = learn(cfg, make_batch(), start, make_theta(2))
    assert metrics.keys() == {
        "policy/entropy", "policy/ratio_mean", "policy/ratio_max", "policy/clip_fraction_low",
        "policy/clip_fraction_high", "policy/importance_weight", "policy/importance_capped", "policy/advantage_size",
        "policy/sampler_delta_mean", "policy/sampler_delta_max", "policy/sampler_kl", "policy/kl", "policy/loss",
        "value/loss", "value/explained_variance", "optim/grad_norm", "optim/param_norm",
    }  # fmt: skip
    batch = make_batch()
    mask = np.asarray(batch.policy_mask())
    gap = np.asarray(score_table(start, None, batch).logprob) + 1.8
    weights = np.minimum(np.exp(gap), 1.5)[mask]
    assert float(metrics["policy/importance_weight"][0]) == pytest.approx(weights.sum(), rel=1e-5)
    assert float(metrics["policy/importance_capped"][0]) == (np.exp(gap)[mask] > 1.5).sum()
    assert float(metrics["policy/sampler_delta_max"][0]) == pytest.approx(np.abs(gap[mask]).max(), rel=1e-5)
