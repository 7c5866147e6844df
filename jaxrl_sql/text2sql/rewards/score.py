"""From responses to rewards: parse, execute, compare, reward.

`submit_texts` submits finished responses to the executor and returns immediately, while others still decode. `collect`
waits for the verdicts and computes the rewards. A response without SQL needs no execution.

Terms: a *gold* is a question's correct query (or result). A *rule* is a comparison of the answer's result with the
gold's, such as `bird` (rows compared as sets). A *verdict* is an outcome that the SQL itself caused, in contrast to an
unreachable server or a killed worker process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_sql.text2sql.env.dialect import runnable_sql
from jaxrl_sql.text2sql.env.executor import score_rows
from jaxrl_sql.text2sql.env.ports import NO_SQL, NOT_TRANSLATED, ScoreRow, SqlExecutor, SqlJob
from jaxrl_sql.text2sql.env.verdicts import LOST_GOLDS, is_trusted, is_verdict, raise_if_unreachable
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, Read
from jaxrl_sql.types import Example, Golds, InputError, Response, Reward, response_text

RewardRule = Callable[[ParsedResponse, ScoreRow], Reward]
"""A recipe's reward: a function of the parsed response and of its statuses and scores."""

# The rule of Spider's test suites (several databases of one schema): a query must be right on all of them.
_SUITE_RULE = "test_suite"


class ScoredResponse(NamedTuple):
    """A response's reward, its SQL (None: no SQL), and the outcome of its execution.

    `status` and `gold_status` are `ok` or the name of the failure, of the response's SQL and of the gold. `stop` is the
    limit that stopped the SQL, such as `wall` (see `ScoreRow`), or "". `well_formed` is True if the format is right.
    """

    reward: Reward
    sql: str | None
    status: str
    gold_status: str
    stop: str = ""
    well_formed: bool = True

    @property
    def gold_ok(self) -> bool:
        """Return whether the gold ran; otherwise nothing was compared, and the reward is meaningless."""
        return self.gold_status == "ok"

    @property
    def is_right(self) -> bool | None:
        """Return whether the result is the gold's; None if the gold failed or the reward has no part `correct`."""
        return self.reward.parts["correct"] >= 1 if self.gold_ok and "correct" in self.reward.parts else None

    @property
    def trusted(self) -> bool:
        """Return whether the reward is valid for training: the gold ran, and the outcome depends only on the text.

        The outcome also depends on the machine if a time limit stopped the SQL, the database failed (`db_error`), the
        execution was cancelled, or its worker process was killed. The update gives untrusted rewards the weight 0.
        """
        return self.gold_ok and is_trusted(self.status, self.stop)


class Answer(NamedTuple):
    """The argument of a caller's reward function: an answer's text, its SQL (None: no SQL), and its question.

    The text of a dialogue includes the observations. `status` is the status of the SQL (`ok`, `no_sql`,
    `syntax_error`, …), and `reward` the recipe's reward.
    """

    text: str
    sql: str | None
    example: Example
    status: str
    reward: Reward


RewardFunction = Callable[[Answer], float | Reward]
"""Returns the reward that replaces the recipe's; to add to it, return `answer.reward.total` plus a term."""


class _Request(NamedTuple):
    """SQL to execute and compare with the gold, on one database or on all databases of a suite."""

    db_path: str | list[str]
    sql: str
    gold: Golds


class TextJob(NamedTuple):
    """Responses to `examples` that are being scored; `job` is None if no response needs execution.

    `fixed_rows[i]` is the outcome of response i if it needs no execution, else None. `requests` has the SQL of the
    other responses, in order. `rules` and `options` are those of the comparison.
    """

    executor: SqlExecutor
    examples: tuple[Example, ...]
    responses: tuple[Response, ...]
    parsed_responses: tuple[ParsedResponse, ...]
    fixed_rows: tuple[ScoreRow | None, ...]
    requests: tuple[_Request, ...]
    rules: tuple[str, ...]
    options: dict[str, Any] | None
    job: SqlJob | None

    def done(self) -> bool:
        """Return whether `collect` would not wait."""
        return self.job is None or self.job.done()

    def cancel(self) -> None:
        """Cancel pending executions."""
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
    """Parse each response and submit its SQL for scoring; `examples[i]` is the question of `responses[i]`.

    `read` is the parser. The results are compared by each of the `rules`, with `options` such as `strip_distinct`. Any
    of several golds may match. The rule `test_suite` requires a match on every database of the example's `suite`. SQL
    of another dialect is translated to the database's first; SQL without a translation is a `syntax_error` and is not
    executed.
    """
    parsed_responses = tuple(read(response) for response in responses)
    fixed_rows: list[ScoreRow | None] = []
    requests: list[_Request] = []
    for example, parsed in zip(examples, parsed_responses, strict=True):
        sql = None if parsed.sql is None else runnable_sql(parsed.sql, example)
        if sql is None:
            fixed_rows.append(NO_SQL if parsed.sql is None else NOT_TRANSLATED)
            continue
        fixed_rows.append(None)
        requests.append(_Request(_databases(example, rules), sql, example.golds))
    comparison = dict(options) if options else None
    job = None
    if requests:
        db_paths, pred_sqls, golds = zip(*requests, strict=True)
        job = executor.submit_score(db_paths, pred_sqls, golds, rules=tuple(rules), options=comparison)
    return TextJob(
        executor,
        tuple(examples),
        tuple(responses),
        parsed_responses,
        tuple(fixed_rows),
        tuple(requests),
        tuple(rules),
        comparison,
        job,
    )


def _databases(example: Example, rules: Sequence[str]) -> str | list[str]:
    """Return the database to execute on, or for the rule `test_suite` all of its variants."""
    return [*example.suite] if example.suite and _SUITE_RULE in rules else example.database


def collect(job: TextJob, reward: RewardRule, function: RewardFunction | None = None) -> list[ScoredResponse]:
    """Wait for a job and return the scored responses in order of submission.

    `reward` is the recipe's. A caller's reward `function` receives its result and replaces it.

    An execution that hit the wall-clock limit is retried once, alone, since verdicts should not depend on the load. An
    execution without a verdict is retried, too; if it has none again, its reward is 0. Raises InputError if a server is
    unreachable, and if a function's reward is not a finite number.
    """
    rows = [] if job.job is None else score_rows(job.job.result(), job.rules)
    _raise_if_unreachable(job, rows)
    rows = [_retry(job, i) if _needs_retry(row) else row for i, row in enumerate(rows)]
    _raise_if_unreachable(job, rows)
    executed_rows = iter(rows)
    scored = []
    for i, (parsed, fixed_row) in enumerate(zip(job.parsed_responses, job.fixed_rows, strict=True)):
        row = next(executed_rows) if fixed_row is None else fixed_row
        result = reward(parsed, row)
        if function is not None:
            text = response_text(job.responses[i])
            result = apply_reward_function(function, Answer(text, parsed.sql, job.examples[i], row.pred_status, result))
        if not is_verdict(row.pred_status, row.stop):
            result = Reward(0.0, dict.fromkeys(result.parts, 0.0))
        scored.append(
            ScoredResponse(result, parsed.sql, row.pred_status, row.gold_status, row.stop, parsed.well_formed)
        )
    return scored


def apply_reward_function(function: RewardFunction, answer: Answer) -> Reward:
    """Return a function's reward for an answer.

    If the function returns a number, the result also has the parts of the recipe's reward, and its total as the part
    `recipe`. Raises InputError for a reward that is not a finite number.
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
        raise InputError(f"reward: {value.total!r} for an answer to {answer.example.uid} is not a finite number")
    return Reward(total, value.parts)


def _raise_if_unreachable(job: TextJob, rows: Sequence[ScoreRow]) -> None:
    """Raise InputError if an execution failed with a `db_error` because its server does not answer."""
    failed = [i for i, row in enumerate(rows) if "db_error" in (row.pred_status, row.gold_status)]
    raise_if_unreachable(job.executor, [job.requests[i].db_path for i in failed])


def _needs_retry(row: ScoreRow) -> bool:
    """Return whether the wall-clock limit stopped the SQL, or the SQL or its gold has no verdict."""
    is_lost = row.gold_status in LOST_GOLDS or not is_verdict(row.pred_status, row.stop)
    return row.stop == "wall" or is_lost


def _retry(job: TextJob, index: int) -> ScoreRow:
    db_path, sql, gold = job.requests[index]
    columns = job.executor.score_many([db_path], [sql], [gold], rules=job.rules, options=job.options)
    return score_rows(columns, job.rules)[0]
