"""The order of examples in training.

It is a function of the seed and one number, the cursor: the number of examples that were taken before. So a resumed run
continues with exactly the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice

import numpy as np

from jaxrl_sql.types import InputError


@dataclass(frozen=True, slots=True)
class Order:
    """An endless sequence over `n` examples: epoch after epoch, each shuffled by (seed, epoch)."""

    n: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse an order of no examples."""
        if self.n <= 0:
            raise InputError(f"an order needs at least one example, found {self.n}")

    def take(self, cursor: int, k: int) -> tuple[list[int], int]:
        """Return the indices of the `k` examples from position `cursor` on, and the cursor after them.

        `k` may be larger than `n`, so examples can repeat.
        """
        if cursor < 0 or k < 0:
            raise ValueError(f"cursor and k must not be negative, found {cursor} and {k}")
        indices: list[int] = []
        end = cursor + k
        while cursor < end:
            epoch, offset = divmod(cursor, self.n)
            stop = min(self.n, offset + end - cursor)
            indices.extend(_permutation(self.n, self.seed, epoch)[offset:stop].tolist())
            cursor += stop - offset
        return indices, end


class SchemaOrder:
    """An endless sequence over examples of several databases, in blocks of `prompts_per_schema` on one database.

    `databases[i]` is the database of example i. In each epoch a database's examples are shuffled and split into blocks,
    and all blocks are shuffled. If the last block of a database is too small, the first examples of its shuffled order
    fill it.
    """

    def __init__(self, databases: Sequence[str], prompts_per_schema: int, seed: int) -> None:
        members: dict[str, list[int]] = {}
        for i, name in enumerate(databases):
            members.setdefault(name, []).append(i)
        self._members, self._prompts_per_schema, self._seed = [*members.values()], prompts_per_schema, seed
        self._blocks = Order(sum(-(-len(members) // prompts_per_schema) for members in self._members), seed)
        self._epoch = lru_cache(maxsize=2)(self._split_epoch)

    @property
    def n(self) -> int:
        """Return the number of examples per epoch, including repeated ones."""
        return self._blocks.n * self._prompts_per_schema

    def take(self, cursor: int, k: int) -> tuple[list[int], int]:
        """Return the indices of the `k` examples from position `cursor` on, and the cursor after them.

        Raises ValueError unless `cursor` and `k` are multiples of `prompts_per_schema`.
        """
        if cursor % self._prompts_per_schema or k % self._prompts_per_schema:
            raise ValueError(f"cursor {cursor} and k {k} must be multiples of {self._prompts_per_schema}")
        first_block = cursor // self._prompts_per_schema
        blocks, _ = self._blocks.take(first_block, k // self._prompts_per_schema)
        indices = [
            i
            for position, block in enumerate(blocks, first_block)
            for i in self._epoch(position // self._blocks.n)[block]
        ]
        return indices, cursor + k

    def _split_epoch(self, epoch: int) -> list[list[int]]:
        """Return the blocks of an epoch, in the order of the databases."""
        blocks = []
        for database, members in enumerate(self._members):
            shuffled = [members[i] for i in _permutation(len(members), self._seed, epoch, database)]
            for start in range(0, len(shuffled), self._prompts_per_schema):
                block = shuffled[start : start + self._prompts_per_schema]
                blocks.append([*block, *islice(cycle(shuffled), self._prompts_per_schema - len(block))])
        return blocks


AnyOrder = Order | SchemaOrder


@lru_cache(maxsize=4)
def _permutation(n: int, seed: int, epoch: int, *more: int) -> np.ndarray:
    """Return a random permutation of 0 to n - 1, as a function of all arguments."""
    # Raw bits of a counter-based generator are the same in every NumPy version; `Generator.permutation` need not be.
    entropy = np.random.SeedSequence((seed & (2**64 - 1), epoch, *more))
    keys = np.random.Philox(entropy).random_raw(n)
    return np.argsort(keys, kind="stable").astype(np.uint32 if n <= 2**32 else np.uint64)
