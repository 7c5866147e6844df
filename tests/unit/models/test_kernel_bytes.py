"""The planned bytes of a decode kernel equal those of its copies, counted in the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

from jaxrl_sql.models.attention import paged_kernel
from jaxrl_sql.models.attention.paged import Score
from jaxrl_sql.models.attention.paged_kernel import CachedKeys, Readers, attend
from jaxrl_sql.models.attention.paged_traffic import fetch_bytes, grids_of

BLOCK, DEPTH = 16, 64

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="interpreted on processors alone")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[int]]]:
    """Return the bytes of each copy between kernel memory and device memory: blocks in and out, and explicit DMA."""
    result: dict[str, list[int]] = {"in": [], "out": [], "dma": []}
    get, store = interpreter.get, interpreter.store

    @functools.wraps(get)
    def counted_get(*args: Any, **kwargs: Any) -> Any:
        got = get(*args, **kwargs)
        if "input_name" in kwargs:
            result["in"].append(np.asarray(got[1]).nbytes)
        return got

    @functools.wraps(store)
    def counted_store(*args: Any, **kwargs: Any) -> Any:
        if "output_name" in kwargs:
            result["out"].append(np.asarray(args[6]).nbytes)
        return store(*args, **kwargs)

    class CountedDMA(interpreter.DMA):
        def execute_write(self) -> None:
            result["dma"].append(self.data_size)
            super().execute_write()

    monkeypatch.setattr(interpreter, "get", counted_get)
    monkeypatch.setattr(interpreter, "store", counted_store)
    monkeypatch.setattr(interpreter, "DMA", CountedDMA)
    jax.clear_caches()  # traced programs call the replaced functions
    yield result
    jax.clear_caches()


@pytest.mark.parametrize(
    ("prompts", "answers", "of", "heads", "per_key", "dtype"),
    [
        pytest.param([40, 5, 33], [17, 1, 32, 3, 16], [0, 0, 1, 2, 0], 2, 2, jnp.float32, marks=pytest.mark.nightly),
        pytest.param([20, 64], [0, 3, 0], [0, 1, 0], 1, 7, jnp.bfloat16, marks=pytest.mark.slow),
    ],
    ids=["groups", "nobody-reads-the-first"],
)
def test_planned_bytes_equal_those_that_the_kernel_copies(
    prompts: list[int],
    answers: list[int],
    of: list[int],
    heads: int,
    per_key: int,
    dtype: Any,
    copies: dict[str, list[int]],
) -> None:
    width, group = jnp.dtype(dtype).itemsize, 4
    slots = np.full((len(prompts), group), len(answers), np.int32)
    index = np.zeros(len(answers), np.int32)
    for n, prompt in enumerate(of):
        index[n] = (slots[prompt] < len(answers)).sum()
        slots[prompt, index[n]] = n

    def held(lengths: list[int]) -> CachedKeys:
        need = [-(-length // BLOCK) for length in lengths]
        table = np.full((len(lengths), max(need)), sum(need), np.int32)
        first = 0
        for row, count in zip(table, need, strict=True):
            row[:count] = np.arange(first, first + count)
            first += count
        pool = jnp.ones((sum(need), heads, BLOCK, DEPTH), dtype)
        return CachedKeys(pool, pool, jnp.array(table), jnp.array(lengths, jnp.int32))

    q = jnp.ones((len(answers), heads, per_key, DEPTH), dtype)
    readers = Readers(*map(jnp.array, (slots, np.array(of, np.int32), index, np.zeros(len(answers), np.int32))))
    jax.block_until_ready(
        attend(paged_kernel.MOSAIC_INTERPRETED, q, held(prompts), held(answers), readers, Score(0.1, None), None)
    )
    grids = grids_of(len(prompts), group, len(answers), heads, per_key, DEPTH)
    read = [length for i, length in enumerate(prompts) if any(answers[n] for n, prompt in enumerate(of) if prompt == i)]
    there = len(read), sum(length > 0 for length in answers)
    moved = sum(grid.bytes_moved(width, count) for grid, count in zip(grids, there, strict=True))
    assert sum(copies["in"]) + sum(copies["out"]) == moved
    tokens = sum(-(-length // BLOCK) * BLOCK for length in (*read, *answers))
    assert sum(copies["dma"]) == fetch_bytes(tokens, heads, DEPTH, width)
    assert len(copies["dma"]) == 2 * tokens // BLOCK, "not one copy of keys and one of values per block"
