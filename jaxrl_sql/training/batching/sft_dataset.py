"""The data set of the supervised phase: training questions as tokens, in the order of their batches, some held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_sql.config import DataConfig, SftConfig
from jaxrl_sql.text2sql.files.shares import hold_out
from jaxrl_sql.text2sql.files.traces import load_traces, with_traces
from jaxrl_sql.text2sql.prompts.prompts import PromptStyle, Pruning
from jaxrl_sql.text2sql.schema import Schema
from jaxrl_sql.training.batching.pack import by_answer, by_schema
from jaxrl_sql.training.batching.sft_batches import (
    RowOrder,
    SftBatch,
    SftRow,
    encode,
    learn_questions,
    make_sft_batch,
    shuffle_identifiers,
)
from jaxrl_sql.types import Example, Tokenizer

_NO_QUESTION = "a trace of no question that is taught"


class SftDataset(NamedTuple):
    """The training and the held-out examples, each with the order of its batches, and the longest schema of all.

    `form` are the tokens that every answer of a form contains: its tags and its instructions.
    """

    taught: SftBatch
    order: RowOrder
    held: SftBatch | None
    held_order: RowOrder | None
    longest: int
    skipped: tuple[tuple[str, str], ...]
    form: frozenset[int]

    def held_rows(self) -> list[list[SftRow]]:
        """Return the batches of the held-out examples."""
        if self.held is None or self.held_order is None:
            return []
        return [self.held.rows(self.held_order.batch(i)) for i in range(self.held_order.batches(1))]


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
    """Tokenise the training questions, held-out ones separately.

    `on_progress` is called with the number of examples done, first of the training set, then of the held-out set.
    Raises InputError if no example of a set fits.
    """
    longest, width = data.max_prompt_tokens, by_schema if cfg.packing else by_answer
    pruning = Pruning(longest, seed) if data.prune else None
    traces = load_traces(data.traces) if data.traces else {}

    def made(chosen: Sequence[Example]) -> tuple[SftBatch, RowOrder]:
        shown = with_traces(chosen, traces)
        if cfg.traces == "sql":
            shown = [dataclasses.replace(example, reasoning="") for example in shown]
        supervised = make_sft_batch(
            shown, styles, tokenizer, end_token, longest, cfg.max_completion_tokens, pruning, on_progress
        )
        return supervised, RowOrder(supervised, cfg.questions, cfg.databases, seed, width)

    form = form_tokens(examples[0], styles, tokenizer)
    strange = sorted(traces.keys() - {example.uid for example in examples})
    examples, kept_back = hold_out(examples, cfg.held_out)
    taught, order = made(examples)
    held, held_order = made(kept_back) if kept_back else (None, None)
    schemas = (*taught.schemas, *(held.schemas if held else ()))
    skipped = (*taught.skipped, *(held.skipped if held else ()), *((uid, _NO_QUESTION) for uid in strange))
    return SftDataset(taught, order, held, held_order, max(len(schema) for schema in schemas), skipped, form)


def form_tokens(example: Example, styles: Sequence[PromptStyle], tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens of each style's question and answer for an empty question and thought."""
    blank = dataclasses.replace(
        example, question="", evidence="", gold_sql="SELECT 1", demonstration="", reasoning="", dialect="sqlite"
    )
    texts: list[str] = []
    for style in styles:
        answer = style.answer(blank)
        question = style.parts(blank, Schema(()), "")[1]
        texts += [question, *([answer] if isinstance(answer, str) else (text for _, text in answer))]
    return frozenset(token for text in texts for token in encode(tokenizer, text))


def rows_of(cfg: SftConfig, seed: int, sft_dataset: SftDataset, word_ids: tuple[int, ...], step: int) -> list[SftRow]:
    """Return the rows of a step, some with their words renamed, as a function of (seed, step)."""
    rows = sft_dataset.taught.rows(sft_dataset.order.batch(step))
    rng = np.random.default_rng((seed, step))
    rows = [shuffle_identifiers(row, word_ids, rng) if rng.random() < cfg.shuffle_identifiers else row for row in rows]
    return [learn_questions(row) for row in rows] if cfg.loss_on == "text" else rows
