"""Experiment trackers: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import importlib
import json
import math
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from jaxrl_sql.types import Fields, InputError, Record


class Tracker(Protocol):
    """Receives the metrics of each step."""

    def write(self, step: int, values: Fields) -> None:
        """Log the finite numbers of a step; texts are omitted."""

    def trace(self, step: int, question: str, answer: str, metadata: Fields) -> None:
        """Log an answer to a question as a trace, with its metadata by name, if the tracker supports traces."""

    def rewind(self, lines: list[Record], step: int) -> None:
        """Hide the logged steps after `step`, from which the run resumes.

        `lines` are the metrics up to `step`. A tracker that can only hide `step` too logs its metrics again.
        """

    def close(self) -> None:
        """Flush and close; a second call does nothing."""


class TensorBoard:
    """Write one event per step to a folder; `write` flushes it.

    The first event of a session creates a new file next to those of earlier sessions.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EventsWriter | None = None
        self._purge_step: int | None = None

    def write(self, step: int, values: Fields) -> None:
        """Write one event with all numbers of a step."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in _numbers(values)]
        self._write(Event(step=step, wall_time=time.time(), summary=Summary(value=scalars)))

    def trace(self, step: int, question: str, answer: str, metadata: Fields) -> None:
        """Do nothing: TensorBoard has no traces."""

    def rewind(self, lines: list[Record], step: int) -> None:
        """Let TensorBoard hide all events from `step` on, and write those of `step` again."""
        self.close()
        self._purge_step = step
        for values in lines:
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
            # The library's file names contain the time in seconds; the number of files makes them unique.
            suffix = f".{len(list(self._folder.glob('*')))}"
            self._file = EventsWriter(str(self._folder / "events"), suffix)
            if self._purge_step is not None:  # after this event TensorBoard hides earlier events from the step on
                log = SessionLog(status=SessionLog.START)
                self._file.write_event(Event(step=self._purge_step, wall_time=time.time(), session_log=log))
        self._file.write_event(event)
        self._file.flush()


class WeightsAndBiases:
    """Log to a project of Weights & Biases, or to the run folder if WANDB_MODE is `offline`.

    A resumed run logs to the same W&B run. Raises InputError if the package is missing or fails to start.
    """

    def __init__(self, folder: Path, project: str, config: Fields) -> None:
        wandb, run_id = _import_package("wandb"), _run_id(folder, "wandb")
        try:
            self._run = wandb.init(
                project=project,
                id=run_id,
                name=folder.name,
                dir=str(folder),
                config=dict(config),
                resume="allow",
                settings=wandb.Settings(console="off", silent=True),  # the terminal is the display's
            )
        except wandb.Error as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"run.trackers: wandb: {first_line} (WANDB_MODE=offline logs to the run folder)"
            ) from error
        # W&B's own step cannot decrease, and a resumed run may start before the last logged step.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Fields) -> None:
        """Log the numbers of a step."""
        self._run.log({"step": step, **dict(_numbers(values))})

    def trace(self, step: int, question: str, answer: str, metadata: Fields) -> None:
        """Do nothing: traces need another product, Weave."""

    def rewind(self, lines: list[Record], step: int) -> None:
        """Do nothing: a repeated step overwrites itself with equal numbers."""

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


class Trackio:
    """Log numbers and traces to Trackio's local store (see `trackio show`), or where its environment variables point.

    A resumed run logs to the same Trackio run. Raises InputError if the package is missing or fails to start.
    """

    def __init__(self, folder: Path, project: str, config: Fields) -> None:
        self._trackio, run_id = _import_package("trackio"), _run_id(folder, "trackio")
        try:
            self._run = self._trackio.init(
                project=project,
                name=f"{folder.name}-{run_id}",
                config=json.loads(json.dumps(config)),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"run.trackers: trackio: {first_line}") from error

    def write(self, step: int, values: Fields) -> None:
        """Log the numbers of a step."""
        self._run.log(dict(_numbers(values)), step=step)

    def trace(self, step: int, question: str, answer: str, metadata: Fields) -> None:
        """Log a question and its answer as a trace."""
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        self._run.log({"answer": self._trackio.Trace(messages=messages, metadata=dict(metadata))}, step=step)

    def rewind(self, lines: list[Record], step: int) -> None:
        """Do nothing: a repeated step appears twice with equal numbers."""

    def close(self) -> None:
        """Finish the Trackio run; a second call does nothing."""
        if self._run is not None:
            self._run.finish()
        self._run = None


def open_trackers(
    folder: Path, names: Sequence[str], project: str, config: Fields, is_first: bool = True
) -> tuple[Tracker, ...]:
    """Return the trackers with these names for a run; empty unless this is the first of the run's processes.

    `names` are of `tensorboard`, `wandb` and `trackio`; `project` is the project of the last two, and `config` the
    settings that they show.
    """
    if not is_first:
        return ()
    factories: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(folder / "tb"),
        "wandb": lambda: WeightsAndBiases(folder, project, config),
        "trackio": lambda: Trackio(folder, project, config),
    }
    return tuple(factories[name]() for name in dict.fromkeys(names))


def _import_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"run.trackers: the package {name} is missing (pip install 'jaxrl-sql[{name}]')") from error


def _run_id(folder: Path, tracker: str) -> str:
    """Return the id of a run in a tracker; it is stored in the run folder, so a resumed run has the same id."""
    id_path = folder / f"{tracker}-id"
    run_id = id_path.read_text(encoding="utf-8").strip() if id_path.exists() else uuid.uuid4().hex[:8]
    id_path.write_text(run_id, encoding="utf-8")
    return run_id


def _numbers(values: Fields) -> list[tuple[str, float]]:
    """Return the finite numbers."""
    return [
        (name, float(value))
        for name, value in values.items()
        if value is not None and not isinstance(value, str) and math.isfinite(value)
    ]
