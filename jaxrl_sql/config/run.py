"""The section `run`: the run folder and its contents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveInt


@dataclass(frozen=True)
class RunConfig:
    """The run folder and what is kept in it.

    A checkpoint is saved every `checkpoint_every` steps, and after each evaluation when the `keep_best` best by
    `best_by` are kept beside the newest: a metric by its whole name, or a word such as `accuracy`, which is the mean of
    `eval/<split>/accuracy` over the splits; more is better. `keep_rollouts` bounds how many answers of rollouts are
    kept, and how many of evaluations, for `jaxrl-sql view`; the oldest go first, and 0 keeps none. `samples_per_step`
    are plain lines of samples.jsonl. `trackers` are where numbers are shown beside metrics.jsonl, of tensorboard, wandb
    and trackio; the last two file the run under `project`.
    `compilation_cache` is the folder where compiled programs are kept for other runs: `auto` is one in the user's
    cache, for runs of one process; empty, none are kept.
    `pad_to_max` compiles a third of the programs, each for the most there is: all prompts are padded to the longest
    (`jaxrl-sql evaluate`: to `data.max_prompt_tokens`), supervised answers to the most they may have, and caches begin
    at their largest. For runs that are short beside their compiler.
    """

    dir: str = "runs/run"
    resume: bool = False
    checkpoint_every: PositiveInt = 50
    keep_checkpoints: PositiveInt = 2
    samples_per_step: int = 4
    keep_rollouts: int = 100_000
    display: Annotated[str, OneOf("auto", "rich", "plain", "none")] = "auto"
    compilation_cache: str = "auto"
    keep_best: int = 0
    best_by: str = "accuracy"
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    project: str = "jaxrl-sql"
    pad_to_max: bool = False
