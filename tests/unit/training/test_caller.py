"""Values passed by a caller in Python: names of a run's questions, and refusals."""

from __future__ import annotations

import functools
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import TrainConfig, load_config, replace_values
from jaxrl_sql.text2sql.rewards.score import Answer
from jaxrl_sql.training.caller import CallerInputs
from jaxrl_sql.types import Example, InputError

SMALL = Path(__file__).parents[2] / "small.yaml"


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item(name TEXT)")
    return [Example(f"q{i}", "shop", str(path), "How many items?", "SELECT count(*) FROM item") for i in range(3)]


def named(caller: CallerInputs, config: TrainConfig) -> TrainConfig:
    return replace_values(config, caller.settings_for_inputs(config.data, config.run.dir))


def test_passed_sets_are_named_in_the_configuration(examples: list[Example]) -> None:
    caller = CallerInputs(examples=examples, evals={"held_out": examples[:1]})
    data = named(caller, load_config(TrainConfig, SMALL)).data
    assert (data.source, data.dir, data.train, data.evals) == ("folder", "memory", "examples", ["held_out"])
    passed = caller.questions()
    assert passed.train is not None
    assert passed.evals is not None
    assert (passed.train.examples, passed.evals["held_out"].examples) == (tuple(examples), tuple(examples[:1]))
    assert CallerInputs(examples=examples).questions().evals == {}, "the configuration's sets are still evaluated"
    assert CallerInputs().questions() == (None, None)


def test_settings_and_names_incompatible_with_passed_sets_are_refused(examples: list[Example]) -> None:
    shots = load_config(TrainConfig, SMALL, [{"data.shots": 2}])
    with pytest.raises(InputError, match=r"^examples: data\.shots=2 needs the training questions in a folder"):
        named(CallerInputs(examples=examples), shots)
    for name, caller in (
        ("examples", CallerInputs(examples=examples, evals={"examples": examples})),
        ("train", CallerInputs(evals={"train": examples})),
    ):
        with pytest.raises(InputError, match=f"^evals: {name} is the name of the training set"):
            named(caller, load_config(TrainConfig, SMALL))


def test_unusable_lists_are_refused(examples: list[Example], tmp_path: Path) -> None:
    absent = Example("q9", "x", str(tmp_path / "x.sqlite"), "?", "SELECT 1")
    for wrong, message in (
        ([], "no examples"),
        ([examples[0], examples[0]], "2 examples have the id 'q0'"),
        ([examples[0], {"question": "?"}], r"items must be jaxrl_sql\.Example, not dict"),
        ([examples[0], None], r"items must be jaxrl_sql\.Example, not NoneType"),
        ([examples[0], absent], r"q9: .*x\.sqlite: no such file"),
    ):
        with pytest.raises(InputError, match=f"^evals: dev: {message}"):
            CallerInputs(evals={"dev": wrong}).questions()  # type: ignore[dict-item]


def test_another_reward_function_has_another_hash() -> None:
    def shorter(answer: Answer) -> float:
        return -len(answer.text)

    def longer(answer: Answer) -> float:
        return len(answer.text)

    assert CallerInputs().hashes() == {}
    assert CallerInputs(reward=shorter).hashes() == CallerInputs(reward=shorter).hashes()
    assert CallerInputs(reward=shorter).hashes() != CallerInputs(reward=longer).hashes()
    assert CallerInputs(reward=len).hashes()["the reward function"], (
        "a function without source is identified by its name"
    )  # type: ignore[arg-type]


def digest(reward: Callable[..., float]) -> str:
    return CallerInputs(reward=reward).hashes()["the reward function"]


def length(answer: Answer, scale: float = 1.0) -> float:
    return scale * len(answer.text)


class Judge:
    """A reward as an object."""

    def __call__(self, answer: Answer) -> float:
        return len(answer.text)


class OtherJudge(Judge):
    def __call__(self, answer: Answer) -> float:
        return -len(answer.text)


def test_callables_are_identified_by_their_code() -> None:
    assert digest(functools.partial(length, scale=2.0)) == digest(length)
    assert len({digest(length), digest(Judge()), digest(OtherJudge()), digest(min)}) == 4


def test_lambda_is_identified_by_its_code_in_any_position() -> None:
    first, other = (lambda answer: len(answer.text) + 1), (lambda answer: len(answer.text) + 2)

    moved = lambda answer: len(answer.text) + 1  # noqa: E731 - another line
    assert digest(first) == digest(moved)
    assert digest(first) != digest(other)


def test_run_of_passed_examples_names_only_the_passed_sets(examples: list[Example]) -> None:
    folders = load_config(TrainConfig, SMALL, [{"data.evals": ["dev"]}])
    assert named(CallerInputs(examples=examples), folders).data.evals == []
    assert named(CallerInputs(examples=examples, evals={}), folders).data.evals == []
    assert named(CallerInputs(evals={"held_out": examples}), folders).data.evals == ["held_out"]
    assert named(CallerInputs(), folders) == folders


def test_run_of_passed_examples_is_resumed_only_from_python(
    examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = named(CallerInputs(examples=examples), load_config(TrainConfig, SMALL, [{"run.dir": "runs/mine"}]))
    call = r"resume with jx\.train\(…, \{'run\.resume': True\}, examples=…\)$"
    for caller in (CallerInputs(), CallerInputs(evals={"dev": examples})):
        with pytest.raises(InputError, match=f"^runs/mine: its questions were passed in Python: {call}"):
            named(caller, began)
    assert named(CallerInputs(examples=examples), began) == began
    assert re.match(call, CallerInputs(examples=examples).resume_advice(Path("runs/mine")))
    advice = CallerInputs(examples=examples, reward=length).resume_advice(Path("runs/mine"))
    assert advice.endswith("{'run.resume': True}, examples=…, reward=…)")
    assert CallerInputs().resume_advice(Path("runs/mine")) == "resume with --resume runs/mine"


def test_another_process_computes_the_same_hash() -> None:
    """The iteration order of a set of constants differs between processes."""
    program = (
        "from jaxrl_sql.training.caller import code_digest\n"
        "print(code_digest(lambda answer: answer.sql in {'a', 'b', 'c', 'd', 'e'}))\n"
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
