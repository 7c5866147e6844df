"""Decoding from a paged KV cache equals the plain forward pass for any assignment of blocks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, forward, init_params, paged, unembed
from jaxrl_sql.models.attention.paged_kernel import TRITON_INTERPRETED, Kernel
from jaxrl_sql.models.paged import (
    BlockMap,
    KVPool,
    PagedCache,
    PagedModel,
    PagedPrefix,
    SlotMap,
    copy_blocks,
    grow_keys,
    init_pool,
)
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.models.stacked_layers import abstract_layers, layer_of, split_layers

PLAIN = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 256)
WINDOW = ModelConfig(
    "gemma3",
    24,
    32,
    2,
    4,
    2,
    8,
    48,
    Rope(1e4),
    Norms(),
    True,
    True,
    False,
    256,
    sliding=SlidingWindow(5, (True, False), 1e3),
)
SIZE = 4
decode_tokens = jax.jit(paged.decode_tokens, static_argnums=1)
extend_completions = jax.jit(paged.extend_completions, static_argnums=1)
prefill_prompts = jax.jit(paged.prefill_prompts, static_argnums=(1, 5))
FORWARD, read_out = (jax.jit(function, static_argnums=1) for function in (forward, unembed))
CONFIGS = pytest.mark.parametrize(
    "config", [pytest.param(PLAIN, marks=pytest.mark.nightly), WINDOW], ids=["plain", "window"]
)
LENGTHS = (5, 13, 8)
COMPLETION = 9


@functools.cache
def params_of(config: ModelConfig) -> Any:
    # Larger than in a new model, so that attention is peaked and a wrong token changes the logits.
    return jax.tree.map(lambda x: 3 * np.asarray(x), init_params(config, jax.random.key(1)))


def sequences(seed: int, *lengths: int) -> list[np.ndarray]:
    r = np.random.default_rng(seed)
    return [r.integers(0, 24, n).astype(np.int32) for n in lengths]


def logits_of(config: ModelConfig, tokens: np.ndarray) -> np.ndarray:
    """Return the logits of each token; all lengths share one program."""
    row = np.pad(tokens, (0, 32 - len(tokens)))[None]
    return np.asarray(FORWARD(params_of(config), config, row, np.array([len(tokens)])))[0, : len(tokens)]


def padded(rows: list[np.ndarray], width: int) -> np.ndarray:
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows])


def block_map(table: np.ndarray, blocks: int) -> BlockMap:
    """Return the map of a table [X,J]."""
    owner, start = np.full(blocks, len(table), np.int32), np.zeros(blocks, np.int32)
    for x, j in zip(*np.nonzero(table < blocks), strict=True):
        owner[table[x, j]], start[table[x, j]] = x, j * SIZE
    return BlockMap(jnp.array(table, jnp.int32), jnp.array(owner), jnp.array(start))


def prompt_table(r: np.random.Generator, blocks: int, j: int) -> np.ndarray:
    """Assign scattered blocks to each prompt, according to its length."""
    free = list(r.permutation(blocks))
    need = [-(-n // SIZE) for n in LENGTHS]
    return np.array([[free.pop() if k < n else blocks for k in range(j)] for n in need])


def prefilled(config: ModelConfig, prompts: list[np.ndarray], table: np.ndarray, width: int) -> tuple[Any, KVPool]:
    """Prefill prompts in chunks of `width` tokens; return the last state of each, and the pool."""
    pool = jax.tree.map(lambda x: np.full(x.shape, 7.0, np.float32), init_pool(config, 16, SIZE, jnp.float32))
    hidden = np.zeros((len(prompts), config.d_model), np.float32)
    for start in range(0, max(LENGTHS), width):
        parts = [p[start : start + width] for p in prompts]
        lengths = np.array([len(p) for p in parts], np.int32)
        starts = np.full(len(prompts), start, np.int32)
        past = PagedPrefix(pool, jnp.array(table), starts)
        out, pool = prefill_prompts(
            params_of(config), PagedModel(config), past, padded(parts, width), lengths, start > 0
        )
        hidden[lengths > 0] = np.asarray(out)[lengths > 0]
    return hidden, pool


@CONFIGS
@pytest.mark.parametrize(
    "width", [4, pytest.param(8, marks=pytest.mark.nightly), pytest.param(16, marks=pytest.mark.nightly)]
)
def test_chunked_prefill_equals_one_pass(config: ModelConfig, width: int) -> None:
    prompts = sequences(0, *LENGTHS)
    hidden, _ = prefilled(config, prompts, prompt_table(np.random.default_rng(1), 16, 4), width)
    for row, prompt in zip(hidden, prompts, strict=True):
        got = np.asarray(read_out(params_of(config), config, row))
        np.testing.assert_allclose(got, logits_of(config, prompt)[-1], rtol=1e-4, atol=1e-4)


@CONFIGS
@pytest.mark.parametrize(
    ("at_once", "kernel"),
    [
        pytest.param(0, None, marks=pytest.mark.nightly),
        (3, None),
        pytest.param(6, None, marks=pytest.mark.nightly),
        (6, TRITON_INTERPRETED),
    ],
    ids=["0", "3", "6", "kernel"],
)
def test_slot_decode_equals_the_forward_pass(config: ModelConfig, at_once: int, kernel: Kernel | None) -> None:
    """Four slots on three prompts; the first `at_once` tokens of each are appended together, the others one by one."""
    prompts, prompt_of = sequences(0, *LENGTHS), np.array([1, 0, 1, 2])
    done = sequences(2, *[COMPLETION] * 4)
    r = np.random.default_rng(3)
    table = prompt_table(r, 16, 4)
    hidden, prompt_pool = prefilled(config, prompts, table, 16)
    local = jax.tree.map(lambda x: np.full(x.shape, 5.0, np.float32), init_pool(config, 14, SIZE, jnp.float32))
    own_table = r.permutation(14)[:12].reshape(4, 3)
    group_index = np.array([2, 0, 0, 1])
    group_slots = np.full((3, 3), 4, np.int32)
    group_slots[prompt_of, group_index] = np.arange(4)
    # A stale entry: prompt 0 still lists slot 3, which must not be affected.
    group_slots[0, 2] = 3
    lengths = jnp.array(LENGTHS, jnp.int32)
    groups = SlotMap(jnp.array(group_slots), jnp.array(prompt_of), jnp.array(group_index), lengths)
    length = np.zeros(4, np.int32)
    state = hidden[prompt_of]
    if at_once:
        tokens = padded([d[:at_once] for d in done], 8)
        prompt = PagedPrefix(prompt_pool, jnp.array(table)[prompt_of], lengths[prompt_of])
        completion = PagedPrefix(local, jnp.array(own_table), jnp.zeros(4, jnp.int32))
        out, local = extend_completions(
            params_of(config), PagedModel(config), prompt, completion, tokens, jnp.full(4, at_once)
        )
        length[:] = at_once
        state = np.asarray(out)
    expected = [logits_of(config, np.concatenate([prompts[p], d])) for p, d in zip(prompt_of, done, strict=True)]
    for t in range(at_once, COMPLETION):
        got = np.asarray(read_out(params_of(config), config, state))
        for n in range(4):
            np.testing.assert_allclose(got[n], expected[n][LENGTHS[prompt_of[n]] - 1 + t], rtol=2e-4, atol=2e-4)
        active = np.array([True, True, t < 5, True])
        token = jnp.array([d[t] for d in done])
        before = local
        out, local = decode_tokens(
            params_of(config), PagedModel(config, None, kernel), PagedCache(prompt_pool, block_map(table, 16)),
            PagedCache(local, block_map(own_table, 14)), groups, token, jnp.array(length), jnp.array(active),
        )  # fmt: skip
        if not active[2]:
            held = own_table[2]
            np.testing.assert_array_equal(np.asarray(local.k[0])[held], np.asarray(before.k[0])[held])
            expected[2] = np.zeros((0, 24))
            break
        length += active
        state = np.asarray(out)


def test_slot_without_a_block_writes_nothing() -> None:
    """A write after a slot's last block is dropped, never clamped to another slot's block."""
    prompt_pool, local = init_pool(PLAIN, 2, SIZE, jnp.float32), init_pool(PLAIN, 3, SIZE, jnp.float32)
    groups = SlotMap(jnp.array([[0, 1]]), jnp.zeros(2, jnp.int32), jnp.arange(2), jnp.array([3]))
    for length, table in ((4, [[0, 3], [1, 2]]), (8, [[0, 2], [1, 3]])):
        _, after = decode_tokens(
            params_of(PLAIN), PagedModel(PLAIN), PagedCache(prompt_pool, block_map(np.array([[0]]), 2)),
            PagedCache(local, block_map(np.array(table), 3)), groups, jnp.array([1, 2]), jnp.array([length, 0]),
            jnp.array([True, False]),
        )  # fmt: skip
        for old, new in zip(jax.tree.leaves(local), jax.tree.leaves(after), strict=True):
            np.testing.assert_array_equal(old, new)


def test_pools_grow_and_copy_whole_blocks() -> None:
    pool = jax.tree.map(lambda x: jax.random.normal(jax.random.key(0), x.shape), init_pool(PLAIN, 3, SIZE, jnp.float32))
    grown = jax.tree.map(lambda keys: grow_keys(keys, 5), pool)
    copied = copy_blocks(pool, jnp.array([2, 0, 1]), grown, jnp.array([4, 3, 5]))
    for before, after in zip(jax.tree.leaves(pool), jax.tree.leaves(copied), strict=True):
        np.testing.assert_array_equal(after, np.concatenate([before, before[:1], before[2:]]))


def test_split_layers_equal_stacked_layers() -> None:
    params = init_params(PLAIN, jax.random.key(0))
    split = split_layers(params)
    assert len(split["layers"]) == PLAIN.n_layers
    for i in range(PLAIN.n_layers):
        for item, other in zip(*(jax.tree.leaves(layer_of(each, i)) for each in (params, split)), strict=True):
            np.testing.assert_array_equal(item, other)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
    assert jax.tree.map(lambda x: x.shape, abstract_layers(shapes)) == jax.tree.map(lambda x: x.shape, split)
