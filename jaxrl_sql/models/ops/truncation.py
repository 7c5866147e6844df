"""Truncation of next-token distributions by top-k, top-p and min-p.

Top-k and top-p keep a prefix of the tokens in descending order of probability. So it is enough to find the last token
of this prefix, without sorting the vocabulary. Letters of shapes: N rows (tokens to sample), V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.models.ops.rows import find_largest, pick, sample_by_mass

NUM_LIKELIEST = 64
"""Number of most likely tokens in which the last kept token is searched first, before the whole vocabulary."""

_RANK_OF_NO_MASS = np.float32(np.inf).view(np.uint32)
"""Rank (see `_search_last`) of a token with probability 0: the bits of the absolute log-probability, infinity."""


class Truncation(NamedTuple):
    """Whether any row uses top-k, top-p and min-p: static, so that a compiled program omits limits without use."""

    top_k: bool
    top_p: bool
    min_p: bool


EVERY_LIMIT = Truncation(True, True, True)


class LastToken(NamedTuple):
    """Log-probability [N] and id [N] of the least likely token that each row keeps; of equal ones the highest id."""

    logprob: jax.Array
    id: jax.Array


def truncate(
    logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array, truncation: Truncation
) -> jax.Array:
    """Keep the `top_k` most likely tokens, of them the smallest set of mass `top_p`, of them those above `min_p`.

    logprobs [N,V] -> the same, renormalised, with -inf for removed tokens; top_k, top_p, min_p [N], for which 0, 1 and
    0 keep all. A limit that `truncation` excludes is not read. Top-p (nucleus sampling, Holtzman et al. 2020,
    arXiv:1904.09751) keeps a token if the mass of more likely tokens, relative to that of the top-k tokens, is below
    `top_p`. So at least one token remains. Min-p (Nguyen et al. 2024, arXiv:2407.01082) keeps tokens with at least
    `min_p` times the maximum probability. Of equally likely tokens those with lower ids come first.
    """
    vocab = logprobs.shape[-1]
    top_k = jnp.where(truncation.top_k & (top_k > 0) & (top_k < vocab), top_k, vocab)
    # Rounded mass may reach 1 before the last token, but a top_p of 1 keeps all.
    top_p = jnp.where(truncation.top_p & (top_p < 1), top_p, jnp.inf)
    is_allowed = jnp.ones(logprobs.shape, bool)
    if truncation.top_k or truncation.top_p:
        last = jax.tree.map(lambda x: x[:, None], _find_last(logprobs, top_k, top_p, truncation))
        is_allowed = (logprobs > last.logprob) | ((logprobs == last.logprob) & (jnp.arange(vocab) <= last.id))
    is_unlimited = (top_k == vocab) & jnp.isinf(top_p)
    if truncation.min_p:
        is_allowed &= logprobs >= jnp.max(logprobs, axis=-1, keepdims=True) + jnp.log(min_p)[:, None]
        is_unlimited &= min_p <= 0
    # A row without limits must keep its exact log-probabilities, which a rounded sum would change.
    mass = jnp.where(is_unlimited, 1.0, jnp.sum(jnp.where(is_allowed, jnp.exp(logprobs), 0.0), axis=-1))
    # If a single token remains, the mass may round to less than its probability; the minimum prevents a value above 0.
    return jnp.where(is_allowed, jnp.minimum(logprobs - jnp.log(mass)[:, None], 0.0), -jnp.inf)


def _find_last(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, truncation: Truncation) -> LastToken:
    """Return the last token that top-k (V: off) and then top-p (inf: off) keep.

    The NUM_LIKELIEST most likely tokens nearly always contain it. The whole vocabulary is searched only if some row's
    last token is not among them.
    """
    vocab = logprobs.shape[-1]
    likeliest, ids = find_largest(logprobs, min(NUM_LIKELIEST, vocab))
    count, mass = likeliest.shape[-1], jnp.exp(likeliest)
    cumulative, has_top_k = jnp.cumsum(mass, axis=-1), top_k < vocab
    index = jnp.minimum(top_k, count) - 1
    total = jnp.where(has_top_k, pick(cumulative, index), 1.0)
    # The product of a tiny limit and the total could round to 0, so the mass is divided instead.
    num_in_top_p = jnp.sum((cumulative - mass) / total[:, None] < top_p[:, None], axis=-1)
    index = jnp.minimum(index, num_in_top_p - 1)
    is_unlimited = ~has_top_k & jnp.isinf(top_p)
    last = LastToken(
        jnp.where(is_unlimited, -jnp.inf, pick(likeliest, index)), jnp.where(is_unlimited, vocab, pick(ids, index))
    )
    if count == vocab:
        return last
    is_found = is_unlimited | jnp.where(has_top_k, top_k <= count, cumulative[:, -1] >= top_p)

    def search_all() -> LastToken:
        by_search = _search_last(logprobs, top_k, top_p, truncation)
        return LastToken(*(jnp.where(is_found, x, y) for x, y in zip(last, by_search, strict=True)))

    return LastToken(*jax.lax.cond(jnp.all(is_found), lambda: last, search_all))


def _search_last(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, truncation: Truncation) -> LastToken:
    """Return the last token that top-k (V: off) and then top-p (inf: off) keep, by a search of the whole vocabulary.

    A token's rank is a uint32 that increases as its probability decreases. Equally likely tokens have the same rank, so
    the result of a search is a last rank and the number of tokens of this rank that are kept.
    """
    vocab = logprobs.shape[-1]
    # Log-probabilities are at most 0. Their absolute values order like their bits as integers: a certain token (0) has
    # rank 0, and an impossible one (-inf) the highest.
    rank, mass = jax.lax.bitcast_convert_type(jnp.abs(logprobs), jnp.uint32), jnp.exp(logprobs)
    last_rank, num_ties, total = (
        jnp.full(top_k.shape, x) for x in (_RANK_OF_NO_MASS, np.float32(vocab), np.float32(1))
    )
    if truncation.top_k:
        last_rank, num_ties = _search_rank(rank, jnp.ones_like(mass), top_k.astype(jnp.float32))
        mass_of_ties = num_ties * jnp.exp(-jax.lax.bitcast_convert_type(last_rank, jnp.float32))
        top_k_mass = jnp.sum(jnp.where(rank < last_rank[:, None], mass, 0.0), axis=-1) + mass_of_ties
        total = jnp.where(top_k < vocab, top_k_mass, 1.0)
    if truncation.top_p:
        top_p_rank, top_p_ties = _search_rank(rank, mass / total[:, None], top_p)
        is_less = (top_p_rank < last_rank) | ((top_p_rank == last_rank) & (top_p_ties < num_ties))
        last_rank, num_ties = jnp.where(is_less, top_p_rank, last_rank), jnp.where(is_less, top_p_ties, num_ties)
    # The last token is the `num_ties`-th, by id, of those with the last rank. To select it, these tokens get equal mass
    # and others none. Inverse-transform sampling at the middle of that token's interval then returns it.
    has_last_rank = rank == last_rank[:, None]
    middle = (num_ties - 0.5) / jnp.sum(has_last_rank, axis=-1)
    token = sample_by_mass(middle, jnp.where(has_last_rank, 0.0, -jnp.inf))
    return LastToken(-jax.lax.bitcast_convert_type(last_rank, jnp.float32), token)


def _search_rank(rank: jax.Array, weight: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the tokens, in order of rank, whose predecessors have a total weight below `limit`.

    rank [N,V] uint32, weight [N,V], limit [N]. Tokens of equal rank have equal weight. Return the last rank of these
    tokens, and how many tokens of that rank are among them: [N] each. The binary digits of the last rank are
    determined from the highest to the lowest, which replaces sorting the vocabulary.
    """

    def weight_before(bound: jax.Array) -> jax.Array:
        """Return the total weight of tokens with a rank below `bound` [N]."""
        return jnp.sum(jnp.where(rank < bound[:, None], weight, 0.0), axis=-1)

    def find_last(bits: int) -> jax.Array:
        """Return the largest rank whose preceding weight is below the limit; each iteration finds `bits` bits of it."""

        def set_digit(i: jax.Array, bound: jax.Array) -> jax.Array:
            shift = (32 - bits * (i + 1)).astype(jnp.uint32)
            candidates = [bound | (jnp.uint32(digit) << shift) for digit in range(1, 1 << bits)]
            digit = sum((weight_before(candidate) < limit).astype(jnp.uint32) for candidate in candidates)
            return bound | (digit << shift)

        return jax.lax.fori_loop(0, 32 // bits, set_digit, jnp.zeros(limit.shape, jnp.uint32))

    # A GPU tests the three candidates of a digit of two bits in one pass over the tokens. A CPU needs a pass for each.
    last = jax.lax.platform_dependent(cpu=lambda: find_last(1), default=lambda: find_last(2))
    weight_of_last = jnp.max(jnp.where(rank == last[:, None], weight, 0.0), axis=-1)
    return last, jnp.ceil((limit - weight_before(last)) / weight_of_last)
