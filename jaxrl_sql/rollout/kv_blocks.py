"""Who holds which page: plain bookkeeping on the host, without the arrays themselves.

Prompts that are being answered hold pages that every decode step reads. Copies of their full pages are kept apart, for
as long as room and weights last, under the tokens that they and all pages before them hold: a later prompt that begins
alike copies them back instead of computing them. Pages of rows come and go with the rows' lengths.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

ROOT = 0


class OutOfPagesError(Exception):
    """There are not enough pages; `missing` says how many more would do."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} more pages are needed")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Opened:
    """A prompt's pages in order; the first `reused` tokens are there once `copies` (kept page, page) are made."""

    pages: list[int]
    reused: int
    copies: list[tuple[int, int]]


class Kept(NamedTuple):
    """A page that is kept, and its number: what stands behind it is known by that."""

    page: int
    number: int


@dataclass
class PrefixCache:
    """The pages of prompts: `total` of those being answered, and up to `room` that are kept.

    A kept page is known by the number of the one before it and its tokens. Numbers are never given twice, so that a
    page whose predecessor was forgotten is never found again, and goes when its turn comes.
    """

    size: int
    room: int
    total: int = 0
    free: list[int] = field(default_factory=list)
    known: OrderedDict[tuple[int, tuple[int, ...]], Kept] = field(default_factory=OrderedDict)
    _numbers: count[int] = field(default_factory=lambda: count(ROOT + 1))

    def grow(self, total: int) -> None:
        """Add pages, up to `total`."""
        self.free.extend(range(total - 1, self.total - 1, -1))
        self.total = max(self.total, total)

    def _cut(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a prompt into the full pages that may be shared: its last token is always computed."""
        whole = min((len(tokens) - 1) // self.size, self.room)
        return [tuple(tokens[i * self.size : (i + 1) * self.size]) for i in range(whole)]

    def _found(self, pieces: Sequence[tuple[int, ...]]) -> list[Kept]:
        """Return the kept pages that a prompt begins with, and note their use: the first page outlives the others."""
        found: list[Kept] = []
        keys = []
        for piece in pieces:
            key = (found[-1].number if found else ROOT, piece)
            if key not in self.known:
                break
            keys.append(key)
            found.append(self.known[key])
        for key in reversed(keys):
            self.known.move_to_end(key)
        return found

    def reusable(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of a prompt are kept."""
        return len(self._found(self._cut(tokens))) * self.size

    def next_key(self, tokens: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
        """Return what the first full page of a prompt that is not kept would be known by; None where all are."""
        pieces = self._cut(tokens)
        found = self._found(pieces)
        if len(found) == len(pieces):
            return None
        return (found[-1].number if found else ROOT), pieces[len(found)]

    def open(self, tokens: Sequence[int]) -> Opened:
        """Take pages for a prompt; raises OutOfPagesError, and takes nothing, where there are too few."""
        need = -(-len(tokens) // self.size)
        if need > len(self.free):
            raise OutOfPagesError(need - len(self.free))
        pages = [self.free.pop() for _ in range(need)]
        found = self._found(self._cut(tokens))
        copies = [(kept.page, page) for kept, page in zip(found, pages, strict=False)]
        return Opened(pages, len(found) * self.size, copies)

    def keep(self, tokens: Sequence[int], pages: Sequence[int]) -> list[tuple[int, int]]:
        """Keep the full pages of a prompt, now that they are written -> copies to make, (page, kept page)."""
        copies: list[tuple[int, int]] = []
        pieces = self._cut(tokens)
        found = self._found(pieces)
        parent = found[-1].number if found else ROOT
        for piece, page in list(zip(pieces, pages, strict=False))[len(found) :]:
            place = len(self.known)
            if place == self.room:
                place = self.known.popitem(last=False)[1].page
            self.known[parent, piece] = Kept(place, next(self._numbers))
            parent = self.known[parent, piece].number
            copies.append((page, place))
        self._found(pieces)
        return copies

    def close(self, pages: Sequence[int]) -> None:
        """Give a prompt's pages back."""
        self.free.extend(reversed(pages))

    def forget(self) -> None:
        """Forget what is kept: the weights that wrote it have changed."""
        self.known.clear()


class BlockTable:
    """The pages of rows: table [N,J], each row's pages in order, `total` where there is none."""

    def __init__(self, size: int, rows: int, columns: int, total: int) -> None:
        self.size = size
        self.total = total
        self.held = np.zeros(rows, np.int64)
        self.pages = np.zeros((rows, columns), np.int32)
        self.free = list(range(total - 1, -1, -1))

    def grow(self, total: int) -> None:
        """Add pages, up to `total`."""
        self.free.extend(range(total - 1, self.total - 1, -1))
        self.total = max(self.total, total)

    def cover(self, tokens: np.ndarray) -> None:
        """Give and take pages so that row n can hold tokens[n].

        Raises OutOfPagesError, and changes nothing, where there are too few.
        """
        need = np.minimum(-(-tokens // self.size), self.pages.shape[1])
        missing = int(np.sum(need - self.held)) - len(self.free)
        if missing > 0:
            raise OutOfPagesError(missing)
        for row in np.flatnonzero(need < self.held):
            self.free.extend(self.pages[row, need[row] : self.held[row]].tolist())
        for row in np.flatnonzero(need > self.held):
            for j in range(self.held[row], need[row]):
                self.pages[row, j] = self.free.pop()
        self.held = need

    def table(self) -> Any:
        """Return [N,J] int32 with `total` where a row has no page."""
        return np.where(np.arange(self.pages.shape[1]) < self.held[:, None], self.pages, self.total).astype(np.int32)


def block_owner(table: np.ndarray, total: int, size: int) -> tuple[Any, Any]:
    """Return owner [Y] and start [Y] of each of `total` pages in a table [X,J]; X owns a page that nobody holds."""
    owner = np.full(total, len(table), np.int32)
    start = np.zeros(total, np.int32)
    x, j = np.nonzero(table < total)
    owner[table[x, j]] = x
    start[table[x, j]] = j * size
    return owner, start
