"""For TRL's GRPOTrainer: `environment_factory` with two tools, and a reward function for text answers.

The columns of the data set are `db_path`, `gold_sql` and, for display, `question`; see `episode.example_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from jaxrl_sql.text2sql.adapters.episode import SqlEpisode, SqlTask, example_of, response_of
from jaxrl_sql.types import Fields, InputError, Json

_OVER = "The dialogue is over."  # the result of a tool call after the last turn


class DatabaseTools:
    """A database as tools: TRL offers all public methods except `reset` and `get_reward` to the model."""

    def __init__(self, task: SqlTask) -> None:
        self._task = task
        self._episode: SqlEpisode | None = None

    def reset(self, **row: Any) -> None:
        """Start a dialogue about the row's question."""
        self._episode = self._task.begin(example_of(row))

    def query(self, sql: str) -> str:
        """Run a query on the database and return its rows, to explore before you answer.

        Args:
            sql: One SQL query; nothing can be changed by it.

        Returns:
            The rows, or the error, and how many turns are left.
        """
        episode = self._require_episode()
        return _OVER if episode.done else episode.query(sql) or _OVER

    def solution(self, sql: str) -> str:
        """Give the query that answers the question; the dialogue ends with it.

        Args:
            sql: The SQL query whose rows answer the question.

        Returns:
            That the dialogue is over.
        """
        episode = self._require_episode()
        if not episode.done:
            episode.solve(sql)
        return _OVER

    def get_reward(self) -> float | None:
        """Return the reward of the dialogue; None if it is invalid for training."""
        return self._require_episode().reward()

    def _require_episode(self) -> SqlEpisode:
        if self._episode is None:
            raise InputError("no dialogue was started: call reset with the row's db_path and gold_sql")
        return self._episode


def environment_factory(task: SqlTask) -> Callable[[], DatabaseTools]:
    """Return a function for GRPOTrainer's `environment_factory`: each call creates an environment."""

    def factory() -> DatabaseTools:
        return DatabaseTools(task)

    return factory


def reward_function(task: SqlTask) -> Callable[..., list[float | None]]:
    """Return a function for GRPOTrainer's `reward_funcs`: it maps complete answers, texts or messages, to rewards.

    A reward that is invalid for training (`episode`) is None, which TRL ignores.
    """

    def sql_reward(
        completions: Sequence[str | list[Fields]], prompts: Sequence[Json] = (), **columns: Any
    ) -> list[float | None]:
        # The data set's columns are lists or arrays; the trainer passes other keyword arguments, too.
        values_by_column = {name: list(values) for name, values in columns.items() if _is_column(values)}
        rewards: list[float | None] = []
        for i, completion in enumerate(completions):
            row = {name: values[i] for name, values in values_by_column.items() if i < len(values)}
            response = response_of(completion, prompts[i] if i < len(prompts) else "")
            scored = task.score(example_of(row), response)
            rewards.append(scored.reward.total if scored.trusted else None)
        return rewards

    return sql_reward


def _is_column(values: Json) -> bool:
    """Return whether an argument has a value per completion."""
    return isinstance(values, Iterable) and isinstance(values, Sized) and not isinstance(values, str | bytes | Mapping)
