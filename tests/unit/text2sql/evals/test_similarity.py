"""The soft vote: similarities by hand, and random ballots against a reference that counts one value at a time."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest

from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.evals.similarity import count_values, similarity
from jaxrl_sql.text2sql.evals.vote import ballots, choose
from jaxrl_sql.types import Cell, Example

Rows = Sequence[tuple[Cell, ...]]

# Names and rows of both sides; the similarity.
BY_HAND: dict[str, tuple[str, Rows, str, Rows, float]] = {
    # b: y is in both twice, x and z are each on one side. a and c have three values without a partner each.
    "one quotient": ("ab", [(1, "x"), (1, "y"), (2, "y")], "bc", [("y", 0), ("y", 0), ("z", 0)], 2 / 10),
    "long columns weigh more": ("ab", [(1, 1), (2, 1), (3, 1)], "ab", [(1, 1), (5, 1), (6, 1)], 4 / 8),
    "equal": ("ab", [(1, "x")], "ba", [("x", 1.0)], 1.0),
    "no rows on one side": ("a", [(1,)], "a", [], 0.0),
    "no rows on both sides": ("a", [], "a", [], 0.0),
    "no column in common": ("a", [(1,)], "b", [(1,)], 0.0),
    "names have a case": ("a", [(1,)], "A", [(1,)], 0.0),
    "NULLs among numbers": ("a", [(None,), (1,)], "a", [(None,), (1,)], 1 / 3),
    "NULLs among texts": ("a", [(None,), ("x",)], "a", [(None,), ("x",)], 1.0),
    "NULLs among numbers and texts": ("a", [(None,), ("x",), (1,)], "a", [(None,), ("x",), (1,)], 1.0),
    "NULLs among numbers against texts": ("a", [(None,), (1,)], "a", [(None,), ("x",)], 0.0),
    "NULLs alone": ("a", [(None,), (None,)], "a", [(None,), (None,)], 1.0),
    "NULLs alone count against integers": ("ab", [(None, 1)] * 2, "ab", [(1, 1), (2, 1)], 2 / 6),
    "NULLs alone do not count against floats": ("ab", [(None, 1)] * 2, "ab", [(1.5, 1), (2, 1)], 2 / 4),
    "NULLs alone do not count against numbers with NULLs": ("ab", [(None, 1)] * 2, "ab", [(2, 1), (None, 1)], 2 / 4),
    "NULLs alone against texts": ("a", [(None,), (None,)], "a", [(None,), ("x",)], 1 / 3),
    "a number and its text": ("a", [(1,), (2,)], "a", [("1",), (2,)], 1 / 3),
    "integers next to NULL are rounded to floats": ("a", [(2**53 + 1,), (None,)], "a", [(2**53,)], 1 / 2),
    "integers alone are not": ("a", [(2**53 + 1,)], "a", [(2**53,)], 0.0),
    "columns of one name are pooled": ("aa", [(1, 2)], "aa", [(1, 3)], 1 / 3),
    "columns of one name against one": ("aa", [(1, 2)], "a", [(2,)], 1 / 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_similarity_by_hand(name: str) -> None:
    left_names, left_rows, right_names, right_rows, expected = BY_HAND[name]
    left, right = count_values(left_names, left_rows), count_values(right_names, right_rows)
    assert similarity(left, right) == similarity(right, left) == pytest.approx(expected)


def reference_similarity(left: tuple[list[str], Rows] | None, right: tuple[list[str], Rows] | None) -> float:
    """Return the sum of max - |difference| of counts over the sum of max, over columns and values."""
    if left is None or right is None or not left[1] or not right[1]:
        return 0.0
    real = possible = 0
    for name in sorted({*left[0], *right[0]}):
        sides = [[row[names.index(name)] for row in rows] if name in names else [] for names, rows in (left, right)]
        are_floats = [
            all(isinstance(cell, int | float | None) for cell in side)
            and any(cell is not None for cell in side)
            and not all(isinstance(cell, int) for cell in side)
            for side in sides
        ]
        # A column of NULLs alone is left out against floats, and NULL among floats equals nothing.
        if any(are_floats):
            sides = [[] if set(side) == {None} and all(sides) else side for side in sides]
        is_missing = any(is_float and None in side for is_float, side in zip(are_floats, sides, strict=True))
        for value in {cell for side in sides for cell in side}:
            first, second = (sum(cell == value for cell in side) for side in sides)
            if value is None and is_missing:
                first, second = first + second, 0
            real += max(first, second) - abs(first - second)
            possible += max(first, second)
    return real / possible


def reference_winner(database: str, candidates: Sequence[str]) -> int:
    tables: list[tuple[list[str], Rows] | None] = []
    with closing(sqlite3.connect(database)) as connection:
        for sql in candidates:
            try:
                cursor = connection.execute(sql)
            except sqlite3.Error:
                tables.append(None)
            else:
                tables.append(([column[0] for column in cursor.description], cursor.fetchall()))
    matrix = np.array([[reference_similarity(table, other) for other in tables] for table in tables])
    matrix[np.diag_indices_from(matrix)] = [table is not None for table in tables]
    return int(np.argmax(matrix.sum(-1)))


def random_candidate(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return "SELECT missing FROM t"
    names = rng.sample(("a", "b", "c", "d"), rng.randint(1, 3))
    cells = (("1", "2", "3", "NULL"), ("'x'", "'y'", "NULL"), ("1", "1.5", "2.0"), ("NULL",), ("1", "'1'", "NULL"))
    kinds = [rng.choice(cells) for _ in names]
    rows = ", ".join(f"({', '.join(map(rng.choice, kinds))})" for _ in range(rng.randint(1, 4)))
    listed = ", ".join(f"column{i + 1} AS {name}" for i, name in enumerate(names))
    return f"SELECT {listed} FROM (VALUES {rows}){rng.choice(('', '', '', ' WHERE 0'))}"


def test_random_ballots_equal_the_reference(executor: Executor, db: str) -> None:
    rng = random.Random(0)
    pools = [[random_candidate(rng) for _ in range(5)] for _ in range(300)]
    candidates = [[rng.choice(pool) for _ in range(8)] for pool in pools]
    examples = [Example(f"q{i}", "t", db, "?", "") for i in range(len(candidates))]
    chosen = [choose(ballot).index for ballot in ballots(executor, examples, candidates, "soft")]
    expected = [reference_winner(db, sqls) for sqls in candidates]
    assert chosen == expected
    assert sum(index > 0 for index in expected) > 100
