"""The rows of an outcome in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sqlexec_rs._native import Outcome


class RowBatches:
    """Lists of at most `size` rows, created one at a time to save memory.

    With `async for` the event loop runs between two lists. Raises ValueError when `size` is 0.
    """

    def __init__(self, outcome: Outcome, size: int) -> None:
        if size < 1:
            raise ValueError("a batch must have at least 1 row")
        self._outcome = outcome
        self._starts = range(0, outcome.row_count, size)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[list[tuple[Any, ...]]]:
        for start in self._starts:
            yield self._outcome.slice(start, start + self._starts.step)

    async def __aiter__(self) -> AsyncIterator[list[tuple[Any, ...]]]:
        for rows in self:
            yield rows
            await asyncio.sleep(0)
