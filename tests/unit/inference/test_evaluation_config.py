"""Arguments of `jx.evaluate` and `jaxrl-sql evaluate`: the model of an endpoint, and refusals of unused arguments."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jaxrl_sql as jx
from jaxrl_sql.config import EvaluateConfig, Override, load_config, replace_values
from jaxrl_sql.inference.evaluation_config import (
    EvaluationRequest,
    Layers,
    ask_layers,
    check_answerer,
    evaluation_layers,
    prompt_warning,
)
from jaxrl_sql.inference.prompt_form import resolve_settings
from jaxrl_sql.text2sql.benchmarks import benchmark_of
from jaxrl_sql.types import Example, InputError, JaxrlSqlError

URL = "http://127.0.0.1:9/v1"


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item(name TEXT)")
    return [Example("q0", "shop", str(path), "How many items?", "SELECT count(*) FROM item")]


@pytest.mark.parametrize("prompt", ["tagged", "compact"])
def test_prompts_that_an_endpoint_does_not_get_cause_a_warning(prompt: str, tmp_path: Path) -> None:
    file = tmp_path / "jaxrl_sql.yaml"
    file.write_text(f"data: {{prompt: {prompt}}}\n")

    def warning_of(layers: Layers) -> str:
        config = load_config(EvaluateConfig, [file], *layers)
        return prompt_warning(config.evaluate, config.data.prompt)

    warning = warning_of(ask_layers("m", files=[file], endpoint=URL))
    assert f"data.prompt={prompt}" in warning
    assert "--model" in warning
    assert "\n" not in warning
    request = EvaluationRequest(data=["d"], model="m", endpoint=URL)
    assert warning_of(evaluation_layers(request, files=[file])) == warning
    assert warning_of(evaluation_layers(request, ["data.prompt=chat"], [file])) == ""
    assert warning_of(ask_layers("configs/recipes_start", files=[file])) == ""


def test_endpoint_model_name_is_passed_on() -> None:
    config = load_config(
        EvaluateConfig, None, *evaluation_layers(EvaluationRequest(data=["d"], model="m", endpoint=URL))
    )
    check_answerer(config.evaluate, config.model.checkpoint)
    assert (config.evaluate.model, config.evaluate.base_url, config.model.checkpoint) == ("m", URL, "")
    assert config.data.prompt == "chat"
    layers = evaluation_layers(EvaluationRequest(data=["d"], endpoint=URL), ["evaluate.model=other"])
    named = load_config(EvaluateConfig, None, *layers)
    assert named.evaluate.model == "other"


SHIPPED_RUN = "model: {checkpoint: no/such}\ndata: {prompt: chat, tokenizer: {path: no/such}}\n"


def endpoint_config(
    file: Path, command: str, *overrides: Override, system: str = "", samples: int | None = None
) -> EvaluateConfig:
    if command == "ask":
        layers = ask_layers("m", overrides, [file], endpoint=URL, samples=samples)
    else:
        request = EvaluationRequest(data=["d"], model="m", endpoint=URL, system=system)
        layers = evaluation_layers(request, overrides, [file])
    return load_config(EvaluateConfig, file, *layers)


@pytest.mark.parametrize("command", ["ask", "evaluate"])
def test_endpoint_needs_no_checkpoint_or_tokenizer_of_the_file(command: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SHIPPED_RUN)
    config = resolve_settings(endpoint_config(file, command))
    assert (config.model.checkpoint, config.data.tokenizer.path, config.evaluate.base_url) == ("", "", URL)
    check_answerer(replace_values(config, {"evaluate.data": ["d"]}).evaluate, config.model.checkpoint)
    assert config.evaluate.sampling.max_new_tokens == 1024
    file.write_text("data: {prompt: auto}\n")
    assert resolve_settings(endpoint_config(file, command)).data.prompt == "chat"


@pytest.mark.parametrize("command", ["ask", "evaluate"])
def test_endpoint_is_sampled_as_in_the_validation_of_the_file(command: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    training = f"{SHIPPED_RUN}sampling: {{max_new_tokens: 9, turns: 3, max_total_tokens: 50, stop: [x]}}\n"
    file.write_text(training)
    sampling = endpoint_config(file, command).evaluate.sampling
    assert (sampling.max_new_tokens, sampling.turns, sampling.stop, sampling.temperature) == (9, 3, ["x"], 0.0)
    file.write_text(f"{training}validation: {{sampling: {{max_new_tokens: 24, turns: 2}}}}\n")
    sampling = endpoint_config(file, command).evaluate.sampling
    assert (sampling.max_new_tokens, sampling.turns, sampling.stop) == (24, 2, ["x"])
    changed = endpoint_config(file, command, "evaluate.sampling.max_new_tokens=7").evaluate.sampling
    assert (changed.max_new_tokens, changed.turns) == (7, 2)
    file.write_text(f"{file.read_text()}evaluate: {{sampling: {{max_new_tokens: 8}}}}\n")
    assert endpoint_config(file, command).evaluate.sampling.max_new_tokens == 8


def test_samples_and_a_system_take_priority_over_the_validation_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("validation: {sampling: {max_new_tokens: 24}}\n")
    sampling = endpoint_config(file, "ask", samples=3).evaluate.sampling
    assert (sampling.max_new_tokens, sampling.temperature) == (24, 0.8)
    assert endpoint_config(file, "evaluate", system="arctic").evaluate.sampling.max_new_tokens == 8192


def test_python_api_asks_the_server_for_its_model(examples: list[Example]) -> None:
    with pytest.raises(JaxrlSqlError, match=rf"^{URL}: .*Connection refused"):
        jx.evaluate(examples, None, {"evaluate.retries": 0}, model="m", endpoint=URL)


def test_unused_arguments_are_rejected(examples: list[Example], tmp_path: Path) -> None:
    predictions, file = {"q0": "SELECT 0"}, tmp_path / "predictions.json"
    file.write_text('{"q0": "SELECT 0"}')
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"predictions": predictions, "split": "dev"}, r"split dev: requires a folder, but data is a list of examples"),
        ({"predictions": predictions, "sql_field": "x"}, r"sql_field x: requires a file of predictions"),
        ({"model": "m", "endpoint": URL, "sql_field": "x"}, r"sql_field x: requires a file of predictions"),
        ({"predictions": predictions, "recipe": "artic"}, r"config: recipe='artic' is not one of .* nearest is arctic"),
        ({"predictions": file, "recipe": "artic"}, r"config: recipe='artic' is not one of .* nearest is arctic"),
        ({}, r"set exactly one of: predictions FILE \(one per data\), model M, or endpoint URL model M \(or .*\)"),
    )
    for arguments, message in wrong:
        with pytest.raises(InputError, match=f"^{message}$"):
            jx.evaluate(examples, **arguments)
    assert jx.evaluate(examples, predictions, recipe="arctic").numbers["count"] == 1


def test_file_error_names_the_parameter(examples: list[Example], tmp_path: Path) -> None:
    file = tmp_path / "predictions.jsonl"
    file.write_text('{"id": "q0", "answer": "SELECT 0"}\n')
    with pytest.raises(InputError, match=r"; sql_field NAME selects the field") as caught:
        jx.evaluate(examples, file)
    assert "--field" not in str(caught.value)
    assert jx.evaluate(examples, file, sql_field="answer").numbers["count"] == 1


def test_benchmark_scores_equal_those_of_its_examples(examples: list[Example]) -> None:
    benchmark, predictions = benchmark_of(examples, "examples"), {"q0": "SELECT count(*) FROM item"}
    numbers = jx.evaluate(benchmark, predictions).numbers
    assert numbers == jx.evaluate(examples, predictions).numbers
    assert numbers == jx.evaluate((example for example in examples), predictions).numbers
