"""Prompts: a schema part, which all questions on a database share, and a question part.

Both parts are tokenized separately and their ids concatenated; the concatenated text is never encoded again. Questions
on one database thus share exactly the same prefix ids, and computations on them can be shared. A prompt style is a
value: it defines the parts, the target answer, and the wrapping by a tokenizer's chat template.

Four options make the schema part specific to a question: values that the question names, if they are among a column's
examples; few-shot examples, which precede the schema; schema linking, if a schema exceeds its budget; and pruning, for
prompts that would not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.runtime.control_tokens import ControlTokens, plain_text, strip_marks
from jaxrl_sql.text2sql.prompts.chat import THINKING, chat_messages, full_prefill, render_chat
from jaxrl_sql.text2sql.prompts.dialects import shield_answer, target_sql
from jaxrl_sql.text2sql.prompts.template import PromptTemplate
from jaxrl_sql.text2sql.schema.describe import read_descriptions
from jaxrl_sql.text2sql.schema.link import link
from jaxrl_sql.text2sql.schema.prune import find_columns_of_all, prune
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_text
from jaxrl_sql.text2sql.schema.read import Schema, read_schema
from jaxrl_sql.text2sql.schema.render import RENDERERS
from jaxrl_sql.text2sql.schema.synonyms import find_alike
from jaxrl_sql.types import DIALECTS, Example, InputError, Prompt, Response, Tokenizer, response_text

ShowSchema = Callable[[Example, Schema], str]

Shown = tuple[str, str]
"""A few-shot example: the user's message (schema, then question) and the answer."""


class Wrap(Protocol):
    """Adds few-shot examples before the schema part, and the style's surrounding text; the question part comes last."""

    def __call__(
        self, tokenizer: Tokenizer | None, schema_text: str, question_text: str, shown: Sequence[Shown] = ..., /
    ) -> tuple[str, str]:
        """Return the two parts of the prompt."""
        ...


class PromptStyle(NamedTuple):
    """The format of prompts and target answers.

    The prompt is `wrap(tokenizer, *parts(example, schema, values), shown)`: two texts, the first of which is the same
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
    - `system` is a chat's system message, which `wrap` includes, too; "" for no message.
    """

    name: str
    show: ShowSchema
    parts: Callable[[Example, Schema | str, str], tuple[str, str]]
    answer: Callable[[Example], Response]
    wrap: Wrap
    answers_raw_sql: bool = False
    opening_tag: str = ""
    retrieve: int = 0
    in_question: bool = False
    schema_budget: int = 0
    synonyms: str = ""
    shots: Callable[[Example], Sequence[Example]] | None = None
    system: str = ""


class PromptSet(NamedTuple):
    """Examples whose prompt fits, their prompts in the same order, and (uid, reason) of skipped ones.

    `pruned` has the uids whose schema was pruned to fit, `errors` has lines about unreadable descriptions.

    The prompts of a huge set are created on access (`text2sql.question_sets.stream`): `streamed` then has its identity
    and the maximum number of tokens per prompt. `measured` has the median and maximum length of all prompts, including
    the skipped ones; None if they are not known.
    """

    examples: Sequence[Example]
    prompts: Sequence[Prompt]
    skipped: tuple[tuple[str, str], ...]
    streamed: tuple[str, int] | None = None
    pruned: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    measured: tuple[int, int] | None = None

    def sample(self, count: int = 256) -> Sequence[Prompt]:
        """Return all prompts; for a huge set, an evenly spread sample."""
        if self.streamed is None:
            return self.prompts
        return [self.prompts[i] for i in range(0, len(self.prompts), -(-len(self.prompts) // count))]

    def lengths(self) -> list[int]:
        """Return the number of tokens per prompt; for a huge set, those of a sample and the maximum."""
        lengths = [len(prompt.token_ids) for prompt in self.sample()]
        return lengths if self.streamed is None else [*lengths, self.streamed[1]]


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
    thinks = thinking == "think"
    parts = partial(_chat_parts, template, schema, {"instruction": instruction, "thinks": thinks})
    system = template.system(thinks=thinks)
    wrap = partial(_chat_wrap, system=system, thinking=THINKING[thinking], prefill=prefill, date=date)
    return PromptStyle("chat", schema, parts, answer, wrap, system=system)


def _plain_parts(
    show: ShowSchema, ask: Callable[[Example], str], example: Example, schema: Schema | str, values: str
) -> tuple[str, str]:
    schema_text = schema if isinstance(schema, str) else show(example, schema)
    return schema_text + "\n\n", (f"Values in the database: {values}\n" if values else "") + ask(example)


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


def _plain_wrap(
    tokenizer: Tokenizer | None, schema_text: str, question_text: str, shown: Sequence[Shown] = (), /
) -> tuple[str, str]:
    before = "".join(f"{question}{answer}\n\n" for question, answer in shown)
    return plain_text(tokenizer, before + schema_text), question_text


def _chat_parts(
    template: PromptTemplate,
    show: ShowSchema,
    fixed: Mapping[str, object],
    example: Example,
    schema: Schema | str,
    values: str,
) -> tuple[str, str]:
    values_by_name = {
        "schema": schema if isinstance(schema, str) else show(example, schema),
        "question": example.question,
        "evidence": example.evidence,
        "values": values,
        "dialect": DIALECTS[example.dialect],
    }
    return template.texts({**fixed, **values_by_name})


def _chat_wrap(
    tokenizer: Any,
    schema_text: str,
    question_text: str,
    shown: Sequence[Shown] = (),
    /,
    system: str = "",
    thinking: bool | None = None,
    prefill: str = "",
    date: str = "",
) -> tuple[str, str]:
    """Render the messages, with few-shot examples as turns, and the opened, optionally prefilled assistant's turn.

    The text is split at the start of the question part. Templates may strip a message at its ends but not inside, so
    a search for the message finds the split.
    """
    messages = chat_messages(system, schema_text + question_text)
    # A template opens a thought only in the generated turn, not in earlier ones.
    first = full_prefill(render_chat(tokenizer, messages, thinking, "", date), prefill) if shown else prefill
    turns = [turn for question, answer in shown for turn in (("user", question), ("assistant", first + answer))]
    messages[-1:-1] = [{"role": role, "content": text} for role, text in turns]
    full = render_chat(tokenizer, messages, thinking, prefill, date)
    start = full.rfind(schema_text + question_text)
    if start < 0:
        raise InputError("the tokenizer's chat template changes the text of a message; use data.prompt=tagged")
    cut = start + len(schema_text)
    return full[:cut], full[cut:]


class Pruning(NamedTuple):
    """Prune the schema of prompts with more than `tokens` tokens, randomly by `seed`; only for training."""

    tokens: int
    seed: int


class EncodedPrompt(NamedTuple):
    """The two parts of a prompt as texts and ids, and whether its schema was pruned."""

    texts: tuple[str, str]
    schema_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    is_pruned: bool = False

    @property
    def length(self) -> int:
        """Return the number of tokens of the prompt."""
        return len(self.schema_ids) + len(self.question_ids)

    def prompt(self, uid: str) -> Prompt:
        """Return both parts as one prompt."""
        return Prompt(uid, self.schema_ids + self.question_ids, "".join(self.texts))


class Encoder:
    """Encode examples in a style, with a cache of the last `schemas` encoded schemas.

    With `pruning`, the schema of a prompt that is too long is reduced to fit: it keeps the keys and columns that the
    golds read, and random other columns. A prompt whose golds cannot be parsed or do not fit stays unchanged.
    """

    def __init__(
        self, style: PromptStyle, tokenizer: Tokenizer, pruning: Pruning | None = None, schemas: int = 1
    ) -> None:
        self.style = style
        self.tokenizer = tokenizer
        self.pruning = pruning
        self.control = ControlTokens(tokenizer)
        self._shield = lru_cache(maxsize=4 * schemas)(self.control.shield)  # a question has four texts
        self._schema_ids = lru_cache(maxsize=schemas)(self._ids)

    def encode(self, example: Example) -> EncodedPrompt:
        """Return an example's prompt; raises InputError for an unreadable database."""
        schema = select_schema(example, self.style, self.tokenizer)
        shots = self.style.shots(example) if self.style.shots else ()
        shown = [_render_shot(shot, self.style, self.control) for shot in shots]
        whole = self._encode(example, schema, shown, self._schema_ids)
        if self.pruning is None or whole.length <= self.pruning.tokens:
            return whole
        return self._prune(example, schema, shown, self.pruning) or whole

    def _prune(
        self, example: Example, schema: Schema, shown: Sequence[Shown], pruning: Pruning
    ) -> EncodedPrompt | None:
        queries = (example.gold_sql, *example.other_golds, example.demonstration)
        used = find_columns_of_all([sql for sql in queries if sql], schema)
        if used is None:
            return None

        def encode_schema(part: Schema) -> EncodedPrompt:
            return self._encode(example, part, shown, self._ids)._replace(is_pruned=True)

        pruned_schema = prune(
            schema, used, pruning.seed, example.uid, lambda part: encode_schema(part).length <= pruning.tokens
        )
        return None if pruned_schema is None else encode_schema(pruned_schema)

    def _encode(
        self, example: Example, schema: Schema, shown: Sequence[Shown], schema_ids: Callable[[str], tuple[int, ...]]
    ) -> EncodedPrompt:
        texts = message_texts(example, self.style, schema, self._shield)
        first, second = self.style.wrap(self.tokenizer, *texts, shown)
        return EncodedPrompt((strip_marks(first), strip_marks(second)), schema_ids(first), self._ids(second))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.control.encode(text))


def _render_shot(example: Example, style: PromptStyle, control: ControlTokens) -> Shown:
    """Return a few-shot example; raw SQL gets a final semicolon, at which generation can stop."""
    schema = select_schema(example, style, control.tokenizer)
    message = "".join(message_texts(example, style, schema, control.shield))
    answer = response_text(shield_answer(style.answer(example), example, control))
    return message, f"{answer.rstrip().rstrip(';')};" if style.answers_raw_sql else answer


# The assumed number of characters per schema token without a tokenizer; Qwen's tokens have 3.9 to 4.1.
_TOKEN_CHARACTERS = 3


def select_schema(example: Example, style: PromptStyle, tokenizer: Tokenizer | None = None) -> Schema:
    """Return the schema in an example's prompt, with the values that its question names if the style has them.

    Without a `tokenizer`, as for endpoints, a token of `schema_budget` counts as three characters.
    """
    schema = read_schema(example.db_path, example.hide)
    if style.retrieve:
        schema = replace(schema, matched=find_alike(example, style.retrieve, style.synonyms))
    if not style.schema_budget:
        return schema

    def fits(pruned_schema: Schema) -> bool:
        text = style.show(example, replace(pruned_schema, matched=()) if style.in_question else pruned_schema)
        if tokenizer is None:
            return len(text) <= _TOKEN_CHARACTERS * style.schema_budget
        return len(tokenizer.encode(text, add_special_tokens=False)) <= style.schema_budget

    return link(example, schema, fits)


def message_texts(
    example: Example, style: PromptStyle, schema: Schema | None = None, shield: Callable[[str], str] = str
) -> tuple[str, str]:
    """Return both parts of the user's message, without the style's wrapping.

    `shield` is applied to external text (`ControlTokens.shield`).
    """
    schema = select_schema(example, style) if schema is None else schema
    values = "; ".join(_format_match(*match) for match in schema.matched) if style.in_question else ""
    text = style.show(example, replace(schema, matched=()) if values else schema)
    example = replace(example, question=shield(example.question), evidence=shield(example.evidence))
    return style.parts(example, shield(text), shield(values))


def _format_match(table: str, column: str, value: str) -> str:
    return f"{quote_name(table)}.{quote_name(column)} = {quote_text(' '.join(value.split()))}"


def prompt_texts(example: Example, style: PromptStyle, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return the schema part and the question part as text, with the style's wrapping."""
    first, second = style.wrap(tokenizer, *message_texts(example, style, select_schema(example, style, tokenizer)))
    return strip_marks(first), strip_marks(second)


def make_prompt(example: Example, style: PromptStyle, tokenizer: Tokenizer, max_tokens: int) -> Prompt | None:
    """Tokenize one prompt; None if it has more than `max_tokens` tokens."""
    prompts = make_prompts([example], style, tokenizer, max_tokens)
    return prompts.prompts[0] if prompts.prompts else None


def make_prompts(
    examples: Sequence[Example],
    style: PromptStyle,
    tokenizer: Tokenizer,
    max_tokens: int,
    pruning: Pruning | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PromptSet:
    """Tokenize the prompts of many examples, each schema once; prompts over `max_tokens` are skipped with a reason.

    `pruning` first reduces the schemas of long prompts; it uses the golds, so it is only for training.
    `on_progress` receives the number of encoded prompts. Raises InputError for an unreadable database.
    """
    encoder = Encoder(style, tokenizer, pruning)
    prompts: list[Prompt | None] = [None] * len(examples)
    pruned: set[str] = set()
    errors: dict[str, None] = {}
    lengths: list[int] = []
    # Sort by database, since caches keep few of possibly thousands of databases.
    order = sorted(range(len(examples)), key=lambda i: examples[i].db_path)
    for db_path, members in groupby(enumerate(order), key=lambda pair: examples[pair[1]].db_path):
        for done, i in members:
            if on_progress:
                on_progress(done)
            uid, encoded = examples[i].uid, encoder.encode(examples[i])
            lengths.append(encoded.length)
            if encoded.length <= max_tokens:
                prompts[i] = encoded.prompt(uid)
                pruned |= {uid} if encoded.is_pruned else set()
        errors.update(dict.fromkeys(read_descriptions(db_path).errors))
    reason = f"prompt over {max_tokens} tokens"
    return PromptSet(
        tuple(example for example, prompt in zip(examples, prompts, strict=True) if prompt is not None),
        tuple(prompt for prompt in prompts if prompt is not None),
        tuple((example.uid, reason) for example, prompt in zip(examples, prompts, strict=True) if prompt is None),
        pruned=tuple(example.uid for example in examples if example.uid in pruned),
        errors=tuple(errors),
        measured=(round(median(lengths)), max(lengths)) if lengths else None,
    )
