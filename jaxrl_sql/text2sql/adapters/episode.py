"""A dialogue with a database and its reward, independent of trainers; the adapters are thin wrappers.

A turn is a text of the policy, or a tool call, and its observation: the result of the query. A reward is trusted
(valid for training) if the gold ran and the outcome does not depend on a time limit or a failure of the database.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jaxrl_sql.text2sql.env.executor import exploratory
from jaxrl_sql.text2sql.env.tags import with_opened_thought
from jaxrl_sql.text2sql.env.turns import Action, PendingObservation, SqlTurns
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, Read, opening_tag_of
from jaxrl_sql.text2sql.rewards.score import RewardRule, ScoredResponse, collect, submit_texts
from jaxrl_sql.text2sql.rewards.skyrl_sql import RULE, read_skyrl_sql, skyrl_sql_reward
from jaxrl_sql.types import Example, Fields, InputError, Json, Response

QUERY, SOLUTION = "query", "solution"
"""The roles of turns that are tool calls, by the tool's name; their text is the SQL, so its format is always right."""
Content = str | Sequence[str | Fields] | Fields | None
"""The content of a chat message, as in the API of OpenAI: a text, parts with a `text` each, or None."""
# The fields in which servers return a message's reasoning separately.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class SqlTask:
    """The scoring of dialogues.

    `executor` runs SQL (`env.executor.make_executor`). `turns` is the maximum number of the policy's turns, including
    the answer. `read` parses a response, and `reward` converts the result of its execution to a reward. `rule` is the
    comparison with the gold's result; the default compares rows as sets.
    """

    executor: Any
    turns: int = 5
    read: Read = read_skyrl_sql
    reward: RewardRule = skyrl_sql_reward
    rule: str = RULE

    def begin(self, example: Example) -> SqlEpisode:
        """Start a dialogue about a question."""
        # On another engine SQL runs unchanged; on SQLite, that of another dialect is translated first.
        dialect = "sqlite" if example.engine_url else example.dialect
        limits = exploratory(self.executor.limits)
        return SqlEpisode(self, example, SqlTurns(self.executor, example.database, self.turns, limits, dialect))

    def score(self, example: Example, response: Response) -> ScoredResponse:
        """Score a finished response: a text that includes the observations, or (role, text) per turn.

        Roles are `assistant`, `environment` for observations, and `query` or `solution` for a tool call, whose text is
        the SQL.
        """
        read = partial(_read, self.read)
        (scored,) = collect(submit_texts(self.executor, [example], [response], read, (self.rule,)), self.reward)
        return scored


@dataclass
class SqlEpisode:
    """A running dialogue: `step` takes the policy's text and returns the observation.

    `query` and `solve` take tool calls instead. `transcript` has (role, text) of all turns so far, and `done` is set
    once the dialogue is over.
    """

    task: SqlTask
    example: Example
    environment: SqlTurns
    transcript: list[tuple[str, str]] = field(default_factory=list, init=False)
    done: bool = field(default=False, init=False)

    def step(self, text: Content, finish_reason: str = "stop") -> str | None:
        """Take a turn with the policy's text, and return the observation, or None if the dialogue is over with it.

        `finish_reason` is `length` for a text that a token limit truncated, which ends the dialogue, else `stop`.
        Raises InputError if the dialogue was already over.
        """
        turn_text = content_text(text)
        self._add("assistant", turn_text)
        return self._record_observation(self.environment.next(Action(turn_text, finish_reason)))

    def query(self, sql: Json) -> str | None:
        """Take a turn with a tool's query ("" if it is not a text); returns like `step`."""
        self._add(QUERY, text := _text(sql))
        return self._record_observation(self.environment.take_turn(text))

    def solve(self, sql: Json) -> None:
        """End the dialogue with a tool's solution ("" if it is not a text); raises InputError if it was over before."""
        self._add(SOLUTION, _text(sql))
        self._record_observation(None)

    def _add(self, role: str, text: str) -> None:
        """Add a turn of the policy to the transcript; raises InputError if the dialogue is over."""
        if self.done:
            raise InputError("the dialogue is over: start a new one")
        self.transcript.append((role, text))

    def _record_observation(self, pending: PendingObservation | None) -> str | None:
        """Wait for a query's result, add it to the transcript and return it; None ends the dialogue."""
        if pending is None:
            self.done = True
            return None
        observation = pending.result()
        self.transcript.append(("environment", observation))
        return observation

    def score_dialogue(self) -> ScoredResponse:
        """Return the score of the dialogue so far, including whether it is valid for training (`trusted`)."""
        return self.task.score(self.example, self.transcript)

    def reward(self) -> float | None:
        """Return the reward; None if it is not trusted, or if an error or a time limit ended the dialogue."""
        scored = self.score_dialogue()
        return scored.reward.total if scored.trusted and not self.environment.stop else None


def example_of(row: Fields) -> Example:
    """Return the question of a data set's row, which has `db_path`, `gold_sql`, and optionally `question`, `dialect`.

    Raises InputError if either of the first two is missing.
    """
    db_path, gold_sql = values = row.get("db_path"), row.get("gold_sql")
    if missing := [name for name, value in zip(("db_path", "gold_sql"), values, strict=True) if value in (None, "")]:
        raise InputError(f"a row has no {' and no '.join(missing)}; it has {', '.join(sorted(row)) or 'nothing'}")
    if not (isinstance(db_path, str | Path) and isinstance(gold_sql, str)):
        types = f"{type(db_path).__name__} and {type(gold_sql).__name__}"
        raise InputError(f"a row's db_path and gold_sql must be texts, not {types}")
    question, dialect = str(row.get("question") or ""), str(row.get("dialect") or "sqlite")
    return Example(uid="", db_id="", db_path=str(db_path), question=question, gold_sql=str(gold_sql), dialect=dialect)


def response_of(completion: Json, prompt: Json = "") -> Response:
    """Return a completion as a response: a text, or (role, text) of each turn of a chat.

    A completion is a text or a list of messages. A tool call becomes a separate turn; its SQL is the argument `sql`. A
    separate thought of a message is inserted before its text. If the `prompt` ends with the beginning of the answer
    (the prefill), the response starts with it. Raises InputError for other types.
    """
    prefill = _answer_prefill(prompt)
    if isinstance(completion, str):
        return completion if completion.startswith(prefill) else prefill + completion
    if not isinstance(completion, Sequence) or not all(isinstance(message, Mapping) for message in completion):
        raise InputError(f"a completion must be a text or messages, not {type(completion).__name__}")
    turns: list[tuple[str, str]] = []
    # The chat template of a prompt of messages may have opened a thought, whose tag is not part of the completion.
    may_be_opened = not (prefill or isinstance(prompt, str))
    for message in completion:
        if message.get("role") != "assistant":
            turns.append(("environment", content_text(message.get("content"))))
        elif calls := message.get("tool_calls"):
            turns += map(_tool_turn, calls)
        else:
            turns.append(("assistant", _assistant_text(message, may_be_opened)))
    if turns and turns[0][0] == "assistant" and not turns[0][1].startswith(prefill):
        turns[0] = ("assistant", prefill + turns[0][1])
    return turns


def content_text(content: Content) -> str:
    """Return the text of a message's content; parts without text count as "". Raises InputError for other types."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list | tuple) else [content]
    texts: list[Json] = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if other := next((text for text in texts if not isinstance(text, str | None)), None):
        raise InputError(f"a message's content must be a text or parts with texts, not {type(other).__name__}")
    return "".join(text or "" for text in texts)


def _answer_prefill(prompt: Json) -> str:
    """Return the answer's prefill in a prompt: a tag at its end, or the content of a final assistant message."""
    if isinstance(prompt, str):
        return opening_tag_of(prompt)
    last = prompt[-1] if isinstance(prompt, Sequence) and prompt else {}
    is_begun = isinstance(last, Mapping) and last.get("role") == "assistant" and not last.get("tool_calls")
    return content_text(last.get("content")) if is_begun else ""


def _assistant_text(message: Fields, may_be_opened: bool) -> str:
    """Return the text of a message, preceded by its separate thought in tags, if it has any.

    With `may_be_opened`, the chat template may have opened a thought: the tag is added to a text that only closes it.
    """
    text = content_text(message.get("content"))
    thought = next((field for name in _THOUGHTS if (field := message.get(name)) and isinstance(field, str)), "")
    if thought and "</think>" not in text:
        return f"<think>{thought}</think>\n{text}"
    return with_opened_thought(text) if may_be_opened else text


def _tool_turn(call: Json) -> tuple[str, str]:
    """Return (role, SQL) of a tool call; a call of any tool but `solution`, or without SQL, is a query."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InputError(f"a tool call must be a mapping with a function, not {type(call).__name__}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # invalid JSON has no SQL
            arguments = json.loads(arguments)
    sql = _text(arguments.get("sql") if isinstance(arguments, Mapping) else None)
    return (SOLUTION if function.get("name") == SOLUTION else QUERY, sql)


def _text(argument: Json) -> str:
    """Return a tool's argument; "" if the model wrote another type."""
    return argument if isinstance(argument, str) else ""


def _read(read: Read, response: Response) -> ParsedResponse:
    """Parse a response that may contain tool calls.

    A call of `solution` is the answer. Without one, `read` parses the other turns, without tool calls and their
    results.
    """
    if isinstance(response, str) or not any(role in (QUERY, SOLUTION) for role, _ in response):
        return read(response)
    queries = tuple(text.strip() for role, text in response if role == QUERY and text.strip())
    solution = next((text.strip() for role, text in response if role == SOLUTION), None)
    if solution is not None:
        return ParsedResponse(solution or None, answer=solution, queries=queries)
    others: list[tuple[str, str]] = []
    is_tool = False
    for role, text in response:
        is_tool = role == QUERY or (is_tool and role == "environment")
        if not is_tool:
            others.append((role, text))
    parsed = read(others)
    return parsed._replace(queries=(*queries, *parsed.queries))
