"""Arguments of `jx.evaluate` and `jaxrl-sql evaluate`: an endpoint's model, and refusals of what would be ignored."""

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


def test_the_model_of_an_endpoint_is_its_name_there() -> None:
    config = load_config(
        EvaluateConfig, None, *evaluation_layers(EvaluationRequest(data=["d"], model="m", endpoint=URL))
    )
    check_answerer(config.evaluate, config.model.checkpoint)
    assert (config.evaluate.model, config.evaluate.base_url, config.model.checkpoint) == ("m", URL, "")
    assert config.data.prompt == "chat"
    layers = evaluation_layers(EvaluationRequest(data=["d"], endpoint=URL), ["evaluate.model=other"])
    named = load_config(EvaluateConfig, None, *layers)
    assert named.evaluate.model == "other"


def test_the_server_is_asked_for_the_model_in_python(examples: list[Example]) -> None:
    with pytest.raises(JaxrlSqlError, match=rf"^{URL}: .*Connection refused"):
        jx.evaluate(examples, None, {"evaluate.retries": 0}, model="m", endpoint=URL)


def test_what_would_be_ignored_is_refused(examples: list[Example], tmp_path: Path) -> None:
    predictions, file = {"q0": "SELECT 0"}, tmp_path / "predictions.json"
    file.write_text('{"q0": "SELECT 0"}')
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"predictions": predictions, "split": "dev"}, r"split dev: requires a folder, but data is a list of examples"),
        ({"predictions": predictions, "sql_field": "x"}, r"sql_field x: requires a file of predictions"),
        ({"model": "m", "endpoint": URL, "sql_field": "x"}, r"sql_field x: requires a file of predictions"),
        ({"predictions": predictions, "recipe": "artic"}, r"config: recipe='artic' is none of .* nearest is arctic"),
        ({"predictions": file, "recipe": "artic"}, r"config: recipe='artic' is none of .* nearest is arctic"),
        ({}, r"give one of predictions FILE, for each data one, model M, and endpoint URL model M \(or .*\)"),
    )
    for arguments, words in wrong:
        with pytest.raises(InputError, match=f"^{words}$"):
            jx.evaluate(examples, **arguments)
    assert jx.evaluate(examples, predictions, recipe="arctic").numbers["count"] == 1


def test_an_error_of_a_file_names_the_parameter(examples: list[Example], tmp_path: Path) -> None:
    file = tmp_path / "predictions.jsonl"
    file.write_text('{"id": "q0", "answer": "SELECT 0"}\n')
    with pytest.raises(InputError, match=r"; sql_field NAME says where SQL") as caught:
        jx.evaluate(examples, file)
    assert "--field" not in str(caught.value)
    assert jx.evaluate(examples, file, sql_field="answer").numbers["count"] == 1


def test_a_benchmark_is_judged_as_its_examples(examples: list[Example]) -> None:
    benchmark, predictions = benchmark_of(examples, "examples"), {"q0": "SELECT count(*) FROM item"}
    numbers = jx.evaluate(benchmark, predictions).numbers
    assert numbers == jx.evaluate(examples, predictions).numbers
    assert numbers == jx.evaluate((example for example in examples), predictions).numbers
