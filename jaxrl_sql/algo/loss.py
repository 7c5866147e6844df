"""The losses, each as a sum and the weight it is to be divided by.

Sums travel with their weights: a batch cut into parts, padded, or spread over devices gives the same loss, because
the division comes last and by the global weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.config import GrpoConfig, LossConfig
from jaxrl_sql.models.ops import masked
from jaxrl_sql.models.ops.token_distribution import TokenLogprobs

Metrics = dict[str, tuple[jax.Array, jax.Array]]


POSITIONS = (0, 256, 1024, 4096)
"""Where the bands of positions begin by which rollout and training are compared."""


class Loss(NamedTuple):
    """A loss that is still a sum, its weight, and what to log beside it (name -> (sum, weight))."""

    sum: jax.Array
    weight: jax.Array
    metrics: Metrics


def sft_loss(scored: TokenLogprobs, batch: GroupBatch) -> Loss:
    """Negative log-likelihood of the trained tokens, a mean over tokens."""
    mask = batch.trained()
    nll = masked.sum_and_count(-scored.logprob, mask)
    return Loss(*nll, {"sft/loss": nll, "policy/entropy": masked.sum_and_count(scored.entropy, mask)})


def grpo_loss(scored: TokenLogprobs, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool) -> Loss:
    """GRPO's clipped surrogate with a KL penalty and an entropy bonus.

    The surrogate is min(ratio A, clip(ratio, 1 - clip.low, 1 + clip.high) A) (Schulman et al. 2017, arXiv:1707.06347;
    separate bounds: DAPO, arXiv:2503.14476), for A < 0 bounded below by clip.dual A when that is above 1 (Ye et al.
    2020, arXiv:1912.09729). It is weighted by exp(old - behavior), detached and capped at `loss.tis_clip_max`, token
    by token, which corrects for an engine that sampled from another distribution (0 leaves the weight out).

    A demonstration was sampled by nobody (mixed-policy GRPO: LUFFY, Yan et al. 2025, arXiv:2504.14945): its importance
    weight is 1 (there the policy's own probability, shaped), its ratio is not clipped, and entropy, KL and what
    compares with the sampler are of the sampled tokens alone: they tell something of the policy that draws them.

    `on_policy` says that this is the only update on the batch: old is then the policy itself, detached. Otherwise
    raises ValueError when `batch.old_logprobs` are not stored.
    """
    loss = cfg.loss
    mask = learned_tokens(batch, loss)
    advantage = stored(batch.advantage, "advantage")
    old = stored(scored.logprob if on_policy else batch.old_logprobs, "old_logprobs, which several updates need")
    old = jax.lax.stop_gradient(old)
    ratio = policy_ratio(scored.logprob, old, mask, loss.importance_sampling_level)
    clipped = jnp.clip(ratio, 1.0 - cfg.clip.low, 1.0 + cfg.clip.high)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    if cfg.clip.dual > 1.0:
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, cfg.clip.dual * advantage), surrogate)
    sampled = sampled_tokens(batch, mask)
    if batch.demonstrated is not None:
        surrogate = jnp.where(batch.demonstrated[..., None], ratio * advantage, surrogate)
    correction, capped = importance_weight(old, batch.behavior_logprobs, sampled, loss.tis_clip_max)
    per_token = -correction * surrogate
    if loss.entropy_bonus:  # a gradient by the entropy costs a product with the vocabulary: none is asked for by 0
        per_token -= loss.entropy_bonus * jnp.where(sampled, scored.entropy, 0.0)
    metrics = {
        "policy/entropy": masked.sum_and_count(scored.entropy, sampled),
        "policy/ratio_mean": masked.sum_and_count(ratio, sampled),
        "policy/ratio_max": (masked.masked_max(ratio, sampled), jnp.ones(())),
        "policy/clip_fraction_low": masked.sum_and_count((ratio < clipped) & (advantage < 0), sampled),
        "policy/clip_fraction_high": masked.sum_and_count((ratio > clipped) & (advantage > 0), sampled),
        "policy/importance_weight": masked.sum_and_count(correction, sampled),
        "policy/importance_capped": masked.sum_and_count(capped, sampled),
        "policy/advantage_size": masked.sum_and_count(jnp.abs(advantage), mask),
        **sampler_metrics(old, batch.rollout_logprobs, sampled),
    }
    if cfg.kl.coef > 0 and cfg.kl.placement == "loss":
        if cfg.kl.estimator == "k1":
            raise ValueError("k1 as a loss has zero expected gradient: take k2 or k3, or put the KL in the reward")
        reference = stored(batch.reference_logprobs, "reference_logprobs")
        kl = kl_penalty(scored.logprob, reference, sampled, cfg.kl.estimator)
        per_token = per_token + cfg.kl.coef * kl
        metrics["policy/kl"] = masked.sum_and_count(kl, sampled)
    total, weight = aggregate(per_token, mask, batch.weight > 0, loss)
    return Loss(total, weight, {**metrics, "policy/loss": (total, weight)})


def ppo_loss(scored: TokenLogprobs, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool) -> Loss:
    """Add to the policy's loss `ppo.value_coef` times half the squared error of the value head, aggregated alike.

    With `ppo.value_clip` above 0 the error is the larger of the value's own and that of the value within `value_clip`
    of what it was before the first update, so that no update takes it further than that.
    """
    policy, mask = grpo_loss(scored, batch, cfg, on_policy), learned_tokens(batch, cfg.loss)
    value = stored(scored.value, "value: the policy has no value head")
    target, before = stored(batch.returns, "returns"), stored(batch.old_values, "old_values")
    error = (value - target) ** 2
    if cfg.ppo.value_clip > 0:
        near = before + jnp.clip(value - before, -cfg.ppo.value_clip, cfg.ppo.value_clip)
        error = jnp.maximum(error, (near - target) ** 2)
    total, weight = aggregate(0.5 * error, mask, batch.weight > 0, cfg.loss)
    return Loss(policy.sum + cfg.ppo.value_coef * total, weight, {**policy.metrics, "value/loss": (total, weight)})


def learned_tokens(batch: GroupBatch, cfg: LossConfig) -> jax.Array:
    """Return the tokens that enter the loss, [B,G,T] bool: the trained ones, without truncated answers if so asked."""
    mask = batch.trained()
    return mask & ~batch.truncated[..., None] if cfg.mask_truncated else mask


def sampled_tokens(batch: GroupBatch, mask: jax.Array) -> jax.Array:
    """Return those of the tokens [B,G,T] of `mask` that the policy sampled: a demonstration's are not."""
    return mask if batch.demonstrated is None else mask & ~batch.demonstrated[..., None]


def policy_ratio(logprob: jax.Array, old: jax.Array, mask: jax.Array, kind: str) -> jax.Array:
    """Return the ratio of policy to old policy [B,G,T], on the full temperature-scaled distribution.

    `token`: exp(logprob - old) of each. `sequence`: the geometric mean of an answer's token ratios, clipped as one
    (GSPO, arXiv:2507.18071); its gradient reaches each token through its own logprob, so that a token's importance
    weight stays its own (GSPO-token; without such weights it is GSPO).
    """
    log_ratio = jnp.where(mask, logprob - old, 0.0)
    if kind == "sequence":
        fixed = jax.lax.stop_gradient(log_ratio)
        log_ratio = log_ratio - fixed + masked.masked_mean(fixed, mask, axis=-1)[..., None]
    elif kind != "token":
        raise ValueError(f"ratio must be token or sequence, not {kind!r}")
    return jnp.exp(log_ratio)


def kl_penalty(logprob: jax.Array, reference: jax.Array, mask: jax.Array, kind: str) -> jax.Array:
    """Estimate the KL divergence to the reference policy a token (Schulman 2020, "Approximating KL divergence").

    With d = reference - logprob: k1 = -d and k3 = exp(d) - d - 1 are unbiased values of KL(policy, reference), and
    k2 = d²/2 a biased one of low variance: any of them may be subtracted from a reward. As losses they are other
    things: k1 has zero expected gradient (`grpo_loss` refuses it), k2 has that of the reverse KL(policy, reference),
    which is what is meant, and k3 that of the *forward* KL(reference, policy).
    """
    d = jnp.where(mask, reference - logprob, 0.0)
    if kind == "k1":
        return -d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return jnp.exp(d) - d - 1.0
    raise ValueError(f"kl.estimator must be k1, k2 or k3, not {kind!r}")


def importance_weight(old: jax.Array, behavior: jax.Array, mask: jax.Array, cap: float) -> tuple[jax.Array, jax.Array]:
    """Return exp(old - behavior), detached, at most `cap`, and where it was capped; 1 where the mask or `cap` is 0."""
    if cap <= 0:
        return jnp.ones_like(old), jnp.zeros_like(mask)
    gap = jnp.where(mask, jax.lax.stop_gradient(old) - behavior, 0.0)
    limit = math.log(cap)
    return jnp.exp(jnp.minimum(gap, limit)), gap > limit


def sampler_metrics(old: jax.Array, rollout: jax.Array, mask: jax.Array) -> Metrics:
    """Compare the trainer's log-probabilities [B,G,T] with those of the engine that sampled the tokens.

    The mean and the largest absolute difference, of all tokens and of those from some positions on, up to the next; and
    the k3 estimate of KL(engine, trainer), the mean of exp(d) - d - 1 with d = trainer - engine.
    """
    d = jnp.where(mask, old - rollout, 0.0)
    delta = jnp.abs(d)
    found = {
        "policy/sampler_delta_mean": masked.sum_and_count(delta, mask),
        "policy/sampler_delta_max": (masked.masked_max(delta, mask), jnp.ones(())),
        "policy/sampler_kl": masked.sum_and_count(jnp.expm1(d) - d, mask),
    }
    position, length = jnp.arange(mask.shape[-1]), mask.shape[-1]
    for start, stop in zip(POSITIONS, (*POSITIONS[1:], length), strict=True):
        if start < length > POSITIONS[1]:
            here = mask & (start <= position) & (position < stop)
            found[f"policy/sampler_delta_mean/from_{start}"] = masked.sum_and_count(delta, here)
    return found


def aggregate(
    per_token: jax.Array, mask: jax.Array, counted: jax.Array, cfg: LossConfig
) -> tuple[jax.Array, jax.Array]:
    """Reduce token losses [B,G,T] to a sum and its weight, by `cfg.agg_mode`.

    `token_mean`: every token counts the same; `sequence_mean`: the mean of each completion's mean; `constant`: the
    token sum divided by the `counted` [B,G] completions times `cfg.max_completion_tokens` (0: T), whatever their
    lengths and however many of them are masked (Dr. GRPO, arXiv:2503.20783).
    """
    if cfg.agg_mode == "token_mean":
        return masked.sum_and_count(per_token, mask)
    if cfg.agg_mode == "sequence_mean":
        answers = jnp.sum(jnp.any(mask, axis=-1)).astype(jnp.float32)
        return jnp.sum(masked.masked_mean(per_token, mask, axis=-1)), answers
    if cfg.agg_mode == "constant":
        length = cfg.max_completion_tokens or per_token.shape[-1]
        return masked.masked_sum(per_token, mask), jnp.sum(counted).astype(jnp.float32) * length
    raise ValueError(f"agg_mode must be token_mean, sequence_mean or constant, not {cfg.agg_mode!r}")


def merge(stacked: Metrics) -> Metrics:
    """Merge metrics that came one after another, each leaf with an axis more: sums add up, `_max` takes the largest."""
    return {
        name: (jnp.max(amount), weight[0]) if name.endswith("_max") else (jnp.sum(amount), jnp.sum(weight))
        for name, (amount, weight) in stacked.items()
    }


def stored(values: jax.Array | None, name: str) -> jax.Array:
    """Return what a batch must hold by now; raises ValueError naming what it does not."""
    if values is None:
        raise ValueError(f"the batch holds no {name}")
    return values
