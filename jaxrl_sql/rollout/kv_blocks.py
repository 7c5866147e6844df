"""Allocation of KV blocks on the host; the arrays are elsewhere.

Each active prompt has blocks that every decode step reads. Copies of its full blocks stay in the prefix cache until
they are evicted or the weights change. A cached block is keyed by all tokens up to its end, so a later prompt with the
same prefix copies it instead of computing it. The number of a completion's blocks grows with its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

ROOT = 0
# (number of the previous block or ROOT, tokens of the block)
PrefixKey = tuple[int, tuple[int, ...]]


class Allocation(NamedTuple):
    """A prompt's blocks in order; `copies` (cached block, block) fill the first `cached_tokens` tokens."""

    blocks: list[int]
    cached_tokens: int
    copies: list[tuple[int, int]]


class CachedBlock(NamedTuple):
    """A block of the prefix pool, and its unique number, by which the lookup finds the blocks that follow it."""

    block: int
    number: int


@dataclass
class PrefixCache:
    """The blocks of prompts: `num_blocks` for active prompts, and up to `capacity` cached ones.

    The key of a cached block is the number of its predecessor and its own tokens. Numbers are never reused, so a block
    whose predecessor was evicted is unreachable until it is evicted too. `cached` starts with the least recently used
    block. It is a plain dict, since a copy of an OrderedDict computes the hashes of all keys again.
    """

    block_size: int
    capacity: int = 0
    num_blocks: int = 0
    free_blocks: list[int] = field(default_factory=list)
    cached: dict[PrefixKey, CachedBlock] = field(default_factory=dict)
    last_number: int = ROOT

    def __copy__(self) -> PrefixCache:
        """Return an independent copy."""
        return replace(self, free_blocks=self.free_blocks.copy(), cached=self.cached.copy())

    def open(self, num_blocks: int, capacity: int) -> None:
        """Start a call with `num_blocks` free blocks for prompts and a cache of `capacity` blocks."""
        self.num_blocks, self.capacity = num_blocks, capacity
        self.free_blocks = list(range(num_blocks - 1, -1, -1))

    def _full_blocks(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Split a prompt into full blocks that can be shared; its last token is always computed."""
        full = min((len(tokens) - 1) // self.block_size, self.capacity)
        return [tuple(tokens[i * self.block_size : (i + 1) * self.block_size]) for i in range(full)]

    def _match(self, full_blocks: Sequence[tuple[int, ...]]) -> list[CachedBlock]:
        """Return the cached blocks of a prompt's prefix and mark them as used, the first one most recently."""
        matched: list[CachedBlock] = []
        keys = []
        for block_tokens in full_blocks:
            key = (matched[-1].number if matched else ROOT, block_tokens)
            if key not in self.cached:
                break
            keys.append(key)
            matched.append(self.cached[key])
        for key in reversed(keys):
            self.cached[key] = self.cached.pop(key)
        return matched

    def lookup(self, tokens: Sequence[int]) -> tuple[int, PrefixKey | None]:
        """Return the number of cached tokens of a prompt, and the key of its first uncached full block (or None)."""
        full_blocks = self._full_blocks(tokens)
        cached = self._match(full_blocks)
        parent = cached[-1].number if cached else ROOT
        missing = (parent, full_blocks[len(cached)]) if len(cached) < len(full_blocks) else None
        return len(cached) * self.block_size, missing

    def allocate(self, tokens: Sequence[int]) -> Allocation | None:
        """Allocate blocks for a prompt; allocate nothing and return None if too few are free."""
        need = -(-len(tokens) // self.block_size)
        if need > len(self.free_blocks):
            return None
        blocks = [self.free_blocks.pop() for _ in range(need)]
        matched = self._match(self._full_blocks(tokens))
        copies = [(cached.block, block) for cached, block in zip(matched, blocks, strict=False)]
        return Allocation(blocks, len(matched) * self.block_size, copies)

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Cache the full blocks of a prefilled prompt; return the required copies (block, cached block)."""
        copies: list[tuple[int, int]] = []
        full_blocks = self._full_blocks(tokens)
        matched = self._match(full_blocks)
        parent = matched[-1].number if matched else ROOT
        for block_tokens, block in list(zip(full_blocks, blocks, strict=False))[len(matched) :]:
            target = len(self.cached)
            if target == self.capacity:
                target = self.cached.pop(next(iter(self.cached))).block
            self.last_number += 1
            self.cached[parent, block_tokens] = CachedBlock(target, self.last_number)
            parent = self.last_number
            copies.append((block, target))
        self._match(full_blocks)
        return copies

    def free(self, blocks: Sequence[int]) -> None:
        """Free a prompt's blocks."""
        self.free_blocks.extend(reversed(blocks))

    def reset(self) -> None:
        """Evict all cached blocks, for example after a weight update."""
        self.cached.clear()


class BlockTable:
    """The block table [N,J] of N slots' completions; the pool grows through `pool_sizes`.

    pool_sizes: (number of blocks, columns J) of each size of the pool; the last is the maximum.
    """

    def __init__(self, block_size: int, slots: int, pool_sizes: Sequence[tuple[int, int]]) -> None:
        self.block_size = block_size
        self.pool_sizes = pool_sizes
        self.size_index = 0
        self.held = np.zeros(slots, np.int64)
        self.blocks = np.zeros((slots, pool_sizes[-1][1]), np.int32)
        self.free_blocks = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int32)

    def __copy__(self) -> BlockTable:
        """Return an independent copy; no method changes `held` or `free_blocks` in place."""
        table = object.__new__(BlockTable)
        table.__dict__ |= {**self.__dict__, "blocks": self.blocks.copy()}
        return table

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks of the pool's current size."""
        return self.pool_sizes[self.size_index][0]

    def need(self, tokens: np.ndarray) -> np.ndarray:
        """Return the number of blocks for tokens [X]."""
        return np.minimum(-(-tokens // self.block_size), self.blocks.shape[1])

    def reserve(self, tokens: np.ndarray) -> bool:
        """Allocate and free blocks so that slot n has room for tokens[n]; change nothing and return False if it fails.

        The pool grows to the first size with enough blocks.
        """
        need = self.need(tokens)
        total, widest = int(need.sum()), int(need.max(initial=0))
        size_index = self.size_index
        while self.pool_sizes[size_index][0] < total or self.pool_sizes[size_index][1] < widest:
            size_index += 1
            if size_index == len(self.pool_sizes):
                return False
        added = np.arange(self.pool_sizes[size_index][0] - 1, self.num_blocks - 1, -1, dtype=np.int32)
        column, old, new = np.arange(self.blocks.shape[1]), self.held[:, None], need[:, None]
        freed = self.blocks[(new <= column) & (column < old)]
        free_blocks = np.concatenate([added, self.free_blocks, freed])
        slots, columns = np.nonzero((old <= column) & (column < new))
        num_left = len(free_blocks) - len(slots)
        self.blocks[slots, columns] = free_blocks[num_left:][::-1]
        self.size_index, self.held, self.free_blocks = size_index, need, free_blocks[:num_left]
        return True

    def table(self) -> Any:
        """Return the table [N,J] int32 with the columns J of the current size; missing blocks are `num_blocks`."""
        columns = self.pool_sizes[self.size_index][1]
        is_held = np.arange(columns) < self.held[:, None]
        return np.where(is_held, self.blocks[:, :columns], self.num_blocks).astype(np.int32)


def block_owner(table: np.ndarray, num_blocks: int, block_size: int) -> tuple[Any, Any]:
    """Return owner [Y] and start [Y] of each of `num_blocks` blocks in a table [X,J]; free blocks have owner X."""
    owner = np.full(num_blocks, len(table), np.int32)
    start = np.zeros(num_blocks, np.int32)
    x, j = np.nonzero(table < num_blocks)
    owner[table[x, j]] = x
    start[table[x, j]] = j * block_size
    return owner, start
