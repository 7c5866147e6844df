"""Why two rules say different things of one prediction: what a question's verdict hangs on, by `REASONS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxrl_sql.text2sql.env.dialect import as_run
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.compare import asked, compare
from jaxrl_sql.text2sql.evals.ties import cuts_through_ties
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, Fields

REASONS: Mapping[str, str] = {
    "order": "the rows come in another order than the gold asks for",
    "duplicates": "the same rows, but not as often",
    "column_order": "the same columns in another order",
    "cells": "the rows hold the same cells in other columns, row by row",
    "more_columns": "all of the gold, and columns beside it",
    "more_rows": "all of the gold, and rows beside it",
    "first_rows": "the same in the first hundred sorted rows, and not beyond",
    "values": "values that only some rules call equal: 2 and 2.0, '2', NULL and 0, nearly equal floats",
    "variants": "right on the question's database, wrong on others of its suite",
    "ties": "the gold's LIMIT cuts through rows that are equally good, whatever was predicted",
}
"""By reason, what a prediction has that is right by one rule and wrong by another; `ties` is of the gold alone."""

# Rules that say right or wrong of a result; the others grade it.
EXACT = ("bird", "refined", "test_suite", "spider2", "ex_b", "ehrsql")
# The sorted rows that `ehrsql` compares.
_FIRST = 100


def with_reasons(
    executor: SqlExecutor,
    examples: Sequence[Example],
    verdicts: Sequence[Verdict],
    options: Fields | None = None,
) -> list[Verdict]:
    """Return the verdicts with their reasons; where a verdict has a score by each rule of `EXACT`, they are compared.

    Where these differ, a looser comparison is made: the test suite's without order, EX_b without other columns.
    """
    pairs = list(zip(examples, verdicts, strict=True))
    apart = [i for i, (example, pair) in enumerate(pairs) if example.answerable and pair.executes and _differ(pair)]
    items = [asked(pairs[i][0], as_run(pairs[i][1].sql or "", pairs[i][0]), options) for i in apart]
    loosened = [item._replace(options={**item.options, "ordered": False, "surplus_columns": 1}) for item in items]
    answers = compare(executor, loosened, ("test_suite", "ex_b"))
    reasons = {i: _reasons(verdicts[i], answer.row.scores) for i, answer in zip(apart, answers, strict=True)}
    tied = _ties(executor, examples)
    return [
        dataclasses.replace(verdict, reasons=(*reasons.get(i, ()), *_variants(verdict), *(["ties"] if tied[i] else [])))
        for i, verdict in enumerate(verdicts)
    ]


def _differ(verdict: Verdict) -> bool:
    scores = verdict.scores
    return all(rule in scores for rule in EXACT) and len({scores[rule] for rule in EXACT}) > 1


def _reasons(verdict: Verdict, loose: Mapping[str, float]) -> tuple[str, ...]:
    says = {rule: verdict.is_right(rule) for rule in EXACT}
    is_same, has_no_more = loose["test_suite"] == 1.0, loose["ex_b"] == 1.0
    is_long = min(verdict.pred_rows, verdict.gold_rows) >= _FIRST
    found = {
        "order": is_same and not says["test_suite"],
        "duplicates": says["bird"] and not says["refined"],
        "column_order": is_same and not says["bird"],
        "cells": says["refined"] and not is_same and not says["bird"],
        "more_columns": says["ex_b"] and not has_no_more,
        "more_rows": says["ex_b"] and not says["bird"] and verdict.pred_rows > verdict.gold_rows,
        "first_rows": says["ehrsql"] and is_long and not (says["bird"] or says["refined"] or is_same),
    }
    return tuple(name for name, holds in found.items() if holds) or ("values",)


def _variants(verdict: Verdict) -> tuple[str, ...]:
    scores = verdict.scores
    return ("variants",) if scores.get("suite") == 0.0 and scores.get("test_suite") == 1.0 else ()


def _ties(executor: SqlExecutor, examples: Sequence[Example]) -> list[bool]:
    def gold(one: Example) -> tuple[str, str, str]:
        sql = "" if one.gold_tables or not one.answerable else one.gold_sql
        return one.database, sql, one.gold_dialect

    golds = [gold(example) for example in examples]
    distinct = list(dict.fromkeys(golds))
    cut = dict(zip(distinct, cuts_through_ties(executor, distinct), strict=True))
    return [cut[gold] for gold in golds]
