"""Prompt templates: the parts of each and their order, the split positions, and one-line errors."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import ChatConfig, DataConfig, RetrievalConfig, TrainConfig, load_config, replace_values
from jaxrl_sql.text2sql.prompts.prompts import Encoder, make_prompts
from jaxrl_sql.text2sql.prompts.template import read_template, template_names
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.types import Example, InputError

CONFIGS = Path(__file__).parents[4] / "configs"
GENERIC_END = "Write one SQLite query that answers the question. "


class Letters:
    """A tokenizer of letters whose chat template writes roles."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        del add_special_tokens
        return [ord(letter) for letter in text]

    def get_chat_template(self) -> str:
        return "enable_thinking"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE dept(id INTEGER PRIMARY KEY); CREATE TABLE emps(nick TEXT);")
    first = Example("q1", "d", str(path), "Who?", "SELECT 1", evidence="a hint")
    return [first, dataclasses.replace(first, uid="q2", question="Whose?", evidence="")]


def text_of(name: str, example: Example, thinking: str = "template") -> str:
    style = RECIPES[name].style("chat", thinking)
    return make_prompts([example], style, Letters(), 100_000).prompts[0].text


def parts_in_order(text: str, parts: list[str]) -> list[str]:
    """Return the parts that follow one another in the text: all of them if their order is right."""
    result, at = [], 0
    for part in parts:
        where = text.find(part, at)
        if where >= 0:
            result.append(part)
            at = where + len(part)
    return result


OMNISQL = ["[user]Task Overview:", "Database Engine:\nSQLite", "Database Schema:\nCREATE TABLE", "CREATE TABLE emps"]
FORM = ["Instructions:\n- ", "Output Format:", "<think>"]
SKYRL = ["External Knowledge:\na hint", "Question:\nWho?", "Instructions:", "Format:"]
TOOLS = ["<sql>", "</sql>", "<observation>", "</observation>", "50 rows", "MUST", "<solution>", "</solution>"]
EXAMPLE = ["START OF EXAMPLE", "<sql>", "</sql>", "<observation>", "</observation>", "<solution>", "</solution>"]
# The papers' figures, part by part.
STRUCTURE = {
    "arctic": [
        *OMNISQL, "Question:\na hint\nWho?", *FORM, "<answer>", "```sql\n", "Example format:", "<think>", "</think>",
        "<answer>", "```sql\n", "</answer>", "[assistant]Let me solve this step by step.\n<think>",
    ],
    "omnisql": [*OMNISQL, "\n\nQuestion:\na hint\nWho?\n\nInstructions:\n- ", "Output Format:", "```sql\n"],
    "sql_r1": [*OMNISQL, "\n\nQuestion:\na hint\nWho?\n\n", *FORM, "</think>", "<answer>", "```sql\n"],
    "paverl": ["[user]", "SQLite", "schema:\nCREATE TABLE", "Context:\na hint", "Question:\nWho?", "```sql\n"],
    "think2sql": [
        "[system]", "format:\n<reasoning>", "</reasoning>", "<answer>", "</answer>[user]", "<answer>",
        "Database Engine:\nSQLite", "Question:\nWho?", "Evidence:\na hint", "Database Schema:\nCREATE TABLE",
    ],
    "skyrl_sql": [*OMNISQL, *SKYRL, "<think>", "</think>", *TOOLS, *EXAMPLE],
    "skyrl_sql_no_schema": ["[user]Task Overview:", "Database Schema:\n", "dept\nemps", *SKYRL, "<think>", *TOOLS],
    "skyrl_sql_single": [*OMNISQL, *SKYRL, "<think>", "</think>", "<solution>", "</solution>"],
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURE)
def test_recipes_prompt_has_the_parts_of_its_paper_in_order(name: str, examples: list[Example]) -> None:
    text = text_of(name, examples[0])
    assert parts_in_order(text, STRUCTURE[name]) == STRUCTURE[name], text
    assert ("[system]" in text) == (name == "think2sql")
    assert text.endswith("<think>" if name == "arctic" else "[assistant]")
    assert "{{" not in text
    assert "{%" not in text
    assert "\n\n\n" not in text


def test_no_schema_and_single_turn_omit_their_parts(examples: list[Example]) -> None:
    assert "CREATE TABLE" not in text_of("skyrl_sql_no_schema", examples[0])
    single = text_of("skyrl_sql_single", examples[0])
    assert not [tag for tag in ("<sql>", "<observation>", "EXAMPLE", "turns") if tag in single]


@pytest.mark.parametrize("name", ["skyrl_sql", "skyrl_sql_no_schema", "skyrl_sql_single", "think2sql"])
def test_model_with_native_thinking_gets_no_thought_tag(name: str, examples: list[Example]) -> None:
    tagged, untagged = (text_of(name, examples[0], thinking) for thinking in ("template", "think"))
    tags = ("<think>", "<reasoning>")
    assert any(tag in tagged for tag in tags)
    assert not any(tag in untagged for tag in tags)
    assert len(untagged) < len(tagged)


def test_every_shipped_template_loads_and_every_recipe_has_its_own() -> None:
    assert {recipe.template for recipe in RECIPES.values()} == set(template_names()) - {"generic"}
    for name in template_names():
        assert {"question", "schema"} <= read_template(name).placeholders


@pytest.mark.parametrize("name", [*STRUCTURE, "generic"])
def test_questions_on_one_database_share_the_first_part(name: str, examples: list[Example]) -> None:
    recipe = RECIPES["arctic" if name == "generic" else name]
    encoder = Encoder(recipe.style("chat", template="generic" if name == "generic" else ""), Letters())
    first, second = (encoder.encode(example) for example in examples)
    assert first.schema_ids == second.schema_ids
    # Think2SQL's question precedes its schema, so only the task is shared.
    assert ("CREATE TABLE dept" in first.texts[0]) == (name not in ("think2sql", "skyrl_sql_no_schema"))
    assert first.texts[0].endswith("\n")
    assert "Who" not in first.texts[0]
    assert first.texts[1] != second.texts[1]


def test_tagged_and_compact_prompts_use_no_template(examples: list[Example]) -> None:
    hints = {
        "arctic": "Think, then answer in SQL:",
        "sql_r1": "Think, then answer in SQL:",
        "paverl": "Reason, then write SQL:",
        "think2sql": "Reason, then answer in SQL:",
        "skyrl_sql": "Think, ask in SQL, then solve:",
        "skyrl_sql_single": "Think, then solve:",
    }
    schema = "dept(id)\nemps(nick)\n\n"
    for name, hint in hints.items():
        data = load_config(TrainConfig, CONFIGS / f"{name}-tiny.yaml").data
        (tagged,) = make_prompts(examples[:1], RECIPES[name].style_for(data), Letters(), 1000).prompts
        assert tagged.text == f"{schema}Q: Who? (a hint)\n{hint}\n"
        (compact,) = make_prompts(examples[1:], RECIPES[name].style("compact"), Letters(), 1000).prompts
        assert compact.text == f"{schema}Q: Whose?\nSQL:"


def test_generic_template_has_this_text(examples: list[Example]) -> None:
    recipe = RECIPES["think2sql"]
    (prompt,) = make_prompts(examples[:1], recipe.style("chat", template="generic"), Letters(), 10_000).prompts
    assert prompt.text == (
        "[user]Here is a database, and a question about it.\n\nDatabase schema:\n"
        "CREATE TABLE dept (\n    id INTEGER,\n    PRIMARY KEY (id)\n);\n\nCREATE TABLE emps (\n    nick TEXT\n);\n\n"
        f"External knowledge: a hint\nQuestion: Who?\n\n{GENERIC_END}{recipe.instruction}[assistant]"
    )


MINE = "{% block user %}{{ schema }}\n{{ question }}{% endblock %}"


def test_template_file_replaces_the_recipes(tmp_path: Path, examples: list[Example]) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(
        "{% block system %}Be brief.{% endblock %}\n{% block user %}{{ schema }}\n{{ question|trim }} in {{ dialect }}"
        "{% endblock %}\n{% block assistant %}<think>\n{% endblock %}",
        encoding="utf-8",
    )
    data = DataConfig(prompt="chat", chat=ChatConfig(template=str(path)), schema="names_only")
    style = RECIPES["sql_r1"].style_for(data)
    (prompt,) = make_prompts(examples[:1], style, Letters(), 1000).prompts
    assert prompt.text == "[system]Be brief.[user]dept\nemps\nWho? in SQLite[assistant]<think>"
    assert style.opening_tag == "<think>"
    # The configured prefill has priority over the template's, and an endpoint's answer has no prefill.
    prefilled_style = RECIPES["sql_r1"].style_for(replace_values(data, {"chat.assistant_prefill": "So:"}))
    assert make_prompts(examples[:1], prefilled_style, Letters(), 1000).prompts[0].text.endswith("[assistant]So:")
    assert RECIPES["sql_r1"].endpoint_style(data).opening_tag == ""
    with pytest.raises(InputError, match=r"has no \{\{ values \}\}"):
        RECIPES["sql_r1"].style_for(dataclasses.replace(data, retrieval=RetrievalConfig(top_k=20)))
    with pytest.raises(InputError, match=r"data\.chat\.template"):
        RECIPES["sql_r1"].style_for(dataclasses.replace(data, prompt="tagged"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% block user %}\n{{ questoin }}{% endblock %}", r"line 2: unknown placeholder 'questoin'; .* question"),
        (
            "{% block user %}{% for x in schema %}{{ x }}{% endfor %}{% endblock %}",
            "line 1: loops are not allowed",
        ),
        ("{% block user %}{{ question }}{{ self.user() }}{% endblock %}", "Call is not allowed in prompts"),
        ("{% include 'mine.jinja' %}" + MINE, "Include is not allowed in prompts"),
        ("{% extends 'mine.jinja' %}" + MINE, "Extends is not allowed in prompts"),
        ("{% macro m() %}{{ m() }}{% endmacro %}" + MINE, "Macro is not allowed in prompts"),
        ("{% block user %}{{ question * 999999999 }}{% endblock %}", "Mul is not allowed in prompts"),
        ("{% block user %}{{ question|tojson }}{% endblock %}", "filter 'tojson'"),
        ("{% block user %}{{ question.__class__ }}{% endblock %}", "Getattr is not allowed in prompts"),
        ("{% block user %}{{ schema }}{% endblock %}", "must contain the question"),
        ("{{ question }}", "must contain the question"),
        ("Hello" + MINE, "text outside of the blocks"),
        ("{% block sytem %}{% endblock %}" + MINE, "'sytem' is not one of system, user, assistant"),
        ("{% block assistant %}{{ schema }}{% endblock %}" + MINE, "assistant has only the placeholder thinks"),
        ("{% block user %}{{ question }", r"line 1: "),
        ("{% block user %}{{ question|nothing }}{% endblock %}", "filter 'nothing'"),
    ],
)
def test_invalid_template_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jinja"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_template(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_template_error_names_the_shipped_ones() -> None:
    with pytest.raises(InputError, match=r"'artic' cannot be read: .*arctic, generic, omnisql, paverl"):
        read_template("artic")
