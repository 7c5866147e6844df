"""A choice among candidates, and what else could have been chosen: the first, the vote's winner, the best there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.pairs import compare_runs
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.summary import summarize
from jaxrl_sql.text2sql.evals.tables import Table
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.evals.vote import ballots, choose
from jaxrl_sql.types import Example, Fields

PARTIAL: Mapping[str, str] = {"ex_b": "EX_b", "paverl": "EX_f"}
"""The rules that choices are judged by beside the set's own, which is EX, and PaVeRL-SQL's names for them."""

WAYS: Mapping[str, str] = {
    "first": "the first candidate", "majority": "vote by result", "chosen": "verbal RL", "best": "the best there is",
}  # fmt: skip
"""The ways to choose, and how a table calls them."""


class Chosen(NamedTuple):
    """What was chosen for a question (None: nothing), and among which candidates, each written `copies` times.

    Without candidates the choice is a query that returns nothing or fails, and there is no other.
    """

    example: Example
    sql: str | None
    candidates: tuple[str, ...] = ()
    copies: tuple[int, ...] = ()


def compare_choices(
    executor: SqlExecutor,
    chosen: Sequence[Chosen],
    own: str = "bird",
    prepare: Callable[[str], str] | None = None,
    surplus_columns: int = 0,
) -> dict[str, float]:
    """Judge each way to choose -> numbers by name, those of what was chosen as `Summary.metrics` names them.

    `own` is the set's own rule, `prepare` what its scorer does to a query; by `ex_b` a result has fewer than
    `surplus_columns` columns beside the gold's (0: any number). Numbers of the other ways have the way before the name
    (`first/bird`, …); `gain/<rule>` is what the choice adds to the
    first candidate, with the bounds `/low` and `/high` of its 95 % interval. In the vote a candidate has a vote for
    each of its copies. `best` takes of each question what is best by each rule, and so needs the golds.
    """
    examples = [one.example for one in chosen]
    rules = (own, *PARTIAL)
    ways = _verdicts(executor, chosen, rules, prepare, {"surplus_columns": surplus_columns or None})
    numbers = summarize(examples, ways["chosen"], own).metrics()
    for way, verdicts in ways.items():
        if way != "chosen":
            found = summarize(examples, verdicts, own).scores
            numbers |= {f"{way}/{rule}": found[rule].mean for rule in rules if rule in found}
    for rule in (rule for rule in rules if rule in numbers):
        gain = compare_runs(examples, ways["first"], ways["chosen"], rule)
        numbers |= {f"gain/{rule}": gain.difference, f"gain/{rule}/low": gain.low, f"gain/{rule}/high": gain.high}
    return numbers


def table(numbers: Mapping[str, float], own: str = "bird") -> Table:
    """Return the ways to choose, one a row, and the accuracy of each by each rule, in percent."""
    names = {own: f"EX ({own})", **PARTIAL}
    rows = []
    for way, words in WAYS.items():
        prefix = "" if way == "chosen" else f"{way}/"
        shares = (numbers.get(f"{prefix}{rule}") for rule in names)
        rows.append((words, *("-" if share is None else f"{100 * share:.1f}" for share in shares)))
    return Table("", ("", *names.values()), tuple(rows))


def _verdicts(
    executor: SqlExecutor,
    chosen: Sequence[Chosen],
    rules: Sequence[str],
    prepare: Callable[[str], str] | None,
    how: Fields,
) -> dict[str, list[Verdict]]:
    """Judge every candidate once, and return by way the verdict of each question."""
    options: list[tuple[str | None, ...]] = [one.candidates or (one.sql,) for one in chosen]
    pairs = [(one.example, sql) for one, sqls in zip(chosen, options, strict=True) for sql in sqls]
    sqls = [prepare(sql) if prepare and sql else sql for _, sql in pairs]
    judged = iter(score_predictions(executor, [example for example, _ in pairs], sqls, rules, options=how))
    verdicts = [[next(judged) for _ in option] for option in options]
    won = [found.index(one.sql) for one, found in zip(chosen, options, strict=True)]
    voted = [
        choose(ballot, [i for i, copies in enumerate(one.copies or (1,)) for _ in range(copies)]).index
        for one, ballot in zip(chosen, ballots(executor, [one.example for one in chosen], options), strict=True)
    ]
    return {
        "chosen": [own[i] for own, i in zip(verdicts, won, strict=True)],
        "first": [verdict[0] for verdict in verdicts],
        "majority": [own[i] for own, i in zip(verdicts, voted, strict=True)],
        "best": [_best(own) for own in verdicts],
    }


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict with the best score of all by each rule."""
    names = dict.fromkeys(rule for verdict in verdicts for rule in verdict.scores)
    return dataclasses.replace(verdicts[0], scores={r: max(one.scores.get(r, 0.0) for one in verdicts) for r in names})
