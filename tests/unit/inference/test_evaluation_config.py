"""Arguments of `jx.evaluate` and `jaxrl-sql evaluate`: the model of an endpoint, and refusals of unused arguments."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jaxrl_sql as jx
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.inference.evaluation_config import EvaluationRequest, check_answerer, evaluation_layers
from jaxrl_sql.text2sql.benchmarks import benchmark_of
from jaxrl_sql.types import Example, InputError, JaxrlSqlError

URL = "http://127.0.0.1:9/v1"


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item(name TEXT)")
    return [Example("q0", "shop", str(path), "How many items?", "SELECT count(*) FROM item")]


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
        ({}, r"give one of predictions FILE, for each data one, model M, and endpoint URL model M \(or .*\)"),
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
