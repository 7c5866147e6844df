"""A checkpoint of any phase becomes a model's folder, also where the run never came to its end."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.models import load_checkpoint, load_tokenizer
from jaxrl_sql.train import main

SCRIPT = Path(__file__).parents[2] / "scripts" / "export_checkpoint.py"


def export(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_what_is_exported_is_the_policy_of_that_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    generate(data, SynthSpec(train_dbs=2, dev_dbs=1, unseen_dbs=1, train_questions=8, dev_questions=4))
    common = [
        "data.source=folder", f"data.dir={data}", f"data.tokenizer={data}/tokenizer", f"run.dir={run}",
        "data.max_prompt_tokens=320", "model.d_model=16", "model.n_layers=1", "model.n_heads=1", "model.n_kv_heads=1",
        "model.head_dim=16", "model.d_ff=16", "sft.steps=1", "sft.databases=2", "sft.questions=2", "grpo.steps=1",
        "grpo.prompts=2", "grpo.num_generations=2", "grpo.algorithm=ppo", "sampling.max_new_tokens=8",
        "rollout.max_num_seqs=4",
        "validation.max_num_seqs=4", "validation.max_new_tokens=8", "run.checkpoint_every=1", "run.display=none",
    ]  # fmt: skip
    assert main(common) == 0
    for step in (1, 2):  # supervised, and with a value head
        out = tmp_path / str(step)
        assert export(monkeypatch, str(run), str(step), str(out)) == 0
        config, params = load_checkpoint(out)
        assert len(load_tokenizer(out)) == config.vocab_size
        if step == 2:
            wanted = load_checkpoint(run / "model")[1]
            np.testing.assert_allclose(params["embed"], wanted["embed"], rtol=2**-8)
            for name, leaf in wanted["layers"].items():
                np.testing.assert_allclose(params["layers"][name], leaf, rtol=2**-8, err_msg=name)
    assert export(monkeypatch, str(run), "7", str(tmp_path / "none")) == 2
    assert "no checkpoint of step 7" in capsys.readouterr().err
