"""Similarity of two results from 0 to 1, for the vote of Arctic-Text2SQL-R1.

Columns of both results are paired by name; several columns of one name count as one with the values of all. The
similarity is the Jaccard index of multisets over all columns: for each value, the lower of its counts in both results
is summed, and divided by the sum of the higher counts. A column without a partner adds only to the denominator, and so
does a NULL among numbers. Results without rows have similarity 0. Columns have the types that pandas 2
infers, as in the released code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_sql.text2sql.env.ports import SqlOutcome
from jaxrl_sql.types import Cell


class Column(NamedTuple):
    """The count of each value of a column, or of several columns of one name.

    A column has floats (`is_float`) if all values are numbers or NULL, and at least one is a float or NULL. Then
    `missing` is the number of its NULLs, which `values` omits.
    """

    values: Counter[Cell]
    missing: int = 0
    is_float: bool = False

    def total(self) -> int:
        """Return the number of values and NULLs."""
        return self.values.total() + self.missing


Columns = Mapping[str, Column]


def similarity_matrix(outcomes: Sequence[SqlOutcome]) -> np.ndarray:
    """Return the pairwise similarities [n, n]; failed and empty results have similarity 0."""
    classes: dict[tuple[Any, ...], int] = {}
    # Results of one class have equal counts, so a similarity is computed once per pair of classes.
    class_of = [_class_index(outcome, classes) for outcome in outcomes]
    tables: dict[int, Columns] = {}
    for index, outcome in zip(class_of, outcomes, strict=True):
        if index not in tables:
            tables[index] = count_values(outcome.columns, outcome.rows if outcome.status == "ok" else ())
    class_similarity = np.zeros((len(classes), len(classes)))
    for a in range(len(classes)):
        for b in range(a, len(classes)):
            class_similarity[a, b] = class_similarity[b, a] = similarity(tables[a], tables[b])
    return class_similarity[np.ix_(class_of, class_of)]


def _class_index(outcome: SqlOutcome, classes: dict[tuple[Any, ...], int]) -> int:
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
    pooled: dict[str, list[Cell]] = {}
    for name, cells in zip(names, zip(*rows, strict=True), strict=True):
        pooled.setdefault(name, []).extend(cells)
    return {name: _count_column(cells) for name, cells in pooled.items()}


def _count_column(cells: Sequence[Cell]) -> Column:
    numbers = [cell for cell in cells if isinstance(cell, int | float) and not isinstance(cell, bool)]
    missing = sum(cell is None for cell in cells)
    is_number = bool(numbers) and len(numbers) + missing == len(cells)
    if is_number and (missing or any(isinstance(number, float) for number in numbers)):
        return Column(Counter(map(float, numbers)), missing, is_float=True)
    return Column(Counter(cells))


def similarity(left: Columns, right: Columns) -> float:
    """Return the similarity of two results."""
    if not left or not right:
        return 0.0
    intersection = union = 0
    for name in left.keys() | right.keys():
        a, b = left.get(name), right.get(name)
        if a is None or b is None:
            union += (a or b or Column(Counter())).total()
            continue
        # As pandas when it concatenates two columns: one that has only NULLs is dropped if the other has floats.
        if a.is_float or b.is_float:
            a, b = (Column(Counter()) if side.values.keys() == {None} else side for side in (a, b))
        intersection += (a.values & b.values).total()
        union += (a.values | b.values).total() + a.missing + b.missing
    return intersection / union
