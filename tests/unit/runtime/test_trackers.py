"""Experiment trackers: selection by name, missing packages, and offline runs."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.runtime.trackers import open_trackers
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

HAS = {name: importlib.util.find_spec(name) is not None for name in ("wandb", "trackio")}


def test_empty_name_disables_tracking(tmp_path: Path) -> None:
    assert open_trackers(tmp_path, [], "mine", {}) == ()
    assert open_trackers(tmp_path, ["tensorboard"], "mine", {}, is_first=False) == ()
    assert list(tmp_path.iterdir()) == []
    assert len(open_trackers(tmp_path, ["tensorboard", "tensorboard"], "mine", {})) == 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_missing_tracker_package_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    if HAS[name]:
        pytest.skip(f"{name} is installed")
    with pytest.raises(InputError) as caught:
        open_trackers(tmp_path, [name], "mine", {})
    assert str(caught.value) == f"run.trackers: the package {name} is missing (pip install 'jaxrl-sql[{name}]')"
    assert list(tmp_path.iterdir()) == []


def test_unknown_tracker_is_rejected_in_one_line() -> None:
    with pytest.raises(InputError) as caught:
        load_config(TrainConfig, SMALL, ["run.trackers=[wandb, comet]"])
    assert "run.trackers holds 'comet', which is not in tensorboard, wandb, trackio" in str(caught.value)
    assert "\n" not in str(caught.value)


def run_twice(folder: Path, name: str, **env: str) -> str:
    """Track a run in new processes, because packages start others; return the tracker's name of the run."""
    program = f"""
        from pathlib import Path
        from jaxrl_sql.runtime.metrics import MetricsWriter
        from jaxrl_sql.runtime.trackers import open_trackers
        folder = Path({str(folder)!r})
        with MetricsWriter(folder, open_trackers(folder, [{name!r}], "mine", {{"seed": 1}})) as metrics:
            metrics.rewind(0, 0)
            metrics.write(1, {{"phase": "grpo", "reward/mean": 0.5, "policy/kl": float("nan")}})
            metrics.trace(1, "How many?", "<answer>SELECT 1</answer>", {{"status": "ok", "reward": 1.0}})
    """
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True, text=True, env=os.environ | env, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return (folder / f"{name}-id").read_text(encoding="utf-8")


@pytest.mark.skipif(not HAS["wandb"], reason="needs the extra `wandb`")
def test_offline_runs_share_one_name(tmp_path: Path) -> None:
    name = run_twice(tmp_path, "wandb", WANDB_MODE="offline")
    runs = [path.name for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert len(runs) == 2
    assert all(folder.endswith(name) for folder in runs)


@pytest.mark.skipif(not HAS["trackio"], reason="needs the extra `trackio`")
def test_trackio_stores_metrics_and_traces_in_one_run(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    run.mkdir()
    name = run_twice(run, "trackio", TRACKIO_DIR=str(store))
    with closing(sqlite3.connect(store / "mine.db")) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        text = str([connection.execute(f'SELECT * FROM "{table}"').fetchall() for table in tables])
    assert f"run-{name}" in text
    assert "reward/mean" in text
    assert "How many?" in text
    assert "SELECT 1" in text
