"""How predictions and golds are put to the executor, and what it says as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_sql.text2sql.env.executor import score_rows
from jaxrl_sql.text2sql.env.ports import ScoreRow, SqlExecutor
from jaxrl_sql.text2sql.env.verdicts import LOST_GOLDS, is_verdict, stop_if_away
from jaxrl_sql.types import Example, Fields, Golds, InputError

# PaVeRL-SQL's evaluation lets row counts differ by 30 and drops duplicates where too many rows are left; its reward,
# which is the executor's default, lets them differ by 5 and drops none.
EVALUATION: Fields = {"row_slack": 30, "drop_duplicates": True}

# A batch is what may be in flight at once: the results of its predictions are held until it is compared.
CHUNK = 1024


class Asked(NamedTuple):
    """One comparison: a prediction in SQLite's dialect (None: there is none) on a database, or on all of several."""

    databases: str | list[str]
    sql: str | None
    golds: Golds
    options: Fields


class Answer(NamedTuple):
    """What came of it; times in milliseconds."""

    row: ScoreRow
    pred_rows: int
    gold_rows: int
    pred_ms: float
    gold_ms: float


def asked(example: Example, sql: str | None, options: Fields | None = None) -> Asked:
    """Return the comparison on a question's own database; its own options come before those that are given."""
    return Asked(example.database, sql, example.golds, {**EVALUATION, **(options or {}), **example.options})


def compare(executor: SqlExecutor, items: Sequence[Asked], rules: Sequence[str]) -> list[Answer]:
    """Run and compare; what the clock stopped is tried once more by itself: a verdict should not depend on the load.

    An item without a verdict is retried, too. Equal items share one retry, and so do items with the same gold. Raises
    InputError for an unknown option, and if a server cannot be reached.
    """
    answers: list[Answer] = []
    for start in range(0, len(items), CHUNK):
        answers += _compare(executor, items[start : start + CHUNK], rules)
    _stop_if_away(executor, items, answers)
    again: dict[Any, Answer] = {}
    endless: set[Any] = set()
    for i, (item, answer) in enumerate(zip(items, answers, strict=True)):
        is_stuck = answer.row.gold_status == "timeout"
        gold = (str(item.databases), str(item.golds)) if is_stuck else None
        is_lost = answer.row.gold_status in LOST_GOLDS or not is_verdict(answer.row.pred_status, answer.row.stop)
        if gold in endless or not (is_stuck or is_lost or answer.row.stop == "wall"):
            continue
        key = (str(item.databases), item.sql, str(item.golds), str(item.options))
        if key not in again:
            again[key] = _compare(executor, [item], rules)[0]
        answers[i] = again[key]
        if again[key].row.gold_status == "timeout":
            endless.add(gold)
    _stop_if_away(executor, items, answers)
    return answers


def _stop_if_away(executor: SqlExecutor, items: Sequence[Asked], answers: Sequence[Answer]) -> None:
    pairs = zip(items, answers, strict=True)
    stop_if_away(executor, [item.databases for item, answer in pairs if "db_error" in answer.row[:2]])


def _compare(executor: SqlExecutor, items: Sequence[Asked], rules: Sequence[str]) -> list[Answer]:
    if not items:
        return []
    databases, sqls, golds, options = zip(*items, strict=True)
    chosen = [dict(option) for option in options]
    try:
        columns = executor.score_many(databases, sqls, golds, rules=tuple(rules), options=chosen)
    except ValueError as error:
        raise InputError(f"comparison: {error}") from error
    numbers = (columns[name].tolist() for name in ("pred_rows", "gold_rows", "pred_ms", "gold_ms"))
    return [Answer(*one) for one in zip(score_rows(columns, rules), *numbers, strict=True)]
