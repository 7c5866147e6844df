"""Advantages from rewards, relative to the group or by a value head (GAE); computed before the batch is split."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl_sql.models.ops import masked

EPSILON = 1e-6
# As in TRL.
BATCH_EPSILON = 1e-4
EQUAL_REWARDS_ATOL = 1e-8


def advantages(rewards: ArrayLike, weight: ArrayLike, kind: str, ddof: int = 0) -> jax.Array:
    """Compute group-relative advantages: rewards [B,G], weight [B,G] (0 excludes an answer) -> [B,G].

    kind:
      `group`           (r - group mean) / (std of the group + 1e-6); GRPO (Shao et al. 2024, arXiv:2402.03300, which
                        leaves the kind of std open). With `ddof` 1 the variance is divided by G - 1, as in torch.std
                        and so in TRL, verl, OpenRLHF and SkyRL; advantages are sqrt((G - 1) / G) times those of
                        `ddof` 0.
      `batch`           (r - group mean) / (std of all rewards of the batch + 1e-4), with ddof 1: scale_rewards="batch"
                        of TRL (Liu et al. 2025, arXiv:2508.08221), used by Think2SQL.
      `batch_centered`  (r - group mean) / (std of all r - group mean + 1e-6), with ddof 0, so that the spread of the
                        group means does not count; REINFORCE++ with a baseline (Hu et al. 2025, arXiv:2501.03262).
      `none`            r - group mean; Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).
      `leave_one_out`   r - mean of the others; RLOO (Ahmadian et al. 2024, arXiv:2402.14740).

    The advantage is exactly 0 in a group of equal rewards and for an answer of weight 0.
    """
    valid = jnp.asarray(weight) > 0
    rewards = jnp.where(valid, rewards, 0.0)
    count = jnp.sum(valid, axis=-1, keepdims=True)
    mean = jnp.sum(rewards, axis=-1, keepdims=True) / jnp.maximum(count, 1)
    centred = jnp.where(valid, rewards - mean, 0.0)
    if kind == "group":
        std = jnp.sqrt(jnp.sum(centred**2, axis=-1, keepdims=True) / jnp.maximum(count - ddof, 1))
        scaled = centred / (std + EPSILON)
    elif kind == "batch":
        total = jnp.sum(valid)
        variance = masked.masked_variance(rewards, valid) * total / jnp.maximum(total - 1, 1)
        scaled = centred / (jnp.sqrt(variance) + BATCH_EPSILON)
    elif kind == "batch_centered":
        std = jnp.sqrt(masked.masked_mean(centred**2, valid))
        scaled = centred / (std + EPSILON)
    elif kind == "leave_one_out":
        scaled = centred * count / jnp.maximum(count - 1, 1)
    elif kind == "none":
        scaled = centred
    else:
        raise ValueError(f"advantage must be group, batch, batch_centered, none or leave_one_out, not {kind!r}")
    return jnp.where(valid & ~zero_variance(rewards, weight)[..., None], scaled, 0.0)


def gae(
    rewards: jax.Array, values: jax.Array, mask: jax.Array, discount: float, gae_lambda: float
) -> tuple[jax.Array, jax.Array]:
    """Estimate per-token advantages and returns, [B,G,T] each (GAE, Schulman et al. 2015, arXiv:1506.02438, eq. 16).

    rewards, values, mask [B,G,T]. The tokens of the mask are the policy's actions. Rewards of environment tokens
    between two actions are ignored, and the value after the last action is 0. Outside the mask both results are 0.
    """

    def step(following: tuple[jax.Array, jax.Array], token: tuple[jax.Array, ...]) -> Any:
        next_value, next_advantage = following
        reward, value, is_action = token
        advantage = reward + discount * next_value - value + discount * gae_lambda * next_advantage
        carried = jnp.where(is_action, value, next_value), jnp.where(is_action, advantage, next_advantage)
        return carried, jnp.where(is_action, advantage, 0.0)

    over_time = tuple(jnp.moveaxis(x, -1, 0) for x in (rewards, values, mask))
    zeros = jnp.zeros(rewards.shape[:-1], jnp.float32)
    estimates = jnp.moveaxis(jax.lax.scan(step, (zeros, zeros), over_time, reverse=True)[1], 0, -1)
    return estimates, jnp.where(mask, estimates + values, 0.0)


def reward_last_token(rewards: jax.Array, mask: jax.Array) -> jax.Array:
    """Put each answer's reward [B,G] on the last token of its mask: -> [B,G,T]."""
    remaining = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1]
    return jnp.where(mask & (remaining == 1), rewards[..., None], 0.0)


def zero_variance(rewards: ArrayLike, weight: ArrayLike) -> jax.Array:
    """Return which groups have equal rewards and so no gradient: [B,G], [B,G] -> [B] bool."""
    valid = jnp.asarray(weight) > 0
    highest = jnp.max(jnp.where(valid, rewards, -jnp.inf), axis=-1)
    lowest = jnp.min(jnp.where(valid, rewards, jnp.inf), axis=-1)
    return ~jnp.any(valid, axis=-1) | (highest - lowest <= EQUAL_REWARDS_ATOL)


def choose_groups(
    rewards: ArrayLike, weight: ArrayLike, keep: int, prompts_per_schema: int = 1, sampled_per_schema: int = 1
) -> list[int]:
    """Choose the `keep` groups [B,G] with the largest range of rewards, ties in order; return their indices.

    This is DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476) in one round: more groups are sampled than an
    update takes, and those with the least reward differences are dropped, so the update keeps its shape.

    Each block of `sampled_per_schema` consecutive groups shares a database. Of a block either `prompts_per_schema`
    groups are chosen or none.
    """
    valid = np.asarray(weight) > 0
    highest = np.max(np.where(valid, rewards, -np.inf), axis=-1)
    lowest = np.min(np.where(valid, rewards, np.inf), axis=-1)
    ranges = np.where(valid.any(axis=-1), np.round(highest - lowest, 6), 0.0).reshape(-1, sampled_per_schema)
    best = np.argsort(-ranges, axis=1, kind="stable")[:, :prompts_per_schema]
    blocks = np.argsort(-np.take_along_axis(ranges, best, axis=1).sum(axis=1), kind="stable")[
        : keep // prompts_per_schema
    ]
    return [int(block * sampled_per_schema + i) for block in blocks for i in best[block]]
