"""Each command of docs/tutorials/own_database.md runs on a database with odd names, NULLs and dates as text."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import jax
import pytest

from jaxrl_sql.__main__ import main
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer, save_checkpoint

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "own_database.md"
# Overrides for a small run; the page's own numbers are for a real model.
ALL = ["data.schema=compact", "data.max_prompt_tokens=320", "run.pad_to_max=true"]
SMALL = [*ALL, "validation.sampling.max_new_tokens=8", "validation.max_num_seqs=8"]
SMALLER = {
    "data synth": ["--n", "24"],
    "evaluate": [*ALL, "evaluate.sampling.max_new_tokens=8", "evaluate.max_num_seqs=8"],
    "sft": [*SMALL, "sft.epochs=1"],
    "train": [*SMALL, "grpo.steps=1", "grpo.prompts=2", "grpo.num_generations=2", "sampling.max_new_tokens=8"],
    "ask": ["evaluate.sampling.max_new_tokens=8"],
}


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder: a database, 60 questions in two files, and a model of one layer."""
    spec = importlib.util.spec_from_file_location("own_database", ROOT / "scripts" / "own_database.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main([str(tmp_path / "shop")]) == 0
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "runs/spider").mkdir(parents=True)
    tokenizer = load_tokenizer(ROOT / "configs/quickstart_start")
    model = ModelConfig("qwen3", len(tokenizer), 24, 1, 2, 1, 12, 40, Rope(1e4), Norms(), True, True, False, 1024)
    save_checkpoint(tmp_path / "runs/spider/model", model, init_params(model, jax.random.key(0)), tokenizer)
    (tmp_path / "runs/spider/config.yaml").write_text("data: {prompt: compact, max_prompt_tokens: 320}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands() -> list[list[str]]:
    """Return the arguments of `jaxrl-sql` in the page's commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    start, train = ".venv/bin/jaxrl-sql ", ".venv/bin/python -m jaxrl_sql.train "
    assert all(line.startswith((start, train)) for line in lines)
    return [shlex.split(line.removeprefix(start).replace(train, "train ")) for line in lines]


@pytest.mark.slow
def test_commands_of_the_page_run(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = []
    for command in commands():
        name = " ".join(command[: 2 if command[0] == "data" else 1])
        code = main([*command, *([] if "--compare" in command else SMALLER.get(name, []))])
        output = capsys.readouterr()
        # The small model may write SQL that fails.
        assert code in ((0, 1) if name == "ask" else (0,)), f"{name}: {output.err}"
        run.append(name)
    assert run == [
        "data audit", "data synth", "data audit", "evaluate", "sft", "train", "evaluate", "evaluate", "ask",
    ]  # fmt: skip
    audited = json.loads((team / "runs/shop_audit/audit.json").read_text())["sets"]
    assert {name: item["questions"] for name, item in audited.items()} == {"train.csv": 45, "more": 24, "dev.csv": 15}
    assert not any("fails" in kind for entry in audited.values() for kind in entry["findings"])
    for name in ("before", "after"):
        assert json.loads((team / f"runs/shop_{name}/metrics.json").read_text())["count"] == 15
    phases = {
        folder: {
            json.loads(line)["phase"] for line in (team / "runs" / folder / "metrics.jsonl").read_text().splitlines()
        }
        for folder in ("shop_sft", "shop")
    }
    assert ("sft" in phases["shop_sft"], "grpo" in phases["shop"], "sft" in phases["shop"]) == (True, True, False)
