"""Answers judged by every rule for a page: their verdicts, and their rows beside the gold's, each distinct SQL once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sqlglot import exp

from jaxrl_sql.report.groups import Group
from jaxrl_sql.text2sql.env.address import open_url
from jaxrl_sql.text2sql.env.dialect import SQLGLOT, as_run
from jaxrl_sql.text2sql.env.executor import ExecutorError
from jaxrl_sql.text2sql.env.parse import parse_query
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.evals.differences import EXACT
from jaxrl_sql.text2sql.evals.records import result_of, shown_row
from jaxrl_sql.text2sql.evals.row_pairs import pair_rows
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import DIALECTS, Example, Fields, InputError, Record

ROWS = 12
# Of longer results pairs would take long to find, and few would look.
_PAIRED = 5_000
_AT_ONCE = 256

Key = tuple[str, str, str]


class Asked(NamedTuple):
    """An answer to be judged."""

    example: Example
    sql: str

    @property
    def key(self) -> Key:
        """Return what is judged once."""
        return (self.example.db_id, self.example.uid, self.sql)


class Judge:
    """Judges distinct answers on the run's databases, and keeps the verdicts: a folder that grows judges what is new.

    `most` bounds how many are judged in all, `seconds` how long a call of `judge` may take.
    """

    def __init__(self, executor: SqlExecutor, most: int, seconds: float) -> None:
        self._executor, self._most, self._most_seconds = executor, most, seconds
        self._verdicts: dict[Key, Record] = {}
        self._missing: dict[str, str] = {}
        self.asked, self.seconds = 0, 0.0

    @property
    def judged(self) -> int:
        """Return how many distinct answers have a verdict."""
        return len(self._verdicts)

    @property
    def missing(self) -> list[str]:
        """Return what is said of databases on which nothing can be run."""
        return [reason for reason in self._missing.values() if reason]

    def judge(self, asked: Iterable[Asked]) -> None:
        """Judge what is asked for, the first first, as far as the bounds go."""
        began = time.monotonic()
        distinct = {one.key: one for one in asked}
        self.asked = len(distinct)
        left = [one for key, one in distinct.items() if key not in self._verdicts and self._is_here(one.example)]
        left = left[: max(0, self._most - self.judged)]
        for start in range(0, len(left), _AT_ONCE):
            if time.monotonic() - began > self._most_seconds:
                break
            self._judge(left[start : start + _AT_ONCE])
        self.seconds += time.monotonic() - began

    def known(self, asked: Iterable[Asked]) -> int:
        """Return how many of what is asked for have a verdict."""
        return sum(one.key in self._verdicts for one in asked)

    def attach(self, groups: Iterable[Group]) -> None:
        """Put verdicts beside the answers that have one; of a database that is not there, that it is not."""
        for group in groups:
            example = group["example"]
            if example is None:
                continue
            for answer in group["answers"]:
                verdict = self._verdicts.get((example.db_id, example.uid, answer["sql"] or ""))
                if verdict is not None:
                    answer["verdict"] = verdict
                elif answer["sql"] and (reason := self._missing.get(example.database)):
                    answer["verdict"] = {"fault": f"not judged: {reason}"}

    def _is_here(self, example: Example) -> bool:
        if example.database not in self._missing:
            self._missing[example.database] = self._why_missing(example)
        return not self._missing[example.database]

    def _why_missing(self, example: Example) -> str:
        """Return why nothing can be run on a question's database; "" where it can. Where a server is, is not said."""
        if not example.engine_url:
            return "" if Path(example.db_path).is_file() else f"{example.db_path} is not there"
        try:
            (outcome,) = self._executor.execute_many([(opened(example).database, "SELECT 1")])
        except ExecutorError:
            return _unreachable(example)
        return "" if outcome.status == "ok" else _unreachable(example)

    def _judge(self, asked: Sequence[Asked]) -> None:
        examples, sqls = [opened(one.example) for one in asked], [one.sql for one in asked]
        rules = [*EXACT, *(["suite"] if any(one.suite for one in examples) else [])]
        try:
            verdicts = score_predictions(self._executor, examples, sqls, rules)
        except InputError:  # a server has gone meanwhile
            by_database = {answer.example.database: answer.example for answer in asked}
            self._missing |= {name: self._why_missing(example) for name, example in by_database.items()}
            reachable = [answer for answer in asked if self._is_here(answer.example)]
            if len(reachable) == len(asked):
                raise
            if reachable:
                self._judge(reachable)
            return
        run = [(one.database, as_run(sql, one) or "") for one, sql in zip(examples, sqls, strict=True)]
        outcomes = self._executor.execute_many([*run, *((one.database, one.gold_sql) for one in examples)])
        for one, verdict, mine, gold in zip(
            asked, verdicts, outcomes[: len(asked)], outcomes[len(asked) :], strict=True
        ):
            if one.example.engine_url and gold.status == "db_error":  # the server has gone meanwhile
                self._missing[one.example.database] = _unreachable(one.example)
                continue
            self._verdicts[one.key] = shown_verdict(verdict, one.sql, one.example.gold_dialect, mine, gold)


def asked_of(groups: Iterable[Group]) -> list[Asked]:
    """Return the answers of groups that can be judged, those that ran first."""
    found = [
        (answer["status"] != "ok", Asked(group["example"], answer["sql"]))
        for group in groups
        if group["example"] is not None
        for answer in group["answers"]
        if answer["sql"]
    ]
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _unreachable(example: Example) -> str:
    return f"{example.db_id} of {DIALECTS[example.dialect]} cannot be reached"


def opened(example: Example) -> Example:
    """Return a question whose server's URL has the password of the environment, which no file holds."""
    return replace(example, engine_url=open_url(example.engine_url)) if example.engine_url else example


def shown_verdict(verdict: Verdict, sql: str, dialect: str, mine: SqlOutcome, gold: SqlOutcome) -> Record:
    """Return a verdict, on SQL of a dialect, with the rows that it is about."""
    found: Record = {"scores": dict(verdict.scores), "reasons": list(verdict.reasons)}
    found["results"] = side_by_side(mine, gold)
    if verdict.is_right("bird") and reads_no_table(sql, dialect):
        found["constant"] = True
    return found


def side_by_side(mine: SqlOutcome, gold: SqlOutcome) -> Fields:
    """Return both results, and where both have rows that are not too many, rows in pairs, those that differ first."""
    results: Record = {"prediction": result_of(mine), "gold": result_of(gold)}
    if mine.status == gold.status == "ok" and max(mine.row_count, gold.row_count) <= _PAIRED:
        pairs, equal = pair_rows(mine.rows, gold.rows, ROWS)
        results["pairs"] = [[_row(one.row), _row(one.gold), one.differs] for one in pairs]
        results["equal"] = equal
        for side in ("prediction", "gold"):
            results[side] = {**results[side], "rows": []}  # they stand in the pairs
    return results


def reads_no_table(sql: str, dialect: str = "sqlite") -> bool:
    """Return whether a query's result is written in it: it reads no table. What does not parse reads one."""
    tree = parse_query(sql, SQLGLOT.get(dialect, dialect))
    return tree is not None and tree.find(exp.Table) is None


def _row(row: Sequence[Any] | None) -> list[Any] | None:
    return None if row is None else shown_row(row)
