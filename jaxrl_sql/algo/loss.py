"""Losses, each returned as a sum and its weight.

The weight is the number to divide the sum by, such as the number of tokens. The caller divides once, by the weight of
the whole batch. So micro-batches, padding and sharding do not change the loss.

Four policies occur. The policy is the one being trained. The old policy is the trainer's before the first update on a
batch. The sampler (the rollout engine) generated the tokens, with slightly different numerics and possibly
truncation. The reference policy is fixed, for the KL penalty. Letters of shapes: B prompts, G completions per prompt,
T tokens per completion.
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
"""Metrics by name: (sum, weight), whose mean is logged; (maximum, 1) if the name ends in `_max`."""

POSITIONS = (0, 256, 1024, 4096)
"""First token positions of the ranges in which the log-probabilities of sampler and trainer are compared.

Each range ends before the next begins, the last at the end of the completion.
"""


class Loss(NamedTuple):
    """The sum of a loss, the weight to divide it by, and metrics to log."""

    sum: jax.Array
    weight: jax.Array
    metrics: Metrics


def sft_loss(scored: TokenLogprobs, batch: GroupBatch) -> Loss:
    """Compute the negative log-likelihood of the trained tokens; the weight is their number."""
    mask = batch.policy_mask()
    nll = masked.sum_and_count(-scored.logprob, mask)
    return Loss(*nll, {"sft/loss": nll, "policy/entropy": masked.sum_and_count(scored.entropy, mask)})


def grpo_loss(scored: TokenLogprobs, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool) -> Loss:
    """Compute GRPO's clipped surrogate with a KL penalty and an entropy bonus.

    The surrogate is min(ratio A, clip(ratio, 1 - clip.low, 1 + clip.high) A) (Schulman et al. 2017, arXiv:1707.06347;
    separate bounds: DAPO, arXiv:2503.14476). With `clip.dual` above 1 it is at least clip.dual A for A < 0 (Ye et al.
    2020, arXiv:1912.09729). Each token's term is multiplied by the importance weight exp(old - behavior), detached and
    capped at `loss.tis_clip_max`, because the sampler's distribution differs slightly from the old policy's.
    `tis_clip_max` 0 disables this weight. `batch.behavior_logprobs` are the sampler's log-probabilities after
    truncation (top-k, top-p, min-p). `batch.rollout_logprobs` are those of its full distribution, for the metrics.

    Demonstrations (mixed-policy GRPO: LUFFY, Yan et al. 2025, arXiv:2504.14945) are correct answers that the policy
    did not sample. Their importance weight is 1 (LUFFY uses a function of the policy's probability), and their ratio
    is not clipped. Entropy, KL and the comparison with the sampler cover sampled tokens only.

    `on_policy`: this is the only update on the batch, so the old log-probabilities are the policy's own, detached, and
    the ratio is 1. Otherwise raises ValueError when `batch.old_logprobs` is missing.
    """
    loss = cfg.loss
    mask = tokens_in_loss(batch, loss)
    advantage = require_field(batch.advantage, "advantage")
    old = require_field(scored.logprob if on_policy else batch.old_logprobs, "old_logprobs, which several updates need")
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
    if loss.entropy_bonus:  # the entropy's gradient costs a product with the vocabulary, which 0 avoids
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
            raise ValueError("k1 as a loss has zero expected gradient: use k2 or k3, or add the KL to the reward")
        reference = require_field(batch.reference_logprobs, "reference_logprobs")
        kl = kl_penalty(scored.logprob, reference, sampled, cfg.kl.estimator)
        per_token = per_token + cfg.kl.coef * kl
        metrics["policy/kl"] = masked.sum_and_count(kl, sampled)
    total, weight = aggregate(per_token, mask, batch.weight > 0, loss)
    return Loss(total, weight, {**metrics, "policy/loss": (total, weight)})


def ppo_loss(scored: TokenLogprobs, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool) -> Loss:
    """Add `ppo.value_coef` times half the squared error of the value head to the policy loss, aggregated the same way.

    With `ppo.value_clip` above 0 the error is the larger of two: that of the value, and that of the value clipped to
    within `value_clip` of its value before the first update.
    """
    policy, mask = grpo_loss(scored, batch, cfg, on_policy), tokens_in_loss(batch, cfg.loss)
    value = require_field(scored.value, "value: the policy has no value head")
    target, old_value = require_field(batch.returns, "returns"), require_field(batch.old_values, "old_values")
    error = (value - target) ** 2
    if cfg.ppo.value_clip > 0:
        clipped_value = old_value + jnp.clip(value - old_value, -cfg.ppo.value_clip, cfg.ppo.value_clip)
        error = jnp.maximum(error, (clipped_value - target) ** 2)
    total, weight = aggregate(0.5 * error, mask, batch.weight > 0, cfg.loss)
    return Loss(policy.sum + cfg.ppo.value_coef * total, weight, {**policy.metrics, "value/loss": (total, weight)})


def tokens_in_loss(batch: GroupBatch, cfg: LossConfig) -> jax.Array:
    """Return the tokens in the loss, [B,G,T] bool: the policy mask; `cfg.mask_truncated` excludes truncated answers."""
    mask = batch.policy_mask()
    return mask & ~batch.truncated[..., None] if cfg.mask_truncated else mask


def sampled_tokens(batch: GroupBatch, mask: jax.Array) -> jax.Array:
    """Return the tokens of `mask` [B,G,T] that the policy sampled, which excludes demonstrations."""
    return mask if batch.demonstrated is None else mask & ~batch.demonstrated[..., None]


def policy_ratio(logprob: jax.Array, old: jax.Array, mask: jax.Array, kind: str) -> jax.Array:
    """Return the ratio of policy to old policy [B,G,T], on the full temperature-scaled distribution.

    kind `token`: exp(logprob - old) per token. kind `sequence`: the geometric mean of an answer's token ratios, the
    same for all its tokens (GSPO, arXiv:2507.18071). Its gradient at each token is with respect to that token's
    log-probability only (GSPO-token), so per-token importance weights can be applied. Without importance weights the
    result equals GSPO.
    """
    log_ratio = jnp.where(mask, logprob - old, 0.0)
    if kind == "sequence":
        # The value is the mean over the answer; the difference log_ratio - detached is 0 and only adds the gradient.
        detached = jax.lax.stop_gradient(log_ratio)
        log_ratio = log_ratio - detached + masked.masked_mean(detached, mask, axis=-1)[..., None]
    elif kind != "token":
        raise ValueError(f"importance_sampling_level must be token or sequence, not {kind!r}")
    return jnp.exp(log_ratio)


def kl_penalty(logprob: jax.Array, reference: jax.Array, mask: jax.Array, kind: str) -> jax.Array:
    """Estimate the per-token KL divergence to the reference policy (Schulman 2020, "Approximating KL divergence").

    With d = reference - logprob: k1 = -d and k3 = exp(d) - d - 1 are unbiased estimates of KL(policy, reference), and
    k2 = d²/2 is a biased estimate of low variance. Each may be subtracted from a reward. As losses their expected
    gradients differ. That of k1 is zero, so `grpo_loss` rejects it. That of k2 is the gradient of the reverse
    KL(policy, reference), which is intended. That of k3 is the gradient of the *forward* KL(reference, policy).
    Shapes [B,G,T]; 0 outside the mask.
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
    """Return the importance weights exp(old - behavior), at most `cap`, and which tokens were capped; [B,G,T] each.

    The weights are detached. They are 1 outside the mask, and everywhere if `cap` is 0.
    """
    if cap <= 0:
        return jnp.ones_like(old), jnp.zeros_like(mask)
    log_weight = jnp.where(mask, jax.lax.stop_gradient(old) - behavior, 0.0)
    limit = math.log(cap)
    return jnp.exp(jnp.minimum(log_weight, limit)), log_weight > limit


def sampler_metrics(old: jax.Array, rollout: jax.Array, mask: jax.Array) -> Metrics:
    """Compare the trainer's log-probabilities [B,G,T] with those of the sampler.

    Metrics: mean and maximum of the absolute difference, and the k3 estimate of KL(sampler, trainer), the mean of
    exp(d) - d - 1 with d = trainer - sampler. If completions may exceed POSITIONS[1] tokens, also the mean absolute
    difference in each range of POSITIONS.
    """
    d = jnp.where(mask, old - rollout, 0.0)
    delta = jnp.abs(d)
    metrics = {
        "policy/sampler_delta_mean": masked.sum_and_count(delta, mask),
        "policy/sampler_delta_max": (masked.masked_max(delta, mask), jnp.ones(())),
        "policy/sampler_kl": masked.sum_and_count(jnp.expm1(d) - d, mask),
    }
    position, length = jnp.arange(mask.shape[-1]), mask.shape[-1]
    for start, stop in zip(POSITIONS, (*POSITIONS[1:], length), strict=True):
        if start < length and length > POSITIONS[1]:
            in_range = mask & (start <= position) & (position < stop)
            metrics[f"policy/sampler_delta_mean/from_{start}"] = masked.sum_and_count(delta, in_range)
    return metrics


def aggregate(
    per_token: jax.Array, mask: jax.Array, counted: jax.Array, cfg: LossConfig
) -> tuple[jax.Array, jax.Array]:
    """Reduce token losses [B,G,T] to a sum and its weight, by `cfg.agg_mode`.

    Sum divided by weight is, for `token_mean`, the mean over tokens of the mask. For `sequence_mean` it is the mean
    over completions of their token means. For `constant` it is the token sum divided by the number of `counted`
    completions times `cfg.max_completion_tokens` (0: T). This divisor depends on neither lengths nor masks (Dr. GRPO,
    arXiv:2503.20783). `counted` [B,G] bool: completions of positive weight.
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
    """Merge metrics stacked on a leading axis: add sums and weights; of names in `_max` take the maximum."""
    return {
        name: (jnp.max(total), weight[0]) if name.endswith("_max") else (jnp.sum(total), jnp.sum(weight))
        for name, (total, weight) in stacked.items()
    }


def require_field(values: jax.Array | None, name: str) -> jax.Array:
    """Return a field of the batch; raises ValueError with `name` when it is None."""
    if values is None:
        raise ValueError(f"the batch has no {name}")
    return values
