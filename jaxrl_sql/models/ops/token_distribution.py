"""The next-token distribution: temperature, truncation and log-probabilities.

Sampler (the rollout engine) and trainer share this module, so that they use the same policy: logits divided by the
temperature, log-softmax in float32. Truncated sampling (top-k, top-p, min-p) returns two log-probabilities per token:
under the full distribution, for the policy ratio, and under the truncated one, for importance weights.

Letters of shapes: B prompts, G answers per prompt, T tokens per answer, D width of the model, V vocabulary, N rows.
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
from jaxrl_sql.models.ops.rows import first_of_largest, pick, sample_by_mass
from jaxrl_sql.models.ops.truncation import EVERY_LIMIT, Truncation, truncate

KEPT_BYTES = 256 << 20
"""Default limit, in bytes, of the logits in memory at a time."""

IdRanges = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of token ids; a tuple, so that it can be a static argument of compiled programs."""

# Far below any logit: its exponential is 0, and unlike -inf it causes no NaN (0 · x, x - x, gradients).
_IMPOSSIBLE = -1e30


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
    """Set the probability of ids without a token to 0: logits [...,V] float32; a no-op for ().

    A model's vocabulary is often padded to a larger size than its tokenizer's; the ids in between have no token.
    """
    if not missing:
        return logits
    is_missing = np.zeros(logits.shape[-1], bool)
    for start, stop in missing:
        is_missing[start:stop] = True
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
    has_greedy: bool = True,
) -> SampledTokens:
    """Sample a token per row: keys [N], logits [N,V]; temperature 0 takes the most likely, with behavior_logprob 0.

    seen [N,V] bool: tokens that the repetition penalty applies to; None if no row has a penalty. truncation (static):
    which limits any row uses. samples, has_greedy (static): whether any row is not greedy, and whether any is; False
    omits its part of the program. The full distribution has no penalty and no truncation, and temperature 1 for a
    greedy row.
    """
    scale = jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)[:, None]
    logits = logits.astype(jnp.float32)
    full = _log_softmax(logits, scale)
    allowed = full
    if seen is not None:
        allowed = _log_softmax(penalize(logits, seen, sampling.repetition_penalty), scale)
    is_greedy, likeliest = sampling.temperature <= 0, first_of_largest(allowed) if has_greedy else None
    if likeliest is not None and not samples:
        return SampledTokens(likeliest, pick(full, likeliest), jnp.zeros(likeliest.shape, jnp.float32))
    if any(truncation):
        top_k, top_p = jnp.where(is_greedy, 0, sampling.top_k), jnp.where(is_greedy, 1.0, sampling.top_p)
        allowed = truncate(allowed, top_k, top_p, sampling.min_p, truncation)
    token = sample_by_mass(jax.vmap(jax.random.uniform)(keys), allowed)
    if likeliest is not None:
        token = jnp.where(is_greedy, likeliest, token)
    return SampledTokens(token, pick(full, token), jnp.where(is_greedy, 0.0, pick(allowed, token)))


def _log_softmax(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return the log-probabilities [...,V] of logits [...,V] at a temperature, a scalar or [...,1]."""
    scaled = _scale(logits, jnp.max(logits, axis=-1, keepdims=True), temperature)
    return scaled - jnp.log(jnp.sum(jnp.exp(scaled), axis=-1, keepdims=True))


def _scale(logits: jax.Array, largest: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Subtract the largest logit [...,1] from logits [...,V], then divide by the temperature.

    The largest logit becomes exactly 0, or NaN if it is not finite. This case is separate for a reason. XLA may compute
    a penalized logit twice, in two fused loops that round differently. Then the difference to the maximum is not
    exactly 0, and division by a small temperature can make it too large for exp.
    """
    return jnp.where(logits == largest, largest - largest, (logits - largest) / temperature)


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
    target_logit = _scale(pick(logits, targets)[..., None], largest, temperature)[..., 0]
    return TokenLogprobs(target_logit - log_total, entropy), (logits, targets, largest, log_total, entropy)


def _score_backward(temperature: float, residuals: tuple[jax.Array, ...], g: TokenLogprobs) -> tuple[jax.Array, None]:
    logits, targets, largest, log_total, entropy = residuals
    logprobs = _scale(logits, largest, temperature) - log_total[..., None]
    p = jnp.exp(logprobs)
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    # With respect to the scaled logit j: d logprob = [j is the target] - p_j; d entropy = -p_j (log p_j + entropy).
    entropy_term = p * (logprobs + entropy[..., None]) * g.entropy[..., None]
    return (jnp.where(is_target, 1.0 - p, -p) * g.logprob[..., None] - entropy_term) / temperature, None


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

    hidden [B,G,T,D]: the states that predict targets [B,G,T]; unembedding [D,V]; temperature: 0 counts as 1;
    logit_cap: soft cap of the logits, before the temperature; missing: ids without a token, with probability 0. If all
    logits (float32) fit, they are saved for the backward pass. Otherwise T is split into the fewest equal chunks that
    fit (of at least one token), whose logits are recomputed in the backward pass.

    is_frozen: the unembedding gets no gradient. The gradient of a log-probability with respect to its token's state is
    then computed in the forward pass; the backward pass only multiplies it by the gradient of the log-probability. So
    logits are neither saved nor recomputed, except for a gradient of the entropy.
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
    recomputed = jax.checkpoint(lambda states, tokens: score_chunk(states, tokens, unembedding))
    scored: TokenLogprobs = _in_chunks(recomputed, chunks, hidden, targets)
    return scored


# (states [B,G,t,D], tokens [B,G,t], unembedding) -> scores of a chunk of t tokens.
ChunkScorer = Callable[[jax.Array, jax.Array, PyTree], TokenLogprobs]


def _make_frozen_scorer(
    score_chunk: ChunkScorer, chunks: int
) -> Callable[[jax.Array, jax.Array, PyTree], TokenLogprobs]:
    """Return a function (hidden, targets, table) -> scores, differentiable with respect to `hidden` only.

    The table is the unembedding. Symbolic zeros show whether log-probability or entropy has a gradient at all.
    """

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

            value, pullback, entropy = jax.vjp(logprob, states, has_aux=True)
            # Each log-probability depends on its own token's state only, so ones give all gradients in one pass.
            return TokenLogprobs(value, entropy), pullback(jnp.ones_like(value))[0]

        scores, logprob_grad = _in_chunks(score_with_gradient, chunks, hidden, targets)
        return scores, (logprob_grad, hidden, targets, table)

    def backward(residuals: tuple[PyTree, ...], g: TokenLogprobs) -> tuple[jax.Array, None, None]:
        logprob_grad, hidden, targets, table = residuals
        hidden_grad = jnp.zeros(hidden.shape, jnp.float32)
        if not _is_zero(g.logprob):
            hidden_grad += logprob_grad.astype(jnp.float32) * g.logprob[..., None]
        if not _is_zero(g.entropy):

            def entropy(states: jax.Array) -> jax.Array:
                entropy_of = jax.checkpoint(lambda states, tokens: score_chunk(states, tokens, table).entropy)
                entropies: jax.Array = _in_chunks(entropy_of, chunks, states, targets)
                return entropies

            hidden_grad += jax.vjp(entropy, hidden)[1](g.entropy)[0]
        return hidden_grad.astype(hidden.dtype), None, None

    score_frozen.defvjp(forward, backward, symbolic_zeros=True)
    return score_frozen


def _is_primal(x: Any) -> bool:
    """Return whether `x` is JAX's pair of an argument's value and whether it is differentiated (`perturbed`)."""
    return isinstance(x, CustomVJPPrimal)


def _is_zero(cotangent: Any) -> bool:
    """Return whether the gradient of an output is known to be zero, because nothing depends on the output."""
    return isinstance(cotangent, SymbolicZero)


def _in_chunks(
    function: Callable[[jax.Array, jax.Array], Any], chunks: int, hidden: jax.Array, targets: jax.Array
) -> Any:
    """Run a function of states [B,G,t,D] and tokens [B,G,t] on chunks of t tokens, one at a time.

    Return the joined results [B,G,T,...], without the padding of the last chunk.
    """
    if chunks == 1:
        return function(hidden, targets)
    b, g, t = targets.shape
    results = jax.lax.map(lambda part: function(*part), (_split(hidden, chunks), _split(targets, chunks)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(b, g, -1, *x.shape[4:])[:, :, :t], results)


def num_logit_chunks(rows: int, tokens: int, vocab: int, kept_bytes: int) -> int:
    """Return the number of chunks in which the logits of `rows` completions of `tokens` tokens fit `kept_bytes`."""
    return math.ceil(tokens / max(kept_bytes // (4 * rows * vocab), 1))  # a float32 has 4 bytes


def _split(x: jax.Array, chunks: int) -> jax.Array:
    """Split axis 2 into equal chunks, the last padded with zeros, on a new leading axis.

    [B,G,T,...] -> [chunks,B,G,⌈T/chunks⌉,...]
    """
    b, g, t, *rest = x.shape
    size = math.ceil(t / chunks)
    x = jnp.pad(x, [(0, 0), (0, 0), (0, chunks * size - t), *[(0, 0)] * len(rest)])
    return jnp.moveaxis(x.reshape(b, g, chunks, size, *rest), 2, 0)
