"""Compare predictions with golds in the executor and return the results as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_sql.runtime.progress import ProgressCallback, Tally, no_progress
from jaxrl_sql.text2sql.env.executor import score_rows
from jaxrl_sql.text2sql.env.ports import ScoreRow, SqlExecutor, SqlJob
from jaxrl_sql.text2sql.env.verdicts import LOST_GOLDS, is_verdict, raise_if_unreachable
from jaxrl_sql.types import Example, Fields, Golds, InputError

# PaVeRL-SQL's evaluation lets row counts differ by 30 and drops duplicates if more rows remain. Its reward, the
# executor's default, lets them differ by 5 and drops no duplicates.
EVALUATION: Fields = {"row_slack": 30, "drop_duplicates": True}

# Comparisons per batch: the results of a batch stay in memory until the batch is compared.
CHUNK = 1024
# Comparisons per job of the executor, after each of which progress is reported.
PIECE = 32


class Comparison(NamedTuple):
    """A comparison of a prediction in SQLite's dialect (None: no SQL) on one database, or on each of several."""

    databases: str | list[str]
    sql: str | None
    golds: Golds
    options: Fields


class ComparisonResult(NamedTuple):
    """The result of a comparison; times are in milliseconds."""

    row: ScoreRow
    pred_rows: int
    gold_rows: int
    pred_ms: float
    gold_ms: float


def comparison_of(example: Example, sql: str | None, options: Fields | None = None) -> Comparison:
    """Return the comparison on the question's database; the question's options override `options`."""
    return Comparison(example.database, sql, example.golds, {**EVALUATION, **(options or {}), **example.options})


def compare(
    executor: SqlExecutor,
    items: Sequence[Comparison],
    rules: Sequence[str],
    on_progress: ProgressCallback = no_progress,
) -> list[ComparisonResult]:
    """Run the comparisons and retry items that hit the time limit once alone, so verdicts do not depend on the load.

    Items without a verdict are retried, too. Equal items share one retry, and so do items whose common gold times out.
    `on_progress` is called with the number of items compared. Raises InputError for an unknown option or an unreachable
    server.
    """
    answers: list[ComparisonResult] = []
    done = Tally(on_progress)
    for start in range(0, len(items), CHUNK):
        answers += _compare(executor, items[start : start + CHUNK], rules, done.add)
    _raise_if_unreachable(executor, items, answers)
    again: dict[Any, ComparisonResult] = {}
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
    _raise_if_unreachable(executor, items, answers)
    return answers


def _raise_if_unreachable(
    executor: SqlExecutor, items: Sequence[Comparison], answers: Sequence[ComparisonResult]
) -> None:
    pairs = zip(items, answers, strict=True)
    raise_if_unreachable(executor, [item.databases for item, answer in pairs if "db_error" in answer.row[:2]])


def _compare(
    executor: SqlExecutor, items: Sequence[Comparison], rules: Sequence[str], on_done: ProgressCallback = no_progress
) -> list[ComparisonResult]:
    """Run the comparisons concurrently; `on_done` is called with the number of items of each finished piece."""
    try:
        jobs = [_submit(executor, items[start : start + PIECE], rules) for start in range(0, len(items), PIECE)]
    except ValueError as error:
        raise InputError(f"comparison: {error}") from error
    results: list[ComparisonResult] = []
    for job in jobs:
        columns = job.result()
        numbers = (columns[name].tolist() for name in ("pred_rows", "gold_rows", "pred_ms", "gold_ms"))
        piece = [ComparisonResult(*values) for values in zip(score_rows(columns, rules), *numbers, strict=True)]
        on_done(len(piece))
        results += piece
    return results


def _submit(executor: SqlExecutor, items: Sequence[Comparison], rules: Sequence[str]) -> SqlJob:
    databases, sqls, golds, options = zip(*items, strict=True)
    return executor.submit_score(
        databases, sqls, golds, rules=tuple(rules), options=[dict(option) for option in options]
    )
