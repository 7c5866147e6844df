"""The order of a run's checks: of two errors, the one that is cheaper to find is reported."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from jaxrl_sql.commands.train import main
from jaxrl_sql.datagen.synth import SynthSpec, generate

CONFIGS = Path(__file__).parents[2] / "configs"
START = CONFIGS / "quickstart_start"
Start = Callable[..., list[str]]
Capture = pytest.CaptureFixture[str]
# Kinds of errors in the order of their checks, with the settings that cause them and the message.
ERRORS = {
    "template": (["data.prompt=chat", "data.tokenizer.path=mute"], "a chat needs a tokenizer with a chat template"),
    "files": ([], "such.jsonl: no such file or folder"),
    "database": (["data.database=gone.sqlite"], "data.database=gone.sqlite: no such file or folder"),
    "addresses": ([], "executor.databases.postgresql: postgresql://127.0.0.1:"),
    "model": (["model.checkpoint=other"], "model_type is 'mamba'"),
    "weights": (["model.checkpoint=cut"], "no model.safetensors"),
    "tokenizer": (["data.tokenizer.path=empty"], "no tokenizer"),
    "adapters": (["model.lora.rank=4", "model.lora.targets=[q_proj, qq]"], "'qq' is not a weight; valid are q, k"),
    "mesh": (["mesh.data=7919"], "mesh: data=7919 x fsdp=-1 x tensor=1 does not multiply to "),
    "attention": (["rollout.attention=pallas"], "rollout.attention=pallas: its kernels are for GPUs and TPUs"),
    "memory": (["model.shape=qwen3-32b"], "memory: weights, gradients and optimizer need "),
    "golds": (["data.dir=golds"], "no question has a gold that runs"),
}


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Start) -> Callable[..., list[str]]:
    """Return a function (kinds of errors) -> command line of a run with all of them."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(START, "other")
    (tmp_path / "other/config.json").write_text(json.dumps({"model_type": "mamba"}))
    shutil.copytree(START, "cut")
    (tmp_path / "cut/model.safetensors").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "mute").mkdir()
    shutil.copy(START / "tokenizer.json", "mute")
    for split in ("train", "dev_unseen"):
        databases = tmp_path / "golds" / split / "databases/shop"
        databases.mkdir(parents=True)
        sqlite3.connect(databases / "shop.sqlite").execute("CREATE TABLE item (id INTEGER)").connection.close()
        line = {"id": "1", "db_id": "shop", "question": "How many?", "evidence": "", "sql": "SELECT x FROM gone"}
        (databases.parents[1] / "questions.jsonl").write_text(json.dumps(line) + "\n")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    more = {
        "files": ["data.select.include_ids=such.jsonl"],
        "addresses": [f"executor.databases.postgresql=postgresql://reader@127.0.0.1:{port}"],
    }

    def build(*kinds: str) -> list[str]:
        changes = [change for kind in reversed(kinds) for change in more.get(kind, ERRORS[kind][0])]
        plain = [
            word
            for word in arguments(tmp_path / "run")
            if not (word.startswith("model.init") and any("model.checkpoint" in change for change in changes))
        ]
        return [*plain, *changes]

    return build


@pytest.mark.parametrize(("first", "second"), [*pairwise(ERRORS), ("adapters", "golds"), ("files", "golds")])
def test_of_two_errors_the_cheaper_is_reported(
    first: str, second: str, faulty: Callable[..., list[str]], tmp_path: Path, capsys: Capture
) -> None:
    start_time = time.monotonic()
    assert main(faulty(first, second)) == 2
    error = capsys.readouterr().err
    assert ERRORS[first][1] in error
    assert error.count("\n") == 1
    assert time.monotonic() - start_time < 30
    if first not in ("mesh", "attention", "memory"):
        assert not (tmp_path / "run").exists()
    assert main(faulty(second)) == 2
    assert ERRORS[second][1] in capsys.readouterr().err


def test_a_dry_run_of_the_quickstart_generates_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["--config", str(CONFIGS / "quickstart.yaml"), f"model.checkpoint={START}", "--dry-run"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []
    assert "memory per device, about: weights " in shown
    assert "data: data-cache/synth-2 is not generated yet, and a dry run does not generate it" in shown
    assert main([*command, "model.lora.rank=2", "model.lora.targets=[q_prj]"]) == 2
    assert "model.lora.targets: 'q_prj' is not a weight" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_generation_reports_each_database_of_its_total(tmp_path: Path) -> None:
    spec = SynthSpec(train_dbs=3, dev_dbs=1, unseen_dbs=2, train_questions=2, dev_questions=2)
    counts: list[int] = []
    generate(tmp_path / "data", spec, counts.append)
    assert counts == [1, 2, 3, 4, 5, 6]
    assert spec.databases == 6
