"""The shared parts of the benchmark scripts: turns, goals, the table, the exit code and the JSON result."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/harness.py"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("harness", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "harness", module)  # a dataclass looks up its module
    spec.loader.exec_module(module)
    return module


def options_of(harness: ModuleType, *arguments: str) -> argparse.Namespace:
    return harness.make_parser("A benchmark.", turns=4).parse_args(arguments)


def test_variants_take_turns_and_warm_up_turns_are_dropped(harness: ModuleType) -> None:
    calls: list[str] = []

    def variant(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = harness.run_turns({name: lambda name=name: variant(name) for name in "ab"}, 2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_rotated_turns_start_with_another_variant_each(harness: ModuleType) -> None:
    calls: list[str] = []
    variants = {name: lambda name=name: calls.append(name) for name in "abc"}
    assert harness.run_turns(variants, 3, warm_up=0, rotate=True) == {name: [None] * 3 for name in "abc"}
    assert "".join(calls) == "abcbcacab"


def test_goal_is_a_lower_or_an_upper_limit(harness: ModuleType) -> None:
    least, most = harness.Goal(1.5), harness.Goal(1.5, at_most=True)
    assert [least.is_met(value) for value in (1.4, 1.5, 1.6)] == [False, True, True]
    assert [most.is_met(value) for value in (1.4, 1.5, 1.6)] == [True, True, False]
    assert (str(least), str(most)) == ("at least 1.5", "at most 1.5")


def test_ratios_are_taken_within_a_turn(harness: ModuleType) -> None:
    assert harness.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        harness.ratios([2.0, 9.0], [1.0])


def test_quick_run_has_one_turn_unless_turns_are_named(harness: ModuleType) -> None:
    turns = [
        harness.Report(options_of(harness, *arguments)).turns
        for arguments in ((), ("--quick",), ("--turns", "3"), ("--quick", "--turns", "3"))
    ]
    assert turns == [4, 1, 3, 3]


@pytest.mark.parametrize(("arguments", "code"), [((), 1), (("--quick",), 0)])
def test_missed_goal_sets_the_exit_code_of_a_full_run_alone(
    harness: ModuleType, arguments: tuple[str, ...], code: int
) -> None:
    report = harness.Report(options_of(harness, *arguments))
    report.add("fast enough", [1.0, 3.0, 2.0], "x", harness.Goal(2.0))
    assert report.finish() == 0
    report.add("too slow", 0.5, "x", harness.Goal(2.0))
    assert report.finish() == code


def test_rows_hold_median_spread_goal_and_verdict(harness: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    report = harness.Report(options_of(harness))
    report.add("rate", [1000.0, 3000.4, 2000.0], "queries/s", harness.Goal(2500.0))
    report.add("share", 0.12345)
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert rows == [
        "| rate | 2,000 queries/s | 1,000 to 3,000 | at least 2,500 | missed |",
        "| share | 0.123 |  |  |  |",
    ]


def test_json_result_holds_rows_command_date_machine_and_load(
    harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["scripts/bench_x.py", "--turns", "3", "--json", str(path)])
    report = harness.Report(options_of(harness, *sys.argv[1:]))
    report.add("seconds", [3.0, 1.0, 2.0], "s", harness.Goal(2.5, at_most=True))
    report.add("tokens", 4096.4, column="second shape")
    report.add("files", 542)
    assert report.finish() == 0
    result = json.loads(path.read_text(encoding="utf-8"))
    assert '"median": 542}' in path.read_text(encoding="utf-8")
    assert result["rows"] == [
        {"name": "seconds", "median": 2.0, "spread": [1.0, 3.0], "unit": "s", "goal": "at most 2.5", "is_met": True},
        {"name": "tokens", "column": "second shape", "median": 4096},
        {"name": "files", "median": 542},
    ]
    assert result["benchmark"] == "x"
    assert result["command"] == "python scripts/bench_x.py --turns 3"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", result["date"])
    assert result["machine"]["cores"] >= 1
    assert {"processor", "system", "python"} <= set(result["machine"])
    assert set(result["load"]) == {"start", "end"}
    assert result["turns"] == 3
    assert result["is_quick"] is False


@pytest.mark.parametrize("option", [["--json", "a.json"], ["--json=a.json"]])
def test_command_of_a_result_omits_the_json_file(harness: ModuleType, option: list[str]) -> None:
    assert harness.without_json(["--quick", *option, "--turns", "2"]) == ["--quick", "--turns", "2"]


def test_printed_row_names_column_and_note(harness: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    harness.Report(options_of(harness)).add("ours", 2.0, "s", column="mix", note="3 ran")
    assert capsys.readouterr().out.splitlines()[-1] == "| mix, ours (3 ran) | 2 s |  |  |  |"
