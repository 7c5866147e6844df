"""The next-token distribution: the one owner of temperature, truncation and log-probabilities.

Sampler and trainer both come here, so that they cannot disagree on what the policy is: logits divided by the
temperature, log-softmax in float32. Sampling with truncation (top-k, top-p) keeps two numbers a token: its
log-probability under the full distribution, which the policy ratio is taken on, and under the distribution that it was
sampled from, which corrects for the truncation.
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
from jaxrl_sql.models.ops.linear import AnyWeight, Turned, linear

KEPT_BYTES = 256 << 20

IdRanges = tuple[tuple[int, int], ...]
"""Ranges of token ids, each from its first to before its last: programs are compiled for them."""

# Far below any logit. Its exponential is 0, and where minus infinity gives NaN (0 · x, x - x, gradients) it gives 0.
_IMPOSSIBLE = -1e30


class SampledTokens(NamedTuple):
    """Sampled tokens [N] int32 with two log-probabilities [N] each.

    `logprob` is under the full distribution, `behavior_logprob` under the one that the token was sampled from.
    """

    token: jax.Array
    logprob: jax.Array
    behavior_logprob: jax.Array


class TokenLogprobs(NamedTuple):
    """What the trainer sees of a completion: log-probability and entropy of each token's distribution, [B,G,T].

    `value`, where the policy has a value head: the return that it expects from the token on, [B,G,T].
    """

    logprob: jax.Array
    entropy: jax.Array
    value: jax.Array | None = None


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Squeeze x smoothly into (-cap, cap), by cap · tanh(x / cap) (Gemma 2, arXiv 2408.00118); None changes nothing."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def without_ids(logits: jax.Array, missing: IdRanges) -> jax.Array:
    """Give ids without a token the probability 0: logits [...,V] float32; nothing is computed where `missing` is ()."""
    if not missing:
        return logits
    is_missing = np.zeros(logits.shape[-1], bool)
    for first, last in missing:
        is_missing[first:last] = True
    return jnp.where(is_missing, _IMPOSSIBLE, logits)


class SamplingMetadata(NamedTuple):
    """The sampling parameters of N rows, [N] each: what `SamplingParams` asks of the device.

    temperature (0: greedy), top_k (0: all), top_p (1: all), min_p (0: all), repetition_penalty (1: none; a repeated
    token's logit is divided by it when positive and multiplied when negative).
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array


def truncate(logprobs: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array) -> jax.Array:
    """Keep the `top_k` likeliest tokens, then the smallest set of mass `top_p`, then those above `min_p`.

    logprobs [...,V] -> the same, renormalised, with -inf for what is left out; top_k, top_p, min_p [...]; 0, 1 and 0
    keep all. Top-p is the nucleus of Holtzman et al. 2020 (arXiv:1904.09751): a token is kept while the mass of those
    before it is below `top_p`, so the likeliest always stays. Min-p (Nguyen et al. 2024, arXiv:2407.01082) keeps what
    has at least `min_p` of the likeliest token's probability. Of equals, those of lower ids are kept.
    """
    vocab = logprobs.shape[-1]
    # From the likeliest on these bits rise: log-probabilities are not positive, and so floats order as integers.
    rank = jax.lax.bitcast_convert_type(jnp.abs(logprobs.astype(jnp.float32)), jnp.int32)
    kept = _likeliest(rank, jnp.ones_like(logprobs), jnp.where(top_k > 0, top_k, vocab).astype(jnp.float32))
    mass = jnp.exp(jax.nn.log_softmax(jnp.where(kept, logprobs, -jnp.inf), axis=-1))
    # Rounding lets the mass reach 1 before the last token: 1 has to mean all.
    kept &= _likeliest(rank, mass, top_p) | (top_p >= 1.0)[..., None]
    kept &= logprobs >= jnp.max(logprobs, axis=-1, keepdims=True) + jnp.log(min_p)[..., None]
    return jax.nn.log_softmax(jnp.where(kept, logprobs, -jnp.inf), axis=-1)


def _likeliest(rank: jax.Array, weight: jax.Array, limit: jax.Array) -> jax.Array:
    """Keep each token [...,V] while the weights of those before it are below `limit` [...] together; of a rank as ids.

    Found bit by bit, without a sort of the vocabulary: first the last rank that is kept, then the last id of that rank.
    """
    ids = jnp.arange(rank.shape[-1])

    def total(chosen: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(chosen, weight, 0.0), axis=-1)

    def last(bits: int, before: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Return the largest number of so many bits whose weight `before` it is below the limit."""

        def step(i: jax.Array, found: jax.Array) -> jax.Array:
            wanted = found | (1 << (bits - 1 - i))
            return jnp.where(before(wanted) < limit, wanted, found)

        return jax.lax.fori_loop(0, bits, step, jnp.zeros(limit.shape, jnp.int32))

    bound = last(31, lambda at: total(rank < at[..., None]))[..., None]
    equal, above = rank == bound, total(rank < bound)
    at = last(rank.shape[-1].bit_length(), lambda at: above + total(equal & (ids < at[..., None])))
    return (rank < bound) | (equal & (ids <= at[..., None]))


def penalize(logits: jax.Array, seen: jax.Array, penalty: jax.Array) -> jax.Array:
    """Make tokens less likely that stand in the text already (Keskar et al. 2019, arXiv:1909.05858).

    logits [N,V], seen [N,V] bool, penalty [N] above 0: a seen token's logit is divided by it when positive and
    multiplied by it when negative.
    """
    factor = penalty[:, None]
    return jnp.where(seen, jnp.where(logits > 0, logits / factor, logits * factor), logits)


def sample_tokens(
    keys: jax.Array,
    logits: jax.Array,
    sampling: SamplingMetadata,
    seen: jax.Array | None = None,
    truncates: bool = True,
    samples: bool = True,
) -> SampledTokens:
    """Sample a token for each row: keys [N], logits [N,V]; temperature 0 takes the likeliest, of log-probability 0.

    `seen` [N,V] bool are the tokens that a repetition penalty applies to, None where no row has one; `truncates` and
    `samples` (static) say whether some row truncates its distribution, and whether some row is not greedy. The full
    distribution knows neither penalty nor truncation; for a greedy row it is the one at temperature 1.
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
    if truncates:
        allowed = truncate(allowed, sampling.top_k, sampling.top_p, sampling.min_p)
    is_greedy = sampling.temperature <= 0
    token = jnp.where(is_greedy, likeliest, sample_by_mass(jax.vmap(jax.random.uniform)(keys), allowed))
    return SampledTokens(token, _pick(full, token), jnp.where(is_greedy, 0.0, _pick(allowed, token)))


def _log_softmax(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return the log-probabilities [...,V] of logits [...,V] at a temperature, which broadcasts."""
    scaled = _scaled(logits, jnp.max(logits, axis=-1, keepdims=True), temperature)
    return scaled - jnp.log(jnp.sum(jnp.exp(scaled), axis=-1, keepdims=True))


def _scaled(logits: jax.Array, largest: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Subtract the largest logit [...,1] from logits [...,V], then divide by the temperature.

    The largest becomes 0 exactly, and NaN where it is not finite. Fused into another loop, its product with a penalty
    may be rounded otherwise there; divided by a small temperature such a difference is beyond the range of exp.
    """
    return jnp.where(logits == largest, largest - largest, (logits - largest) / temperature)


def first_of_largest(x: jax.Array) -> jax.Array:
    """Return the index of the largest of x [N,V] in each row, the first of equals -> [N] int32.

    XLA's CPU backend reduces (value, index) pairs one by one; two reductions of floats take a quarter of the time.
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
    """Sample by inverse transform: u [N] in [0, 1), logprobs [N,V] (-inf: left out) -> tokens [N] int32.

    The token is the one whose interval of the cumulative mass holds u, which takes one random number a row where Gumbel
    noise takes V. The mass is summed in two levels, so no running sum goes over all of V.
    """
    n, vocab = logprobs.shape
    size = 1 << max((vocab.bit_length() + 1) // 2, 1)
    mass = jnp.pad(jnp.exp(logprobs), [(0, 0), (0, -vocab % size)]).reshape(n, -1, size)
    shares = jnp.sum(mass, axis=-1)
    part, rest = _find_interval(shares, u * jnp.sum(shares, axis=-1))
    inside, _ = _find_interval(jnp.take_along_axis(mass, part[:, None, None], axis=1)[:, 0], rest)
    return (part * size + inside).astype(jnp.int32)


def _find_interval(mass: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find which interval of the running sum of mass [N,M] holds at [N] -> its index [N], and how far into it [N].

    It always has some mass: rounding may carry `at` to the end of all, which is the end of the last that has any.
    """
    until = jnp.cumsum(mass, axis=-1)
    last = mass.shape[-1] - 1 - jnp.argmax(mass[:, ::-1] > 0, axis=-1)
    index = jnp.minimum(jnp.sum(until <= at[:, None], axis=-1), last)
    before = jnp.take_along_axis(until - mass, index[:, None], axis=-1)[:, 0]
    return index, jnp.maximum(at - before, 0.0)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def score(logits: jax.Array, targets: jax.Array, temperature: float = 1.0) -> TokenLogprobs:
    """Score targets [...] int32 under logits [...,V] float32 at a temperature: log-probability and entropy, [...] each.

    Its gradient is written out: p - 1 at the target in one pass over the logits, where automatic differentiation
    would scatter into an array of zeros as large as they are.
    """
    return _score_forward(logits, targets, temperature)[0]


def _score_forward(
    logits: jax.Array, targets: jax.Array, temperature: float
) -> tuple[TokenLogprobs, tuple[jax.Array, ...]]:
    largest = jnp.max(logits, axis=-1, keepdims=True)
    scaled = _scaled(logits, largest, temperature)
    mass = jnp.exp(scaled)
    total = jnp.sum(mass, axis=-1)
    log_total = jnp.log(total)
    entropy = log_total - jnp.sum(mass * scaled, axis=-1) / total
    target = _scaled(_pick(logits, targets)[..., None], largest, temperature)[..., 0]
    return TokenLogprobs(target - log_total, entropy), (logits, targets, largest, log_total, entropy)


def _score_backward(temperature: float, kept: tuple[jax.Array, ...], g: TokenLogprobs) -> tuple[jax.Array, None]:
    logits, targets, largest, log_total, entropy = kept
    logprobs = _scaled(logits, largest, temperature) - log_total[..., None]
    p = jnp.exp(logprobs)
    hit = jnp.arange(logits.shape[-1]) == targets[..., None]
    by_entropy = p * (logprobs + entropy[..., None]) * g.entropy[..., None]
    return (jnp.where(hit, 1.0 - p, -p) * g.logprob[..., None] - by_entropy) / temperature, None


score.defvjp(_score_forward, _score_backward)


def token_logprobs(
    hidden: jax.Array,
    unembedding: AnyWeight | Turned,
    targets: jax.Array,
    temperature: float,
    kept_bytes: int = KEPT_BYTES,
    logit_cap: float | None = None,
    is_frozen: bool = False,
    missing: IdRanges = (),
) -> TokenLogprobs:
    """Score target tokens without holding more than `kept_bytes` of logits.

    hidden [B,G,T,D] are the states that predict targets [B,G,T]; unembedding [D,V]; `logit_cap` soft-caps the logits,
    before the temperature; ids that are `missing` a token have the probability 0. Where all logits (float32) fit they
    are kept for the backward pass. Else the T axis is cut into as few equal pieces as fit (of one token at least),
    whose logits are computed, reduced and recomputed in the backward pass.

    Where the unembedding takes no gradient (`is_frozen`), a token's gradient by its state is known but for a factor as
    soon as its logits are: it is computed beside them, and no logits are kept or computed again. Only a gradient by
    the entropy, where one is asked for, computes them once more.
    """

    def piece(states: jax.Array, tokens: jax.Array, table: AnyWeight | Turned) -> TokenLogprobs:
        logits = linear(states, table, 1, jnp.float32)
        return score(without_ids(soft_cap(logits, logit_cap), missing), tokens, temperature or 1.0)

    b, g, t = targets.shape
    pieces = logit_pieces(b * g, t, unembedding.shape[-1], kept_bytes)
    if is_frozen:
        return _make_frozen_scorer(piece, pieces)(hidden, targets, unembedding)
    if pieces == 1:
        return piece(hidden, targets, unembedding)
    by_state = jax.checkpoint(lambda states, tokens: piece(states, tokens, unembedding))
    scored: TokenLogprobs = _in_pieces(by_state, pieces, hidden, targets)
    return scored


Piece = Callable[[jax.Array, jax.Array, PyTree], TokenLogprobs]


def _make_frozen_scorer(piece: Piece, pieces: int) -> Callable[[jax.Array, jax.Array, PyTree], TokenLogprobs]:
    """Return a function (hidden, targets, table) -> scores that is differentiated by `hidden` alone."""

    @jax.custom_vjp
    def scored(hidden: jax.Array, targets: jax.Array, table: PyTree) -> TokenLogprobs:
        found: TokenLogprobs = _in_pieces(lambda states, tokens: piece(states, tokens, table), pieces, hidden, targets)
        return found

    def forward(hidden: jax.Array, targets: jax.Array, table: PyTree) -> tuple[TokenLogprobs, tuple[PyTree, ...]]:
        if any(leaf.perturbed for leaf in jax.tree.leaves(table, is_leaf=_is_primal)):
            raise ValueError("an unembedding that was called frozen is differentiated by")
        hidden, targets, table = jax.tree.map(lambda x: x.value, (hidden, targets, table), is_leaf=_is_primal)

        def sloped(states: jax.Array, tokens: jax.Array) -> tuple[TokenLogprobs, jax.Array]:
            def logprob(states: jax.Array) -> tuple[jax.Array, jax.Array]:
                return piece(states, tokens, table)[:2]

            value, pull, entropy = jax.vjp(logprob, states, has_aux=True)
            return TokenLogprobs(value, entropy), pull(jnp.ones_like(value))[0]

        found, slope = _in_pieces(sloped, pieces, hidden, targets)
        return found, (slope, hidden, targets, table)

    def backward(kept: tuple[PyTree, ...], g: TokenLogprobs) -> tuple[jax.Array, None, None]:
        slope, hidden, targets, table = kept
        by_state = jnp.zeros(hidden.shape, jnp.float32)
        if not _is_zero(g.logprob):
            by_state += slope.astype(jnp.float32) * g.logprob[..., None]
        if not _is_zero(g.entropy):

            def entropy(states: jax.Array) -> jax.Array:
                one = jax.checkpoint(lambda states, tokens: piece(states, tokens, table).entropy)
                found: jax.Array = _in_pieces(one, pieces, states, targets)
                return found

            by_state += jax.vjp(entropy, hidden)[1](g.entropy)[0]
        return by_state.astype(hidden.dtype), None, None

    scored.defvjp(forward, backward, symbolic_zeros=True)
    return scored


def _is_primal(x: Any) -> bool:
    return isinstance(x, CustomVJPPrimal)


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, SymbolicZero)


def _in_pieces(one: Callable[[jax.Array, jax.Array], Any], pieces: int, hidden: jax.Array, targets: jax.Array) -> Any:
    """Run a function of states [B,G,t,D] and tokens [B,G,t] on T cut into pieces, one at a time; join what it gives."""
    if pieces == 1:
        return one(hidden, targets)
    b, g, t = targets.shape
    found = jax.lax.map(lambda part: one(*part), (_split(hidden, pieces), _split(targets, pieces)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(b, g, -1, *x.shape[4:])[:, :, :t], found)


def logit_pieces(rows: int, tokens: int, vocab: int, kept_bytes: int) -> int:
    """Return into how many pieces the logits of `rows` completions are cut, so that few bytes are held at a time."""
    return math.ceil(tokens / max(kept_bytes // (4 * rows * vocab), 1))


def _split(x: jax.Array, pieces: int) -> jax.Array:
    """Cut axis 2 into equal pieces, the last filled up with zeros, and bring them to the front.

    [B,G,T,...] -> [pieces,B,G,⌈T/pieces⌉,...]
    """
    b, g, t, *rest = x.shape
    size = math.ceil(t / pieces)
    x = jnp.pad(x, [(0, 0), (0, 0), (0, pieces * size - t), *[(0, 0)] * len(rest)])
    return jnp.moveaxis(x.reshape(b, g, pieces, size, *rest), 2, 0)


def _pick(logprobs: jax.Array, token: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0]
