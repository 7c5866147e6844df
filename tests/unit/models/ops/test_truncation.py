"""Top-k, top-p and min-p compared with their definition, which sorts in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, jaxprs_in_params

from jaxrl_sql.models.ops import rows, token_distribution, truncation
from jaxrl_sql.models.ops.token_distribution import SampledTokens, SamplingMetadata
from jaxrl_sql.models.ops.truncation import EVERY_LIMIT, NUM_LIKELIEST, Truncation

PLAIN = Truncation(False, False, False)
PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32)
# One compiled program per shape; without jit each operation would be compiled separately.
truncate = jax.jit(truncation.truncate, static_argnames="truncation")
sample_tokens = jax.jit(token_distribution.sample_tokens, static_argnames="truncation")
sample_by_mass = jax.jit(rows.sample_by_mass)
find_largest = jax.jit(rows.find_largest, static_argnames="count")


def truncated(logprobs: Any, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    """Truncate all rows [N,V] by the same limits."""
    limits = (np.full(len(logprobs), limit, kind) for limit, kind in ((top_k, int), (top_p, float), (min_p, float)))
    return np.asarray(truncate(jnp.asarray(logprobs, jnp.float32), *limits, EVERY_LIMIT))


def kept(logprobs: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Return which tokens of a row are kept by definition."""
    logprobs = logprobs.astype(np.float64)
    order = np.argsort(-logprobs, kind="stable")[: top_k or None]
    mass = np.exp(logprobs[order])
    mass /= mass.sum()
    in_top_p = (np.cumsum(mass) - mass < top_p) | (top_p >= 1)
    in_min_p = np.exp(logprobs[order] - logprobs[order[0]]) >= min_p
    result = np.zeros(len(logprobs), bool)
    result[order[in_top_p & in_min_p & np.isfinite(logprobs[order])]] = True
    return result


def log_softmax(logits: np.ndarray) -> np.ndarray:
    total = np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))
    return (logits - total).astype(np.float32)


@pytest.mark.parametrize(
    ("top_k", "top_p", "count"),
    [(0, 1.0, 5), (2, 1.0, 2), (0, 0.5, 1), (0, 0.51, 2), (0, 0.9, 3), (3, 0.6, 2), (9, 1.0, 5), (1, 0.01, 1)],
)
def test_truncation_keeps_the_most_likely_tokens_and_renormalizes(top_k: int, top_p: float, count: int) -> None:
    expected = np.where(np.arange(5) < count, PROBABILITIES, 0)
    got = np.exp(truncated(np.log(PROBABILITIES)[None], top_k, top_p))[0]
    np.testing.assert_allclose(got, expected / expected.sum(), rtol=1e-5)


@pytest.mark.parametrize(("min_p", "count"), [(0.0, 5), (0.05, 5), (0.1, 4), (0.25, 3), (0.5, 2), (0.51, 1), (1.0, 1)])
def test_min_p_is_relative_to_the_most_likely_token(min_p: float, count: int) -> None:
    expected = np.where(np.arange(5) < count, PROBABILITIES, 0)
    got = np.exp(truncated(np.log(PROBABILITIES)[None], min_p=min_p - 1e-6 if min_p else 0.0))[0]
    np.testing.assert_allclose(got, expected / expected.sum(), rtol=1e-5)


@pytest.mark.parametrize(("top_k", "top_p", "count"), [(7, 1.0, 7), (0, 0.1, 100), (200, 0.25, 50), (300, 1.0, 300)])
def test_truncation_of_equal_tokens_keeps_the_lowest_ids(top_k: int, top_p: float, count: int) -> None:
    """In a uniform distribution the likeliest tokens lack the mass, and top-p is reached within a tie."""
    is_kept = np.isfinite(truncated(np.full((3, 1000), -np.log(1000)), top_k, top_p - 1e-5 if top_p < 1 else 1.0))
    assert (is_kept == (np.arange(1000) < count)).all()


@pytest.mark.parametrize("vocab", [1, 37, 64, 65, 1000, 3000, 20_000])
def test_truncation_equals_a_sort(vocab: int) -> None:
    """Rounded logits have ties. Near a limit, rounding may add or remove tokens with a mass of 1e-5 in total."""
    r = np.random.default_rng(vocab)
    scale, digits = (r.choice(values, (40, 1)) for values in ([0.0, 0.3, 2.0, 6.0], [1, 10**6]))
    logits = (np.round(r.normal(0, scale, (40, vocab)) * digits) / digits).astype(np.float32)
    logits[:5, : vocab // 2] = -np.inf
    rows = log_softmax(logits)
    top_k = np.where(r.random(40) < 0.5, r.integers(0, vocab + 2, 40), r.integers(0, 80, 40))
    top_p, min_p = r.choice([0.05, 0.3, 0.777, 0.95, 1.0], 40), r.choice([0.0, 0.01, 0.3], 40)
    got = np.asarray(truncate(jnp.asarray(rows), top_k, top_p, min_p, EVERY_LIMIT))
    for i, row in enumerate(rows):
        fewest, wanted, most = (
            kept(row, int(top_k[i]), top_p[i] if top_p[i] == 1 else top_p[i] - less, min_p[i] * (1 + less))
            for less in (1e-5, 0, -1e-5)
        )
        is_kept = np.isfinite(got[i])
        assert (fewest <= is_kept).all()
        assert (is_kept <= most).all()
        if vocab <= 1000 and digits[i] > 1 and scale[i] > 0:
            np.testing.assert_array_equal(is_kept, wanted)
        expected = np.where(is_kept, np.exp(row.astype(np.float64)), 0)
        np.testing.assert_allclose(np.exp(got[i]), expected / expected.sum(), rtol=3e-5)


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 1024, 1025, 3001, 20_000])
def test_largest_numbers_are_ordered_with_ties_by_id(vocab: int) -> None:
    r = np.random.default_rng(vocab)
    x = np.concatenate([r.normal(size=(4, vocab)), r.integers(-3, 4, (4, vocab)), np.full((1, vocab), -np.inf)])
    count = min(NUM_LIKELIEST, vocab)
    values, ids = find_largest(jnp.asarray(x, jnp.float32), count=count)
    expected = np.argsort(-x.astype(np.float32), axis=-1, kind="stable")[:, :count]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x.astype(np.float32), expected, axis=-1))


def sorted_sizes(jaxpr: Jaxpr) -> Iterator[int]:
    """Yield the length of every row that a program sorts."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("sort", "top_k"):
            yield equation.invars[0].aval.shape[-1]  # type: ignore[attr-defined]
        for inner in jaxprs_in_params(equation.params):
            yield from sorted_sizes(inner)


def test_truncation_sorts_no_vocabulary() -> None:
    logprobs = jax.ShapeDtypeStruct((4, 150_000), jnp.float32)
    limits = np.full(4, 5), np.full(4, 0.5), np.full(4, 0.1)
    program = jax.make_jaxpr(partial(truncation.truncate, truncation=EVERY_LIMIT))(logprobs, *limits)
    assert 0 < max(sorted_sizes(program.jaxpr)) <= 16 * NUM_LIKELIEST


class Row:
    """Logits [V] and sampling parameters of a row."""

    def __init__(self, spread: float, **limits: float) -> None:
        self.logits = np.random.default_rng(len(limits)).normal(0, spread, 3000).astype(np.float32)
        plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        self.sampling = plain | limits


PEAKED = [
    Row(6, top_p=0.9), Row(6, top_k=20), Row(6, top_k=20, top_p=0.8), Row(6, min_p=0.1), Row(6, temperature=0.0),
    Row(6, top_k=20, top_p=0.95, min_p=0.01, temperature=0.7), Row(0.1), Row(0.1, top_p=0.9, temperature=0.0),
]  # fmt: skip
FLAT = [Row(0.1, top_p=0.9), Row(0.1, top_k=500), Row(0.1, top_k=500, top_p=0.5)]


def sampled(rows: list[Row], truncation: Truncation = EVERY_LIMIT) -> SampledTokens:
    """Sample a token per row; the key is the same for all."""
    sampling = SamplingMetadata(
        **{
            name: np.array([row.sampling[name] for row in rows], np.int32 if name == "top_k" else np.float32)
            for name in SamplingMetadata._fields
        }
    )
    keys = jnp.broadcast_to(jax.random.key(3), len(rows))
    got = sample_tokens(keys, np.stack([row.logits for row in rows]), sampling, truncation=truncation)
    return SampledTokens(*map(np.asarray, got))


def assert_equal_rows(got: SampledTokens, expected: SampledTokens, places: slice) -> None:
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_array_equal(x[places], y[places])


def test_sample_is_independent_of_rows_that_search_the_whole_vocabulary() -> None:
    """The batches have the same shape, so that the programs are the same."""
    flat = sampled([*PEAKED, *FLAT])
    assert_equal_rows(flat, sampled([*PEAKED, *PEAKED[:3]]), slice(len(PEAKED)))
    for i, row in enumerate(FLAT):
        others = sampled([*PEAKED, *[row] * 3])
        for x, y in zip(flat, others, strict=True):
            assert (y[len(PEAKED) :] == x[len(PEAKED) + i]).all()


def test_sample_is_independent_of_limits_of_other_rows() -> None:
    for row in [PEAKED[0], PEAKED[1], PEAKED[3], *FLAT[:2]]:
        limits = row.sampling
        used = Truncation(limits["top_k"] > 0, limits["top_p"] < 1, limits["min_p"] > 0)
        assert_equal_rows(sampled([row] * 3, used), sampled([row] * 3), slice(3))


def test_row_without_limits_samples_as_in_a_plain_batch() -> None:
    whole = Row(0.1)
    mixed, plain = sampled([*FLAT, *[whole] * 3]), sampled([whole] * 6, PLAIN)
    assert_equal_rows(mixed, plain, slice(3, 6))


@pytest.mark.parametrize("limits", [{"top_k": 20}, {"top_p": 0.9}, {"top_k": 100, "top_p": 0.8}, {"min_p": 0.1}])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_samples_follow_the_truncated_distribution(spread: float, limits: dict[str, Any]) -> None:
    """Pearson's statistic of fixed random numbers, at four standard deviations; and both log-probabilities."""
    count = 8000
    logits = np.random.default_rng(0).normal(0, spread, 200).astype(np.float32)
    full = np.exp(log_softmax(logits).astype(np.float64))
    is_kept = kept(np.log(full), limits.get("top_k", 0), limits.get("top_p", 1.0), limits.get("min_p", 0.0))
    expected = np.where(is_kept, full, 0) / full[is_kept].sum()
    row = Row(1, **limits)
    row.logits = logits
    keys = jax.random.split(jax.random.key(1), count)
    sampling = SamplingMetadata(
        **{name: np.full(count, row.sampling[name], np.float32) for name in SamplingMetadata._fields}
    )
    got = sample_tokens(keys, np.tile(logits, (count, 1)), sampling._replace(top_k=sampling.top_k.astype(np.int32)))
    counts = np.bincount(np.asarray(got.token), minlength=200)
    assert counts[~is_kept].sum() == 0
    statistic = ((counts - count * expected)[is_kept] ** 2 / (count * expected[is_kept])).sum()
    freedom = is_kept.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    np.testing.assert_allclose(got.logprob, np.log(full)[got.token], atol=2e-5)
    np.testing.assert_allclose(got.behavior_logprob, np.log(expected[got.token]), atol=2e-5)


@pytest.mark.parametrize("limits", [{"top_k": 300}, {"top_p": 0.9}, {"top_k": 1500, "top_p": 0.5}])
def test_truncated_mass_is_sampled_in_proportion(limits: dict[str, Any]) -> None:
    """Evenly spaced numbers sample each token of a flat distribution as often as its probability, up to one."""
    logprobs = log_softmax(np.random.default_rng(1).normal(0, 0.5, 2000).astype(np.float32))
    probabilities = np.where(kept(logprobs, limits.get("top_k", 0), limits.get("top_p", 1.0), 0.0), np.exp(logprobs), 0)
    count = 4096
    rows = jnp.broadcast_to(truncated(logprobs[None], **limits), (count, 2000))
    tokens = sample_by_mass(jnp.asarray((np.arange(count) + 0.5) / count, jnp.float32), rows)
    expected = count * probabilities / probabilities.sum()
    assert np.abs(np.bincount(np.asarray(tokens), minlength=2000) - expected).max() < 1.1
