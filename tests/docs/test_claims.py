"""Each command of the page of claims is valid, its training has a small version, and it fits its machine."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from jaxrl_sql.__main__ import commands

ROOT = Path(__file__).parents[2]
PAPERS = tomllib.loads((ROOT / "docs/reference/claims.toml").read_text(encoding="utf-8"))["paper"]
CLAIMS = [claim for paper in PAPERS for claim in paper["claim"]]
COMMANDS = sorted({claim[name] for claim in CLAIMS for name in ("train", "evaluate") if name in claim})
TRAININGS = [command for command in COMMANDS if command.startswith(("train ", "sft "))]
MODEL = "configs/quickstart_start"
# Sizes of the checkpoints that a training begins with.
SHAPES = {
    "OmniSQL-7B": "qwen2.5-coder-7b", "OmniSQL-14B": "qwen2.5-coder-14b", "OmniSQL-32B": "qwen2.5-coder-32b",
    "Qwen2.5-Coder-3B-Instruct": "qwen2.5-coder-3b", "Qwen2.5-Coder-7B-Instruct": "qwen2.5-coder-7b",
    "Qwen2.5-Coder-14B-Instruct": "qwen2.5-coder-14b", "Qwen2.5-Coder-32B-Instruct": "qwen2.5-coder-32b",
    "Qwen3-4B": "qwen3-4b", "Qwen3-8B": "qwen3-8b", "Qwen3-14B": "qwen3-14b",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("JAXRL_SQL_DATA", raising=False)


def run(command: str) -> int:
    name, *words = shlex.split(command)
    return import_module(f"jaxrl_sql.commands.{commands()[name].module}").main(words)


def test_every_paper_has_claims_with_a_command_and_the_missing_inputs() -> None:
    assert [paper["title"] for paper in PAPERS] == [
        "Arctic-Text2SQL-R1", "SQL-R1", "PaVeRL-SQL", "Think2SQL", "SkyRL-SQL"
    ]  # fmt: skip
    for claim in CLAIMS:
        assert claim.keys() <= {"where", "what", "numbers", "train", "evaluate", "missing"}
        assert all(claim[name] for name in ("where", "what", "numbers", "missing"))
        assert {"train", "evaluate"} & claim.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_its_configuration(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The weights of another model take the place of those that are not here; a name at an endpoint stays.
    if "--endpoint" not in command:
        command = re.sub(r"--model \S+", f"--model {MODEL}", command)
    assert run(f"{command.replace('SPLIT', 'test')} --print-config") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    for key, value in re.findall(r" ([\w.]+)=(\S+)", command):
        assert functools.reduce(dict.__getitem__, key.split("."), shown) == yaml.safe_load(value), key
    if recipe := re.search(r"--recipe (\w+)", command):
        assert shown["recipe"] == recipe[1]


@pytest.mark.parametrize("command", TRAININGS)
def test_a_training_has_a_small_version(command: str) -> None:
    config = re.findall(r"--config configs/(\w+)\.yaml", command)[0]
    assert config.endswith("_sft") or (ROOT / f"configs/{config}-tiny.yaml").exists() or config == "paverl_mixed"


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in TRAININGS if command.startswith("train ")])
def test_a_training_fits_its_machine(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.removeprefix("train ")
    if "configs/on/" not in words:
        words += " --config configs/on/h100x8.yaml"
    topology = "h100:64" if "h100x64" in words else "h100:8"
    assert run(f"train {words} --print-config") == 0
    checkpoint = re.findall(r"checkpoint: \S*?([\w.-]+)$", capsys.readouterr().out, re.MULTILINE)[0]
    plan = f"plan {words} --topology {topology} --compile none model.shape={SHAPES[checkpoint]}"
    assert run(plan) == 0, capsys.readouterr().out
    assert "it fits" in capsys.readouterr().out
