"""Who holds which page: plain bookkeeping on the host, without the arrays themselves.

Prompts' pages are kept after their lane is closed, for as long as room and weights last, under the tokens that they
and all pages before them hold: a later prompt that begins alike takes them over, or copies them while another prompt
still uses them. Pages of rows come and go with the rows' lengths.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

ROOT = 0


class OutOfPagesError(Exception):
    """There are not enough pages; `missing` says how many more would do."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} more pages are needed")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Opened:
    """A prompt's pages in order; the first `reused` tokens are there already once `copies` (from, to) are made."""

    pages: list[int]
    reused: int
    copies: list[tuple[int, int]]


@dataclass
class PromptBook:
    """The pages of prompts.

    A page that is known holds the tokens of `known`'s key and stands behind the page with the key's number; numbers
    are never given twice, so that a page whose predecessor was forgotten is never found again.
    """

    size: int
    total: int = 0
    free: list[int] = field(default_factory=list)
    known: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    number: dict[int, int] = field(default_factory=dict)
    key: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _numbers: count[int] = field(default_factory=lambda: count(ROOT + 1))

    def grow(self, total: int) -> None:
        """Add pages, up to `total`."""
        self.free.extend(range(total - 1, self.total - 1, -1))
        self.total = max(self.total, total)

    def _cut(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a prompt into the full pages that may be shared: its last token is always computed."""
        whole = (len(tokens) - 1) // self.size
        return [tuple(tokens[i * self.size : (i + 1) * self.size]) for i in range(whole)]

    def _found(self, tokens: Sequence[int]) -> list[int]:
        """Return the known pages that a prompt begins with."""
        found: list[int] = []
        parent = ROOT
        for piece in self._cut(tokens):
            page = self.known.get((parent, piece))
            if page is None:
                break
            found.append(page)
            parent = self.number[page]
        return found

    def next_key(self, tokens: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
        """Return what the first unknown full page of a prompt would be known by; None where there is none."""
        found, pieces = self._found(tokens), self._cut(tokens)
        if len(found) == len(pieces):
            return None
        return (self.number[found[-1]] if found else ROOT), pieces[len(found)]

    def open(self, tokens: Sequence[int]) -> Opened:
        """Take pages for a prompt; raises OutOfPagesError, and takes nothing, where there are too few."""
        found = self._found(tokens)
        claimed = [page for page in found if page in self.idle]
        need = -(-len(tokens) // self.size) - len(claimed)
        room = len(self.free) + len(self.idle) - len(claimed)
        if need > room:
            raise OutOfPagesError(need - room)
        for page in claimed:
            del self.idle[page]
        pages: list[int] = []
        copies: list[tuple[int, int]] = []
        for page in found:
            if page in claimed:
                pages.append(page)
            else:
                pages.append(self._take())
                copies.append((page, pages[-1]))
        pages.extend(self._take() for _ in range(-(-len(tokens) // self.size) - len(found)))
        return Opened(pages, len(found) * self.size, copies)

    def _take(self) -> int:
        if self.free:
            return self.free.pop()
        page, _ = self.idle.popitem(last=False)
        self._forget(page)
        return page

    def _forget(self, page: int) -> None:
        del self.known[self.key.pop(page)]
        del self.number[page]

    def keep(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Make the full pages of a prompt, which are being written, known to those that come after it."""
        parent = ROOT
        for piece, page in zip(self._cut(tokens), pages, strict=False):
            there = self.known.get((parent, piece))
            if there is None:
                if page in self.key:
                    return
                self.known[parent, piece] = there = page
                self.key[page] = (parent, piece)
                self.number[page] = next(self._numbers)
            parent = self.number[there]

    def close(self, pages: Sequence[int]) -> None:
        """Give a prompt's pages back; the known ones stay to be found until their room is needed."""
        for page in reversed(pages):
            if page in self.key:
                self.idle[page] = None
            else:
                self.free.append(page)

    def forget(self) -> None:
        """Forget what all pages hold: the weights that wrote them have changed."""
        self.free.extend(self.idle)
        self.idle.clear()
        self.known.clear()
        self.key.clear()
        self.number.clear()


class RowBook:
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


def way_back(table: np.ndarray, total: int, size: int) -> tuple[Any, Any]:
    """Return owner [Y] and start [Y] of each of `total` pages in a table [X,J]; X owns a page that nobody holds."""
    owner = np.full(total, len(table), np.int32)
    start = np.zeros(total, np.int32)
    x, j = np.nonzero(table < total)
    owner[table[x, j]] = x
    start[table[x, j]] = j * size
    return owner, start
