"""Fused decode kernels equal the reference and read no other block; interpreted if no device is available."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope
from jaxrl_sql.models.attention import paged_kernel
from jaxrl_sql.models.attention.paged import PagedKeys, Score, paged_attention
from jaxrl_sql.models.attention.paged_kernel import CachedKeys, Kernel, Readers, attend
from jaxrl_sql.models.paged import BlockMap, SlotMap, completion_access, prompt_access
from jaxrl_sql.types import InputError

# Kernels are compiled if this machine has a device for them.
KERNELS = {
    "cpu": {"triton": paged_kernel.TRITON_INTERPRETED, "mosaic": paged_kernel.MOSAIC_INTERPRETED},
    "gpu": {"triton": paged_kernel.TRITON},
    "tpu": {"mosaic": paged_kernel.MOSAIC},
}[jax.default_backend()]
HEADS, SIZE, DEPTH = 2, 16, 64
# The last kernel for this machine always runs, the others are nightly.
ONE_KERNEL = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, id=name, marks=() if name == list(KERNELS)[-1] else pytest.mark.nightly)
        for name, kernel in KERNELS.items()
    ],
)


class Case(NamedTuple):
    """Pools whose free blocks are NaN, and the slots that decode from them."""

    q: jax.Array
    pools: tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    tables: tuple[np.ndarray, np.ndarray]
    groups: SlotMap
    length: jax.Array

    @property
    def positions(self) -> jax.Array:
        return self.groups.prompt_length[self.groups.prompt] + self.length - 1


def make_case(prompt_length: list[int], length: list[int], prompt: list[int], m: int, dtype: Any = jnp.float32) -> Case:
    """Make N slots on E prompts; a slot of length 0 does not decode."""
    r = np.random.default_rng(len(length) * 100 + m)

    def held(lengths: list[int], spare: int) -> tuple[np.ndarray, Any, Any]:
        need = [-(-item // SIZE) for item in lengths]
        count = sum(need) + spare
        free = list(r.permutation(count))
        table = np.full((len(lengths), max(need) + 1), count, np.int32)
        for row, n in zip(table, need, strict=True):
            row[:n] = [free.pop() for _ in range(n)]
        keys = r.normal(size=(2, count, HEADS, SIZE, DEPTH)).astype(np.float32)
        keys[:, free] = np.nan
        return table, *(jnp.array(half, dtype) for half in keys)

    prompts, local = held(prompt_length, 3), held(length, 2)
    group_index = np.zeros(len(prompt), np.int32)
    slots = np.full((len(prompt_length), max(prompt.count(e) for e in set(prompt)) + 1), len(prompt), np.int32)
    for n, e in enumerate(prompt):
        group_index[n] = (slots[e] < len(prompt)).sum()
        slots[e, group_index[n]] = n
    groups = SlotMap(
        *map(jnp.array, (slots, np.array(prompt, np.int32), group_index, np.array(prompt_length, np.int32)))
    )
    q = jnp.array(r.normal(size=(len(length), HEADS, m, DEPTH)), dtype)
    return Case(q, (prompts[1:], local[1:]), (prompts[0], local[0]), groups, jnp.array(length, jnp.int32))


def attend_with_kernel(kernel: Kernel, case: Case, score: Score, window: int | None) -> np.ndarray:
    prompts, local = (
        CachedKeys(k, v, jnp.array(table), length)
        for (k, v), table, length in zip(case.pools, case.tables, (case.groups.prompt_length, case.length), strict=True)
    )
    readers = Readers(case.groups.slots, case.groups.prompt, case.groups.group_index, case.positions)
    return np.asarray(attend(kernel, case.q, prompts, local, readers, score, window))


def attend_with_reference(case: Case, score: Score, window: int | None) -> np.ndarray:
    """Attend with XLA, over pools whose NaN blocks are replaced."""

    def attended(q: jax.Array, pools: Any, groups: SlotMap, length: jax.Array) -> jax.Array:
        return _by_reference(Case(q, pools, case.tables, groups, length), score, window)

    return np.asarray(jax.jit(attended)(case.q, case.pools, case.groups, case.length))


def _by_reference(case: Case, score: Score, window: int | None) -> jax.Array:
    accesses, pools = [], []
    for (k, v), table, which in zip(case.pools, case.tables, "pc", strict=True):
        owner, start = np.full(len(k), len(table), np.int32), np.zeros(len(k), np.int32)
        for x, j in zip(*np.nonzero(table < len(k)), strict=True):
            owner[table[x, j]], start[table[x, j]] = x, j * SIZE
        blocks = BlockMap(jnp.array(table), jnp.array(owner), jnp.array(start))
        if which == "p":
            access = prompt_access(blocks, case.groups, case.positions, SIZE)
        else:
            before = case.groups.prompt_length[case.groups.prompt]
            access = completion_access(blocks, case.length, before, case.positions, SIZE)
        accesses.append(access)
        pools.append([jnp.nan_to_num(half) for half in (k, v)])
    seen = [
        access.valid
        if window is None
        else access.valid & (access.query_positions[..., None] - access.key_positions[:, None] < window)
        for access in accesses
    ]
    keys = [PagedKeys(*kv, access, item) for kv, access, item in zip(pools, accesses, seen, strict=True)]
    return paged_attention(case.q, keys, score)


CASES = {
    "groups": ([40, 5, 33], [17, 1, 32, 3, 16], [0, 0, 1, 2, 0], 2),
    "nobody": ([20, 64], [0, 3, 0], [0, 1, 0], 1),
    "many heads": ([7], [5] * 5, [0] * 5, 7),
    "long": ([700, 16], [600, 2], [0, 1], 1),
}


@ONE_KERNEL
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("groups", marks=pytest.mark.nightly),
        pytest.param("nobody", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("many heads", "long")),
    ],
)
def test_kernel_equals_the_reference(kernel: Kernel, name: str) -> None:
    case = make_case(*CASES[name])
    score = Score(DEPTH**-0.5, None)
    got, wanted = attend_with_kernel(kernel, case, score, None), attend_with_reference(case, score, None)
    active = np.asarray(case.length) > 0
    np.testing.assert_allclose(got[active], wanted[active], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(
    ("window", "score"),
    [
        pytest.param(3, Score(0.5, 3.0), marks=pytest.mark.slow),
        pytest.param(24, Score(0.2, None), marks=pytest.mark.nightly),
    ],
)
def test_kernel_windows_and_caps_equal_the_reference(kernel: Kernel, window: int, score: Score) -> None:
    case = make_case(*CASES["groups"])
    got, wanted = attend_with_kernel(kernel, case, score, window), attend_with_reference(case, score, window)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@ONE_KERNEL
def test_kernel_sums_bfloat16_in_float32(kernel: Kernel) -> None:
    case = make_case(*CASES["groups"], dtype=jnp.bfloat16)
    score = Score(DEPTH**-0.5, None)
    got, wanted = attend_with_kernel(kernel, case, score, None), attend_with_reference(case, score, None)
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)
    assert got.dtype == np.float32


@pytest.mark.parametrize(
    ("platform", "ways", "depth", "blocks", "message"),
    [
        ("cpu", 1, 64, (64, 32), "for GPUs and TPUs"),
        ("gpu", 4, 64, (64, 32), "splits the batch into 4 parts"),
        ("tpu", 1, 96, (64, 32), "head size of 96"),
        ("gpu", 1, 64, (64, 8), "64, 8 tokens"),
    ],
)
def test_unsupported_kernel_cases_are_rejected(platform: str, ways: int, depth: int, blocks: Any, message: str) -> None:
    config = ModelConfig("qwen3", 512, 128, 3, 4, 2, depth, 256, Rope(1e4), Norms(), True, True, False, 1024)
    with pytest.raises(InputError, match=f"^rollout.attention=pallas: .*{message}.*; possible here: xla$"):
        paged_kernel.kernel_for("pallas", config, blocks, platform, ways)
    assert paged_kernel.kernel_for("xla", config, blocks, platform, ways) is None


def test_kernel_follows_the_platform() -> None:
    config = ModelConfig("qwen3", 512, 128, 3, 4, 2, 128, 256, Rope(1e4), Norms(), True, True, False, 1024)
    for platform, kernel in (("gpu", paged_kernel.TRITON), ("tpu", paged_kernel.MOSAIC)):
        assert paged_kernel.kernel_for("pallas", config, (64, 32), platform, 1) is kernel
