"""Tables fit a terminal without truncating names or numbers; in a log each row is one line."""

from __future__ import annotations

import io
import re

import pytest

from jaxrl_sql.runtime.tables import show_table


class Terminal(io.StringIO):
    """Collect output, as a stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_log_has_one_line_per_row() -> None:
    stream = io.StringIO()
    show_table(stream, "a [title]", ("rule", "%"), [("test_suite *", "81.7"), ("[bird]", "9.0")])
    shown = [line.split() for line in stream.getvalue().splitlines() if line.strip()]
    assert [line for line in shown if "─" not in line[0]] == [
        ["a", "[title]"], ["rule", "%"], ["test_suite", "*", "81.7"], ["[bird]", "9.0"],
    ]  # fmt: skip


def test_lines_of_a_log_have_no_trailing_blanks() -> None:
    stream = io.StringIO()
    show_table(stream, "", ("part", "state", "advice"), [("jax", "0.10", ""), ("disk", "word " * 60, "x")], (0, 1, 2))
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) <= 160


def test_text_wraps_and_numbers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    message = "a reason that is longer than the line is wide"
    show_table(stream, "t", ("name", "why", "95 %\ninterval"), [("column_order", message, "77.4–79.8")], (0, 1))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert "column_order" in shown
    assert "77.4–79.8" in shown
    assert message not in shown
    assert all(word in shown for word in message.split())
    assert max(map(len, shown.splitlines())) <= 44
