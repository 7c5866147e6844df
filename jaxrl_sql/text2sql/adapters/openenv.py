"""An OpenEnv server (package `openenv-core`): a client resets to a question, and steps with what its policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from jaxrl_sql.text2sql.adapters.episode import SqlEpisode, SqlTask
from jaxrl_sql.types import Example, InputError


class SqlAction(Action):
    """What the policy wrote in a turn, and why it ended: `stop` or `length`."""

    text: str
    finish_reason: str = "stop"


class SqlObservation(Observation):
    """The question after a reset, what the database said after a step; at the end a reward, None for untrusted ones."""

    text: str = ""


class SqlEnvironment(Environment[SqlAction, SqlObservation, State]):
    """A session's dialogues, one after another; sessions share the executor and nothing else."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, task: SqlTask, examples: Sequence[Example]) -> None:
        super().__init__()
        self._task, self._examples = task, examples
        self._episode: SqlEpisode | None = None
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_more: Any) -> SqlObservation:
        """Begin a dialogue about the question whose number is `seed`, modulo how many there are; 0 without."""
        example = self._examples[(seed or 0) % len(self._examples)]
        self._episode = self._task.begin(example)
        self._state = State(episode_id=episode_id, step_count=0)
        return SqlObservation(text=example.question)

    def step(self, action: SqlAction, timeout_s: float | None = None, **_more: Any) -> SqlObservation:
        """Take a turn; the last observation is done and holds the reward."""
        del timeout_s  # the executor's own limits bound a query
        if self._episode is None:
            raise InputError("no dialogue was begun: reset first")
        said = self._episode.step(action.text, action.finish_reason)
        self._state.step_count += 1
        if said is not None:
            return SqlObservation(text=said)
        return SqlObservation(done=True, reward=self._episode.reward())

    @property
    def state(self) -> State:
        """Return the episode's name and how many turns were taken."""
        return self._state


def make_app(task: SqlTask, examples: Sequence[Example], sessions: int = 64) -> Any:
    """Return the server's application, for uvicorn; raises InputError without questions."""
    if not examples:
        raise InputError("examples: an environment needs at least one question")
    return create_fastapi_app(
        lambda: SqlEnvironment(task, examples), SqlAction, SqlObservation, max_concurrent_envs=sessions
    )
