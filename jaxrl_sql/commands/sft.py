"""The supervised phase: `jaxrl-sql sft --config FILE`, which is also the first phase of `jaxrl-sql train`.

Questions on one database share its schema, so a batch is `sft.databases` schemas with up to `sft.questions` questions
each, and a schema runs once for all of them. `sft/padding` is the share of a batch's positions that is empty. The loss
is on answers only.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import TrainConfig, changed
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, do the work, and return the exit code."""
    return run_command(TrainConfig, _train, __doc__ or "", arguments, _rehearse)


def alone(config: TrainConfig) -> TrainConfig:
    """Return a configuration with the supervised phase alone.

    Raises InputError where it has no step: nothing would be taught, and a model written all the same.
    """
    if not (config.sft.steps or config.sft.epochs):
        raise InputError("config: sft.steps=0 and sft.epochs=0 teach nothing: set one of them, such as sft.steps=100")
    return changed(config, {"grpo.steps": 0, "second_stage.steps": 0})


def _train(config: TrainConfig) -> int:
    supervised = alone(config)
    from jaxrl_sql.training.sft import sft
    from jaxrl_sql.training.trainer import open_run

    with open_run(supervised) as s:
        return sft(s)


def _rehearse(config: TrainConfig) -> int:
    supervised = alone(config)
    from jaxrl_sql.training.trainer import dry_run

    return dry_run(supervised)
