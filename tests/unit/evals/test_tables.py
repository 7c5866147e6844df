"""An evaluation's tables: many levels of difficulty stand apart, and cost no number on a narrow terminal."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

from jaxrl_sql.evals.numbers import Counts, judged
from jaxrl_sql.evals.tables import tables
from jaxrl_sql.evals.verdict import Verdict
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.types import Example


class Terminal(io.StringIO):
    """Collect what is written, as a stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("count", [3, 8, 14])
def test_rules_and_shares_are_never_cut(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    examples = [Example(f"q{i}", f"d{i % 4}", "db", "?", "SELECT 1", difficulty=f"level-{i:02}") for i in range(count)]
    scores = {"bird": 1.0, "test_suite": 0.0}
    verdicts = [Verdict(one.uid, "SELECT 1", "ok", scores=scores) for one in examples]
    records = [{**dataclasses.asdict(verdict), "id": verdict.uid, "answer": ""} for verdict in verdicts]
    made = tables(judged("s", "bird", examples, [records], Counts()))
    stream = Terminal()
    for table in made:
        show_table(stream, *table)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert any(line.split()[:3] == ["bird", "*", "100.0"] for line in shown)
    assert any(line.split()[:2] == ["test_suite", "0.0"] for line in shown)
    apart = [line.split() for line in shown if re.match(r" *level-", line)]
    assert apart == ([[f"level-{i:02}", "1", "100.0", "0.0"] for i in range(count)] if count > 3 else [])
    assert max(map(len, shown)) <= 80
