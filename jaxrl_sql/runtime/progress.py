"""What a command does now, how far it is, and what is compiled for it: said where nothing else is heard for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SILENCE_S = 8.0
"""After so many seconds without a line a log gets one: one in ten at least, and two for a machine that is busy."""
BEAT_S = 0.5
"""How often it is looked whether a line is due."""

Tick = Callable[[int], None]
"""What is told how much of a work is done."""


@dataclass
class Compiled:
    """The programs that have been compiled, the seconds that took, and the one that is being compiled now ("": none).

    Of those whose name is in `names`, `counted` are compiled of about `expected` (0: nobody knows). `looked_after`: how
    many there were when somebody last saw to what they take, who does so from the share `crowded` on.
    """

    programs: int = 0
    seconds: float = 0.0
    name: str = ""
    since: float = 0.0
    names: frozenset[str] = frozenset()
    counted: int = 0
    expected: int = 0
    looked_after: int = 0
    crowded: float = 0.6
    is_dropped: bool = False

    def expect(self, names: frozenset[str], programs: int) -> None:
        """Expect a number of programs of these names."""
        self.names, self.expected = names, programs

    def begins(self, name: str, now: float) -> None:
        """Take note that a program is being compiled since `now`."""
        self.since, self.name = now, name

    def ends(self, seconds: float) -> None:
        """Take note that it is compiled; a second program within it, or one that nobody saw begin, counts as well."""
        self.counted += self.name in self.names
        self.programs, self.seconds, self.name = self.programs + 1, self.seconds + seconds, ""

    def spent(self, now: float) -> float:
        """Return the seconds that compiling took, those of the program that is being compiled too."""
        return self.seconds + (now - self.since if self.name else 0.0)

    def words(self, now: float) -> str:
        """Return what is being compiled, such as `compiling update (program 7 of about 34), 5 s`; "" for nothing."""
        name = self.name
        if not name:
            return ""
        of = f" of about {self.expected}" if self.expected > self.counted else ""
        place = f" (program {self.counted + 1}{of})" if name in self.names else ""
        return f"compiling {name}{place}, {duration(now - self.since)}"


@dataclass
class Work:
    """A piece of work: what it is, how much of what unit there is (0: not known), and how much is done (None: unknown).

    `began` is when it did, and `compiled` the seconds that had been spent on compiling by then.
    """

    what: str
    total: int
    unit: str
    began: float
    compiled: float
    done: int | None = None
    first: int | None = None

    def at(self, done: int) -> None:
        """Take note of how much is done; the first call says how much was done before it began."""
        self.first = done if self.first is None else self.first
        self.done = done

    @property
    def begins(self) -> str:
        """Return what it is and how much there is to do."""
        return f"{self.what}: {self.total:,} {self.unit}" if self.total else self.what

    def words(self, now: float) -> str:
        """Return where it stands."""
        done = "" if self.done is None else f"{self.done:,} of " if self.total else f"{self.done:,} {self.unit}"
        amount = f"{done}{self.total:,} {self.unit}" if self.total else done
        return f"{self.what}: {amount + ', ' if amount else ''}{duration(now - self.began)}"

    def left(self, now: float, compiled: float) -> str:
        """Return how long the rest takes at the pace so far, without what compiling took; "" while it is not known."""
        made = (self.done or 0) - (self.first or 0)
        if made <= 0 or self.total <= (self.done or 0):
            return ""
        seconds = max(now - self.began - (compiled - self.compiled), 0.0)
        return duration(seconds / made * (self.total - (self.done or 0)))


@dataclass
class Activity:
    """The works that are open, each within the one before it; any thread may ask for `words`.

    `tell` shows the line that a work begins with, `clock` counts seconds.
    """

    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    compiled: Compiled = field(default_factory=Compiled)
    works: tuple[Work, ...] = ()
    began: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count."""
        self.began = self.clock()

    @contextmanager
    def work(self, what: str, total: int = 0, unit: str = "", *, is_told: bool = True) -> Iterator[Tick]:
        """Do a work of `total` units; yield what is told how much is done. Its beginning is a line where `is_told`."""
        now = self.clock()
        one = Work(what, total, unit, now, self.compiled.spent(now))
        if is_told:
            self.tell(one.begins)
        self.works = (*self.works, one)  # never changed in place: another thread reads it
        try:
            yield one.at
        finally:
            self.works = tuple(other for other in self.works if other is not one)

    def words(self) -> str:
        """Return one line on where the work stands; "" where nothing is being done."""
        works = self.works
        if not (works or self.compiled.name):
            return ""
        now = self.clock()
        parts = [one.words(now) for one in works]
        if parts and (left := works[-1].left(now, self.compiled.spent(now))):
            parts[-1] += f", {left} left"
        compiling = self.compiled.words(now)
        return "; ".join([*parts, compiling] if compiling else parts)

    def working_s(self) -> float:
        """Return the seconds of the clock without those of compiling: what a pace is counted by."""
        return self.clock() - self.compiled.seconds


class Heartbeat:
    """Calls `beat` every `every_s` seconds, in a thread of its own, from `start` until `stop`."""

    def __init__(self, beat: Callable[[], None], every_s: float) -> None:
        self._beat, self._every_s = beat, every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun; with `every_s` of 0 nothing is ever called."""
        if self._thread is None and self._every_s and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, and wait for the call that is under way."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._beat()
            except (OSError, ValueError):  # who read the output has gone, or it is closed: the work goes on
                return


def duration(seconds: float) -> str:
    """Return seconds as words, such as `3 min 16 s`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
