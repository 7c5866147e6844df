"""Random keys, derived and never split in sequence.

Every key is a function of (seed, purpose, step, …), so any step can be replayed alone and a sequence's samples do
not depend on its slot, its batch mates or how many keys were used before.
"""

from __future__ import annotations

from enum import IntEnum

import jax


class Purpose(IntEnum):
    """What a key is for; a number is never used again for something else."""

    INIT = 0
    ROLLOUT = 1
    EVAL = 2
    DATA = 3
    ADAPTERS = 4


def base_key(seed: int | jax.Array, purpose: Purpose) -> jax.Array:
    """Return the key of a purpose."""
    return jax.random.fold_in(jax.random.key(seed), int(purpose))


def fold(key: jax.Array, *numbers: int | jax.Array) -> jax.Array:
    """Derive a key from a key and the numbers that name its use, in order."""
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key
