"""Choices per row of an array [N,V]: an index, the maximum, the largest numbers, and a sample in proportion to mass."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_BLOCK = 16
"""Block size of `find_largest`, which sorts this many times as many numbers as it returns."""


def pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return the number at an index [...] of each row of x [...,V]."""
    return jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0]


def first_of_largest(x: jax.Array) -> jax.Array:
    """Return the index of the first maximum in each row of x [N,V] -> [N] int32.

    XLA's CPU backend does not vectorize argmax; two reductions of floats take a quarter of the time.
    """

    def in_floats(x: jax.Array) -> jax.Array:
        ids = jnp.arange(x.shape[-1], dtype=jnp.float32)  # exact below 2**24
        is_less = x < jnp.max(x, axis=-1, keepdims=True)
        return jnp.min(jnp.where(is_less, jnp.inf, ids), axis=-1).astype(jnp.int32)

    def in_pairs(x: jax.Array) -> jax.Array:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)

    if x.shape[-1] >= 1 << 24:
        return in_pairs(x)
    return jax.lax.platform_dependent(x, cpu=in_floats, default=in_pairs)


def find_largest(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the largest numbers of x [N,V] in descending order, ties by id, and their ids, [N,count] each.

    They are in the blocks with the largest maxima, which are found in the same way, so only short rows are sorted.
    """
    n, size = x.shape
    ids = jnp.broadcast_to(jnp.arange(size), x.shape)
    if size > count * _BLOCK:
        blocks = jnp.pad(x, [(0, 0), (0, -size % _BLOCK)], constant_values=-jnp.inf).reshape(n, -1, _BLOCK)
        _, block = find_largest(jnp.max(blocks, axis=-1), count)
        x = jnp.take_along_axis(blocks, block[..., None], axis=1).reshape(n, -1)
        ids = (block[..., None] * _BLOCK + jnp.arange(_BLOCK)).reshape(n, -1)
    negative, ids = jax.lax.sort((-x, ids), num_keys=2)
    return -negative[:, :count], ids[:, :count]


def sample_by_mass(u: jax.Array, logprobs: jax.Array) -> jax.Array:
    """Sample by inverse transform: u [N] in [0, 1), logprobs [N,V] (-inf: excluded) -> tokens [N] int32.

    The token's interval of the cumulative mass contains u. This needs one random number per row, where Gumbel noise
    needs V. The mass is summed in two levels, which avoids a cumulative sum over V.
    """
    n, vocab = logprobs.shape
    size = 1 << max((vocab.bit_length() + 1) // 2, 1)
    mass = jnp.pad(jnp.exp(logprobs), [(0, 0), (0, -vocab % size)]).reshape(n, -1, size)
    shares = jnp.sum(mass, axis=-1)
    part, rest = _find_interval(shares, u * jnp.sum(shares, axis=-1))
    inside, _ = _find_interval(jnp.take_along_axis(mass, part[:, None, None], axis=1)[:, 0], rest)
    return (part * size + inside).astype(jnp.int32)


def _find_interval(mass: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the interval of the cumulative sum of mass [N,M] that contains at [N] -> index [N] and offset in it [N].

    The interval has positive mass: if rounding moves `at` to the total, it is the last such interval.
    """
    until = jnp.cumsum(mass, axis=-1)
    last = mass.shape[-1] - 1 - jnp.argmax(mass[:, ::-1] > 0, axis=-1)
    index = jnp.minimum(jnp.sum(until <= at[:, None], axis=-1), last)
    before = pick(until - mass, index)
    return index, jnp.maximum(at - before, 0.0)
