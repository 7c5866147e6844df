"""Advantages from rewards, relative to the group or by a value head (GAE).

They are computed over the whole batch, before it is split into minibatches and micro-batches. A group is the G
answers to one prompt. Letters of shapes: B prompts, G answers per prompt, T tokens per answer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl_sql.models.ops import masked

# Added to the standard deviation before a division, so that small deviations do not produce large advantages.
EPSILON = 1e-6
# The same for the standard deviation over a batch, with TRL's value.
BATCH_EPSILON = 1e-4
# Rewards of a group whose range is at most this count as equal.
EQUAL_REWARDS_ATOL = 1e-8


def advantages(rewards: ArrayLike, weight: ArrayLike, kind: str, ddof: int = 0) -> jax.Array:
    """Compute group-relative advantages: rewards [B,G], weight [B,G] (0 excludes an answer) -> [B,G].

    kind:
      `group`           (r - group mean) / (std of the group + 1e-6); GRPO (Shao et al. 2024, arXiv:2402.03300, which
                        does not say whether the variance is divided by G or G - 1). `ddof` 0 divides by G. `ddof` 1
                        divides by G - 1, as torch.std does, and so TRL, verl, OpenRLHF and SkyRL. Its advantages are
                        sqrt((G - 1) / G) times those of `ddof` 0. Other kinds do not use `ddof`.
      `batch`           (r - group mean) / (std of all rewards of the batch + 1e-4), with ddof 1: scale_rewards="batch"
                        of TRL (Liu et al. 2025, arXiv:2508.08221), used by Think2SQL.
      `batch_centered`  (r - group mean) / (std over the batch of (r - group mean) + 1e-6), with ddof 0, so that the
                        spread of the group means does not count; REINFORCE++ with a baseline (Hu et al. 2025,
                        arXiv:2501.03262).
      `none`            r - group mean; Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).
      `leave_one_out`   r - mean of the group's other rewards; RLOO (Ahmadian et al. 2024, arXiv:2402.14740).

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
        # r minus the mean of the n - 1 others equals n / (n - 1) times r minus the mean of all n.
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

    rewards, values, mask [B,G,T]. The tokens of the mask are the policy's actions. In an answer of several turns
    there are tokens of the environment between two actions. They are skipped: the action after them is the next step,
    and their rewards are ignored. The value after the last action is 0. Outside the mask both results are 0.
    """

    def step(following: tuple[jax.Array, jax.Array], token: tuple[jax.Array, ...]) -> Any:
        next_value, next_advantage = following
        reward, value, is_action = token
        advantage = reward + discount * next_value - value + discount * gae_lambda * next_advantage
        carry = jnp.where(is_action, value, next_value), jnp.where(is_action, advantage, next_advantage)
        return carry, jnp.where(is_action, advantage, 0.0)

    time_major = tuple(jnp.moveaxis(x, -1, 0) for x in (rewards, values, mask))
    zeros = jnp.zeros(rewards.shape[:-1], jnp.float32)
    estimates = jnp.moveaxis(jax.lax.scan(step, (zeros, zeros), time_major, reverse=True)[1], 0, -1)
    return estimates, jnp.where(mask, estimates + values, 0.0)


def reward_last_token(rewards: jax.Array, mask: jax.Array) -> jax.Array:
    """Put each answer's reward [B,G] on its last token in the mask [B,G,T]; 0 elsewhere: -> [B,G,T]."""
    actions_left = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1]  # from each token on, itself included
    return jnp.where(mask & (actions_left == 1), rewards[..., None], 0.0)


def zero_variance(rewards: ArrayLike, weight: ArrayLike) -> jax.Array:
    """Return which groups have equal rewards, or no answer of positive weight, and so no gradient: [B] bool.

    rewards, weight [B,G]; answers of weight 0 are ignored.
    """
    valid = jnp.asarray(weight) > 0
    highest = jnp.max(jnp.where(valid, rewards, -jnp.inf), axis=-1)
    lowest = jnp.min(jnp.where(valid, rewards, jnp.inf), axis=-1)
    return ~jnp.any(valid, axis=-1) | (highest - lowest <= EQUAL_REWARDS_ATOL)


def choose_groups(
    rewards: ArrayLike, weight: ArrayLike, keep: int, prompts_per_schema: int = 1, sampled_per_schema: int = 1
) -> list[int]:
    """Choose `keep` of B groups, those with the largest range of rewards; return their indices, the best first.

    rewards, weight [B,G]. Of groups with equal ranges the first are chosen. This is DAPO's dynamic sampling (Yu et al.
    2025, arXiv:2503.14476) in one round: more groups are sampled than an update takes, and those with the smallest
    ranges of rewards are dropped. So every update has the same number of groups.

    Each block of `sampled_per_schema` consecutive groups has questions about one database. From each block either
    `prompts_per_schema` groups are chosen or none, because the update computes a database's schema once for that
    number of prompts. `keep` is a multiple of `prompts_per_schema`, and B of `sampled_per_schema`.
    """
    valid = np.asarray(weight) > 0
    highest = np.max(np.where(valid, rewards, -np.inf), axis=-1)
    lowest = np.min(np.where(valid, rewards, np.inf), axis=-1)
    # Ranges are rounded, so that errors of floating-point arithmetic do not decide between equal ranges.
    ranges = np.where(valid.any(axis=-1), np.round(highest - lowest, 6), 0.0).reshape(-1, sampled_per_schema)
    best = np.argsort(-ranges, axis=1, kind="stable")[:, :prompts_per_schema]
    blocks = np.argsort(-np.take_along_axis(ranges, best, axis=1).sum(axis=1), kind="stable")[
        : keep // prompts_per_schema
    ]
    return [int(block * sampled_per_schema + i) for block in blocks for i in best[block]]
