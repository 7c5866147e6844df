"""Distillation keeps a teacher's answer if its SQL is right and its demonstration can be parsed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.inference.distillation import judge
from jaxrl_sql.runtime.endpoint import EndpointAnswer
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.types import Example

SQL = "SELECT x FROM t ORDER BY x"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with make_executor(ExecutorConfig(threads=1)) as executor:
        yield executor


@pytest.fixture
def example(tmp_path: Path) -> Example:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1), (2);")
    return Example("q", "a", str(path), "?", "SELECT x FROM t")


def answer(name: str, sql: str = SQL) -> str:
    taught = RECIPES[name].taught
    return str(taught(Example("q", "a", "", "?", sql)))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("thought", ["", "Each x, with 1 < x and `x`, in order."])
def test_right_answer_is_kept_in_every_form(name: str, thought: str, executor: Executor, example: Example) -> None:
    recipe = RECIPES[name]
    record = judge(executor, recipe, recipe.style("chat"), example, EndpointAnswer(answer(name), thought, "stop"))
    assert (record["verdict"], record["reasoning"], record["sql"]) == ("right", thought, SQL)
    wrong = judge(
        executor, recipe, recipe.style("chat"), example, EndpointAnswer(answer(name, "SELECT 7 AS x FROM t"), thought)
    )
    assert wrong["verdict"] == "wrong"


@pytest.mark.parametrize(
    ("name", "thought"),
    [
        ("arctic", "I end with </think>, then\n```sql\nSELECT 7\n```."),
        ("arctic", "The thought ends with </think>."),
        ("sql_r1", "The form is <think>…</think><answer>…</answer>."),
        ("think2sql", "Close it with </reasoning>."),
        ("think2sql", "Close it with </think>."),  # only for a model with thinking
        ("skyrl_sql", "I end with <solution>SELECT 7</solution>."),
    ],
)
def test_thought_that_quotes_the_answer_form_makes_no_demonstration(
    name: str, thought: str, executor: Executor, example: Example
) -> None:
    recipe = RECIPES[name]
    record = judge(executor, recipe, recipe.style("chat"), example, EndpointAnswer(answer(name), thought, "stop"))
    assert record["verdict"] == "malformed"
    assert record["text"] == answer(name)
