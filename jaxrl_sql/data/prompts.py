"""What the policy reads: a prompt is a schema part, which all questions on a database share, and a question part.

The two parts are tokenised apart and their ids joined; the joined text is never encoded again. So the questions of one
database share exactly the same first ids, and whatever was computed for them can be shared too. A prompt style is a
value: it says what the parts are, what a supervised answer looks like, and how a tokenizer's chat template wraps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.data.chat import THINKING, render_chat
from jaxrl_sql.data.schema.read import Schema, read_schema
from jaxrl_sql.data.schema.render import compact, ddl
from jaxrl_sql.types import Example, InputError, Prompt


class Tokenizer(Protocol):
    """What prompts need of a tokenizer (Hugging Face's have more); the chat style also needs a chat template."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the ids of a text."""
        ...


class PromptStyle(NamedTuple):
    """How a question is put to the policy.

    The prompt is `wrap(tokenizer, schema_part(example, schema), question_part(example))`, two texts; the supervised
    target that follows it is `answer(example)`, without an end token. `answers_raw_sql` tells that answers are SQL and
    nothing else, as those of a model made from scratch.
    """

    name: str
    schema_part: Callable[[Example, Schema], str]
    question_part: Callable[[Example], str]
    answer: Callable[[Example], str]
    wrap: Callable[[Any, str, str], tuple[str, str]]
    answers_raw_sql: bool


class PromptParts(NamedTuple):
    """Token ids of the shared schema, the question, and the supervised answer (without an end token)."""

    schema_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


class PromptSet(NamedTuple):
    """Examples whose prompt fits, their prompts in the same order, and (uid, reason) of those left out."""

    examples: tuple[Example, ...]
    prompts: tuple[Prompt, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def skipped_reasons(self) -> Counter[str]:
        """Return how many prompts were left out for each reason."""
        return Counter(reason for _, reason in self.skipped)


def _compact_schema(_example: Example, schema: Schema) -> str:
    return compact(schema) + "\n\n"


def _compact_question(example: Example) -> str:
    evidence = f" ({example.evidence})" if example.evidence else ""
    return f"Q: {example.question}{evidence}\nSQL:"


def _compact_answer(example: Example) -> str:
    # The space belongs to the answer, not to the prompt: byte-pair tokens begin with the space before a word.
    return " " + example.taught_sql


def _no_wrap(_tokenizer: Any, schema_text: str, question_text: str) -> tuple[str, str]:
    return schema_text, question_text


_TASK = "Write one SQLite query that answers the question about this database.\n\n"
_ANSWER_FORMAT = (
    "Think step by step between <think> and </think>. Then write the query between <answer> and </answer>, "
    "in a code block that begins with ```sql and ends with ```."
)


def _chat_schema(_example: Example, schema: Schema) -> str:
    return f"{_TASK}Database schema:\n{ddl(schema)}\n\n"


def _chat_question(example: Example) -> str:
    evidence = f"External knowledge: {example.evidence}\n" if example.evidence else ""
    return f"{evidence}Question: {example.question}\n\n{_ANSWER_FORMAT}"


def _chat_answer(example: Example) -> str:
    return f"<answer>\n```sql\n{example.taught_sql}\n```\n</answer>"


def _chat_wrap(
    tokenizer: Any, schema_text: str, question_text: str, thinking: bool | None = None, begin: str = ""
) -> tuple[str, str]:
    """Render one user message and the assistant's turn, opened and perhaps begun, cut after the schema.

    Templates may trim a message at its ends, never inside, so the cut is looked for by the question.
    """
    full = render_chat(tokenizer, [{"role": "user", "content": schema_text + question_text}], thinking, begin)
    cut = full.rfind(question_text)
    if cut < 0:
        raise InputError("the tokenizer's chat template changes the text of a message; use prompt style `compact`")
    return full[:cut], full[cut:]


PROMPT_STYLES: dict[str, PromptStyle] = {
    "compact": PromptStyle("compact", _compact_schema, _compact_question, _compact_answer, _no_wrap, True),
    "chat": PromptStyle("chat", _chat_schema, _chat_question, _chat_answer, _chat_wrap, False),
}


def prompt_style(name: str, thinking: str = "template", begin: str = "") -> PromptStyle:
    """Return the prompt style of a name; in a chat, thinking is switched and the assistant's turn begun as asked.

    Raises InputError for a style that knows neither.
    """
    style = PROMPT_STYLES[name]
    if thinking == "template" and not begin:
        return style
    if style.wrap is not _chat_wrap:
        raise InputError(f"data.prompt={name} is no chat: data.thinking and data.begin need data.prompt=chat")
    return style._replace(wrap=partial(_chat_wrap, thinking=THINKING[thinking], begin=begin))


def prompt_texts(example: Example, style: PromptStyle, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return the schema part and the question part as text, wrapped as the style says."""
    schema = read_schema(example.db_path)
    return style.wrap(tokenizer, style.schema_part(example, schema), style.question_part(example))


def make_prompt_parts(example: Example, style: PromptStyle, tokenizer: Tokenizer) -> PromptParts:
    """Tokenise the schema, the question and the supervised answer, each alone; the caller appends the end token."""
    schema_text, question_text = prompt_texts(example, style, tokenizer)
    return PromptParts(
        tuple(tokenizer.encode(schema_text, add_special_tokens=False)),
        tuple(tokenizer.encode(question_text, add_special_tokens=False)),
        tuple(tokenizer.encode(style.answer(example), add_special_tokens=False)),
    )


def make_prompt(example: Example, style: PromptStyle, tokenizer: Tokenizer, max_tokens: int) -> Prompt | None:
    """Tokenise one prompt; None when it is longer than `max_tokens`."""
    made = make_prompts([example], style, tokenizer, max_tokens)
    return made.prompts[0] if made.prompts else None


def make_prompts(examples: Sequence[Example], style: PromptStyle, tokenizer: Tokenizer, max_tokens: int) -> PromptSet:
    """Tokenise the prompts of many examples, a schema once; those longer than `max_tokens` are left out with a reason.

    Raises InputError for a database that cannot be read.
    """
    kept: list[Example] = []
    prompts: list[Prompt] = []
    skipped: list[tuple[str, str]] = []
    schema_ids: dict[str, tuple[int, ...]] = {}
    for example in examples:
        schema_text, question_text = prompt_texts(example, style, tokenizer)
        if schema_text not in schema_ids:
            schema_ids[schema_text] = tuple(tokenizer.encode(schema_text, add_special_tokens=False))
        ids = schema_ids[schema_text] + tuple(tokenizer.encode(question_text, add_special_tokens=False))
        if len(ids) > max_tokens:
            skipped.append((example.uid, f"prompt over {max_tokens} tokens"))
            continue
        kept.append(example)
        prompts.append(Prompt(example.uid, ids, schema_text + question_text))
    return PromptSet(tuple(kept), tuple(prompts), tuple(skipped))
