"""A value head beside the policy, for PPO: the reward that an answer is expected to get, from the policy's own states.

The head is one linear map on the final states that predict each completion token, so a prompt is computed once here
too. Its loss moves the decoder below it as well, through the policy's weights or adapters. Whatever takes trainable
parameters (`policy_params`, `merge`, `make_policy`) takes an `ActorCritic` too and reads its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.frozen import split
from jaxrl_sql.models.spec import ModelConfig, decayed
from jaxrl_sql.parallel.rules import sharding_of


@flax.struct.dataclass
class ActorCritic:
    """What PPO trains: the policy's parameters (or adapters), and the head's: weight [D], bias scalar, in float32."""

    policy: PyTree
    value: PyTree


def policy_part(trainable: PyTree) -> PyTree:
    """Return the policy's own trainable parameters, with or without a value head beside them."""
    return trainable.policy if isinstance(trainable, ActorCritic) else trainable


def add_value_head(trainable: PyTree, config: ModelConfig, mesh: jax.sharding.Mesh | None = None) -> ActorCritic:
    """Put a new value head beside the policy; it is zero, and so is every value at first."""
    head = {"weight": jnp.zeros((config.d_model,), jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    if mesh is not None:
        axes: dict[str, tuple[str, ...]] = {"weight": ("width",), "bias": ()}
        head = {name: jax.device_put(x, sharding_of(mesh, axes[name], x.shape, name)) for name, x in head.items()}
    return ActorCritic(trainable, head)


def state_values(head: PyTree, hidden: jax.Array) -> jax.Array:
    """Value states: hidden [...,D] -> [...] float32."""
    return hidden.astype(jnp.float32) @ head["weight"] + head["bias"]


def decay_mask(config: ModelConfig, frozen: Sequence[str] = ()) -> Callable[[PyTree], PyTree]:
    """Return the function that tells where in trainable parameters weight decay applies, a value head's too.

    `frozen` weights are not among them.
    """

    def mask(trainable: PyTree) -> PyTree:
        tree = split(decayed(config), config, frozen)[0]
        return ActorCritic(tree, {"weight": True, "bias": False}) if isinstance(trainable, ActorCritic) else tree

    return mask
