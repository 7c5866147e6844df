"""The first sentence of a report, and the lines of a stopped run, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.report.facts import accuracies, describe_run
from jaxrl_sql.report.groups import RUN, ResultFolder, last_evaluations
from jaxrl_sql.report.html import write_report
from jaxrl_sql.report.load import load_run
from jaxrl_sql.report.outcome import first_sentence, stop_lines

EVALUATED = {"eval/dev/accuracy": 0.25, "eval/dev/count": 40.0}
ROWS = [
    {"step": 1, "phase": "sft", "sft/loss": 2.0},
    {"step": 2, "phase": "sft", "sft/loss": 1.5},
    {"step": 2, "phase": "eval", **EVALUATED},
    {"step": 3, "phase": "grpo", "reward/mean": 0.25, "policy/loss": -0.5},
    {"step": 4, "phase": "grpo", "reward/mean": 0.5, "policy/loss": 0.125},
    {"step": 4, "phase": "eval", **EVALUATED, "eval/dev/accuracy": 0.5},
]
PHASES = [["sft", 2], ["grpo", 4]]


def session(**fields: Any) -> dict[str, Any]:
    times = {"began": "2026-01-02T10:00:00+00:00", "ended": "2026-01-02T10:03:16+00:00", "seconds": 195.6}
    return {**times, "phases": PHASES, "outcome": "complete", **fields}


def write_run(folder: Path, rows: list[dict[str, Any]], *sessions: dict[str, Any], saved: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if sessions:
        (folder / "about.json").write_text(json.dumps({"sessions": sessions}))
    (folder / "config.yaml").write_text(f"run: {{dir: {folder.name}}}\ngrpo: {{steps: 2}}\n")
    if saved:
        (folder / "checkpoints" / str(saved)).mkdir(parents=True)
    return folder


def sentence_of(folder: Path) -> str:
    run = load_run(folder)
    return first_sentence(run, accuracies(run, {}))


def test_sentence_of_a_complete_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", ROWS, session())
    assert sentence_of(folder) == (
        "Accuracy on dev was 25.0 % (95 % interval 13.8 to 40.9) before GRPO and is 50.0 % (34.6 to 65.4) after 4 "
        "steps in 3 min 16 s."
    )
    assert stop_lines(load_run(folder)) == []
    assert dict(describe_run(load_run(folder)))["duration"] == "3 min 16 s", "as the terminal rounds it"


def test_sentence_without_two_evaluations(tmp_path: Path) -> None:
    assert sentence_of(write_run(tmp_path / "a", ROWS[:2], session(phases=PHASES[:1]))) == "2 steps in 3 min 16 s."
    assert sentence_of(write_run(tmp_path / "b", ROWS[:3], session(phases=PHASES[:1]))) == (
        "Accuracy on dev is 25.0 % (95 % interval 13.8 to 40.9) after 2 steps in 3 min 16 s."
    )
    assert sentence_of(write_run(tmp_path / "c", [])) == "No step is recorded."


def test_sentence_has_the_paired_difference_of_known_answers(view_runs: ModuleType, tmp_path: Path) -> None:
    run = load_run(view_runs.write_run(tmp_path / "run"))
    evaluations = last_evaluations(ResultFolder(run.folder, RUN))
    (row,) = accuracies(run, evaluations)
    assert row["difference"] == {"mean": 0.0, "low": -1.0, "high": 1.0}
    assert first_sentence(run, [row]).endswith("after 9 steps, a difference of +0.0 points (-100.0 to +100.0).")


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"outcome": "stopped", "reason": "Ctrl-C"}, "Stopped by Ctrl-C at step 4 of 6 after 3 min 16 s; "),
        ({"outcome": "stopped", "reason": "SIGTERM"}, "Stopped by SIGTERM at step 4 of 6 after 3 min 16 s; "),
        ({"outcome": "failed", "reason": "no memory"}, "Failed at step 4 of 6 after 3 min 16 s (no memory); "),
        ({"outcome": None, "ended": None, "seconds": None}, "Step 4 of 6, without a recorded end; "),
    ],
)
def test_stopped_run_reports_where_and_how_to_continue(tmp_path: Path, fields: dict[str, Any], start: str) -> None:
    longer = session(phases=[["sft", 2], ["grpo", 6]], **fields)
    folder = write_run(tmp_path / "my run", ROWS[:-1], longer, saved=4)
    assert sentence_of(folder) == f"{start}accuracy on dev was 25.0 % (95 % interval 13.8 to 40.9) at step 2."
    (path,) = write_report(folder).parent.glob("report.html")
    lines = stop_lines(load_run(folder))
    resume = "jaxrl-sql train --resume 'my run'"
    assert lines == [
        ["The checkpoint of step 4 is complete. To continue: ", resume],
        ["SFT loss 2.000 → 1.500 (steps 1 to 2)", ""],
        ["policy loss -0.500 → 0.125, mean reward 0.250 → 0.500 (steps 3 to 4)", ""],
    ]
    assert "jaxrl-sql view 'my run'" in path.read_text(encoding="utf-8")


def test_stopped_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", ROWS[:1], session(outcome="stopped", reason="Ctrl-C"))
    assert stop_lines(load_run(folder))[0] == [
        "No checkpoint is complete. To start from the first step: ", "jaxrl-sql train --resume r",
    ]  # fmt: skip
    call = "resume with jx.train(…)"
    folder = write_run(tmp_path / "s", ROWS[:1], session(outcome="stopped", reason="Ctrl-C", resume=call), saved=1)
    assert stop_lines(load_run(folder))[0] == ["The checkpoint of step 1 is complete. To continue: ", call]


def test_supervised_run_resumes_by_its_command(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", ROWS[:1], session(outcome="stopped", reason="Ctrl-C"), saved=1)
    (folder / "config.yaml").write_text("grpo: {steps: 0}\n")
    assert stop_lines(load_run(folder))[0][1] == f"jaxrl-sql sft --resume {folder}"


def test_duration_counts_all_sessions_and_names_those_without_an_end(tmp_path: Path) -> None:
    killed = session(outcome=None, ended=None, seconds=None)
    ran = dict(describe_run(load_run(write_run(tmp_path, ROWS, session(), killed, session(seconds=60)))))
    assert ran["duration"] == "4 min 16 s in 3 sessions, and the unknown time of 1 without a recorded end"


def test_commands_work_from_where_the_run_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "runs" / "r", ROWS, session(outcome="stopped", reason="Ctrl-C"), saved=4)
    (folder / "config.yaml").write_text("run: {dir: runs/r}\ngrpo: {steps: 2}\n")
    monkeypatch.chdir(folder)
    page = write_report(".").read_text(encoding="utf-8")
    assert "jaxrl-sql view runs/r" in page
    assert "jaxrl-sql train --resume runs/r" in page
    folder.rename(tmp_path / "moved")
    assert f"jaxrl-sql view {tmp_path / 'moved'}" in write_report(tmp_path / "moved").read_text(encoding="utf-8")
