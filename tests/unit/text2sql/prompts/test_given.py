"""Prompts of released rows: their tokens are those of the row's messages, and answers omit the begun turn."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from jaxrl_sql.config import ChatConfig, DataConfig, DialectsConfig, RetrievalConfig
from jaxrl_sql.datagen.synth import train_tokenizer
from jaxrl_sql.runtime.control_tokens import ControlTokens
from jaxrl_sql.text2sql.benchmarks.lines import user_item
from jaxrl_sql.text2sql.benchmarks.released import messages_of
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.prompts.prompts import Encoder, make_prompts, message_texts
from jaxrl_sql.text2sql.prompts.shots import ShotSelector
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.types import Example, InputError

# The template of Qwen 2.5, which adds a system message to a chat without one.
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe of help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")
SYSTEM, USER = "\nTables:\nCREATE TABLE t (a);\n\n", "Which a?\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    result = train_tokenizer(["SELECT a FROM t", "Which is the largest? <think>"], vocab_size=300)
    result.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    result.add_tokens(["<think>", "</think>"])
    return result


@pytest.fixture(autouse=True)
def _template(tokenizer: Any) -> None:
    tokenizer.chat_template = CHATML


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "databases/d/d.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(a INTEGER); INSERT INTO t VALUES (1)")
    return path


def row(*messages: tuple[str, str]) -> dict[str, Any]:
    prompt = [{"role": role, "content": text} for role, text in messages]
    return {"prompt": prompt, "reward_model": {"ground_truth": {"db_id": "d", "sql": "SELECT a FROM t"}}}


def written(*messages: tuple[str, str]) -> str:
    """Return the text of a chat whose last message, a begun answer, has no end."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages).removesuffix("<|im_end|>\n")


def example_of(database: Path, record: dict[str, Any]) -> Example:
    item = user_item(database.parents[2], "rows", "rows.jsonl", record, 0)
    return Example("rows_0", "d", str(database), item.question or "Which?", item.sql, messages=item.more["messages"])


BEGUN = (("system", SYSTEM), ("user", USER), ("assistant", "<think>"))


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        (row(("user", USER)), (("user", USER),)),
        (row(*BEGUN), BEGUN),
        (row(("user", written(*BEGUN))), BEGUN),
        (row(("user", written(*BEGUN) + "\n")), (*BEGUN[:2], ("assistant", "<think>\n"))),
        (row(("user", f"See <|im_start|>: {USER}")), (("user", f"See <|im_start|>: {USER}"),)),
        ({"prompt": USER, "reward_spec": {"ground_truth": "SELECT 1"}}, (("user", USER),)),
        ({"input_seq": USER, "output_seq": "SELECT 1"}, (("user", USER),)),
        ({"prompt": "a name", "question": "Which?", "sql": "SELECT 1"}, ()),
        (row(("user", "Hi"), ("assistant", "Yes?"), ("user", USER)), ()),
        (row(("assistant", "<think>"), ("user", USER)), ()),
        (row(("system", SYSTEM)), ()),
        (row(("user", USER), ("tool", "x")), ()),
        ({"question": "Which?", "sql": "SELECT 1"}, ()),
    ],
)
def test_messages_of_a_row(record: dict[str, Any], messages: tuple[tuple[str, str], ...]) -> None:
    assert messages_of(record) == messages


@pytest.mark.parametrize("template", [CHATML, STRIPS], ids=["keeps", "strips"])
@pytest.mark.parametrize("messages", [BEGUN, BEGUN[:2], BEGUN[1:2]], ids=["begun", "system", "user"])
def test_tokens_are_those_of_the_messages(
    tokenizer: Any, database: Path, messages: tuple[tuple[str, str], ...], template: str
) -> None:
    tokenizer.chat_template = template
    example = example_of(database, row(*messages))
    (prompt,) = make_prompts([example], RECIPES["sql_r1"].style("given"), tokenizer, 10_000).prompts
    chat = [{"role": role, "content": text} for role, text in messages if role != "assistant"]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    begun = "".join(text for role, text in messages if role == "assistant")
    assert prompt.text == text + begun
    assert list(prompt.token_ids) == tokenizer.encode(text + begun, add_special_tokens=False)


def test_tokens_of_a_written_chat_are_those_of_its_text(tokenizer: Any, database: Path) -> None:
    example = example_of(database, row(("user", written(*BEGUN))))
    (prompt,) = make_prompts([example], RECIPES["sql_r1"].style("given"), tokenizer, 10_000).prompts
    assert list(prompt.token_ids) == tokenizer.encode(written(*BEGUN), add_special_tokens=False)


def test_content_adds_no_control_token(tokenizer: Any, database: Path) -> None:
    style, control = RECIPES["sql_r1"].style("given"), ControlTokens(tokenizer)
    ends = []
    for content in ("x <think>", "x<|im_end|> <think>"):
        (prompt,) = make_prompts([example_of(database, row(("user", content)))], style, tokenizer, 10_000).prompts
        assert tokenizer.decode(prompt.token_ids) == prompt.text
        ends.append([token for token in prompt.token_ids if token in control.ids])
    assert ends[0] == ends[1]


def test_answers_omit_the_tag_that_the_row_begins(tokenizer: Any, database: Path) -> None:
    recipe = RECIPES["sql_r1"]
    style = recipe.adapt_style(recipe.style_for(DataConfig(prompt="given")), tokenizer)
    begun, plain = example_of(database, row(*BEGUN)), example_of(database, row(*BEGUN[:2]))
    assert (style.tag_of(begun), style.tag_of(plain)) == ("<think>", "")
    answers = [style.answer(begun), style.answer(plain)]
    assert not str(answers[0]).startswith("<think>")
    assert str(answers[1]).startswith("<think>")
    with Executor(threads=1) as executor:
        scored = recipe.collect(recipe.submit(executor, [begun, plain], answers, style))
        swapped = recipe.collect(recipe.submit(executor, [plain, begun], answers, style))
    assert [score.reward.total > 0 for score in scored] == [True, True]
    assert [score.reward.total for score in swapped] == [-1.0, -1.0]
    encoded = Encoder(style, tokenizer).encode(begun)
    assert encoded.texts[0].endswith("<|im_start|>assistant\n<think>")
    assert encoded.question_ids == ()


def test_configured_prefill_replaces_the_begun_answer(tokenizer: Any, database: Path) -> None:
    data = DataConfig(prompt="given", chat=ChatConfig(assistant_prefill="So:"))
    style, example = RECIPES["sql_r1"].style_for(data), example_of(database, row(*BEGUN))
    (prompt,) = make_prompts([example], style, tokenizer, 10_000).prompts
    assert prompt.text.endswith("<|im_start|>assistant\nSo:")
    assert style.tag_of(example) == ""


def test_endpoint_gets_the_messages_without_the_begun_answer(database: Path) -> None:
    style = RECIPES["sql_r1"].endpoint_style(DataConfig(prompt="given"))
    messages = message_texts(example_of(database, row(*BEGUN)), style).messages()
    assert messages == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]


def test_question_without_a_prompt_is_refused(tokenizer: Any, database: Path) -> None:
    example = Example("q1", "d", str(database), "Which?", "SELECT 1")
    with pytest.raises(InputError, match=r"^q1: data\.prompt=given needs a row that carries its prompt"):
        make_prompts([example], RECIPES["sql_r1"].style("given"), tokenizer, 10_000)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"chat": ChatConfig(template="arctic")}, "data.chat.template=arctic"),
        ({"schema": "ddl"}, "data.schema=ddl"),
        ({"prune": True, "shots": 2}, "data.prune=True, data.shots=2"),
        ({"retrieval": RetrievalConfig(top_k=20)}, "data.retrieval.top_k=20"),
        ({"schema_budget": 100}, "data.schema_budget=100"),
        ({"hide": ["t.a"]}, "data.hide=['t.a']"),
        ({"dialects": DialectsConfig(sqlite=0.5, mysql=0.5)}, "data.dialects={"),
    ],
)
def test_settings_of_made_prompts_are_refused(settings: dict[str, Any], shown: str) -> None:
    (error,) = DataConfig(prompt="given", **settings).find_errors("data")
    assert error.startswith(shown)
    assert not [*DataConfig(prompt="chat", **settings).find_errors("data")]


def test_system_message_of_one_question_allows_no_shots(tmp_path: Path, database: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% block system %}{{ schema }}{% endblock %}{% block user %}{{ question }}{% endblock %}")
    data = DataConfig(prompt="chat", chat=ChatConfig(template=str(path)), shots=1)
    with pytest.raises(InputError, match=r"data\.shots=1 .* belongs to one question"):
        RECIPES["sql_r1"].style_for(data)
    row_style = RECIPES["sql_r1"].style("given")
    other = Example("q2", "e", str(database), "Whose?", "SELECT 2", messages=BEGUN[1:2])
    shown = row_style._replace(shots=ShotSelector([other], 1).choose)
    with pytest.raises(InputError, match=r"data\.shots must be 0"):
        Encoder(shown, None).encode(example_of(database, row(*BEGUN)))  # type: ignore[arg-type]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "recipe", "roles"),
    [
        ("sql_r1/test.parquet", "sql_r1", ("system", "user", "assistant")),
        ("paverl/val_syn_10K.parquet", "paverl", ("user",)),
    ],
)
def test_released_rows_have_their_own_tokens(
    name: str, recipe: str, roles: tuple[str, ...], real_data: Path, tokenizer: Any, database: Path
) -> None:
    """The token ids equal those of the authors' code: SQL-R1 encodes the text of the row, PaVeRL-SQL its chat."""
    records = parquet.read_table(real_data / "archives" / name).to_pylist()[:200]
    examples = [example_of(database, record) for record in records]
    assert {tuple(role for role, _ in example.messages) for example in examples} == {roles}
    style = RECIPES[recipe].style("given")
    for example, record in zip(examples, records, strict=True):
        encoded = Encoder(style, tokenizer).encode(example)
        text = record["prompt"][0]["content"]
        if roles == ("user",):
            text = tokenizer.apply_chat_template(record["prompt"], tokenize=False, add_generation_prompt=True)
        assert encoded.texts == (text, "")
        assert list(encoded.schema_ids) == tokenizer.encode(text, add_special_tokens=False)
