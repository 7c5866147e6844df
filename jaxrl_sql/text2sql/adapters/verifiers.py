"""A verifiers environment (package `verifiers`, its v1 form): a taskset of questions, and the dialogue as its run.

verifiers finds both in a module of its own that names them in `__all__`; docs/howto/other_trainers.md has it.
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
from jaxrl_sql.text2sql.adapters.episode import SqlTask as Scoring
from jaxrl_sql.text2sql.adapters.episode import example_of
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

NAMES = ("prompt", "db_path", "gold_sql")


class SqlData(vf.TaskData):
    """A question: beside its prompt the database's file and the gold."""

    db_path: str
    gold_sql: str


class SqlTask(vf.Task[SqlData]):
    """A question; its reward is recorded by the environment, which has the dialogue."""


class SqlTasksetConfig(vf.TasksetConfig):
    """A file of JSON lines with `prompt`, `db_path` and `gold_sql`."""

    questions: Path = Path()


class SqlTaskset(vf.Taskset[SqlTask, SqlTasksetConfig]):
    """The questions of a file."""

    def load(self) -> Iterator[SqlTask]:
        """Yield the questions; raises InputError for no such file, and that names the first line which is none."""
        try:
            lines = self.config.questions.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except OSError as error:
            raise InputError(f"taskset.questions: {self.config.questions}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                data = SqlData(**{name: json.loads(line)[name] for name in NAMES})
            except (ValueError, KeyError, TypeError) as error:  # the first of its types, too
                raise InputError(f"{self.config.questions}:{number}: not an object with {', '.join(NAMES)}") from error
            yield SqlTask(data, self.config.task)


class SqlEnvConfig(vf.EnvConfig):
    """Who answers, and in how many turns."""

    player: vf.AgentConfig = vf.AgentConfig()
    turns: int = 5


class SqlEnv(vf.Env[SqlEnvConfig]):
    """A dialogue: what the player writes is run, and the result is the user's next message."""

    async def run(self, task: Any, agents: Any) -> None:
        """Let the player ask until it gives its solution, and record the reward.

        There is none where it is not trusted, or where the player failed and not what it wrote.
        """
        scoring = Scoring(_executor(), self.config.turns)
        episode = scoring.begin(example_of({"db_path": task.data.db_path, "gold_sql": task.data.gold_sql}))
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                said = await asyncio.to_thread(episode.step, segment.last_reply)
                if said is None:
                    break
                segment = await interaction.turn(said)
        if not interaction.trace.errors and (reward := await asyncio.to_thread(episode.reward)) is not None:
            interaction.trace.record_reward("sql_reward", reward)


@lru_cache(maxsize=1)
def _executor() -> Any:
    """Return the process's executor."""
    return make_executor(ExecutorConfig())
