"""Suggestions by formula: the run with the suggested settings has the stated memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jaxrl_sql.commands import plan
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models.shapes import published_config
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.suggestions import MAX_MEMORY_SHARE

OWN = ("own_gpu",)


def plan_of(files: Sequence[str], shape: str, topology: str, *overrides: str) -> Plan:
    config = load_config(TrainConfig, [f"configs/{name}.yaml" for name in files], overrides)
    where = find_topology(topology)
    sizes = mesh_sizes(f"{config.mesh.data}x{config.mesh.fsdp}x{config.mesh.tensor}", where.chips)
    sections = config.workload(config.data.max_prompt_tokens)
    return make_plan(sections, PlannedModel(config.model, published_config(shape)), where, sizes)


@pytest.mark.parametrize(
    ("files", "shape", "topology", "overrides", "keys"),
    [
        (OWN, "qwen2.5-coder-0.5b", "rtx4090:1", [], ["rollout.max_num_seqs", "model.remat"]),
        (OWN, "qwen2.5-coder-1.5b", "rtx4090:1", [], ["rollout.max_num_seqs", "grpo.max_tokens_per_device"]),
        (OWN, "qwen2.5-coder-7b", "h100:1", [], ["rollout.max_num_seqs", "grpo.max_tokens_per_device"]),
        (
            OWN, "qwen2.5-coder-1.5b", "rtx4090:1", ["rollout.memory=0.1"],
            ["rollout.max_num_seqs", "rollout.memory", "grpo.max_tokens_per_device"],
        ),
        (("own_gpu_full",), "qwen2.5-coder-3b", "h100:1", [], ["rollout.max_num_seqs", "model.remat"]),
        (("arctic", "on/h100x8"), "qwen2.5-coder-7b", "h100:8", [], ["grpo.gradient_accumulation_steps"]),
        (("think2sql_sft_sql", "on/gpu_80gb"), "qwen3-4b", "h100:1", [], ["sft.gradient_accumulation_steps"]),
    ],
)  # fmt: skip
def test_suggested_larger_batches_have_the_stated_memory(
    files: Sequence[str], shape: str, topology: str, overrides: list[str], keys: list[str]
) -> None:
    larger = plan_of(files, shape, topology, *overrides).larger
    assert larger is not None
    assert [setting.partition("=")[0] for setting in larger.change.split()] == keys
    grown = plan_of(files, shape, topology, *overrides, *larger.change.split())
    assert grown.memory.total == larger.total <= MAX_MEMORY_SHARE * grown.topology.chip.memory
    assert grown.larger is None, "a larger load fits"


def test_decode_slots_grow_to_all_answers_of_a_rollout() -> None:
    def slots(*overrides: str) -> dict[str, Any]:
        larger = plan_of(OWN, "qwen2.5-coder-0.5b", "h100:1", *overrides).larger
        assert larger is not None
        return dict(setting.split("=") for setting in larger.change.split())

    assert slots()["rollout.max_num_seqs"] == "128"
    assert slots("grpo.dynamic_sampling.oversample=2")["rollout.max_num_seqs"] == "256"
    assert slots("rollout.max_num_seqs=96")["rollout.max_num_seqs"] == "128"
    assert "rollout.max_num_seqs" not in slots("rollout.max_num_seqs=128")
    fixed = ("rollout.prompt_blocks=2048", "rollout.completion_blocks=4096", "rollout.prefix_blocks=512")
    assert "rollout.max_num_seqs" not in slots(*fixed), "stored numbers of blocks are changed"


def test_full_card_and_unknown_memory_have_no_larger_batches() -> None:
    assert plan_of(OWN, "qwen2.5-coder-3b", "rtx4090:1").larger is None
    tight = plan_of(OWN, "qwen2.5-coder-7b", "rtx4090:1")
    assert not tight.fits
    assert tight.larger is None


def test_command_prints_larger_batches(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--config", "configs/own_gpu.yaml", "--topology", "rtx4090:1", "--compile", "none"]
    assert plan.main(command) == 0
    text = capsys.readouterr().out
    settings = "rollout.max_num_seqs=128 grpo.max_tokens_per_device=65536"
    assert f"\n  larger batches, 20.5 GiB by formula: {settings}\n" in text


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (["model.dtype=float32"], ["model.dtype=bfloat16"]),
        (
            ["model.dtype=float32", "model.compute_dtype=float32"],
            ["model.dtype=bfloat16", "model.compute_dtype=bfloat16"],
        ),
    ],
)
def test_bfloat16_weights_are_suggested_with_their_attention_and_cache(wide: list[str], narrow: list[str]) -> None:
    """Products in float32 have no fused attention on GPUs, and a KV cache of twice the size."""
    tight = plan_of(OWN, "qwen2.5-coder-3b", "rtx4090:1", *wide)
    assert not tight.fits
    totals = {suggestion.change: suggestion.total for suggestion in tight.suggestions}
    assert totals[" ".join(narrow)] == plan_of(OWN, "qwen2.5-coder-3b", "rtx4090:1", *narrow).memory.total


def test_suggestions_count_the_cache_that_the_run_then_gets() -> None:
    tight = plan_of(("own_gpu_full",), "qwen2.5-coder-1.5b", "rtx4090:1", "grpo.optim.kind=adamw")
    assert not tight.fits
    assert tight.suggestions
    for change, total in tight.suggestions:
        after = plan_of(("own_gpu_full",), "qwen2.5-coder-1.5b", "rtx4090:1", "grpo.optim.kind=adamw", *change.split())
        assert after.memory.total == total, change
