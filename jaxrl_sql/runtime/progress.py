"""Progress of a command: its current tasks, their counts and time left, and the programs that XLA compiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SILENCE_S = 8.0
"""Seconds without output after which a log gets a progress line; users are promised one every ten seconds."""
BEAT_S = 0.5
"""Seconds between checks whether a progress line is due."""

UNNAMED = "unnamed"
"""The name of compiled programs whose name is unknown."""

ProgressCallback = Callable[[int], None]
"""Callback: number of units done."""


def no_progress(_done: int) -> None:
    """Report nothing; the default of a `ProgressCallback`."""


class Tally:
    """Add amounts that are done, also from several threads, and report their sum in units of `unit`, rounded down.

    For example, with bytes as amounts and a `unit` of 1 << 20 it reports MiB.
    """

    def __init__(self, on_progress: ProgressCallback = no_progress, unit: int = 1) -> None:
        self._on_progress, self._unit = on_progress, unit
        self._total, self._lock = 0, threading.Lock()

    def add(self, amount: int = 1) -> None:
        """Add an amount and report the sum."""
        with self._lock:
            self._total += amount
            self._on_progress(self._total // self._unit)


_SINGULAR_VERBS = {"are": "is", "have": "has", "were": "was"}


def agree(number: int, verb: str) -> str:
    """Return a plural verb, such as `have`, in the form that agrees with a number: the singular for 1."""
    return verb if number != 1 else _SINGULAR_VERBS.get(verb, f"{verb}s")


def quantity(number: int, unit: str, verb: str = "") -> str:
    """Return a number with its plural unit and verb, such as `1,200 sets have`; those of 1 are singular."""
    singular = f"{unit.removesuffix('ies')}y" if unit.endswith("ies") else unit.removesuffix("s")
    return f"{number:,} {singular if number == 1 else unit}{f' {agree(number, verb)}' if verb else ''}"


@dataclass
class CompileStats:
    """Count compiled programs and their seconds; `name` is the program that is being compiled since `since` ("": none).

    Of the programs whose name is in `names`, `counted` of about `expected` (0: unknown) are compiled. `by_name` has the
    number of programs and their seconds under each name, and `recent` those since the last `take_recent`.

    Compiled programs take memory mappings, whose number Linux limits (`inference.compiling.drop_programs`). Programs
    are dropped when they take the share `drop_share` of all mappings. `checked_programs` is the number of programs at
    the last check, and `is_dropped` is true from a drop until the next check.
    """

    programs: int = 0
    seconds: float = 0.0
    name: str = ""
    since: float = 0.0
    names: frozenset[str] = frozenset()
    counted: int = 0
    expected: int = 0
    by_name: dict[str, tuple[int, float]] = field(default_factory=dict)
    recent: dict[str, tuple[int, float]] = field(default_factory=dict)
    checked_programs: int = 0
    drop_share: float = 0.6
    is_dropped: bool = False

    def expect(self, names: frozenset[str], programs: int) -> None:
        """Expect a number of programs of these names."""
        self.names, self.expected = names, programs

    def start(self, name: str, now: float) -> None:
        """Record that a program's compilation starts at `now`."""
        self.since, self.name = now, name

    def finish(self, seconds: float) -> None:
        """Record the end of a compilation; nested programs, and those without a recorded start, count too."""
        self.counted += self.name in self.names
        for counts in (self.by_name, self.recent):
            programs, total_s = counts.get(self.name or UNNAMED, (0, 0.0))
            counts[self.name or UNNAMED] = programs + 1, total_s + seconds
        self.programs, self.seconds, self.name = self.programs + 1, self.seconds + seconds, ""

    def take_recent(self) -> dict[str, float]:
        """Return the metrics of the programs that were compiled since the last call."""
        recent, self.recent = self.recent, {}
        metrics = {"time/compile": sum(seconds for _, seconds in recent.values())}
        for name, (programs, seconds) in recent.items():
            metrics |= {f"time/compile/{name}": seconds, f"time/programs/{name}": programs}
        return metrics

    def most_compiled(self, count: int = 5) -> str:
        """Return the names that compiled longest, such as `8 update (1 min 2 s), 52 prefill_chunk (40 s)`."""
        names = sorted(self.by_name, key=lambda name: self.by_name[name][1], reverse=True)[:count]
        return ", ".join(f"{self.by_name[name][0]} {name} ({duration(self.by_name[name][1])})" for name in names)

    def elapsed(self, now: float) -> float:
        """Return the seconds of compilation, including the program that is being compiled."""
        return self.seconds + (now - self.since if self.name else 0.0)

    def text(self, now: float) -> str:
        """Return a line such as `compiling update (program 7 of about 34), 5 s`; "" if nothing is being compiled."""
        name = self.name
        if not name:
            return ""
        suffix = f" of about {self.expected}" if self.expected > self.counted else ""
        position = f" (program {self.counted + 1}{suffix})" if name in self.names else ""
        return f"compiling {name}{position}, {duration(now - self.since)}"


@dataclass
class Task:
    """A task: its name, its total in units (0: unknown), and the units done (None: unknown).

    `start_time` is its start, and `compile_seconds` the seconds of compilation before it, both by the activity's clock.
    `done_at_start` are the units that were done before this process, as in a resumed command (None: unknown).
    """

    name: str
    total: int
    unit: str
    start_time: float
    compile_seconds: float
    done: int | None = None
    done_at_start: int | None = None

    def update(self, done: int) -> None:
        """Set the number of units done; the first call also sets the number done before the task started."""
        self.done_at_start = done if self.done_at_start is None else self.done_at_start
        self.done = done

    @property
    def headline(self) -> str:
        """Return the name and the total."""
        return f"{self.name}: {quantity(self.total, self.unit)}" if self.total else self.name

    def text(self, now: float) -> str:
        """Return the progress as text."""
        done = "" if self.done is None else f"{self.done:,} of " if self.total else quantity(self.done, self.unit)
        amount = f"{done}{quantity(self.total, self.unit)}" if self.total else done
        return f"{self.name}: {amount + ', ' if amount else ''}{duration(now - self.start_time)}"

    def time_left(self, now: float, compile_seconds: float) -> str:
        """Return the time left at the pace so far, without compilation; "" if unknown."""
        finished = (self.done or 0) - (self.done_at_start or 0)
        if finished <= 0 or self.total <= (self.done or 0):
            return ""
        seconds = max(now - self.start_time - (compile_seconds - self.compile_seconds), 0.0)
        return duration(seconds / finished * (self.total - (self.done or 0)))


@dataclass
class Activity:
    """The running tasks, each nested in the one before it; `text` is thread-safe.

    `announce` prints the first line of a task, `clock` counts seconds. `total_s` are the seconds from the start until
    `finish`, None before it.
    """

    announce: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    compile_stats: CompileStats = field(default_factory=CompileStats)
    tasks: tuple[Task, ...] = ()
    start_time: float = field(init=False)
    total_s: float | None = None

    def __post_init__(self) -> None:
        """Start the clock."""
        self.start_time = self.clock()

    @contextmanager
    def task(
        self, name: str, total: int = 0, unit: str = "", *, is_announced: bool = True
    ) -> Iterator[ProgressCallback]:
        """Run a task of `total` units; yield its progress callback. `is_announced`: print a line at its start."""
        now = self.clock()
        task = Task(name, total, unit, now, self.compile_stats.elapsed(now))
        if is_announced:
            self.announce(task.headline)
        self.tasks = (*self.tasks, task)  # replaced, not mutated: another thread reads it
        try:
            yield task.update
        finally:
            self.tasks = tuple(other for other in self.tasks if other is not task)

    def text(self) -> str:
        """Return the progress of all tasks as one line; "" if none is running."""
        tasks = self.tasks
        if not (tasks or self.compile_stats.name):
            return ""
        now = self.clock()
        parts = [task.text(now) for task in tasks]
        if parts and (remaining := tasks[-1].time_left(now, self.compile_stats.elapsed(now))):
            parts[-1] += f", {remaining} left"
        compiling = self.compile_stats.text(now)
        return "; ".join([*parts, compiling] if compiling else parts)

    def finish(self) -> float:
        """Return the seconds from the start to the first call of `finish`, so that all reports have equal durations."""
        self.total_s = self.clock() - self.start_time if self.total_s is None else self.total_s
        return self.total_s

    def working_s(self) -> float:
        """Return the clock's seconds without compilation, for estimates of the pace."""
        return self.clock() - self.compile_stats.seconds


class Heartbeat:
    """Call `beat` every `every_s` seconds in a thread, from `start` until `stop`."""

    def __init__(self, beat: Callable[[], None], every_s: float) -> None:
        self._beat, self._every_s = beat, every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it is running or `every_s` is 0."""
        if self._thread is None and self._every_s and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a call of `beat` in progress."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._beat()
            except (OSError, ValueError):  # the output is closed; the command continues
                return


def duration(seconds: float) -> str:
    """Return seconds as text, such as `3 min 16 s`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
