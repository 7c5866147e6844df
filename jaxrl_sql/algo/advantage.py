"""From rewards to advantages, before anything is cut into micro-batches: of a group, or of a value head."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl_sql.models.ops import masked

EPSILON = 1e-6
# TRL's.
BATCH_EPSILON = 1e-4
EQUAL = 1e-8


def advantages(rewards: ArrayLike, weight: ArrayLike, kind: str, ddof: int = 0) -> jax.Array:
    """Compare each answer with its group: rewards [B,G], weight [B,G] (0 leaves an answer out) -> [B,G].

    kind:
      `group`           (r - group mean) / (std of the group + 1e-6); GRPO (Shao et al. 2024, arXiv:2402.03300, which
                        does not say which std). `ddof` 1 divides squares by G - 1, as torch's std does and so TRL,
                        verl, OpenRLHF and SkyRL: advantages are sqrt((G - 1) / G) times those of `ddof` 0
      `batch`           (r - group mean) / (std of all rewards of the batch + 1e-4), with ddof 1, as TRL computes
                        scale_rewards="batch" (Liu et al. 2025, arXiv:2508.08221), and so Think2SQL
      `batch_centered`  (r - group mean) / (std of all r - group mean + 1e-6), with ddof 0: what groups differ by in
                        their means is no part of it; REINFORCE++ with a baseline (Hu et al. 2025, arXiv:2501.03262)
      `none`            r - group mean; Dr. GRPO (Liu et al. 2025, arXiv:2503.20783)
      `leave_one_out`   r - mean of the others; RLOO (Ahmadian et al. 2024, arXiv:2402.14740)

    A group whose rewards are all equal gets exactly 0, and so does an answer of weight 0.
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
    """Estimate advantages and returns a token, [B,G,T] each (GAE, Schulman et al. 2015, arXiv:1506.02438, eq. 16).

    rewards, values, mask [B,G,T]. The masked tokens are the policy's actions, one after another: what the environment
    wrote between two of them belongs to the first one's outcome, and nothing is expected after the last. Off the mask
    both are 0.
    """

    def back(later: tuple[jax.Array, jax.Array], token: tuple[jax.Array, ...]) -> Any:
        next_value, next_advantage = later
        reward, value, is_action = token
        advantage = reward + discount * next_value - value + discount * gae_lambda * next_advantage
        carried = jnp.where(is_action, value, next_value), jnp.where(is_action, advantage, next_advantage)
        return carried, jnp.where(is_action, advantage, 0.0)

    over_time = tuple(jnp.moveaxis(x, -1, 0) for x in (rewards, values, mask))
    nothing = jnp.zeros(rewards.shape[:-1], jnp.float32)
    found = jnp.moveaxis(jax.lax.scan(back, (nothing, nothing), over_time, reverse=True)[1], 0, -1)
    return found, jnp.where(mask, found + values, 0.0)


def pay_last(rewards: jax.Array, mask: jax.Array) -> jax.Array:
    """Put each answer's reward [B,G] on its last masked token: -> [B,G,T]."""
    still = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1]
    return jnp.where(mask & (still == 1), rewards[..., None], 0.0)


def zero_variance(rewards: ArrayLike, weight: ArrayLike) -> jax.Array:
    """Tell which groups teach nothing because all their rewards are equal: [B,G], [B,G] -> [B] bool."""
    valid = jnp.asarray(weight) > 0
    top = jnp.max(jnp.where(valid, rewards, -jnp.inf), axis=-1)
    bottom = jnp.min(jnp.where(valid, rewards, jnp.inf), axis=-1)
    return ~jnp.any(valid, axis=-1) | (top - bottom <= EQUAL)


def choose_groups(rewards: ArrayLike, weight: ArrayLike, keep: int, together: int = 1, asked: int = 1) -> list[int]:
    """Choose `keep` of the groups [B,G] to learn from: those whose rewards lie furthest apart first, ties in order.

    Dynamic sampling of DAPO (Yu et al. 2025, arXiv:2503.14476) in one round: what was sampled in excess is left out
    where it would teach nothing, or only a small part of the reward, and the update keeps its shape.

    Where each `asked` groups in a row are of one database, `together` of them are chosen, or none.
    """
    valid = np.asarray(weight) > 0
    top = np.max(np.where(valid, rewards, -np.inf), axis=-1)
    bottom = np.min(np.where(valid, rewards, np.inf), axis=-1)
    apart = np.where(valid.any(axis=-1), np.round(top - bottom, 6), 0.0).reshape(-1, asked)
    best = np.argsort(-apart, axis=1, kind="stable")[:, :together]
    pieces = np.argsort(-np.take_along_axis(apart, best, axis=1).sum(axis=1), kind="stable")[: keep // together]
    return [int(piece * asked + i) for piece in pieces for i in best[piece]]
