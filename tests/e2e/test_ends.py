"""Engine, supervised answers and exported model of a run use the same end tokens; nothing is compiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from jaxrl_sql.commands.export import main as export
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models.formats.hf import stop_tokens
from jaxrl_sql.training.build import export_model, make_params, make_rollout_engine
from jaxrl_sql.training.trainer import open_unchecked

SMALL = Path(__file__).parents[1] / "small.yaml"

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart_start"


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Return a small model whose files declare three end tokens."""
    folder = shutil.copytree(QUICKSTART, tmp_path / "start")
    for name, ends in (("generation_config.json", [5, 2]), ("config.json", 9)):
        fields = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**fields, "eos_token_id": ends}))
    return folder


def test_a_run_uses_and_exports_the_end_tokens_of_its_model(
    start: Path, arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    config = load_config(
        TrainConfig,
        None,
        arguments(run, f"model.checkpoint={start}", "data.tokenizer.path=''", "data.tokenizer.eos_token=<|im_start|>"),
    )
    with open_unchecked(config) as opened:
        taught = opened.prompt_format.tokenizer.convert_tokens_to_ids("<|im_start|>")
        ends = {2, 5, 9, taught}
        assert {answer.token_ids[-1] for answer in opened.questions.sft.train.answers} == {taught}
        engine = make_rollout_engine(opened)
        assert set(engine.vocabulary.end_tokens) == ends  # type: ignore[union-attr]
        model = export_model(opened, *make_params(opened))
    declared = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    assert (declared[:2], set(declared)) == ([5, 2], ends), "the base's end tokens come first, and none is lost"
    settings = yaml.safe_load((model / "jaxrl_sql.yaml").read_text())
    assert settings["data"]["tokenizer"]["eos_token"] == opened.config.data.tokenizer.eos_token
    shutil.rmtree(start)
    pytest.importorskip("gguf")
    assert export([str(run), "--out", str(tmp_path / "out"), "--gguf", "f16"]) == 0
    assert set(stop_tokens(tmp_path / "out")) == ends
    assert len(stop_tokens(tmp_path / "out" / "out-f16.gguf")) == 3
    assert "GGUF names three ends of an answer, and the model has more: " in capsys.readouterr().err
