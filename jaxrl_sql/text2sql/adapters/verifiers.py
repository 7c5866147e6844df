"""A verifiers environment (package `verifiers`, v1 API): a taskset of questions, and an environment for dialogues.

verifiers loads both from a module that exports them in `__all__`; see docs/howto/other_trainers.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.adapters.episode import SqlTask, example_of
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

NAMES = ("prompt", "db_path", "gold_sql")
"""The required fields of each line of the questions' file."""


class SqlData(vf.TaskData):
    """A question: its prompt, database file and gold."""

    db_path: str
    gold_sql: str


class QuestionTask(vf.Task[SqlData]):
    """A question, without a reward of its own: the environment records it, because it has the dialogue."""


class SqlTasksetConfig(vf.TasksetConfig):
    """A file of JSON lines with `prompt`, `db_path` and `gold_sql`."""

    questions: Path = Path()


class SqlTaskset(vf.Taskset[QuestionTask, SqlTasksetConfig]):
    """The questions of a file."""

    def load(self) -> Iterator[QuestionTask]:
        """Yield the questions; raises InputError for a missing file, and with the number of the first invalid line."""
        try:
            lines = self.config.questions.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except OSError as error:
            raise InputError(f"taskset.questions: {self.config.questions}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                data = SqlData(**{name: json.loads(line)[name] for name in NAMES})
            except (ValueError, KeyError, TypeError) as error:  # includes validation errors
                raise InputError(f"{self.config.questions}:{number}: not an object with {', '.join(NAMES)}") from error
            yield QuestionTask(data, self.config.task)


class SqlEnvConfig(vf.EnvConfig):
    """The agent that answers (`player`), and the maximum number of its turns."""

    player: vf.AgentConfig = vf.AgentConfig()
    turns: int = 5


class SqlEnv(vf.Env[SqlEnvConfig]):
    """A dialogue: the player's queries are executed, and the result is the next user message."""

    async def run(self, task: Any, agents: Any) -> None:
        """Run the dialogue until the player's solution, and record the reward.

        No reward is recorded if it is invalid for training (`episode`), or if the player itself failed.
        """
        scoring = SqlTask(_executor(), self.config.turns)
        episode = scoring.begin(example_of({"db_path": task.data.db_path, "gold_sql": task.data.gold_sql}))
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                observation = await asyncio.to_thread(episode.step, segment.last_reply)
                if observation is None:
                    break
                segment = await interaction.turn(observation)
        if not interaction.trace.errors and (reward := await asyncio.to_thread(episode.reward)) is not None:
            interaction.trace.record_reward("sql_reward", reward)


@lru_cache(maxsize=1)
def _executor() -> Any:
    """Return the executor, of which a process has only one."""
    return make_executor(ExecutorConfig())
