"""Generated data's way to other databases, in small: every stage runs, and the table says which goals are reached."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.datagen.synth.__main__ import main as synth

SCRIPT = Path(__file__).parents[3] / "scripts" / "carry_over.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("carry_over", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_says_which_goals_are_reached(script: ModuleType) -> None:
    shares = {"the start": {"bird": 1.0}, "seed 0": {"bird": 6.0}, "seed 1": {"bird": 8.0}}
    lines = script.table(shares, {"bird": (3.0, 4.0)})
    assert lines[-2] == "| seed 1 | 8.0 % |"
    assert lines[-1] == (
        "bird: mean 7.0 %, deviation 1.4, of 2 seeds: 3 % (3.0) reached, twice the best rule (6.0) reached, "
        "twice the best answers (8.0) missed"
    )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["grpo", "sft"])
def test_a_seed_is_trained_and_scored_in_small(tmp_path: Path, by: str) -> None:
    made = ["--train-dbs=8", "--train-questions=8", "--dev-dbs=1", "--unseen-dbs=1", "--dev-questions=4"]
    assert synth(["--style=grammar", "--seed=5", "--out", str(tmp_path / "asked"), *made]) == 0
    (tmp_path / "data").mkdir()
    (tmp_path / "asked" / "dev_unseen").rename(tmp_path / "data" / "spider_dev")
    words = [f"--data={tmp_path / 'data'}", f"--out={tmp_path / 'out'}", "--seeds=4", f"--by={by}"]
    words.append(f"--generated={' '.join(('--style=grammar', *made))}")
    settings = {
        "sft": ["sft.steps=2", "sft.databases=2", "sft.questions=2"],
        "grpo": [
            "grpo.steps=1",
            "grpo.prompts=2",
            "data.evals=[dev]",
            "data.source=folder",
            f"data.dir={tmp_path / 'asked'}",
        ],
    }[by]
    settings = ["--", "run.display=none", *settings]
    for _ in range(2):  # the second time everything is there
        done = subprocess.run([sys.executable, SCRIPT, *words, *settings], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "| seed 4 |" in done.stdout
        assert "of 1 seeds: 3 % (3.0)" in done.stdout
        assert "test_suite, vote of 16: mean" in done.stdout
    told = json.loads((tmp_path / "out" / f"{by}-4-scores" / "greedy" / "metrics.json").read_text(encoding="utf-8"))
    assert told["count"] == 4
