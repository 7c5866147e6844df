"""All updates of one step on its batch: what they compare with is found first, then the batch is learned in pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax

from jaxrl_sql.algo import loss as losses
from jaxrl_sql.algo.advantage import advantages, gae, pay_last
from jaxrl_sql.algo.step import LogprobFn, Scorer, make_scorer, make_step, slice_prompts
from jaxrl_sql.batch import GroupBatch, TrainState
from jaxrl_sql.config import GrpoConfig
from jaxrl_sql.models.ops import masked
from jaxrl_sql.models.ops.micro_batches import MicroBatches
from jaxrl_sql.types import Record

Updates = Callable[[TrainState, GroupBatch], tuple[TrainState, losses.Metrics]]
Advantage = Callable[[jax.Array, jax.Array], jax.Array]
AdvantageFn = Callable[[TrainState, GroupBatch], tuple[GroupBatch, losses.Metrics]]
OldLogprobFn = Callable[[TrainState, GroupBatch], GroupBatch]


def needs_old_logprobs(cfg: GrpoConfig) -> bool:
    """Return whether the old policy's log-probabilities are found before the updates, apart from them."""
    in_reward = cfg.kl.coef > 0 and cfg.kl.placement == "reward"
    has_moved = cfg.num_iterations * cfg.minibatches > 1 or cfg.steps_per_generation > 1
    return cfg.algorithm == "ppo" or in_reward or has_moved


def micro_batches_of(cfg: GrpoConfig, ways: int = 1, minibatches: int = 1) -> MicroBatches:
    """Return how so many minibatches are taken together, on a mesh that cuts a batch's prompts into `ways`."""
    return MicroBatches(cfg.gradient_accumulation_steps * minibatches, cfg.max_tokens_per_device, ways)


def make_advantage_fn(
    policy: LogprobFn, cfg: GrpoConfig, advantage: Advantage | None = None, ways: int = 1
) -> AdvantageFn:
    """Return the function that fills in what a batch's answers are compared with, and their advantages.

    Each where it is needed: old log-probabilities (and values) under the state's policy, reference log-probabilities,
    the KL taken off the rewards, advantages over the whole batch.

    A batch that arrives with `old_logprobs` keeps them: batch RL, where answers of one fixed policy are generated in
    bulk, given their log-probabilities by `make_old_logprob_fn`, and learned by many calls, the policy moving on.

    A recipe may bring its own `advantage(rewards [B,G], weight [B,G]) -> [B,G]` in place of a group's comparison.
    `ways`: into how many shards a mesh cuts the batch's prompts, here and below.
    """
    is_ppo, needs_old = cfg.algorithm == "ppo", needs_old_logprobs(cfg)
    score = make_scorer(policy, micro_batches_of(cfg, ways, cfg.minibatches))
    default = partial(advantages, kind=cfg.advantage, ddof=cfg.group_std_ddof)
    compare = jax.jit(partial(compared, cfg=cfg, advantage=advantage or default))

    def fill_in(state: TrainState, batch: GroupBatch) -> tuple[GroupBatch, losses.Metrics]:
        _minibatch_size(batch, cfg)
        if needs_old and (batch.old_logprobs is None or (is_ppo and batch.old_values is None)):
            batch = _with_old(score, state, batch)
        if cfg.kl.coef > 0 and batch.reference_logprobs is None:
            reference = score(state.reference, state.frozen, _as_sampled(batch))[0]
            batch = dataclasses.replace(batch, reference_logprobs=reference)
        found, metrics = compare(batch)
        return dataclasses.replace(batch, **found), metrics

    return fill_in


def make_updates(
    policy: LogprobFn,
    cfg: GrpoConfig,
    optimizer: optax.GradientTransformation,
    loss: Callable[..., losses.Loss] | None = None,
    ways: int = 1,
) -> Updates:
    """Return the function that makes a step's `num_iterations` x `minibatches` updates on a batch with advantages.

    Every iteration takes the same pieces in the same order. A recipe may bring its own
    `loss(scored, batch, cfg=, on_policy=) -> Loss`. Groups are not split, but by `cfg.max_tokens_per_device` where one
    is too much. Raises ValueError when B is not divided by the minibatches.
    """
    objective = loss or (losses.ppo_loss if cfg.algorithm == "ppo" else losses.grpo_loss)
    steps = {
        on_policy: make_step(
            policy,
            partial(objective, cfg=cfg, on_policy=on_policy),
            optimizer,
            micro_batches_of(cfg, ways),
        )
        for on_policy in (True, False)
    }
    merge = jax.jit(lambda metrics: losses.merge(jax.tree.map(lambda *x: jnp.stack(x), *metrics)))

    def updates(state: TrainState, batch: GroupBatch) -> tuple[TrainState, losses.Metrics]:
        size = _minibatch_size(batch, cfg)
        update, metrics_list = steps[batch.old_logprobs is None], []
        for start in [i * size for _ in range(cfg.num_iterations) for i in range(cfg.minibatches)]:
            part = batch if cfg.minibatches == 1 else slice_prompts(batch, start, start + size)
            state, metrics = update(state, part)
            metrics_list.append(metrics)
        return state, merge(metrics_list)

    return updates


def _minibatch_size(batch: GroupBatch, cfg: GrpoConfig) -> int:
    """Return the prompts of a minibatch; raise ValueError when B is not divided by the minibatches."""
    size, rest = divmod(batch.completion.shape[0], cfg.minibatches)
    if rest:
        raise ValueError(f"{batch.completion.shape[0]} prompts are not divided by {cfg.minibatches} minibatches")
    return size


def make_old_logprob_fn(policy: LogprobFn, parts: int | MicroBatches = 1) -> OldLogprobFn:
    """Return the function that fills in a batch's old log-probabilities, and values where the policy has a value head.

    Log-probabilities that the batch holds already are kept. The batch is scored in `parts`, one after another.
    """
    return partial(_with_old, make_scorer(policy, parts))


def _with_old(score: Scorer, state: TrainState, batch: GroupBatch) -> GroupBatch:
    logprob, value = score(state.trainable, state.frozen, _as_sampled(batch))
    logprob = logprob if batch.old_logprobs is None else batch.old_logprobs
    return dataclasses.replace(batch, old_logprobs=logprob, old_values=value)


def _as_sampled(batch: GroupBatch) -> GroupBatch:
    """Return a batch without what was found since: what it knows already makes no scorer's program of its own."""
    return dataclasses.replace(batch, old_logprobs=None, old_values=None, reference_logprobs=None)


def compared(batch: GroupBatch, cfg: GrpoConfig, advantage: Advantage) -> tuple[Record, losses.Metrics]:
    """Compare answers: -> the batch's new fields (advantage, and returns with a value head), and metrics.

    With the KL in the reward each trained token costs `kl` times its estimate of old policy against reference: GRPO
    takes an answer's sum off its reward before answers are compared, PPO takes each off its own token's reward.
    """
    mask = batch.trained()
    metrics: losses.Metrics = {}
    cost = jnp.zeros(mask.shape, jnp.float32)
    if cfg.kl.coef > 0 and cfg.kl.placement == "reward":
        old = losses.stored(batch.old_logprobs, "old_logprobs")
        reference = losses.stored(batch.reference_logprobs, "reference_logprobs")
        sampled = losses.sampled_tokens(batch, mask)
        kl = losses.kl_penalty(old, reference, sampled, cfg.kl.estimator)
        metrics["policy/kl"], cost = masked.sum_and_count(kl, sampled), cfg.kl.coef * kl
    if cfg.algorithm != "ppo":
        return {"advantage": advantage(batch.reward - jnp.sum(cost, axis=-1), batch.weight)[..., None]}, metrics
    values = losses.stored(batch.old_values, "old_values: the policy has no value head")
    raw, returns = gae(pay_last(batch.reward, mask) - cost, values, mask, cfg.ppo.discount, cfg.ppo.gae_lambda)
    learned = losses.learned_tokens(batch, cfg.loss)
    spread, unexplained = (masked.masked_variance(x, learned) for x in (returns, returns - values))
    metrics["value/explained_variance"] = spread - unexplained, spread
    return {"advantage": masked.standardize(raw, learned), "returns": returns}, metrics
