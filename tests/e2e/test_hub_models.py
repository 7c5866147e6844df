"""Commands with a hub model: the commit in a run's files, and all of them again without the hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

START = Path(__file__).parents[2] / "configs/quickstart_start"
FILES = {path.name: path.read_bytes() for path in START.iterdir()}
CODE = """
import json, sys
from importlib import import_module

codes = [import_module(f"jaxrl_sql.commands.{name}").main(words) for name, *words in json.loads(sys.argv[1])]
sys.exit(0 if not any(codes) else f"exit codes {codes}")
"""
ANSWERS = ["data.prompt=compact", "evaluate.sampling.max_new_tokens=12", "evaluate.max_num_seqs=4"]
TRAINS = [
    "data.prompt=compact", "data.evals=[dev_unseen]", "data.select.limit_eval=2", "data.max_prompt_tokens=320",
    "model.compute_dtype=same", "grpo.prompts=2", "grpo.num_generations=2", "grpo.kl.coef=0", "grpo.optim.lr=1e-4",
    "grpo.optim.schedule=constant", "sampling.max_new_tokens=12", "rollout.max_num_seqs=4", "validation.max_num_seqs=4",
    "validation.sampling.max_new_tokens=12", "run.checkpoint_every=1", "run.display=plain", "run.pad_to_max=true",
]  # fmt: skip


def environment(endpoint: str, home: Path) -> dict[str, str]:
    there = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return there | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}


def run(endpoint: str, home: Path, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in a new process, with a hub's address and a cache."""
    return subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        env=environment(endpoint, home), cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip


def commands(name: str, data: Path, folder: Path, *changes: str) -> list[list[str]]:
    """Return command lines of train, evaluate, ask and export for a hub model."""
    database = next((data / "dev_unseen/databases").glob("*/*.sqlite"))
    return [
        ["train", f"model.checkpoint={name}", f"data.dir={data}", f"run.dir={folder.parent / 'run'}", *TRAINS,
         *changes],
        ["evaluate", "--model", name, "--data", str(data), "--split", "dev_unseen", "--out", str(folder / "evaluated"),
         *ANSWERS],
        ["ask", "--model", name, "--db", str(database), "How many are there?", *ANSWERS],
        ["export", "--model", name, "--out", str(folder / "exported"), "--dtype", "bfloat16"],
    ]  # fmt: skip


@pytest.mark.slow
def test_commands_record_the_commit_of_a_hub_model_and_work_without_the_hub(
    hub: Any, small_data: Path, tmp_path: Path
) -> None:
    sha = hub.commit("org/start", FILES)
    first, later = tmp_path / "first", tmp_path / "later"
    train, *others = commands("org/start", small_data, first, "grpo.steps=1")
    done = run(hub.url, tmp_path, train, *others)
    assert "Traceback" not in done.stderr, done.stderr
    assert f"model org/start: commit {sha}" in done.stderr
    assert f"model: org/start@{sha}" in done.stdout
    checkpoint = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["model"]["checkpoint"]
    assert checkpoint.endswith(f"models--org--start/snapshots/{sha}")
    assert json.loads((tmp_path / "run/about.json").read_text())["base"] == f"org/start@{sha}"
    hub.commit("org/start", FILES | {"generation_config.json": b"{}"})
    num_requests = len(hub.requests)
    train, *others = commands("org/start", small_data, later, "grpo.steps=2", "run.resume=true")
    done = run("http://127.0.0.1:9", tmp_path, train, *others)
    assert "resuming from step 1" in done.stdout, done.stderr
    assert len(hub.requests) == num_requests
    weights = [(folder / "exported/model.safetensors").read_bytes() for folder in (first, later)]
    assert weights[0] == weights[1]
    for folder in (first, later):
        assert (folder / "exported/model.safetensors").stat().st_size == (START / "model.safetensors").stat().st_size
        about = yaml.safe_load((folder / "evaluated/config.yaml").read_text())
        assert about["model"]["checkpoint"] == checkpoint
    scores = [json.loads((folder / "evaluated/metrics.json").read_text()) for folder in (first, later)]
    assert scores[0] == scores[1]
    served = ["serve", "--model", f"org/start@{sha}", "--port", "0", "--name", "start"]
    with subprocess.Popen(
        [sys.executable, "-m", "jaxrl_sql", *served], env=environment("http://127.0.0.1:9", tmp_path),
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert "loading; " in process.stdout.readline()
        assert " serves start" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)


def test_export_of_a_hub_model_goes_to_a_folder_with_its_name(hub: Any, tmp_path: Path) -> None:
    hub.commit("org/start", FILES)
    done = run(hub.url, tmp_path, ["export", "org/start", "--dtype", "float32"])
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.splitlines()[0] == "start/export"
    done = run(hub.url, tmp_path, ["export"])
    assert "expected one model, RUN or --model RUN" in done.stderr
