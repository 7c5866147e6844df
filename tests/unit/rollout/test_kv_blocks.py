"""KV blocks: each has one holder, none is lost, and a cached block contains the tokens of its key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.rollout.kv_blocks import Allocation, BlockTable, PrefixCache, block_owner

SIZE = 4


def cache_of(blocks: int, capacity: int = 9) -> PrefixCache:
    cache = PrefixCache(SIZE)
    cache.open(blocks, capacity)
    return cache


def allocate(cache: PrefixCache, tokens: Sequence[int]) -> Allocation:
    result = cache.allocate(tokens)
    assert result is not None
    return result


def test_prompt_with_a_cached_prefix_copies_its_blocks() -> None:
    cache = cache_of(9)
    first = allocate(cache, range(10))
    assert (len(first.blocks), first.cached_tokens, first.copies) == (3, 0, [])
    written = cache.insert(range(10), first.blocks)
    assert [block for block, _ in written] == first.blocks[:2]
    again = allocate(cache, [*range(8), 50, 51])
    assert again.cached_tokens == 8
    assert again.copies == [(cached, block) for (_, cached), block in zip(written, again.blocks, strict=False)]
    assert cache.insert([*range(8), 50, 51], again.blocks) == []
    assert allocate(cache, [1, *range(1, 8), 50]).cached_tokens == 0, "a block matched without the blocks before it"


def test_last_token_is_always_computed() -> None:
    cache = cache_of(8)
    allocation = allocate(cache, range(8))
    cache.insert(range(8), allocation.blocks)
    assert allocate(cache, range(8)).cached_tokens == 4


def test_reset_evicts_all_blocks() -> None:
    cache = cache_of(6)
    held = allocate(cache, range(9))
    cache.insert(range(9), held.blocks)
    assert cache.lookup(range(9)) == (8, None)
    cache.reset()
    assert cache.lookup(range(9)) == (0, (0, (0, 1, 2, 3)))
    cache.free(held.blocks)
    assert len(cache.free_blocks) == 6


def test_failed_allocation_takes_no_blocks() -> None:
    cache = cache_of(2)
    assert cache.allocate(range(17)) is None
    assert len(cache.free_blocks) == 2


@pytest.mark.parametrize("n_examples", [60, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_prompt_blocks_have_one_holder_and_the_right_tokens(n_examples: int) -> None:
    """Model the cache: the content of each allocated and each cached block, written when a prompt is allocated."""

    @settings(deadline=None, max_examples=n_examples)
    @given(st.data())
    def holds_for(data: st.DataObject) -> None:
        cache = cache_of(9, data.draw(st.integers(0, 5)))
        holds: dict[int, tuple[int, ...]] = {}
        cached: dict[int, tuple[int, ...]] = {}
        live: list[list[int]] = []
        for _ in range(data.draw(st.integers(1, 25))):
            what = data.draw(st.sampled_from(["allocate", "allocate", "allocate", "free", "reset"]))
            if what == "allocate":
                tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=18))
                allocation = cache.allocate(tokens)
                if allocation is None:
                    assert -(-len(tokens) // SIZE) > len(cache.free_blocks)
                    continue
                assert allocation.cached_tokens < len(tokens)
                for source, target in allocation.copies:
                    holds[target] = cached[source]
                for j in range(allocation.cached_tokens // SIZE):
                    assert holds[allocation.blocks[j]] == tuple(tokens[: (j + 1) * SIZE])
                for j in range(allocation.cached_tokens // SIZE, len(allocation.blocks)):
                    holds[allocation.blocks[j]] = tuple(tokens[: (j + 1) * SIZE])
                for block, place in cache.insert(tokens, allocation.blocks):
                    assert place < cache.capacity
                    cached[place] = holds[block]
                live.append(allocation.blocks)
            elif what == "free" and live:
                cache.free(live.pop(data.draw(st.integers(0, len(live) - 1))))
            elif what == "reset":
                cache.reset()
            held = [block for blocks in live for block in blocks]
            assert sorted([*held, *cache.free_blocks]) == list(range(9))
            assert len({entry.block for entry in cache.cached.values()}) == len(cache.cached)

    holds_for()


@pytest.mark.parametrize("n_examples", [60, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_slots_hold_their_blocks_and_no_block_twice(n_examples: int) -> None:

    @settings(deadline=None, max_examples=n_examples)
    @given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=12))
    def holds_for(needs: list[list[int]]) -> None:
        pool_sizes = [(4, 2), (8, 6), (13, 6)]
        blocks = BlockTable(SIZE, 3, pool_sizes)
        for need in needs:
            before, size_index = blocks.table(), blocks.size_index
            counts = [min(-(-tokens // SIZE), 6) for tokens in need]
            fits = blocks.reserve(np.array(need))
            assert fits == (sum(counts) <= 13)
            if not fits:
                np.testing.assert_array_equal(blocks.table(), before)
                continue
            wanted = next(
                i for i, (most, columns) in enumerate(pool_sizes) if most >= sum(counts) and columns >= max(counts)
            )
            assert blocks.size_index == max(size_index, wanted), "the pool is larger or smaller than necessary"
            table = blocks.table()
            assert table.shape == (3, pool_sizes[blocks.size_index][1])
            held = table[table < blocks.num_blocks]
            assert sorted([*held.tolist(), *blocks.free_blocks]) == list(range(blocks.num_blocks))
            for slot, count in enumerate(counts):
                assert (table[slot, :count] < blocks.num_blocks).all()
                assert (table[slot, count:] == blocks.num_blocks).all()
                # A slot keeps its blocks in place: they contain its keys.
                stays = min(count, int((before[slot] < pool_sizes[size_index][0]).sum()))
                np.testing.assert_array_equal(table[slot, :stays], before[slot, :stays])

    holds_for()


def test_each_block_has_its_owner_and_start() -> None:
    owner, start = block_owner(np.array([[2, 5], [0, 5]], np.int32), 4, SIZE)
    assert owner.tolist() == [1, 2, 0, 2]
    assert start.tolist() == [0, 0, 0, 0]
    owner, start = block_owner(np.array([[1, 3]], np.int32), 4, SIZE)
    assert start.tolist() == [0, 0, 0, 4]
