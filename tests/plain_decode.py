"""Plain decoding as a reference for paged decoding: a prompt's keys once, followed by a rectangle of sample rows.

`prefill` writes the prefix once; all G samples of a prompt read the same copy. The decode cache gets one token per
step, at each row's own length. Both have one array per layer.
"""

from __future__ import annotations

import operator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.attention import TreeAttention, choose
from jaxrl_sql.models.attention.tree import TreeLevel, restrict_to_window
from jaxrl_sql.models.attention.xla import attend
from jaxrl_sql.models.transformer import (
    angles_of,
    embed,
    last_state,
    norm,
    output_and_mlp,
    qkv_heads,
    rotary_positions,
    scale_of,
    window_of,
)


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


def prefill(
    params: PyTree,
    config: ModelConfig,
    tokens: jax.Array,
    length: jax.Array,
    compute_dtype: Any = None,
    attention: str | TreeAttention = "xla",
) -> tuple[PrefixCache, jax.Array]:
    """Run prompts [B,P] with lengths [B] once -> their keys and values, and the state [B,D] that predicts a next token.

    The cache is in the compute dtype.
    """
    backend = choose(attention, config, params["embed"].dtype if compute_dtype is None else compute_dtype)
    rotary = rotary_positions(config, jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens[:, None].shape))
    x = embed(params, config, tokens[:, None], compute_dtype)
    keys, values = [], []
    for i, kind in enumerate(kinds_of(config)):
        layer = jax.tree.map(operator.itemgetter(i), params["layers"])
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(kind, rotary))
        levels = [TreeLevel(q, k, v, length[:, None], rotary.positions)]
        (attended,) = backend(levels, scale_of(config), config.attn_score_cap, window_of(config, kind))
        x = output_and_mlp(layer, config, x, attended)
        keys.append(k[:, 0])
        values.append(v[:, 0])
    hidden = norm(config, x[:, 0], params["final_norm"])
    return PrefixCache(k=tuple(keys), v=tuple(values), length=length), last_state(hidden, length)


def kinds_of(config: ModelConfig) -> tuple[bool, ...]:
    """Return whether each layer sees a sliding window."""
    return config.sliding.layers if config.sliding else (False,) * config.n_layers


def decode_step(
    params: PyTree,
    config: ModelConfig,
    prefix: PrefixCache,
    cache: DecodeCache,
    token: jax.Array,
    active: jax.Array,
    compute_dtype: Any = None,
) -> tuple[jax.Array, DecodeCache]:
    """Append one token [B,G] to each active [B,G] row -> the state [B,G,D] that predicts the next, and the cache.

    A row writes at its own length and sees its prompt (one copy for all G) and its own tokens. An inactive row
    writes nothing and keeps its length; its state is undefined. A row whose S slots are full writes nothing
    either: callers stop rows before that.
    """
    b, g, _, slots, _ = cache.k[0].shape
    local = cache.length + active.astype(jnp.int32)
    start, p = prefix.length[:, None, None], prefix.k[0].shape[2]
    rotary = rotary_positions(config, start + cache.length[..., None])
    valid = (jnp.arange(p) < start)[:, :, None], (jnp.arange(slots) < local[..., None])[:, :, None]
    at = jnp.broadcast_to(jnp.arange(p), (b, 1, p)), jnp.broadcast_to(start + jnp.arange(slots), (b, g, slots))
    kinds = kinds_of(config)
    seen = {
        kind: [
            restrict_to_window(window_of(config, kind), *keys, rotary.positions) for keys in zip(valid, at, strict=True)
        ]
        for kind in set(kinds)
    }
    # The scatter drops an index outside the cache, so an inactive row writes nothing.
    slot = jnp.where(active, cache.length, slots)
    rows, columns = jnp.arange(b)[:, None], jnp.arange(g)[None]

    def append(remaining: jax.Array, new: jax.Array) -> jax.Array:
        return remaining.at[rows, columns, :, slot].set(new[:, :, :, 0].astype(remaining.dtype), mode="drop")

    x = embed(params, config, token[..., None], compute_dtype)
    keys, values = [], []
    for i, kind in enumerate(kinds):
        layer = jax.tree.map(operator.itemgetter(i), params["layers"])
        q, k, v = qkv_heads(layer, config, norm(config, x, layer["attn_norm"]), angles_of(kind, rotary))
        keys.append(append(cache.k[i], k))
        values.append(append(cache.v[i], v))
        stored = (prefix.k[i][:, None], prefix.v[i][:, None]), (keys[i], values[i])
        parts = [(*pair, visible) for pair, visible in zip(stored, seen[kind], strict=True)]
        x = output_and_mlp(layer, config, x, attend(q, parts, scale_of(config), config.attn_score_cap))
    hidden = norm(config, x[:, :, 0], params["final_norm"])
    return hidden, DecodeCache(k=tuple(keys), v=tuple(values), length=local)
