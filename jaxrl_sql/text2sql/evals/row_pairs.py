"""A result's rows beside the gold's: which of them are the same, and in which cells the others differ."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_sql.types import Cell

Cells = Sequence[Cell]


class RowPair(NamedTuple):
    """A row and the one of the gold that stands beside it, None where there is none; the columns in which they differ.

    A column that only one of them has differs.
    """

    row: Cells | None
    gold: Cells | None
    differs: tuple[int, ...]


def pair_rows(rows: Sequence[Cells], golds: Sequence[Cells], most: int) -> tuple[list[RowPair], int]:
    """Return up to `most` pairs of rows, those that differ first, and how many rows are in both whatever their order.

    Rows that are equal are paired first; the rest in order, as they stand. Python's equality decides, so 2 is 2.0.
    """
    left: dict[Any, deque[int]] = defaultdict(deque)
    for j, gold in enumerate(golds):
        left[_key(gold)].append(j)
    equal, alone = [], []
    for i, row in enumerate(rows):
        found = left.get(_key(row))
        if found:
            equal.append((i, found.popleft()))
        else:
            alone.append(i)
    met = {j for _, j in equal}
    unmet = [j for j in range(len(golds)) if j not in met]
    pairs = []
    for k in range(min(most, max(len(alone), len(unmet)))):
        mine = rows[alone[k]] if k < len(alone) else None
        theirs = golds[unmet[k]] if k < len(unmet) else None
        pairs.append(RowPair(mine, theirs, _differing(mine, theirs)))
    pairs += [RowPair(rows[i], golds[j], ()) for i, j in equal[: most - len(pairs)]]
    return pairs, len(equal)


def _differing(row: Cells | None, gold: Cells | None) -> tuple[int, ...]:
    if row is None or gold is None:
        return ()
    wide = max(len(row), len(gold))
    return tuple(i for i in range(wide) if i >= len(row) or i >= len(gold) or row[i] != gold[i])


def _key(row: Cells) -> Any:
    """Return what equal rows have in common; NaN, which equals nothing, is itself here."""
    return tuple("nan" if isinstance(cell, float) and cell != cell else cell for cell in row)  # noqa: PLR0124
