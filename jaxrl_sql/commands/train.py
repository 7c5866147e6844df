"""Train by GRPO or PPO: `jaxrl-sql train model.checkpoint=HUB_ID data.dir=FOLDER`, or `--config FILE`.

A supervised phase (section `sft`) can precede. A second stage (section `second_stage`), which begins with the best
checkpoint of the first, can follow. `training/grpo.py` is the main loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.commands.running import run_command
from jaxrl_sql.config import TrainConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, train, and return the exit code."""
    return run_command(TrainConfig, _train, __doc__ or "", arguments, _dry_run)


def _train(config: TrainConfig) -> int:
    from jaxrl_sql.training.trainer import train

    return train(config)


def _dry_run(config: TrainConfig) -> int:
    from jaxrl_sql.training.trainer import dry_run

    return dry_run(config)
