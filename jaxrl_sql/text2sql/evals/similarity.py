"""How similar two results are, from 0 to 1: the measure by which Arctic-Text2SQL-R1 votes.

Columns are paired by name over all names of both sides (a name that comes several times pairs in order). A pair is as
similar as its values agree: the sum over values of the lower count over that of the higher one; a column without a
partner has 0. The result is the mean over columns. A result without rows is similar to nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_sql.text2sql.env.ports import SqlOutcome
from jaxrl_sql.types import Cell

# The values of a column with their counts, by the column's name and how often the name came before.
Columns = Mapping[tuple[str, int], Counter[Cell]]


def likeness_of(outcomes: Sequence[SqlOutcome]) -> np.ndarray:
    """Return [n, n]: how similar each two results are. What failed is similar to nothing, and so is what is empty."""
    kinds: dict[tuple[Any, ...], int] = {}
    of = [_kind(outcome, kinds) for outcome in outcomes]
    tables: dict[int, Columns] = {}
    for kind, outcome in zip(of, outcomes, strict=True):
        if kind not in tables:
            tables[kind] = counted(outcome.columns, outcome.rows if outcome.status == "ok" else ())
    among = np.zeros((len(kinds), len(kinds)))
    for a in range(len(kinds)):
        for b in range(a, len(kinds)):
            among[a, b] = among[b, a] = similarity(tables[a], tables[b])
    return among[np.ix_(of, of)]


def _kind(outcome: SqlOutcome, kinds: dict[tuple[Any, ...], int]) -> int:
    """Return the number of what is counted alike for sure: most candidates return what another one has returned."""
    key: tuple[Any, ...] = (outcome.status == "ok", outcome.set_digest, outcome.row_count, tuple(outcome.columns))
    # Equal sets of as many rows may still differ in which of them comes twice.
    if outcome.row_count > 2:
        key = (*key, frozenset(Counter(outcome.rows).items()))
    return kinds.setdefault(key, len(kinds))


def counted(names: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Columns:
    """Count the values of each column; nothing where there are no rows."""
    if not rows:
        return {}
    seen: Counter[str] = Counter()
    columns = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        columns[name, seen[name]] = Counter(values)
        seen[name] += 1
    return columns


def similarity(left: Columns, right: Columns) -> float:
    """Return how similar two results are."""
    if not left or not right:
        return 0.0
    names = [*left, *(name for name in right if name not in left)]
    shared = [(left[name], right[name]) for name in left if name in right]
    return sum((one & other).total() / (one | other).total() for one, other in shared) / len(names)
