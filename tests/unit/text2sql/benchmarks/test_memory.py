"""Sets of questions that a caller in Python passes."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.text2sql.benchmarks import benchmark_of
from jaxrl_sql.types import Example, InputError


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item(name TEXT)")
    return [Example(f"q{i}", "shop", str(path), "How many items?", "SELECT count(*) FROM item") for i in range(3)]


def test_generator_and_set_are_read_once(examples: list[Example]) -> None:
    assert benchmark_of((example for example in examples), "examples") == benchmark_of(examples, "examples")
    assert {*benchmark_of({*examples}, "examples").examples} == {*examples}
    with pytest.raises(InputError, match=r"^examples: no examples$"):
        benchmark_of((example for example in examples[:0]), "examples")


def test_benchmark_keeps_its_rule(examples: list[Example]) -> None:
    benchmark = benchmark_of(examples, "examples")._replace(name="ehrsql", rule="ehrsql")
    assert benchmark_of(benchmark, "examples") == benchmark
    with pytest.raises(InputError, match=r"^examples: no examples$"):
        benchmark_of(benchmark._replace(examples=()), "examples")


def test_other_objects_are_refused(examples: list[Example]) -> None:
    numbered = [dataclasses.replace(example, uid=i) for i, example in enumerate(examples)]  # type: ignore[arg-type]
    wrong: tuple[tuple[Any, str], ...] = (
        (numbered, r"examples: the id 0 must be a text"),
        (examples[0], r"examples: must be a list of examples, not Example"),
        ("data/dev", r"examples: items must be jaxrl_sql.Example, not str"),
    )
    for questions, message in wrong:
        with pytest.raises(InputError, match=f"^{message}$"):
            benchmark_of(questions, "examples")
