"""A run resumes on another day and with moved inputs, but not with different inputs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file, save_file

from jaxrl_sql.commands.train import main

pytestmark = pytest.mark.slow

DATED = "{{ 'Today Date: ' + strftime_now('%d %b %Y') + '\n' }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def inputs(whole: Path, small_data: Path, tmp_path: Path) -> Path:
    """Write the data, and a base whose chat template contains the current date, into one folder."""
    shutil.copytree(whole / "model", tmp_path / "inputs/base")
    (tmp_path / "inputs/base/chat_template.jinja").write_text(DATED)
    shutil.copytree(small_data, tmp_path / "inputs/data")
    return tmp_path / "inputs"


@pytest.fixture
def next_day() -> Iterator[pytest.MonkeyPatch]:
    """Return a patch for the time zone, and restore the old one afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    time.tzset()


def resume(run: Path, *overrides: str) -> int:
    return main(["--resume", str(run), "grpo.steps=2", *overrides])


def test_an_adapter_run_resumes_only_with_its_base_and_questions(
    inputs: Path, tmp_path: Path, next_day: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    next_day.setenv("TZ", "UTC0")
    time.tzset()
    sizes = [
        "grpo.prompts=2",
        "grpo.num_generations=2",
        "sampling.max_new_tokens=8",
        "validation.sampling.max_new_tokens=8",
    ]
    chat = ["data.prompt=chat", "data.chat.template=generic", "data.schema=compact", "data.max_prompt_tokens=1500"]
    begin = [
        f"run.dir={run}", f"model.checkpoint={inputs}/base", "model.lora.rank=2", "data.source=folder",
        f"data.dir={inputs}/data", "data.evals=[dev]", *chat, "sft.steps=0", "grpo.steps=1",
        "data.select.limit_train=4", "data.select.limit_eval=2", "rollout.max_num_seqs=4",
        "validation.max_num_seqs=4", "run.display=plain", *sizes,
    ]  # fmt: skip
    assert main(begin) == 0
    day = yaml.safe_load((run / "config.yaml").read_text())["data"]["chat"]["date"]

    next_day.setenv("TZ", "NEXT-24")
    time.tzset()
    assert time.strftime("%Y-%m-%d") != day
    inputs.rename(moved)
    there = [f"model.checkpoint={moved}/base", f"data.dir={moved}/data"]
    before = yaml.safe_load((run / "config.yaml").read_text())["model"]
    other = shutil.copytree(moved / "base", tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] *= 1.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    capsys.readouterr()
    assert resume(run, *there, f"model.checkpoint={other}") == 2
    assert "model.checkpoint/model.safetensors: changed since the run started" in capsys.readouterr().err
    assert resume(run, *there, "data.chat.date=2024-02-09") == 2
    assert "data.chat.date" in capsys.readouterr().err
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == before, "the run keeps its base"

    assert resume(run, *there) == 0
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert (settings["data"]["chat"]["date"], settings["model"]["checkpoint"]) == (day, f"{moved}/base")

    capsys.readouterr()
    for split, key in (("train", "data.train"), ("dev", "data.evals/dev")):
        questions = moved / "data" / split / "questions.jsonl"
        text = questions.read_text()
        records = [json.loads(line) for line in text.splitlines()]
        changed = [{**record, "sql": f"SELECT * FROM ({record['sql'].rstrip(';')})"} for record in records]
        questions.write_text("".join(f"{json.dumps(record)}\n" for record in changed))
        assert resume(run, "grpo.steps=3") == 2
        assert f"{key}: changed since the run started" in capsys.readouterr().err
        questions.write_text(text)
