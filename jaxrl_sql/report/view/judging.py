"""Judge answers by every rule for a page: verdicts, and rows paired with the gold's, once per distinct SQL.

A verdict has a score by each rule, and the reasons why rules disagree. The executor runs SQL on the question's
database: a SQLite file, or a server of another engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sqlglot import exp

from jaxrl_sql.report.groups import AnswerGroup
from jaxrl_sql.text2sql.env.address import open_url
from jaxrl_sql.text2sql.env.dialect import SQLGLOT, as_run
from jaxrl_sql.text2sql.env.executor import ExecutorError
from jaxrl_sql.text2sql.env.parse import parse_query
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.evals.differences import EXACT
from jaxrl_sql.text2sql.evals.records import format_row, result_of
from jaxrl_sql.text2sql.evals.row_pairs import pair_rows
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import DIALECTS, Example, Fields, InputError, Record

ROWS = 12
"""Number of pairs of rows that a page shows."""
# Rows of longer results are not paired, because pairing is slow.
_MAX_PAIRED_ROWS = 5_000
# Number of answers that are judged before the time limit is checked.
_BATCH = 256

JudgementKey = tuple[str, str, str]
"""The identity of an answer: database id, question id and SQL."""


class JudgeRequest(NamedTuple):
    """An answer to be judged."""

    example: Example
    sql: str

    @property
    def key(self) -> JudgementKey:
        """Return the identity under which an answer is judged once."""
        return (self.example.db_id, self.example.uid, self.sql)


class Judge:
    """Judge distinct answers on the run's databases, and cache the verdicts.

    `max_answers` limits the total number of judged answers, `seconds` the time of a call of `judge`. `num_requested` is
    the number of distinct answers in the last call, the attribute `seconds` the time of all calls.
    """

    def __init__(self, executor: SqlExecutor, max_answers: int, seconds: float) -> None:
        self._executor, self._max_answers, self._max_seconds = executor, max_answers, seconds
        self._verdicts: dict[JudgementKey, Record] = {}
        self._missing: dict[str, str] = {}
        self.num_requested, self.seconds = 0, 0.0

    @property
    def num_judged(self) -> int:
        """Return the number of distinct answers with a verdict."""
        return len(self._verdicts)

    @property
    def missing(self) -> list[str]:
        """Return the reasons why databases cannot be queried."""
        return [reason for reason in self._missing.values() if reason]

    def judge(self, requests: Iterable[JudgeRequest]) -> None:
        """Judge answers in order, within the limits."""
        start_time = time.monotonic()
        distinct = {request.key: request for request in requests}
        self.num_requested = len(distinct)
        pending = [
            request
            for key, request in distinct.items()
            if key not in self._verdicts and self._is_reachable(request.example)
        ]
        pending = pending[: max(0, self._max_answers - self.num_judged)]
        for start in range(0, len(pending), _BATCH):
            if time.monotonic() - start_time > self._max_seconds:
                break
            self._judge(pending[start : start + _BATCH])
        self.seconds += time.monotonic() - start_time

    def count_judged(self, requests: Iterable[JudgeRequest]) -> int:
        """Return how many of these answers have a verdict."""
        return sum(request.key in self._verdicts for request in requests)

    def attach(self, groups: Iterable[AnswerGroup]) -> None:
        """Add verdicts to answers, or the reason if the database cannot be queried."""
        for group in groups:
            example = group["example"]
            if example is None:
                continue
            for answer in group["answers"]:
                verdict = self._verdicts.get((example.db_id, example.uid, answer["sql"] or ""))
                if verdict is not None:
                    answer["verdict"] = verdict
                elif answer["sql"] and (reason := self._missing.get(example.database)):
                    answer["verdict"] = {"error": f"not judged: {reason}"}

    def _is_reachable(self, example: Example) -> bool:
        if example.database not in self._missing:
            self._missing[example.database] = self._why_missing(example)
        return not self._missing[example.database]

    def _why_missing(self, example: Example) -> str:
        """Return why a question's database cannot be queried, or ""; a server's address is not included."""
        if not example.engine_url:
            return "" if Path(example.db_path).is_file() else f"{example.db_path} is not there"
        try:
            (outcome,) = self._executor.execute_many([(with_password(example).database, "SELECT 1")])
        except ExecutorError:
            return _unreachable(example)
        return "" if outcome.status == "ok" else _unreachable(example)

    def _judge(self, requests: Sequence[JudgeRequest]) -> None:
        examples, sqls = [with_password(request.example) for request in requests], [request.sql for request in requests]
        rules = [*EXACT, *(["suite"] if any(example.suite for example in examples) else [])]
        try:
            verdicts = score_predictions(self._executor, examples, sqls, rules)
        except InputError:  # a server has gone meanwhile
            by_database = {request.example.database: request.example for request in requests}
            self._missing |= {name: self._why_missing(example) for name, example in by_database.items()}
            reachable = [request for request in requests if self._is_reachable(request.example)]
            if len(reachable) == len(requests):
                raise
            if reachable:
                self._judge(reachable)
            return
        pairs = [(example.database, as_run(sql, example) or "") for example, sql in zip(examples, sqls, strict=True)]
        outcomes = self._executor.execute_many(
            [*pairs, *((example.database, example.gold_sql) for example in examples)]
        )
        for request, verdict, outcome, gold in zip(
            requests, verdicts, outcomes[: len(requests)], outcomes[len(requests) :], strict=True
        ):
            if request.example.engine_url and gold.status == "db_error":  # the server has gone meanwhile
                self._missing[request.example.database] = _unreachable(request.example)
                continue
            self._verdicts[request.key] = format_verdict(
                verdict, request.sql, request.example.gold_dialect, outcome, gold
            )


def judge_requests(groups: Iterable[AnswerGroup]) -> list[JudgeRequest]:
    """Return the answers of groups that can be judged; those whose SQL ran come first."""
    requests = [
        (answer["status"] != "ok", JudgeRequest(group["example"], answer["sql"]))
        for group in groups
        if group["example"] is not None
        for answer in group["answers"]
        if answer["sql"]
    ]
    return [request for _, request in sorted(requests, key=lambda pair: pair[0])]


def _unreachable(example: Example) -> str:
    return f"{example.db_id} of {DIALECTS[example.dialect]} cannot be reached"


def with_password(example: Example) -> Example:
    """Return a question with the password from the environment in its server's URL; files have no passwords."""
    return replace(example, engine_url=open_url(example.engine_url)) if example.engine_url else example


def format_verdict(verdict: Verdict, sql: str, dialect: str, outcome: SqlOutcome, gold: SqlOutcome) -> Record:
    """Return a verdict as JSON, with the results of the SQL and of the gold.

    `constant` marks right SQL that reads no table: it does not depend on the data.
    """
    record: Record = {"scores": dict(verdict.scores), "reasons": list(verdict.reasons)}
    record["results"] = side_by_side(outcome, gold)
    if verdict.is_right("bird") and reads_no_table(sql, dialect):
        record["constant"] = True
    return record


def side_by_side(outcome: SqlOutcome, gold: SqlOutcome) -> Fields:
    """Return both results; if they are not too long, with their rows in pairs, differing pairs first.

    A pair is [row, gold's row, indices of differing cells]; a row without a counterpart is paired with None. `equal` is
    the number of equal pairs.
    """
    results: Record = {"prediction": result_of(outcome), "gold": result_of(gold)}
    if outcome.status == gold.status == "ok" and max(outcome.row_count, gold.row_count) <= _MAX_PAIRED_ROWS:
        pairs, equal = pair_rows(outcome.rows, gold.rows, ROWS)
        results["pairs"] = [[_row(pair.row), _row(pair.gold), pair.differs] for pair in pairs]
        results["equal"] = equal
        for side in ("prediction", "gold"):
            results[side] = {**results[side], "rows": []}  # the rows are in the pairs
    return results


def reads_no_table(sql: str, dialect: str = "sqlite") -> bool:
    """Return whether a query reads no table; False if it does not parse."""
    tree = parse_query(sql, SQLGLOT.get(dialect, dialect))
    return tree is not None and tree.find(exp.Table) is None


def _row(row: Sequence[Any] | None) -> list[Any] | None:
    return None if row is None else format_row(row)
