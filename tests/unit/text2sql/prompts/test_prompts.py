"""Prompts have two separately tokenized parts, so that questions on one database share their first ids."""

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from jaxrl_sql.datagen.synth import train_tokenizer
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.runtime.tokenizer_files import read_tokenizer
from jaxrl_sql.text2sql.prompts.prompts import Encoder, make_prompt, make_prompts, message_texts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle, compact_style
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.schema import read_schema
from jaxrl_sql.training.batching.sft_batches import make_sft_batch
from jaxrl_sql.types import Example, InputError


class Words:
    """A tokenizer whose tokens are pairs of characters: joined texts have other tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [sum(map(ord, text[i : i + 2])) for i in range(0, len(text), 2)]


class Chat(Words):
    """The same with a chat template that trims messages, a common case."""

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"<{m['role']}>{m['content'].strip()}</>" for m in messages) + "<assistant>"


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE dept(id INTEGER PRIMARY KEY); CREATE TABLE emps(nick, dept REFERENCES dept);"
        )
    first = Example("q1", "d", str(path), "How many?", "SELECT count(*) FROM emps")
    return [first, Example("q2", "d", str(path), "Which?", "SELECT nick FROM emps", evidence="a hint")]


COMPACT = compact_style()
CHAT = RECIPES["arctic"].style("chat", template="generic")


def test_compact_text(examples: list[Example]) -> None:
    prompts = make_prompts(examples, COMPACT, Words(), 1000)
    schema = "dept(id)\nemps(nick, dept=dept.id)\n\n"
    assert [prompt.text for prompt in prompts.prompts] == [
        schema + "Q: How many?\nSQL:",
        schema + "Q: Which? (a hint)\nSQL:",
    ]
    assert [prompt.uid for prompt in prompts.prompts] == ["q1", "q2"]


def test_parts_join_to_the_prompt_and_schemas_are_shared(examples: list[Example]) -> None:
    first, second = (Encoder(COMPACT, Words()).encode(example) for example in examples)
    assert first.schema_ids == second.schema_ids
    prompt = make_prompt(examples[0], COMPACT, Words(), 1000)
    assert prompt is not None
    assert prompt.token_ids == first.schema_ids + first.question_ids
    assert COMPACT.answer(examples[0]) == " SELECT count(*) FROM emps"
    # The joined text would have other tokens and is never encoded.
    assert list(prompt.token_ids) != Words().encode(prompt.text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["compact", "tagged", "chat"])
def test_demonstration_is_the_answer_if_present(examples: list[Example], name: str) -> None:
    style = RECIPES["arctic"].style(name)
    shown = dataclasses.replace(examples[0], demonstration="SELECT 1, 2")
    taught, plain = (Encoder(style, Chat()).encode(example) for example in (shown, examples[0]))
    assert taught == plain
    same = dataclasses.replace(examples[0], gold_sql="SELECT 1, 2")
    assert style.answer(shown) == style.answer(same) != style.answer(examples[0])


def test_oversized_prompt_is_skipped_with_a_reason(examples: list[Example]) -> None:
    lengths = [len(prompt.token_ids) for prompt in make_prompts(examples, COMPACT, Words(), 1000).prompts]
    prompts = make_prompts(examples, COMPACT, Words(), lengths[0])
    assert lengths[0] < lengths[1]
    assert [example.uid for example in prompts.examples] == ["q1"]
    assert prompts.skipped == (("q2", f"prompt over {lengths[0]} tokens"),)
    assert len(prompts.skipped) == 1
    assert make_prompt(examples[0], COMPACT, Words(), lengths[0] - 1) is None


def test_chat_text_is_the_template_split_after_the_schema(examples: list[Example]) -> None:
    style, tokenizer = CHAT, Chat()
    first, second = make_prompts(examples, style, tokenizer, 10_000).prompts
    assert first.text.startswith("<user>Here is a database")
    assert "CREATE TABLE dept (\n    id INTEGER,\n    PRIMARY KEY (id)\n);" in first.text
    assert "External knowledge" not in first.text
    assert "External knowledge: a hint\nQuestion: Which?\n" in second.text
    assert first.text.endswith("```.</><assistant>")
    parts = Encoder(style, tokenizer).encode(examples[1])
    assert parts.schema_ids == Encoder(style, tokenizer).encode(examples[0]).schema_ids
    assert len(parts.schema_ids) * 2 >= len("<user>") + len(
        style.parts(examples[1], read_schema(examples[1].db_path), "")[0]
    )
    assert style.answer(examples[1]) == "<answer>\n```sql\nSELECT nick FROM emps\n```\n</answer>"


def begun_tokenizer(folder: Path, bos: str = "<|begin|>", template: str = "") -> Any:
    """Return a tokenizer that starts texts with a token, like Gemma's and Llama 3's, unless `bos` is empty."""
    tokenizer = train_tokenizer(["SELECT name FROM emps"], vocab_size=300)
    if bos:
        tokenizer.add_special_tokens({"bos_token": bos})
        pieces = [(bos, tokenizer.bos_token_id)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=pieces)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return load_tokenizer(folder)


TAGGED = RECIPES["arctic"].style("tagged")


@pytest.mark.parametrize("style", [COMPACT, TAGGED], ids=["compact", "tagged"])
@pytest.mark.parametrize("bos", ["<|begin|>", ""], ids=["begins", "does-not"])
def test_prompt_equals_the_text_encoded_by_transformers(
    examples: list[Example], tmp_path: Path, style: PromptStyle, bos: str
) -> None:
    """The comparison is by text, as parts are tokenized separately; it includes the tokenizer's own start tokens."""
    tokenizer = begun_tokenizer(tmp_path, bos)
    result = make_prompts(examples, style, tokenizer, 10_000).prompts
    for prompt, (schema, question, *_) in zip(
        result, [message_texts(example, style) for example in examples], strict=True
    ):
        theirs = tokenizer(schema + question)["input_ids"]
        assert tokenizer.decode(prompt.token_ids) == tokenizer.decode(theirs) == prompt.text
        assert list(prompt.token_ids).count(tokenizer.bos_token_id) == theirs.count(tokenizer.bos_token_id) == bool(bos)
    taught = make_sft_batch(examples, [style], tokenizer, 0, 10_000, 10_000)
    parts = Encoder(style, tokenizer).encode(examples[0])
    for schema_ids in (*taught.schemas, parts.schema_ids):
        assert schema_ids == result[0].token_ids[: len(schema_ids)]
    assert tokenizer.bos_token_id not in (*taught.answers[0].token_ids, *parts.question_ids)


@pytest.mark.parametrize("style", [COMPACT, TAGGED], ids=["compact", "tagged"])
def test_schema_has_the_ids_of_tokenizer_json(
    examples: list[Example], tokenizer_kinds: ModuleType, style: PromptStyle, tmp_path: Path
) -> None:
    kinds = tokenizer_kinds
    schema, question, *_ = message_texts(examples[0], style)
    for kind, make in {**kinds.CORES, **kinds.FURTHER}.items():
        if kind == "whole words":  # it has no begin token
            continue
        core = kinds.begins(make())
        tokenizer = read_tokenizer(kinds.write(tmp_path / kind, core, bos_token=kinds.BEGIN))
        encoded = Encoder(style, tokenizer).encode(examples[0])
        assert encoded.texts == (kinds.BEGIN + schema, question)
        assert list(encoded.schema_ids) == core.encode(schema).ids, kind


@pytest.mark.parametrize("begin", ["{{ bos_token }}", ""], ids=["written", "not-written"])
def test_chat_starts_like_its_template(examples: list[Example], tmp_path: Path, begin: str) -> None:
    template = begin + "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    tokenizer = begun_tokenizer(tmp_path, template=template)
    (prompt,) = make_prompts(examples[:1], CHAT, tokenizer, 10_000).prompts
    messages = [{"role": "user", "content": "".join(message_texts(examples[0], CHAT))}]
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(prompt.token_ids) == tokenizer.decode(theirs)
    assert list(prompt.token_ids).count(tokenizer.bos_token_id) == theirs.count(tokenizer.bos_token_id) == bool(begin)


def test_chat_with_a_real_tokenizer(examples: list[Example]) -> None:
    pytest.importorskip("jinja2", reason="transformers renders chat templates with jinja2")
    from jaxrl_sql.datagen.synth import train_tokenizer

    tokenizer = train_tokenizer(["SELECT name FROM emps"], vocab_size=300)
    (prompt,) = make_prompts(examples[:1], CHAT, tokenizer, 10_000).prompts
    assert prompt.text.startswith("<|im_start|>user\nHere is a database")
    assert prompt.text.endswith("ends with ```.<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.token_ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.decode(prompt.token_ids) == prompt.text


def test_chat_without_a_template_is_an_input_error(examples: list[Example]) -> None:
    with pytest.raises(InputError, match="needs a tokenizer with a chat template"):
        make_prompts(examples, CHAT, Words(), 100)
