"""Each recipe parses its own demonstrations and rewards them in full; prompts, dialogues, dialects, names."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import DataConfig, ExecutorConfig
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.env.tags import with_opened_thought
from jaxrl_sql.text2sql.env.turns import SQL_STOPS, Action
from jaxrl_sql.text2sql.prompts.prompts import make_prompts, prompt_texts
from jaxrl_sql.text2sql.recipes import RECIPES, find_recipe
from jaxrl_sql.text2sql.rewards.extract import opening_tag_of, with_opening_tag
from jaxrl_sql.types import Example, InputError, Response

SQL = "SELECT nick FROM emps WHERE dept = 1"
# The maximal reward of a right answer in the right form; SQL-R1 adds its length part.
TOP = {"sql_r1": 6.0, "paverl": 10.0, "paverl_monotone": 10.0}
MULTI = ("skyrl_sql", "skyrl_sql_no_schema", "skyrl_sql_loose")


class Letters:
    """A tokenizer of letters, with a minimal chat template."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        del add_special_tokens
        return [ord(letter) for letter in text]

    def get_chat_template(self) -> str:
        return "enable_thinking"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with make_executor(ExecutorConfig(threads=1, vm_steps=200_000)) as executor:
        yield executor


@pytest.fixture
def example(tmp_path: Path) -> Example:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE dept(id INTEGER PRIMARY KEY);"
            "CREATE TABLE emps(nick TEXT, dept REFERENCES dept);"
            "CREATE TABLE spare(x);"
            "INSERT INTO emps VALUES ('Ada', 1), ('Bo', 2), ('Cy', 1), ('Bo', 1);"
        )
    return Example("q1", "d", str(path), "Who?", SQL, reasoning="Those of the first.", evidence="a hint")


def text_of(response: Response) -> str:
    return response if isinstance(response, str) else "".join(text for _, text in response)


@pytest.mark.parametrize("opening_tag", ["", "tag"])
@pytest.mark.parametrize("reasoning", ["", "Those of the first."])
@pytest.mark.parametrize("name", RECIPES)
def test_demonstration_is_parsed_and_rewarded_in_full(
    name: str, reasoning: str, opening_tag: str, executor: Executor, example: Example
) -> None:
    recipe = RECIPES[name]
    example = dataclasses.replace(example, reasoning=reasoning)
    tag = opening_tag and {"think2sql": "<reasoning>"}.get(name.split("_", maxsplit=1)[0], "<think>")
    prefill = "So:\n" + tag if tag else ""
    style = recipe.style("chat", prefill=prefill)
    assert style.opening_tag == tag
    answer = style.answer(example)
    assert isinstance(answer, str)
    assert not tag or not answer.startswith(tag)
    assert not tag or tag.replace("<", "</") in answer
    parsed = recipe.parse(answer, style)
    assert (parsed.sql, parsed.well_formed or name == "arctic") == (SQL, True)
    assert reasoning in parsed.think or name == "arctic"
    (scored,) = recipe.collect(recipe.submit(executor, [example], [answer], style))
    assert scored.trusted
    assert scored.reward.parts["correct"] == 1.0
    length = scored.reward.parts.get("length", 0.0)
    assert scored.reward.total == pytest.approx(TOP.get(name, 1.0) + length)
    assert recipe.score(executor, [example], [answer], opening_tag=tag) == [scored.reward]


@pytest.mark.parametrize("opening_tag", ["<think>", "<reasoning>"])
@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith(("paverl", "omnisql"))])
def test_demonstration_after_any_opening_tag_is_well_formed(name: str, opening_tag: str, example: Example) -> None:
    recipe = RECIPES[name]
    answer = recipe.target_response(example, opening_tag=opening_tag)
    whole = with_opening_tag(answer, opening_tag)
    parsed = recipe.read(whole)
    if not (name == "arctic" and opening_tag == "<reasoning>"):
        assert parsed.well_formed, whole
    assert (parsed.sql, parsed.think) == (SQL, example.reasoning) or name == "arctic"


@pytest.mark.parametrize("name", ["think2sql", "think2sql_exfm"])
def test_thinking_model_is_taught_its_own_tag(name: str, example: Example) -> None:
    recipe = RECIPES[name]
    for tokenizer, begins in ((Letters(), "<think>"), (Thinker(), "\nThose of")):
        style = recipe.adapt_style(recipe.style("chat", thinking="think"), tokenizer)
        answer = text_of(style.answer(example))
        assert answer.startswith(begins)
        assert "reasoning>" not in answer
        assert recipe.parse(answer, style).well_formed


@pytest.mark.parametrize("turns", [2, 5])
@pytest.mark.parametrize("name", MULTI)
def test_supervised_dialogue_has_the_environments_answers(
    name: str, turns: int, executor: Executor, example: Example
) -> None:
    recipe = RECIPES[name]
    style = recipe.in_dialogues(recipe.style("tagged"), executor, turns)
    dialogue = style.answer(example)
    assert not isinstance(dialogue, str)
    assert [role for role, _ in dialogue] == ["assistant", "environment", "assistant"]
    (_, first), (_, seen), (_, last) = dialogue
    assert first.endswith("</sql>")
    assert last.endswith("</solution>")
    assert recipe.turns is not None
    policy = recipe.turns(executor, example, turns)
    from_loop = policy.next(Action(first, "stop"))
    assert from_loop is not None
    assert from_loop.result() == seen
    assert ("CREATE TABLE emps" in seen and "spare" not in seen) if name.endswith("schema") else "Ada\nCy\nBo" in seen
    (reward,) = recipe.score(executor, [example], [dialogue])
    assert reward.total == 1.0
    assert reward.parts["unprobed"] == float(name.endswith("schema"))


def test_first_tag_of_a_dialogue_may_be_in_the_prompt(executor: Executor, example: Example) -> None:
    recipe = RECIPES["skyrl_sql"]
    style = recipe.in_dialogues(recipe.style("chat", prefill="<think>"), executor, 5)
    dialogue = style.answer(example)
    assert text_of(dialogue).startswith("Those of the first.</think>")
    assert recipe.parse(dialogue, style).well_formed


def test_single_turn_is_taught_without_an_environment(executor: Executor, example: Example) -> None:
    recipe = RECIPES["skyrl_sql"]
    assert isinstance(recipe.in_dialogues(recipe.style("tagged"), executor, 1).answer(example), str)
    assert recipe.in_dialogues(recipe.style("compact"), executor, 5).answer(example) == " " + SQL
    style = RECIPES["arctic"].style("tagged")
    assert RECIPES["arctic"].in_dialogues(style, executor, 5) is style
    observe = recipe.observer(executor, example, 2)
    assert observe is not None
    observe("SELECT 1")
    with pytest.raises(InputError, match="more than 2 turns"):
        observe("SELECT 1")


@pytest.mark.parametrize("name", RECIPES)
def test_tagged_prompt_is_short_and_ends_with_the_hint(name: str, example: Example) -> None:
    recipe = RECIPES[name]
    schema, question = prompt_texts(example, recipe.style("tagged"), None)
    shown = "dept\nemps\nspare" if name == "skyrl_sql_no_schema" else "dept(id)\nemps(nick, dept=dept.id)\nspare(x)"
    assert schema == shown + "\n\n"
    assert question == f"Q: Who? (a hint)\n{recipe.hint}\n"
    mysql = dataclasses.replace(example, dialect="mysql")
    assert prompt_texts(mysql, recipe.style("tagged"), None) == (schema, f"Q: Who? (a hint)\nMySQL. {recipe.hint}\n")


@pytest.mark.parametrize("name", RECIPES)
def test_chat_prompt_contains_the_schema_and_the_answer_form(name: str, example: Example) -> None:
    recipe = RECIPES[name]
    (prompt,) = make_prompts([example], recipe.style("chat", template="generic"), Letters(), 10_000).prompts
    assert recipe.instruction in prompt.text
    assert "Write one SQLite query" in prompt.text
    assert "External knowledge: a hint\nQuestion: Who?" in prompt.text
    (mysql,) = make_prompts(
        [dataclasses.replace(example, dialect="mysql")], recipe.style("chat", template="generic"), Letters(), 10_000
    ).prompts
    assert mysql.text == prompt.text.replace("SQLite", "MySQL")
    values = {"paverl": "--Example Bo, Ada, Cy", "arctic": "-- example: ['Bo', 'Ada']"}
    assert values.get(name, "") in prompt.text
    assert ("CREATE TABLE" in prompt.text) == (name != "skyrl_sql_no_schema")


def test_prompt_may_use_another_schema_form_than_the_recipes(example: Example) -> None:
    shown = {
        schema: prompt_texts(example, RECIPES["paverl"].style("tagged", schema=schema), None)[0]
        for schema in ("recipe", "compact", "ddl", "omnisql", "profile", "names_only")
    }
    assert shown["recipe"] == shown["compact"]
    assert shown["names_only"] == "dept\nemps\nspare\n\n"
    assert len(set(shown.values())) == 5
    with pytest.raises(InputError, match=r"'full' is not one of recipe, compact"):
        RECIPES["paverl"].style("chat", schema="full")


@pytest.mark.parametrize("name", ["skyrl_sql", "think2sql"])
def test_model_with_native_thinking_gets_no_thinking_instruction(name: str, example: Example) -> None:
    recipe = RECIPES[name]
    for template in ("generic", ""):
        style = recipe.style("chat", thinking="think", template=template)
        (prompt,) = make_prompts([example], style, Letters(), 10_000).prompts
        assert (recipe.thinking_instruction in prompt.text) == bool(template)
        assert "<think>" not in prompt.text
        assert "<reasoning>" not in prompt.text


@pytest.mark.parametrize("style", ["compact", "tagged", "chat"])
def test_mysql_is_requested_taught_and_translated(style: str, executor: Executor, example: Example) -> None:
    gold = "SELECT nick || '!' FROM emps WHERE dept = 1"
    example = dataclasses.replace(example, dialect="mysql", gold_sql=gold)
    for recipe in RECIPES.values():
        form = recipe.style(style)
        answer = form.answer(example)
        assert "CONCAT(nick, '!')" in text_of(answer), recipe.name
        (scored,) = recipe.collect(recipe.submit(executor, [example], [answer], form))
        assert scored.reward.parts["correct"] == 1.0, recipe.name
        assert "CONCAT" in str(scored.sql)


def test_unparsed_sql_of_a_dialect_is_not_run(executor: Executor, example: Example) -> None:
    recipe, style = RECIPES["arctic"], RECIPES["arctic"].style("compact")
    before = executor.stats()["runs"]
    job = recipe.submit(executor, [dataclasses.replace(example, dialect="mysql")], ["SELECT ) FROM"], style)
    (scored,) = recipe.collect(job)
    assert (scored.status, scored.reward.total, scored.sql) == ("syntax_error", 0.0, "SELECT ) FROM")
    assert (job.job, executor.stats()["runs"]) == (None, before)


def test_raw_answers_are_parsed_as_a_whole_and_rewarded_by_the_recipe(executor: Executor, example: Example) -> None:
    for name, total in {"arctic": 1.0, "paverl": 10.0, "think2sql": 1.0, "skyrl_sql": 1.0}.items():
        recipe = RECIPES[name]
        style = recipe.style("compact")
        answer = style.answer(example)
        assert answer == " " + SQL
        (scored,) = recipe.collect(recipe.submit(executor, [example], [answer], style))
        assert scored.reward.total == total, name


class Thinker(Letters):
    """A tokenizer whose template opens a thought."""

    def apply_chat_template(self, messages: list[dict[str, str]], **how: Any) -> str:
        return super().apply_chat_template(messages, **how) + "<think>\n"


def test_thought_opened_by_the_template_belongs_to_the_answer(executor: Executor, example: Example) -> None:
    recipe = RECIPES["skyrl_sql"]
    style = recipe.adapt_style(recipe.style("chat"), Thinker())
    answer = style.answer(example)
    assert isinstance(answer, str)
    assert answer.startswith("Those of the first.</think>")
    (scored,) = recipe.collect(recipe.submit(executor, [example], [answer], style))
    assert scored.reward.total == 1.0
    dialogue = recipe.in_dialogues(style, executor, 5).answer(example)
    assert text_of(dialogue).startswith("Those of the first.</think>")
    for plain in (recipe.style("chat"), recipe.style("tagged"), recipe.style("compact")):
        assert recipe.adapt_style(plain, Letters()) is plain


@pytest.mark.parametrize(
    "prefill", [None, "<think>\n", "<think>", "<reasoning>\n", "Let me see.\n<think>\n", "Let me see. "]
)
@pytest.mark.parametrize("name", RECIPES)
def test_thought_is_opened_once(name: str, prefill: str | None, executor: Executor, example: Example) -> None:
    """Neither the recipe nor a prefill opens a second thought, and supervised answers are parsed completely."""
    recipe = RECIPES[name]
    style = recipe.adapt_style(recipe.style("chat", prefill=prefill), Thinker())
    (prompt,) = make_prompts([example], style, Thinker(), 10_000).prompts
    turn = prompt.text.rpartition("[assistant]")[2]
    assert turn.startswith("<think>\n")
    assert (turn.count("<think>"), turn.count("<reasoning>"), style.opening_tag) == (1, 0, "<think>")
    assert not prefill or ("Let me see." in prefill) == ("Let me see." in turn)
    answer = style.answer(example)
    assert "<think>" not in text_of(answer)
    parsed = recipe.parse(answer, style)
    assert (parsed.sql, parsed.well_formed or name == "arctic") == (SQL, True)
    # A server does not return the tag that its prompt has opened.
    assert recipe.parse(with_opened_thought(text_of(answer)), recipe.endpoint_style(DataConfig())) == parsed


def test_text_after_an_opening_tag_leaves_the_thought_open(example: Example) -> None:
    recipe = RECIPES["sql_r1"]
    style = recipe.style("chat", prefill="<think>\nFirst, ")
    answer = text_of(style.answer(example))
    assert style.opening_tag == "<think>"
    assert "<think>" not in answer
    assert recipe.parse(answer, style).well_formed
    assert not recipe.style("chat", prefill="<think>\nNone.\n</think>\n").opening_tag


def test_unknown_styles_and_recipes_are_refused() -> None:
    with pytest.raises(InputError, match="not one of compact, tagged, chat"):
        RECIPES["arctic"].style("plain")
    with pytest.raises(InputError, match=r"'sqlr1' is not one of arctic.*nearest is sql_r1"):
        find_recipe("sqlr1")
    for name, recipe in RECIPES.items():
        assert find_recipe(name) is recipe
        assert recipe.name == name


def test_only_dialogues_stop_at_tags() -> None:
    stops = {name: recipe.stops for name, recipe in RECIPES.items() if recipe.stops}
    assert stops == {**dict.fromkeys(MULTI, SQL_STOPS), "skyrl_sql_single": ("</solution>",)}
    assert {name for name, recipe in RECIPES.items() if recipe.turns} == set(MULTI)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("Let me solve this step by step.\n<think>", "<think>"),
        ("<|assistant|><think>\n", "<think>"),
        ("<reasoning> \n", "<reasoning>"),
        ("<think>\n\n</think>\n\n", ""),
        ("<think> so", ""),
        ("", ""),
    ],
)
def test_open_tag_at_the_end_of_a_prompt(text: str, tag: str) -> None:
    assert opening_tag_of(text) == tag
