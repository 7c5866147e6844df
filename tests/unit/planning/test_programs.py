"""Programs of a run, lowered from abstract arrays and compiled for the CPU of this machine.

The argument sizes that the compiler reports equal those of the formulas.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl_sql.algo.step import init_state
from jaxrl_sql.batch import TrainState
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.lora import init_adapters
from jaxrl_sql.parallel.mesh import make_mesh
from jaxrl_sql.planning.memory import PlannedModel, estimate
from jaxrl_sql.planning.programs import ProgramInputs, abstract_state, lower_decode, lower_prefill, programs
from jaxrl_sql.planning.workload import Workload, find_workload

SMALL = Path(__file__).parents[2] / "small.yaml"

# Large enough for weights and pages to dominate other arguments (lengths, tables, keys).
MODEL = ModelConfig("qwen3", 512, 256, 2, 4, 2, 32, 1024, Rope(1e4), Norms(), True, True, False, 1024)
SHAPE = (
    "grpo.prompts=2", "grpo.num_generations=2", "rollout.max_num_seqs=4", "sampling.max_new_tokens=32",
    "validation.max_num_seqs=2",
    "validation.sampling.max_new_tokens=32",
)  # fmt: skip


def program_inputs(*overrides: str) -> tuple[ProgramInputs, Workload]:
    config: TrainConfig = load_config(TrainConfig, SMALL, [*SHAPE, *overrides])
    sections = config.workload(60)
    model, mesh = PlannedModel(config.model, MODEL), make_mesh(1, 1, 1)
    return ProgramInputs(sections, model, mesh), find_workload(config.model, sections, 1)


def nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.dtype=bfloat16", "grpo.optim.moments=bfloat16"),
        ("model.lora.rank=4",),
        ("grpo.algorithm=ppo", "grpo.num_generations=1"),
        ("grpo.optim.kind=adafactor",),
    ],
)
def test_abstract_state_equals_that_of_a_run(overrides: tuple[str, ...]) -> None:
    result, _ = program_inputs(*overrides)
    section, grpo, lora = result.model.section, result.sections.grpo, result.model.section.lora
    from jaxrl_sql.algo.optim import make_optimizer
    from jaxrl_sql.models.value import add_value_head, decay_mask

    optimizer = make_optimizer(grpo.optim, 10, None if lora.rank else decay_mask(MODEL))

    def begin() -> TrainState:
        trainable: Any = init_params(MODEL, jax.random.key(0), section.dtype)
        frozen = None
        if lora.rank:
            adapters = init_adapters(MODEL, lora.rank, lora.alpha, lora.targets, jax.random.key(0))
            trainable, frozen = adapters, trainable
        if grpo.algorithm == "ppo":
            trainable = add_value_head(trainable, MODEL)
        return init_state(trainable, optimizer, frozen)

    state = jax.eval_shape(begin)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype.name), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype.name), abstract_state(result)) == shapes


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("grpo.kl.coef=0.1", "grpo.minibatches=2"), marks=pytest.mark.slow),
        pytest.param(("model.lora.rank=8", "model.dtype=bfloat16", "model.remat=full"), marks=pytest.mark.slow),
    ],
)
def test_argument_sizes_equal_the_formulas(overrides: tuple[str, ...]) -> None:
    result, work = program_inputs(*overrides)
    memory = estimate(result.model, result.mesh, work)
    lowered = programs(result, work)
    held = {name: lower().compile().memory_analysis().argument_size_in_bytes for name, lower in lowered.items()}
    assert work.rollout is not None
    model = memory.weights + memory.adapters
    assert held["update"] == pytest.approx(model + memory.optimizer, rel=0.02)
    cached = 64 * work.rollout.sizes.prefix_blocks * 2 * 2 * 2 * 32 * result.model.bytes_per_weight
    pools = memory.caches - cached
    # The other arguments of a decode step are small: tables, keys and states of rows and lanes.
    assert held["decode"] == pytest.approx(model + pools, rel=0.02)
    assert ("score" in held) == ("grpo.kl.coef=0.1" in overrides)


def test_repetition_penalty_adds_seen_tokens_to_the_decode() -> None:
    result, work = program_inputs("sampling.repetition_penalty=1.1", "sampling.top_p=0.9")
    assert work.rollout is not None
    plain, _ = program_inputs()
    both = [lower_decode(item, work.rollout).as_text().count(f"{2 * 4}x512xi1") for item in (result, plain)]
    assert both[0] > both[1]


def test_long_prompts_are_prefilled_in_chunks() -> None:
    result, _ = program_inputs("data.max_prompt_tokens=900")
    work = find_workload(result.model.section, result.sections._replace(longest=900), 1)
    assert work.rollout is not None
    assert work.rollout.prefill_shape == (1, 1024)
    assert "tensor<1x1024xi32>" in lower_prefill(result, work.rollout).as_text()
