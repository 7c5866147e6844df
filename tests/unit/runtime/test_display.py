"""The progress display of a run: lines in a log, a panel on a terminal, or nothing."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from jaxrl_sql.runtime.display import make_display


class Terminal(io.StringIO):
    """Collect output, as a stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def ticking(seconds: float) -> Callable[[], float]:
    """Return a clock that advances by `seconds` each time it is read."""
    now = [0.0]

    def clock() -> float:
        now[0] += seconds
        return now[0]

    return clock


def test_plain_log_line_by_hand() -> None:
    stream, now = io.StringIO(), [0.0]
    with make_display("auto", 100, "a run", stream, lambda: now[0]) as display:
        display.update(1, {"phase": "grpo", "reward/mean": 0.4123})
        now[0] = 2.0
        display.update(2, {"phase": "grpo", "reward/mean": 0.5, "speed/tokens_per_s": 12345.6, "speed/sql_per_s": 99})
        display.note("checkpoint at 2")
    assert stream.getvalue().splitlines() == [
        "a run",
        "step 1/100 grpo reward 0.412",
        "step 2/100 grpo reward 0.500 tokens/s 12,346 SQL/s 99 left 3 min 16 s",
        "checkpoint at 2",
    ]


def test_log_has_no_time_left_after_answers_that_end_together() -> None:
    stream = io.StringIO()
    with make_display("plain", 52, "t", stream, ticking(0.001), unit="question") as display:
        for step in (1, 14):
            display.update(step, {"phase": "answering"})
    assert stream.getvalue().splitlines() == ["t", "question 1/52 answering", "question 14/52 answering"]


def test_evaluations_name_their_split_if_there_are_several() -> None:
    stream = io.StringIO()
    with make_display("plain", 10, "t", stream) as display:
        display.update(3, {"phase": "eval", "eval/dev/accuracy": 0.25})
        display.update(4, {"phase": "eval", "eval/dev/accuracy": 0.25, "eval/unseen/accuracy": 0.5})
    assert "accuracy 25.0%\n" in stream.getvalue()
    assert "accuracy dev 25.0% accuracy unseen 50.0%" in stream.getvalue()


@pytest.mark.parametrize("mode", ["rich", "auto"])
def test_panel_keeps_the_accuracy_and_drops_the_last_phase(mode: str) -> None:
    stream = Terminal()
    with make_display(mode, 20, "quickstart", stream, ticking(1.0)) as display:
        display.update(1, {"phase": "sft", "sft/loss": 1.234})
        display.update(2, {"phase": "eval", "eval/dev/accuracy": 0.25})
        display.note("[not markup]")
        display.update(3, {"phase": "grpo", "reward/mean": 0.5})
    text = stream.getvalue()
    last = text[text.rindex("quickstart") :]
    assert "[not markup]" in text
    assert all(
        message in last for message in ("grpo", "step 3/20", "reward", "0.500", "accuracy", "25.0%", "17 s left")
    )
    assert "loss" not in last


def test_display_none_writes_nothing() -> None:
    stream = Terminal()
    with make_display("none", 20, "t", stream) as display:
        display.update(1, {"reward/mean": 1.0})
        display.note("x")
    assert stream.getvalue() == ""


def test_panel_shows_update_and_answer_metrics() -> None:
    stream = Terminal()
    values = {
        "phase": "grpo", "reward/mean": 0.5, "reward/format": 0.25, "reward/well_formed": 0.75,
        "reward/zero_variance": 1,
        "reward/std_within_group": 0.125, "status/ok": 0.5, "status/syntax_error": 0.375, "length/truncated": 0.0625,
        "policy/ratio_mean": 1.0, "policy/clip_fraction_low": 0.01, "policy/kl": 0.002,
        "policy/sampler_delta_mean": 1e-6,
        "policy/entropy": 0.9, "optim/grad_norm": 12.34,
    }  # fmt: skip
    with make_display("rich", 20, "t", stream, ticking(1.0)) as display:
        display.update(1, values)
    text = stream.getvalue()
    for shown in (
        "reward format", "0.250", "well formed", "75.0%", "zero variance", "100.0%", "reward std", "0.125", "runs",
        "syntax_error", "37.5%", "truncated", "6.2%", "ratio", "1.0000", "clipped low", "1.00%", "KL", "0.0020",
        "sampler delta", "1.0e-06", "entropy", "0.900", "grad norm", "12.3",
    ):  # fmt: skip
        assert shown in text, shown
    assert text.count("status") == 0
