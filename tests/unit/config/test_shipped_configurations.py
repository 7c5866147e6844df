"""Shipped configurations: their data folders, the limits of their executors, and where they are found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jaxrl_sql.config import EvaluateConfig, TrainConfig, load_config, replace_values
from jaxrl_sql.inference.evaluation_config import EvaluationRequest, evaluation_layers
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"
CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize("name", ["quickstart", "arctic-tiny"])
def test_data_with_another_seed_use_a_separate_folder(name: str) -> None:
    result = {load_config(TrainConfig, CONFIGS / f"{name}.yaml", [f"data.seed={seed}"]).data.dir for seed in (2, 5)}
    assert result == {"data-cache/synth-2", "data-cache/synth-5"}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("sql_r1", 30), ("think2sql", 30), ("think2sql_8b", 30), ("skyrl_sql", 30), ("skyrl_sql_single", 30),
        ("skyrl_sql_no_schema", 30), ("arctic", 30), ("arctic_batch", 30), ("filter", 30), ("paverl", 120),
        ("paverl-tiny", 0.2), ("sql_r1-tiny", 0.2), ("arctic_batch-tiny", 0.2),
    ],
)  # fmt: skip
def test_reward_time_limits_are_step_limits_with_a_late_clock(name: str, seconds: float) -> None:
    executor = load_config(TrainConfig, CONFIGS / f"{name}.yaml").executor
    assert executor.vm_steps == int(seconds * 100_000_000)
    assert executor.timeout_ms >= 10 * 1000 * seconds
    with make_executor(dataclasses.replace(executor, threads=1)) as running:  # the largest values of the native limits
        assert (running.limits.vm_steps, running.limits.timeout_ms) == (executor.vm_steps, executor.timeout_ms)


@pytest.mark.parametrize("name", ["own_database", "own_gpu", "own_gpu-tiny"])
def test_untrained_model_is_evaluated_with_the_sampling_of_the_validation(name: str) -> None:
    file = CONFIGS / f"{name}.yaml"
    request = EvaluationRequest(data=["shop/dev.csv"], model=str(CONFIGS / "recipes_start"))
    before = load_config(EvaluateConfig, file, *evaluation_layers(request, files=[file]))
    run = load_config(TrainConfig, file)
    assert before.evaluate.sampling == run.validation.sampling_in(run.sampling)


def test_shipped_configuration_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = load_config(TrainConfig, "configs/sql_r1-tiny.yaml")
    assert here.model.checkpoint == "configs/recipes_start"
    monkeypatch.chdir(tmp_path)
    there = load_config(TrainConfig, "configs/sql_r1-tiny.yaml")
    assert (Path(there.model.checkpoint) / "model.safetensors").is_file()
    assert replace_values(there, {"model.checkpoint": here.model.checkpoint}) == here
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "sql_r1-tiny.yaml").write_text("seed: 7\n", encoding="utf-8")
    assert load_config(TrainConfig, ["configs/sql_r1-tiny.yaml", SMALL]).seed == 7, "a user's file has priority"
    with pytest.raises(InputError, match=r"no_such\.yaml"):
        load_config(TrainConfig, [SMALL, "configs/no_such.yaml"])
