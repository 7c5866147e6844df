"""Invalid input of view, serve and export: one line on stderr with the error and the remedy."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType

import ml_dtypes  # noqa: F401 - NumPy then reads bfloat16
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.export import main as export
from jaxrl_sql.commands.serve import main as serve
from jaxrl_sql.commands.sft import main as sft
from jaxrl_sql.commands.train import main as train
from jaxrl_sql.commands.view import main as view
from jaxrl_sql.runtime.rollouts import FOLDER, list_shards

START = Path(__file__).parents[2] / "configs/quickstart_start"
BROKEN = "nan: the weights are broken: NaN, infinity or numbers beyond 1e+15 in model.norm.weight"
Command = Callable[[Sequence[str]], int]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view_runs: ModuleType) -> Path:
    """Return a folder of invalid inputs, and change into it."""
    monkeypatch.chdir(tmp_path)
    bare = tmp_path / "without_rollouts"
    bare.mkdir()
    (bare / "metrics.jsonl").write_text('{"step": 1}\n')
    for name in ("run", "bare", "broken"):
        view_runs.write_run(tmp_path / name)
    for name, content in (("bare", gzip.compress(b'{"step": 1, "text": "SELECT 1"}\n')), ("broken", b"no gzip")):
        for kind in ("train", "eval"):
            for shard in list_shards(tmp_path / name / FOLDER, kind):
                shard.path.write_bytes(content)
    shutil.copytree(START, tmp_path / "cut")
    weights = tmp_path / "cut/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    shutil.copytree(START, tmp_path / "nan")
    tensors = load_file(tmp_path / "nan/model.safetensors")
    tensors["model.norm.weight"][0] = np.nan
    save_file(tensors, tmp_path / "nan/model.safetensors")
    shutil.copytree(START, tmp_path / "strange")
    config = json.loads((START / "config.json").read_text())
    (tmp_path / "strange/config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0\1")
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        connection.execute("CREATE TABLE t(x)")
    return tmp_path


# The command, its arguments ({port} is in use), the error, and the remedy.
CASES: dict[str, tuple[Command, str, str, str]] = {
    "a run without rollouts": (view, "without_rollouts", "the run kept no answers", "report.html"),
    "a run of records without answers": (view, "bare", "train-", "cut or broken"),
    "a run of broken shards": (view, "broken", "train-", "cut or broken"),
    "no run": (view, "nowhere", "neither a run (metrics.jsonl)", "name the folder of one"),
    "a port in use, view": (view, "run --judge 0 --serve {port}", "{port}", "0"),
    "a port in use, serve": (
        serve,
        f"--model {START} --port {{port}}",
        "Address already in use",
        "another --port, or 0",
    ),
    "a prompt longer than the model": (
        ask,
        f"--model {START} --db db.sqlite data.prompt=compact data.max_prompt_tokens=100000 {'x' * 6000}",
        "2,048 positions",
        "shorten the question",
    ),
    "an unknown adapter": (
        serve,
        f"--model {START} --port 0 --adapter a=nowhere",
        "no adapters in PEFT's form",
        "name a folder with adapter_config.json",
    ),
    "an adapter without a name": (serve, f"--model {START} --port 0 --adapter nowhere", "NAME=FOLDER", "--adapter"),
    "a cut file, export": (export, "cut --gguf f16 --out out", "cut/model.safetensors", "again"),
    "a cut file, serve": (serve, "--model cut --port 0", "cut/model.safetensors", "again"),
    "a cut GGUF file": (serve, "--model cut.gguf --port 0", "cut.gguf", "again"),
    "a broken weight, ask": (ask, f"--model nan --db db.sqlite data.prompt=compact {'x' * 9}", BROKEN, "fetch"),
    "a broken weight, serve": (serve, "--model nan --port 0", BROKEN, "fetch"),
    "a broken weight, export": (export, "nan --gguf f16 --out out", BROKEN, "fetch"),
    "a family without a name": (export, "strange --gguf f16 --out out", "'mamba'", "valid are gemma3_text"),
}


@pytest.mark.parametrize(("command", "arguments", "error", "advice"), CASES.values(), ids=CASES)
def test_invalid_input_is_reported_in_one_line(
    command: Command, arguments: str, error: str, advice: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        try:
            code = command(arguments.replace("{port}", port).split())
        except SystemExit as stopped:  # raised by the parser, which prints the usage first
            code = int(stopped.code or 0)
    assert code == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if "error: " in line]
    assert len(lines) == 1
    assert "Traceback" not in captured.err
    assert error.replace("{port}", port) in lines[0]
    assert advice in lines[0]
    assert here.is_dir()


@pytest.mark.parametrize("command", [train, sft, evaluate])
def test_a_broken_weight_is_reported_after_questions_were_read(
    command: Command, here: Path, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["data.max_prompt_tokens=320", "run.display=plain"]
    if command is evaluate:
        options += [
            "--model",
            "nan",
            "--data",
            str(small_data),
            "--split",
            "dev",
            "--out",
            "out",
            "data.prompt=compact",
        ]
    else:
        options += [
            "model.checkpoint=nan",
            "data.prompt=compact",
            "model.compute_dtype=same",
            "grpo.optim.lr=1e-4",
            "sft.optim.lr=1e-3",
            f"data.dir={small_data}",
            "run.dir=trained",
            "sft.steps=1",
        ]
    assert command(options) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(lines) == 1
    assert BROKEN in lines[0]
    assert here.is_dir()


def test_a_truncated_rollout_piece_is_skipped_with_a_warning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = list_shards(here / "run" / FOLDER, "train")[0].path
    shard.write_bytes(shard.read_bytes()[:-30])
    assert view(["run", "--judge", "0"]) == 0
    assert capsys.readouterr().err == ""
