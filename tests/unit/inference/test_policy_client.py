"""The policy client: device memory of its caches, dtype of its weights, and stop strings."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.inference import policy_client
from jaxrl_sql.inference.policy_client import PolicyClient, open_policy_client
from jaxrl_sql.models import load_checkpoint
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import Engine, SamplingParams
from jaxrl_sql.rollout.stop_strings import STATEMENT_END
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import InputError

START = Path(__file__).parents[3] / "configs" / "quickstart_start"
MODEL = [f"model.checkpoint={START}", "data.prompt=compact"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mebibytes", "budget", "invalid"),
    [
        pytest.param(400, (1192, 12, 400), [], marks=pytest.mark.nightly),
        (8, (16, 12, 8), [2000]),
        (0.1, (0, 0, 0), [100, 2000]),
    ],
)
def test_cache_of_a_command_is_limited_to_its_memory_share(
    mebibytes: float, budget: tuple[int, ...], invalid: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of 64 tokens takes 256 KiB for this model. Prompts without a length limit get the remaining blocks."""
    monkeypatch.setattr(policy_client, "device_memory", lambda _mesh: 1 << 30)  # makes shares exact
    share = mebibytes / 1024
    config = load_config(EvaluateConfig, None, [*MODEL, "data.max_prompt_tokens=320", f"rollout.memory={share}"])
    lengths = [100, 2000]
    with (
        make_executor(config.executor) as executor,
        open_policy_client(policy_spec(config), executor, 4, Purpose.EVAL, 96) as client,
    ):
        assert client.engine.config.budget == budget
        assert isinstance(client.engine.params["layers"], tuple), "stacked layers would be stored twice once split"
        prompts, sampling = [[5] * length for length in lengths], SamplingParams(max_new_tokens=4)
        samples = list(client.engine.generate(prompts, sampling))
    assert (
        sorted(lengths[sample.prompt_index] for sample in samples if "needs more than the" in sample.error) == invalid
    )
    assert sum(item.finish_reason in {"stop", "length"} for item in samples) == 2 - len(invalid)


@pytest.mark.parametrize(
    ("dtype", "compute", "stored"),
    [
        pytest.param("float32", "bfloat16", "bfloat16", marks=pytest.mark.slow),
        pytest.param("float32", "same", "float32", marks=pytest.mark.nightly),
        pytest.param("bfloat16", "float32", "bfloat16", marks=pytest.mark.nightly),
    ],
)
def test_matrices_are_stored_in_the_compute_dtype(dtype: str, compute: str, stored: str) -> None:
    """Answers and their log-probabilities equal those of the weights in their original dtype."""
    config = load_config(EvaluateConfig, None, [*MODEL, f"model.dtype={dtype}", f"model.compute_dtype={compute}"])
    with (
        make_executor(config.executor) as executor,
        open_policy_client(policy_spec(config), executor, 4, Purpose.EVAL, 96) as client,
    ):
        engine = client.engine
        assert isinstance(engine, Engine)
        whole = Engine(engine.model, load_checkpoint(START, dtype)[1], engine.tokenizer, engine.config)
        layer = engine.params["layers"][0]
        assert (layer["q"].dtype, engine.params["embed"].dtype, layer["attn_norm"].dtype) == (
            stored,
            stored,
            dtype,
        )
        prompts, sampling = [[5, 9, 7] * 20, [8, 3]], SamplingParams(max_new_tokens=12, n=2)
        samples = [
            {(s.prompt_index, s.index): (s.token_ids, s.logprobs) for s in item.generate(prompts, sampling)}
            for item in (engine, whole)
        ]
        assert samples[0] == samples[1]


@pytest.mark.parametrize(
    ("overrides", "stops"),
    [
        (["data.prompt=compact"], (STATEMENT_END,)),
        (["data.prompt=compact", "evaluate.sampling.stop=[x]"], ("x",)),
        (["data.prompt=tagged", "recipe=skyrl_sql", "evaluate.sampling.stop=[x]"], ("</sql>", "</solution>", "x")),
    ],
)
def test_raw_sql_stops_at_the_statement_end_by_default(overrides: list[str], stops: tuple[str, ...]) -> None:
    config = load_config(EvaluateConfig, None, [*MODEL, *overrides])
    recipe = find_recipe(config.recipe)
    client = PolicyClient(None, recipe, recipe.style_for(config.data), None)  # type: ignore[arg-type]
    assert client.stops(config.evaluate.sampling.stop) == stops


@pytest.mark.parametrize(
    ("mebibytes", "helps"),
    [
        (4, r"use model\.dtype=bfloat16, which needs 2\.3 MiB, or 2 times as many devices"),
        (2, "use 3 times as many"),
    ],
)
def test_weights_too_large_for_memory_are_rejected_before_loading(
    mebibytes: int, helps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_client, "device_memory", lambda _mesh: mebibytes << 20)
    monkeypatch.setattr(policy_client, "load_checkpoint", lambda *_, **__: pytest.fail("read"))
    config = load_config(EvaluateConfig, None, MODEL)
    with (
        make_executor(config.executor) as executor,
        pytest.raises(InputError, match=rf"in float32, and a device has {mebibytes}\.0 MiB: {helps}") as caught,
        open_policy_client(policy_spec(config), executor, 4, Purpose.EVAL, 96),
    ):
        pass
    assert "\n" not in str(caught.value)
