"""What the terminal shows of a run: a live table where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Values = Mapping[str, float | int | str]

SHOWN: tuple[tuple[str, str, str], ...] = (
    ("sft/loss", "loss", ".3f"),
    ("sft/token_accuracy", "tokens right", ".1%"),
    ("reward/mean", "reward", ".3f"),
    ("status/ok", "runs", ".1%"),
    ("policy/entropy", "entropy", ".3f"),
    ("speed/tokens_per_s", "tokens/s", ",.0f"),
    ("speed/sql_per_s", "SQL/s", ",.0f"),
    ("time/step", "s/step", ".2f"),
    ("spent/requests", "requests", ",.0f"),
    ("spent/prompt_tokens", "tokens read", ",.0f"),
    ("spent/completion_tokens", "tokens written", ",.0f"),
    ("spent/cost", "cost", ",.4f"),
)
"""What a run shows: (metric, its word, its format); `eval/<split>/accuracy` follows under the word `accuracy`."""

DETAILS: tuple[tuple[str, str, str], ...] = (
    ("reward/well_formed", "form right", ".1%"),
    ("reward/std_within_group", "reward spread", ".3f"),
    ("reward/zero_variance", "groups alike", ".1%"),
    ("length/truncated", "cut off", ".1%"),
    ("policy/ratio_mean", "ratio", ".4f"),
    ("policy/clip_fraction_low", "clipped low", ".2%"),
    ("policy/clip_fraction_high", "clipped high", ".2%"),
    ("policy/kl", "KL", ".4f"),
    ("policy/sampler_delta_mean", "sampler delta", ".1e"),
    ("optim/grad_norm", "grad norm", ".3g"),
)
"""What the panel shows beside it, and after it the parts of the reward and the shares of statuses by their names."""


class Display(Protocol):
    """Show a run as it goes; a context manager."""

    def update(self, step: int, values: Values) -> None:
        """Show the values of a step; a word under `phase` names what the run does."""

    def note(self, text: str) -> None:
        """Show one line that stays."""

    def close(self) -> None:
        """Leave the last state on the terminal and give it back."""

    def __enter__(self) -> Self:
        """Return the display."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the display."""


def make_display(
    mode: str,
    total_steps: int,
    title: str,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
    unit: str = "step",
) -> Display:
    """Return the display of a mode: `rich`, `plain`, `none`, or `auto` (rich on a terminal, plain elsewhere).

    `unit` is the word for what `total_steps` counts.
    """
    stream = stream or sys.stdout
    if mode == "none":
        return _Silent()
    if mode == "rich" or (mode == "auto" and stream.isatty()):
        return _Live(total_steps, title, Console(file=stream), clock, unit)
    return _Plain(total_steps, title, stream, clock, unit)


class _Silent:
    """Show nothing."""

    def update(self, step: int, values: Values) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Plain(_Silent):
    """Write a line a step, readable in a log."""

    def __init__(self, total_steps: int, title: str, stream: TextIO, clock: Callable[[], float], unit: str) -> None:
        self._total, self._unit = total_steps, unit
        self._stream = stream
        self._left = _TimeLeft(total_steps, clock)
        self.note(title)

    def update(self, step: int, values: Values) -> None:
        words = [f"{word} {shown}" for word, shown in _readings(values).items()]
        left = self._left.after(step)
        phase = f" {values['phase']}" if "phase" in values else ""
        self.note(f"{self._unit} {step}/{self._total}{phase} {' '.join(words)}{f' left {left}' if left else ''}")

    def note(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class _Live(_Silent):
    """Keep one panel at the foot of the terminal; notes scroll above it."""

    def __init__(self, total_steps: int, title: str, console: Console, clock: Callable[[], float], unit: str) -> None:
        self._total, self._title, self._unit = total_steps, title, unit
        self._left = _TimeLeft(total_steps, clock)
        self._readings: dict[str, str] = {}
        self._step, self._phase, self._trains, self._left_words = 0, "starting", "", ""
        self._live = Live(self._render(), console=console, refresh_per_second=4)
        self._live.start()

    def update(self, step: int, values: Values) -> None:
        self._step, self._left_words = step, self._left.after(step)
        self._phase = str(values.get("phase", self._phase))
        if self._phase not in ("eval", self._trains):  # the last phase's loss says nothing about this one
            self._trains = self._phase
            self._readings = {word: shown for word, shown in self._readings.items() if word.startswith("accuracy")}
        self._readings.update(_readings(values) | _details(values))
        self._live.update(self._render())

    def note(self, text: str) -> None:
        self._live.console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._phase, style="bold"),
            ProgressBar(total=max(self._total, 1), completed=self._step, width=36),
            Text(f"{self._unit} {self._step}/{self._total}"),
            Text(f"{self._left_words} left" if self._left_words else "", style="dim"),
        )
        table = Table.grid(padding=(0, 3))
        words = list(self._readings)
        for start in range(0, len(words), 5):
            row = words[start : start + 5]
            table.add_row(*(Text(word, style="dim") for word in row))
            table.add_row(*(Text(self._readings[word], style="bold") for word in row))
        return Panel(Group(head, table) if words else head, title=self._title, title_align="left")


class _TimeLeft:
    """Estimate how long the rest takes, at the pace of the last steps (the first holds compilation and is left out)."""

    def __init__(self, total_steps: int, clock: Callable[[], float]) -> None:
        self._total, self._clock = total_steps, clock
        self._seen: list[tuple[int, float]] = []

    def after(self, step: int) -> str:
        """Return the time left after a step, such as `3 min 20 s`; empty while it is not known."""
        self._seen = [*self._seen, (step, self._clock())][-30:]
        first_step, first_time = self._seen[0]
        if step <= first_step:
            return ""
        return _duration((self._seen[-1][1] - first_time) / (step - first_step) * max(self._total - step, 0))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _details(values: Values) -> dict[str, str]:
    """Return what there is room for in a panel, by its word."""
    known = {name for name, _, _ in (*SHOWN, *DETAILS)}
    parts = [(name, name.replace("/", " "), ".3f") for name in values if name.startswith("reward/")]
    shares = [(name, name.partition("/")[2], ".1%") for name in values if name.startswith("status/")]
    rest = [row for row in (*parts, *shares) if row[0] not in known]
    return _formatted(values, (*DETAILS, *rest))


def _formatted(values: Values, rows: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    found = ((word, values.get(name), form) for name, word, form in rows)
    return {word: format(value, form) for word, value, form in found if isinstance(value, int | float)}


def _readings(values: Values) -> dict[str, str]:
    """Return what a run shows by its word, in one order."""
    readings = _formatted(values, SHOWN)
    evals = [name for name in values if name.startswith("eval/") and name.endswith("/accuracy")]
    for name in evals:
        value = values[name]
        if isinstance(value, int | float):
            split = name.split("/")[1]
            readings[f"accuracy {split}" if len(evals) > 1 else "accuracy"] = format(value, ".1%")
    return readings
