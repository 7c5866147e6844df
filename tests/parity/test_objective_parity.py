"""The objective against TRL's loss and advantages on a batch's numbers; PPO's parts against their definitions.

TRL's trainer needs a model, a processor and a dataset, but its loss only reads the attributes set here, so the
function itself is called; torch's automatic differentiation gives the gradients. Intended differences are not
tested: under a sequence ratio a token keeps its own importance weight, where TRL spreads an answer's mean.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.algo.advantage import advantages, gae
from jaxrl_sql.algo.loss import grpo_loss, importance_weight, ppo_loss
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import ClipConfig, GrpoConfig, KlConfig, LossConfig, PpoConfig, replace_values
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
trl = pytest.importorskip("trl.trainer.grpo_trainer", reason="needs trl: install the extra `parity`")

pytestmark = pytest.mark.parity

B, G, T = 3, 4, 7
CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "token mean of a part": {"loss.agg_mode": "token_mean", "clip": ClipConfig(high=0.28)},
    "token mean of all": {"loss.agg_mode": "token_mean", "trl": "dapo", "kl": KlConfig(coef=0.04)},
    "constant": {"loss.agg_mode": "constant", "clip": ClipConfig(low=0.1)},
    "sequence ratio": {"loss.importance_sampling_level": "sequence", "clip": ClipConfig(low=0.03, high=0.04)},
    "dual clip, kl": {"clip": ClipConfig(dual=1.4), "kl": KlConfig(coef=0.1)},
    "importance weights, kl": {"loss.tis_clip_max": 1.1, "kl": KlConfig(coef=0.1), "clip": ClipConfig(high=0.3)},
    "entropy bonus": {"loss.entropy_bonus": 0.02, "loss.agg_mode": "token_mean"},
}  # fmt: skip
TRL_LOSS = {"sequence_mean": "grpo", "token_mean": "bnpo", "constant": "dr_grpo"}


def make_batch(seed: int) -> tuple[np.ndarray, np.ndarray, GroupBatch]:
    """Draw log-probabilities, entropies and a batch around them; no answer is empty: TRL averages those differently."""
    r = np.random.default_rng(seed)
    shape = (B, G, T)
    logprob = r.normal(-2, 0.5, shape).astype(np.float32)

    def near(spread: float) -> jax.Array:
        return jnp.asarray(logprob + r.normal(0, spread, shape), jnp.float32)

    mask = r.random(shape) < 0.7
    mask[..., 0] = True
    batch = GroupBatch(
        shared=(Segment(jnp.zeros((B, 1), jnp.int32), jnp.ones((B,), jnp.int32)),),
        completion=jnp.zeros(shape, jnp.int32),
        completion_len=jnp.asarray(r.integers(1, T + 1, (B, G))),
        loss_mask=jnp.asarray(mask),
        behavior_logprobs=near(0.2),
        rollout_logprobs=near(0.2),
        reward=jnp.zeros((B, G)),
        weight=jnp.ones((B, G)),
        truncated=jnp.zeros((B, G), bool),
        old_logprobs=near(0.3),
        reference_logprobs=near(0.4),
        advantage=jnp.asarray(r.normal(size=(B, G, 1)), jnp.float32),
    )
    return logprob, r.random(shape).astype(np.float32), batch


def trl_loss(cfg: GrpoConfig, kind: str, logprob: Any, entropy: Any, batch: GroupBatch) -> Any:
    """Call TRL's loss on rows [B·G,T]."""

    def rows(x: Any) -> Any:
        return torch.tensor(np.asarray(x).reshape(B * G, -1))

    inside = np.arange(T) < np.asarray(batch.completion_len)[..., None]
    weights, _ = importance_weight(
        batch.old_logprobs, batch.behavior_logprobs, batch.policy_mask(), cfg.loss.tis_clip_max  # type: ignore[arg-type]
    )  # fmt: skip
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprob, entropy, None),
        args=SimpleNamespace(
            delta=cfg.clip.dual or None, use_bias_correction_kl=False, steps_per_generation=1, entropy_coef=0.0
        ),
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, **_: x, num_processes=1, sync_gradients=False),
        model=SimpleNamespace(training=True),
        importance_sampling_level=cfg.loss.importance_sampling_level,
        loss_type=kind,
        beta=cfg.kl.coef,
        epsilon_low=cfg.clip.low,
        epsilon_high=cfg.clip.high,
        max_completion_length=T,
        use_vllm=cfg.loss.tis_clip_max > 0,
        vllm_importance_sampling_correction=True,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=cfg.loss.entropy_bonus > 0,
        use_adaptive_entropy=False,
        entropy_coef=cfg.loss.entropy_bonus,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {
        "prompt_ids": torch.zeros((B * G, 1), dtype=torch.long),
        "prompt_mask": torch.ones((B * G, 1), dtype=torch.long),
        "completion_ids": torch.zeros((B * G, T), dtype=torch.long),
        "completion_mask": rows(inside).long(),
        "tool_mask": rows(batch.loss_mask).long(),
        "advantages": rows(batch.advantage)[:, 0],
        "old_per_token_logps": rows(batch.old_logprobs),
        "ref_per_token_logps": rows(batch.reference_logprobs),
        "importance_sampling_ratio": rows(weights),
        "num_items_in_batch": rows(batch.policy_mask()).sum(),
    }
    return trl.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_match_trl(name: str) -> None:
    changes = {"loss.agg_mode": "sequence_mean", "loss.tis_clip_max": 0.0, **CASES[name]}
    kind = changes.pop("trl", TRL_LOSS[changes["loss.agg_mode"]])
    cfg = replace_values(GrpoConfig(), changes)
    for seed in range(3):
        logprob, entropy, batch = make_batch(seed)

        def mean_loss(scored: TokenLogprobs, batch: GroupBatch = batch) -> jax.Array:
            result = grpo_loss(scored, batch, cfg, on_policy=False)
            return result.sum / result.weight

        loss, grads = jax.value_and_grad(mean_loss)(TokenLogprobs(jnp.asarray(logprob), jnp.asarray(entropy)))
        leaves = [torch.tensor(x.reshape(B * G, T), requires_grad=True) for x in (logprob, entropy)]
        expected = trl_loss(cfg, kind, *leaves, batch)
        expected.backward()
        assert float(loss) == pytest.approx(float(expected.detach()), abs=1e-5)
        for got, leaf in zip(grads[:2], leaves, strict=True):
            want = np.zeros((B, G, T)) if leaf.grad is None else leaf.grad.numpy().reshape(B, G, T)
            np.testing.assert_allclose(got, want, atol=1e-5)
        assert np.abs(grads.logprob).max() > 1e-3


def trl_advantages(rewards: np.ndarray, weight: np.ndarray, scale: str) -> np.ndarray:
    """Call TRL's code from the rewards of finished answers (none for weight 0) to advantages."""
    rows = len(rewards) * rewards.shape[1]
    scores = torch.tensor(np.where(weight > 0, rewards, np.nan).reshape(rows, 1))
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, num_processes=1, process_index=0),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        args=SimpleNamespace(
            per_device_train_batch_size=rows, steps_per_generation=1, gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
        ),
        environment_factories=None, environments=None, tools=None,
        _generate=lambda _: ([[1]] * rows, [[1]] * rows, None, ["?"] * rows, None, {}, None, None),
        _calculate_rewards=lambda *_: scores,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_to_multiple_of=None, mask_truncated_completions=False, num_iterations=1, use_vllm=False, beta=0.0,
        num_generations=rewards.shape[1], multi_objective_aggregation="sum_then_normalize", scale_rewards=scale,
        reward_weights=torch.ones(1), reward_funcs=[None], reward_func_names=["reward"], log_multimodal=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _logs={"prompt": [], "completion": [], "rewards": defaultdict(list), "advantages": [], "extra": {}},
        _pending_extra_logs={}, _pending_metrics={},
    )  # fmt: skip
    result = trl.GRPOTrainer._generate_and_score_completions(trainer, [{"prompt": "?"}] * rows)
    return np.asarray(result["advantages"].numpy().reshape(rewards.shape))


@pytest.mark.parametrize(("kind", "scale"), [("batch", "batch"), ("none", "none"), ("group", "group")])
def test_advantages_match_trl(kind: str, scale: str) -> None:
    """TRL adds another constant to a group's deviation."""
    r = np.random.default_rng(4)
    for answers in (2, 8):
        rewards = (r.choice([0.0, 0.1, 1.0], (6, answers)) + r.normal(0, 0.05, (6, answers))).astype(np.float32)
        rewards[0] = 1.0
        weight = np.ones_like(rewards)
        if answers > 2 and kind != "group":
            weight[1, 0] = weight[2, :2] = 0
        got = np.asarray(advantages(rewards, weight, kind, ddof=1))
        expected = trl_advantages(rewards, weight, scale)
        if kind == "group":
            std = rewards.std(axis=1, keepdims=True, ddof=1)
            expected = expected * (std + 1e-4) / (std + 1e-6)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.97, 0.0)])
def test_gae_matches_its_definition(discount: float, gae_lambda: float) -> None:
    """Sum over l of (discount · lambda)^l times the residual l tokens later, over each answer's own tokens."""
    r = np.random.default_rng(0)
    rewards, values = (r.normal(size=(B, G, T)).astype(np.float32) for _ in range(2))
    mask = r.random((B, G, T)) < 0.7
    result, returns = gae(jnp.asarray(rewards), jnp.asarray(values), jnp.asarray(mask), discount, gae_lambda)
    for b, g in np.ndindex(B, G):
        local = mask[b, g]
        reward, value = (torch.tensor(x[b, g][local]).double() for x in (rewards, values))
        residual = reward + discount * torch.cat([value[1:], torch.zeros(1)]) - value
        powers = (discount * gae_lambda) ** torch.arange(len(residual))
        want = torch.stack([(powers[: len(residual) - t] * residual[t:]).sum() for t in range(len(residual))])
        np.testing.assert_allclose(np.asarray(result)[b, g][local], want.numpy(), atol=1e-5)
        np.testing.assert_allclose(np.asarray(returns)[b, g][local], (want + value).numpy(), atol=1e-5)


def test_ppo_loss_and_gradients_match_the_paper() -> None:
    """min(ratio A, clip(ratio) A) with an advantage per token, and the clipped value error of the released code."""
    cfg = GrpoConfig(algorithm="ppo", ppo=PpoConfig(value_coef=0.7, value_clip=0.1), loss=LossConfig(tis_clip_max=0.0))
    logprob, entropy, batch = make_batch(9)
    r = np.random.default_rng(10)
    values, before, returns, advantage = (r.normal(0, 0.2, (B, G, T)).astype(np.float32) for _ in range(4))
    batch = batch.replace(  # type: ignore[attr-defined]
        returns=jnp.asarray(returns), old_values=jnp.asarray(before), advantage=jnp.asarray(advantage)
    )

    def mean_loss(logprob: jax.Array, values: jax.Array) -> jax.Array:
        result = ppo_loss(TokenLogprobs(logprob, jnp.asarray(entropy), values), batch, cfg, on_policy=False)
        return result.sum / result.weight

    loss, grads = jax.value_and_grad(mean_loss, argnums=(0, 1))(jnp.asarray(logprob), jnp.asarray(values))
    x, v = (torch.tensor(leaf, requires_grad=True) for leaf in (logprob, values))
    old, target, start, gain = (torch.tensor(np.asarray(y)) for y in (batch.old_logprobs, returns, before, advantage))
    live = torch.tensor(np.asarray(batch.policy_mask()))
    ratio = torch.exp(x - old)
    surrogate = torch.minimum(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain)
    near = start + torch.clamp(v - start, -0.1, 0.1)
    error = torch.maximum((v - target) ** 2, (near - target) ** 2) / 2
    expected = (0.7 * error - surrogate)[live].mean()
    expected.backward()
    assert float(loss) == pytest.approx(float(expected.detach()), abs=1e-5)
    np.testing.assert_allclose(grads[0], x.grad.numpy(), atol=1e-5)
    np.testing.assert_allclose(grads[1], v.grad.numpy(), atol=1e-5)
