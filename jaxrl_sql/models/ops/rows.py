"""Selections in each row of an array [N,V], which has N tokens' scores over a vocabulary of size V.

They are the element at an index, the maximum, the largest elements, and a sample in proportion to probability mass.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_BLOCK = 16
"""Elements per block in `find_largest`. To return n elements it sorts only n blocks, 16 n elements."""


def pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return the element of x [...,V] at an index [...] in its last axis."""
    return jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0]


def first_of_largest(x: jax.Array) -> jax.Array:
    """Return the index of the first maximum in each row of x [N,V] -> [N] int32.

    XLA's CPU backend does not vectorize argmax; two reductions of floats take a quarter of the time.
    """

    def by_two_reductions(x: jax.Array) -> jax.Array:
        ids = jnp.arange(x.shape[-1], dtype=jnp.float32)  # exact below 2**24
        is_less = x < jnp.max(x, axis=-1, keepdims=True)
        return jnp.min(jnp.where(is_less, jnp.inf, ids), axis=-1).astype(jnp.int32)

    def by_argmax(x: jax.Array) -> jax.Array:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)

    if x.shape[-1] >= 1 << 24:
        return by_argmax(x)
    return jax.lax.platform_dependent(x, cpu=by_two_reductions, default=by_argmax)


def find_largest(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the `count` largest elements of each row of x [N,V], and their indices (token ids), [N,count] each.

    They are in descending order; of equal elements that with the lower id is first. The n largest elements are in the
    n blocks with the largest maxima. These blocks are found by the same function, so only short rows are sorted.
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

    In the cumulative sum of probabilities each token has an interval; the token whose interval contains u is sampled.
    Probabilities need not sum to 1, as u is multiplied by their sum. This needs one random number per row, where Gumbel
    noise needs V. To avoid a cumulative sum over V, the vocabulary is split into blocks of about √V tokens: the block
    is found first, then the token in it.
    """
    n, vocab = logprobs.shape
    block_size = 1 << max((vocab.bit_length() + 1) // 2, 1)
    mass = jnp.pad(jnp.exp(logprobs), [(0, 0), (0, -vocab % block_size)]).reshape(n, -1, block_size)
    block_mass = jnp.sum(mass, axis=-1)
    block, offset = _find_interval(block_mass, u * jnp.sum(block_mass, axis=-1))
    token_in_block, _ = _find_interval(jnp.take_along_axis(mass, block[:, None, None], axis=1)[:, 0], offset)
    return (block * block_size + token_in_block).astype(jnp.int32)


def _find_interval(mass: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the interval of the cumulative sum of mass [N,M] that contains position [N].

    Return its index [N] and the position's offset from the start of the interval [N]. The interval has positive mass:
    if rounding moves `position` to the total, it is the last such interval.
    """
    end = jnp.cumsum(mass, axis=-1)
    last = mass.shape[-1] - 1 - jnp.argmax(mass[:, ::-1] > 0, axis=-1)
    index = jnp.minimum(jnp.sum(end <= position[:, None], axis=-1), last)
    start = pick(end - mass, index)
    return index, jnp.maximum(position - start, 0.0)
