"""What the sources of snapshots share: how much to read at a time, and the rows of the smallest hashes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from jaxrl_sql.datagen.snapshot.closure import Row

TARGET_SECONDS = 0.25
"""How long a reading should take, as nobody else may change the table's definition meanwhile."""

Mark = TypeVar("Mark", int, str)


class Pace:
    """How many pages or rows to read at a time, so that each reading takes about as long."""

    def __init__(self, size: int, most: int) -> None:
        self.size, self._most = min(size, most), most

    def took(self, seconds: float) -> None:
        """Take note of how long the last reading took."""
        self.size = max(1, min(self._most, int(self.size * min(2.0, TARGET_SECONDS / max(seconds, 1e-6)))))


class Smallest(Generic[Mark]):
    """The rows of the smallest hashes, at most `limit`; `bound` is what a further hash has to be below."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: list[tuple[Mark, Row]] = []
        self.bound: Mark | None = None

    def add(self, found: Iterable[tuple[Mark, Row]]) -> None:
        """Add hashes and their rows."""
        self._found += found
        if len(self._found) >= (self._limit if self.bound is None else 2 * self._limit):
            self._cut()

    def rows(self) -> list[Row]:
        """Return the rows, the smallest hash first."""
        self._cut()
        return [row for _, row in self._found]

    def _cut(self) -> None:
        self._found.sort(key=lambda one: one[0])
        del self._found[self._limit :]
        self.bound = self._found[-1][0] if len(self._found) == self._limit else None
