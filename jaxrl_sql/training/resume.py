"""Resuming a run: the values of its start, and the step after which it continues.

`resume` decides the step for all phases. `resolve_resumed_config` restores settings that the run computed at its start,
such as the date in prompts. `refuse_other_checkpoint` compares a folder's inputs with those of a dry run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import TrainConfig, replace_values
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.parallel import processes
from jaxrl_sql.runtime.folder import CHECKPOINTS, list_saved_steps, refuse_edited_settings, settings_from_start
from jaxrl_sql.runtime.metrics import START
from jaxrl_sql.runtime.model_locator import today
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.inputs import digest, refuse_other_inputs
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import InputError, Record


class ResumePoint(NamedTuple):
    """The step of the checkpoint that a run continues from; 0 for a new run."""

    step: int = 0

    def is_within(self, steps_before: int, last: int) -> bool:
        """Return whether the checkpoint's step is one of the run's steps `steps_before` + 1 to `last`."""
        return steps_before < self.step <= last

    def is_after(self, last: int) -> bool:
        """Return whether the checkpoint is later than step `last` of the run."""
        return self.step > last


def resolve_resumed_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the date, rollout layout and KV blocks that a resumed run computed at its start.

    A new run whose prompts are chats gets today's date, as chat templates may print it.
    """
    config = replace_values(
        config, settings_from_start(config.run, config.data.chat.date, config.rollout, config.model)
    )
    is_resumed = config.run.resume and list_saved_steps(Path(config.run.dir))
    if config.data.chat.date or not config.data.is_chat or is_resumed:
        return config
    # The earliest date of all processes: they may start around midnight.
    return replace_values(config, {"data.chat.date": min(processes.exchange([today()]))})


def resume(run: TrainingRun) -> ResumePoint:
    """Return the step after which a run continues, and remove later lines from its files.

    The files are the metrics, samples and rollouts of the run's folder. Raises InputError if the checkpoint was saved
    with other inputs, questions or settings.
    """
    step = run.outputs.checkpoints.latest() if run.config.run.resume else None
    if step is None:
        run.outputs.metrics.rewind(START, 0)
        run.outputs.samples.rewind(START)
        run.outputs.rollouts.rewind({})
        return ResumePoint()
    if step > run.config.total_steps():
        raise InputError(f"{run.folder}: step {step} is already done, but the run would end earlier")
    saved = run.outputs.checkpoints.host(step)["run"]
    _refuse_other_run(run, saved)
    _rewind(run, saved["lines"], step)
    run.status.resume(saved["health"], saved["evaluation"])
    run.write_config(model=run.config.model, data=run.config.data)  # their folders may have moved since
    run.note(f"resuming from step {step}")
    return ResumePoint(step)


def _refuse_other_run(run: TrainingRun, saved: Record) -> None:
    """Raise InputError if a checkpoint was saved with other inputs, questions or settings."""
    refuse_other_inputs(run.folder, saved["inputs"], run.questions.inputs)
    if saved["questions"] != digest(run.questions.train):
        raise InputError(
            f"{run.folder}: {run.config.data.dir}/{run.config.data.train} differs from the questions or "
            "prompts that the run started with: choose another run.dir to start a run with them"
        )
    refuse_edited_settings(run.folder, saved["config"], values_by_key(run.config))


def _rewind(run: TrainingRun, lines: Mapping[str, Any], step: int) -> None:
    """Remove the lines that the run's files got after the checkpoint of a step.

    `lines` has the position in each file at the checkpoint. Raises InputError for a damaged file.
    """
    outputs = run.outputs
    outputs.metrics.rewind(tuple(lines["metrics"]), step)
    outputs.samples.rewind(tuple(lines["samples"]))
    outputs.rollouts.rewind(lines["rollouts"])
    for name, file in (("metrics", outputs.metrics), ("samples", outputs.samples)):
        if processes.is_first() and file.position != tuple(lines[name]):
            run.note(f"{name}.jsonl is gone: its lines begin after step {step}")


def refuse_other_checkpoint(folder: Path, inputs: Mapping[str, str]) -> None:
    """Raise InputError if the newest checkpoint of a run's folder was saved with other inputs."""
    if not list_saved_steps(folder):
        return
    with Checkpoints(folder / CHECKPOINTS, is_read_only=True) as checkpoints:
        step = checkpoints.latest()
        if step is not None:
            refuse_other_inputs(folder, checkpoints.host(step)["run"]["inputs"], inputs)
