"""Decoding from pages that a mesh splits: each chip merges its own pages first, and rows get what one device gives.

Run as a test it starts itself as a script, since the number of devices is fixed when JAX starts.
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
    """A mesh (data x fsdp x tensor), rows, key heads, queries a key head, pages of prompts and of rows."""

    mesh: tuple[int, int, int]
    rows: int
    keys: int
    queries: int
    shared: int
    own: int
    capped: bool = False
    window: bool = False


CASES = {
    "rows-and-heads": Case((2, 2, 2), 8, 4, 2, 16, 24),
    "odd-rows": Case((1, 4, 1), 6, 2, 3, 16, 24, capped=True),
    "few-key-heads": Case((2, 1, 4), 8, 2, 4, 16, 24, window=True),
    "few-heads-at-all": Case((1, 2, 4), 8, 1, 3, 16, 24),
    "pages-not-split": Case((1, 4, 1), 8, 2, 2, 18, 24),
}


def test_a_mesh_reads_what_one_device_reads(together: Any) -> None:
    ((out, _),) = together([__file__], 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured.keys() == CASES.keys()
    assert all(error < 1e-5 for error, _ in measured.values()), measured
    # What comes together is a part a row: where pages are split nothing of the size of all pages' parts is gathered.
    assert {name for name, (_, splits) in measured.items() if splits} == CASES.keys() - {"pages-not-split"}


def _measure() -> dict[str, tuple[float, bool]]:
    """Return by case the relative error, and whether chips merge their own pages first."""
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
    """Draw rows that read prompts, scattered pages, and traces of rows and owners that have left; and what attends."""
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.models.attention.paged import Read, Score, attend_pages
    from jaxrl_sql.models.paged import Readers, reach_own, reach_shared

    prompt = np.array([5, 16, 9])
    lanes = _pages(r, prompt, 4, case.shared)
    seats = [(x, y) for x in range(len(prompt)) for y in range(GROUP)]
    taken = [seats[i] for i in r.permutation(len(seats))[: case.rows]]
    readers = r.integers(0, case.rows + 1, (len(prompt), GROUP))  # where nobody sits, rows are named that have left
    for row, seat in enumerate(taken):
        readers[seat] = row
    lane, place = np.array(taken).T
    length = r.integers(0, 8, case.rows)
    own = _pages(r, length, 3, case.own)
    view = Readers(*(jnp.asarray(x, jnp.int32) for x in (readers, lane, place, prompt)))
    positions = jnp.asarray(prompt[lane] + length, jnp.int32)

    def attend(q: Any, pools: Any) -> Any:
        reach = (
            reach_shared(lanes, view, positions, SIZE),
            reach_own(own, jnp.asarray(length), jnp.asarray(prompt[lane]), positions, SIZE),
        )
        near = [one.queries[..., None] - one.keys[:, None] < 6 if case.window else True for one in reach]
        reads = [Read(*kv, one, one.visible & close) for kv, one, close in zip(pools, reach, near, strict=True)]
        return attend_pages(q, reads, Score(0.5, 2.0 if case.capped else None))

    def floats(*shape: int) -> Any:
        return jnp.asarray(r.normal(size=shape), jnp.float32)

    pools = [[floats(pages, case.keys, SIZE, HEAD) for _ in range(2)] for pages in (case.shared, case.own)]
    return attend, floats(case.rows, case.keys, case.queries, HEAD), pools


def _pages(r: Any, lengths: Any, columns: int, pages: int) -> Any:
    """Draw the pages of owners of `lengths` tokens; pages of nobody still name some owner."""
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_sql.models.paged import Pages

    free = list(r.permutation(pages))
    table = np.array([[free.pop() if j * SIZE < n else pages for j in range(columns)] for n in lengths])
    owner, start = r.integers(0, len(table), pages), SIZE * r.integers(0, columns, pages)
    for x, j in zip(*np.nonzero(table < pages), strict=True):
        owner[table[x, j]], start[table[x, j]] = x, j * SIZE
    return Pages(*(jnp.asarray(x, jnp.int32) for x in (table, owner, start)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(_measure()))
