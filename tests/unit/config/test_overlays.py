"""Every published configuration fits every machine with an overlay for it, and keeps the paper's values."""

from __future__ import annotations

import dataclasses
import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.config.check import flatten
from jaxrl_sql.models.flops import decode_bytes
from jaxrl_sql.models.shapes import published_config
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.lengths import StepLengths, schedule, truncated_exponential
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.workload import longest_answer

ROOT = Path(__file__).parents[3]
RECIPES = (
    "arctic", "arctic_values", "arctic_batch", "paverl", "paverl_mixed", "sql_r1", "sql_r1_sft", "skyrl_sql",
    "skyrl_sql_no_schema", "skyrl_sql_single", "think2sql_8b", "think2sql", "think2sql_sft", "think2sql_sft_sql",
)  # fmt: skip
# Models above 8B, for 64 GPUs only.
LARGE = ("arctic_14b", "arctic_32b", "think2sql_14b")
# Each overlay, and its topology.
MACHINES = {
    "h100x8": "h100:8", "h100x8_packed": "h100:8", "v5p_4x4x2": "v5p:4x4x2", "v5p_4x4x2_packed": "v5p:4x4x2",
    "v5e_4x4": "v5e:4x4", "v5e_4x4_packed": "v5e:4x4", "gpu_80gb": "h100:1", "gpu_24gb": "l4:1",
    "h100x64": "h100:64",
}  # fmt: skip
SHAPES = {
    "OmniSQL-7B": "qwen2.5-coder-7b",
    "Qwen2.5-Coder-7B-Instruct": "qwen2.5-coder-7b",
    "Qwen2.5-Coder-1.5B-Instruct": "qwen2.5-coder-1.5b",
    "Qwen3-4B": "qwen3-4b",
    "Qwen3-8B": "qwen3-8b",
    "OmniSQL-14B": "qwen2.5-coder-14b",
    "OmniSQL-32B": "qwen2.5-coder-32b",
    "Qwen3-14B": "qwen3-14b",
}
# Each configuration on each machine, except Think2SQL 4B on 16 chips of 16 GB. Only sampled answers are packed.
PAIRS = [
    (recipe, machine)
    for recipe in RECIPES
    for machine in MACHINES
    if not machine.startswith("v5e_4x4") or recipe in {"think2sql", "think2sql_sft", "think2sql_sft_sql"}
    if not machine.endswith("_packed") or "_sft" not in recipe
    if machine != "h100x64"
] + [(recipe, "h100x64") for recipe in LARGE]
ROOM = 0.95  # A plan by formula must leave a twentieth of a chip's memory free.
# Settings that belong to the machine. An overlay's comment must name any other key that it changes.
OF_MACHINES = {
    "mesh.fsdp", "mesh.tensor", "model.kept_logits_mib", "rollout.memory", "rollout.max_num_seqs",
    "validation.max_num_seqs", "grpo.gradient_accumulation_steps", "sft.gradient_accumulation_steps",
    "rollout.mesh", "rollout.attention", "grpo.packing",
}  # fmt: skip
ADAPTERS = {"model.lora.rank", "model.lora.alpha", "sampling.max_total_tokens", "sft.optim.lr"}
ALSO = {
    "gpu_80gb": ADAPTERS,
    "gpu_24gb": ADAPTERS | {"model.checkpoint", "data.chat.thinking", "sampling.max_new_tokens"},
}


def config_of(recipe: str, machine: str) -> TrainConfig:
    return load_config(TrainConfig, [ROOT / f"configs/{recipe}.yaml", ROOT / f"configs/on/{machine}.yaml"])


def plan_of(config: TrainConfig, machine: str, mean_answer: float = 0.0) -> Plan:
    """Return the plan by formula for prompts of maximal length; `mean_answer` is in tokens (0: maximal length)."""
    shape, topology = published_config(SHAPES[Path(config.model.checkpoint).name]), find_topology(MACHINES[machine])
    mesh = mesh_sizes(f"{config.mesh.data}x{config.mesh.fsdp}x{config.mesh.tensor}", topology.chips)
    answers = truncated_exponential(mean_answer, longest_answer(config.sampling)[1]) if mean_answer else None
    sections = config.workload(config.data.max_prompt_tokens)
    return make_plan(sections, PlannedModel(config.model, shape), topology, mesh, StepLengths(answers))


@cache
def published_values(recipe: str) -> dict[str, Any]:
    return dict(flatten(dataclasses.asdict(load_config(TrainConfig, ROOT / f"configs/{recipe}.yaml"))))


@pytest.mark.parametrize(("recipe", "machine"), PAIRS)
def test_recipe_fits_the_machine_and_keeps_the_papers_numbers(recipe: str, machine: str) -> None:
    config = config_of(recipe, machine)
    plan = plan_of(config, machine)
    have = plan.topology.chip.memory
    assert plan.total <= ROOM * have, f"{plan.total / 2**30:.1f} of {have / 2**30:.1f} GiB"
    paper, here = published_values(recipe), dict(flatten(dataclasses.asdict(config)))
    assert {key for key in paper if paper[key] != here[key]} <= OF_MACHINES | ALSO.get(machine, set())


def header(machine: str) -> str:
    """Return the comment at the beginning of an overlay as one line."""
    lines = (ROOT / f"configs/on/{machine}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))


@pytest.mark.parametrize("machine", [machine for machine in MACHINES if not machine.endswith("_packed")])
def test_header_of_an_overlay_names_the_recipes_that_are_tested(machine: str) -> None:
    tested = {recipe for recipe, where in PAIRS if where == machine}
    scope = "for every published system up to 8B" if tested == set(RECIPES) else "for Think2SQL's 4B"
    if tested == set(LARGE):
        scope = "for Arctic's 14B and 32B and Think2SQL's 14B"
    assert f"{scope}:" in header(machine) or f"{scope}, and for " in header(machine)


@pytest.mark.parametrize("machine", ["gpu_24gb", "gpu_80gb"])
def test_further_files_that_a_header_names_fit(machine: str) -> None:
    named = re.findall(r"and for (\w+)\.yaml", header(machine))
    assert named == ["own_database"]
    config = config_of(named[0], machine)
    shape = published_config("qwen2.5-coder-1.5b" if machine == "gpu_24gb" else "qwen2.5-coder-7b")
    sections, topology = config.workload(config.data.max_prompt_tokens), find_topology(MACHINES[machine])
    plan = make_plan(sections, PlannedModel(config.model, shape), topology, mesh_sizes("1x1x1", 1))
    assert plan.total <= ROOM * topology.chip.memory


@pytest.mark.parametrize(
    ("recipe", "machine", "most"),
    [
        ("arctic", "v5p_4x4x2", 85.0),
        ("arctic", "h100x8", 150.0),
        ("think2sql", "v5e_4x4", 35.0),
        ("skyrl_sql", "v5p_4x4x2", 301.0 / 4),
    ],
)
def test_packing_and_replicas_reach_the_step_time_goal(recipe: str, machine: str, most: float) -> None:
    """Use a mean answer of 1,000 tokens, prompts of maximal length, and the formula's lower limit of seconds."""
    apart, packed = (plan_of(config_of(recipe, on), on, 1000) for on in (machine, f"{machine}_packed"))
    assert packed.fits
    assert packed.seconds <= most < apart.seconds


@pytest.mark.parametrize(
    ("recipe", "machine"),
    [
        ("arctic", "v5p_4x4x2_packed"),
        ("arctic", "h100x8_packed"),
        ("skyrl_sql", "v5p_4x4x2_packed"),
        ("think2sql", "v5e_4x4_packed"),
    ],
)
def test_decode_step_reads_little_more_than_weights_and_valid_keys(recipe: str, machine: str) -> None:
    """Allow 1.3 times the bytes of the multiplied weights and, once per group, of the valid keys."""
    config = config_of(recipe, machine)
    plan = plan_of(config, machine, 1000)
    model = published_config(SHAPES[Path(config.model.checkpoint).name])
    load, (step,) = plan.work.rollout, [phase for phase in plan.phases if phase.name == "decode"]
    assert load is not None
    ran = schedule(plan.lengths.answers, load.questions, load.group, load.config.max_num_seqs)
    weights = decode_bytes(model, 0, 0, 0, 0)
    a_token = 4 * model.n_layers * model.n_kv_heads * model.head_dim
    least = weights + a_token * (ran.prompts * load.prompt + ran.generated)
    assert step.cost.hbm <= 1.3 * least / int(config.rollout.mesh.split("x")[1])


def test_documented_recipes_and_machines_match_the_folder() -> None:
    assert {path.stem for path in (ROOT / "configs/on").iterdir()} == set(MACHINES)
    papers = {"arctic", "paverl", "skyrl_sql", "sql_r1", "think2sql"}
    written = {path.stem for path in (ROOT / "configs").glob("*.yaml") if not path.stem.endswith("-tiny")}
    assert {name for name in written if any(name.startswith(paper) for paper in papers)} == {*RECIPES, *LARGE}
