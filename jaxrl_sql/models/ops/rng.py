"""Random keys, derived by folding in numbers instead of splitting.

Every key is a function of (seed, purpose, step, …). So a step can be replayed alone, and the samples of a sequence do
not depend on its slot, its batch or earlier keys.
"""

from __future__ import annotations

from enum import IntEnum

import jax


class Purpose(IntEnum):
    """Purpose of a key. Values must not change or be reused, because they determine the random numbers of a seed."""

    INIT = 0  # initial weights of the model
    ROLLOUT = 1
    EVAL = 2
    DATA = 3  # answers sampled to filter a data set
    ADAPTERS = 4  # initial weights of LoRA adapters


def base_key(seed: int | jax.Array, purpose: Purpose) -> jax.Array:
    """Return the key of a purpose."""
    return jax.random.fold_in(jax.random.key(seed), int(purpose))


def fold(key: jax.Array, *numbers: int | jax.Array) -> jax.Array:
    """Derive a key by folding in numbers such as step, sequence and position, in order."""
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key
