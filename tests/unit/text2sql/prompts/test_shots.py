"""Few-shot examples: similar questions on other databases, in the same form as the question."""

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import DataConfig, EvaluateConfig, TokenizerConfig, TrainConfig, load_config, replace_values
from jaxrl_sql.inference.filtering import make_filter_prompts
from jaxrl_sql.inference.training_set import choose_shots
from jaxrl_sql.runtime.model_locator import prompt_settings
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.prompts.shots import ShotSelector
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.training.batching.sft_batches import make_sft_batch
from jaxrl_sql.types import Example, InputError

MODEL = Path(__file__).parents[4] / "configs" / "quickstart_start"
PROMPT_FILE = {
    "zoo": ["How many animals are there?", "Which animals are old?"],
    "shop": ["How many items are sold?", "Which item is the dearest of all?"],
    "club": ["How many members are there?", "What is the name of the oldest member?"],
}


class Letters:
    """A tokenizer whose tokens are characters; chats are role and text, one per line."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [*map(ord, text)]

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"[{message['role']}] {message['content']}\n" for message in messages) + "[assistant] "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = []
    for name, questions in PROMPT_FILE.items():
        path = tmp_path / "train" / "databases" / name / f"{name}.sqlite"
        path.parent.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(f"CREATE TABLE {name}(id, age); INSERT INTO {name} VALUES (1, 2)")
        lines += [
            {"id": f"{name}{i}", "db_id": name, "question": question, "sql": f"SELECT {i} FROM {name};"}
            for i, question in enumerate(questions)
        ]
    (tmp_path / "train" / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def data_of(folder: Path, shots: int = 2) -> DataConfig:
    return DataConfig(
        dir=str(folder), prompt="compact", evals=["train"], tokenizer=TokenizerConfig(path=str(MODEL)), shots=shots
    )


def example(folder: Path, question: str, db_id: str = "zoo") -> Example:
    return Example("q", db_id, str(folder / "train" / "databases" / db_id / f"{db_id}.sqlite"), question, "SELECT 0")


@pytest.mark.parametrize(
    ("db_id", "question", "uids"),
    [
        ("zoo", "How many members are there?", ["club1", "club0"]),  # the most similar one is last
        ("club", "How many members are there?", ["shop0", "zoo0"]),  # never of its own database
        ("CLUB", "How many members are there?", ["shop0", "zoo0"]),
        ("zoo", "?", ["shop1", "shop0"]),  # similar to none: in the order of the file
    ],
)
def test_most_similar_questions_of_other_databases_are_shown(
    folder: Path, db_id: str, question: str, uids: list[str]
) -> None:
    choose = choose_shots(data_of(folder))
    assert choose is not None
    shown = choose(dataclasses.replace(example(folder, question), db_id=db_id))
    assert [item.uid for item in shown] == uids


def test_examples_precede_the_schema_in_the_same_form(folder: Path) -> None:
    style = compact_style()._replace(shots=choose_shots(data_of(folder, 1)))
    (prompt,) = make_prompts([example(folder, "How many cages are there?")], style, Letters(), 1000).prompts
    shown = "club(id, age)\n\nQ: How many members are there?\nSQL: SELECT 0 FROM club;\n\n"
    assert prompt.text == f"{shown}zoo(id, age)\n\nQ: How many cages are there?\nSQL:"


def test_examples_are_turns_in_a_chat(folder: Path) -> None:
    style = RECIPES["arctic"].style("chat", prefill="So: ")._replace(shots=choose_shots(data_of(folder, 2)))
    (prompt,) = make_prompts([example(folder, "How many cages are there?")], style, Letters(), 10_000).prompts
    turns = prompt.text.split("\n[")
    assert [turn.partition("]")[0].strip("[") for turn in turns] == [*["user", "assistant"] * 3]
    assert turns[3].startswith("assistant] So: <answer>\n```sql\nSELECT 0 FROM club;")
    assert "CREATE TABLE club" in turns[2]


@pytest.mark.parametrize("prefill", ["", "<think>\n", "So: "])
def test_examples_have_the_thought_that_a_template_opens(folder: Path, prefill: str) -> None:
    class Thinker(Letters):
        def apply_chat_template(self, messages: Any, **how: Any) -> str:
            return str(super().apply_chat_template(messages, **how)) + "<think>\n"

    recipe = RECIPES["sql_r1"]
    style = recipe.adapt_style(recipe.style("chat", prefill=prefill), Thinker())._replace(
        shots=choose_shots(data_of(folder))
    )
    (prompt,) = make_prompts([example(folder, "How many cages are there?")], style, Thinker(), 10_000).prompts
    turns = [turn.partition("] ")[2] for turn in prompt.text.split("\n[") if turn.startswith("assistant")]
    assert len(turns) == 3
    assert all((turn.count("<think>"), turn.startswith("<think>")) == (1, True) for turn in turns), turns
    assert all(turn.count("</think>") == 1 for turn in turns[:-1])


def test_training_filtering_and_inference_have_equal_prompts(folder: Path) -> None:
    config = TrainConfig(data=data_of(folder))
    question = example(folder, "How many cages are there?")
    tokenizer = Letters()
    style = compact_style()._replace(shots=choose_shots(config.data))
    (prompt,) = make_prompts([question], style, tokenizer, 1000).prompts
    taught = make_sft_batch([question], [style], tokenizer, 0, 1000, 1000)
    assert taught.schemas[0] + taught.answers[0].token_ids[: len("Q: How many cages are there?\nSQL:")] == (
        prompt.token_ids
    )
    assert make_filter_prompts(config, [question]).prompts[0].text == prompt.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dir": "nowhere"}, "nowhere does not exist: set data.source, data.dir and data.train"),
        ({"select.limit_train": 2}, "all 2 training questions are on zoo, the database of q"),
        ({"stream_above": 1}, "has over data.stream_above=1"),
    ],
)
def test_unusable_examples_are_reported_in_one_line(folder: Path, change: dict[str, object], message: str) -> None:
    data = replace_values(data_of(folder), change)
    with pytest.raises(InputError, match=message) as caught:
        choose_shots(data)(example(folder, "How many?"))  # type: ignore[misc]
    assert "\n" not in str(caught.value)


def test_examples_without_sql_are_ignored() -> None:
    with pytest.raises(InputError, match="none of the 1 training questions has SQL"):
        ShotSelector([Example("q", "d", "d.sqlite", "How many?", "")], 1)


def test_trained_model_uses_the_examples_of_its_run(folder: Path) -> None:
    data = data_of(folder)
    again = prompt_settings(data)
    assert (again["shots"], again["dir"], again["source"]) == (2, str(folder), "folder")
    assert "dir" not in prompt_settings(dataclasses.replace(data, shots=0))


def test_shots_require_one_turn() -> None:
    with pytest.raises(InputError, match=r"data\.shots=1 shows answers of one turn"):
        load_config(
            EvaluateConfig,
            None,
            [
                "data.shots=1",
                "data.prompt=tagged",
                "evaluate.sampling.turns=2",
                "evaluate.sampling.max_total_tokens=9999",
            ],
        )
