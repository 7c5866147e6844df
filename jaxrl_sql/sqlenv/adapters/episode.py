"""One dialogue with a database and what it earns, in no trainer's form: the others are thin around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxrl_sql.rewards.extract import Read
from jaxrl_sql.rewards.score import RewardRule, ScoredResponse, collect, submit_texts
from jaxrl_sql.rewards.skyrl_sql import RULE, read_skyrl_sql, skyrl_sql_reward
from jaxrl_sql.sqlenv.executor import exploratory
from jaxrl_sql.sqlenv.turns import Action, SqlTurns
from jaxrl_sql.types import Example, InputError, Response


@dataclass(frozen=True)
class SqlTask:
    """What a dialogue is scored by: an executor, the turns, and how an answer is read, judged and rewarded."""

    executor: Any
    turns: int = 5
    read: Read = read_skyrl_sql
    reward: RewardRule = skyrl_sql_reward
    rule: str = RULE

    def begin(self, example: Example) -> SqlEpisode:
        """Begin a dialogue about a question."""
        dialect = "sqlite" if example.engine_url else example.dialect
        limits = exploratory(self.executor.limits)
        return SqlEpisode(self, example, SqlTurns(self.executor, example.database, self.turns, limits, dialect))

    def score(self, example: Example, response: Response) -> ScoredResponse:
        """Score a finished answer: a text with its observations inside, or (role, text) a turn."""
        (scored,) = collect(submit_texts(self.executor, [example], [response], self.read, (self.rule,)), self.reward)
        return scored


@dataclass
class SqlEpisode:
    """A dialogue that goes on: `step` takes what the policy wrote and returns what answers it."""

    task: SqlTask
    example: Example
    environment: SqlTurns
    transcript: list[tuple[str, str]] = field(default_factory=list, init=False)
    done: bool = field(default=False, init=False)

    def step(self, text: str, finish_reason: str = "stop") -> str | None:
        """Return the observation, or None when the dialogue is over; raises InputError when it was over before."""
        if self.done:
            raise InputError("the dialogue is over: begin another")
        self.transcript.append(("assistant", text))
        pending = self.environment.next(Action(text, finish_reason))
        if pending is None:
            self.done = True
            return None
        observation = pending.result()
        self.transcript.append(("environment", observation))
        return observation

    def scored(self) -> ScoredResponse:
        """Return what the dialogue earned so far, and whether it may be learned from (`trusted`)."""
        return self.task.score(self.example, self.transcript)

    def reward(self) -> float | None:
        """Return the reward; None where the gold failed or a clock decided, so that nothing is to be learned."""
        scored = self.scored()
        return scored.reward.total if scored.trusted and not self.environment.stop else None


def example_of(row: Mapping[str, Any]) -> Example:
    """Return the question of a data set's row: `db_path` and `gold_sql`, and `question`, `dialect` where they are.

    Raises InputError for a row without one of the first two.
    """
    if missing := [name for name in ("db_path", "gold_sql") if not isinstance(row.get(name), str) or not row[name]]:
        raise InputError(f"a row has no {' and no '.join(missing)}; it has {', '.join(sorted(row)) or 'nothing'}")
    question, dialect = str(row.get("question") or ""), str(row.get("dialect") or "sqlite")
    return Example("", "", row["db_path"], question, row["gold_sql"], dialect=dialect)


def response_of(completion: str | list[Mapping[str, Any]]) -> Response:
    """Return a completion as it is scored: a text, or a chat's messages, of which the policy's count."""
    if isinstance(completion, str):
        return completion
    sides = ("assistant" if one["role"] == "assistant" else "environment" for one in completion)
    return [(side, str(one.get("content") or "")) for side, one in zip(sides, completion, strict=True)]
