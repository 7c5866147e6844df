"""Where numbers are shown beside the run folder's own lines: TensorBoard's events, and Weights & Biases when asked."""

from __future__ import annotations

import importlib
import math
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from jaxrl_sql.types import InputError

NAME_FILE = "wandb-id"


class Tracker(Protocol):
    """Takes the numbers of a step."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Show the numbers of a step; words and what is not finite are left out."""

    def rewind(self, kept: list[dict[str, Any]], step: int) -> None:
        """Hide what was shown of later steps than `step`; `kept` are the lines up to it, of which its own come back."""

    def close(self) -> None:
        """Hand over what is left; a second call does nothing."""


class TensorBoard:
    """Writes events to a folder, an event a step, each on its way to the disk when `write` returns.

    A file is begun with the first event, beside those of sessions before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EventsWriter | None = None
        self._purge_step: int | None = None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write one event with all numbers of a step."""
        shown = [Summary.Value(tag=name, simple_value=value) for name, value in _numbers(values)]
        self._write(Event(step=step, wall_time=time.time(), summary=Summary(value=shown)))

    def rewind(self, kept: list[dict[str, Any]], step: int) -> None:
        """Let TensorBoard hide everything from `step` on, and write what is kept of that step again."""
        self.close()
        self._purge_step = step
        for values in kept:
            if values["step"] == step:
                self.write(step, {name: value for name, value in values.items() if name != "step"})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, event: Event) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            suffix = f".{len(list(self._folder.glob('*')))}"  # two files of one second would have one name
            self._file = EventsWriter(str(self._folder / "events"), suffix)
            if self._purge_step is not None:
                log = SessionLog(status=SessionLog.START)
                self._file.write_event(Event(step=self._purge_step, wall_time=time.time(), session_log=log))
        self._file.write_event(event)
        self._file.flush()


class WeightsAndBiases:
    """Sends numbers to a project of Weights & Biases, or keeps them in the run folder where WANDB_MODE is `offline`.

    A run that goes on sends to the same run there. Raises InputError when the package is missing or will not begin.
    """

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any]) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise InputError(
                f"run.wandb={project}: the package wandb is missing (pip install 'jaxrl-sql[wandb]')"
            ) from error
        known = folder / NAME_FILE
        name = known.read_text(encoding="utf-8").strip() if known.exists() else uuid.uuid4().hex[:8]
        known.write_text(name, encoding="utf-8")
        try:
            self._run = wandb.init(
                project=project,
                id=name,
                name=folder.name,
                dir=str(folder),
                config=dict(config),
                resume="allow",
                settings=wandb.Settings(console="off", silent=True),  # the terminal is the display's
            )
        except wandb.Error as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"run.wandb={project}: {first_line} (WANDB_MODE=offline keeps it here)") from error
        # Their own step only goes up, and a run that goes on begins before the last one.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers of a step."""
        self._run.log({"step": step, **dict(_numbers(values))})

    def rewind(self, kept: list[dict[str, Any]], step: int) -> None:
        """Do nothing: a step that is made again is shown over itself with the same numbers."""

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()


def open_trackers(folder: Path, project: str, config: Mapping[str, Any]) -> tuple[Tracker, ...]:
    """Return what else than TensorBoard a run's numbers go to."""
    return (WeightsAndBiases(folder, project, config),) if project else ()


def _numbers(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return what can be plotted."""
    return [
        (name, float(value))
        for name, value in values.items()
        if value is not None and not isinstance(value, str) and math.isfinite(value)
    ]
