"""Progress output: amount of work, progress, compilation and remaining time."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxrl_sql.runtime.display import _Notebook, _Plain, make_display
from jaxrl_sql.runtime.progress import SILENCE_S, Activity, CompileStats, Heartbeat, Tally, duration, quantity


class Clock:
    """A clock that advances only when a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_activity(clock: Clock) -> tuple[Activity, list[str]]:
    lines: list[str] = []
    return Activity(lines.append, clock), lines


def test_tally_adds_units_of_several_threads() -> None:
    reports: list[int] = []
    tally = Tally(reports.append, unit=10)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(tally.add, [3] * 100))
    assert reports == [3 * i // 10 for i in range(1, 101)]


def test_task_prints_a_line_and_reports_its_progress() -> None:
    clock = Clock()
    activity, lines = make_activity(clock)
    assert activity.text() == ""
    with activity.task("evaluating dev", 1200, "questions") as on_progress:
        assert lines == ["evaluating dev: 1,200 questions"]
        clock.now = 5.0
        on_progress(300)
        assert "300 of 1,200" in activity.text()
        assert "left" not in activity.text()  # one reading gives no rate
        clock.now = 65.0
        on_progress(600)
        assert activity.text() == "evaluating dev: 600 of 1,200 questions, 1 min 5 s, 2 min 10 s left"
        with activity.task("judging", is_announced=False):
            assert activity.text().startswith("evaluating dev: 600 of 1,200")
            assert "judging" in activity.text()
    assert activity.text() == ""
    assert lines == ["evaluating dev: 1,200 questions"]


def test_failed_task_ends() -> None:
    activity, _ = make_activity(Clock())
    with pytest.raises(KeyError), activity.task("reading"):
        raise KeyError
    assert activity.text() == ""


def test_compilation_is_reported_and_excluded_from_the_time_left() -> None:
    clock = Clock()
    activity, _ = make_activity(clock)
    compile_stats = activity.compile_stats
    compile_stats.names, compile_stats.expected = frozenset({"update", "decode_chunk"}), 4
    with activity.task("answering", 10, "questions") as on_progress:
        on_progress(0)
        clock.now = 8.0
        on_progress(4)
        compile_stats.start("decode_chunk", clock.now)
        clock.now = 100.0
        assert ", 12 s left" in activity.text()
        assert activity.text().endswith("decode_chunk (program 1 of about 4), 1 min 32 s")
        compile_stats.finish(92.0)
        assert "12 s left" in activity.text()
        assert "decode_chunk" not in activity.text()
        compile_stats.start("add", clock.now)  # a small program, which is not counted
        assert "add" in activity.text()
        assert "program" not in activity.text()
        compile_stats.finish(0.0)
        for _ in range(4):
            compile_stats.start("update", clock.now)
            compile_stats.finish(1.0)
        compile_stats.start("update", clock.now)  # more programs than expected
        assert "(program 6)" in activity.text()
    assert (compile_stats.programs, compile_stats.counted) == (6, 5)
    assert compile_stats.most_compiled(2) == "1 decode_chunk (1 min 32 s), 4 update (4 s)"


def test_compiled_programs_are_counted_by_name_since_the_last_line() -> None:
    compile_stats = CompileStats()
    assert compile_stats.take_recent() == {"time/compile": 0}
    for name, seconds in (("update", 2.0), ("add", 0.5), ("update", 3.0)):
        compile_stats.start(name, 0.0)
        compile_stats.finish(seconds)
    assert compile_stats.take_recent() == {
        "time/compile": 5.5,
        "time/compile/update": 5.0,
        "time/programs/update": 2,
        "time/compile/add": 0.5,
        "time/programs/add": 1,
    }
    assert compile_stats.take_recent() == {"time/compile": 0}


def test_log_prints_heartbeats() -> None:
    clock, stream = Clock(), io.StringIO()
    display = make_display("plain", 100, "a run", stream, clock, beat_s=0)
    assert isinstance(display, _Plain)

    def beats(now: float) -> list[str]:
        """Call the display every half second up to `now`; return the new lines."""
        before = len(stream.getvalue().splitlines())
        while clock.now < now:
            clock.now += 0.5
            display.beat()
        return stream.getvalue().splitlines()[before:]

    with display:
        assert beats(60.0) == []  # no task is active
        with display.task("reading train") as on_progress:
            assert beats(60.0 + SILENCE_S - 0.5) == []
            assert beats(90.0) == ["reading train: 8 s", "reading train: 16 s", "reading train: 24 s"]
            display.note("a note")
            assert beats(97.5) == []
            on_progress(7)
            assert len(beats(98.0)) == 1
        assert beats(200.0) == []


def test_log_prints_compilations_without_a_task_every_eight_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    with make_display("plain", 100, "a run", stream, clock, beat_s=0) as display:
        assert isinstance(display, _Plain)
        display.activity.compile_stats.start("_normal", clock.now)
        while clock.now < 20.0:
            clock.now += 0.5
            display.beat()
    assert stream.getvalue().splitlines() == ["a run", "compiling _normal, 8 s", "compiling _normal, 16 s"]


def test_time_left_is_per_phase_and_excludes_compilation() -> None:
    clock, stream = Clock(), io.StringIO()
    with make_display("plain", 0, "a run", stream, clock, beat_s=0) as display:
        display.set_phases([("sft", 4), ("grpo", 104)])
        compile_stats = display.activity.compile_stats

        def step(at: int, phase: str, seconds: float, compiling: float = 0.0) -> str:
            clock.now += seconds + compiling
            compile_stats.seconds += compiling
            display.update(at, {"phase": phase})
            return stream.getvalue().splitlines()[-1].partition(" left ")[2]

        assert step(1, "sft", 1.0, 50.0) == ""
        assert step(2, "sft", 1.0) == "2 s of sft"
        assert step(3, "sft", 1.0, 70.0) == "1 s of sft"
        assert step(4, "sft", 1.0) == ""
        assert step(4, "eval", 30.0) == ""
        assert step(5, "grpo", 9.0, 300.0) == ""
        assert step(6, "grpo", 6.0, 100.0) == "9 min 48 s"
        assert step(104, "grpo", 98 * 6.0) == "0 s"


def test_notebook_updates_one_output_in_place() -> None:
    clock = Clock()
    shown: list[str] = []
    with _Notebook(1000, "a run", shown.append, clock, "step", 0) as display:
        with display.task("grpo", 1000, "steps"):
            for at in range(1000):
                clock.now += 0.05
                display.update(at + 1, {"phase": "grpo", "reward/mean": at / 1000})
        for at in range(99):
            display.note(f"note {at}")
    assert 50 <= len(shown) <= 54  # 50 seconds: one update per second, including both ends
    last = shown[-1].splitlines()
    assert any("step 1000/1000" in line for line in last)
    assert "0.999" in shown[-1]
    assert last[-1] == "note 98"
    assert len(last) < 50
    assert max(map(len, last)) <= 110
    assert "\x1b" not in shown[-1]


def test_heartbeat_runs_until_stopped_or_the_stream_is_closed() -> None:
    beats: list[float] = []
    heart = Heartbeat(lambda: beats.append(time.monotonic()), 0.001)
    heart.start()
    heart.start()  # a second start has no effect
    while len(beats) < 3:
        time.sleep(0.001)
    heart.stop()
    count = len(beats)
    time.sleep(0.02)
    assert len(beats) == count

    def closed() -> None:
        beats.append(0.0)
        raise ValueError

    other = Heartbeat(closed, 0.001)
    other.start()
    while len(beats) == count:
        time.sleep(0.001)
    other.stop()
    assert len(beats) == count + 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (-1.0, "0 s"), (59.6, "1 min 0 s"), (196.0, "3 min 16 s"), (7260.0, "2 h 1 min")],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [(1, "sets", "1 set"), (0, "sets", "0 sets"), (1200, "chips", "1,200 chips"), (1, "MiB", "1 MiB")],
)
def test_units_of_one_are_singular(number: int, unit: str, text: str) -> None:
    assert quantity(number, unit) == text


@pytest.mark.parametrize(
    ("number", "unit", "verb", "text"),
    [
        (1, "prompts", "are", "1 prompt is"),
        (2, "prompts", "are", "2 prompts are"),
        (1, "queries", "differ", "1 query differs"),
    ],
)
def test_verbs_agree_with_their_number(number: int, unit: str, verb: str, text: str) -> None:
    assert quantity(number, unit, verb) == text


def test_task_starts_the_heartbeat_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl_sql.runtime.display.SILENCE_S", 0.0)
    stream = io.StringIO()

    def wait_until(holds: Callable[[], bool]) -> None:
        while not holds():
            time.sleep(0.001)

    with make_display("plain", 1, "t", stream, beat_s=0.001) as display, display.task("waiting", is_announced=False):
        wait_until(lambda: "waiting: 0 s\n" in stream.getvalue())
    count = len(stream.getvalue())
    time.sleep(0.02)
    assert len(stream.getvalue()) == count
