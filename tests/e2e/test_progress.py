"""Phases of a run and of an evaluation report growing numbers up to their total."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.train import main as train
from jaxrl_sql.runtime.progress import Task

Reports = dict[str, list[tuple[int, int, str]]]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Return the reports of each task by its name: units done, total and unit."""
    recorded: Reports = {}
    update = Task.update

    def record(task: Task, done: int) -> None:
        recorded.setdefault(task.name, []).append((done, task.total, task.unit))
        update(task, done)

    monkeypatch.setattr(Task, "update", record)
    return recorded


def check(reports: Reports, name: str, unit: str, total: int = 0) -> None:
    """Check that a task's numbers grow up to its total; a task that runs again starts anew."""
    entries = reports[name]
    numbers = [done for done, _, _ in entries]
    starts = [0, *(i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1]), len(numbers)]
    for start, stop in pairwise(starts):
        assert numbers[start:stop] == sorted(numbers[start:stop]), name
        assert numbers[stop - 1] == entries[stop - 1][1], f"{name}: {numbers}"
    assert {entry[2] for entry in entries} == {unit}
    assert total in {0, entries[-1][1]}, name


def test_phases_report_their_numbers_up_to_the_total(
    arguments: Callable[..., list[str]], small_data: Path, tmp_path: Path, reports: Reports
) -> None:
    run = tmp_path / "run"
    options = ("grpo.minibatches=2", "grpo.prompts=2", "run.keep_rollouts=0", "grpo.kl.coef=0")
    assert train(arguments(run, *options, "grpo.steps=1")) == 0
    check(reports, f"reading dev_unseen, train from {small_data}", "splits", 2)
    check(reports, "hashing files", "MiB")
    check(reports, "hashing questions", "questions", 64 + 8)
    check(reports, "judging dev_unseen", "questions", 8)
    check(reports, "waiting for SQL", "answers", 4)
    check(reports, "updating the policy", "updates", 2)
    check(reports, f"writing the model to {run}/model", "tensors")
    reports.clear()
    assert train(["--resume", str(run), "grpo.steps=2"]) == 0
    check(reports, "checking the checkpoint of step 3", "MiB")
    reports.clear()
    command = ["--model", str(run), "--data", str(small_data / "dev_unseen"), "--out", str(tmp_path / "out")]
    assert evaluate([*command, "run.display=plain"]) == 0
    check(reports, f"reading {small_data}/dev_unseen", "sets", 1)
    check(reports, "judging", "questions", 8)
