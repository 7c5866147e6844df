"""The data set of the supervised phase: training questions as tokens, in the order of their batches, some held out.

A *trace* is a teacher's answer to a training question, from the file `data.traces`; it replaces the question's target.
A *form* is the rendering of an example in one prompt style and answer format; `sft.formats` can select several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_sql.config import DataConfig, SftConfig
from jaxrl_sql.text2sql.files.shares import hold_out
from jaxrl_sql.text2sql.files.traces import load_traces, with_traces
from jaxrl_sql.text2sql.prompts.prompts import Pruning
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.schema import Schema
from jaxrl_sql.training.batching.pack import width_by_answer, width_by_schema
from jaxrl_sql.training.batching.sft_batches import (
    RowOrder,
    SftBatch,
    SftRow,
    encode,
    include_questions_in_loss,
    make_sft_batch,
    shuffle_identifiers,
)
from jaxrl_sql.types import Example, Tokenizer

_NO_QUESTION = "a trace without a training question"


class SftDataset(NamedTuple):
    """The training and the held-out examples, each with the order of its batches.

    `max_schema_tokens` is the number of tokens of the longest schema. `skipped` has (uid, reason) of examples and
    traces that are not used. `format_tokens` are the ids of the tokens of tags and instructions, which every prompt or
    answer of a style contains.
    """

    train: SftBatch
    order: RowOrder
    held_out: SftBatch | None
    held_out_order: RowOrder | None
    max_schema_tokens: int
    skipped: tuple[tuple[str, str], ...]
    format_tokens: frozenset[int]

    def held_out_batches(self) -> list[list[SftRow]]:
        """Return the batches of the held-out examples, each example once."""
        if self.held_out is None or self.held_out_order is None:
            return []
        return [
            self.held_out.rows(self.held_out_order.batch(i)) for i in range(self.held_out_order.num_batches(epochs=1))
        ]


def make_sft_dataset(
    cfg: SftConfig,
    data: DataConfig,
    seed: int,
    examples: Sequence[Example],
    styles: Sequence[PromptStyle],
    tokenizer: Tokenizer,
    end_token: int,
    on_progress: Callable[[int], None] | None = None,
) -> SftDataset:
    """Tokenise the training questions, and separately the share `sft.held_out` of them that is held out.

    `styles` are the prompt styles of the forms, and `end_token` is the last token of every target. `on_progress` is
    called with the number of examples done, first of the training set, then of the held-out set. Raises InputError if
    no example of a set fits the maximum lengths.
    """
    max_prompt_tokens = data.max_prompt_tokens
    row_width = width_by_schema if cfg.packing else width_by_answer
    pruning = Pruning(max_prompt_tokens, seed) if data.prune else None
    traces = load_traces(data.traces) if data.traces else {}

    def make(selected: Sequence[Example]) -> tuple[SftBatch, RowOrder]:
        targets = with_traces(selected, traces)
        if cfg.traces == "sql":  # targets without reasoning
            targets = [dataclasses.replace(example, reasoning="") for example in targets]
        supervised = make_sft_batch(
            targets, styles, tokenizer, end_token, max_prompt_tokens, cfg.max_completion_tokens, pruning, on_progress
        )
        return supervised, RowOrder(supervised, cfg.questions, cfg.databases, seed, row_width)

    format_tokens = format_tokens_of(examples[0], styles, tokenizer)
    unknown_ids = sorted(traces.keys() - {example.uid for example in examples})
    examples, held_out_examples = hold_out(examples, cfg.held_out)
    train, order = make(examples)
    held_out, held_out_order = make(held_out_examples) if held_out_examples else (None, None)
    schemas = (*train.schemas, *(held_out.schemas if held_out else ()))
    skipped = (*train.skipped, *(held_out.skipped if held_out else ()), *((uid, _NO_QUESTION) for uid in unknown_ids))
    max_schema_tokens = max(len(schema) for schema in schemas)
    return SftDataset(train, order, held_out, held_out_order, max_schema_tokens, skipped, format_tokens)


def format_tokens_of(example: Example, styles: Sequence[PromptStyle], tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that every prompt and answer of the styles contains, such as those of tags and instructions.

    They are the tokens of a prompt and answer with an empty question, no thought and a trivial query.
    """
    blank = dataclasses.replace(
        example, question="", evidence="", gold_sql="SELECT 1", demonstration="", reasoning="", dialect="sqlite"
    )
    texts: list[str] = []
    for style in styles:
        answer = style.answer(blank)
        question = style.parts(blank, Schema(()), "")[1]
        texts += [question, *([answer] if isinstance(answer, str) else (text for _, text in answer))]
    return frozenset(token for text in texts for token in encode(tokenizer, text))


def rows_of_step(
    cfg: SftConfig, seed: int, sft_dataset: SftDataset, word_ids: tuple[int, ...], step: int
) -> list[SftRow]:
    """Return the rows of a step, counted from 0, as a function of (seed, step).

    The share `sft.shuffle_identifiers` of them have their names replaced by random tokens of `word_ids`.
    """
    rows = sft_dataset.train.rows(sft_dataset.order.batch(step))
    rng = np.random.default_rng((seed, step))
    rows = [shuffle_identifiers(row, word_ids, rng) if rng.random() < cfg.shuffle_identifiers else row for row in rows]
    return [include_questions_in_loss(row) for row in rows] if cfg.loss_on == "text" else rows
