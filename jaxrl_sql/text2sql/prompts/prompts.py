"""What the policy reads: a prompt is a schema part, which all questions on a database share, and a question part.

The two parts are tokenised apart and their ids joined; the joined text is never encoded again. So the questions of one
database share exactly the same first ids, and whatever was computed for them can be shared too. A prompt style is a
value: it says what the parts are, what a supervised answer looks like, and how a tokenizer's chat template wraps them.

Four things make a schema part a question's own, each only where it is asked for: values that the question names, where
they are shown among a column's examples, examples like the question (few-shot), which stand before the schema, the
tables and columns that it needs, where a schema is over its budget, and pruning, of the prompts that would not fit
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.runtime.control_tokens import ControlTokens, bare, plain_text
from jaxrl_sql.text2sql.prompts.chat import THINKING, chat_messages, render_chat, whole_beginning
from jaxrl_sql.text2sql.prompts.dialects import shield_answer, taught_sql
from jaxrl_sql.text2sql.prompts.template import PromptTemplate
from jaxrl_sql.text2sql.schema.describe import read_descriptions
from jaxrl_sql.text2sql.schema.link import link
from jaxrl_sql.text2sql.schema.prune import prune, used_by_all
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_text
from jaxrl_sql.text2sql.schema.read import Schema, read_schema
from jaxrl_sql.text2sql.schema.render import RENDERERS
from jaxrl_sql.text2sql.schema.synonyms import find_alike
from jaxrl_sql.types import DIALECTS, Example, InputError, Prompt, Response, Tokenizer, whole_text

ShowSchema = Callable[[Example, Schema], str]

Shown = tuple[str, str]
"""A few-shot example: what is asked, its schema before its question, and the answer."""


class Wrap(Protocol):
    """Puts examples before the schema part, and what a style has round it all; the question part ends the prompt."""

    def __call__(
        self, tokenizer: Tokenizer | None, schema_text: str, question_text: str, shown: Sequence[Shown] = ..., /
    ) -> tuple[str, str]:
        """Return the two parts of the prompt."""
        ...


class PromptStyle(NamedTuple):
    """How a question is put to the policy.

    The prompt is `wrap(tokenizer, *parts(example, schema, values), shown)`, two texts of which the first is the same
    for all questions on a schema. `parts` takes the schema or its text; `shown` are the examples that `shots` chooses,
    in the same form. The supervised target is `answer(example)`, a text or a dialogue, without an end token. `show`
    writes a schema.
    `answers_raw_sql` tells that answers are SQL and nothing else, as those of a model made from scratch. `begun` is the
    tag that the prompt ends with, if it does: it counts as the answer's own, which is written without it. Up to
    `retrieve` values that the question names are shown, or means by the word vectors of the folder `synonyms`: by the
    schema, or with `in_question` as `values`, which leaves the schema the same for all questions. A schema of more than
    `schema_budget` tokens (0: any number) shows the tables and columns that the question needs, as many as that has
    room for. `system` is a chat's system message, which `wrap` writes too; "" for none.
    """

    name: str
    show: ShowSchema
    parts: Callable[[Example, Schema | str, str], tuple[str, str]]
    answer: Callable[[Example], Response]
    wrap: Wrap
    answers_raw_sql: bool = False
    begun: str = ""
    retrieve: int = 0
    in_question: bool = False
    schema_budget: int = 0
    synonyms: str = ""
    shots: Callable[[Example], Sequence[Example]] | None = None
    system: str = ""


class PromptSet(NamedTuple):
    """Examples whose prompt fits, their prompts in the same order, and (uid, reason) of those left out.

    `pruned` are the uids whose schema was cut down to fit, `faults` lines about descriptions that cannot be read.

    A huge set's are made when they are requested (`text2sql.question_sets.stream`): `streamed` is then its identity,
    and the most tokens that a prompt may have.
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


def compact_style(schema: ShowSchema = RENDERERS["compact"]) -> PromptStyle:
    """Return the style for models made from scratch: few tokens, and SQL alone for an answer."""
    parts = partial(_plain_parts, schema, _compact_question)
    return PromptStyle("compact", schema, parts, _compact_answer, _plain_wrap, True)


def tagged_style(
    hint: str, answer: Callable[[Example], Response], schema: ShowSchema = RENDERERS["compact"]
) -> PromptStyle:
    """Return the style of as few tokens whose answers have a form: the question ends with a `hint` at it."""
    parts = partial(_plain_parts, schema, partial(_tagged_question, hint))
    return PromptStyle("tagged", schema, parts, answer, _plain_wrap)


def chat_style(
    template: PromptTemplate,
    instruction: str,
    answer: Callable[[Example], Response],
    schema: ShowSchema = RENDERERS["ddl"],
    thinking: str = "template",
    begin: str = "",
    date: str = "",
) -> PromptStyle:
    """Return the style of a prompt template's messages, which go through a tokenizer's chat template.

    `instruction` fills its placeholder of that name, `thinking` sets the chat template's switch (`think`, `no_think`),
    `begin` writes the first words of the assistant's turn, and `date` is the chat template's (`render_chat`).
    """
    thinks = thinking == "think"
    parts = partial(_chat_parts, template, schema, {"instruction": instruction, "thinks": thinks})
    system = template.system(thinks=thinks)
    wrap = partial(_chat_wrap, system=system, thinking=THINKING[thinking], begin=begin, date=date)
    return PromptStyle("chat", schema, parts, answer, wrap, system=system)


def _plain_parts(
    show: ShowSchema, ask: Callable[[Example], str], example: Example, schema: Schema | str, values: str
) -> tuple[str, str]:
    schema_text = schema if isinstance(schema, str) else show(example, schema)
    return schema_text + "\n\n", (f"Values in the database: {values}\n" if values else "") + ask(example)


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


def _plain_wrap(
    tokenizer: Tokenizer | None, schema_text: str, question_text: str, shown: Sequence[Shown] = (), /
) -> tuple[str, str]:
    before = "".join(f"{asked}{answer}\n\n" for asked, answer in shown)
    return plain_text(tokenizer, before + schema_text), question_text


def _chat_parts(
    template: PromptTemplate,
    show: ShowSchema,
    fixed: Mapping[str, object],
    example: Example,
    schema: Schema | str,
    values: str,
) -> tuple[str, str]:
    said = {
        "schema": schema if isinstance(schema, str) else show(example, schema),
        "question": example.question,
        "evidence": example.evidence,
        "values": values,
        "dialect": DIALECTS[example.dialect],
    }
    return template.texts({**fixed, **said})


def _chat_wrap(
    tokenizer: Any,
    schema_text: str,
    question_text: str,
    shown: Sequence[Shown] = (),
    /,
    system: str = "",
    thinking: bool | None = None,
    begin: str = "",
    date: str = "",
) -> tuple[str, str]:
    """Render the messages, examples turn by turn, and the assistant's turn, opened and perhaps begun.

    The text is cut where the question's part begins. Templates may trim a message at its ends, never inside, so the cut
    is found by the message.
    """
    messages = chat_messages(system, schema_text + question_text)
    # A template opens the thought of the turn that it begins, and no other.
    first = whole_beginning(render_chat(tokenizer, messages, thinking, "", date), begin) if shown else begin
    turns = [turn for asked, answer in shown for turn in (("user", asked), ("assistant", first + answer))]
    messages[-1:-1] = [{"role": role, "content": text} for role, text in turns]
    full = render_chat(tokenizer, messages, thinking, begin, date)
    start = full.rfind(schema_text + question_text)
    if start < 0:
        raise InputError("the tokenizer's chat template changes the text of a message; use data.prompt=tagged")
    cut = start + len(schema_text)
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
        self.control = ControlTokens(tokenizer)
        self._shield = lru_cache(maxsize=4 * schemas)(self.control.shield)  # a question has four texts
        self._schema_ids = lru_cache(maxsize=schemas)(self._ids)

    def encode(self, example: Example) -> Encoded:
        """Return an example's prompt; raises InputError for a database that cannot be read."""
        schema = shown_schema(example, self.style, self.tokenizer)
        shots = self.style.shots(example) if self.style.shots else ()
        shown = [_shown(shot, self.style, self.control) for shot in shots]
        whole = self._encoded(example, schema, shown, self._schema_ids)
        if self.pruning is None or whole.length <= self.pruning.tokens:
            return whole
        return self._pruned(example, schema, shown, self.pruning) or whole

    def _pruned(self, example: Example, schema: Schema, shown: Sequence[Shown], pruning: Pruning) -> Encoded | None:
        queries = (example.gold_sql, *example.other_golds, example.demonstration)
        used = used_by_all([sql for sql in queries if sql], schema)
        if used is None:
            return None

        def encoded(part: Schema) -> Encoded:
            return self._encoded(example, part, shown, self._ids)._replace(is_pruned=True)

        part = prune(schema, used, pruning.seed, example.uid, lambda part: encoded(part).length <= pruning.tokens)
        return None if part is None else encoded(part)

    def _encoded(
        self, example: Example, schema: Schema, shown: Sequence[Shown], schema_ids: Callable[[str], tuple[int, ...]]
    ) -> Encoded:
        texts = message_texts(example, self.style, schema, self._shield)
        first, second = self.style.wrap(self.tokenizer, *texts, shown)
        return Encoded((bare(first), bare(second)), schema_ids(first), self._ids(second))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.control.encode(text))


def _shown(example: Example, style: PromptStyle, control: ControlTokens) -> Shown:
    """Return an example to show; raw SQL ends with a semicolon, as an answer to be stopped there should."""
    schema = shown_schema(example, style, control.tokenizer)
    message = "".join(message_texts(example, style, schema, control.shield))
    answer = whole_text(shield_answer(style.answer(example), example, control))
    return message, f"{answer.rstrip().rstrip(';')};" if style.answers_raw_sql else answer


# How many characters a token of a schema is taken for where no tokenizer is at hand; Qwen's have 3.9 to 4.1.
_TOKEN_CHARACTERS = 3


def shown_schema(example: Example, style: PromptStyle, tokenizer: Tokenizer | None = None) -> Schema:
    """Return what is shown of the database of an example, with the values that its question names where asked for.

    Without a `tokenizer`, as an endpoint is asked, a token of `schema_budget` is taken for three characters.
    """
    schema = read_schema(example.db_path, example.hide)
    if style.retrieve:
        schema = replace(schema, matched=find_alike(example, style.retrieve, style.synonyms))
    if not style.schema_budget:
        return schema

    def fits(part: Schema) -> bool:
        text = style.show(example, replace(part, matched=()) if style.in_question else part)
        if tokenizer is None:
            return len(text) <= _TOKEN_CHARACTERS * style.schema_budget
        return len(tokenizer.encode(text, add_special_tokens=False)) <= style.schema_budget

    return link(example, schema, fits)


def message_texts(
    example: Example, style: PromptStyle, schema: Schema | None = None, shield: Callable[[str], str] = str
) -> tuple[str, str]:
    """Return the user's message in its two parts, without what the style wraps round them.

    `shield` is applied to what comes from outside (`ControlTokens.shield`).
    """
    schema = shown_schema(example, style) if schema is None else schema
    values = "; ".join(_matched(*match) for match in schema.matched) if style.in_question else ""
    text = style.show(example, replace(schema, matched=()) if values else schema)
    example = replace(example, question=shield(example.question), evidence=shield(example.evidence))
    return style.parts(example, shield(text), shield(values))


def _matched(table: str, column: str, value: str) -> str:
    return f"{quote_name(table)}.{quote_name(column)} = {quote_text(' '.join(value.split()))}"


def prompt_texts(example: Example, style: PromptStyle, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return the schema part and the question part as text, wrapped as the style says."""
    first, second = style.wrap(tokenizer, *message_texts(example, style, shown_schema(example, style, tokenizer)))
    return bare(first), bare(second)


def make_prompt(example: Example, style: PromptStyle, tokenizer: Tokenizer, max_tokens: int) -> Prompt | None:
    """Tokenise one prompt; None when it is longer than `max_tokens`."""
    prompts = make_prompts([example], style, tokenizer, max_tokens)
    return prompts.prompts[0] if prompts.prompts else None


def make_prompts(
    examples: Sequence[Example],
    style: PromptStyle,
    tokenizer: Tokenizer,
    max_tokens: int,
    pruning: Pruning | None = None,
    tick: Callable[[int], None] | None = None,
) -> PromptSet:
    """Tokenise the prompts of many examples, a schema once; those longer than `max_tokens` are left out with a reason.

    `pruning` cuts down the schemas of long ones first, which is for training alone: it looks at the golds. `tick` is
    told how many are made. Raises InputError for a database that cannot be read.
    """
    encoder = Encoder(style, tokenizer, pruning)
    made: list[Prompt | None] = [None] * len(examples)
    pruned: set[str] = set()
    faults: dict[str, None] = {}
    # Database by database: what is known of one is not kept for long where there are thousands.
    order = sorted(range(len(examples)), key=lambda i: examples[i].db_path)
    for db_path, members in groupby(enumerate(order), key=lambda pair: examples[pair[1]].db_path):
        for done, i in members:
            if tick:
                tick(done)
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
