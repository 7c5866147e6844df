"""Decoding from sharded KV blocks: a device merges its own blocks first, and the result equals one device's.

Tests start this file as a script, since JAX fixes the number of devices at start.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.multidevice
SIZE, HEAD, GROUP = 4, 8, 4


class Case(NamedTuple):
    """A mesh (data x fsdp x tensor), slots, key heads, queries per key head, blocks of prompts and of completions."""

    mesh: tuple[int, int, int]
    slots: int
    keys: int
    queries: int
    prompt_blocks: int
    completion_blocks: int
    capped: bool = False
    window: bool = False


CASES = {
    "slots-and-heads": Case((2, 2, 2), 8, 4, 2, 16, 24),
    "odd-slots": Case((1, 4, 1), 6, 2, 3, 16, 24, capped=True),
    "few-key-heads": Case((2, 1, 4), 8, 2, 4, 16, 24, window=True),
    "few-heads-at-all": Case((1, 2, 4), 8, 1, 3, 16, 24),
    "blocks-not-split": Case((1, 4, 1), 8, 2, 2, 18, 24),
}


def test_paged_attention_on_a_mesh_equals_one_device(run_processes: Any) -> None:
    ((out, _),) = run_processes([__file__], 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured.keys() == CASES.keys()
    assert all(error < 1e-5 for error, _ in measured.values()), measured
    # One part per slot is summed: with sharded blocks no array with the parts of all blocks is gathered.
    assert {name for name, (_, splits) in measured.items() if splits} == CASES.keys() - {"blocks-not-split"}


def _measure() -> dict[str, tuple[float, bool]]:
    """Return by case the relative error, and whether devices merge their own blocks first."""
    import jax
    import numpy as np

    from jaxrl_sql.models.attention.paged import POOL
    from jaxrl_sql.parallel import make_mesh
    from jaxrl_sql.parallel.rules import split_of

    results = {}
    for number, (name, case) in enumerate(CASES.items()):
        attend, q, pools = _problem(case, np.random.default_rng(number))
        expected = np.asarray(jax.jit(attend)(q, pools))
        assert np.abs(expected).max() > 0.1
        mesh = make_mesh(*case.mesh, jax.devices()[: math.prod(case.mesh)])
        with jax.set_mesh(mesh):
            placed = [
                [jax.device_put(x, jax.NamedSharding(mesh, split_of(mesh, POOL, x.shape))) for x in pool]
                for pool in pools
            ]
            lowered = jax.jit(attend).lower(q, placed)
            got = np.asarray(lowered.compile()(q, placed))
            splits = "manual_computation" in lowered.as_text()
        results[name] = float(np.abs(got - expected).max() / np.abs(expected).max()), splits
    return results


def _problem(case: Case, r: Any) -> tuple[Callable[[Any, Any], Any], Any, list[list[Any]]]:
    """Return a random attention call and its inputs: slots on prompts, scattered blocks, stale entries."""
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.models.attention.paged import PagedKeys, Score, paged_attention
    from jaxrl_sql.models.paged import SlotMap, completion_access, prompt_access

    prompt = np.array([5, 16, 9])
    prompt_map = _block_map(r, prompt, 4, case.prompt_blocks)
    places = [(x, y) for x in range(len(prompt)) for y in range(GROUP)]
    taken = [places[i] for i in r.permutation(len(places))[: case.slots]]
    group_slots = r.integers(0, case.slots + 1, (len(prompt), GROUP))  # free entries still name slots that have ended
    for slot, at in enumerate(taken):
        group_slots[at] = slot
    prompt_of, group_index = np.array(taken).T
    length = r.integers(0, 8, case.slots)
    completion_map = _block_map(r, length, 3, case.completion_blocks)
    groups = SlotMap(*(jnp.asarray(x, jnp.int32) for x in (group_slots, prompt_of, group_index, prompt)))
    positions = jnp.asarray(prompt[prompt_of] + length, jnp.int32)

    def attend(q: Any, pools: Any) -> Any:
        access = (
            prompt_access(prompt_map, groups, positions, SIZE),
            completion_access(completion_map, jnp.asarray(length), jnp.asarray(prompt[prompt_of]), positions, SIZE),
        )
        near = [
            item.query_positions[..., None] - item.key_positions[:, None] < 6 if case.window else True
            for item in access
        ]
        paged = [
            PagedKeys(*kv, entry, entry.valid & close) for kv, entry, close in zip(pools, access, near, strict=True)
        ]
        return paged_attention(q, paged, Score(0.5, 2.0 if case.capped else None))

    def floats(*shape: int) -> Any:
        return jnp.asarray(r.normal(size=shape), jnp.float32)

    counts = case.prompt_blocks, case.completion_blocks
    pools = [[floats(blocks, case.keys, SIZE, HEAD) for _ in range(2)] for blocks in counts]
    return attend, floats(case.slots, case.keys, case.queries, HEAD), pools


def _block_map(r: Any, lengths: Any, columns: int, blocks: int) -> Any:
    """Return scattered blocks of sequences of `lengths` tokens; free blocks still name an owner."""
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.models.paged import BlockMap

    free = list(r.permutation(blocks))
    table = np.array([[free.pop() if j * SIZE < n else blocks for j in range(columns)] for n in lengths])
    owner, start = r.integers(0, len(table), blocks), SIZE * r.integers(0, columns, blocks)
    for x, j in zip(*np.nonzero(table < blocks), strict=True):
        owner[table[x, j]], start[table[x, j]] = x, j * SIZE
    return BlockMap(*(jnp.asarray(x, jnp.int32) for x in (table, owner, start)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(_measure()))
