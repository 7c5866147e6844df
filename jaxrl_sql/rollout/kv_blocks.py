"""Allocation of KV blocks on the host, by index; `model_runner` has the arrays.

A KV block holds the keys and values of a fixed number of successive tokens of a prompt or completion. Each active
prompt has blocks that every decode step reads. Copies of its full blocks stay in the prefix cache until they are
evicted or the weights change. A cached block is keyed by all tokens up to its end, so a later prompt with the same
prefix copies it instead of computing it. The number of a completion's blocks grows with its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

ROOT = 0
"""Instead of the previous block's number, for the first block of a prompt."""
PrefixKey = tuple[int, tuple[int, ...]]
"""(number of the previous block or ROOT, tokens of the block)"""


class Allocation(NamedTuple):
    """A prompt's blocks in order; `copies` (cached block, block) fill those of the first `cached_tokens` tokens."""

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
    whose predecessor was evicted is never matched again, and is evicted later. `cached` starts with the least recently
    used block. It is a plain dict, since a copy of an OrderedDict computes the hashes of all keys again.
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
        """Return the tokens of each full block of a prompt that can be shared.

        The last token is excluded, because its hidden state is needed for the first sampled token.
        """
        full = min((len(tokens) - 1) // self.block_size, self.capacity)
        return [tuple(tokens[i * self.block_size : (i + 1) * self.block_size]) for i in range(full)]

    def _match(self, full_blocks: Sequence[tuple[int, ...]]) -> list[CachedBlock]:
        """Return the cached blocks of a prompt's prefix and mark them as used, the first block most recently.

        So a block is evicted after the blocks that follow it.
        """
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
        num_blocks = -(-len(tokens) // self.block_size)
        if num_blocks > len(self.free_blocks):
            return None
        blocks = [self.free_blocks.pop() for _ in range(num_blocks)]
        matched = self._match(self._full_blocks(tokens))
        copies = [(cached.block, block) for cached, block in zip(matched, blocks, strict=False)]
        return Allocation(blocks, len(matched) * self.block_size, copies)

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Cache the full blocks of a prefilled prompt; return the required copies (block, cached block).

        A full cache evicts its least recently used block for each new block.
        """
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
        self._match(full_blocks)  # marks them as used, in the order of `_match`
        return copies

    def free(self, blocks: Sequence[int]) -> None:
        """Free a prompt's blocks."""
        self.free_blocks.extend(reversed(blocks))

    def reset(self) -> None:
        """Evict all cached blocks, for example after a weight update."""
        self.cached.clear()


class BlockTable:
    """The block table [N,J] of N slots' completions: row n has the indices of the J blocks of slot n, in order.

    pool_sizes: (number of blocks, columns J) of each size that the pool grows through; the last is the maximum.
    size_index: index of the current size.
    slot_blocks [N]: number of blocks of each slot.
    blocks [N,J]: the table with all columns; entries from `slot_blocks` on have no meaning.
    """

    def __init__(self, block_size: int, slots: int, pool_sizes: Sequence[tuple[int, int]]) -> None:
        self.block_size = block_size
        self.pool_sizes = pool_sizes
        self.size_index = 0
        self.slot_blocks = np.zeros(slots, np.int64)
        self.blocks = np.zeros((slots, pool_sizes[-1][1]), np.int32)
        self.free_blocks = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int32)

    def __copy__(self) -> BlockTable:
        """Return an independent copy; no method changes `slot_blocks` or `free_blocks` in place."""
        table = object.__new__(BlockTable)
        table.__dict__ |= {**self.__dict__, "blocks": self.blocks.copy()}
        return table

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks of the pool's current size."""
        return self.pool_sizes[self.size_index][0]

    def num_needed(self, tokens: np.ndarray) -> np.ndarray:
        """Return the number of blocks [X] for completions of these numbers of tokens [X]."""
        return np.minimum(-(-tokens // self.block_size), self.blocks.shape[1])

    def reserve(self, tokens: np.ndarray) -> bool:
        """Allocate and free blocks so that slot n has room for tokens[n]; change nothing and return False if it fails.

        The pool grows to the first size with enough blocks.
        """
        num_needed = self.num_needed(tokens)
        total, most_per_slot = int(num_needed.sum()), int(num_needed.max(initial=0))
        size_index = self.size_index
        while self.pool_sizes[size_index][0] < total or self.pool_sizes[size_index][1] < most_per_slot:
            size_index += 1
            if size_index == len(self.pool_sizes):
                return False
        added = np.arange(self.pool_sizes[size_index][0] - 1, self.num_blocks - 1, -1, dtype=np.int32)
        column, old, new = np.arange(self.blocks.shape[1]), self.slot_blocks[:, None], num_needed[:, None]
        freed = self.blocks[(new <= column) & (column < old)]
        free_blocks = np.concatenate([added, self.free_blocks, freed])
        slots, columns = np.nonzero((old <= column) & (column < new))
        num_left = len(free_blocks) - len(slots)
        self.blocks[slots, columns] = free_blocks[num_left:][::-1]
        self.size_index, self.slot_blocks, self.free_blocks = size_index, num_needed, free_blocks[:num_left]
        return True

    def table(self) -> Any:
        """Return the table [N,J] int32 with the columns J of the current size.

        Entries without a block are `num_blocks`, which is out of range.
        """
        columns = self.pool_sizes[self.size_index][1]
        has_block = np.arange(columns) < self.slot_blocks[:, None]
        return np.where(has_block, self.blocks[:, :columns], self.num_blocks).astype(np.int32)


def block_owner(table: np.ndarray, num_blocks: int, block_size: int) -> tuple[Any, Any]:
    """Return the owner [Y] and start [Y] of each of Y = `num_blocks` blocks, from a block table [X,J].

    The owner is the row of the prompt or completion that has the block, or X for a free block. The start is the
    position of the block's first token in its owner.
    """
    owner = np.full(num_blocks, len(table), np.int32)
    start = np.zeros(num_blocks, np.int32)
    x, j = np.nonzero(table < num_blocks)
    owner[table[x, j]] = x
    start[table[x, j]] = j * block_size
    return owner, start
