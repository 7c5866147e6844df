"""Display of a run's progress: a live table on a terminal, one output in a notebook, plain lines elsewhere."""

from __future__ import annotations

import io
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from threading import RLock
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxrl_sql.runtime.progress import BEAT_S, SILENCE_S, Activity, Heartbeat, ProgressCallback, duration
from jaxrl_sql.runtime.tables import to_rich_text
from jaxrl_sql.runtime.terminal import print_text

Values = Mapping[str, float | int | str]
_MIN_PACE_S = 1.0
# A notebook's output has this many notes (lines that stay) of this many characters.
_MAX_NOTES, _NOTEBOOK_WIDTH = 30, 110

STEP_METRICS: tuple[tuple[str, str, str], ...] = (
    ("sft/loss", "loss", ".3f"),
    ("reward/mean", "reward", ".3f"),
    ("status/ok", "runs", ".1%"),  # share of statuses that are `ok`: the SQL of the answer runs
    ("policy/entropy", "entropy", ".3f"),
    ("speed/tokens_per_s", "tokens/s", ",.0f"),
    ("speed/sql_per_s", "SQL/s", ",.0f"),
    ("time/step", "s/step", ".2f"),
    ("spent/requests", "requests", ",.0f"),
    ("spent/prompt_tokens", "prompt tokens", ",.0f"),
    ("spent/completion_tokens", "completion tokens", ",.0f"),
    ("spent/cost", "cost", ",.4f"),
)
"""Metrics on a step's line: (metric, label, format); `eval/<split>/accuracy` follows with the label `accuracy`."""

PANEL_METRICS: tuple[tuple[str, str, str], ...] = (
    ("reward/well_formed", "well formed", ".1%"),
    ("reward/std_within_group", "reward std", ".3f"),
    ("reward/zero_variance", "zero variance", ".1%"),
    ("length/truncated", "truncated", ".1%"),
    ("policy/ratio_mean", "ratio", ".4f"),
    ("policy/clip_fraction_low", "clipped low", ".2%"),
    ("policy/clip_fraction_high", "clipped high", ".2%"),
    ("policy/kl", "KL", ".4f"),
    ("policy/sampler_delta_mean", "sampler delta", ".1e"),
    ("rollout/stale_tokens", "stale tokens", ".1%"),
    ("optim/grad_norm", "grad norm", ".3g"),
)
"""Further metrics of the panel; the reward's parts and the shares of statuses follow under their own names."""


class Display(Protocol):
    """Show the progress of a run; a context manager."""

    @property
    def activity(self) -> Activity:
        """Return the running tasks."""

    def task(
        self, name: str, total: int = 0, unit: str = "", *, is_announced: bool = True
    ) -> AbstractContextManager[ProgressCallback]:
        """Run a task of `total` units; yield its progress callback. `is_announced`: print a line at its start."""

    def set_phases(self, phases: Sequence[tuple[str, int]]) -> None:
        """Set the phases of the run as (name, last step); the last one ends the run."""

    def update(self, step: int, values: Values) -> None:
        """Show the metrics of a step; the value `phase` is the name of its phase."""

    def note(self, text: str) -> None:
        """Print one line that stays."""

    def close(self) -> None:
        """Leave the last state on the terminal and release the terminal."""

    def __enter__(self) -> Self:
        """Return the display."""

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the display."""


def make_display(
    mode: str,
    total_steps: int,
    title: str,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
    unit: str = "step",
    beat_s: float = BEAT_S,
) -> Display:
    """Return the display of a mode: `rich`, `plain`, `none`, or `auto`.

    `auto` is `rich` on a terminal, one output that changes in place in a notebook, and plain lines elsewhere.
    `total_steps` is a number of `unit`s; an empty `title` is not printed. A thread checks every `beat_s` seconds
    whether a progress line is due (`SILENCE_S`); 0 starts no thread. `clock` returns seconds.
    """
    show_text = _notebook() if mode == "auto" and stream is None else None
    stream = stream or sys.stdout
    if mode == "none":
        return _Silent(total_steps, clock, unit)
    if show_text is not None:
        return _Notebook(total_steps, title, show_text, clock, unit, beat_s)
    if mode == "rich" or (mode == "auto" and stream.isatty()):
        return _Live(total_steps, title, Console(file=stream), clock, unit)
    return _Plain(total_steps, title, stream, clock, unit, beat_s)


def _notebook() -> Callable[[str], None] | None:
    """Return a function that shows a text in the running cell, replacing the previous text; None outside notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    show = import_module("IPython.display").display
    handle: list[Any] = []

    def show_text(text: str) -> None:
        data = {"text/plain": text}
        if handle:
            handle[0].update(data, raw=True)
        else:
            handle.append(show(data, raw=True, display_id=True))

    return show_text


class _Silent:
    """Show nothing."""

    def __init__(self, total_steps: int, clock: Callable[[], float], unit: str) -> None:
        self._total, self._unit = total_steps, unit
        self._activity = Activity(self.note, clock)
        self._time_left = _TimeLeft(total_steps, self._activity.working_s)

    @property
    def activity(self) -> Activity:
        return self._activity

    def task(
        self, name: str, total: int = 0, unit: str = "", *, is_announced: bool = True
    ) -> AbstractContextManager[ProgressCallback]:
        self._start_task()
        return self._activity.task(name, total, unit, is_announced=is_announced)

    def set_phases(self, phases: Sequence[tuple[str, int]]) -> None:
        self._total = phases[-1][1] if phases else self._total
        self._time_left = _TimeLeft(self._total, self._activity.working_s, phases)

    def update(self, step: int, values: Values) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _start_task(self) -> None:
        """Start showing progress for a task."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Plain(_Silent):
    """Write one line per step for logs, and a progress line after `SILENCE_S` seconds without output."""

    def __init__(
        self, total_steps: int, title: str, stream: TextIO, clock: Callable[[], float], unit: str, beat_s: float
    ) -> None:
        super().__init__(total_steps, clock, unit)
        self._stream, self._clock = stream, clock
        self._writing = RLock()  # reentrant: a signal may interrupt a write of the same thread
        self._heartbeat = Heartbeat(self.beat, beat_s)
        self._written = 0.0
        if title:
            self._write(title)

    def update(self, step: int, values: Values) -> None:
        parts = [f"{self._unit} {step}/{self._total}", str(values.get("phase", ""))]
        parts += [f"{label} {value}" for label, value in _step_metrics(values).items()]
        if time_left := self._time_left.estimate(step):
            parts.append(f"left {time_left}")
        self.note(" ".join(filter(None, parts)))

    def note(self, text: str) -> None:
        self._write(text)

    def beat(self) -> None:
        """Write a progress line if a task or a compilation runs and the last line is `SILENCE_S` seconds old."""
        if self._clock() - self._written >= SILENCE_S and (line := self._activity.text()):
            self._write(line)

    def close(self) -> None:
        self._heartbeat.stop()

    def _start_task(self) -> None:
        if not self._activity.tasks:
            self._written = self._clock()
        self._heartbeat.start()

    def _write(self, text: str) -> None:
        with self._writing:
            print_text(text, self._stream)
            self._stream.flush()
            self._written = self._clock()


class _Panel(_Silent):
    """A panel with phase, bar, time left, the latest metrics and the running tasks."""

    def __init__(self, total_steps: int, title: str, clock: Callable[[], float], unit: str) -> None:
        super().__init__(total_steps, clock, unit)
        self._title = title
        self._metrics: dict[str, str] = {}
        self._step, self._phase, self._training_phase, self._left_text = 0, "starting", "", ""

    def _store(self, step: int, values: Values) -> None:
        """Store the metrics of a step."""
        self._step, self._left_text = step, self._time_left.estimate(step)
        self._phase = str(values.get("phase", self._phase))
        # When another training phase begins, metrics of the earlier phase are removed, except accuracies.
        if self._phase not in ("eval", self._training_phase):
            self._training_phase = self._phase
            self._metrics = {label: value for label, value in self._metrics.items() if label.startswith("accuracy")}
        self._metrics.update(_step_metrics(values) | _details(values))

    def _render(self) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            to_rich_text(self._phase, "bold"),
            ProgressBar(total=max(self._total, 1), completed=self._step, width=36),
            Text(f"{self._unit} {self._step}/{self._total}"),
            Text(f"{self._left_text} left" if self._left_text else "", style="dim"),
        )
        parts: list[RenderableType] = [head]
        table = Table.grid(padding=(0, 3))
        labels = list(self._metrics)
        for start in range(0, len(labels), 5):
            row = labels[start : start + 5]
            table.add_row(*(to_rich_text(label, "dim") for label in row))
            table.add_row(*(to_rich_text(self._metrics[label], "bold") for label in row))
        if labels:
            parts.append(table)
        if tasks := self._activity.text():
            parts.append(to_rich_text(tasks, "dim"))
        return Panel(Group(*parts) if len(parts) > 1 else head, title=to_rich_text(self._title), title_align="left")


class _Live(_Panel):
    """Keep one panel at the bottom of the terminal, redrawn four times per second; notes scroll above it."""

    def __init__(self, total_steps: int, title: str, console: Console, clock: Callable[[], float], unit: str) -> None:
        super().__init__(total_steps, title, clock, unit)
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)
        self._live.start()

    def update(self, step: int, values: Values) -> None:
        self._store(step, values)
        self._live.refresh()

    def note(self, text: str) -> None:
        self._live.console.print(to_rich_text(text))

    def close(self) -> None:
        self._live.stop()


class _Notebook(_Panel):
    """Show the panel and the last notes as one output of a cell, updated in place at most once per second."""

    def __init__(
        self,
        total_steps: int,
        title: str,
        show: Callable[[str], None],
        clock: Callable[[], float],
        unit: str,
        beat_s: float,
    ) -> None:
        super().__init__(total_steps, title, clock, unit)
        self._show, self._clock = show, clock
        self._notes: deque[str] = deque(maxlen=_MAX_NOTES)
        self._drawing = RLock()
        self._drawn_at = -math.inf
        self._heartbeat = Heartbeat(self.beat, beat_s)
        self._draw()

    def update(self, step: int, values: Values) -> None:
        self._store(step, values)
        self.beat()

    def note(self, text: str) -> None:
        self._notes.append(text)
        self.beat()

    def beat(self) -> None:
        """Redraw, at most once per second."""
        if self._clock() - self._drawn_at >= 1.0:
            self._draw()

    def close(self) -> None:
        self._heartbeat.stop()
        self._draw()

    def _start_task(self) -> None:
        self._heartbeat.start()

    def _draw(self) -> None:
        with self._drawing:
            self._drawn_at = self._clock()
            page = Console(file=io.StringIO(), width=_NOTEBOOK_WIDTH, color_system=None, force_jupyter=False)
            page.print(self._render())
            for note in list(self._notes):
                page.print(to_rich_text(note))
            self._show(page.file.getvalue().rstrip())  # type: ignore[attr-defined]


class _TimeLeft:
    """Estimate the time left in a phase from the pace of its last steps.

    The first step is ignored: it includes one-time work. Answers often end several at a time, so a pace measured over
    less than `_MIN_PACE_S` seconds is unknown. `clock` counts seconds without compilation.
    """

    def __init__(self, total_steps: int, clock: Callable[[], float], phases: Sequence[tuple[str, int]] = ()) -> None:
        self._clock = clock
        self._phases = [(name, last) for name, last in phases if last] or [("", total_steps)]
        self._phase_index = 0
        self._history: list[tuple[int, float]] = []

    def estimate(self, step: int) -> str:
        """Return the time left after a step, such as `3 min 16 s`; empty if unknown.

        Before the last phase it is `20 s of sft`: the pace of later phases is unknown.
        """
        index = next((i for i, (_, last) in enumerate(self._phases) if step <= last), len(self._phases) - 1)
        if index != self._phase_index:
            self._phase_index, self._history = index, []
        self._history = [*self._history, (step, self._clock())][-30:]
        first_step, first_time = self._history[0]
        name, last = self._phases[index]
        is_last = index == len(self._phases) - 1
        seconds = self._history[-1][1] - first_time
        if step <= first_step or seconds < _MIN_PACE_S or (step >= last and not is_last):
            return ""
        remaining = duration(seconds / (step - first_step) * max(last - step, 0))
        return remaining if is_last else f"{remaining} of {name}"


def _details(values: Values) -> dict[str, str]:
    """Return the panel's further metrics by label."""
    displayed = {name for name, _, _ in (*STEP_METRICS, *PANEL_METRICS)}
    parts = [(name, name.replace("/", " "), ".3f") for name in values if name.startswith("reward/")]
    shares = [(name, name.partition("/")[2], ".1%") for name in values if name.startswith("status/")]
    rest = [row for row in (*parts, *shares) if row[0] not in displayed]
    return _format_values(values, (*PANEL_METRICS, *rest))


def _format_values(values: Values, rows: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    entries = ((label, values.get(name), form) for name, label, form in rows)
    return {label: format(value, form) for label, value, form in entries if isinstance(value, int | float)}


def _step_metrics(values: Values) -> dict[str, str]:
    """Return the metrics of a step's line by label, in display order."""
    readings = _format_values(values, STEP_METRICS)
    evals = [name for name in values if name.startswith("eval/") and name.endswith("/accuracy")]
    for name in evals:
        value = values[name]
        if isinstance(value, int | float):
            split = name.split("/")[1]
            readings[f"accuracy {split}" if len(evals) > 1 else "accuracy"] = format(value, ".1%")
    return readings
