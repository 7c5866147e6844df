"""Supervised training: `jaxrl-sql sft --config FILE`, also the first phase of `jaxrl-sql train`.

Questions on a database share its schema, so a batch is `sft.databases` schemas with up to `sft.questions` questions
each, and the tokens of a schema are computed once for all its questions. The metric `sft/padding` is the share of
padding in a batch. The loss covers answers only.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import TrainConfig, replace_values
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(TrainConfig, _train, __doc__ or "", arguments, _dry_run)


def keep_supervised_phase(config: TrainConfig) -> TrainConfig:
    """Return a configuration with only the supervised phase.

    Raises InputError if it has no steps, because an untrained model would be written.
    """
    if not (config.sft.steps or config.sft.epochs):
        raise InputError("config: sft.steps=0 and sft.epochs=0: set one of them, such as sft.steps=100")
    return replace_values(config, {"grpo.steps": 0, "second_stage.steps": 0})


def _train(config: TrainConfig) -> int:
    supervised = keep_supervised_phase(config)
    from jaxrl_sql.training.sft import sft
    from jaxrl_sql.training.trainer import open_run

    with open_run(supervised) as run:
        return sft(run)


def _dry_run(config: TrainConfig) -> int:
    supervised = keep_supervised_phase(config)
    from jaxrl_sql.training.trainer import dry_run

    return dry_run(supervised)
