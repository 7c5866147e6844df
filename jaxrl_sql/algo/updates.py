"""The updates of one step: add old and reference log-probabilities and advantages, then update by minibatch.

A step has `grpo.num_iterations` passes over its batch, each in `grpo.minibatches` updates. The old policy is the one
before the first of them. Each minibatch may run as several micro-batches, to save memory (`algo.step`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl_sql.algo import loss as losses
from jaxrl_sql.algo.advantage import advantages, gae, reward_last_token
from jaxrl_sql.algo.step import LogprobFn, Scorer, make_scorer, make_step, slice_prompts
from jaxrl_sql.batch import GroupBatch, TrainState
from jaxrl_sql.config import GrpoConfig
from jaxrl_sql.models.ops import masked
from jaxrl_sql.models.ops.micro_batches import MicroBatches
from jaxrl_sql.runtime.progress import ProgressCallback, no_progress
from jaxrl_sql.types import Record

# (rewards [B,G], weight [B,G]) -> advantages [B,G].
Advantage = Callable[[jax.Array, jax.Array], jax.Array]
# Add advantages, and the fields that they and the loss need, to a batch.
AdvantageFn = Callable[[TrainState, GroupBatch], tuple[GroupBatch, losses.Metrics]]
# Add old log-probabilities and values to a batch.
OldLogprobFn = Callable[[TrainState, GroupBatch], GroupBatch]


class Updates(Protocol):
    """Run all updates of a step on a batch with advantages."""

    def __call__(
        self, state: TrainState, batch: GroupBatch, on_progress: ProgressCallback = no_progress
    ) -> tuple[TrainState, losses.Metrics]:
        """Return the new state and the metrics; `on_progress` is called with the number of finished updates."""
        ...


def needs_old_logprobs(cfg: GrpoConfig) -> bool:
    """Return whether the old policy's log-probabilities are computed in a pass before the updates.

    They are needed if a batch has several updates, so that the policy differs from the old policy, for the KL in the
    reward, and for PPO, which needs the old values. Otherwise the loss takes the policy's own, detached.
    """
    in_reward = cfg.kl.coef > 0 and cfg.kl.placement == "reward"
    is_off_policy = cfg.num_iterations * cfg.minibatches > 1 or cfg.steps_per_generation > 1
    return cfg.algorithm == "ppo" or in_reward or is_off_policy


def micro_batches_of(cfg: GrpoConfig, num_shards: int = 1, minibatches: int = 1) -> MicroBatches:
    """Return the micro-batch settings of a pass over `minibatches` minibatches together.

    `num_shards`: number of shards over which a mesh splits the prompts.
    """
    return MicroBatches(cfg.gradient_accumulation_steps * minibatches, cfg.max_tokens_per_device, num_shards)


def make_advantage_fn(
    policy: LogprobFn, cfg: GrpoConfig, advantage: Advantage | None = None, num_shards: int = 1
) -> AdvantageFn:
    """Return the function that computes a batch's advantages and the log-probabilities that they and the loss need.

    Depending on `cfg` it adds old log-probabilities (and values) under the state's policy, adds reference
    log-probabilities, and subtracts the KL from rewards. Advantages are computed over the whole batch.

    Existing `old_logprobs` are not replaced. This serves batch RL: answers of one fixed policy are generated in bulk,
    scored by `make_old_logprob_fn`, and used in many calls while the policy changes.

    `advantage`: a recipe's own function (rewards [B,G], weight [B,G]) -> advantages [B,G]; None: `cfg.advantage`. A
    recipe is a set of functions for one method's prompts, rewards and objective. `num_shards`: number of shards over
    which a mesh splits the prompts.
    """
    is_ppo, needs_old = cfg.algorithm == "ppo", needs_old_logprobs(cfg)
    score = make_scorer(policy, micro_batches_of(cfg, num_shards, cfg.minibatches))
    default = partial(advantages, kind=cfg.advantage, ddof=cfg.group_std_ddof)
    compute_fields = jax.jit(partial(advantage_fields, cfg=cfg, advantage=advantage or default))

    def add_advantages(state: TrainState, batch: GroupBatch) -> tuple[GroupBatch, losses.Metrics]:
        _minibatch_size(batch, cfg)  # raises an error early, before the passes of the model
        if needs_old and (batch.old_logprobs is None or (is_ppo and batch.old_values is None)):
            batch = _add_old_logprobs(score, state, batch)
        if cfg.kl.coef > 0 and batch.reference_logprobs is None:
            reference = score(state.reference, state.frozen, _without_computed_fields(batch))[0]
            batch = dataclasses.replace(batch, reference_logprobs=reference)
        fields, metrics = compute_fields(batch)
        return dataclasses.replace(batch, **fields), metrics

    return add_advantages


def make_updates(
    policy: LogprobFn,
    cfg: GrpoConfig,
    optimizer: optax.GradientTransformation,
    loss: Callable[..., losses.Loss] | None = None,
    num_shards: int = 1,
) -> Updates:
    """Return the function that runs `num_iterations` x `minibatches` updates on a batch with advantages.

    Every iteration takes the same minibatches in the same order. Progress counts the updates that the devices have
    finished. The last is not reported, because the caller waits for it. `loss`: a recipe's own function
    (scored, batch, cfg=, on_policy=) -> Loss; None: that of `cfg.algorithm`. `num_shards`: number of shards over which
    a mesh splits the prompts. A group is split into micro-batches only when it exceeds `cfg.max_tokens_per_device`.
    The function raises ValueError when B is not a multiple of `cfg.minibatches`.
    """
    objective = loss or (losses.ppo_loss if cfg.algorithm == "ppo" else losses.grpo_loss)
    steps = {
        on_policy: make_step(
            policy,
            partial(objective, cfg=cfg, on_policy=on_policy),
            optimizer,
            micro_batches_of(cfg, num_shards),
        )
        for on_policy in (True, False)
    }
    merge = jax.jit(lambda metrics: losses.merge(jax.tree.map(lambda *x: jnp.stack(x), *metrics)))

    def updates(
        state: TrainState, batch: GroupBatch, on_progress: ProgressCallback = no_progress
    ) -> tuple[TrainState, losses.Metrics]:
        size = _minibatch_size(batch, cfg)
        on_policy = batch.old_logprobs is None  # this is the only update on the batch (`needs_old_logprobs`)
        update, metrics_list = steps[on_policy], list[losses.Metrics]()
        for start in [i * size for _ in range(cfg.num_iterations) for i in range(cfg.minibatches)]:
            minibatch = batch if cfg.minibatches == 1 else slice_prompts(batch, start, start + size)
            state, metrics = update(state, minibatch)
            if on_progress is not no_progress:  # wait for the previous update, while the devices run this one
                jax.block_until_ready(metrics_list[-1:])
                on_progress(len(metrics_list))
            metrics_list.append(metrics)
        return state, merge(metrics_list)

    return updates


def _minibatch_size(batch: GroupBatch, cfg: GrpoConfig) -> int:
    """Return the number of prompts per minibatch; raises ValueError when B is not a multiple of the minibatches."""
    size, rest = divmod(batch.completion.shape[0], cfg.minibatches)
    if rest:
        raise ValueError(f"{batch.completion.shape[0]} prompts are not divisible by {cfg.minibatches} minibatches")
    return size


def make_old_logprob_fn(policy: LogprobFn, parts: int | MicroBatches = 1) -> OldLogprobFn:
    """Return the function that adds old log-probabilities, and the values of a value head, to a batch.

    Existing log-probabilities are not replaced. The batch is scored as `parts` micro-batches, one at a time.
    """
    return partial(_add_old_logprobs, make_scorer(policy, parts))


def _add_old_logprobs(score: Scorer, state: TrainState, batch: GroupBatch) -> GroupBatch:
    """Score a batch with the state's policy: add `old_values`, and `old_logprobs` unless it has them."""
    logprob, value = score(state.trainable, state.frozen, _without_computed_fields(batch))
    logprob = logprob if batch.old_logprobs is None else batch.old_logprobs
    return dataclasses.replace(batch, old_logprobs=logprob, old_values=value)


def _without_computed_fields(batch: GroupBatch) -> GroupBatch:
    """Remove computed fields from a batch, so that all scorers see one structure and share a compiled program."""
    return dataclasses.replace(batch, old_logprobs=None, old_values=None, reference_logprobs=None)


def advantage_fields(batch: GroupBatch, cfg: GrpoConfig, advantage: Advantage) -> tuple[Record, losses.Metrics]:
    """Compute the advantages of a batch (and the returns with a value head) and their metrics.

    If the KL is in the reward (`cfg.kl.placement`), each sampled token costs `cfg.kl.coef` times the estimate of
    KL(old policy, reference) at it. GRPO subtracts the sum over an answer from its reward, PPO subtracts per token.
    The fields are those of GroupBatch: `advantage` [B,G,1] for GRPO; `advantage`, standardized over the tokens of the
    loss, and `returns`, both [B,G,T], for PPO. Raises ValueError when a field that they need is None.
    """
    mask = batch.policy_mask()
    metrics: losses.Metrics = {}
    cost = jnp.zeros(mask.shape, jnp.float32)
    if cfg.kl.coef > 0 and cfg.kl.placement == "reward":
        old = losses.require_field(batch.old_logprobs, "old_logprobs")
        reference = losses.require_field(batch.reference_logprobs, "reference_logprobs")
        sampled = losses.sampled_tokens(batch, mask)
        kl = losses.kl_penalty(old, reference, sampled, cfg.kl.estimator)
        metrics["policy/kl"], cost = masked.sum_and_count(kl, sampled), cfg.kl.coef * kl
    if cfg.algorithm != "ppo":
        return {"advantage": advantage(batch.reward - jnp.sum(cost, axis=-1), batch.weight)[..., None]}, metrics
    values = losses.require_field(batch.old_values, "old_values: the policy has no value head")
    token_rewards = reward_last_token(batch.reward, mask) - cost
    estimates, returns = gae(token_rewards, values, mask, cfg.ppo.discount, cfg.ppo.gae_lambda)
    in_loss = losses.tokens_in_loss(batch, cfg.loss)
    variance, residual_variance = (masked.masked_variance(x, in_loss) for x in (returns, returns - values))
    # As (sum, weight), so the logged value is 1 - residual variance / variance.
    metrics["value/explained_variance"] = variance - residual_variance, variance
    return {"advantage": masked.standardize(estimates, in_loss), "returns": returns}, metrics
