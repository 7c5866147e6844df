"""A value head for PPO, which predicts an answer's expected reward from the policy's states.

The head is a linear map of the final states that predict each completion token. The policy's forward pass computes
these states anyway, so each prompt still runs once. The value loss also trains the policy's weights or adapters.
Functions of trainable parameters (`policy_params`, `merge`, `make_policy`) accept an `ActorCritic` and use its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.frozen import split
from jaxrl_sql.models.spec import ModelConfig, weight_decay_tree
from jaxrl_sql.parallel.rules import sharding_of


@flax.struct.dataclass
class ActorCritic:
    """Trainable parameters of PPO, in which D is the width of the model.

    policy: the trainable parameters of the policy: all, the unfrozen ones, or adapters
    value: the value head: weight [D] and scalar bias, in float32
    """

    policy: PyTree
    value: PyTree


def policy_part(trainable: PyTree) -> PyTree:
    """Return the policy's trainable parameters, without those of a value head."""
    return trainable.policy if isinstance(trainable, ActorCritic) else trainable


def add_value_head(trainable: PyTree, config: ModelConfig, mesh: jax.sharding.Mesh | None = None) -> ActorCritic:
    """Add a value head of zeros to the policy's parameters."""
    head = {"weight": jnp.zeros((config.d_model,), jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    if mesh is not None:
        axes: dict[str, tuple[str, ...]] = {"weight": ("width",), "bias": ()}
        head = {name: jax.device_put(x, sharding_of(mesh, axes[name], x.shape, name)) for name, x in head.items()}
    return ActorCritic(trainable, head)


def state_values(head: PyTree, hidden: jax.Array) -> jax.Array:
    """Return the values of states hidden [...,D] -> [...] float32."""
    return hidden.astype(jnp.float32) @ head["weight"] + head["bias"]


def decay_mask(config: ModelConfig, frozen: Sequence[str] = ()) -> Callable[[PyTree], PyTree]:
    """Return a function from trainable parameters, with or without a value head, to booleans: which weights decay.

    `frozen`: names or patterns of frozen weights (`models.frozen`), which the tree of booleans does not have.
    """

    def mask(trainable: PyTree) -> PyTree:
        tree = split(weight_decay_tree(config), config, frozen)[0]
        return ActorCritic(tree, {"weight": True, "bias": False}) if isinstance(trainable, ActorCritic) else tree

    return mask
