"""The next-token distribution: temperature, truncation and log-probabilities.

Sampler and trainer share this module, so that they use the same policy: logits divided by the temperature, log-softmax
in float32. Truncated sampling (top-k, top-p) returns two log-probabilities per token: under the full distribution, for
the policy ratio, and under the truncated one, for importance weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.ops.linear import AnyWeight, Transposed, linear

KEPT_BYTES = 256 << 20

IdRanges = tuple[tuple[int, int], ...]
"""Half-open ranges of token ids; static arguments of compiled programs."""

# Far below any logit: its exponential is 0, and unlike -inf it causes no NaN (0 · x, x - x, gradients).
_IMPOSSIBLE = -1e30

NUM_LIKELIEST = 64
"""The number of tokens in which top-k and top-p are evaluated before the whole vocabulary is searched."""
BLOCK = 16
"""Block size of the search for the likeliest tokens, which sorts this many times their number."""


class SampledTokens(NamedTuple):
    """Sampled tokens [N] int32 and their log-probabilities [N].

    logprob: under the full distribution; behavior_logprob: under the distribution that was sampled.
    """

    token: jax.Array
    logprob: jax.Array
    behavior_logprob: jax.Array


class TokenLogprobs(NamedTuple):
    """Log-probability of each token and entropy of its distribution, [B,G,T].

    value [B,G,T]: the expected return from the token on, for a policy with a value head.
    """

    logprob: jax.Array
    entropy: jax.Array
    value: jax.Array | None = None


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Limit x to (-cap, cap) by cap · tanh(x / cap) (Gemma 2, arXiv 2408.00118); unchanged for None."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def without_ids(logits: jax.Array, missing: IdRanges) -> jax.Array:
    """Set the probability of ids without a token to 0: logits [...,V] float32; a no-op for ()."""
    if not missing:
        return logits
    is_missing = np.zeros(logits.shape[-1], bool)
    for first, last in missing:
        is_missing[first:last] = True
    return jnp.where(is_missing, _IMPOSSIBLE, logits)


class SamplingMetadata(NamedTuple):
    """The sampling parameters of N rows on the device, [N] each.

    temperature (0: greedy), top_k (0: all), top_p (1: all), min_p (0: all), repetition_penalty (1: off; see
    `penalize`).
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array


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
    return jnp.where(is_allowed, logprobs - jnp.log(mass)[:, None], -jnp.inf)


def _find_last(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, truncation: Truncation) -> LastToken:
    """Return the last token that top-k (V: off) and then top-p (inf: off) keep.

    The most likely tokens nearly always contain it. The whole vocabulary is searched only for the other rows.
    """
    vocab = logprobs.shape[-1]
    likeliest, ids = _find_largest(logprobs, min(NUM_LIKELIEST, vocab))
    count, mass = likeliest.shape[-1], jnp.exp(likeliest)
    until, has_top_k = jnp.cumsum(mass, axis=-1), top_k < vocab
    index = jnp.minimum(top_k, count) - 1
    total = jnp.where(has_top_k, _pick(until, index), 1.0)
    # The product of a tiny limit and the total could round to 0, so the mass is divided instead.
    num_in_top_p = jnp.sum((until - mass) / total[:, None] < top_p[:, None], axis=-1)
    index = jnp.minimum(index, num_in_top_p - 1)
    is_whole = ~has_top_k & jnp.isinf(top_p)
    last = LastToken(
        jnp.where(is_whole, -jnp.inf, _pick(likeliest, index)), jnp.where(is_whole, vocab, _pick(ids, index))
    )
    if count == vocab:
        return last
    is_found = is_whole | jnp.where(has_top_k, top_k <= count, until[:, -1] >= top_p)

    def search_all() -> LastToken:
        other = _search_last(logprobs, top_k, top_p, truncation)
        return LastToken(*(jnp.where(is_found, x, y) for x, y in zip(last, other, strict=True)))

    return LastToken(*jax.lax.cond(jnp.all(is_found), lambda: last, search_all))


def _find_largest(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the largest numbers of x [N,V] in descending order, ties by id, and their ids, [N,count] each.

    They are in the blocks with the largest maxima, which are found in the same way, so only short rows are sorted.
    """
    n, size = x.shape
    ids = jnp.broadcast_to(jnp.arange(size), x.shape)
    if size > count * BLOCK:
        blocks = jnp.pad(x, [(0, 0), (0, -size % BLOCK)], constant_values=-jnp.inf).reshape(n, -1, BLOCK)
        _, block = _find_largest(jnp.max(blocks, axis=-1), count)
        x = jnp.take_along_axis(blocks, block[..., None], axis=1).reshape(n, -1)
        ids = (block[..., None] * BLOCK + jnp.arange(BLOCK)).reshape(n, -1)
    negative, ids = jax.lax.sort((-x, ids), num_keys=2)
    return -negative[:, :count], ids[:, :count]


def _search_last(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, truncation: Truncation) -> LastToken:
    """Return the last token that top-k (V: off) and then top-p (inf: off) keep, by a search of the whole vocabulary."""
    # Absolute values of log-probabilities order like their bits as integers: rank 0 is the most likely.
    rank, mass = jax.lax.bitcast_convert_type(jnp.abs(logprobs), jnp.uint32), jnp.exp(logprobs)
    total = jnp.ones(top_k.shape, jnp.float32)
    if truncation.top_k:
        last, number = _search_rank(rank, jnp.ones_like(mass), top_k.astype(jnp.float32))
        limited = jnp.sum(jnp.where(rank < last[:, None], mass, 0.0), axis=-1) + number * jnp.exp(_as_logprob(last))
        total = jnp.where(top_k < logprobs.shape[-1], limited, 1.0)
    if truncation.top_p:
        last_in_top_p, number_in_top_p = _search_rank(rank, mass / total[:, None], top_p)
        if truncation.top_k:
            is_less = (last_in_top_p < last) | ((last_in_top_p == last) & (number_in_top_p < number))
            last, number = jnp.where(is_less, last_in_top_p, last), jnp.where(is_less, number_in_top_p, number)
        else:
            last, number = last_in_top_p, number_in_top_p
    has_last_rank = rank == last[:, None]
    place = (number - 0.5) / jnp.sum(has_last_rank, axis=-1)
    return LastToken(_as_logprob(last), sample_by_mass(place, jnp.where(has_last_rank, 0.0, -jnp.inf)))


def _search_rank(rank: jax.Array, weight: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the tokens [N,V], in order of rank, whose predecessors have a total weight below `limit` [N].

    Return their last rank, and the number of tokens of this rank, which all weigh the same: [N] each. The rank's
    digits, of two bits each, are determined one by one, which replaces sorting the vocabulary.
    """

    def weight_before(bound: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(rank < bound[:, None], weight, 0.0), axis=-1)

    def set_digit(i: jax.Array, bound: jax.Array) -> jax.Array:
        shift = (30 - 2 * i).astype(jnp.uint32)
        candidates = [bound | (jnp.uint32(digit) << shift) for digit in (1, 2, 3)]
        digit = sum((weight_before(candidate) < limit).astype(jnp.uint32) for candidate in candidates)
        return bound | (digit << shift)

    last = jax.lax.fori_loop(0, 16, set_digit, jnp.zeros(limit.shape, jnp.uint32))
    weight_of_last = jnp.max(jnp.where(rank == last[:, None], weight, 0.0), axis=-1)
    return last, jnp.ceil((limit - weight_before(last)) / weight_of_last)


def _as_logprob(rank: jax.Array) -> jax.Array:
    infinite = np.float32(np.inf).view(np.uint32)
    return -jax.lax.bitcast_convert_type(jnp.minimum(rank, infinite), jnp.float32)


def penalize(logits: jax.Array, seen: jax.Array, penalty: jax.Array) -> jax.Array:
    """Apply a repetition penalty to tokens already in the text (Keskar et al. 2019, arXiv:1909.05858).

    logits [N,V], seen [N,V] bool, penalty [N] above 0: the logit of a seen token is divided by it if positive and
    multiplied by it if negative.
    """
    factor = penalty[:, None]
    return jnp.where(seen, jnp.where(logits > 0, logits / factor, logits * factor), logits)


def sample_tokens(
    keys: jax.Array,
    logits: jax.Array,
    sampling: SamplingMetadata,
    seen: jax.Array | None = None,
    truncation: Truncation = EVERY_LIMIT,
    samples: bool = True,
) -> SampledTokens:
    """Sample a token per row: keys [N], logits [N,V]; temperature 0 takes the most likely, with behavior_logprob 0.

    seen [N,V] bool: tokens that the repetition penalty applies to; None if no row has a penalty. truncation, samples
    (static): the limits that some row uses, and whether some row is not greedy. The full distribution has no penalty
    and no truncation, and temperature 1 for a greedy row.
    """
    scale = jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)[:, None]
    logits = logits.astype(jnp.float32)
    full = _log_softmax(logits, scale)
    allowed = full
    if seen is not None:
        allowed = _log_softmax(penalize(logits, seen, sampling.repetition_penalty), scale)
    likeliest = first_of_largest(allowed)
    if not samples:
        return SampledTokens(likeliest, _pick(full, likeliest), jnp.zeros(likeliest.shape, jnp.float32))
    is_greedy = sampling.temperature <= 0
    if any(truncation):
        top_k, top_p = jnp.where(is_greedy, 0, sampling.top_k), jnp.where(is_greedy, 1.0, sampling.top_p)
        allowed = truncate(allowed, top_k, top_p, sampling.min_p, truncation)
    token = jnp.where(is_greedy, likeliest, sample_by_mass(jax.vmap(jax.random.uniform)(keys), allowed))
    return SampledTokens(token, _pick(full, token), jnp.where(is_greedy, 0.0, _pick(allowed, token)))


def _log_softmax(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return the log-probabilities [...,V] of logits [...,V] at a temperature, which is broadcast."""
    scaled = _scale(logits, jnp.max(logits, axis=-1, keepdims=True), temperature)
    return scaled - jnp.log(jnp.sum(jnp.exp(scaled), axis=-1, keepdims=True))


def _scale(logits: jax.Array, largest: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Subtract the largest logit [...,1] from logits [...,V], then divide by the temperature.

    The largest becomes exactly 0, or NaN if it is not finite. Without this case a fused loop may round its product
    with a penalty differently, and a small temperature would scale that difference out of the range of exp.
    """
    return jnp.where(logits == largest, largest - largest, (logits - largest) / temperature)


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
    before = jnp.take_along_axis(until - mass, index[:, None], axis=-1)[:, 0]
    return index, jnp.maximum(at - before, 0.0)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def score(logits: jax.Array, targets: jax.Array, temperature: float = 1.0) -> TokenLogprobs:
    """Score targets [...] int32 under logits [...,V] float32 at a temperature: log-probability and entropy, [...] each.

    The custom gradient takes one pass over the logits, where automatic differentiation would scatter into an array of
    zeros of the same size.
    """
    return _score_forward(logits, targets, temperature)[0]


def _score_forward(
    logits: jax.Array, targets: jax.Array, temperature: float
) -> tuple[TokenLogprobs, tuple[jax.Array, ...]]:
    largest = jnp.max(logits, axis=-1, keepdims=True)
    scaled = _scale(logits, largest, temperature)
    mass = jnp.exp(scaled)
    total = jnp.sum(mass, axis=-1)
    log_total = jnp.log(total)
    entropy = log_total - jnp.sum(mass * scaled, axis=-1) / total
    target = _scale(_pick(logits, targets)[..., None], largest, temperature)[..., 0]
    return TokenLogprobs(target - log_total, entropy), (logits, targets, largest, log_total, entropy)


def _score_backward(temperature: float, residuals: tuple[jax.Array, ...], g: TokenLogprobs) -> tuple[jax.Array, None]:
    logits, targets, largest, log_total, entropy = residuals
    logprobs = _scale(logits, largest, temperature) - log_total[..., None]
    p = jnp.exp(logprobs)
    hit = jnp.arange(logits.shape[-1]) == targets[..., None]
    by_entropy = p * (logprobs + entropy[..., None]) * g.entropy[..., None]
    return (jnp.where(hit, 1.0 - p, -p) * g.logprob[..., None] - by_entropy) / temperature, None


score.defvjp(_score_forward, _score_backward)


def token_logprobs(
    hidden: jax.Array,
    unembedding: AnyWeight | Transposed,
    targets: jax.Array,
    temperature: float,
    kept_bytes: int = KEPT_BYTES,
    logit_cap: float | None = None,
    is_frozen: bool = False,
    missing: IdRanges = (),
) -> TokenLogprobs:
    """Score target tokens with at most `kept_bytes` of logits in memory.

    hidden [B,G,T,D]: the states that predict targets [B,G,T]; unembedding [D,V]; logit_cap: soft cap of the logits,
    before the temperature; missing: ids without a token, with probability 0. If all logits (float32) fit, they are
    saved for the backward pass. Otherwise T is split into the fewest equal chunks that fit (of at least one token),
    whose logits are recomputed in the backward pass.

    Without a gradient of the unembedding (`is_frozen`), the gradient of a token's state is known up to a factor in the
    forward pass. It is computed there, and logits are neither saved nor recomputed, except for a gradient of the
    entropy.
    """

    def score_chunk(states: jax.Array, tokens: jax.Array, table: AnyWeight | Transposed) -> TokenLogprobs:
        logits = linear(states, table, 1, jnp.float32)
        return score(without_ids(soft_cap(logits, logit_cap), missing), tokens, temperature or 1.0)

    b, g, t = targets.shape
    chunks = num_logit_chunks(b * g, t, unembedding.shape[-1], kept_bytes)
    if is_frozen:
        return _make_frozen_scorer(score_chunk, chunks)(hidden, targets, unembedding)
    if chunks == 1:
        return score_chunk(hidden, targets, unembedding)
    by_state = jax.checkpoint(lambda states, tokens: score_chunk(states, tokens, unembedding))
    scored: TokenLogprobs = _in_chunks(by_state, chunks, hidden, targets)
    return scored


ChunkScorer = Callable[[jax.Array, jax.Array, PyTree], TokenLogprobs]


def _make_frozen_scorer(
    score_chunk: ChunkScorer, chunks: int
) -> Callable[[jax.Array, jax.Array, PyTree], TokenLogprobs]:
    """Return a function (hidden, targets, table) -> scores, differentiable with respect to `hidden` only."""

    @jax.custom_vjp
    def score_frozen(hidden: jax.Array, targets: jax.Array, table: PyTree) -> TokenLogprobs:
        scores: TokenLogprobs = _in_chunks(
            lambda states, tokens: score_chunk(states, tokens, table), chunks, hidden, targets
        )
        return scores

    def forward(hidden: jax.Array, targets: jax.Array, table: PyTree) -> tuple[TokenLogprobs, tuple[PyTree, ...]]:
        if any(leaf.perturbed for leaf in jax.tree.leaves(table, is_leaf=_is_primal)):
            raise ValueError("a frozen unembedding cannot be differentiated")
        hidden, targets, table = jax.tree.map(lambda x: x.value, (hidden, targets, table), is_leaf=_is_primal)

        def score_with_gradient(states: jax.Array, tokens: jax.Array) -> tuple[TokenLogprobs, jax.Array]:
            def logprob(states: jax.Array) -> tuple[jax.Array, jax.Array]:
                return score_chunk(states, tokens, table)[:2]

            value, pull, entropy = jax.vjp(logprob, states, has_aux=True)
            return TokenLogprobs(value, entropy), pull(jnp.ones_like(value))[0]

        scores, slope = _in_chunks(score_with_gradient, chunks, hidden, targets)
        return scores, (slope, hidden, targets, table)

    def backward(residuals: tuple[PyTree, ...], g: TokenLogprobs) -> tuple[jax.Array, None, None]:
        slope, hidden, targets, table = residuals
        by_state = jnp.zeros(hidden.shape, jnp.float32)
        if not _is_zero(g.logprob):
            by_state += slope.astype(jnp.float32) * g.logprob[..., None]
        if not _is_zero(g.entropy):

            def entropy(states: jax.Array) -> jax.Array:
                entropy_of = jax.checkpoint(lambda states, tokens: score_chunk(states, tokens, table).entropy)
                entropies: jax.Array = _in_chunks(entropy_of, chunks, states, targets)
                return entropies

            by_state += jax.vjp(entropy, hidden)[1](g.entropy)[0]
        return by_state.astype(hidden.dtype), None, None

    score_frozen.defvjp(forward, backward, symbolic_zeros=True)
    return score_frozen


def _is_primal(x: Any) -> bool:
    return isinstance(x, CustomVJPPrimal)


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, SymbolicZero)


def _in_chunks(
    function: Callable[[jax.Array, jax.Array], Any], chunks: int, hidden: jax.Array, targets: jax.Array
) -> Any:
    """Run a function of states [B,G,t,D] and tokens [B,G,t] on chunks of T, one at a time, and join the results."""
    if chunks == 1:
        return function(hidden, targets)
    b, g, t = targets.shape
    results = jax.lax.map(lambda part: function(*part), (_split(hidden, chunks), _split(targets, chunks)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(b, g, -1, *x.shape[4:])[:, :, :t], results)


def num_logit_chunks(rows: int, tokens: int, vocab: int, kept_bytes: int) -> int:
    """Return the number of chunks into which the logits of `rows` completions are split to fit `kept_bytes`."""
    return math.ceil(tokens / max(kept_bytes // (4 * rows * vocab), 1))


def _split(x: jax.Array, chunks: int) -> jax.Array:
    """Split axis 2 into equal chunks, the last padded with zeros, on a new leading axis.

    [B,G,T,...] -> [chunks,B,G,⌈T/chunks⌉,...]
    """
    b, g, t, *rest = x.shape
    size = math.ceil(t / chunks)
    x = jnp.pad(x, [(0, 0), (0, 0), (0, chunks * size - t), *[(0, 0)] * len(rest)])
    return jnp.moveaxis(x.reshape(b, g, chunks, size, *rest), 2, 0)


def _pick(logprobs: jax.Array, token: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0]
