"""Weights & Biases is asked for by name: missing it is one line; without a network it keeps its files in the run's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jaxrl_sql.runtime.trackers import open_trackers
from jaxrl_sql.types import InputError

HAS_WANDB = importlib.util.find_spec("wandb") is not None


def test_without_a_project_there_is_no_board(tmp_path: Path) -> None:
    assert open_trackers(tmp_path, "", {}) == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(HAS_WANDB, reason="wandb is installed")
def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.wandb=mine: the package wandb is missing \(pip install") as caught:
        open_trackers(tmp_path, "mine", {})
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not HAS_WANDB, reason="needs the extra `wandb`")
def test_offline_runs_are_kept_under_one_name(tmp_path: Path) -> None:
    """In a process of its own: the package starts another."""
    program = f"""
        from pathlib import Path
        from jaxrl_sql.runtime.metrics import MetricsWriter
        from jaxrl_sql.runtime.trackers import open_trackers
        folder = Path({str(tmp_path)!r})
        with MetricsWriter(folder, open_trackers(folder, "mine", {{"seed": 1}})) as metrics:
            metrics.rewind(0, 0)
            metrics.write(1, {{"phase": "grpo", "reward/mean": 0.5, "policy/kl": float("nan")}})
    """
    env = os.environ | {"WANDB_MODE": "offline"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode == 0, done.stderr
    name = (tmp_path / "wandb-id").read_text(encoding="utf-8")
    kept = [path.name for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert len(kept) == 2
    assert all(folder.endswith(name) for folder in kept)
