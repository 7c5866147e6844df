"""Prompt styles: the format of prompts and target answers.

A style is a value. It defines the parts of a prompt, the target answer, and the wrapping by a chat template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from jaxrl_sql.runtime.control_tokens import prepend_begin_token
from jaxrl_sql.text2sql.env.tags import open_thought
from jaxrl_sql.text2sql.prompts.chat import THINKING, chat_messages, full_prefill, render_chat
from jaxrl_sql.text2sql.prompts.dialects import target_sql
from jaxrl_sql.text2sql.prompts.template import PromptTemplate
from jaxrl_sql.text2sql.schema.read import Schema
from jaxrl_sql.text2sql.schema.render import RENDERERS
from jaxrl_sql.types import DIALECTS, Example, InputError, Response, Tokenizer

GIVEN = "given"
"""The style of the prompts that released rows carry."""

ShowSchema = Callable[[Example, Schema], str]

Shown = tuple[str, str]
"""A few-shot example: the user's message (schema, then question) and the answer."""


class Parts(NamedTuple):
    """The texts of a prompt: the user's message in two parts, and a chat's system message, "" for none.

    `prefill` is the begun answer of a released row; other styles have one for all questions.
    """

    schema: str
    question: str
    system: str = ""
    prefill: str = ""

    def messages(self) -> list[dict[str, str]]:
        """Return the messages for an endpoint, without a begun answer."""
        return chat_messages(self.system, self.schema + self.question)


Wrap = Callable[[Tokenizer | None, Parts, Sequence[Shown]], tuple[str, str]]
"""Adds few-shot examples before the schema part, and the style's surrounding text; the question part comes last."""


class PromptStyle(NamedTuple):
    """The format of prompts and target answers.

    The prompt is `wrap(tokenizer, parts(example, schema, values), shown)`: two texts, the first of which is the same
    for all questions on a schema.

    - `parts` takes the schema or its text. `show` renders a schema.
    - `shown` are the few-shot examples that `shots` selects, in the same format.
    - `answer(example)` is the supervised target, a text or a dialogue, without an end token.
    - `answers_raw_sql`: answers are only SQL, as for models trained from scratch.
    - `opening_tag` is the tag at the end of the prompt, if any; it belongs to the answer, whose target omits it.
    - `retrieve` is the maximum number of values that the question names, or refers to by the word vectors of the folder
      `synonyms`. They are part of the schema, or with `in_question` of `values`, so all questions share the schema.
    - `schema_budget` is the maximum number of schema tokens (0: no limit); a larger schema is reduced to the tables and
      columns that the question needs.
    """

    name: str
    show: ShowSchema
    parts: Callable[[Example, Schema | str, str], Parts]
    answer: Callable[[Example], Response]
    wrap: Wrap
    answers_raw_sql: bool = False
    opening_tag: str = ""
    retrieve: int = 0
    in_question: bool = False
    schema_budget: int = 0
    synonyms: str = ""
    shots: Callable[[Example], Sequence[Example]] | None = None

    @property
    def is_chat(self) -> bool:
        """Return whether prompts are chats, whose answers begin with a thought."""
        return self.name in ("chat", GIVEN)

    def tag_of(self, example: Example) -> str:
        """Return the tag at the end of an example's prompt: that of its row's begun answer, else of all prompts."""
        begun = self.parts(example, "", "").prefill if self.name == GIVEN else ""
        return open_thought(begun) or self.opening_tag


def compact_style(schema: ShowSchema = RENDERERS["compact"]) -> PromptStyle:
    """Return the style for models trained from scratch: few tokens, and raw SQL answers."""
    parts = partial(_plain_parts, schema, _compact_question)
    return PromptStyle("compact", schema, parts, _compact_answer, _plain_wrap, True)


def make_tagged_style(
    hint: str, answer: Callable[[Example], Response], schema: ShowSchema = RENDERERS["compact"]
) -> PromptStyle:
    """Return a style with as few tokens but formatted answers: the question ends with a `hint` about the format."""
    parts = partial(_plain_parts, schema, partial(_format_tagged_question, hint))
    return PromptStyle("tagged", schema, parts, answer, _plain_wrap)


def chat_style(
    template: PromptTemplate,
    instruction: str,
    answer: Callable[[Example], Response],
    schema: ShowSchema = RENDERERS["ddl"],
    thinking: str = "template",
    prefill: str = "",
    date: str = "",
) -> PromptStyle:
    """Return the style of a prompt template, whose messages the tokenizer's chat template renders.

    `instruction` fills the placeholder with that name, `thinking` sets the chat template's switch (`think`,
    `no_think`), `prefill` prefills the assistant's turn, and `date` is the chat template's date (`render_chat`).
    """
    fixed = {"instruction": instruction, "thinks": thinking == "think"}
    wrap = partial(_chat_wrap, thinking=THINKING[thinking], prefill=prefill, date=date)
    return PromptStyle("chat", schema, partial(_chat_parts, template, schema, fixed), answer, wrap)


def given_style(
    answer: Callable[[Example], Response],
    schema: ShowSchema = RENDERERS["ddl"],
    thinking: str = "template",
    prefill: str | None = None,
    date: str = "",
) -> PromptStyle:
    """Return the style of the prompts that released rows carry, whose messages the chat template renders.

    A `prefill` replaces the begun answer of the row. `schema` is the format for a judge, as rows have their own.
    """

    def parts(example: Example, _schema: Schema | str, _values: str) -> Parts:
        row = row_parts(example)
        return row if prefill is None else row._replace(prefill=prefill)

    wrap = partial(_given_wrap, thinking=THINKING[thinking], date=date)
    return PromptStyle(GIVEN, schema, parts, answer, wrap)


def row_parts(example: Example) -> Parts:
    """Return the prompt of an example's row, as the user's message, the system message and the begun answer.

    Raises InputError for an example without one.
    """
    texts = dict(example.messages)
    if "user" not in texts:
        raise InputError(
            f"{example.uid}: data.prompt=given needs a row that carries its prompt (docs/reference/datasets.md); "
            "use data.prompt=chat for other questions"
        )
    return Parts("", texts["user"], texts.get("system", ""), texts.get("assistant", ""))


def _plain_parts(
    show: ShowSchema, ask: Callable[[Example], str], example: Example, schema: Schema | str, values: str
) -> Parts:
    schema_text = schema if isinstance(schema, str) else show(example, schema)
    return Parts(schema_text + "\n\n", (f"Values in the database: {values}\n" if values else "") + ask(example))


def _question_line(example: Example) -> str:
    evidence = f" ({example.evidence})" if example.evidence else ""
    return f"Q: {example.question}{evidence}\n"


def _compact_question(example: Example) -> str:
    return f"{_question_line(example)}{'' if example.dialect == 'sqlite' else DIALECTS[example.dialect] + ' '}SQL:"


def _compact_answer(example: Example) -> str:
    # The space belongs to the answer, not the prompt: byte-pair tokens start with the space before a word.
    return " " + target_sql(example)


def _format_tagged_question(hint: str, example: Example) -> str:
    dialect = "" if example.dialect == "sqlite" else f"{DIALECTS[example.dialect]}. "
    return f"{_question_line(example)}{dialect}{hint}\n"


def _plain_wrap(tokenizer: Tokenizer | None, parts: Parts, shown: Sequence[Shown] = ()) -> tuple[str, str]:
    before = "".join(f"{question}{answer}\n\n" for question, answer in shown)
    return prepend_begin_token(tokenizer, before + parts.schema), parts.question


def _chat_parts(
    template: PromptTemplate,
    show: ShowSchema,
    fixed: Mapping[str, object],
    example: Example,
    schema: Schema | str,
    values: str,
) -> Parts:
    values_by_name = {
        **fixed,
        "schema": schema if isinstance(schema, str) else show(example, schema),
        "question": example.question,
        "evidence": example.evidence,
        "values": values,
        "dialect": DIALECTS[example.dialect],
        "complexity": example.difficulty,
    }
    return Parts(*template.texts(values_by_name), template.system(values_by_name))


def _chat_wrap(
    tokenizer: Any,
    parts: Parts,
    shown: Sequence[Shown] = (),
    thinking: bool | None = None,
    prefill: str = "",
    date: str = "",
) -> tuple[str, str]:
    """Render the messages, with few-shot examples as turns, and the opened, optionally prefilled assistant's turn.

    The text is split at the start of the question part. Templates may strip a message at its ends but not inside, so
    a search for the message finds the split.
    """
    messages = parts.messages()
    # A template opens a thought only in the generated turn, not in earlier ones.
    first = full_prefill(render_chat(tokenizer, messages, thinking, "", date), prefill) if shown else prefill
    turns = [turn for question, answer in shown for turn in (("user", question), ("assistant", first + answer))]
    messages[-1:-1] = [{"role": role, "content": text} for role, text in turns]
    full = render_chat(tokenizer, messages, thinking, prefill, date)
    cut = _end_of_schema(parts, full)
    return full[:cut], full[cut:]


def _end_of_schema(parts: Parts, full: str) -> int:
    """Return where the question part begins in a rendered chat.

    Raises InputError if the chat template changes more of the user's message than white space at its ends.
    """
    message = parts.schema + parts.question
    start, removed = full.rfind(message), 0
    if start < 0:
        start, removed = full.rfind(message.strip()), len(message) - len(message.lstrip())
    if start < 0:
        raise InputError("the tokenizer's chat template changes the text of a message; use data.prompt=tagged")
    return start + max(0, len(parts.schema) - removed)


def _given_wrap(
    tokenizer: Any,
    parts: Parts,
    shown: Sequence[Shown] = (),
    thinking: bool | None = None,
    date: str = "",
) -> tuple[str, str]:
    """Render a row's messages and its begun answer as the first part.

    The second part is empty: a cut inside of the text could change the tokens, and no other question shares it.
    """
    if shown:
        raise InputError("data.prompt=given has no few-shot examples: data.shots must be 0")
    full = render_chat(tokenizer, parts.messages(), thinking, parts.prefill, date)
    _end_of_schema(parts, full)
    return full, ""
