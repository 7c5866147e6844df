"""Truncation of next-token distributions by top-k, top-p and min-p."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.models.ops.rows import find_largest, pick, sample_by_mass

NUM_LIKELIEST = 64
"""Top-k and top-p are evaluated in this number of tokens, before the whole vocabulary is searched."""

_RANK_OF_NO_MASS = np.float32(np.inf).view(np.uint32)


class Truncation(NamedTuple):
    """Whether any row uses top-k, top-p and min-p: static, because a compiled program omits limits that none uses."""

    top_k: bool
    top_p: bool
    min_p: bool


EVERY_LIMIT = Truncation(True, True, True)


class LastToken(NamedTuple):
    """Log-probability [N] and id [N] of each row's last allowed token, in descending order with ties by id."""

    logprob: jax.Array
    id: jax.Array


def truncate(
    logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array, truncation: Truncation
) -> jax.Array:
    """Keep the `top_k` most likely tokens, then the smallest set of mass `top_p`, then those above `min_p`.

    logprobs [N,V] -> the same, renormalised, with -inf for removed tokens; top_k, top_p, min_p [N], for which 0, 1 and
    0 keep all. A limit that `truncation` excludes is not read. Top-p (nucleus sampling, Holtzman et al. 2020,
    arXiv:1904.09751) keeps a token if the mass of more likely ones is below `top_p`, so at least one stays. Min-p
    (Nguyen et al. 2024, arXiv:2407.01082) keeps tokens with at least `min_p` times the maximum probability. Ties are
    resolved in favour of lower ids.
    """
    vocab = logprobs.shape[-1]
    top_k = jnp.where(truncation.top_k & (top_k > 0) & (top_k < vocab), top_k, vocab)
    # Rounded mass may reach 1 before the last token, but a top_p of 1 keeps all.
    top_p = jnp.where(truncation.top_p & (top_p < 1), top_p, jnp.inf)
    is_allowed = jnp.ones(logprobs.shape, bool)
    if truncation.top_k or truncation.top_p:
        last = jax.tree.map(lambda x: x[:, None], _find_last(logprobs, top_k, top_p, truncation))
        is_allowed = (logprobs > last.logprob) | ((logprobs == last.logprob) & (jnp.arange(vocab) <= last.id))
    is_whole = (top_k == vocab) & jnp.isinf(top_p)
    if truncation.min_p:
        is_allowed &= logprobs >= jnp.max(logprobs, axis=-1, keepdims=True) + jnp.log(min_p)[:, None]
        is_whole &= min_p <= 0
    # Rounding must not change a whole row: it samples as without truncation.
    mass = jnp.where(is_whole, 1.0, jnp.sum(jnp.where(is_allowed, jnp.exp(logprobs), 0.0), axis=-1))
    # Of a single token, the sum may round to less than its probability.
    return jnp.where(is_allowed, jnp.minimum(logprobs - jnp.log(mass)[:, None], 0.0), -jnp.inf)


def _find_last(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, truncation: Truncation) -> LastToken:
    """Return the last token that top-k (V: off) and then top-p (inf: off) keep.

    The most likely tokens nearly always contain it. The whole vocabulary is searched only for the other rows.
    """
    vocab = logprobs.shape[-1]
    likeliest, ids = find_largest(logprobs, min(NUM_LIKELIEST, vocab))
    count, mass = likeliest.shape[-1], jnp.exp(likeliest)
    until, has_top_k = jnp.cumsum(mass, axis=-1), top_k < vocab
    index = jnp.minimum(top_k, count) - 1
    total = jnp.where(has_top_k, pick(until, index), 1.0)
    # The product of a tiny limit and the total could round to 0, so the mass is divided instead.
    num_in_top_p = jnp.sum((until - mass) / total[:, None] < top_p[:, None], axis=-1)
    index = jnp.minimum(index, num_in_top_p - 1)
    is_whole = ~has_top_k & jnp.isinf(top_p)
    last = LastToken(
        jnp.where(is_whole, -jnp.inf, pick(likeliest, index)), jnp.where(is_whole, vocab, pick(ids, index))
    )
    if count == vocab:
        return last
    is_found = is_whole | jnp.where(has_top_k, top_k <= count, until[:, -1] >= top_p)

    def search_all() -> LastToken:
        other = _search_last(logprobs, top_k, top_p, truncation)
        return LastToken(*(jnp.where(is_found, x, y) for x, y in zip(last, other, strict=True)))

    return LastToken(*jax.lax.cond(jnp.all(is_found), lambda: last, search_all))


def _search_last(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, truncation: Truncation) -> LastToken:
    """Return the last token that top-k (V: off) and then top-p (inf: off) keep, by a search of the whole vocabulary."""
    vocab = logprobs.shape[-1]
    # Absolute values of log-probabilities order like their bits as integers: rank 0 is the most likely.
    rank, mass = jax.lax.bitcast_convert_type(jnp.abs(logprobs), jnp.uint32), jnp.exp(logprobs)
    last, number, total = (jnp.full(top_k.shape, x) for x in (_RANK_OF_NO_MASS, np.float32(vocab), np.float32(1)))
    if truncation.top_k:
        last, number = _search_rank(rank, jnp.ones_like(mass), top_k.astype(jnp.float32))
        mass_of_last = number * jnp.exp(-jax.lax.bitcast_convert_type(last, jnp.float32))
        top_k_mass = jnp.sum(jnp.where(rank < last[:, None], mass, 0.0), axis=-1) + mass_of_last
        total = jnp.where(top_k < vocab, top_k_mass, 1.0)
    if truncation.top_p:
        last_by_mass, number_by_mass = _search_rank(rank, mass / total[:, None], top_p)
        is_less = (last_by_mass < last) | ((last_by_mass == last) & (number_by_mass < number))
        last, number = jnp.where(is_less, last_by_mass, last), jnp.where(is_less, number_by_mass, number)
    has_last_rank = rank == last[:, None]
    place = (number - 0.5) / jnp.sum(has_last_rank, axis=-1)
    token = sample_by_mass(place, jnp.where(has_last_rank, 0.0, -jnp.inf))
    return LastToken(-jax.lax.bitcast_convert_type(last, jnp.float32), token)


def _search_rank(rank: jax.Array, weight: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the tokens [N,V], in order of rank, whose predecessors have a total weight below `limit` [N].

    Return their last rank, and the number of tokens of this rank, which all weigh the same: [N] each. The rank's digits
    are determined one by one, which replaces sorting the vocabulary.
    """

    def weight_before(bound: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(rank < bound[:, None], weight, 0.0), axis=-1)

    def find_last(bits: int) -> jax.Array:
        """Return the last rank, by digits of this number of bits."""

        def set_digit(i: jax.Array, bound: jax.Array) -> jax.Array:
            shift = (32 - bits * (i + 1)).astype(jnp.uint32)
            candidates = [bound | (jnp.uint32(digit) << shift) for digit in range(1, 1 << bits)]
            digit = sum((weight_before(candidate) < limit).astype(jnp.uint32) for candidate in candidates)
            return bound | (digit << shift)

        return jax.lax.fori_loop(0, 32 // bits, set_digit, jnp.zeros(limit.shape, jnp.uint32))

    # A GPU compares with the three candidates of two bits in one pass, a CPU in a pass each.
    last = jax.lax.platform_dependent(cpu=lambda: find_last(1), default=lambda: find_last(2))
    weight_of_last = jnp.max(jnp.where(rank == last[:, None], weight, 0.0), axis=-1)
    return last, jnp.ceil((limit - weight_before(last)) / weight_of_last)
