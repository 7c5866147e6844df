"""The comparison with other stacks: its work, its table, our side as a process, and processes that end early."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/bench_stacks.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("bench_stacks")


def work_of(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["bench_stacks.py", *arguments])
    return script.parse_arguments()[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", *arguments], capture_output=True, text=True, check=False
    )


def test_options_replace_parts_of_the_work(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(script, monkeypatch, "--quick", "--turns", "4", "--prompt-tokens", "32", "--kl", "0")
    assert (work.shape, work.prompts, work.prompt_tokens, work.kl) == ("tiny", 2, 32, 0.0)
    assert work.steps == 2 + 4 + 1
    assert work_of(script, monkeypatch, "--quick", "--warm-up", "0").steps == 0 + 1 + 1


def test_processes_share_the_memory_unless_each_has_its_own_time(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert work_of(script, monkeypatch, "--quick", "--stacks", "ours", "trl").device_share == 0.45
    assert work_of(script, monkeypatch, "--quick", "--restart").device_share == 0.9


@pytest.mark.parametrize("arguments", [["--micro-batches", "3"], ["--dtype", "float16"], ["--group", "1"]])
def test_work_that_cannot_be_divided_is_refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        work_of(script, monkeypatch, "--quick", *arguments)
    assert arguments[1] in capsys.readouterr().err


def test_prompts_of_a_step_are_the_same_for_all_stacks_and_differ_between_steps(script: ModuleType) -> None:
    from stack_worker import prompts_of

    first, again, second = (prompts_of(script.QUICK, step, 40) for step in (0, 0, 1))
    assert first == again != second
    assert [len(ids) for ids in first] == [script.QUICK.prompt_tokens] * script.QUICK.prompts
    assert {i for ids in first for i in ids} <= set(range(1, 39))


def test_table_has_each_stack_and_ratios_within_turns(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    from harness import Goal, Report
    from stack_worker import Step

    def step(seconds: float) -> Any:
        parts = dict(zip(script.PHASES, (seconds / 2, seconds / 4, seconds / 4, seconds), strict=True))
        return Step(parts, {"peak memory": 100 * seconds})

    results = {
        "ours": [step(1.0), step(2.0), step(1.0)],
        "trl": [step(3.0), step(4.0), step(5.0)],
    }
    report = Report(argparse.Namespace(quick=False, turns=3, json=None))
    script.add_figures(report, script.QUICK, results, Goal(2.3))
    rows = {(figure.name, figure.column): figure.median for figure in report.figures}
    assert (rows["step", "ours"], rows["step", "trl"]) == (1.0, 4.0)
    assert rows["step", "trl / ours"] == 3.0
    assert rows["completion tokens in the rollout", "trl"] == script.QUICK.tokens / 2
    assert rows["peak memory", "trl"] == 500
    assert rows["step, the fastest other stack / ours", ""] == 3.0
    assert report.finish() == 0
    assert "at least 2.3 | met |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [[], ["--lora", "4", "--checkpointing", "1", "--micro-batches", "2", "--kl", "0"]]
)
def test_our_process_does_the_work(arguments: list[str], tmp_path: Path) -> None:
    """The whole weights in float32, and adapters with recomputed activations in two processes, one per turn."""
    out = tmp_path / "result.json"
    restart = ["--restart", "--turns", "2", "--dtype", "bfloat16"] if arguments else []
    done = run("--stacks", "ours", *arguments, *restart, "--json", str(out))
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["name"]: row["median"] for row in result["rows"]}
    assert set(rows) == {
        "rollout", "reference", "update", "step", "completion tokens in the rollout",
        "completion tokens in the step", "peak memory", "start, loading and warm-up",
    }  # fmt: skip
    assert min(rows.values()) > 0
    assert sum(rows[phase] for phase in ("rollout", "reference", "update")) == pytest.approx(rows["step"], rel=0.2)
    assert result["work"]["prompts"] == 2
    assert result["stacks"]["ours"]["platform"] == "cpu"
    assert result["machine"]["device"] == "cpu"
    assert "| step (s) |" in done.stdout


@pytest.mark.slow
def test_process_that_ends_early_is_reported_with_its_log() -> None:
    done = run("--stacks", "trl", "--python", f"trl={sys.executable} -c 'raise ValueError(5)'")
    assert done.returncode == 1
    assert "bench_stacks: trl ended with code 1:" in done.stderr
    assert "ValueError: 5" in done.stderr
