"""Compare predictions with golds (reference queries or results) in the executor, by rules.

A rule decides whether two results are equal: `bird` compares the rows as sets, as BIRD's script does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_sql.runtime.progress import ProgressCallback, Tally, no_progress
from jaxrl_sql.text2sql.env.executor import score_rows
from jaxrl_sql.text2sql.env.ports import ScoreRow, SqlExecutor, SqlJob
from jaxrl_sql.text2sql.env.verdicts import LOST_GOLDS, is_verdict, raise_if_unreachable
from jaxrl_sql.types import Example, Fields, Golds, InputError

# Options of PaVeRL-SQL's evaluation for two rules: `paverl`, its execution match, and `ex_b`, its partial match.
# It lets row counts differ by 30, and drops duplicate rows of a longer prediction. PaVeRL-SQL's reward, the executor's
# default, lets them differ by 5 and drops none.
EVALUATION: Fields = {"row_slack": 30, "drop_duplicates": True}

# Comparisons per batch: the results of a batch stay in memory until the batch is compared.
CHUNK = 1024
# Comparisons per job of the executor, after each of which progress is reported.
PIECE = 32


class Comparison(NamedTuple):
    """A comparison of a prediction with the golds, of which any may match.

    `databases` is a database (a file or a URL), or a list: the prediction must then match on each of them. `sql` is in
    the dialect that runs there (None: no SQL). `options` are those of the rules, such as `row_slack`;
    `score_predictions` (in this package) lists them.
    """

    databases: str | list[str]
    sql: str | None
    golds: Golds
    options: Fields


class ComparisonResult(NamedTuple):
    """The result of a comparison: the score, the number of rows and the wall time in milliseconds of both queries."""

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
    """Run the comparisons concurrently; retry those that hit the time limit once, alone.

    So verdicts do not depend on the load. Items that failed for reasons outside of their SQL are retried, too. Equal
    items share one retry. If a gold times out in its retry, other items with this gold are not retried. `on_progress`
    is called with the number of items compared. Raises InputError for an unknown option or an unreachable server.
    """
    compared: list[ComparisonResult] = []
    done = Tally(on_progress)
    for start in range(0, len(items), CHUNK):
        compared += _compare(executor, items[start : start + CHUNK], rules, done.add)
    _raise_if_unreachable(executor, items, compared)
    retried: dict[Any, ComparisonResult] = {}
    stuck_golds: set[Any] = set()
    for i, (item, answer) in enumerate(zip(items, compared, strict=True)):
        is_stuck = answer.row.gold_status == "timeout"
        gold_key = (str(item.databases), str(item.golds)) if is_stuck else None
        is_lost = answer.row.gold_status in LOST_GOLDS or not is_verdict(answer.row.pred_status, answer.row.stop)
        if gold_key in stuck_golds or not (is_stuck or is_lost or answer.row.stop == "wall"):
            continue
        key = (str(item.databases), item.sql, str(item.golds), str(item.options))
        if key not in retried:
            retried[key] = _compare(executor, [item], rules)[0]
        compared[i] = retried[key]
        if retried[key].row.gold_status == "timeout":
            stuck_golds.add(gold_key)
    _raise_if_unreachable(executor, items, compared)
    return compared


def _raise_if_unreachable(
    executor: SqlExecutor, items: Sequence[Comparison], compared: Sequence[ComparisonResult]
) -> None:
    pairs = zip(items, compared, strict=True)
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
        counts_and_times = (columns[name].tolist() for name in ("pred_rows", "gold_rows", "pred_ms", "gold_ms"))
        piece = [
            ComparisonResult(*values) for values in zip(score_rows(columns, rules), *counts_and_times, strict=True)
        ]
        on_done(len(piece))
        results += piece
    return results


def _submit(executor: SqlExecutor, items: Sequence[Comparison], rules: Sequence[str]) -> SqlJob:
    databases, sqls, golds, options = zip(*items, strict=True)
    return executor.submit_score(
        databases, sqls, golds, rules=tuple(rules), options=[dict(option) for option in options]
    )
