"""Training on a dataset whose questions are read on demand."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from jaxrl_sql.commands.train import main
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer, save_checkpoint


@pytest.mark.nightly
def test_a_streamed_run_draws_the_questions_of_a_loaded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    generate(data, SynthSpec(train_dbs=3, dev_dbs=1, unseen_dbs=1, train_questions=12, dev_questions=2))
    tokenizer = load_tokenizer(data / "tokenizer")
    model = ModelConfig("qwen3", len(tokenizer), 24, 1, 2, 1, 12, 40, Rope(1e4), Norms(), True, True, False, 1024)
    save_checkpoint(tmp_path / "start", model, init_params(model, jax.random.key(0)), tokenizer)
    arguments = [
        "data.prompt=compact", "model.compute_dtype=same", "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3",
        f"data.dir={data}", "data.evals=[dev]", "data.max_prompt_tokens=320",
        "data.select.drop_empty_gold=false", f"model.checkpoint={tmp_path}/start", "sampling.max_new_tokens=8",
        "rollout.max_num_seqs=4", "grpo.steps=2", "grpo.prompts=2", "grpo.num_generations=2",
        "validation.max_num_seqs=4", "validation.sampling.max_new_tokens=8",
        "run.pad_to_max=true", "run.display=plain",
    ]  # fmt: skip
    outputs = {}
    for name, above in (("loaded", 0), ("streamed", 5)):
        assert main([*arguments, f"run.dir={tmp_path}/{name}", f"data.stream_above={above}"]) == 0
        outputs[name] = capsys.readouterr().out
    assert "questions are streamed" in outputs["streamed"]
    assert "as they are asked" not in outputs["loaded"]
    drawn = {
        name: [
            (item["step"], item.get("id") or item.get("uid"), item.get("question"))
            for item in map(json.loads, (tmp_path / name / "samples.jsonl").read_text(encoding="utf-8").splitlines())
        ]
        for name in outputs
    }
    assert drawn["loaded"] == drawn["streamed"]
    more = [*arguments, f"run.dir={tmp_path}/streamed", "data.stream_above=5", "grpo.steps=3", "run.resume=true"]
    assert main(more) == 0
    capsys.readouterr()
    assert main([*arguments, f"run.dir={tmp_path}/sft", "data.stream_above=5", "sft.steps=1"]) == 2
    assert "the supervised phase holds its questions in memory" in capsys.readouterr().err
