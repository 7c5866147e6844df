"""Execution accuracy: the share of questions whose SQL returns what the gold returns, by BIRD's comparison.

The one number that training and its commands look at; `judge` and `summary` have the others.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxrl_sql.evals.score_predictions import judge
from jaxrl_sql.sqlenv.ports import SqlExecutor
from jaxrl_sql.types import Example

_RULE = "bird"


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """One question's verdict; `sql` is None when the model gave none."""

    uid: str
    sql: str | None
    status: str
    gold_status: str
    correct: bool


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share that keeps its counts."""

    correct: int
    count: int

    @property
    def share(self) -> float:
        """Return correct / count, 0 when nothing was counted."""
        return self.correct / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class ExecutionSummary:
    """The numbers of an evaluation.

    A question whose gold fails counts as wrong in `overall` (the set is what it is) and is also counted in
    `gold_failures`. `valid` is how many predictions ran; `statuses` counts predictions by status.
    """

    overall: Accuracy
    valid: int
    gold_failures: int
    statuses: Mapping[str, int]
    by_difficulty: Mapping[str, Accuracy]

    def with_unasked(self, count: int) -> ExecutionSummary:
        """Count questions that could not be asked (their prompt is too long) as wrong ones, of status `not_asked`."""
        if not count:
            return self
        overall = Accuracy(self.overall.correct, self.overall.count + count)
        return dataclasses.replace(self, overall=overall, statuses={**self.statuses, "not_asked": count})

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name, for a metrics file."""
        count = self.overall.count
        numbers = {
            "accuracy": self.overall.share,
            "correct": float(self.overall.correct),
            "count": float(count),
            "valid": self.valid / count if count else 0.0,
            "gold_failures": float(self.gold_failures),
        }
        numbers |= {f"status/{name}": float(n) for name, n in self.statuses.items()}
        for name, accuracy in self.by_difficulty.items():
            numbers[f"accuracy/{name}"] = accuracy.share
            numbers[f"count/{name}"] = float(accuracy.count)
        return numbers


def execution_accuracy(
    executor: SqlExecutor, examples: Sequence[Example], sqls: Sequence[str | None]
) -> tuple[ExecutionSummary, list[ExecutionRecord]]:
    """Score `sqls[i]` against the gold of `examples[i]`; return the summary and a record a question, in order."""
    verdicts = judge(executor, examples, sqls, (_RULE,))
    records = [ExecutionRecord(one.uid, one.sql, one.status, one.gold_status, one.is_right(_RULE)) for one in verdicts]
    return summarize(examples, records), records


def summarize(examples: Sequence[Example], records: Sequence[ExecutionRecord]) -> ExecutionSummary:
    """Count records; difficulties appear in the order in which they first occur."""
    correct: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for example, record in zip(examples, records, strict=True):
        if example.difficulty:
            count[example.difficulty] += 1
            correct[example.difficulty] += record.correct
    return ExecutionSummary(
        overall=Accuracy(sum(record.correct for record in records), len(records)),
        valid=sum(record.status == "ok" for record in records),
        gold_failures=sum(record.gold_status != "ok" for record in records),
        statuses=dict(Counter(record.status for record in records)),
        by_difficulty={name: Accuracy(correct[name], count[name]) for name in count},
    )
