"""What is asked of the engine and what it gives back, and the jitted chunk of decoding between the two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxrl_sql import distribution, rng
from jaxrl_sql.models import ModelConfig, decode_step, init_decode_cache, prefill, unembed
from jaxrl_sql.models.cache import DecodeCache, PrefixCache
from jaxrl_sql.parallel.rules import constrain
from jaxrl_sql.types import InputError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw `n` answers a prompt; temperature 0 is greedy, top_k 0 and top_p 1 leave the distribution whole."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 256
    n: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        checks = (
            (self.temperature >= 0, "temperature must be at least 0"),
            (self.top_k >= 0, "top_k must be at least 0"),
            (0 < self.top_p <= 1, "top_p must be above 0 and at most 1"),
            (self.max_new_tokens >= 1, "max_new_tokens must be at least 1"),
            (self.n >= 1, "n must be at least 1"),
        )
        for holds, message in checks:
            if not holds:
                raise InputError(f"sampling: {message}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished answer; `token_ids` end with the stop token when `finish_reason` is `stop`."""

    prompt_index: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    drawn_logprobs: tuple[float, ...]
    text: str
    finish_reason: str


class Draws(NamedTuple):
    """The static numbers of a draw; a part of the compiled program's key."""

    temperature: float
    top_k: int
    top_p: float


@flax.struct.dataclass
class Written:
    """What the rows have written: tokens, drawn and full log-probabilities [B,G,S], length [B,G], done [B,G]."""

    tokens: jax.Array
    drawn: jax.Array
    full: jax.Array
    length: jax.Array
    done: jax.Array


@flax.struct.dataclass
class Carry:
    """The decode loop's state; `hidden` [B,G,D] predicts each row's next token."""

    cache: DecodeCache
    hidden: jax.Array
    written: Written


@partial(jax.jit, static_argnames=("config", "group", "width"))
def start(
    params: Any,
    config: ModelConfig,
    tokens: jax.Array,
    length: jax.Array,
    active: jax.Array,
    group: int,
    width: int,
) -> tuple[PrefixCache, Carry]:
    """Prefill prompts [B,P] once and open `group` rows of `width` tokens beside each; those not `active` are done."""
    prefix, last = prefill(params, config, tokens, length)
    prefix = _pinned(prefix)
    b = tokens.shape[0]
    shape = (b, group, width)
    written = Written(
        tokens=jnp.zeros(shape, jnp.int32),
        drawn=jnp.zeros(shape, jnp.float32),
        full=jnp.zeros(shape, jnp.float32),
        length=jnp.zeros((b, group), jnp.int32),
        done=~active,
    )
    cache = init_decode_cache(config, b, group, width, last.dtype)
    hidden = jnp.broadcast_to(last[:, None], (b, group, last.shape[-1]))
    return prefix, _pinned_carry(Carry(cache, hidden, written))


def _pinned(cache: Any) -> Any:
    """Pin a cache to the mesh: prompts over what splits a batch, key heads over what splits heads."""

    def pin(x: jax.Array) -> jax.Array:
        inner = ("kv_heads", "none", "none") if x.ndim > 3 else ()
        return constrain(x, ("batch", *["none"] * (x.ndim - 1 - len(inner)), *inner))

    return jax.tree.map(pin, cache)


def _pinned_carry(carry: Carry) -> Carry:
    """Pin the carry of the decode loop, so that it leaves a chunk as it came (and no chunk is compiled twice)."""
    written = jax.tree.map(lambda x: constrain(x, ("batch", *["none"] * (x.ndim - 1))), carry.written)
    return Carry(_pinned(carry.cache), constrain(carry.hidden, ("batch", "none", "none")), written)


@partial(jax.jit, static_argnames=("config", "draws", "steps"), donate_argnames="carry")
def decode_chunk(
    params: Any,
    config: ModelConfig,
    prefix: PrefixCache,
    carry: Carry,
    keys: jax.Array,
    limit: jax.Array,
    stop_ids: jax.Array,
    draws: Draws,
    steps: int,
) -> tuple[Carry, Written]:
    """Write up to `steps` tokens in every open row: keys [B,G], limit scalar, stop_ids [E] -> (carry, snapshot).

    The snapshot is a copy that outlives the donated carry, so that the host reads it while the next chunk runs.
    The key of a token is folded from its row's key and its position, and so does not depend on the slot.
    """

    def write(carry: Carry) -> Carry:
        w = carry.written
        b, g = w.done.shape
        logits = unembed(params, config, carry.hidden)
        step_keys = jax.vmap(rng.fold)(keys.reshape(b * g), w.length.reshape(b * g))
        drawn = distribution.draw(step_keys, logits.reshape(b * g, -1), *draws)
        token, drawn_lp, full_lp = (x.reshape(b, g) for x in drawn)
        open_ = ~w.done
        at = (jnp.arange(w.tokens.shape[-1]) == w.length[..., None]) & open_[..., None]
        length = w.length + open_
        done = w.done | jnp.isin(token, stop_ids) | (length >= limit)
        written = Written(
            tokens=jnp.where(at, token[..., None], w.tokens),
            drawn=jnp.where(at, drawn_lp[..., None], w.drawn),
            full=jnp.where(at, full_lp[..., None], w.full),
            length=length,
            done=done,
        )
        hidden, cache = decode_step(params, config, prefix, carry.cache, token, ~done)
        return Carry(cache, hidden, written)

    def body(state: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        count, carry = state
        return count + 1, write(carry)

    def proceed(state: tuple[jax.Array, Carry]) -> jax.Array:
        count, carry = state
        return (count < steps) & ~jnp.all(carry.written.done)

    _, carry = jax.lax.while_loop(proceed, body, (jnp.zeros((), jnp.int32), carry))
    # Every process reads all of what was written, so the snapshot is whole on each device.
    snapshot = jax.tree.map(lambda x: constrain(jnp.copy(x), ("none",) * x.ndim), carry.written)
    return _pinned_carry(carry), snapshot
