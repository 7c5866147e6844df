"""The whole command in two processes on several meshes, as in one process; test_lost_process.py has a short run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_sql.runtime.metric_row import undocumented_names
from jaxrl_sql.runtime.training_metrics import TRAINING

pytestmark = pytest.mark.nightly

# Fragments of Gloo's log line: its threads write concurrently, so fragments of two lines are mixed.
GLOO = re.compile(
    r"\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : |\s"
)


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


# Answers sampled on the training mesh; dialogues by four replicas, packed for the update, of
# which a shard runs few tokens at a time; and answers that replicas begin a step ahead.
KINDS = {
    "training mesh": ["grpo.num_generations=2", "data.max_prompt_tokens=320", "model.max_positions=1024"],
    "replicas": [
        "grpo.num_generations=4", "rollout.mesh=4x2", "grpo.packing=true", "grpo.max_tokens_per_device=640",
        "recipe=skyrl_sql", "data.prompt=tagged", "data.max_prompt_tokens=512", "sft.max_completion_tokens=768",
        "model.max_positions=2048", "sampling.turns=2", "sampling.max_total_tokens=40",
    ],
    "rollout ahead": [
        "grpo.num_generations=4", "rollout.mesh=4x2", "rollout.ahead=1", "rollout.max_num_seqs=32",
        "grpo.optim.lr=0.01", "data.max_prompt_tokens=320", "model.max_positions=1024",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_two_processes_equals_one_process(run_processes: Any, tmp_path: Path, kind: str) -> None:
    """Cold start, greedy answers, GRPO with distributed SQL, checkpoints and the model, written once.

    Two processes then resume from a checkpoint, bit-equal.
    """
    from jaxrl_sql.datagen.synth import SynthSpec, generate
    from jaxrl_sql.models import load_checkpoint

    data = tmp_path / "data"
    generate(data, SynthSpec(train_dbs=3, dev_dbs=1, unseen_dbs=1, train_questions=12, dev_questions=4))
    arguments = [
        "model.init=plain", "model.compute_dtype=same", "data.prompt=compact", "data.evals=[dev_unseen]",
        "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3", f"data.dir={data}", f"data.tokenizer.path={data}/tokenizer",
        "data.evals=[dev]", "model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.n_kv_heads=2",
        "model.head_dim=16", "model.d_ff=48", "sft.steps=1", "sft.databases=4",
        "sft.questions=2", "sft.log_every=1", "grpo.loss.entropy_bonus=0.01", "grpo.steps=2", "grpo.prompts=4",
        "sampling.max_new_tokens=8", "rollout.max_num_seqs=8", "validation.max_num_seqs=4",
        "validation.sampling.max_new_tokens=8", "mesh.data=2",
        "mesh.fsdp=2", "mesh.tensor=2", "run.display=plain", "run.checkpoint_every=1", "run.keep_checkpoints=9",
        *KINDS[kind],
    ]  # fmt: skip
    for processes in (1, 2):
        run = [f"run.dir={tmp_path}/run{processes}", f"mesh.processes={processes}"]
        printed = run_processes(["-m", "jaxrl_sql.train", *arguments, *run], processes)
        assert "grpo" in printed[0][0]
        for output, _ in printed[1:]:
            assert GLOO.sub("", output) == "", "only the first process prints"
    single, double = tmp_path / "run1", tmp_path / "run2"
    assert sorted(path.name for path in double.iterdir()) == sorted(path.name for path in single.iterdir())
    for want, got in zip(lines(single / "metrics.jsonl"), lines(double / "metrics.jsonl"), strict=True):
        assert (got.keys(), got.pop("phase")) == (want.keys(), want.pop("phase"))
        assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert undocumented_names([name for line in lines(double / "metrics.jsonl") for name in line], TRAINING) == []
    assert lines(double / "samples.jsonl") == lines(single / "samples.jsonl")
    assert (double / "checkpoints" / "3").is_dir()
    config, want = load_checkpoint(single / "model")
    double_config, got = load_checkpoint(double / "model")
    assert double_config == config
    for name, leaf in want["layers"].items():
        np.testing.assert_allclose(got["layers"][name], leaf, atol=1e-4, err_msg=name)
    if kind == "rollout ahead":
        stale = [
            row["rollout/stale_tokens"] for row in lines(single / "metrics.jsonl") if "rollout/stale_tokens" in row
        ]
        assert stale[0] == 0 < stale[1]
    if kind != "training mesh":
        uninterrupted = lines(double / "metrics.jsonl"), lines(double / "samples.jsonl")
        shutil.rmtree(double / "checkpoints" / "3")  # as if it had been killed after its second step
        run_processes(["-m", "jaxrl_sql.train", *arguments, *run, "run.resume=true"], 2)
        assert (lines(double / "metrics.jsonl"), lines(double / "samples.jsonl")) == uninterrupted
