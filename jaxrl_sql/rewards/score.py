"""From completions to rewards: extract, run, compare, pay.

`submit_texts` hands finished completions to the executor and returns at once, while others still decode; `collect`
waits for the verdicts and turns them into rewards. A completion without SQL is settled without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxrl_sql.rewards.extract import Extract
from jaxrl_sql.sqlenv.executor import score_rows
from jaxrl_sql.sqlenv.ports import NO_SQL, ScoreRow, SqlExecutor, SqlJob
from jaxrl_sql.types import Example, Reward

RewardRule = Callable[[ScoreRow], Reward]

# Bounds that depend on the machine's load or on who gave up, not on the query.
_CLOCK_STOPS = frozenset({"wall", "cpu", "cancelled"})


class Scored(NamedTuple):
    """A completion's reward, its SQL (None: it had none), the statuses by name, and what stopped it, if anything."""

    reward: Reward
    sql: str | None
    status: str
    gold_status: str
    stop: str = ""

    @property
    def gold_ok(self) -> bool:
        """Return whether the gold ran; when it did not, the reward says nothing."""
        return self.gold_status == "ok"

    @property
    def trusted(self) -> bool:
        """Return whether the reward may be learned from: the gold ran, and no clock had a say. Else weigh it 0."""
        return self.gold_ok and self.stop not in _CLOCK_STOPS


class TextJob(NamedTuple):
    """Completions on their way through the executor; `job` is None when none of them had SQL.

    `requests` holds (database, SQL, gold) of those that had some, in order.
    """

    executor: SqlExecutor
    sqls: tuple[str | None, ...]
    requests: tuple[tuple[str, str, str], ...]
    rules: tuple[str, ...]
    job: SqlJob | None

    def done(self) -> bool:
        """Return whether `collect` would not wait."""
        return self.job is None or self.job.done()

    def cancel(self) -> None:
        """Give up what has not run yet."""
        if self.job is not None:
            self.job.cancel()


def submit_texts(
    executor: SqlExecutor,
    examples: Sequence[Example],
    texts: Sequence[str],
    extract: Extract,
    rules: Sequence[str] = ("bird",),
) -> TextJob:
    """Extract the SQL of each completion and begin to score it; `examples[i]` is the question of `texts[i]`."""
    sqls = tuple(extract(text) for text in texts)
    requests = tuple(
        (example.db_path, sql, example.gold_sql) for example, sql in zip(examples, sqls, strict=True) if sql is not None
    )
    job = None
    if requests:
        db_paths, pred_sqls, golds = zip(*requests, strict=True)
        job = executor.submit_score(db_paths, pred_sqls, golds, rules=tuple(rules))
    return TextJob(executor, sqls, requests, tuple(rules), job)


def collect(job: TextJob, reward: RewardRule) -> list[Scored]:
    """Wait for a job and pay each completion, in the order in which they were submitted.

    A run that only the wall clock stopped is tried once more by itself: a verdict should not depend on the load.
    """
    rows = [] if job.job is None else score_rows(job.job.result(), job.rules)
    ran = iter([_again(job, i) if row.stop == "wall" else row for i, row in enumerate(rows)])
    scored = []
    for sql in job.sqls:
        row = NO_SQL if sql is None else next(ran)
        scored.append(Scored(reward(row), sql, row.pred_status, row.gold_status, row.stop))
    return scored


def _again(job: TextJob, index: int) -> ScoreRow:
    db_path, sql, gold = job.requests[index]
    return score_rows(job.executor.score_many([db_path], [sql], [gold], rules=job.rules), job.rules)[0]


def score_texts(
    executor: SqlExecutor,
    examples: Sequence[Example],
    texts: Sequence[str],
    extract: Extract,
    reward: RewardRule,
    rules: Sequence[str] = ("bird",),
) -> list[Reward]:
    """Score completions and wait: `submit_texts` and `collect` in one, rewards alone."""
    return [scored.reward for scored in collect(submit_texts(executor, examples, texts, extract, rules), reward)]
