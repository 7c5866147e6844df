"""A run's memory estimate equals its actual memory where that can be measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state
from jaxrl_sql.batch import TrainState
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig, Norms, Rope, count_params, init_params
from jaxrl_sql.models.lora import init_adapters
from jaxrl_sql.parallel.mesh import make_mesh
from jaxrl_sql.planning import memory
from jaxrl_sql.planning.chips import device_memory
from jaxrl_sql.planning.memory import MemoryEstimate, PlannedModel
from jaxrl_sql.planning.workload import Workload, find_workload, longest_answer
from jaxrl_sql.training.preflight import check_budget, check_disk
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

MODEL = ModelConfig("qwen3", 512, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 1024)


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return make_mesh(1, 1, 1)


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, SMALL, overrides)


def workload(cfg: TrainConfig, longest: int = 100) -> Workload:
    return find_workload(cfg.model, cfg.workload(longest), 1)


def estimate(cfg: TrainConfig, shape: ModelConfig, mesh: jax.sharding.Mesh, longest: int) -> MemoryEstimate:
    return memory.estimate(PlannedModel(cfg.model, shape), mesh, workload(cfg, longest))


def nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def state_of(cfg: TrainConfig) -> TrainState:
    base, lora = init_params(MODEL, jax.random.key(0), jnp.dtype(cfg.model.dtype)), cfg.model.lora
    if not lora.rank:
        return init_state(base, make_optimizer(cfg.grpo.optim, 10))
    adapters = init_adapters(MODEL, lora.rank, lora.alpha, lora.targets, jax.random.key(0))
    return init_state(adapters, make_optimizer(cfg.grpo.optim, 10), base)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("grpo.kl.coef=0.1",),
        ("grpo.optim.moments=bfloat16",),
        ("model.lora.rank=4",),
        ("model.lora.rank=4", "model.lora.targets=[q, v]", "grpo.kl.coef=0.1", "sft.steps=1"),
    ],
)
def test_estimated_weights_and_optimizer_equal_the_state(overrides: tuple[str, ...], mesh: jax.sharding.Mesh) -> None:
    cfg = config(*overrides)
    state, sizes = state_of(cfg), estimate(cfg, MODEL, mesh, 100)
    assert sizes.weights == 4 * count_params(MODEL)
    gradients, moments = nbytes(state.trainable), nbytes(state.opt_state)
    assert gradients + moments - 64 <= sizes.training <= gradients + moments  # the state also has a few counters
    assert sizes.reference == (nbytes(state.trainable) if "grpo.kl.coef=0.1" in overrides else 0)


@pytest.mark.parametrize(
    "overrides",
    [
        ("grpo.gradient_accumulation_steps=4",),
        ("model.dtype=bfloat16", "grpo.optim.moments=bfloat16"),
        ("model.dtype=bfloat16", "grpo.kl.coef=0.1"),
        ("model.lora.rank=4", "grpo.kl.coef=0.1"),
    ],
)
def test_checkpoint_estimate_counts_trained_weights_moments_and_reference(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mesh: jax.sharding.Mesh
) -> None:
    """A disk with that much space is accepted, regardless of gradient memory; one with less is refused."""
    cfg = config(*overrides)
    state = state_of(cfg)
    copied = cfg.grpo.kl.coef > 0 and not cfg.model.lora.rank
    item = nbytes(state.trainable) * (1 + copied) + nbytes(state.opt_state)
    run: Any = SimpleNamespace(config=cfg, model=MODEL, mesh=mesh, folder=tmp_path, note=lambda _: None)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=item))
    check_disk(run, workload(cfg))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=item // 2))
    with pytest.raises(InputError, match="a checkpoint takes"):
        check_disk(run, workload(cfg))


@pytest.mark.parametrize(("more", "least"), [((), 100 + 4 * 8 * 96), (("grpo.packing=true",), 100 + 4 * 96)])
def test_budget_below_the_questions_of_a_schema_is_refused_at_the_start(more: tuple[str, ...], least: int) -> None:
    def check(tokens: int) -> None:
        cfg = config("grpo.questions=4", f"grpo.max_tokens_per_device={tokens}", *more)
        questions = SimpleNamespace(train=SimpleNamespace(lengths=lambda: [40, 100]))
        prompt_format = SimpleNamespace(recipe=SimpleNamespace(loss=None))
        run: Any = SimpleNamespace(config=cfg, questions=questions, prompt_format=prompt_format)
        check_budget(run)

    check(least)
    with pytest.raises(
        InputError, match=f"for 4 questions with their schema and answers: it must be at least {least};"
    ):
        check(least - 1)


def test_half_width_halves_weights_and_remat_reduces_activations(mesh: jax.sharding.Mesh) -> None:
    plain = estimate(config(), MODEL, mesh, 100)
    half = estimate(config("model.dtype=bfloat16"), MODEL, mesh, 100)
    again = estimate(config("model.remat=full"), MODEL, mesh, 100)
    parts = estimate(config("grpo.gradient_accumulation_steps=4"), MODEL, mesh, 100)
    assert half.weights * 2 == plain.weights
    assert half.gradients == plain.gradients, "the bytes of gradients depend on the weights' dtype"
    assert again.activations < plain.activations
    assert parts.activations * 4 == plain.activations


def test_evaluation_only_run_has_no_optimizer(mesh: jax.sharding.Mesh) -> None:
    sizes = estimate(config("grpo.steps=0"), MODEL, mesh, 100)
    assert (sizes.training, sizes.reference, sizes.activations) == (0, 0, 0)
    assert sizes.caches > 0


def test_host_reports_its_capacity(mesh: jax.sharding.Mesh) -> None:
    assert device_memory(mesh) > 1 << 28


def test_answer_estimate_covers_all_turns() -> None:
    assert longest_answer(config().sampling) == ("sampling.max_new_tokens", 96)
    several = config(
        "sampling.turns=3", "sampling.max_total_tokens=300", "recipe=skyrl_sql", "data.prompt=tagged",
        "data.max_prompt_tokens=384",
    )  # fmt: skip
    assert longest_answer(several.sampling) == ("sampling.max_total_tokens", 300)
