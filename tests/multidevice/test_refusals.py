"""Meshes that do not divide a model or a batch are refused before compilation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_sql.datagen.synth import SynthSpec, generate

pytestmark = pytest.mark.multidevice

TWICE = (
    "import sys\nfrom jaxrl_sql.commands.train import main\n"
    "for words in sys.argv[1:]:\n    print(main(words.split()))\n"
)


def test_a_mesh_that_does_not_divide_is_refused_before_compilation(tmp_path: Path) -> None:
    """Heads over a mesh's tensor axis, and a batch over its other axes; both in one process with eight devices."""
    data = tmp_path / "data"
    generate(data, SynthSpec(train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=4, dev_questions=2))
    settings = (
        f"model.init=plain data.prompt=compact sampling.max_new_tokens=96 sft.max_completion_tokens=160 "
        f"data.dir={data} data.tokenizer.path={data}/tokenizer run.dir={tmp_path}/run data.evals=[dev] "
        "data.max_prompt_tokens=320 model.d_model=32 model.n_layers=1 model.n_heads=2 model.n_kv_heads=1 "
        "model.head_dim=16 model.d_ff=48 grpo.steps=1 grpo.prompts=2 grpo.num_generations=2"
    )
    env = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    command = [sys.executable, "-c", TWICE, f"{settings} mesh.tensor=8", settings]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert [line for line in done.stdout.splitlines() if line.isdecimal()] == ["2", "2"], done.stderr
    heads, batch = done.stderr.splitlines()
    assert heads.endswith("mesh: layers/q: dimension heads of size 2 is not divisible by tensor=8; valid: 1, 2")
    assert (
        "grpo.prompts=2 in grpo.minibatches=1: dimension batch of size 2 is not divisible by data=1 x fsdp=8" in batch
    )
