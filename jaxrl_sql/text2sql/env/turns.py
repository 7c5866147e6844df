"""Multi-turn environments: the policy's queries get observations, and decoding continues in the same KV cache.

An action is the policy's text in one turn. `next(action)` of an environment returns a pending observation (text that
the policy sees before its next turn), or None once the answer is complete. The rollout engine needs nothing else. It
decodes other answers while an observation is pending.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.text2sql.env.dialect import find_untranslated_part, to_sqlite
from jaxrl_sql.text2sql.env.observe import MAX_ROWS, observe
from jaxrl_sql.text2sql.env.ports import SqlJob, SqlOutcome
from jaxrl_sql.text2sql.env.tags import hide_tags, show_tags
from jaxrl_sql.text2sql.env.verdicts import is_trusted
from jaxrl_sql.types import InputError

SQL_STOPS = ("</sql>", "</solution>")
"""The stop strings of a turn: the end of a query, and of the solution."""
_SQL = re.compile(r"<sql>((?:(?!<sql>).)*?)</sql>\s*$", re.DOTALL)
# The start of a query that returns rows, after comments and blanks.
_SELECT = re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values)\b", re.IGNORECASE | re.DOTALL)
_SOLUTION = "</solution>"
_TAG_NAMES = ("think", "reasoning", "sql", "solution", "observation", "answer")
_TAG = re.compile(rf"<(?=/?(?:{'|'.join(_TAG_NAMES)})>)", re.IGNORECASE)
TAGS = frozenset(f"<{slash}{name}>" for name in _TAG_NAMES for slash in ("", "/"))
"""The tags of a dialogue in recipes and environments."""


class Action(NamedTuple):
    """The policy's text in a turn, and its finish reason: `stop` or `length`."""

    text: str
    finish_reason: str


class PendingObservation(Protocol):
    """The pending text of an observation."""

    def done(self) -> bool:
        """Return whether the text is available."""
        ...

    def result(self) -> str:
        """Wait for the text and return it."""
        ...


class Environment(Protocol):
    """The environment of one answer; `stop` is the time limit or error that invalidated an observation, or "".

    `is_out_of_turns` is True once an answer is complete because its last turn had no solution.
    """

    stop: str
    is_out_of_turns: bool

    def next(self, action: Action) -> PendingObservation | None:
        """Take the policy's action; return the observation, or None once the answer is complete."""
        ...


EnvironmentFactory = Callable[[int, int], Environment]
"""Creates the environment of an answer from the indices of the prompt and the sample."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation that is available immediately."""

    text: str

    def done(self) -> bool:
        """Return True."""
        return True

    def result(self) -> str:
        """Return the text."""
        return self.text


@dataclass(slots=True)
class SqlResult:
    """The observation of a query: its result, and the number of turns left.

    `submit` starts a query and returns its job; `job` is the current one. If a result exceeds the limits, `large` has
    that outcome, and a second query under the same limits reads the first rows. A query runs once more if it hit the
    time limit or failed for reasons outside of its SQL, since observations should not depend on the load. If it fails
    again, `invalidate` receives the reason.
    """

    sql: str
    submit: Callable[[str], SqlJob]
    turns_left: int
    invalidate: Callable[[str], None]
    job: SqlJob = field(init=False)
    large: SqlOutcome | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Submit the query."""
        self.job = self.submit(self.sql)

    def done(self) -> bool:
        """Return whether the query has run, and the one for its first rows, if needed."""
        if self.large is None and self.job.done():
            (outcome,) = self.job.result()
            self._query_first_rows(outcome)
        return self.job.done()

    def result(self) -> str:
        """Wait for the query and return its result as text."""
        if self.large is None:
            outcome = self._outcome(self.sql)
            self._query_first_rows(outcome)
        if self.large is None:
            return wrap(observe(outcome), self.turns_left)
        first = self._outcome(self._first_rows_sql())
        if first.status != "ok":
            return wrap(observe(self.large), self.turns_left)
        return wrap(f"{observe(first)}\n({self.large.error}; the first {MAX_ROWS})", self.turns_left)

    def _outcome(self, sql: str) -> SqlOutcome:
        """Wait for the current job, whose query is `sql`, and return its outcome; run the query again if needed."""
        (outcome,) = self.job.result()
        if not is_trusted(outcome.status, outcome.stopped_by):
            (outcome,) = self.submit(sql).result()
            if not is_trusted(outcome.status, outcome.stopped_by):
                self.invalidate(outcome.stopped_by or outcome.status)
        return outcome

    def _query_first_rows(self, outcome: SqlOutcome) -> None:
        """Submit the query for the first rows if the result exceeds the limits."""
        if outcome.status == "too_large" and _SELECT.match(self.sql):
            self.large, self.job = outcome, self.submit(self._first_rows_sql())

    def _first_rows_sql(self) -> str:
        """Return the query for the first rows; if the SQL has several statements, it fails inside the parentheses."""
        return f"SELECT * FROM ({self.sql.rstrip().removesuffix(';')}\n) AS result LIMIT {MAX_ROWS}"


def final_query(text: str) -> str | None:
    """Return the query at the end of a turn; None without one."""
    hidden = hide_tags(text)
    match = _SQL.search(hidden)
    return (match[1] if hidden == text else show_tags(match[1])).strip() if match else None


def wrap(text: str, turns_left: int) -> str:
    """Wrap the database's output in the environment's tags, with the number of turns left.

    A value may contain dialogue tags and forge a thought or a solution. Such a tag gets a blank (`< think>`), so that
    parsers ignore it while the model still sees it.
    """
    return _wrap_observation(_TAG.sub("< ", text), turns_left)


def _wrap_observation(text: str, turns_left: int) -> str:
    last = "this is your last turn: give the solution" if turns_left == 1 else f"{turns_left} turns left"
    return f"\n\n<observation>\n{text}\n[{last}]\n</observation>\n\n"


@dataclass
class SqlTurns:
    """SkyRL-SQL's loop: `<sql>` is executed and observed, `<solution>` ends the answer, other text gets a format hint.

    `turns` is the total number of the policy's turns; the last must be the solution. Errors and timeouts are
    observations. Queries run on the file or URL `database`, under `limits` (None: the executor's), and are translated
    from `dialect` to SQLite's. An answer also ends when it is truncated. `stop` is `wall` once a query hit the limit of
    wall time twice, or the name of another error: the answer's reward is then invalid.
    """

    executor: Any
    database: str
    turns: int = 5
    limits: Any = None
    dialect: str = "sqlite"
    turns_taken: int = field(default=0, init=False)
    stop: str = field(default="", init=False)
    is_out_of_turns: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Refuse a loop without turns."""
        if self.turns < 1:
            raise InputError(f"turns={self.turns} must be at least 1")

    def next(self, action: Action) -> PendingObservation | None:
        """Run the query at the end of a turn, or return a format hint."""
        text = action.text.rstrip()
        is_over = text.endswith(_SOLUTION) or action.finish_reason == "length"
        return None if is_over else self.take_turn(final_query(text))

    def take_turn(self, query: str | None) -> PendingObservation | None:
        """Take a turn with a query (None: no query); return its observation, or None if the turn was the last."""
        self.turns_taken += 1
        turns_left = self.turns - self.turns_taken
        if turns_left < 1:
            self.is_out_of_turns = True
            return None
        if query is None:
            return Observation(
                _wrap_observation("No query and no solution: write <sql>…</sql> or <solution>…</solution>.", turns_left)
            )
        sql = to_sqlite(query, self.dialect, self.database)
        if sql is None:
            refused = find_untranslated_part(query, self.dialect, self.database)
            reason = f"{refused} is not supported" if refused else f"not one statement of {self.dialect}"
            return Observation(wrap(f"syntax_error: {reason}", turns_left))
        return SqlResult(sql, self._submit, turns_left, self._invalidate)

    def _invalidate(self, reason: str) -> None:
        self.stop = reason

    def _submit(self, sql: str) -> SqlJob:
        job: SqlJob = self.executor.submit([(self.database, sql)], limits=self.limits)
        return job
