"""Pair the rows of a result with those of the gold (the reference), and find the cells that differ."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_sql.types import Cell

Cells = Sequence[Cell]


class RowPair(NamedTuple):
    """A row and its counterpart in the gold (None: no such row), with the indices of columns that differ.

    A column that exists in only one of them differs. A row without a counterpart has no differing columns.
    """

    row: Cells | None
    gold: Cells | None
    differs: tuple[int, ...]


def pair_rows(rows: Sequence[Cells], golds: Sequence[Cells], max_pairs: int) -> tuple[list[RowPair], int]:
    """Return up to `max_pairs` pairs of rows, different ones first, and the number of rows that both results have.

    Equal rows (by Python's equality, so 2 equals 2.0) are paired first, then the rest in order.
    """
    unmatched: dict[Any, deque[int]] = defaultdict(deque)
    for j, gold in enumerate(golds):
        unmatched[_key(gold)].append(j)
    equal, alone = [], []
    for i, row in enumerate(rows):
        matches = unmatched.get(_key(row))
        if matches:
            equal.append((i, matches.popleft()))
        else:
            alone.append(i)
    paired_golds = {j for _, j in equal}
    unpaired_golds = [j for j in range(len(golds)) if j not in paired_golds]
    pairs = []
    for k in range(min(max_pairs, max(len(alone), len(unpaired_golds)))):
        unmatched_row = rows[alone[k]] if k < len(alone) else None
        gold_row = golds[unpaired_golds[k]] if k < len(unpaired_golds) else None
        pairs.append(RowPair(unmatched_row, gold_row, _differing(unmatched_row, gold_row)))
    pairs += [RowPair(rows[i], golds[j], ()) for i, j in equal[: max_pairs - len(pairs)]]
    return pairs, len(equal)


def _differing(row: Cells | None, gold: Cells | None) -> tuple[int, ...]:
    if row is None or gold is None:
        return ()
    width = max(len(row), len(gold))
    return tuple(i for i in range(width) if i >= len(row) or i >= len(gold) or row[i] != gold[i])


def _key(row: Cells) -> Any:
    """Return a key that is equal for equal rows; NaN equals NaN here."""
    return tuple("nan" if isinstance(cell, float) and cell != cell else cell for cell in row)  # noqa: PLR0124
