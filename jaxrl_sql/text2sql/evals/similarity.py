"""Similarity of two results from 0 to 1, for the vote of Arctic-Text2SQL-R1.

Columns are paired by name (repeated names in order). The similarity of a pair is the multiset Jaccard index of its
values: the sum of the lower counts over the sum of the higher counts. A column without a partner has 0. The result is
the mean over the columns of both sides, and 0 if either result has no rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_sql.text2sql.env.ports import SqlOutcome
from jaxrl_sql.types import Cell

# The value counts of each column, by the column's name and the number of its earlier occurrences.
Columns = Mapping[tuple[str, int], Counter[Cell]]


def similarity_matrix(outcomes: Sequence[SqlOutcome]) -> np.ndarray:
    """Return the pairwise similarities [n, n]; failed and empty results have similarity 0."""
    classes: dict[tuple[Any, ...], int] = {}
    class_of = [_kind(outcome, classes) for outcome in outcomes]
    tables: dict[int, Columns] = {}
    for index, outcome in zip(class_of, outcomes, strict=True):
        if index not in tables:
            tables[index] = count_values(outcome.columns, outcome.rows if outcome.status == "ok" else ())
    among = np.zeros((len(classes), len(classes)))
    for a in range(len(classes)):
        for b in range(a, len(classes)):
            among[a, b] = among[b, a] = similarity(tables[a], tables[b])
    return among[np.ix_(class_of, class_of)]


def _kind(outcome: SqlOutcome, classes: dict[tuple[Any, ...], int]) -> int:
    """Return an index shared by results with equal counts, since most candidates return the same result."""
    key: tuple[Any, ...] = (outcome.status == "ok", outcome.set_digest, outcome.row_count, tuple(outcome.columns))
    # Equal sets with equal row counts may still differ in the multiplicity of rows.
    if outcome.row_count > 2:
        key = (*key, frozenset(Counter(outcome.rows).items()))
    return classes.setdefault(key, len(classes))


def count_values(names: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Columns:
    """Count the values of each column; empty without rows."""
    if not rows:
        return {}
    seen: Counter[str] = Counter()
    columns = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        columns[name, seen[name]] = Counter(values)
        seen[name] += 1
    return columns


def similarity(left: Columns, right: Columns) -> float:
    """Return the similarity of two results."""
    if not left or not right:
        return 0.0
    names = [*left, *(name for name in right if name not in left)]
    shared = [(left[name], right[name]) for name in left if name in right]
    return sum((column & other).total() / (column | other).total() for column, other in shared) / len(names)
