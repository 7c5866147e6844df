"""Values of a caller in Python: names of a run's questions, and refusals."""

from __future__ import annotations

import functools
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
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
    assert CallerInputs(reward=len).hashes()["the reward function"], "a function without a source is known by its name"  # type: ignore[arg-type]


def digest(reward: Callable[..., float]) -> str:
    return CallerInputs(reward=reward).hashes()["the reward function"]


def weighed(answer: Answer, weights: object = None, *, scale: float = 1.0) -> float:
    return scale * len(answer.text)


def length(answer: Answer, *_: object) -> float:
    return len(answer.text)


class Judge:
    """A reward as an object."""

    base = 1.0

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights

    def __call__(self, answer: Answer) -> float:
        return self.score(answer)

    def score(self, answer: Answer) -> float:
        return self.base * len(answer.text)


class OtherJudge(Judge):
    def score(self, answer: Answer) -> float:
        return self.base - len(answer.text)


def test_a_partial_is_known_by_its_function_and_arguments() -> None:
    reward = functools.partial(weighed, weights={"a": 1}, scale=2.0)
    assert digest(reward) == digest(functools.partial(weighed, scale=2.0, weights={"a": 1}))
    others = (
        functools.partial(weighed, weights={"a": 2}, scale=2.0),
        functools.partial(weighed, weights={"a": 1}, scale=3.0),
        functools.partial(length, weights={"a": 1}, scale=2.0),
        functools.partial(reward, weights={"a": 1}),
        weighed,
    )
    assert len({digest(reward), *map(digest, others[:3]), digest(weighed)}) == 5
    assert digest(others[3]) == digest(reward), "a partial of a partial is one"


def test_an_object_is_known_by_its_class_and_attributes() -> None:
    judge = Judge({"a": 1})
    assert digest(judge) == digest(Judge({"a": 1}))
    assert digest(judge.score) == digest(Judge({"a": 1}).score)
    others = (Judge({"a": 2}), OtherJudge({"a": 1}), judge.score, Judge({"a": 2}).score)
    assert len({digest(judge), *map(digest, others)}) == 5


def test_a_lambda_is_known_by_its_code_wherever_it_is() -> None:
    first, other = (lambda answer: len(answer.text) + 1), (lambda answer: len(answer.text) + 2)

    moved = lambda answer: len(answer.text) + 1  # noqa: E731 - another line
    assert digest(first) == digest(moved)
    assert digest(first) != digest(other)


def test_closures_and_defaults_count_and_a_list_that_is_filled_does_not() -> None:
    def make(
        weight: float, helper: Callable[[Answer], float], log: list[float], power: int = 1
    ) -> Callable[..., float]:
        def reward(answer: Answer, power: int = power, *, names: tuple[str, ...] = ("a",)) -> float:
            log.append(weight * helper(answer) ** power)
            return log[-1] if answer.sql in {"a", "b", "c"} else float(len(names))

        return reward

    began = digest(make(0.5, length, []))
    assert digest(make(0.5, length, [1.0])) == began
    others = (make(0.6, length, []), make(0.5, weighed, []), make(0.5, length, [], 2))
    assert len({began, *map(digest, others)}) == 4


def test_a_function_that_contains_itself_has_a_hash() -> None:
    def reward(answer: Answer, depth: int = 0) -> float:
        return reward(answer, depth + 1) if depth < 2 else 1.0

    assert digest(reward) == digest(reward)


def test_a_run_of_passed_examples_names_the_passed_sets_alone(examples: list[Example]) -> None:
    folders = load_config(None, [{"data.evals": ["dev"]}])
    assert CallerInputs(examples=examples).config(folders).data.evals == []
    assert CallerInputs(examples=examples, evals={}).config(folders).data.evals == []
    assert CallerInputs(evals={"held_out": examples}).config(folders).data.evals == ["held_out"]
    assert CallerInputs().config(folders) == folders


def test_a_run_of_passed_examples_is_resumed_in_python_alone(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = CallerInputs(examples=examples).config(load_config(None, [{"run.dir": "runs/mine"}]))
    call = r"resume with jx\.train\(…, \{'run\.resume': True\}, examples=…\)$"
    for caller in (CallerInputs(), CallerInputs(evals={"dev": examples})):
        with pytest.raises(InputError, match=f"^runs/mine: its questions were passed in Python: {call}"):
            caller.config(began)
    assert CallerInputs(examples=examples).config(began) == began
    assert re.match(call, CallerInputs(examples=examples).resume_advice(Path("runs/mine")))
    advice = CallerInputs(examples=examples, reward=length).resume_advice(Path("runs/mine"))
    assert advice.endswith("{'run.resume': True}, examples=…, reward=…)")
    assert CallerInputs().resume_advice(Path("runs/mine")) == "go on with --resume runs/mine"


@dataclass(frozen=True)
class Weights:
    length: float
    pattern: re.Pattern[str] = re.compile("SELECT")


def test_settings_of_a_partial_and_of_a_closure_count() -> None:
    def make(weights: Weights) -> Callable[..., float]:
        return lambda answer: weights.length * len(answer.text)

    settings = (Weights(1), Weights(2), Weights(1, re.compile("WITH")))
    assert len({digest(functools.partial(weighed, weights=weights)) for weights in settings}) == 3
    assert len({digest(make(weights)) for weights in settings}) == 3
    assert digest(make(Weights(1))) == digest(make(Weights(1)))


def test_another_process_has_the_same_hash() -> None:
    """A set of constants has another order in each."""
    program = (
        "from jaxrl_sql.training.function_digest import function_digest\n"
        "print(function_digest(lambda answer: answer.sql in {'a', 'b', 'c', 'd', 'e'}))\n"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
