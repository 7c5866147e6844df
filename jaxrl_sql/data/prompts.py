"""What the policy reads: a prompt is a schema part, which all questions on a database share, and a question part.

The two parts are tokenised apart and their ids joined; the joined text is never encoded again. So the questions of one
database share exactly the same first ids, and whatever was computed for them can be shared too. A prompt style is a
value: it says what the parts are, what a supervised answer looks like, and how a tokenizer's chat template wraps them.

Two things make a schema part a question's own, each only where it is asked for: values that the question names, where
they are shown among a column's examples, and pruning, of the prompts that would not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.data.chat import THINKING, render_chat
from jaxrl_sql.data.dialects import taught_sql
from jaxrl_sql.data.schema.describe import read_descriptions
from jaxrl_sql.data.schema.prune import prune, used_by_all
from jaxrl_sql.data.schema.quote import quote_name, quote_text
from jaxrl_sql.data.schema.read import Schema, read_schema
from jaxrl_sql.data.schema.render import RENDERERS
from jaxrl_sql.data.schema.retrieve import find_values
from jaxrl_sql.types import DIALECTS, Example, InputError, Prompt, Response


class Tokenizer(Protocol):
    """What prompts need of a tokenizer (Hugging Face's have more); the chat style also needs a chat template."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the ids of a text."""
        ...


class PromptStyle(NamedTuple):
    """How a question is put to the policy.

    The prompt is `wrap(tokenizer, schema_part(example, schema), question_part(example))`, two texts; the supervised
    target that follows it is `answer(example)`, a text or a dialogue, without an end token. `answers_raw_sql` tells
    that answers are SQL and nothing else, as those of a model made from scratch. `begun` is the tag that the prompt
    ends with, if it does: it counts as the answer's own, which is written without it. Up to `retrieve` values that the
    question names are shown: by the schema part, or with `in_question` before the question part, which leaves the
    schema the same for all questions.
    """

    name: str
    schema_part: Callable[[Example, Schema], str]
    question_part: Callable[[Example], str]
    answer: Callable[[Example], Response]
    wrap: Callable[[Any, str, str], tuple[str, str]]
    answers_raw_sql: bool = False
    begun: str = ""
    retrieve: int = 0
    in_question: bool = False


class PromptSet(NamedTuple):
    """Examples whose prompt fits, their prompts in the same order, and (uid, reason) of those left out.

    `pruned` are the uids whose schema was cut down to fit, `faults` lines about descriptions that cannot be read.

    A huge set's are made when they are asked for (`data.stream`): `streamed` is then its identity, and the most tokens
    that a prompt may have.
    """

    examples: Sequence[Example]
    prompts: Sequence[Prompt]
    skipped: tuple[tuple[str, str], ...]
    streamed: tuple[str, int] | None = None
    pruned: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def sample(self, most: int = 256) -> Sequence[Prompt]:
        """Return all prompts; of a huge set some, spread evenly over it."""
        if self.streamed is None:
            return self.prompts
        return [self.prompts[i] for i in range(0, len(self.prompts), -(-len(self.prompts) // most))]

    def lengths(self) -> list[int]:
        """Return the tokens of each prompt; of a huge set those of some, and the most that one may have."""
        lengths = [len(prompt.token_ids) for prompt in self.sample()]
        return lengths if self.streamed is None else [*lengths, self.streamed[1]]


ShowSchema = Callable[[Example, Schema], str]


def compact_style(schema: ShowSchema = RENDERERS["compact"]) -> PromptStyle:
    """Return the style for models made from scratch: few tokens, and SQL alone for an answer."""
    return PromptStyle("compact", partial(_bare_schema, schema), _compact_question, _compact_answer, _plain_wrap, True)


def tagged_style(
    hint: str, answer: Callable[[Example], Response], schema: ShowSchema = RENDERERS["compact"]
) -> PromptStyle:
    """Return the style of as few tokens whose answers have a form: the question ends with a `hint` at it."""
    return PromptStyle("tagged", partial(_bare_schema, schema), partial(_tagged_question, hint), answer, _plain_wrap)


def chat_style(
    instruction: str,
    answer: Callable[[Example], Response],
    schema: ShowSchema = RENDERERS["ddl"],
    thinking: str = "template",
    begin: str = "",
) -> PromptStyle:
    """Return the style that goes through a tokenizer's chat template, and tells by `instruction` how to answer.

    `thinking` sets a template's switch (`think`, `no_think`); `begin` writes the first words of the assistant's turn.
    """
    wrap = partial(_chat_wrap, thinking=THINKING[thinking], begin=begin)
    return PromptStyle("chat", partial(_chat_schema, schema), partial(_chat_question, instruction), answer, wrap)


def _bare_schema(show: ShowSchema, example: Example, schema: Schema) -> str:
    return show(example, schema) + "\n\n"


def _asked(example: Example) -> str:
    evidence = f" ({example.evidence})" if example.evidence else ""
    return f"Q: {example.question}{evidence}\n"


def _compact_question(example: Example) -> str:
    return f"{_asked(example)}{'' if example.dialect == 'sqlite' else DIALECTS[example.dialect] + ' '}SQL:"


def _compact_answer(example: Example) -> str:
    # The space belongs to the answer, not to the prompt: byte-pair tokens begin with the space before a word.
    return " " + taught_sql(example)


def _tagged_question(hint: str, example: Example) -> str:
    dialect = "" if example.dialect == "sqlite" else f"{DIALECTS[example.dialect]}. "
    return f"{_asked(example)}{dialect}{hint}\n"


def plain_text(tokenizer: Any, text: str) -> str:
    """Return a text behind the tokenizer's begin token, where the tokenizer puts one in front (Gemma's, Llama 3's).

    A model that never saw a text without it must not be asked one. Chat templates write it themselves. Without a
    tokenizer the text stays as it is.
    """
    begin = getattr(tokenizer, "bos_token", None)
    begins = begin and tokenizer.encode("", add_special_tokens=True)[:1] == [tokenizer.bos_token_id]
    return f"{begin}{text}" if begins else text


def _plain_wrap(tokenizer: Any, schema_text: str, question_text: str) -> tuple[str, str]:
    return plain_text(tokenizer, schema_text), question_text


def _chat_schema(show: ShowSchema, example: Example, schema: Schema) -> str:
    return f"Here is a database, and a question about it.\n\nDatabase schema:\n{show(example, schema)}\n\n"


def _chat_question(instruction: str, example: Example) -> str:
    evidence = f"External knowledge: {example.evidence}\n" if example.evidence else ""
    task = f"Write one {DIALECTS[example.dialect]} query that answers the question."
    return f"{evidence}Question: {example.question}\n\n{task} {instruction}"


def _chat_wrap(
    tokenizer: Any, schema_text: str, question_text: str, thinking: bool | None = None, begin: str = ""
) -> tuple[str, str]:
    """Render one user message and the assistant's turn, opened and perhaps begun, cut after the schema.

    Templates may trim a message at its ends, never inside, so the cut is looked for by the question.
    """
    full = render_chat(tokenizer, [{"role": "user", "content": schema_text + question_text}], thinking, begin)
    cut = full.rfind(question_text)
    if cut < 0:
        raise InputError("the tokenizer's chat template changes the text of a message; use data.prompt=tagged")
    return full[:cut], full[cut:]


class Pruning(NamedTuple):
    """That a prompt of more than `tokens` tokens shows less of its schema, chosen by `seed`: in training alone."""

    tokens: int
    seed: int


class Encoded(NamedTuple):
    """The two parts of a prompt as texts and as ids, and whether its schema was cut down."""

    texts: tuple[str, str]
    schema_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    is_pruned: bool = False

    @property
    def length(self) -> int:
        """Return how many tokens the prompt has."""
        return len(self.schema_ids) + len(self.question_ids)

    def prompt(self, uid: str) -> Prompt:
        """Return the two parts as one."""
        return Prompt(uid, self.schema_ids + self.question_ids, "".join(self.texts))


class Encoder:
    """Makes the prompts of a style, one example after another; the last so many `schemas` stay encoded.

    With `pruning` a prompt that would be too long shows as much of its schema as fits: its keys and what its golds
    read, and other columns at random. One whose golds cannot be parsed, or do not fit themselves, stays as it is.
    """

    def __init__(
        self, style: PromptStyle, tokenizer: Tokenizer, pruning: Pruning | None = None, schemas: int = 1
    ) -> None:
        self.style = style
        self.tokenizer = tokenizer
        self.pruning = pruning
        self._schema_ids = lru_cache(maxsize=schemas)(self._ids)

    def encode(self, example: Example) -> Encoded:
        """Return an example's prompt; raises InputError for a database that cannot be read."""
        schema = shown_schema(example, self.style)
        schema_text, question_text = self._texts(example, schema)
        whole = Encoded((schema_text, question_text), self._schema_ids(schema_text), self._ids(question_text))
        if self.pruning is None or whole.length <= self.pruning.tokens:
            return whole
        return self._pruned(example, schema, self.pruning) or whole

    def _pruned(self, example: Example, schema: Schema, pruning: Pruning) -> Encoded | None:
        queries = (example.gold_sql, *example.other_golds, example.demonstration)
        used = used_by_all([sql for sql in queries if sql], schema)
        if used is None:
            return None

        def encoded(part: Schema) -> Encoded:
            texts = self._texts(example, part)
            return Encoded(texts, self._ids(texts[0]), self._ids(texts[1]), is_pruned=True)

        part = prune(schema, used, pruning.seed, example.uid, lambda part: encoded(part).length <= pruning.tokens)
        return None if part is None else encoded(part)

    def _texts(self, example: Example, schema: Schema) -> tuple[str, str]:
        return self.style.wrap(self.tokenizer, *message_texts(example, self.style, schema))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def shown_schema(example: Example, style: PromptStyle) -> Schema:
    """Return the schema of the example's database, with the values that its question names where they are asked for."""
    schema = read_schema(example.db_path)
    return replace(schema, matched=find_values(example, style.retrieve)) if style.retrieve else schema


def message_texts(example: Example, style: PromptStyle, schema: Schema | None = None) -> tuple[str, str]:
    """Return the schema part and the question part as text, without what the style wraps round them."""
    schema = shown_schema(example, style) if schema is None else schema
    if not (style.in_question and schema.matched):
        return style.schema_part(example, schema), style.question_part(example)
    values = "; ".join(_matched(*match) for match in schema.matched)
    plain = replace(schema, matched=())
    return style.schema_part(example, plain), f"Values in the database: {values}\n{style.question_part(example)}"


def _matched(table: str, column: str, value: str) -> str:
    return f"{quote_name(table)}.{quote_name(column)} = {quote_text(' '.join(value.split()))}"


def prompt_texts(example: Example, style: PromptStyle, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return the schema part and the question part as text, wrapped as the style says."""
    return style.wrap(tokenizer, *message_texts(example, style))


def make_prompt(example: Example, style: PromptStyle, tokenizer: Tokenizer, max_tokens: int) -> Prompt | None:
    """Tokenise one prompt; None when it is longer than `max_tokens`."""
    made = make_prompts([example], style, tokenizer, max_tokens)
    return made.prompts[0] if made.prompts else None


def make_prompts(
    examples: Sequence[Example],
    style: PromptStyle,
    tokenizer: Tokenizer,
    max_tokens: int,
    pruning: Pruning | None = None,
) -> PromptSet:
    """Tokenise the prompts of many examples, a schema once; those longer than `max_tokens` are left out with a reason.

    `pruning` cuts down the schemas of long ones first, which is for training alone: it looks at the golds. Raises
    InputError for a database that cannot be read.
    """
    encoder = Encoder(style, tokenizer, pruning)
    made: list[Prompt | None] = [None] * len(examples)
    pruned: set[str] = set()
    faults: dict[str, None] = {}
    # Database by database: what is known of one is not kept for long where there are thousands.
    order = sorted(range(len(examples)), key=lambda i: examples[i].db_path)
    for db_path, members in groupby(order, key=lambda i: examples[i].db_path):
        for i in members:
            uid, one = examples[i].uid, encoder.encode(examples[i])
            if one.length <= max_tokens:
                made[i] = one.prompt(uid)
                pruned |= {uid} if one.is_pruned else set()
        faults.update(dict.fromkeys(read_descriptions(db_path).faults))
    reason = f"prompt over {max_tokens} tokens"
    return PromptSet(
        tuple(example for example, prompt in zip(examples, made, strict=True) if prompt is not None),
        tuple(prompt for prompt in made if prompt is not None),
        tuple((example.uid, reason) for example, prompt in zip(examples, made, strict=True) if prompt is None),
        pruned=tuple(example.uid for example in examples if example.uid in pruned),
        faults=tuple(faults),
    )
