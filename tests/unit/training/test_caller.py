"""Values of a caller in Python: names of a run's questions, and refusals."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.text2sql.rewards.score import Answer
from jaxrl_sql.training.caller import CallerInputs
from jaxrl_sql.types import Example, InputError


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item(name TEXT)")
    return [Example(f"q{i}", "shop", str(path), "How many items?", "SELECT count(*) FROM item") for i in range(3)]


def test_passed_sets_are_named_in_the_configuration(examples: list[Example]) -> None:
    caller = CallerInputs(examples=examples, evals={"held_out": examples[:1]})
    data = caller.config(load_config(None)).data
    assert (data.source, data.dir, data.train, data.evals) == ("folder", "memory", "examples", ["held_out"])
    passed = caller.questions()
    assert passed.train is not None
    assert passed.evals is not None
    assert (passed.train.examples, passed.evals["held_out"].examples) == (tuple(examples), tuple(examples[:1]))
    assert CallerInputs(examples=examples).questions().evals == {}, "the configuration's sets are in no folder"
    assert CallerInputs().questions() == (None, None)


def test_settings_and_names_that_do_not_go_with_passed_sets_are_refused(examples: list[Example]) -> None:
    shots = load_config(None, [{"data.shots": 2}])
    with pytest.raises(InputError, match=r"^examples: data\.shots=2 needs the training questions in a folder"):
        CallerInputs(examples=examples).config(shots)
    for name, caller in (
        ("examples", CallerInputs(examples=examples, evals={"examples": examples})),
        ("train", CallerInputs(evals={"train": examples})),
    ):
        with pytest.raises(InputError, match=f"^evals: {name} is the name of the training set"):
            caller.config(load_config(None))


def test_lists_that_cannot_be_used_are_refused(examples: list[Example], tmp_path: Path) -> None:
    absent = Example("q9", "x", str(tmp_path / "x.sqlite"), "?", "SELECT 1")
    for wrong, words in (
        ([], "no example in it"),
        ([examples[0], examples[0]], "2 examples have the id 'q0'"),
        ([examples[0], {"question": "?"}], "a dict is no Example"),
        ([examples[0], None], "a NoneType is no Example"),
        ([examples[0], absent], r"q9: .*x\.sqlite: no such file"),
    ):
        with pytest.raises(InputError, match=f"^evals: dev: {words}"):
            CallerInputs(evals={"dev": wrong}).questions()  # type: ignore[dict-item]


def test_another_reward_function_has_another_hash() -> None:
    def shorter(answer: Answer) -> float:
        return -len(answer.text)

    def longer(answer: Answer) -> float:
        return len(answer.text)

    assert CallerInputs().hashes() == {}
    assert CallerInputs(reward=shorter).hashes() == CallerInputs(reward=shorter).hashes()
    assert CallerInputs(reward=shorter).hashes() != CallerInputs(reward=longer).hashes()
    assert CallerInputs(reward=len).hashes()["reward"], "a function without a source is known by its name"  # type: ignore[arg-type]
