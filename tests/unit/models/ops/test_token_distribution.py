"""The next-token distribution compared with NumPy, and sampled tokens with their probabilities."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from jaxrl_sql.models.ops import rows, token_distribution
from jaxrl_sql.models.ops.token_distribution import (
    KEPT_BYTES,
    IdRanges,
    SamplingMetadata,
    token_logprobs,
    without_ids,
)
from jaxrl_sql.models.ops.truncation import Truncation

LOGITS = jnp.log(jnp.array([0.5, 0.25, 0.15, 0.07, 0.03]))
# One compiled program per shape; without jit each operation would be compiled separately.
penalize = jax.jit(token_distribution.penalize)
sample_tokens = jax.jit(token_distribution.sample_tokens, static_argnames=("truncation", "samples", "has_greedy"))
sample_by_mass = jax.jit(rows.sample_by_mass)


def sampling(rows: int = 1, **arguments: float) -> SamplingMetadata:
    """Return the same sampling parameters for all rows; the default is the whole distribution."""
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    return SamplingMetadata(
        **{
            name: np.full(rows, value, np.int32 if name == "top_k" else np.float32)
            for name, value in (plain | arguments).items()
        }
    )


def test_temperature_divides_the_logits() -> None:
    keys = jax.random.split(jax.random.key(1), 20_000)
    got = sample_tokens(keys, jnp.tile(LOGITS, (20_000, 1)), sampling(20_000, temperature=0.5))
    squared = np.array([0.5, 0.25, 0.15, 0.07, 0.03]) ** 2
    share = np.bincount(np.asarray(got.token), minlength=5) / 20_000
    np.testing.assert_allclose(share, squared / squared.sum(), atol=0.015)
    np.testing.assert_allclose(np.exp(got.logprob), (squared / squared.sum())[got.token], rtol=1e-5)
    np.testing.assert_allclose(got.behavior_logprob, got.logprob, atol=1e-6)


def test_program_without_greedy_rows_samples_the_same_bits() -> None:
    keys = jax.random.split(jax.random.key(1), 200)
    plan, logits = sampling(200, temperature=0.7, top_p=0.9), jax.random.normal(jax.random.key(2), (200, 50))
    whole, without = (sample_tokens(keys, logits, plan, has_greedy=has_greedy) for has_greedy in (True, False))
    assert all(map(np.array_equal, whole, without))
    plain = Truncation(False, False, False)
    programs = [
        jax.make_jaxpr(partial(sample_tokens, truncation=plain, has_greedy=has_greedy))(keys, logits, plan)
        for has_greedy in (True, False)
    ]
    searches = [str(program).count("platform_index") for program in programs]
    assert searches == [1, 0], "the search for the likeliest token differs between platforms"


def test_sampled_tokens_follow_the_distribution_and_carry_both_logprobs() -> None:
    keys = jax.random.split(jax.random.key(1), 20_000)
    got = sample_tokens(keys, jnp.tile(LOGITS, (20_000, 1)), sampling(20_000, top_k=3))
    share = np.bincount(np.asarray(got.token), minlength=5) / 20_000
    np.testing.assert_allclose(share, np.array([0.5, 0.25, 0.15, 0, 0]) / 0.9, atol=0.015)
    np.testing.assert_allclose(got.logprob, LOGITS[got.token], rtol=1e-5)
    np.testing.assert_allclose(got.behavior_logprob - got.logprob, -np.log(0.9), rtol=1e-4)


@pytest.mark.parametrize("vocab", [1, 2, 7, 63, 64, 65, 1038])
def test_inverse_cdf_sampling_by_hand(vocab: int) -> None:
    r = np.random.default_rng(vocab)
    mass = r.random(vocab) * (r.random(vocab) < 0.5)
    mass[r.integers(vocab)] += 1.0
    mass /= mass.sum()
    until = np.cumsum(mass)
    inside = [until[i] - mass[i] / 2 for i in np.flatnonzero(mass)]  # the middle of each interval
    u = np.array([*inside, 0.0, np.float32(1) - np.float32(2**-24)], np.float32)
    with np.errstate(divide="ignore"):  # log(0)
        logprobs = np.broadcast_to(np.log(mass.astype(np.float32)), (len(u), vocab))
    result = np.asarray(sample_by_mass(u, logprobs)).tolist()
    wanted = np.flatnonzero(mass).tolist()
    assert result[:-2] == wanted
    assert result[-2:] == [wanted[0], wanted[-1]]


@pytest.mark.parametrize("samples", [True, False])
def test_greedy_takes_the_most_likely_token(samples: bool) -> None:
    got = sample_tokens(
        jax.random.split(jax.random.key(0), 1), LOGITS[None], sampling(temperature=0.0), samples=samples
    )
    assert int(got.token[0]) == 0
    assert float(got.behavior_logprob[0]) == 0.0
    assert float(got.logprob[0]) == pytest.approx(np.log(0.5), rel=1e-5)


def test_repetition_penalty_lowers_seen_tokens_for_either_sign() -> None:
    logits = jnp.array([[2.0, -1.0, 1.5, -0.5]])
    seen = jnp.array([[True, True, False, False]])
    np.testing.assert_allclose(penalize(logits, seen, jnp.array([2.0])), [[1.0, -2.0, 1.5, -0.5]])
    got = sample_tokens(
        jax.random.split(jax.random.key(0), 1), logits, sampling(temperature=0.0, repetition_penalty=2.0), seen
    )
    assert int(got.token[0]) == 2
    # The trainer has no penalty: `logprob` is that of the unpenalized distribution.
    assert float(got.logprob[0]) == pytest.approx(float(jax.nn.log_softmax(logits)[0, 2]), rel=1e-5)


def some(always: set[tuple[Any, ...]], cases: list[tuple[Any, ...]]) -> list[Any]:
    """Return the cases with logits of one token, of three and of all kept; cases not in `always` are nightly."""
    every = [(*case, kept_bytes) for case in cases for kept_bytes in (0, 900, 1 << 20)]
    return [pytest.param(*case, marks=() if case in always else pytest.mark.nightly) for case in every]


@pytest.mark.parametrize(
    ("steps", "cap", "kept_bytes"),
    some(
        {(5, None, 0), (16, None, 1 << 20), (32, None, 900), (32, 1.5, 0), (32, 1.5, 900)},
        [(5, None), (16, None), (32, None), (32, 1.5)],
    ),
)
def test_token_logprobs_equal_full_logits_in_value_and_gradient(steps: int, cap: float | None, kept_bytes: int) -> None:
    r = np.random.default_rng(2)
    hidden, matrix = (r.normal(size=shape).astype(np.float32) for shape in ((2, 3, steps, 8), (8, 11)))
    targets = r.integers(0, 11, (2, 3, steps), np.int32)

    def scored(h: jax.Array, w: jax.Array) -> jax.Array:
        got = token_logprobs(h, w, targets, 0.7, kept_bytes=kept_bytes, logit_cap=cap)
        return jnp.sum(got.logprob) + 0.3 * jnp.sum(got.entropy)

    def whole(h: jax.Array, w: jax.Array) -> jax.Array:
        logits = cap * jnp.tanh(h @ w / cap) if cap else h @ w
        logprobs = jax.nn.log_softmax(logits / 0.7)
        entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
        return jnp.sum(jnp.take_along_axis(logprobs, targets[..., None], -1)) + 0.3 * jnp.sum(entropy)

    (value, slopes), (wanted, wanted_slopes) = (
        jax.jit(jax.value_and_grad(function, (0, 1)))(hidden, matrix) for function in (scored, whole)
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for got, want in zip(slopes, wanted_slopes, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("cap", "bonus", "kept_bytes"),
    some(
        {(None, 0.0, 0), (1.5, 0.0, 900), (1.5, 0.3, 900), (None, 0.0, 1 << 20)},
        [(None, 0.0), (1.5, 0.0), (1.5, 0.3)],
    ),
)
def test_frozen_table_gives_the_same_scores_and_state_gradients(
    cap: float | None, bonus: float, kept_bytes: int
) -> None:
    r = np.random.default_rng(2)
    hidden, matrix, factor = (r.normal(size=shape).astype(np.float32) for shape in ((2, 3, 16, 8), (8, 11), (2, 3, 16)))
    targets = r.integers(0, 11, (2, 3, 16), np.int32)

    def loss(h: jax.Array, is_frozen: bool) -> jax.Array:
        got = token_logprobs(h, matrix, targets, 0.7, kept_bytes=kept_bytes, logit_cap=cap, is_frozen=is_frozen)
        return jnp.sum(got.logprob * factor) + (bonus * jnp.sum(got.entropy * factor) if bonus else 0.0)

    (got, got_slope), (want, want_slope) = (
        jax.jit(jax.value_and_grad(partial(loss, is_frozen=is_frozen)))(hidden) for is_frozen in (True, False)
    )
    assert float(got) == pytest.approx(float(want), rel=1e-6)
    np.testing.assert_allclose(got_slope, want_slope, rtol=1e-5, atol=1e-6)


def test_frozen_table_has_no_gradient() -> None:
    hidden, matrix = jnp.ones((1, 1, 2, 3)), jnp.ones((3, 5))
    with pytest.raises(ValueError, match="frozen"):
        jax.grad(lambda w: token_logprobs(hidden, w, jnp.zeros((1, 1, 2), int), 1.0, is_frozen=True).logprob.sum())(
            matrix
        )


@pytest.mark.parametrize(
    ("is_frozen", "bonus", "count"),
    # The logits, their gradients by states and by the table, and the recomputed logits if they are not kept.
    [(False, 0.0, 4), (True, 0.0, 2), (True, 0.1, 4)],
)
def test_logits_of_a_frozen_table_are_computed_once(is_frozen: bool, bonus: float, count: int) -> None:
    hidden, matrix = np.ones((1, 2, 64, 4), np.float32), np.ones((4, 1001), np.float32)
    targets = np.zeros((1, 2, 64), np.int32)

    def loss(h: jax.Array, w: jax.Array) -> jax.Array:
        got = token_logprobs(h, w, targets, 1.0, kept_bytes=1001 * 4 * 16, is_frozen=is_frozen)
        return jnp.sum(got.logprob) + (bonus * jnp.sum(got.entropy) if bonus else 0.0)

    gradient = jax.value_and_grad(loss, (0,) if is_frozen else (0, 1))
    assert jax.jit(gradient).lower(hidden, matrix).compile().as_text().count(" dot(") == count
    assert largest(jax.make_jaxpr(gradient)(hidden, matrix).jaxpr) <= 1001 * 16


def largest(jaxpr: Any) -> int:
    """Return the number of elements of the largest array that a program computes, including loops."""
    sizes = [variable.aval.size for equation in jaxpr.eqns for variable in equation.outvars]
    inner = [largest(part) for equation in jaxpr.eqns for part in jaxprs_in_params(equation.params)]
    return max([*sizes, *inner], default=0)


@pytest.mark.parametrize("steps", [1024, 1023, 997])
def test_no_array_of_all_logits_whatever_the_length(steps: int) -> None:
    """A vocabulary of 150k and indivisible lengths: both passes hold at most `kept_bytes` at once."""
    b, g, width, vocab = 2, 8, 64, 150_000
    hidden = jax.ShapeDtypeStruct((b, g, steps, width), jnp.bfloat16)
    matrix = jax.ShapeDtypeStruct((width, vocab), jnp.float32)
    targets = jax.ShapeDtypeStruct((b, g, steps), jnp.int32)

    def scored(h: jax.Array, w: jax.Array, t: jax.Array) -> jax.Array:
        got = token_logprobs(h, w, t, 1.0)
        return jnp.sum(got.logprob) + jnp.sum(got.entropy)

    program = jax.make_jaxpr(jax.grad(scored, (0, 1)))(hidden, matrix, targets)
    bound = KEPT_BYTES // 4
    assert vocab * width < bound < b * g * steps * vocab
    assert bound // 2 < largest(program.jaxpr) <= bound


def test_argmax_breaks_ties_by_the_lowest_id() -> None:
    r = np.random.default_rng(0)
    x = r.integers(-3, 4, (50, 33)).astype(np.float32)
    x[0], x[1], x[2, 5:] = -np.inf, 7.0, np.nan
    got = jax.jit(rows.first_of_largest)(x)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(np.delete(got, 2), np.delete(x, 2, axis=0).argmax(axis=-1))
    assert 0 <= got[2] < 33  # an invalid distribution still yields a token


MISSING: IdRanges = ((2, 4), (9, 11))
PRESENT = [0, 1, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 9}, {"top_p": 0.99}, {"min_p": 1e-6}])
def test_ids_without_a_token_have_no_mass(options: dict[str, Any]) -> None:
    logits = jax.random.normal(jax.random.key(0), (500, 11)).at[:, 3].set(9.0).at[:, 10].set(50.0)
    seen, penalty = jnp.ones(logits.shape, bool), 0.5
    plan = sampling(500, repetition_penalty=penalty, **options)
    keys = jax.random.split(jax.random.key(1), 500)
    got = sample_tokens(keys, without_ids(logits, MISSING), plan, seen)
    assert set(np.asarray(got.token).tolist()) <= set(PRESENT)
    narrow = jax.nn.log_softmax(logits[:, jnp.array(PRESENT)] / (options.get("temperature", 1.0) or 1.0))
    places = np.searchsorted(PRESENT, np.asarray(got.token))
    np.testing.assert_allclose(got.logprob, np.asarray(narrow)[np.arange(500), places], atol=1e-5)
    assert np.isfinite(got.behavior_logprob).all()


def test_vocabulary_without_gaps_is_unchanged() -> None:
    assert without_ids(LOGITS, ()) is LOGITS


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.slow), 0.7, 1e-6])
@pytest.mark.parametrize(
    ("is_frozen", "kept_bytes"), [pytest.param(False, 1 << 20, marks=pytest.mark.slow), (False, 900), (True, 900)]
)
def test_scores_ignore_ids_without_a_token(is_frozen: bool, kept_bytes: int, temperature: float) -> None:
    """Value and gradient equal those of a table without the columns, also in bfloat16, and the columns do not move."""
    keys = jax.random.split(jax.random.key(2), 4)
    hidden = jax.random.normal(keys[0], (2, 3, 32, 8)).astype(jnp.bfloat16)
    matrix = jax.random.normal(keys[1], (8, 11)).astype(jnp.bfloat16).at[:, 10].mul(9.0)
    places = jax.random.randint(keys[2], (2, 3, 32), 0, len(PRESENT))
    factor = jax.random.normal(keys[3], (2, 3, 32))

    def loss(h: jax.Array, w: jax.Array, targets: jax.Array, missing: IdRanges) -> jax.Array:
        got = token_logprobs(
            h, w, targets, temperature, kept_bytes=kept_bytes, logit_cap=5.0, is_frozen=is_frozen, missing=missing
        )
        return jnp.sum(got.logprob * factor) + 0.3 * jnp.sum(got.entropy * factor)

    gradient = jax.jit(jax.value_and_grad(loss, (0,) if is_frozen else (0, 1)), static_argnums=3)
    got, slopes = gradient(hidden, matrix, jnp.array(PRESENT)[places], MISSING)
    want, narrow = gradient(hidden, matrix[:, jnp.array(PRESENT)], places, ())
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose(
        slopes[0].astype(np.float32), narrow[0].astype(np.float32), rtol=0.02, atol=0.02 / temperature
    )
    if not is_frozen:
        assert not np.asarray(slopes[1]).astype(np.float32)[:, [2, 3, 9, 10]].any()


def test_target_without_a_token_has_finite_scores() -> None:
    """A batch of an earlier version may contain one: its ratio to itself is 1, and nothing becomes NaN."""
    hidden, matrix = np.ones((1, 1, 3, 4), np.float32), np.random.default_rng(0).normal(size=(4, 11)).astype(np.float32)
    targets = np.array([[[3, 0, 10]]], np.int32)

    def loss(h: jax.Array, w: jax.Array) -> jax.Array:
        got = token_logprobs(h, w, targets, 0.5, missing=MISSING)
        ratio = jnp.exp(got.logprob - jax.lax.stop_gradient(got.logprob))
        return jnp.sum(ratio) + jnp.sum(got.entropy)

    value, slopes = jax.jit(jax.value_and_grad(loss, (0, 1)))(hidden, matrix)
    assert np.isfinite(value)
    assert all(np.isfinite(slope).all() for slope in slopes)


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 1e6])
def test_scores_at_temperature_limits_equal_those_of_the_sampler(temperature: float) -> None:
    r = np.random.default_rng(0)
    hidden, matrix = (jnp.asarray(r.normal(0, 9, shape), jnp.float32) for shape in ((1, 1, 200, 16), (16, 500)))
    logits = hidden[0, 0] @ matrix
    keys, plain = jax.random.split(jax.random.key(0), 200), Truncation(False, False, False)
    drawn = sample_tokens(keys, logits, sampling(200, temperature=temperature), truncation=plain)
    score = jax.jit(lambda h, w, t: token_logprobs(h, w, t, temperature))
    got = score(hidden, matrix, drawn.token[None, None])
    np.testing.assert_allclose(got.logprob[0, 0], drawn.logprob, atol=1e-3)
    assert (np.asarray(got.entropy) >= -1e-4).all()
