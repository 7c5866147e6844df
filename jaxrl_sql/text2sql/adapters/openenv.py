"""An OpenEnv server (package `openenv-core`): clients reset to a question and step with their policy's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from jaxrl_sql.text2sql.adapters.episode import SqlEpisode, SqlTask
from jaxrl_sql.types import Example, InputError


class SqlAction(Action):
    """The policy's text in a turn, and its finish reason: `stop` or `length`."""

    text: str
    finish_reason: str = "stop"


class SqlObservation(Observation):
    """The question after a reset, or the observation after a step.

    The last one has a reward, or None if the reward is invalid for training (`episode`).
    """

    text: str = ""


class SqlEnvironment(Environment[SqlAction, SqlObservation, State]):
    """A session's dialogues, one at a time; sessions share only the executor."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, task: SqlTask, examples: Sequence[Example]) -> None:
        super().__init__()
        self._task, self._examples = task, examples
        self._episode: SqlEpisode | None = None
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_more: Any) -> SqlObservation:
        """Start a dialogue about the question with index `seed` (default: 0) modulo the number of questions."""
        example = self._examples[(seed or 0) % len(self._examples)]
        self._episode = self._task.begin(example)
        self._state = State(episode_id=episode_id, step_count=0)
        return SqlObservation(text=example.question)

    def step(self, action: SqlAction, timeout_s: float | None = None, **_more: Any) -> SqlObservation:
        """Take a turn; the last observation is done and has the reward."""
        del timeout_s  # the executor's limits apply
        if self._episode is None:
            raise InputError("no dialogue was started: reset first")
        observation = self._episode.step(action.text, action.finish_reason)
        self._state.step_count += 1
        if observation is not None:
            return SqlObservation(text=observation)
        return SqlObservation(done=True, reward=self._episode.reward())

    @property
    def state(self) -> State:
        """Return the episode's id and the number of turns taken."""
        return self._state


def make_app(task: SqlTask, examples: Sequence[Example], sessions: int = 64) -> Any:
    """Return the server's ASGI application for at most `sessions` clients; raises InputError without questions."""
    if not examples:
        raise InputError("examples: an environment needs at least one question")
    return create_fastapi_app(
        lambda: SqlEnvironment(task, examples), SqlAction, SqlObservation, max_concurrent_envs=sessions
    )
