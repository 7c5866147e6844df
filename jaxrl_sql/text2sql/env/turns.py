"""Several turns: what the policy writes is answered, and it writes on in the same cache.

An environment is a value with `next(written)`: it takes an action and gives an observation to come, or None when
the answer is complete. The engine asks for nothing else, and goes on decoding other answers while an observation
is on its way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.text2sql.env.dialect import to_sqlite, why_refused
from jaxrl_sql.text2sql.env.observe import MAX_ROWS, observe
from jaxrl_sql.text2sql.env.ports import SqlJob, SqlOutcome
from jaxrl_sql.text2sql.env.tags import hide_tags, show_tags
from jaxrl_sql.text2sql.env.verdicts import is_trusted
from jaxrl_sql.types import InputError

SQL_STOPS = ("</sql>", "</solution>")
_SQL = re.compile(r"<sql>((?:(?!<sql>).)*?)</sql>\s*$", re.DOTALL)
# A query that reads, behind comments and blanks.
_SELECT = re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*(?:select|with|values)\b", re.IGNORECASE | re.DOTALL)
_SOLUTION = "</solution>"
_TAG_NAMES = ("think", "reasoning", "sql", "solution", "observation", "answer")
_TAG = re.compile(rf"<(?=/?(?:{'|'.join(_TAG_NAMES)})>)", re.IGNORECASE)
TAGS = frozenset(f"<{slash}{name}>" for name in _TAG_NAMES for slash in ("", "/"))
"""The tags of a dialogue, which recipes and environments write."""


class Action(NamedTuple):
    """What the policy wrote in a turn, and why it ended: `stop` or `length`."""

    text: str
    finish_reason: str


class PendingObservation(Protocol):
    """A text that the environment will answer with."""

    def done(self) -> bool:
        """Return whether the text is there."""
        ...

    def result(self) -> str:
        """Wait for the text and return it."""
        ...


class Environment(Protocol):
    """The environment's side of one answer; `stop` names the clock or the fault that spoiled an observation, if any.

    `is_out_of_turns` once an answer is complete because its last turn gave no solution.
    """

    stop: str
    is_out_of_turns: bool

    def next(self, written: Action) -> PendingObservation | None:
        """Take what was written; return what answers it, or None when the answer is complete."""
        ...


# Makes the environment's side of an answer from the prompt's index and the sample's.
Turns = Callable[[int, int], Environment]


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation that is there at once."""

    text: str

    def done(self) -> bool:
        """Return that the text is there."""
        return True

    def result(self) -> str:
        """Return the text."""
        return self.text


@dataclass(slots=True)
class SqlResult:
    """The observation of a query: what it returned, and how many turns are left.

    A result over the limits is asked for its first rows, by a run of its own under the same limits. A run that the wall
    clock stopped, or that has no verdict, is tried once more: an observation should not depend on the load. If it
    fails again, the reason is passed to `doubt`.
    """

    sql: str
    submit: Callable[[str], SqlJob]
    left: int
    doubt: Callable[[str], None]
    job: SqlJob = field(init=False)
    large: SqlOutcome | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Begin to run the query."""
        self.job = self.submit(self.sql)

    def done(self) -> bool:
        """Return whether the query has run, and that for its first rows, where one is needed."""
        if self.large is None and self.job.done():
            (outcome,) = self.job.result()
            self._ask_for_less(outcome)
        return self.job.done()

    def result(self) -> str:
        """Wait for the query and return its result as text."""
        if self.large is None:
            outcome = self._outcome(self.sql)
            self._ask_for_less(outcome)
        if self.large is None:
            return wrap(observe(outcome), self.left)
        first = self._outcome(self._first_rows())
        if first.status != "ok":
            return wrap(observe(self.large), self.left)
        return wrap(f"{observe(first)}\n({self.large.error}; the first {MAX_ROWS})", self.left)

    def _outcome(self, sql: str) -> SqlOutcome:
        (outcome,) = self.job.result()
        if not is_trusted(outcome.status, outcome.stopped_by):
            (outcome,) = self.submit(sql).result()
            if not is_trusted(outcome.status, outcome.stopped_by):
                self.doubt(outcome.stopped_by or outcome.status)
        return outcome

    def _ask_for_less(self, outcome: SqlOutcome) -> None:
        if outcome.status == "too_large" and _SELECT.match(self.sql):
            self.large, self.job = outcome, self.submit(self._first_rows())

    def _first_rows(self) -> str:
        """Return the query of the first rows; what is more than one statement does not run in brackets."""
        return f"SELECT * FROM ({self.sql.rstrip().removesuffix(';')}\n) AS result LIMIT {MAX_ROWS}"


def asked_sql(text: str) -> str | None:
    """Return the query that a turn ends with, None when it ends otherwise."""
    hidden = hide_tags(text)
    found = _SQL.search(hidden)
    return (found[1] if hidden == text else show_tags(found[1])).strip() if found else None


def wrap(text: str, left: int) -> str:
    """Put what the database says between the environment's tags, with the turns that are left.

    A value may hold the tags of a dialogue, and forge a thought or a solution: such a tag gets a blank, `< think>`,
    which is no tag to whoever reads the text and shows the model nearly what is there.
    """
    return _framed(_TAG.sub("< ", text), left)


def _framed(text: str, left: int) -> str:
    last = "this is your last turn: give the solution" if left == 1 else f"{left} turns left"
    return f"\n\n<observation>\n{text}\n[{last}]\n</observation>\n\n"


@dataclass
class SqlTurns:
    """SkyRL-SQL's loop: `<sql>` runs and is observed, `<solution>` ends, anything else is told the format.

    `turns` are the policy's turns in all; the last has to be the solution. Errors and timeouts are observations; a
    query has `limits` of its own, or the executor's, and is translated from its `dialect` to be run by SQLite
    (`sqlite`: it is not). An answer that was cut for its length ends too. `stop` is `wall` once the clock has stopped a
    query twice, or what else spoiled it: the answer's reward then says nothing of it.
    """

    executor: Any
    database: str
    turns: int = 5
    limits: Any = None
    dialect: str = "sqlite"
    made: int = field(default=0, init=False)
    stop: str = field(default="", init=False)
    is_out_of_turns: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Refuse a loop without turns."""
        if self.turns < 1:
            raise InputError(f"turns={self.turns} must be at least 1")

    def next(self, written: Action) -> PendingObservation | None:
        """Run the query that a turn ends with, or return how to ask."""
        text = written.text.rstrip()
        is_over = text.endswith(_SOLUTION) or written.finish_reason == "length"
        return None if is_over else self.ask(asked_sql(text))

    def ask(self, query: str | None) -> PendingObservation | None:
        """Take a turn with a query (None: it had none); return its result, or None where the turn was the last."""
        self.made += 1
        left = self.turns - self.made
        if left < 1:
            self.is_out_of_turns = True
            return None
        if query is None:
            return Observation(_framed("No query and no solution: write <sql>…</sql> or <solution>…</solution>.", left))
        sql = to_sqlite(query, self.dialect, self.database)
        if sql is None:
            refused = why_refused(query, self.dialect, self.database)
            why = f"{refused} is not supported" if refused else f"not one statement of {self.dialect}"
            return Observation(wrap(f"syntax_error: {why}", left))
        return SqlResult(sql, self._submit, left, self._doubt)

    def _doubt(self, stop: str) -> None:
        self.stop = stop

    def _submit(self, sql: str) -> SqlJob:
        job: SqlJob = self.executor.submit([(self.database, sql)], limits=self.limits)
        return job
