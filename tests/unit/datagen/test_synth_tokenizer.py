"""The tokenizer is lossless, and a name has the same tokens in every context."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from jaxrl_sql.datagen.synth import train_tokenizer

TEXTS = [
    "List the name of all employees whose hire date is after 2019-03-04.",
    "SELECT name FROM employees WHERE hire_date > '2019-03-04'",
    "employees(id, name, hire_date, salary, department_id=departments.id)\ndepartments(id, name, budget)",
    "SELECT T2.name, COUNT(*) FROM employees AS T1 JOIN departments AS T2 ON T1.department_id = T2.id GROUP BY T2.id",
    "How many employees does each department have? Show the name and the count.",
    "SELECT AVG(salary) FROM employees WHERE city = 'Paris' AND salary BETWEEN 100 AND 200 ORDER BY name DESC LIMIT 3",
] * 20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 420)


@pytest.fixture(scope="module")
def loaded(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_two_processes_train_the_same_tokenizer() -> None:
    code = (
        "from jaxrl_sql.datagen.synth import train_tokenizer\n"
        "texts = ['turbines(id, name, hub_height)\\nfarms(id, region_id)'] * 45\n"
        "print(train_tokenizer(texts, 290).backend_tokenizer.to_str())"
    )
    command = [sys.executable, "-c", code]
    first, second = (
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("1", "2")
    )
    assert first == second


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


PIECES = st.sampled_from(
    [
        "SELECT ",
        " FROM ",
        "T1.",
        "hire_date",
        "'",
        "Paris",
        " ",
        "  ",
        "\n",
        ", ",
        " . ",
        "COUNT(*)",
        "12.5",
        "(",
        ")",
        "é",
        "\r",
    ]
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(PIECES).map("".join)


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT)
def test_decoding_restores_every_text(loaded: PreTrainedTokenizerFast, text: str) -> None:
    assert loaded.decode(ids(loaded, text)) == text


@pytest.mark.nightly
@settings(max_examples=2000, deadline=None)
@given(text=ANY_TEXT)
def test_decoding_restores_thousands_of_texts(loaded: PreTrainedTokenizerFast, text: str) -> None:
    assert loaded.decode(ids(loaded, text)) == text


@pytest.mark.parametrize("name", ["hire_date", "salary", "employees", "frozen_zebra", "Paris", "2019-03-04", "zylqu"])
def test_name_has_the_same_tokens_in_every_context(loaded: PreTrainedTokenizerFast, name: str) -> None:
    alone = ids(loaded, name)
    places = [
        ("employees(", ", name)"),
        ("employees(id, ", ")"),
        ("employees(id, x=", ".id)"),
        ("SELECT ", " FROM x"),
        ("SELECT T1.", " FROM x"),
        ("SELECT AVG(", ") FROM x"),
        ("SELECT COUNT(DISTINCT ", ") FROM x"),
        ("SELECT x FROM ", " AS T1 JOIN y"),
        ("SELECT x FROM ", " WHERE y > 3"),
        ("SELECT x FROM y ORDER BY ", " DESC LIMIT 3"),
        ("SELECT x FROM y WHERE ", " IS NOT NULL"),
        ("SELECT x FROM y WHERE ", " >= 3"),
        ("SELECT x FROM y WHERE z = '", "' AND w = 2"),
        ("SELECT x FROM y WHERE z LIKE '%", "%'"),
        ("What is the ", " of all employees?"),
        ("What is the ", "?"),
        ("Show the ", ", and more."),
        ("For each ", ", show it."),
        ("", "\n"),
    ]
    for before, after in places:
        result = ids(loaded, before + name + after)
        start = len(ids(loaded, before))
        assert result == [*ids(loaded, before), *alone, *result[start + len(alone) :]], before + name + after


def test_keywords_include_their_spaces_and_digits_are_single_tokens(loaded: PreTrainedTokenizerFast) -> None:
    sql = (
        "SELECT COUNT(*) FROM employees WHERE name = 'Paris' AND salary BETWEEN 100 AND 200 ORDER BY name DESC LIMIT 3"
    )
    pieces = [loaded.decode([token]) for token in ids(loaded, sql)]
    for piece in ("SELECT ", "COUNT(*)", " FROM ", " WHERE ", " = ", " AND ", " BETWEEN ", " ORDER BY ", "employees"):
        assert piece in pieces, (piece, pieces)
    assert pieces[pieces.index(" BETWEEN ") + 1 :][:3] == ["1", "0", "0"]


def test_special_tokens_and_the_chat_template_survive_saving(loaded: PreTrainedTokenizerFast) -> None:
    assert [loaded.pad_token, loaded.eos_token] == ["<|endoftext|>", "<|im_end|>"]
    assert loaded.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    text = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    encoded = ids(loaded, text)
    assert encoded.count(1) == 2
    assert encoded.count(2) == 1
    assert loaded.decode(encoded, skip_special_tokens=False) == text


def test_vocabulary_has_the_requested_size_and_every_byte(loaded: PreTrainedTokenizerFast) -> None:
    assert 259 < len(loaded) <= 420
    assert ids(loaded, "ΩЖ漢🚲") == [token for part in "ΩЖ漢🚲" for token in ids(loaded, part)]
