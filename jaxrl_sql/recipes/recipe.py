"""A recipe is a value: the functions that make one published system out of the common parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_sql.data.prompts import PromptStyle
from jaxrl_sql.rewards.extract import Extract, extract_plain
from jaxrl_sql.rewards.score import RewardRule, Scored, TextJob, collect, score_texts, submit_texts
from jaxrl_sql.sqlenv.ports import SqlExecutor
from jaxrl_sql.types import Example, Reward


class Recipe(NamedTuple):
    """How a system asks (`prompt`), reads the answer (`extract`), compares results (`rules`) and pays (`reward`)."""

    name: str
    prompt: PromptStyle
    extract: Extract
    rules: tuple[str, ...]
    reward: RewardRule

    def extract_for(self, style: PromptStyle) -> Extract:
        """Return how to read answers to a prompt style: whole when they are raw SQL, else in the recipe's own way."""
        return extract_plain if style.answers_raw_sql else self.extract

    def submit(
        self, executor: SqlExecutor, examples: Sequence[Example], responses: Sequence[str], style: PromptStyle
    ) -> TextJob:
        """Begin to score finished responses to prompts of `style`; returns at once."""
        return submit_texts(executor, examples, responses, self.extract_for(style), self.rules)

    def collect(self, job: TextJob) -> list[Scored]:
        """Wait for a submitted job; rewards, SQL and statuses in order."""
        return collect(job, self.reward)

    def score(self, executor: SqlExecutor, examples: Sequence[Example], responses: Sequence[str]) -> list[Reward]:
        """Score responses to the recipe's own prompt and wait."""
        return score_texts(executor, examples, responses, self.extract, self.reward, self.rules)
