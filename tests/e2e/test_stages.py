"""Runs with unequal steps: batch RL, a second stage, several turns, a value head, resampling rounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_sql.commands.train import main
from jaxrl_sql.models import load_checkpoint
from jaxrl_sql.report.groups import add_advantages, list_chunks, open_result_folder, read_chunk

STEPS = 4
VARIANTS: dict[str, tuple[str, ...]] = {
    "batch RL": ("grpo.steps_per_generation=2", "grpo.kl.coef=0.01"),
    "two stages": (
        "recipe=paverl", "grpo.steps=2", "second_stage.steps=2", "validation.every=1", "run.keep_best=1",
        "data.dialects={sqlite: 0.5, mysql: 0.5}", "executor.databases.mysql=translated",
    ),
    "several turns": (
        "recipe=skyrl_sql", "sampling.turns=3", "sampling.stop=[e]", "sampling.max_total_tokens=200",
        "validation.sampling.turns=1", "sampling.top_p=0.9",
    ),
    "two stages of dialogues": (
        "recipe=skyrl_sql", "sampling.turns=3", "sampling.stop=[e]", "sampling.max_total_tokens=200",
        "validation.sampling.turns=1", "validation.sampling.temperature=0.9", "validation.sampling.top_k=9",
        "sampling.top_p=0.9", "grpo.steps=2", "second_stage.steps=2", "validation.every=2", "run.keep_best=1",
        "run.pad_to_max=true",
    ),
    "a value head": ("grpo.algorithm=ppo", "grpo.num_iterations=2", "model.lora.rank=2"),
    "a token limit per step": (
        "grpo.packing=true", "grpo.max_tokens_per_device=416", "grpo.num_generations=4", "grpo.steps_per_generation=2",
        "grpo.kl.coef=0.01",
    ),
    "questions of a schema": (
        "grpo.questions=2", "grpo.dynamic_sampling.oversample=2", "grpo.packing=true", "grpo.steps_per_generation=2",
        "grpo.kl.coef=0.01",
    ),
    "a step ahead": (
        "rollout.ahead=1", "grpo.dynamic_sampling.oversample=2", "grpo.packing=true", "grpo.minibatches=2",
        "grpo.optim.lr=0.01",
    ),
    "golds where no answer is right": (
        "grpo.demonstrations=true", "grpo.questions=2", "grpo.dynamic_sampling.oversample=2", "grpo.packing=true",
        "grpo.steps_per_generation=2", "sampling.max_new_tokens=96", "grpo.optim.lr=0.01", "grpo.kl.coef=0.01",
    ),
    "refills": (
        "grpo.dynamic_sampling.max_extra_generations=2", "grpo.minibatches=2", "grpo.kl.coef=0.01",
        "grpo.kl.placement=reward",
    ),
}  # fmt: skip
IN_CI = {"two stages of dialogues", "a step ahead"}


def arguments(data: Path, run: Path, variant: str) -> list[str]:
    return [
        "model.init=plain", "model.compute_dtype=same", "data.prompt=compact", "data.evals=[dev_unseen]",
        "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3",
        f"data.dir={data}", f"data.tokenizer.path={data}/tokenizer", f"run.dir={run}",
        "data.prompt=tagged", "data.max_prompt_tokens=320", "model.d_model=32", "model.n_layers=1", "model.n_heads=2",
        "model.n_kv_heads=1", "model.head_dim=16", "model.d_ff=48", "grpo.loss.entropy_bonus=0.05",
        f"grpo.steps={STEPS}", "grpo.prompts=2", "grpo.num_generations=2", "sampling.max_new_tokens=12",
        "rollout.max_num_seqs=4",
        "validation.max_num_seqs=4", "validation.sampling.max_new_tokens=12", "run.checkpoint_every=1",
        "run.keep_checkpoints=9", "run.display=plain", *VARIANTS[variant],
    ]  # fmt: skip


def read_without_times(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


def rollout_files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "rollouts").iterdir()}


def assert_all_that_is_learned_has_an_advantage(run: Path) -> None:
    """Also with several steps per rollout, more samples than trained answers, or advantages per token."""
    read = [read_chunk(chunk) for chunk in list_chunks(open_result_folder(run)) if chunk.kind == "train"]
    groups = [group for item in read for group in item.groups]
    add_advantages(groups, {at: rows for entry in read for at, rows in entry.advantages.items()})
    learned = [group for group in groups if group["chosen"] is not None]
    assert len(learned) == 2 * STEPS
    assert all("advantage" in answer for group in learned for answer in group["answers"])
    assert not any("advantage" in answer for group in groups if group["chosen"] is None for answer in group["answers"])


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=pytest.mark.slow if name in IN_CI else pytest.mark.nightly) for name in VARIANTS],
)
def test_resume_from_any_step_is_bit_equal(
    variant: str, small_data: Path, tmp_path: Path, rewind: Callable[[Path, int], None]
) -> None:
    run = tmp_path / "run"
    assert main(arguments(small_data, run, variant)) == 0
    want, samples = read_without_times(run / "metrics.jsonl"), read_without_times(run / "samples.jsonl")
    rollouts = rollout_files(run)
    assert_all_that_is_learned_has_an_advantage(run)
    config, params = load_checkpoint(run / "model")
    assert config.n_layers == 1
    assert [row["step"] for row in want if row["phase"].startswith("grpo")] == list(range(1, STEPS + 1))
    for step in (1,) if variant in IN_CI else (3, 1):
        rewind(run, step)
        assert main([*arguments(small_data, run, variant), "run.resume=true"]) == 0
        assert read_without_times(run / "metrics.jsonl") == want
        assert read_without_times(run / "samples.jsonl") == samples
        assert rollout_files(run) == rollouts
        got = load_checkpoint(run / "model")[1]
        for name, leaf in params["layers"].items():
            assert (np.asarray(got["layers"][name]) == np.asarray(leaf)).all(), (step, name)
    check(variant, want)


def assert_two_stages(rows: list[dict[str, Any]]) -> None:
    steps = [row for row in rows if row["phase"].startswith("grpo")]
    assert [row["phase"] for row in steps] == ["grpo", "grpo", "grpo2", "grpo2"]
    assert steps[3]["optim/lr"] < steps[2]["optim/lr"]


def assert_dialogues(steps: list[dict[str, Any]]) -> None:
    assert all(1.0 <= row["length/turns"] <= 3.0 for row in steps)
    assert any(row["length/turns"] > 1.0 for row in steps)
    assert all(
        {"reward/queries", "reward/lookups", "reward/repeated", "reward/unprobed"} <= row.keys() for row in steps
    )


def check(variant: str, rows: list[dict[str, Any]]) -> None:
    """Check the metrics that the variant is about."""
    steps = [row for row in rows if row["phase"].startswith("grpo")]
    if variant == "batch RL":
        assert ["reward/mean" in row for row in steps] == [True, False, True, False]
        assert steps[0]["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert abs(steps[1]["policy/ratio_mean"] - 1.0) > 1e-5  # the policy differs from the one that sampled
    elif variant == "two stages":
        assert_two_stages(rows)
        assert [row["step"] for row in rows if row["phase"] == "eval"] == [0, 1, 2, 3, 4]
        assert all("reward/partial" in row for row in steps)
    elif variant == "several turns":
        assert_dialogues(steps)
    elif variant == "two stages of dialogues":
        assert_two_stages(rows)
        assert_dialogues(steps)
    elif variant == "a value head":
        assert all("value/loss" in row for row in steps)
    elif variant == "a step ahead":
        assert [row["rollout/stale_tokens"] > 0 for row in steps] == [False, True, True, True]
        assert [row["rollout/staleness"] for row in steps] == [2 * row["rollout/stale_tokens"] for row in steps]
        assert all(row["rollout/stale_tokens"] < 1 for row in steps)
    elif variant == "golds where no answer is right":
        rollouts = [row for row in steps if "reward/mean" in row]
        assert [row["reward/correct"] for row in rollouts] == [0.0, 0.0]  # of the samples
        assert [row["rollout/demonstrations"] for row in rollouts] == [1.0, 1.0]
        assert [row["reward/zero_variance"] for row in rollouts] == [0.0, 0.0]
        assert all(row["policy/advantage_size"] > 0 for row in steps)
        assert all(row["policy/sampler_delta_max"] < 1e-3 for row in rollouts)  # the golds were not sampled
    elif variant == "refills":
        assert any(row["rollout/rounds"] > 1 for row in steps)
        # A step's engine metrics cover all of its rounds: one round of 4 answers takes at most 12 steps here.
        assert any(row["rollout/steps"] > 12 for row in steps)
