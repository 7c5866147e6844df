"""Resuming a run: the values of its start, and the step after which it continues.

`resume` decides the step for all phases. `resolved_config` takes the values that a run found when it began, and
`refuse_other_saved` compares the inputs of a folder for a dry run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import TrainConfig, changed
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.parallel import processes
from jaxrl_sql.runtime.folder import CHECKPOINTS, refuse_edited, saved_steps, settings_from_start
from jaxrl_sql.runtime.metrics import START
from jaxrl_sql.runtime.model_locator import today
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.inputs import digest, refuse_other_inputs
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import InputError, Record


class ResumePoint(NamedTuple):
    """The step of the checkpoint that a run continues from; 0 for a new run."""

    step: int = 0

    def is_within(self, first: int, last: int) -> bool:
        """Return whether steps `first` + 1 to `last` of the run have the checkpoint's step."""
        return first < self.step <= last

    def is_after(self, last: int) -> bool:
        """Return whether the checkpoint is later than step `last` of the run."""
        return self.step > last


def resolved_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the date, layout and KV blocks that a resumed run found when it began.

    A new run whose prompts are chats gets today's date.
    """
    config = changed(config, settings_from_start(config.run, config.data.chat.date, config.rollout))
    is_resumed = config.run.resume and saved_steps(Path(config.run.dir))
    if config.data.chat.date or not config.data.is_chat or is_resumed:
        return config
    # Processes may begin around midnight.
    return changed(config, {"data.chat.date": min(processes.exchange([today()]))})


def resume(s: TrainingRun) -> ResumePoint:
    """Return the step after which a run continues, and drop later lines of its files.

    Raises InputError for a checkpoint of other inputs, questions or settings.
    """
    step = s.outputs.checkpoints.latest() if s.config.run.resume else None
    if step is None:
        s.outputs.metrics.rewind(START, 0)
        s.outputs.samples.rewind(START)
        s.outputs.rollouts.rewind({})
        return ResumePoint()
    if step > s.config.total_steps():
        raise InputError(f"{s.folder}: step {step} is already done, but the run would end earlier")
    saved = s.outputs.checkpoints.host(step)["run"]
    _refuse_other_run(s, saved)
    _rewind(s, saved["lines"], step)
    s.status.resume(saved["health"], saved["evaluation"])
    s.write_config(model=s.config.model, data=s.config.data)  # folders may have moved
    s.note(f"resuming from step {step}")
    return ResumePoint(step)


def _refuse_other_run(s: TrainingRun, saved: Record) -> None:
    """Raise InputError if a checkpoint was saved with other inputs, questions or settings."""
    refuse_other_inputs(s.folder, saved["inputs"], s.questions.inputs)
    if saved["questions"] != digest(s.questions.train):
        raise InputError(
            f"{s.folder}: {s.config.data.dir}/{s.config.data.train} differs from the questions or "
            "prompts that the run started with: choose another run.dir to start a run with them"
        )
    refuse_edited(s.folder, saved["config"], values_by_key(s.config))


def _rewind(s: TrainingRun, lines: Mapping[str, Any], step: int) -> None:
    """Drop lines of the run's files after the checkpoint of a step; raises InputError for a damaged file."""
    outputs = s.outputs
    outputs.metrics.rewind(tuple(lines["metrics"]), step)
    outputs.samples.rewind(tuple(lines["samples"]))
    outputs.rollouts.rewind(lines["rollouts"])
    for name, file in (("metrics", outputs.metrics), ("samples", outputs.samples)):
        if processes.is_first() and file.position != tuple(lines[name]):
            s.note(f"{name}.jsonl is gone: its lines begin after step {step}")


def refuse_other_saved(folder: Path, inputs: Mapping[str, str]) -> None:
    """Raise InputError if the newest checkpoint of a run's folder was saved with other inputs."""
    if not saved_steps(folder):
        return
    with Checkpoints(folder / CHECKPOINTS, is_read_only=True) as checkpoints:
        step = checkpoints.latest()
        if step is not None:
            refuse_other_inputs(folder, checkpoints.host(step)["run"]["inputs"], inputs)
