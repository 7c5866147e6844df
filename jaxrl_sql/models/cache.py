"""Keys and values in their plain form: of prompts, once a prompt, and of each sample, with room for the longest.

This is what `transformer.prefill` and `decode_step` keep, the short way to decode a rectangle of rows; parity tests and
benchmarks compare with it. The engine keeps pages instead (`paged.py`).

The two are separate because they live differently. The prefix is written once by `prefill` and only read; all G
samples of a prompt read the same copy. The decode cache is written a token a step, at each row's own length, and
is meant to be carried (and donated) through the loop that decodes. Both are an array a layer: a slice of one array
of all layers would be copied each time a layer reads it. Heads stand outside tokens, so that a head's keys are one
matrix and no step transposes them.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql.models.spec import ModelConfig


@flax.struct.dataclass
class PrefixCache:
    """Keys and values of prompts: k, v L times [B,K,P,Q]; length [B] int32 valid positions."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]
    length: jax.Array


@flax.struct.dataclass
class DecodeCache:
    """Keys and values of the tokens decoded so far: k, v L times [B,G,K,S,Q]; length [B,G] int32 slots in use."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]
    length: jax.Array


def init_decode_cache(config: ModelConfig, batch: int, group: int, slots: int, dtype: Any) -> DecodeCache:
    """Make an empty cache for B prompts of G samples with S slots each."""
    shape = (batch, group, config.n_kv_heads, slots, config.head_dim)
    empty = [tuple(jnp.zeros(shape, dtype) for _ in range(config.n_layers)) for _ in range(2)]
    return DecodeCache(k=empty[0], v=empty[1], length=jnp.zeros((batch, group), jnp.int32))
