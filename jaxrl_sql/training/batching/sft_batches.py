"""Supervised batches: questions on one database share its schema, which the model computes once for all of them.

A row is a schema and up to `sft.questions` of its questions, each followed by its answer. The schema is the prompt, and
(question, answer) is the completion; only the answer is trained on, unless `sft.loss_on=text`.

A *form* is the rendering of an example in one prompt style and answer format. With several forms (`sft.formats`), each
example is in another form in the next epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np

from jaxrl_sql.runtime.control_tokens import ControlTokens
from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.text2sql.prompts.dialects import escape_answer, target_sql
from jaxrl_sql.text2sql.prompts.prompts import Encoder, Pruning
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.types import Example, InputError, Response, Tokenizer

# Schemas whose token ids are cached per style: questions of a database need not be consecutive.
_MAX_CACHED_SCHEMAS = 512


class SftCompletion(NamedTuple):
    """A question with its answer as tokens; `loss_mask` is True for the tokens in the loss.

    `sql_tokens` are the ids that occur in the answer's SQL. They include all names and values that the SQL copies from
    the schema and the question.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    sql_tokens: frozenset[int] = frozenset()


class SftRow(NamedTuple):
    """The tokens of a schema, and the completions of its questions."""

    prompt: tuple[int, ...]
    answers: tuple[SftCompletion, ...]


class SftBatch(NamedTuple):
    """Tokenised examples: `schemas[i]` and `answers[i]` belong to item i, an example in one form.

    Items on one database have the same schema, as one tuple in memory. `skipped` has (uid, reason) of examples that do
    not fit. With `num_forms` forms per example, item i is trained in the epochs e with e % num_forms == `turns[i]`.
    """

    schemas: tuple[tuple[int, ...], ...]
    answers: tuple[SftCompletion, ...]
    skipped: tuple[tuple[str, str], ...]
    turns: tuple[int, ...]
    num_forms: int = 1

    def rows(self, indices: Sequence[Sequence[int]]) -> list[SftRow]:
        """Return a row for each sequence of item indices; the items of a sequence must share a schema."""
        return [SftRow(self.schemas[row[0]], tuple(self.answers[i] for i in row)) for row in indices]


def make_sft_batch(
    examples: Sequence[Example],
    styles: Sequence[PromptStyle],
    tokenizer: Tokenizer,
    end_token: int,
    max_prompt: int,
    max_completion: int,
    pruning: Pruning | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SftBatch:
    """Tokenise examples with their target answers; skip those that exceed either length in tokens, with a reason.

    Each style is a form of the examples. An example's id determines its form in the first epoch; the others follow in
    turn. `pruning` is as in `make_prompts`. `on_progress` is called with the number of examples done.
    """
    schemas, answers, skipped, turns, lengths = [], [], [], [], []
    encoders = [Encoder(style, tokenizer, pruning, _MAX_CACHED_SCHEMAS) for style in styles]
    shared_schemas: dict[tuple[int, ...], tuple[int, ...]] = {}  # one tuple in memory per distinct schema
    for index, (example, (form, style)) in enumerate(product(examples, enumerate(styles))):
        if on_progress:
            on_progress(index // len(styles))
        encoded = encoders[form].encode(example)
        schema, question = shared_schemas.setdefault(encoded.schema_ids, encoded.schema_ids), encoded.question_ids
        answer = make_answer(example, question, style.answer(example), encoders[form].control, end_token)
        lengths.append((len(schema) + len(question), len(answer.token_ids)))
        if lengths[-1][0] > max_prompt:
            skipped.append((example.uid, f"prompt over {max_prompt} tokens"))
        elif lengths[-1][1] > max_completion:
            skipped.append((example.uid, f"question and answer over {max_completion} tokens"))
        else:
            schemas.append(schema)
            answers.append(answer)
            turns.append((rank(example.uid, "form") + form) % len(styles))
    if not answers:
        prompt, completion = map(min, zip(*lengths, strict=True)) if lengths else (0, 0)
        raise InputError(
            f"none of {len(examples)} examples fits: prompts have at least {prompt} tokens "
            f"(data.max_prompt_tokens={max_prompt}), and a question with its instructions and answer at least "
            f"{completion} (sft.max_completion_tokens={max_completion})"
        )
    return SftBatch(tuple(schemas), tuple(answers), tuple(skipped), tuple(turns), len(styles))


def make_answer(
    example: Example, question: tuple[int, ...], response: Response, control: ControlTokens, end_token: int
) -> SftCompletion:
    """Tokenise a response after the question's tokens; the loss covers the assistant's turns and the end token.

    Each turn is tokenised separately, as in a rollout with an environment. Only the last turn ends with the end token;
    the others end with their stop string.
    """
    response = escape_answer(response, example, control)
    turns = [("assistant", response)] if isinstance(response, str) else response
    ids, loss_mask = list(question), [False] * len(question)
    for role, text in turns:
        turn_ids = control.encode(text)
        ids += turn_ids
        loss_mask += [role == "assistant"] * len(turn_ids)
    sql_tokens = frozenset(control.encode(control.escape(" " + target_sql(example))))
    return SftCompletion((*ids, end_token), (*loss_mask, True), sql_tokens)


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the ids of a text without special tokens."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def word_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of tokens that are words or parts of words, without SQL keywords (upper case) and punctuation."""
    texts = ((i, tokenizer.decode([i])) for i in range(len(tokenizer)))
    return tuple(i for i, text in texts if text.isalpha() and text.isascii() and not text.isupper())


def shuffle_identifiers(row: SftRow, word_ids: tuple[int, ...], rng: np.random.Generator) -> SftRow:
    """Replace word tokens of a row's names and values by random ones, consistently in schema, questions and answers.

    The model can then only copy names from the schema and the question, not recall them from other databases.
    `word_ids` are the tokens that may be replaced, and their replacements. Those that occur in the schema or in the
    SQL of an answer are replaced wherever they occur in the row, also in the reasoning.
    """
    replaced = {*word_ids} & {*row.prompt, *(token for answer in row.answers for token in answer.sql_tokens)}
    chosen = rng.permutation(len(word_ids))[: len(replaced)]
    replacements = {old: word_ids[new] for old, new in zip(sorted(replaced), chosen, strict=True)}

    def replace(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(replacements.get(token, token) for token in tokens)

    return SftRow(replace(row.prompt), tuple(a._replace(token_ids=replace(a.token_ids)) for a in row.answers))


def include_questions_in_loss(row: SftRow) -> SftRow:
    """Include the questions in the loss, for a model that is trained from scratch."""
    return row._replace(answers=tuple(a._replace(loss_mask=(True,) * len(a.token_ids)) for a in row.answers))


# Maps the tokens of a schema, and of a question with its answer, to a padded length (`pack.width_by_answer`). Rows of a
# batch have equal padded lengths.
RowWidth = Callable[[int, int], int]


class RowOrder:
    """The order of batches over epochs, as a function of the seed and the index of the batch.

    A batch has up to `databases` rows of up to `questions` examples each. Its examples have equal padded lengths by
    `row_width`, which limits padding. Every example occurs once per epoch.
    """

    def __init__(self, batch: SftBatch, questions: int, databases: int, seed: int, row_width: RowWidth) -> None:
        # For each turn, the item indices by (padded length, schema).
        members: list[dict[tuple[int, tuple[int, ...]], list[int]]] = [{} for _ in range(batch.num_forms)]
        for i, (schema, answer, turn) in enumerate(zip(batch.schemas, batch.answers, batch.turns, strict=True)):
            members[turn].setdefault((row_width(len(schema), len(answer.token_ids)), schema), []).append(i)
        self._members = [{key: tuple(indices) for key, indices in sorted(of_turn.items())} for of_turn in members]
        self._questions = questions
        self._databases = databases
        self._seed = seed
        self._epoch = lru_cache(maxsize=2)(self._shuffle)
        # The number of batches until the end of each of the first `num_forms` epochs. Later epochs repeat their forms
        # and so their numbers of batches.
        self._ends = list(accumulate(len(self._epoch(epoch)) for epoch in range(batch.num_forms)))

    def num_batches(self, epochs: int) -> int:
        """Return the number of batches in the first `epochs` epochs."""
        cycles, remaining_epochs = divmod(epochs, len(self._ends))
        return cycles * self._ends[-1] + (self._ends[remaining_epochs - 1] if remaining_epochs else 0)

    def batch(self, index: int) -> list[tuple[int, ...]]:
        """Return the batch of an index, counted from 0 over all epochs: rows of item indices for `SftBatch.rows`."""
        cycles, offset = divmod(index, self._ends[-1])
        turn = bisect_right(self._ends, offset)
        return self._epoch(cycles * len(self._ends) + turn)[offset - (self._ends[turn - 1] if turn else 0)]

    def _shuffle(self, epoch: int) -> list[list[tuple[int, ...]]]:
        """Split shuffled examples into rows of similar size and shuffled rows into batches; shuffle the batches."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((self._seed, epoch))))
        rows: dict[int, list[tuple[int, ...]]] = {}
        for (width, _), indices in self._members[epoch % len(self._members)].items():
            shuffled = [indices[i] for i in _permutation(rng, len(indices))]
            num_rows = -(-len(indices) // self._questions)
            bounds = [len(indices) * row // num_rows for row in range(num_rows + 1)]
            rows.setdefault(width, []).extend(tuple(shuffled[a:b]) for a, b in pairwise(bounds))
        batches = []
        for rows_of_width in rows.values():
            shuffled_rows = [rows_of_width[i] for i in _permutation(rng, len(rows_of_width))]
            batches += [
                shuffled_rows[start : start + self._databases]
                for start in range(0, len(shuffled_rows), self._databases)
            ]
        return [batches[i] for i in _permutation(rng, len(batches))]


def _permutation(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.argsort(rng.random(n), kind="stable")
