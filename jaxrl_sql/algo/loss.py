"""The losses, each as a sum and the weight it is to be divided by.

Sums travel with their weights: a batch cut into parts, padded, or spread over devices gives the same loss, because
the division comes last and by the global weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_sql import masked
from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.config import GrpoConfig
from jaxrl_sql.distribution import TokenLogprobs

Metrics = dict[str, tuple[jax.Array, jax.Array]]


class Loss(NamedTuple):
    """A loss that is still a sum, its weight, and what to log beside it (name -> (sum, weight))."""

    sum: jax.Array
    weight: jax.Array
    metrics: Metrics


def sft_loss(scored: TokenLogprobs, batch: GroupBatch) -> Loss:
    """Negative log-likelihood of the trained tokens, a mean over tokens."""
    mask = batch.trained()
    nll = -masked.masked_sum(scored.logprob, mask)
    tokens = jnp.sum(mask).astype(jnp.float32)
    return Loss(nll, tokens, {"sft/loss": (nll, tokens), "policy/entropy": _sum(scored.entropy, mask)})


def grpo_loss(scored: TokenLogprobs, batch: GroupBatch, cfg: GrpoConfig, on_policy: bool) -> Loss:
    """GRPO's clipped surrogate with a KL penalty and an entropy bonus.

    ratio = exp(logprob - old), on the full temperature-scaled distribution; the surrogate is
    min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) (Schulman et al. 2017, arXiv:1707.06347; separate bounds:
    DAPO, arXiv:2503.14476), for A < 0 bounded below by dual_clip A when that is above 1 (Ye et al. 2020,
    arXiv:1912.09729). It is weighted by exp(old - drawn), detached and capped at `max_importance_weight`, which
    corrects for a sampler that drew from another distribution (0 leaves the weight out).

    `on_policy` says that this is the first update on the batch: old is then the policy itself, detached, and
    `batch.old_logprobs` is not read.
    """
    mask = batch.trained()
    if cfg.mask_truncated:
        mask &= ~batch.truncated[..., None]
    old = jax.lax.stop_gradient(scored.logprob) if on_policy else batch.old_logprobs
    log_ratio = jnp.where(mask, scored.logprob - old, 0.0)
    ratio = jnp.exp(log_ratio)
    advantage = batch.advantage[..., None]
    clipped = jnp.clip(ratio, 1.0 - cfg.clip_low, 1.0 + cfg.clip_high)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    if cfg.dual_clip > 1.0:
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, cfg.dual_clip * advantage), surrogate)
    correction = importance_weight(old, batch.drawn_logprobs, mask, cfg.max_importance_weight)
    per_token = -correction * surrogate - cfg.entropy_bonus * scored.entropy
    metrics = {
        "policy/entropy": _sum(scored.entropy, mask),
        "policy/ratio_mean": _sum(ratio, mask),
        "policy/clip_fraction": _sum((jnp.abs(ratio - clipped) > 0).astype(jnp.float32), mask),
        "policy/importance_weight": _sum(correction, mask),
        **sampler_mismatch(jax.lax.stop_gradient(old), batch.sampler_logprobs, mask),
    }
    if cfg.kl > 0:
        kl = kl_penalty(scored.logprob, batch.reference_logprobs, mask, cfg.kl_kind)
        per_token = per_token + cfg.kl * kl
        metrics["policy/kl"] = _sum(kl, mask)
    total, weight = aggregate(per_token, mask, cfg.aggregation)
    return Loss(total, weight, {**metrics, "policy/loss": (total, weight)})


def kl_penalty(logprob: jax.Array, reference: jax.Array, mask: jax.Array, kind: str) -> jax.Array:
    """Estimate the KL divergence to the reference policy a token (Schulman 2020, "Approximating KL divergence").

    With d = reference - logprob: k2 = d²/2, whose gradient as a loss is that of the reverse KL(policy, reference)
    in expectation; k3 = exp(d) - d - 1, an unbiased value whose gradient as a loss is that of the *forward*
    KL(reference, policy). k1 = -d as a loss has zero expected gradient and is not offered.
    """
    d = jnp.where(mask, reference - logprob, 0.0)
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return jnp.exp(d) - d - 1.0
    raise ValueError(f"kl_kind must be k2 or k3, not {kind!r}")


def importance_weight(old: jax.Array, drawn: jax.Array, mask: jax.Array, cap: float) -> jax.Array:
    """Return exp(old - drawn), detached and at most `cap`; 1 where the mask is off or when `cap` is 0."""
    if cap <= 0:
        return jnp.ones_like(old)
    gap = jnp.where(mask, jax.lax.stop_gradient(old) - drawn, 0.0)
    return jnp.exp(jnp.minimum(gap, math.log(cap)))


def aggregate(per_token: jax.Array, mask: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    """Reduce token losses [B,G,T] to a sum and its weight.

    `token_mean`: every token counts the same; `sequence_mean`: the mean of each completion's mean;
    `constant`: the token sum divided by completions x T, whatever their lengths (Dr. GRPO, arXiv:2503.20783).
    """
    live = jnp.any(mask, axis=-1)
    if kind == "token_mean":
        return _sum(per_token, mask)
    if kind == "sequence_mean":
        return jnp.sum(masked.masked_mean(per_token, mask, axis=-1)), jnp.sum(live).astype(jnp.float32)
    if kind == "constant":
        return masked.masked_sum(per_token, mask), jnp.sum(live).astype(jnp.float32) * per_token.shape[-1]
    raise ValueError(f"aggregation must be token_mean, sequence_mean or constant, not {kind!r}")


def sampler_mismatch(trainer: jax.Array, sampler: jax.Array, mask: jax.Array) -> Metrics:
    """Compare the trainer's log-probabilities with the sampler's, mean and maximum of |difference|."""
    delta = jnp.where(mask, jnp.abs(trainer - sampler), 0.0)
    worst = masked.masked_max(delta, mask)
    return {"policy/sampler_delta_mean": _sum(delta, mask), "policy/sampler_delta_max": (worst, jnp.ones(()))}


def _sum(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    return masked.masked_sum(x, mask), jnp.sum(mask).astype(jnp.float32)
