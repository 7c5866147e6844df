"""Compare ways to select one of several candidate queries for a question.

These are a selection from outside (verbal RL, in which a model compares the candidates), the first candidate, the
majority vote, and the best candidate. A gold is a question's reference query; a rule compares results with the gold's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.pairs import compare_runs
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.summary import summarize
from jaxrl_sql.text2sql.evals.tables import ReportTable
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.evals.vote import ballots, choose
from jaxrl_sql.types import Example, Fields

ADDITIONAL_RULES: Mapping[str, str] = {"ex_b": "EX_b", "paverl": "EX_f"}
"""The additional rules that score selections, with the names in the paper of PaVeRL-SQL.

The paper calls the benchmark's own rule EX. EX_b accepts additional columns; EX_f is the share of the gold's cells that
the result has.
"""

SELECTION_METHODS: Mapping[str, str] = {
    "first": "the first candidate", "majority": "vote by result", "chosen": "verbal RL", "best": "best candidate",
}  # fmt: skip
"""The selection methods, with their labels in a table."""


class SelectedQuery(NamedTuple):
    """The SQL selected for a question (None: no SQL), its distinct candidates, and the number of `copies` of each.

    `copies[i]` is the number of answers with the query `candidates[i]`. Candidates are queries that return rows.
    Without any, the selected query is the only one, and it returns no rows or fails.
    """

    example: Example
    sql: str | None
    candidates: tuple[str, ...] = ()
    copies: tuple[int, ...] = ()


def compare_choices(
    executor: SqlExecutor,
    chosen: Sequence[SelectedQuery],
    own_rule: str = "bird",
    prepare: Callable[[str], str] | None = None,
    surplus_columns: int = 0,
) -> dict[str, float]:
    """Score each selection method and return metrics by name.

    Metrics of the selected queries have the names of `Summary.metrics`; those of other methods start with the method
    (`first/bird`, …). `gain/<rule>` is the improvement over the first candidate; `/low` and `/high` bound its 95 %
    interval. `own_rule` is the benchmark's rule, `prepare` its scorer's preprocessing of a query. `ex_b` accepts fewer
    than `surplus_columns` additional columns (0: any number). In the vote, each copy of a candidate counts as a vote.
    `best` takes the highest score per question and rule, which requires the golds.
    """
    examples = [choice.example for choice in chosen]
    rules = (own_rule, *ADDITIONAL_RULES)
    verdicts_by_method = _verdicts(executor, chosen, rules, prepare, {"surplus_columns": surplus_columns or None})
    metrics = summarize(examples, verdicts_by_method["chosen"], own_rule).metrics()
    for method, verdicts in verdicts_by_method.items():
        if method != "chosen":
            scores = summarize(examples, verdicts, own_rule).scores
            metrics |= {f"{method}/{rule}": scores[rule].mean for rule in rules if rule in scores}
    for rule in (rule for rule in rules if rule in metrics):
        gain = compare_runs(examples, verdicts_by_method["first"], verdicts_by_method["chosen"], rule)
        metrics |= {f"gain/{rule}": gain.difference, f"gain/{rule}/low": gain.low, f"gain/{rule}/high": gain.high}
    return metrics


def table(metrics: Mapping[str, float], own_rule: str = "bird") -> ReportTable:
    """Return a table of accuracies in percent, with a row per selection method and a column per rule."""
    names = {own_rule: f"EX ({own_rule})", **ADDITIONAL_RULES}
    rows = []
    for method, label in SELECTION_METHODS.items():
        prefix = "" if method == "chosen" else f"{method}/"
        shares = (metrics.get(f"{prefix}{rule}") for rule in names)
        rows.append((label, *("-" if share is None else f"{100 * share:.1f}" for share in shares)))
    return ReportTable("", ("", *names.values()), tuple(rows))


def _verdicts(
    executor: SqlExecutor,
    chosen: Sequence[SelectedQuery],
    rules: Sequence[str],
    prepare: Callable[[str], str] | None,
    options: Fields,
) -> dict[str, list[Verdict]]:
    """Judge every candidate once and return the verdicts of all questions by selection method."""
    candidates: list[tuple[str | None, ...]] = [choice.candidates or (choice.sql,) for choice in chosen]
    pairs = [(choice.example, sql) for choice, sqls in zip(chosen, candidates, strict=True) for sql in sqls]
    prepared = [prepare(sql) if prepare and sql else sql for _, sql in pairs]
    judged = iter(score_predictions(executor, [example for example, _ in pairs], prepared, rules, options=options))
    verdicts = [[next(judged) for _ in sqls] for sqls in candidates]
    selected = [sqls.index(choice.sql) for choice, sqls in zip(chosen, candidates, strict=True)]
    voted = [
        choose(ballot, [i for i, copies in enumerate(choice.copies or (1,)) for _ in range(copies)]).index
        for choice, ballot in zip(
            chosen, ballots(executor, [choice.example for choice in chosen], candidates), strict=True
        )
    ]
    return {
        "chosen": [by_candidate[i] for by_candidate, i in zip(verdicts, selected, strict=True)],
        "first": [verdict[0] for verdict in verdicts],
        "majority": [by_candidate[i] for by_candidate, i in zip(verdicts, voted, strict=True)],
        "best": [_best(by_candidate) for by_candidate in verdicts],
    }


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the first verdict with the highest score per rule over all verdicts."""
    names = dict.fromkeys(rule for verdict in verdicts for rule in verdict.scores)
    return dataclasses.replace(
        verdicts[0], scores={r: max(verdict.scores.get(r, 0.0) for verdict in verdicts) for r in names}
    )
