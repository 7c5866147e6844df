"""Pairs of predicted and gold rows, worked out by hand."""

from __future__ import annotations

import math

from jaxrl_sql.text2sql.evals.row_pairs import RowPair, pair_rows


def test_equal_rows_are_paired_in_any_order_and_come_last() -> None:
    pairs, equal = pair_rows([(1, "a"), (2, "b"), (3, "c")], [(3, "c"), (1, "a"), (2, "x")], 9)
    assert pairs == [
        RowPair((2, "b"), (2, "x"), (1,)),
        RowPair((1, "a"), (1, "a"), ()),
        RowPair((3, "c"), (3, "c"), ()),
    ]
    assert equal == 2


def test_duplicates_are_paired_by_multiplicity() -> None:
    pairs, equal = pair_rows([(1,), (1,), (1,)], [(1,), (1,)], 9)
    assert equal == 2
    assert pairs[0] == RowPair((1,), None, ())


def test_missing_columns_differ() -> None:
    pairs, equal = pair_rows([(1, 2)], [(1,)], 9)
    assert (pairs, equal) == ([RowPair((1, 2), (1,), (1,))], 0)


def test_numbers_equal_by_value_and_differ_from_text() -> None:
    assert pair_rows([(2, None)], [(2.0, None)], 9)[1] == 1
    assert pair_rows([(math.nan,)], [(math.nan,)], 9)[1] == 1
    assert pair_rows([("2",)], [(2,)], 9)[1] == 0


def test_number_of_pairs_is_limited_with_differences_first() -> None:
    pairs, equal = pair_rows([(i,) for i in range(50)], [(i,) for i in range(1, 51)], 3)
    assert equal == 49
    assert [pair.row for pair in pairs] == [(0,), (1,), (2,)]
    assert pairs[0].gold == (50,)
    assert pair_rows([], [], 3) == ([], 0)
