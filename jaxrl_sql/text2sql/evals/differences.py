"""Explain why rules disagree about a prediction, by the reasons in `REASONS`.

A rule compares the rows of a prediction with those of the gold, the reference query: `bird` as sets, `test_suite` as
Spider's script, `refined` with the cells of each row sorted. `docs/reference/rules.md` describes all rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxrl_sql.text2sql.env.dialect import runnable_sql
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.compare import compare, comparison_of
from jaxrl_sql.text2sql.evals.ties import cuts_through_ties
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, Fields

REASONS: Mapping[str, str] = {
    "order": "the rows are in a different order than the gold requires",
    "duplicates": "the same rows with different multiplicities",
    "column_order": "the same columns in a different order",
    "cells": "each row has the same cells in different columns",
    "more_columns": "the gold's result with additional columns",
    "more_rows": "the gold's result with additional rows",
    "first_rows": "equal in the first hundred sorted rows, but not beyond",
    "values": "values that only some rules consider equal: 2 and 2.0, '2', NULL and 0, nearly equal floats",
    "variants": "right on the question's database, wrong on others of its suite",
    "ties": "the gold's LIMIT cuts through tied rows, independent of the prediction",
}
"""Each reason with its description, for a prediction that rules disagree about; `ties` depends on the gold alone."""

# Rules whose value is 0 or 1 and which are compared here. Graded rules have values between 0 and 1.
EXACT = ("bird", "refined", "test_suite", "spider2", "ex_b", "ehrsql")
# The number of sorted rows that `ehrsql` compares.
_FIRST = 100


def with_reasons(
    executor: SqlExecutor,
    examples: Sequence[Example],
    verdicts: Sequence[Verdict],
    options: Fields | None = None,
) -> list[Verdict]:
    """Return the verdicts with reasons; a verdict with a score by each rule of `EXACT` is checked for disagreement.

    If the scores differ, two further comparisons find the reason. They are `test_suite` without regard to the order of
    rows, and `ex_b` without additional columns.
    """
    pairs = list(zip(examples, verdicts, strict=True))
    disputed = [
        i for i, (example, verdict) in enumerate(pairs) if example.answerable and verdict.executes and _differ(verdict)
    ]
    items = [comparison_of(pairs[i][0], runnable_sql(pairs[i][1].sql or "", pairs[i][0]), options) for i in disputed]
    # `ex_b` accepts fewer additional columns than `surplus_columns`: 1 allows none.
    loose_items = [item._replace(options={**item.options, "ordered": False, "surplus_columns": 1}) for item in items]
    answers = compare(executor, loose_items, ("test_suite", "ex_b"))
    reasons = {i: _reasons(verdicts[i], answer.row.scores) for i, answer in zip(disputed, answers, strict=True)}
    has_ties = _ties(executor, examples)
    return [
        dataclasses.replace(
            verdict, reasons=(*reasons.get(i, ()), *_variants(verdict), *(["ties"] if has_ties[i] else []))
        )
        for i, verdict in enumerate(verdicts)
    ]


def _differ(verdict: Verdict) -> bool:
    scores = verdict.scores
    return all(rule in scores for rule in EXACT) and len({scores[rule] for rule in EXACT}) > 1


def _reasons(verdict: Verdict, loose: Mapping[str, float]) -> tuple[str, ...]:
    """Return the reasons, from the scores of the exact rules and of the two further comparisons, `loose`."""
    right_by = {rule: verdict.is_right(rule) for rule in EXACT}
    is_same, has_no_more_columns = loose["test_suite"] == 1.0, loose["ex_b"] == 1.0
    is_long = min(verdict.pred_rows, verdict.gold_rows) >= _FIRST
    reasons = {
        "order": is_same and not right_by["test_suite"],
        "duplicates": right_by["bird"] and not right_by["refined"],
        "column_order": is_same and not right_by["bird"],
        "cells": right_by["refined"] and not is_same and not right_by["bird"],
        "more_columns": right_by["ex_b"] and not has_no_more_columns,
        "more_rows": right_by["ex_b"] and not right_by["bird"] and verdict.pred_rows > verdict.gold_rows,
        "first_rows": right_by["ehrsql"] and is_long and not (right_by["bird"] or right_by["refined"] or is_same),
    }
    return tuple(name for name, is_true in reasons.items() if is_true) or ("values",)


def _variants(verdict: Verdict) -> tuple[str, ...]:
    scores = verdict.scores
    return ("variants",) if scores.get("suite") == 0.0 and scores.get("test_suite") == 1.0 else ()


def _ties(executor: SqlExecutor, examples: Sequence[Example]) -> list[bool]:
    """Return for each question whether a LIMIT of its gold cuts through ties; equal golds are checked once."""

    def gold(example: Example) -> tuple[str, str, str]:
        sql = "" if example.gold_tables or not example.answerable else example.gold_sql
        return example.database, sql, example.gold_dialect

    golds = [gold(example) for example in examples]
    distinct = list(dict.fromkeys(golds))
    cut = dict(zip(distinct, cuts_through_ties(executor, distinct), strict=True))
    return [cut[gold] for gold in golds]
