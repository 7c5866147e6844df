"""Prompts: a schema part, which all questions on a database share, and a question part.

Both parts are tokenized separately and their ids concatenated; the concatenated text is never encoded again. Questions
on one database thus share exactly the same prefix ids, and the policy computes the prefix only once for all of them.
The style (`styles`) defines the parts and their wrapping by a tokenizer's chat template.

Four options make the schema part specific to a question, so that it is not shared. Values that the question names may
be among a column's examples. Few-shot examples precede the schema. Schema linking (`schema.link`) selects tables and
columns if a schema exceeds its budget of tokens. Pruning (`schema.prune`) removes columns, in training only, if a
prompt would exceed its maximum length.

Control tokens, such as `<|im_end|>`, in questions and schemas are escaped: a mark in their name has the effect that
they are tokenized as ordinary text (`runtime.control_tokens`). `strip_marks` removes the marks from texts for output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from statistics import median
from typing import NamedTuple, Protocol

from jaxrl_sql.runtime.control_tokens import ControlTokens, strip_marks
from jaxrl_sql.text2sql.env.turns import TAGS
from jaxrl_sql.text2sql.prompts.dialects import escape_answer
from jaxrl_sql.text2sql.prompts.styles import GIVEN, Parts, PromptStyle, Shown
from jaxrl_sql.text2sql.schema.describe import read_descriptions
from jaxrl_sql.text2sql.schema.link import link
from jaxrl_sql.text2sql.schema.prune import find_columns_of_all, prune
from jaxrl_sql.text2sql.schema.quote import quote_text
from jaxrl_sql.text2sql.schema.read import Schema, read_schema
from jaxrl_sql.text2sql.schema.render import quote_of
from jaxrl_sql.text2sql.schema.synonyms import find_alike
from jaxrl_sql.types import Example, Prompt, Tokenizer, response_text


class Escape(Protocol):
    """Escapes the control tokens in an external text, except for those in `exclude` (`ControlTokens.escape`)."""

    def __call__(self, text: str, exclude: frozenset[str] = ..., /) -> str:
        """Return the escaped text."""
        ...


def _unchanged(text: str, _exclude: frozenset[str] = frozenset(), /) -> str:
    return text


class PromptSet(NamedTuple):
    """Examples whose prompt fits, their prompts in the same order, and (uid, reason) of skipped ones.

    `pruned` has the uids whose schema was pruned to fit, and `errors` lines about unreadable column descriptions.

    The prompts of a huge set are created on access (`text2sql.question_sets.stream`). `streamed` then has an identifier
    of the set's content and the maximum number of tokens per prompt; otherwise it is None. `measured` has the median
    and maximum number of tokens of all prompts, including the skipped ones; None if they are not known.
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


class Pruning(NamedTuple):
    """Prune the schema of prompts with more than `tokens` tokens; only for training.

    `seed` selects the random columns that stay.
    """

    tokens: int
    seed: int


class EncodedPrompt(NamedTuple):
    """The schema part and the question part of a prompt as texts and token ids, and whether its schema was pruned."""

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
        # Four texts are escaped per prompt: schema, question, evidence and difficulty.
        self._escape = lru_cache(maxsize=4 * schemas)(self.control.escape)
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
        """Return the prompt with a pruned schema; None if the golds cannot be parsed or their columns do not fit."""
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
        """Return the prompt with a schema; `schema_ids` tokenizes the schema part, with a cache or without."""
        parts = message_texts(example, self.style, schema, self._escape)
        schema_text, question_text = self.style.wrap(self.tokenizer, parts, shown)
        return EncodedPrompt(
            (strip_marks(schema_text), strip_marks(question_text)), schema_ids(schema_text), self._ids(question_text)
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.control.encode(text))


def _render_shot(example: Example, style: PromptStyle, control: ControlTokens) -> Shown:
    """Return the user's message and the answer of a few-shot example.

    An answer of raw SQL gets a final semicolon, at which generation can stop.
    """
    schema = select_schema(example, style, control.tokenizer)
    parts = message_texts(example, style, schema, control.escape)
    answer = response_text(escape_answer(style.answer(example), example, control))
    answer_text = f"{answer.rstrip().rstrip(';')};" if style.answers_raw_sql else answer
    return parts.schema + parts.question, answer_text


# The assumed number of characters per schema token without a tokenizer; Qwen's tokens have 3.9 to 4.1.
_TOKEN_CHARACTERS = 3


def select_schema(example: Example, style: PromptStyle, tokenizer: Tokenizer | None = None) -> Schema:
    """Return the schema in an example's prompt, reduced to the style's `schema_budget` of tokens.

    If the style retrieves values, `matched` has those that the question names. Without a `tokenizer`, as for endpoints,
    a token counts as three characters.
    """
    schema = read_schema(example.db_path, example.hide)
    if style.retrieve:
        schema = replace(schema, matched=find_alike(example, style.retrieve, style.synonyms))
    if not style.schema_budget:
        return schema

    def fits(part: Schema) -> bool:
        # With `in_question` the values are not part of the schema's text.
        text = style.show(example, replace(part, matched=()) if style.in_question else part)
        if tokenizer is None:
            return len(text) <= _TOKEN_CHARACTERS * style.schema_budget
        return len(tokenizer.encode(text, add_special_tokens=False)) <= style.schema_budget

    return link(example, schema, fits)


def message_texts(
    example: Example, style: PromptStyle, schema: Schema | None = None, escape: Escape = _unchanged
) -> Parts:
    """Return the texts of a prompt, without the style's wrapping.

    `escape` is applied to external text. In the prompt that a row of the data brings with it (`data.prompt=given`), the
    tags of answers, such as `<think>`, are not escaped.
    """
    if style.name == GIVEN:
        messages = tuple((role, escape(text, TAGS)) for role, text in example.messages)
        return style.parts(replace(example, messages=messages), "", "")
    schema = select_schema(example, style) if schema is None else schema
    values = "; ".join(_format_match(quote_of(schema), *match) for match in schema.matched) if style.in_question else ""
    text = style.show(example, replace(schema, matched=()) if values else schema)
    example = replace(
        example,
        question=escape(example.question),
        evidence=escape(example.evidence),
        difficulty=escape(example.difficulty),
    )
    return style.parts(example, escape(text), escape(values))


def _format_match(quote: Callable[[str], str], table: str, column: str, value: str) -> str:
    """Return a value that the question names, such as `country.name = 'France'`."""
    return f"{quote(table)}.{quote(column)} = {quote_text(' '.join(value.split()))}"


def prompt_texts(example: Example, style: PromptStyle, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return the schema part and the question part as text, with the style's wrapping."""
    schema_text, question_text = style.wrap(
        tokenizer, message_texts(example, style, select_schema(example, style, tokenizer)), ()
    )
    return strip_marks(schema_text), strip_marks(question_text)


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
