"""Losses: each term against values computed by hand, and invariances."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.algo import loss as losses
from jaxrl_sql.algo.advantage import advantages
from jaxrl_sql.algo.loss import merge
from jaxrl_sql.algo.step import slice_prompts
from jaxrl_sql.algo.updates import advantage_fields
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import ClipConfig, GrpoConfig, KlConfig, LossConfig, PpoConfig, replace_values
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs, penalize
from jaxrl_sql.models.ops.truncation import EVERY_LIMIT, truncate

PLAIN = GrpoConfig(loss=LossConfig(tis_clip_max=0.0))
# One compiled program per shape; without jit each operation would be compiled separately. Hence NumPy arrays.
aggregate = jax.jit(losses.aggregate, static_argnames="cfg")
grpo_loss = jax.jit(losses.grpo_loss, static_argnames=("cfg", "on_policy"))
importance_weight = jax.jit(losses.importance_weight, static_argnames="cap")
kl_penalty = jax.jit(losses.kl_penalty, static_argnames="kind")
policy_ratio = jax.jit(losses.policy_ratio, static_argnames="kind")
ppo_loss = jax.jit(losses.ppo_loss, static_argnames=("cfg", "on_policy"))
sampler_metrics = jax.jit(losses.sampler_metrics)
sft_loss = jax.jit(losses.sft_loss)


def make_batch(lengths: list[list[int]], width: int, **arguments: Any) -> GroupBatch:
    b, g = np.shape(lengths)
    per_token = np.zeros((b, g, width), np.float32)
    batch = GroupBatch(
        shared=(Segment(np.zeros((b, 4), np.int32), np.full((b,), 4, np.int32)),),
        completion=np.zeros((b, g, width), np.int32),
        completion_len=np.array(lengths, np.int32),
        loss_mask=np.ones((b, g, width), bool),
        behavior_logprobs=per_token,
        rollout_logprobs=per_token,
        old_logprobs=per_token,
        reference_logprobs=per_token,
        advantage=np.ones((b, g, 1), np.float32),
        reward=np.zeros((b, g), np.float32),
        weight=np.ones((b, g), np.float32),
        truncated=np.zeros((b, g), bool),
    )
    return dataclasses.replace(jax.tree.map(jnp.asarray, batch), **arguments)


def scored(logprob: Any) -> TokenLogprobs:
    x = jnp.asarray(logprob, jnp.float32)
    return TokenLogprobs(x, jnp.asarray(np.zeros(x.shape, np.float32)))


def grad_of(function: Any, x: Any) -> jax.Array:
    return jax.jit(jax.grad(function))(x)  # type: ignore[no-any-return]


def value(logprob: Any, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool = False) -> float:
    result = grpo_loss(scored(logprob), batch, cfg, on_policy)
    return float(result.sum / result.weight)


def test_sft_loss_is_the_mean_over_tokens_within_length_and_mask() -> None:
    mask = np.array([[[False, True, True]], [[True, True, True]]])
    batch = make_batch([[3], [1]], 3, loss_mask=mask)
    result = sft_loss(scored([[[-9.0, -1.0, -2.0]], [[-3.0, -9.0, -9.0]]]), batch)
    assert float(result.sum) == pytest.approx(6.0)
    assert float(result.weight) == 3.0


def test_surrogate_is_the_minimum_of_ratio_and_clipped_ratio() -> None:
    # A = 1: ratio 1.5 is clipped to 1.2; ratio 0.5 stays. A = -1: 1.5 stays, 0.5 is clipped to 0.8.
    logprob = [[[math.log(1.5), math.log(0.5)], [math.log(1.5), math.log(0.5)]]]
    batch = make_batch([[2, 2]], 2, advantage=np.array([[[1.0], [-1.0]]]))
    assert value(logprob, batch, PLAIN) == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)


def test_clip_bounds_are_separate() -> None:
    cfg = dataclasses.replace(PLAIN, clip=ClipConfig(low=0.1, high=0.3))
    batch = make_batch([[1, 1]], 1, advantage=np.array([[[1.0], [-1.0]]]))
    assert value([[[math.log(2.0)], [math.log(0.2)]]], batch, cfg) == pytest.approx(-(1.3 - 0.9) / 2)


def test_dual_clip_limits_the_loss_of_a_bad_answer() -> None:
    batch = make_batch([[1]], 1, advantage=np.array([[[-1.0]]]))
    far = [[[math.log(50.0)]]]
    assert value(far, batch, PLAIN) == pytest.approx(50.0, rel=1e-5)
    assert value(far, batch, dataclasses.replace(PLAIN, clip=ClipConfig(dual=3.0))) == pytest.approx(3.0)


def test_on_policy_the_ratio_is_one_and_the_gradient_is_the_score_function() -> None:
    batch = make_batch([[2]], 2, advantage=np.array([[[2.0]]]))
    x = np.array([[[-0.3, -4.0]]])

    def objective(logprob: jax.Array) -> jax.Array:
        result = grpo_loss(scored(logprob), batch, PLAIN, on_policy=True)
        return result.sum / result.weight

    assert float(objective(x)) == pytest.approx(-2.0)
    np.testing.assert_allclose(grad_of(objective, x), [[[-1.0, -1.0]]], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "length", "expected"),
    [
        ("token_mean", 0, 10.0 / 4),
        ("sequence_mean", 0, (2.0 + 4.0) / 2),
        ("constant", 0, 10.0 / (3 * 5)),
        ("constant", 4, 10.0 / (3 * 4)),
    ],
)
def test_aggregations_by_hand(kind: str, length: int, expected: float) -> None:
    # one completion of three tokens (1, 2, 3), one of a single token 4, a masked one, and one of weight 0
    values = np.array([[[1.0, 2.0, 3.0, 9.0, 9.0], [4.0, 9.0, 9.0, 9.0, 9.0], [9.0] * 5, [9.0] * 5]])
    mask = np.arange(5) < np.array([[3, 1, 0, 0]])[..., None]
    cfg = replace_values(PLAIN, {"loss.agg_mode": kind, "loss.max_completion_tokens": length})
    total, weight = aggregate(values, mask, np.array([[True, True, True, False]]), cfg.loss)
    assert float(total / weight) == pytest.approx(expected)


def test_constant_aggregation_ignores_padding_and_masked_answers() -> None:
    """Dr. GRPO divides by the maximum answer length, so that no answer's length scales the others."""
    cfg = replace_values(
        PLAIN, {"loss.agg_mode": "constant", "loss.max_completion_tokens": 6, "loss.mask_truncated": True}
    )
    weights = []
    for width, truncated in ((8, [[True, False]]), (12, [[False, False]])):
        batch = dataclasses.replace(make_batch([[3, 2]], width), truncated=np.array(truncated))
        weights.append(float(grpo_loss(scored(np.zeros((1, 2, width))), batch, cfg, on_policy=True).weight))
    assert weights == [2 * 6, 2 * 6]


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean"])
def test_padding_changes_no_loss(kind: str) -> None:
    cfg = replace_values(PLAIN, {"loss.agg_mode": kind})
    rng = np.random.default_rng(0)
    logprob = rng.normal(-1, 0.2, (2, 3, 4))
    lengths = [[4, 2, 1], [3, 3, 0]]
    short = value(logprob, make_batch(lengths, 4), cfg)
    padded = np.concatenate([logprob, np.full((2, 3, 5), -1e9)], axis=-1)
    assert value(padded, make_batch(lengths, 9), cfg) == pytest.approx(short, rel=1e-6)


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant"])
def test_micro_batch_losses_add_up_to_the_whole(kind: str) -> None:
    cfg = replace_values(PLAIN, {"loss.agg_mode": kind})
    logprob = np.random.default_rng(1).normal(-1, 0.3, (4, 2, 3))
    batch = make_batch([[3, 1], [2, 2], [1, 3], [0, 1]], 3)
    whole = grpo_loss(scored(logprob), batch, cfg, on_policy=False)
    for parts in (2, 4):
        size = 4 // parts
        cut = [
            grpo_loss(scored(logprob[i : i + size]), slice_prompts(batch, i, i + size), cfg, False)
            for i in range(0, 4, size)
        ]
        total, weight = sum(part.sum for part in cut), sum(part.weight for part in cut)
        assert float(total / weight) == pytest.approx(float(whole.sum / whole.weight), rel=1e-6)


def test_sampler_difference_is_reported_by_position() -> None:
    """Differences that grow with the length are reported per position."""
    length = 600
    rollout = np.full((1, 1, length), -1.0)
    old = rollout + np.where(np.arange(length) < 256, 0.01, -0.2)
    mask = np.arange(length) < np.array([[500]])[..., None]
    result = {name: float(total / weight) for name, (total, weight) in sampler_metrics(old, rollout, mask).items()}
    assert result.keys() == {
        "policy/sampler_delta_mean", "policy/sampler_delta_max", "policy/sampler_kl",
        "policy/sampler_delta_mean/from_0", "policy/sampler_delta_mean/from_256",
    }  # fmt: skip
    assert result["policy/sampler_delta_mean/from_0"] == pytest.approx(0.01, rel=1e-4)
    assert result["policy/sampler_delta_mean/from_256"] == pytest.approx(0.2, rel=1e-4)
    assert result["policy/sampler_delta_max"] == pytest.approx(0.2, rel=1e-4)
    k3 = [np.exp(d) - d - 1 for d in (0.01, -0.2)]
    assert result["policy/sampler_kl"] == pytest.approx((256 * k3[0] + 244 * k3[1]) / 500, rel=1e-3)


def test_all_masked_rows_have_no_loss_and_finite_gradients() -> None:
    batch = make_batch([[0, 0]], 3, weight=np.zeros((1, 2)))

    def objective(logprob: jax.Array) -> jax.Array:
        result = grpo_loss(scored(logprob), batch, dataclasses.replace(PLAIN, kl=KlConfig(coef=0.1)), False)
        return result.sum / jnp.maximum(result.weight, 1.0)

    x = np.full((1, 2, 3), -jnp.inf)
    assert float(objective(x)) == 0.0
    assert np.isfinite(np.asarray(grad_of(objective, x))).all()


def test_truncated_answers_can_be_masked() -> None:
    batch = make_batch([[1, 1]], 1, truncated=np.array([[True, False]]), advantage=np.array([[[5.0], [1.0]]]))
    cfg = replace_values(PLAIN, {"loss.mask_truncated": True})
    assert value([[[0.0], [0.0]]], batch, cfg) == pytest.approx(-1.0)


def test_demonstrations_have_no_importance_weight_and_no_sampler_metrics() -> None:
    """Demonstrations have zeros as log-probabilities; read as a sampler's they would take 0.9 of the weight."""
    logprob = np.log(np.array([[[0.5, 0.5], [0.1, 0.1]]]))
    same = logprob * np.array([[[1.0], [0.0]]])
    cfg = replace_values(PLAIN, {"loss.tis_clip_max": 2.0})
    logprobs = {"behavior_logprobs": same, "rollout_logprobs": same, "old_logprobs": None}
    for shown, weight in ((np.array([[False, True]]), 1.0), (None, 0.1)):
        batch = make_batch([[2, 2]], 2, demonstrated=shown, **logprobs)

        def loss(x: jax.Array, batch: GroupBatch = batch) -> jax.Array:
            return grpo_loss(TokenLogprobs(x, np.array([[[0.2, 0.4], [3.0, 3.0]]])), batch, cfg, True).sum

        np.testing.assert_allclose(grad_of(loss, logprob)[0, :, 0], [-1.0, -weight], rtol=1e-6)
        result = grpo_loss(TokenLogprobs(logprob, np.array([[[0.2, 0.4], [3.0, 3.0]]])), batch, cfg, True).metrics
        means = {
            name: float(result[f"policy/{name}"][0] / result[f"policy/{name}"][1])
            for name in ("entropy", "sampler_delta_mean")
        }
        if shown is not None:
            assert means == {"entropy": pytest.approx(0.3), "sampler_delta_mean": 0.0}
        else:
            assert means["entropy"] > 1 < means["sampler_delta_mean"]


def test_demonstrations_are_not_clipped_and_have_no_kl() -> None:
    """The reference finds a gold likelier than the policy does: exp(8) as a KL estimate would dominate the loss."""
    cfg = replace_values(PLAIN, {"kl": KlConfig(coef=0.1), "loss.entropy_bonus": 0.5})
    far = np.full((1, 2, 1), math.log(1.5))
    batch = make_batch(
        [[1, 1]], 1, demonstrated=np.array([[False, True]]), reference_logprobs=np.add(far, [[[0.0], [8.0]]])
    )
    gradient = grad_of(lambda x: grpo_loss(TokenLogprobs(x, np.ones((1, 2, 1))), batch, cfg, False).sum, far)
    np.testing.assert_allclose(gradient[0, :, 0], [0.0, -1.5], rtol=1e-6)  # ratio 1.5 would be clipped
    result = grpo_loss(TokenLogprobs(far, np.ones_like(far)), batch, cfg, False)
    assert float(result.sum) == pytest.approx(-1.2 - 1.5 - 0.5)
    assert [float(x) for x in result.metrics["policy/kl"]] == [0.0, 1.0]
    in_reward = dataclasses.replace(cfg, kl=dataclasses.replace(cfg.kl, placement="reward"), advantage="none")
    rewarded = dataclasses.replace(batch, reward=np.array([[0.0, 1.0]]), old_logprobs=far)
    fields, _ = advantage_fields(rewarded, in_reward, partial(advantages, kind="none"))
    np.testing.assert_allclose(fields["advantage"][0, :, 0], [-0.5, 0.5], atol=1e-6)


def test_importance_weight_is_detached_and_capped() -> None:
    old, drawn = np.array([0.0, -1.0, -3.0]), np.array([-5.0, -1.2, -1.0])
    mask = np.array([True, True, False])
    weight, capped = importance_weight(old, drawn, mask, 2.0)
    np.testing.assert_allclose(weight, [2.0, math.exp(0.2), 1.0], rtol=1e-6)
    assert capped.tolist() == [True, False, False]
    gradient = grad_of(lambda x: importance_weight(x, drawn, mask, 2.0)[0].sum(), old)
    assert (np.asarray(gradient) == 0.0).all()


@partial(jax.jit, static_argnames="kind")
def _expected_gradient(kind: str, theta: jax.Array, reference: jax.Array) -> jax.Array:
    """Return the exact expectation of the estimator's gradient over tokens of a categorical policy."""
    probabilities = jax.nn.softmax(theta)

    def token_gradient(token: int) -> jax.Array:
        def estimate(t: jax.Array) -> jax.Array:
            return kl_penalty(jax.nn.log_softmax(t)[token], jax.nn.log_softmax(reference)[token], np.array(True), kind)

        return jax.grad(estimate)(theta)

    return sum(probabilities[i] * token_gradient(i) for i in range(theta.shape[0]))  # type: ignore[return-value]


def test_clip_fractions_are_separate_for_both_bounds() -> None:
    # A = 1 is clipped above 1.2 (one of its three tokens), A = -1 below 0.8 (one); the other ratios are not clipped.
    batch = make_batch([[3, 3]], 3, advantage=np.array([[[1.0], [-1.0]]]))
    ratios = np.array([[[1.5, 0.5, 1.1], [1.5, 0.5, 1.1]]])
    metrics = grpo_loss(scored(np.log(ratios)), batch, PLAIN, False).metrics
    assert [float(metrics[f"policy/clip_fraction_{side}"][0]) for side in ("low", "high")] == [1.0, 1.0]
    assert float(metrics["policy/ratio_max"][0]) == pytest.approx(1.5)
    assert float(metrics["policy/ratio_mean"][0]) == pytest.approx(6.2)


def test_sequence_ratio_is_the_geometric_mean_of_token_ratios() -> None:
    # Token ratios 4 and 1 have the mean 2, whatever the masked third one is; 0.5, 0.5, 0.5 have 0.5; no tokens have 1.
    log_ratio = np.log(np.array([[[4.0, 1.0, 1e9], [0.5, 0.5, 0.5], [7.0, 7.0, 7.0]]]))
    mask = np.array([[[True, True, False], [True, True, True], [False, False, False]]])
    got = policy_ratio(log_ratio, np.zeros((1, 3, 3)), mask, "sequence")
    np.testing.assert_allclose(got, [[[2.0] * 3, [0.5] * 3, [1.0] * 3]], rtol=1e-6)


def test_sequence_ratio_is_clipped_per_answer_with_the_gspo_gradient() -> None:
    """Answers of 2, 3 and 1 tokens, A = (1, -1, 1), ratios s = (2, 0.9, 1.1), clipped to [0.8, 1.2]: only the first is.

    The loss is the mean over answers of -min(s A, clip(s) A) = -(1.2 - 0.9 + 1.1) / 3.
    For n tokens, s has the gradient s / n at each: 0 for the first answer, 0.9 / 3 / 3 for the second, -1.1 / 3 for
    the third.
    """
    cfg = replace_values(PLAIN, {"loss.importance_sampling_level": "sequence", "loss.agg_mode": "sequence_mean"})
    batch = make_batch([[2, 3, 1]], 3, advantage=np.array([[[1.0], [-1.0], [1.0]]]))
    shares = np.array([[[0.5, 1.5, 9.0], [3.0, 0.0, 0.0], [1.0, 9.0, 9.0]]])
    logs = np.log(np.array([2.0, 0.9, 1.1]))[None, :, None] * shares

    def objective(logprob: jax.Array) -> jax.Array:
        result = grpo_loss(scored(logprob), batch, cfg, on_policy=False)
        return result.sum / result.weight

    loss, gradient = jax.jit(jax.value_and_grad(objective))(logs)
    assert float(loss) == pytest.approx(-(1.2 - 0.9 + 1.1) / 3)
    np.testing.assert_allclose(gradient, [[[0, 0, 0], [0.1, 0.1, 0.1], [-1.1 / 3, 0, 0]]], atol=1e-6)


def test_importance_weights_stay_per_token_under_a_sequence_ratio() -> None:
    cfg = GrpoConfig(loss=LossConfig(importance_sampling_level="sequence", tis_clip_max=3.0))
    drawn = -np.log(np.array([[[1.0, 0.5, 5.0]]]))  # weights exp(0 - drawn) = 1, 0.5, and 5, capped at 3
    batch = make_batch([[3]], 3, behavior_logprobs=drawn)

    def objective(logprob: jax.Array) -> jax.Array:
        return grpo_loss(scored(logprob), batch, cfg, on_policy=False).sum

    np.testing.assert_allclose(grad_of(objective, np.zeros((1, 1, 3), np.float32)), [[[-1.0, -0.5, -3.0]]], rtol=1e-6)


def test_entropy_bonus_is_a_mean_over_trained_tokens() -> None:
    batch = make_batch([[2, 1]], 2, advantage=np.zeros((1, 2, 1)))
    policy = TokenLogprobs(np.zeros((1, 2, 2)), np.array([[[1.0, 2.0], [3.0, 50.0]]]))
    result = grpo_loss(policy, batch, replace_values(PLAIN, {"loss.entropy_bonus": 0.1}), False)
    assert float(result.sum / result.weight) == pytest.approx(-0.1 * 6.0 / 3)


def test_kl_loss_is_added_with_its_coefficient() -> None:
    # d = reference - logprob = ln 2 and 0: k3 is 2 - ln 2 - 1 and 0; the surrogate is 0 for A = 0.
    batch = make_batch([[2]], 2, advantage=np.zeros((1, 1, 1)), reference_logprobs=np.array([[[math.log(2), 0.0]]]))
    cfg = dataclasses.replace(PLAIN, kl=KlConfig(coef=0.3, estimator="k3"))
    assert value(np.zeros((1, 1, 2)), batch, cfg) == pytest.approx(0.3 * (1 - math.log(2)) / 2)
    assert (
        value(np.zeros((1, 1, 2)), batch, dataclasses.replace(cfg, kl=dataclasses.replace(cfg.kl, placement="reward")))
        == 0.0
    )


def test_k1_as_a_loss_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="k1 as a loss has zero expected gradient: use k2 or k3"):
        value([[[0.0]]], make_batch([[1]], 1), dataclasses.replace(PLAIN, kl=KlConfig(coef=0.1, estimator="k1")))


def test_value_loss_is_the_maximum_of_clipped_and_unclipped_error() -> None:
    """Returns are 1, old values were 0, the clip range is 0.2. Values 0.5, 0.1 and 3 are clipped to 0.2, 0.1 and 0.2.

    Squared errors: max(0.25, 0.64), max(0.81, 0.81), max(4, 0.64); half their mean is (0.64 + 0.81 + 4) / 6.
    """
    per_token = (1, 1, 3)
    batch = make_batch(
        [[3]], 3, advantage=np.zeros((1, 1, 1)), returns=np.ones(per_token), old_values=np.zeros(per_token)
    )
    cfg = dataclasses.replace(PLAIN, algorithm="ppo", ppo=PpoConfig(value_coef=2.0, value_clip=0.2))

    def objective(values: jax.Array, cfg: GrpoConfig) -> jax.Array:
        result = ppo_loss(scored(np.zeros(per_token))._replace(value=values), batch, cfg, on_policy=False)
        return result.sum / result.weight

    values = np.array([[[0.5, 0.1, 3.0]]])
    assert float(objective(values, cfg)) == pytest.approx(2 * (0.64 + 0.81 + 4) / 6)
    # The first value is outside the clip range; the others have the gradient 2 · (v - 1) / 3.
    np.testing.assert_allclose(grad_of(partial(objective, cfg=cfg), values), [[[0.0, -0.6, 4 / 3]]], rtol=1e-5)
    free = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, value_clip=0.0))
    assert float(objective(values, free)) == pytest.approx(2 * (0.25 + 0.81 + 4) / 6)


def _truncated(logits: jax.Array, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> jax.Array:
    limits = (np.array([limit]) for limit in (top_k, top_p, min_p))
    return truncate(jax.nn.log_softmax(logits)[None], *limits, EVERY_LIMIT)[0]


THETA, REWARDS = np.array([0.3, -1.0, 0.8, 0.1, -0.4]), np.array([1.0, 0.0, 0.5, -1.0, 2.0])
SAMPLERS = {
    "another temperature": lambda logits: jax.nn.log_softmax(logits / 0.7),
    "another policy": lambda logits: jax.nn.log_softmax(logits + np.array([0.3, -0.2, 0.0, 0.1, -0.4])),
    "a repetition penalty": lambda logits: jax.nn.log_softmax(
        penalize(logits[None], np.array([[True, False, True, False, False]]), np.array([1.3]))[0]
    ),
    "top-k": lambda logits: _truncated(logits, top_k=3),
    "top-p": lambda logits: _truncated(logits, top_p=0.6),
    "min-p": lambda logits: _truncated(logits, min_p=0.5),
}


@partial(jax.jit, static_argnames="cap")
def _gradients(drawn: jax.Array, cap: float) -> jax.Array:
    """Return the loss gradient of each token, given the sampler's log-probabilities `drawn`."""
    cfg = replace_values(PLAIN, {"loss.tis_clip_max": cap})
    everything = make_batch([[1]] * 5, 1, advantage=REWARDS[:, None, None], behavior_logprobs=drawn[:, None, None])

    def token_gradient(theta: jax.Array, token: int) -> jax.Array:
        batch = slice_prompts(everything, token, token + 1)
        return grpo_loss(scored(jax.nn.log_softmax(theta)[token].reshape(1, 1, 1)), batch, cfg, on_policy=True).sum

    return jnp.stack([jax.grad(token_gradient)(jnp.asarray(THETA), i) for i in range(5)])


def _expected_update(drawn: np.ndarray, cap: float) -> np.ndarray:
    """Return the exact expectation of the loss gradient over tokens of the sampler (log-probabilities `drawn`)."""
    gradients, chances = np.asarray(_gradients(drawn, cap)), np.exp(drawn)
    return sum(chances[i] * gradients[i] for i in range(5) if chances[i] > 0)  # type: ignore[return-value]


@jax.jit
def _exact_update(reachable: jax.Array) -> jax.Array:
    def mean_reward(theta: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.where(reachable, jax.nn.softmax(theta) * REWARDS, 0.0))

    return jax.grad(mean_reward)(jnp.asarray(THETA))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_importance_weights_correct_a_different_sampler_to_the_exact_gradient(sampler: str) -> None:
    """The exact gradient is that of the mean reward under the policy, over tokens that the sampler can draw."""
    drawn = np.asarray(jax.jit(SAMPLERS[sampler])(THETA))
    exact = np.asarray(_exact_update(np.isfinite(drawn)))
    np.testing.assert_allclose(_expected_update(drawn, cap=100.0), exact, atol=1e-6)
    assert np.abs(_expected_update(drawn, cap=0.0) - exact).max() > 0.02, "the sampler equals the policy"


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimators_as_losses_have_the_documented_gradients(kind: str) -> None:
    theta, reference = np.array([0.3, -1.0, 0.8, 0.1]), np.array([-0.5, 0.4, 0.2, 0.9])

    def divergence(t: jax.Array) -> jax.Array:
        p, q = jax.nn.log_softmax(t), jax.nn.log_softmax(reference)
        return jnp.sum(jnp.exp(q) * (q - p)) if kind == "k3" else jnp.sum(jnp.exp(p) * (p - q))

    exact = grad_of(divergence, theta)
    expected = np.zeros(4) if kind == "k1" else exact
    np.testing.assert_allclose(_expected_gradient(kind, theta, reference), expected, atol=1e-6)
    assert np.abs(exact).max() > 0.1


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_values_of_the_kl(kind: str) -> None:
    p, q = (logits - np.log(np.exp(logits).sum()) for logits in np.array([[0.3, -1.0, 0.8], [0.0, 0.5, 0.1]]))
    estimate = np.sum(np.exp(p) * kl_penalty(p, q, np.ones(3, bool), kind))
    assert float(estimate) == pytest.approx(float(np.sum(np.exp(p) * (p - q))), rel=1e-5)


def test_unknown_loss_choices_are_rejected() -> None:
    with pytest.raises(ValueError, match="k2 or k3"):
        kl_penalty(np.zeros(1), np.zeros(1), np.ones(1, bool), "k4")
    with pytest.raises(ValueError, match="token or sequence"):
        policy_ratio(np.zeros(1), np.zeros(1), np.ones(1, bool), "group")
    cfg = replace_values(PLAIN, {"loss.agg_mode": "mean"})
    with pytest.raises(ValueError, match="token_mean"):
        aggregate(np.zeros((1, 1, 1)), np.ones((1, 1, 1), bool), np.ones((1, 1), bool), cfg.loss)


def test_merged_metrics_sum_amounts_and_keep_maxima() -> None:
    stacked = {"loss": (np.array([2.0, 3.0]), np.array([1.0, 9.0])), "x_max": (np.array([-3.0, -2.0]), np.ones(2))}
    merged = jax.tree.map(float, merge(stacked))
    assert merged == {"loss": (5.0, 10.0), "x_max": (-2.0, 1.0)}
