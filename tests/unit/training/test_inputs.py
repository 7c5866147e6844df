"""A run's inputs are compared by content: a changed value is refused, another path is not."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.inputs import (
    count_questions,
    hash_files,
    hash_question_sets,
    hash_questions,
    input_mib,
    refuse_other_inputs,
)
from jaxrl_sql.types import Example, InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

FILES = {
    "base/config.json": "{}", "base/tokenizer.json": "{}", "base/chat_template.jinja": "{{ messages }}",
    "base/README.md": "a note", "tokens/tokenizer.json": "{}", "own.jinja": "{{ question }}", "own.py": "RULES = 1",
    "vectors/model.safetensors": "v", "ids.txt": "1", "traces.jsonl": "{}",
}  # fmt: skip
KEYS = {
    "base/config.json": "model.checkpoint/config.json", "base/tokenizer.json": "model.checkpoint/tokenizer.json",
    "base/chat_template.jinja": "model.checkpoint/chat_template.jinja", "own.jinja": "data.chat.template",
    "tokens/tokenizer.json": "data.tokenizer.path/tokenizer.json", "own.py": "recipe",
    "vectors/model.safetensors": "data.retrieval.synonyms/model.safetensors", "ids.txt": "data.select.include_ids",
    "traces.jsonl": "data.traces", "base/model.safetensors": "model.checkpoint/model.safetensors",
}  # fmt: skip
NORM = "model.norm.weight"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Write a run's inputs, with weights of 8 MiB of which a norm is a small part."""
    for name, text in FILES.items():
        (tmp_path / "inputs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "inputs" / name).write_text(text)
    rows = np.random.default_rng(0).standard_normal((2048, 512)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": rows, NORM: np.ones(64, np.float32), "lm_head.weight": rows + 1}
    save_file(tensors, tmp_path / "inputs/base/model.safetensors")
    return tmp_path / "inputs"


def inputs_of(inputs: Path) -> dict[str, str]:
    files = {
        "tokenizer.path": "tokens",
        "chat.template": "own.jinja",
        "retrieval.synonyms": "vectors",
        "select.include_ids": "ids.txt",
    }
    values = [f"data.{key}={inputs}/{name}" for key, name in {**files, "traces": "traces.jsonl"}.items()]
    more = [f"model.checkpoint={inputs}/base", f"recipe={inputs}/own.py:OWN", "data.prompt=chat"]
    config = load_config(TrainConfig, SMALL, [*more, "data.retrieval.top_k=1", *values])
    return hash_files(config.recipe, config.data, config.model.checkpoint)


def test_hashing_reports_its_progress_up_to_all_mib(inputs: Path) -> None:
    config = load_config(TrainConfig, SMALL, [f"model.checkpoint={inputs}/base"])
    named, reports = (config.recipe, config.data, config.model.checkpoint), list[int]()
    assert hash_files(*named, reports.append) == hash_files(*named)
    assert reports == sorted(reports)
    assert len({*reports}) > 2
    assert reports[-1] == input_mib(*named) == 8


def test_hashing_reports_each_question(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
    examples = tuple(Example(uid, "d", str(path), "How many?", "SELECT count(*) FROM t") for uid in "abc")
    sets, reports = (PromptSet(examples, (), ()), {"dev": PromptSet(examples[:2], (), ())}), list[int]()
    inputs = hash_question_sets(TrainConfig().data, *sets, reports.append)
    assert inputs == hash_question_sets(TrainConfig().data, *sets)
    assert reports == [1, 2, 3, 4, 5]
    assert count_questions(*sets) == 5


@pytest.mark.parametrize("name", KEYS)
def test_changed_file_is_named(name: str, inputs: Path) -> None:
    before = inputs_of(inputs)
    assert before.keys() == {*KEYS.values()}
    file = inputs / name
    if file.name == "model.safetensors" and file.parent.name == "base":
        tensors = load_file(file)
        tensors[NORM] *= 1.5
        save_file(tensors, file)
    else:
        file.write_text(f"{file.read_text()} ")
    after = inputs_of(inputs)
    assert {key for key in before if before[key] != after[key]} == {KEYS[name]}
    with pytest.raises(InputError, match=f"^run: {KEYS[name]}: changed since the run started"):
        refuse_other_inputs(Path("run"), before, after)


def test_moved_or_unread_inputs_count_as_equal(inputs: Path) -> None:
    before = inputs_of(inputs)
    (inputs / "base/README.md").write_text("another note")
    moved = shutil.move(inputs, inputs.with_name("elsewhere"))
    after = inputs_of(Path(moved))
    assert after == before
    refuse_other_inputs(Path("run"), before, after)
    (Path(moved) / "base/tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"model\.checkpoint/tokenizer\.json"):
        refuse_other_inputs(Path("run"), before, inputs_of(Path(moved)))


@pytest.mark.parametrize(
    "change",
    [
        {"gold_sql": "SELECT 1"}, {"other_golds": ("SELECT 1",)}, {"demonstration": "SELECT 1"}, {"reasoning": "So."},
        {"question": "What?"}, {"options": {"ignore_order": True}}, {"suite": (__file__,)},
    ],
)  # fmt: skip
def test_set_with_another_question_gold_or_answer_differs(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
    example = Example("a", "d", str(path), "How many?", "SELECT count(*) FROM t")
    before = hash_questions(PromptSet((example,), (), ()), "prompts")
    assert hash_questions(PromptSet((example,), (), ()), "prompts") == before
    assert hash_questions(PromptSet((example,), (), ()), "other prompts") != before
    assert hash_questions(PromptSet((dataclasses.replace(example, **change),), (), ()), "prompts") != before
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE u (x)")
    assert hash_questions(PromptSet((example,), (), ()), "prompts") != before
