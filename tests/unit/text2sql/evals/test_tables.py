"""An evaluation's tables: many difficulty levels get their own table, and narrow terminals truncate no number."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.text2sql.evals.numbers import ExcludedCounts, compute_metrics
from jaxrl_sql.text2sql.evals.score_predictions import RULES
from jaxrl_sql.text2sql.evals.tables import tables
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example


class Terminal(io.StringIO):
    """Collect output, as a stream that reports itself as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("count", [3, 8, 14])
@pytest.mark.parametrize("rules", [("bird", "test_suite"), tuple(sorted(RULES))], ids=["two rules", "all rules"])
def test_rules_and_shares_are_never_truncated(
    count: int, rules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    examples = [Example(f"q{i}", f"d{i % 4}", "db", "?", "SELECT 1", difficulty=f"level-{i:02}") for i in range(count)]
    scores = {rule: float(rule == "bird") for rule in rules}
    verdicts = [Verdict(example.uid, "SELECT 1", "ok", scores=scores) for example in examples]
    records = [
        {**dataclasses.asdict(verdict), "id": verdict.uid, "answer": "", "finish_reason": "length"}
        for verdict in verdicts
    ]
    result = tables(compute_metrics("s", "bird", examples, [records], ExcludedCounts()))
    stream = Terminal()
    for table in result:
        show_table(stream, *table)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert any(line.split()[:3] == ["bird", "*", "100.0"] for line in shown)
    assert any(line.split()[:2] == ["test_suite", "0.0"] for line in shown)
    assert max(map(len, shown)) <= 80
    apart = [line.split() for line in shown if re.match(r" *level +of ", line)]
    assert [rule for header in apart for rule in header[2:]] == (list(rules) if count > 3 else [])
    for i in range(count if apart else 0):
        results = [line.split() for line in shown if line.split()[:1] == [f"level-{i:02}"]]
        assert [line[1] for line in results] == ["1"] * len(apart), "a table has another number of questions"
        shares = [share for line in results for share in line[2:]]
        assert shares == [f"{100 * scores[rule]:.1f}" for rule in rules]


@pytest.mark.parametrize(
    ("failed", "phrase"), [(0, ""), (1, ", 1 failing gold counted as wrong"), (2, ", 2 failing golds counted as wrong")]
)
def test_title_counts_failing_golds(failed: int, phrase: str) -> None:
    examples = [Example(f"q{i}", "d", "db", "?", "SELECT 1") for i in range(4)]
    verdicts = [
        Verdict(example.uid, "SELECT 1", "ok", gold_status="schema_error")
        if i < failed
        else Verdict(example.uid, "SELECT 1", "ok", scores={"bird": 1.0})
        for i, example in enumerate(examples)
    ]
    records = [
        {**dataclasses.asdict(verdict), "id": verdict.uid, "answer": "", "finish_reason": "stop"}
        for verdict in verdicts
    ]
    title = tables(compute_metrics("s", "bird", examples, [records], ExcludedCounts()))[0].title
    assert title == f"s: accuracy {25 * (4 - failed):.1f} % of 4 questions{phrase} (* by its own rule)"
