"""From responses to rewards: read, run, compare, pay.

`submit_texts` hands finished responses to the executor and returns at once, while others still decode; `collect`
waits for the verdicts and turns them into rewards. A response without SQL is settled without running anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_sql.text2sql.env.dialect import as_run
from jaxrl_sql.text2sql.env.executor import score_rows
from jaxrl_sql.text2sql.env.ports import NO_SQL, NOT_TRANSLATED, ScoreRow, SqlExecutor, SqlJob
from jaxrl_sql.text2sql.env.verdicts import LOST_GOLDS, is_trusted, is_verdict, stop_if_away
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, Read
from jaxrl_sql.types import Example, Golds, InputError, Response, Reward, whole_text

RewardRule = Callable[[ParsedResponse, ScoreRow], Reward]

# Of Spider's test suites: variants of a database, and a query is right where all of them agree.
_SUITE_RULE = "test_suite"


class ScoredResponse(NamedTuple):
    """A response's reward, its SQL (None: it had none), the statuses by name, and what stopped it, if anything."""

    reward: Reward
    sql: str | None
    status: str
    gold_status: str
    stop: str = ""
    well_formed: bool = True

    @property
    def gold_ok(self) -> bool:
        """Return whether the gold ran; when it did not, the reward says nothing."""
        return self.gold_status == "ok"

    @property
    def trusted(self) -> bool:
        """Return whether the reward may be learned from: the gold ran, and the outcome is the text's alone.

        It is not where a clock decided, the database failed (`db_error`), the run was cancelled, or somebody killed its
        worker process. Otherwise weigh it 0.
        """
        return self.gold_ok and is_trusted(self.status, self.stop)


class Answer(NamedTuple):
    """An answer as a caller's reward function reads it: its text, its SQL (None: it has none), and its question.

    The text of a dialogue holds the observations too. `status` is how the SQL ended (`ok`, `no_sql`, `syntax_error`,
    …), and `reward` the recipe's reward.
    """

    text: str
    sql: str | None
    example: Example
    status: str
    reward: Reward


RewardFunction = Callable[[Answer], float | Reward]
"""Returns the reward that replaces the recipe's; to add to that, it returns `answer.reward.total` plus its own part."""


class _Request(NamedTuple):
    db_path: str | list[str]
    sql: str
    gold: Golds


class TextJob(NamedTuple):
    """Responses to `examples` on their way through the executor; `job` is None when there was nothing to run.

    `settled[i]` is the verdict of a response that needs no run, None of the others, whose `requests` stand in order.
    """

    executor: SqlExecutor
    examples: tuple[Example, ...]
    responses: tuple[Response, ...]
    readings: tuple[ParsedResponse, ...]
    settled: tuple[ScoreRow | None, ...]
    requests: tuple[_Request, ...]
    rules: tuple[str, ...]
    options: dict[str, Any] | None
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
    responses: Sequence[Response],
    read: Read,
    rules: Sequence[str] = ("bird",),
    options: Mapping[str, Any] | None = None,
) -> TextJob:
    """Read each response and begin to score its SQL; `examples[i]` is the question of `responses[i]`.

    `options` are the comparison's; of several golds any may match. By the rule `test_suite` every database of the
    example's `suite` has to agree. SQL of another dialect is translated first; what does not parse in it is a
    `syntax_error`, and is not run.
    """
    readings = tuple(read(response) for response in responses)
    settled: list[ScoreRow | None] = []
    requests: list[_Request] = []
    for example, reading in zip(examples, readings, strict=True):
        sql = None if reading.sql is None else as_run(reading.sql, example)
        if sql is None:
            settled.append(NO_SQL if reading.sql is None else NOT_TRANSLATED)
            continue
        settled.append(None)
        requests.append(_Request(_databases(example, rules), sql, example.golds))
    how = dict(options) if options else None
    job = None
    if requests:
        db_paths, pred_sqls, golds = zip(*requests, strict=True)
        job = executor.submit_score(db_paths, pred_sqls, golds, rules=tuple(rules), options=how)
    return TextJob(
        executor,
        tuple(examples),
        tuple(responses),
        readings,
        tuple(settled),
        tuple(requests),
        tuple(rules),
        how,
        job,
    )


def _databases(example: Example, rules: Sequence[str]) -> str | list[str]:
    """Return the database to judge on; by the rule `test_suite` all that the loader found to be variants of it."""
    return [*example.suite] if example.suite and _SUITE_RULE in rules else example.database


def collect(job: TextJob, reward: RewardRule, function: RewardFunction | None = None) -> list[ScoredResponse]:
    """Wait for a job and pay each response, in the order in which they were submitted.

    A caller's reward `function` replaces the rewards of `reward`, which it reads.

    A run that only the wall clock stopped is tried once more by itself: a verdict should not depend on the load. A
    run without a verdict is retried, too, and never rewarded. Raises InputError if a server cannot be reached, and for
    a function's reward that is no finite number.
    """
    rows = [] if job.job is None else score_rows(job.job.result(), job.rules)
    _stop_if_away(job, rows)
    rows = [_again(job, i) if _is_doubtful(row) else row for i, row in enumerate(rows)]
    _stop_if_away(job, rows)
    ran = iter(rows)
    scored = []
    for i, (reading, verdict) in enumerate(zip(job.readings, job.settled, strict=True)):
        row = next(ran) if verdict is None else verdict
        paid = reward(reading, row)
        if function is not None:
            text = whole_text(job.responses[i])
            paid = paid_by(function, Answer(text, reading.sql, job.examples[i], row.pred_status, paid))
        if not is_verdict(row.pred_status, row.stop):
            paid = Reward(0.0, dict.fromkeys(paid.parts, 0.0))
        scored.append(
            ScoredResponse(paid, reading.sql, row.pred_status, row.gold_status, row.stop, reading.well_formed)
        )
    return scored


def paid_by(function: RewardFunction, answer: Answer) -> Reward:
    """Return a function's reward for an answer; of a number the parts are the recipe's, and its total as `recipe`.

    Raises InputError for a reward that is no finite number.
    """
    value = function(answer)
    if not isinstance(value, Reward):
        parts = {**answer.reward.parts, "recipe": answer.reward.total}
        value = Reward(value, parts)
    try:
        total = float(value.total)
    except (TypeError, ValueError):
        total = math.nan
    if not math.isfinite(total):
        raise InputError(f"reward: {value.total!r} for an answer to {answer.example.uid} is no finite number")
    return Reward(total, value.parts)


def _stop_if_away(job: TextJob, rows: Sequence[ScoreRow]) -> None:
    failed = [i for i, row in enumerate(rows) if "db_error" in (row.pred_status, row.gold_status)]
    stop_if_away(job.executor, [job.requests[i].db_path for i in failed])


def _is_doubtful(row: ScoreRow) -> bool:
    is_lost = row.gold_status in LOST_GOLDS or not is_verdict(row.pred_status, row.stop)
    return row.stop == "wall" or is_lost


def _again(job: TextJob, index: int) -> ScoreRow:
    db_path, sql, gold = job.requests[index]
    columns = job.executor.score_many([db_path], [sql], [gold], rules=job.rules, options=job.options)
    return score_rows(columns, job.rules)[0]
