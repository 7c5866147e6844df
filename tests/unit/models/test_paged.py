"""Decoding from pages gives what the plain forward pass gives, whichever pages hold what."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, forward, init_params, paged, unembed
from jaxrl_sql.models.paged import Pages, Pool, Readers, copy_pages, grow_pool, init_pool
from jaxrl_sql.models.spec import SlidingWindow

PLAIN = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, 1e4, 1e-6, True, True, False, 256)
WINDOW = ModelConfig(
    "gemma3", 24, 32, 2, 4, 2, 8, 48, 1e4, 1e-6, True, True, False, 256, sliding=SlidingWindow(5, (True, False), 1e3)
)
SIZE = 4
decode_rows = jax.jit(paged.decode_rows, static_argnums=1)
extend_rows = jax.jit(paged.extend_rows, static_argnums=1)
prefill_pages = jax.jit(paged.prefill_pages, static_argnums=(1, 7))
LENGTHS = (5, 13, 8)
COMPLETION = 9


@functools.cache
def params_of(config: ModelConfig) -> Any:
    # Larger than a new model's, so that attention looks at single tokens and a wrong one is seen.
    return jax.tree.map(lambda x: 3 * x, init_params(config, jax.random.key(1)))


def sequences(seed: int, *lengths: int) -> list[np.ndarray]:
    r = np.random.default_rng(seed)
    return [r.integers(0, 24, n).astype(np.int32) for n in lengths]


def logits_of(config: ModelConfig, tokens: np.ndarray) -> np.ndarray:
    return np.asarray(forward(params_of(config), config, tokens[None], jnp.array([len(tokens)])))[0]


def padded(rows: list[np.ndarray], width: int) -> np.ndarray:
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows])


def pages_of(table: np.ndarray, pages: int) -> Pages:
    """Give the way back of a table [X,J]."""
    owner, start = np.full(pages, len(table), np.int32), np.zeros(pages, np.int32)
    for x, j in zip(*np.nonzero(table < pages), strict=True):
        owner[table[x, j]], start[table[x, j]] = x, j * SIZE
    return Pages(jnp.array(table, jnp.int32), jnp.array(owner), jnp.array(start))


def lane_table(r: np.random.Generator, pages: int, j: int) -> np.ndarray:
    """Give each prompt scattered pages, as many as it needs."""
    free = list(r.permutation(pages))
    need = [-(-n // SIZE) for n in LENGTHS]
    return np.array([[free.pop() if k < n else pages for k in range(j)] for n in need])


def prefilled(config: ModelConfig, prompts: list[np.ndarray], table: np.ndarray, width: int) -> tuple[Any, Pool]:
    """Run prompts in stretches of `width` tokens -> the last state of each, and the pool."""
    pool = jax.tree.map(lambda x: x + 7.0, init_pool(config, 16, SIZE, jnp.float32))
    hidden = np.zeros((len(prompts), config.d_model), np.float32)
    for start in range(0, max(LENGTHS), width):
        parts = [p[start : start + width] for p in prompts]
        lengths = np.array([len(p) for p in parts], np.int32)
        starts = np.full(len(prompts), start, np.int32)
        out, pool = prefill_pages(
            params_of(config), config, pool, padded(parts, width), lengths, starts, jnp.array(table), start > 0
        )
        hidden[lengths > 0] = np.asarray(out)[lengths > 0]
    return hidden, pool


@pytest.mark.parametrize("config", [PLAIN, WINDOW], ids=["plain", "window"])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_prompts_in_stretches_are_prompts_in_one(config: ModelConfig, width: int) -> None:
    prompts = sequences(0, *LENGTHS)
    hidden, _ = prefilled(config, prompts, lane_table(np.random.default_rng(1), 16, 4), width)
    for row, prompt in zip(hidden, prompts, strict=True):
        got = np.asarray(unembed(params_of(config), config, jnp.array(row)))
        np.testing.assert_allclose(got, logits_of(config, prompt)[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [PLAIN, WINDOW], ids=["plain", "window"])
@pytest.mark.parametrize("stretch", [0, 3, 6])
def test_rows_decode_as_the_forward_pass(config: ModelConfig, stretch: int) -> None:
    """Four rows on three prompts; the first `stretch` tokens of each are appended at once, the others one by one."""
    prompts, rows_on = sequences(0, *LENGTHS), np.array([1, 0, 1, 2])
    done = sequences(2, *[COMPLETION] * 4)
    r = np.random.default_rng(3)
    table = lane_table(r, 16, 4)
    hidden, shared = prefilled(config, prompts, table, 16)
    own = jax.tree.map(lambda x: x + 5.0, init_pool(config, 14, SIZE, jnp.float32))
    own_table = r.permutation(14)[:12].reshape(4, 3)
    reader = np.array([2, 0, 0, 1])
    readers = np.full((3, 3), 4, np.int32)
    readers[rows_on, reader] = np.arange(4)
    # A reader that left: row 3 is named by lane 0 too, and must not be disturbed by it.
    readers[0, 2] = 3
    lengths = jnp.array(LENGTHS, jnp.int32)
    view = Readers(jnp.array(readers), jnp.array(rows_on), jnp.array(reader), lengths)
    length = np.zeros(4, np.int32)
    state = hidden[rows_on]
    if stretch:
        tokens = padded([d[:stretch] for d in done], 8)
        out, own = extend_rows(
            params_of(config), config, shared, own, jnp.array(table)[rows_on], lengths[rows_on], jnp.array(own_table),
            jnp.zeros(4, jnp.int32), tokens, jnp.full(4, stretch),
        )  # fmt: skip
        length[:] = stretch
        state = np.asarray(out)
    expected = [logits_of(config, np.concatenate([prompts[p], d])) for p, d in zip(rows_on, done, strict=True)]
    for t in range(stretch, COMPLETION):
        got = np.asarray(unembed(params_of(config), config, jnp.array(state)))
        for n in range(4):
            np.testing.assert_allclose(got[n], expected[n][LENGTHS[rows_on[n]] - 1 + t], rtol=2e-4, atol=2e-4)
        active = np.array([True, True, t < 5, True])
        token = jnp.array([d[t] for d in done])
        before = own
        out, own = decode_rows(
            params_of(config), config, shared, own, pages_of(table, 16), pages_of(own_table, 14), view, token,
            jnp.array(length), jnp.array(active),
        )  # fmt: skip
        if not active[2]:
            held = own_table[2]
            np.testing.assert_array_equal(own.k[0][held], before.k[0][held])
            expected[2] = np.zeros((0, 24))
            break
        length += active
        state = np.asarray(out)


def test_a_row_without_a_page_writes_nothing() -> None:
    """A write beyond a row's pages is dropped, never clamped to another's."""
    shared, own = init_pool(PLAIN, 2, SIZE, jnp.float32), init_pool(PLAIN, 3, SIZE, jnp.float32)
    view = Readers(jnp.array([[0, 1]]), jnp.zeros(2, jnp.int32), jnp.arange(2), jnp.array([3]))
    for length, table in ((4, [[0, 3], [1, 2]]), (8, [[0, 2], [1, 3]])):
        _, after = decode_rows(
            params_of(PLAIN), PLAIN, shared, own, pages_of(np.array([[0]]), 2), pages_of(np.array(table), 3), view,
            jnp.array([1, 2]), jnp.array([length, 0]), jnp.array([True, False]),
        )  # fmt: skip
        for old, new in zip(jax.tree.leaves(own), jax.tree.leaves(after), strict=True):
            np.testing.assert_array_equal(old, new)


def test_pools_grow_and_copy_whole_pages() -> None:
    pool = jax.tree.map(lambda x: jax.random.normal(jax.random.key(0), x.shape), init_pool(PLAIN, 3, SIZE, jnp.float32))
    grown = grow_pool(pool, 5)
    copied = copy_pages(pool, jnp.array([2, 0, 1]), grown, jnp.array([4, 3, 5]))
    for before, after in zip(jax.tree.leaves(pool), jax.tree.leaves(copied), strict=True):
        np.testing.assert_array_equal(after, np.concatenate([before, before[:1], before[2:]]))
