"""Supervised batches: questions on one database share its schema, which runs once for all of them.

A row is a schema and up to Q of its questions, each followed by its answer. The schema is the prompt, and (question,
answer) is the completion; only the answer is trained on.
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
    """A completion and its loss mask `loss_mask`, one bool per token.

    `names` are the tokens of its SQL, which contains the copied names and values.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    names: frozenset[int] = frozenset()


class SftRow(NamedTuple):
    """A shared prompt and its answers."""

    prompt: tuple[int, ...]
    answers: tuple[SftCompletion, ...]


class SftBatch(NamedTuple):
    """Tokenised examples: all examples of a database share `schemas[i]`; `answers[i]` ends with the end token.

    With several `forms` per example, item i is trained in epochs e with e % forms == `turns[i]`.
    """

    schemas: tuple[tuple[int, ...], ...]
    answers: tuple[SftCompletion, ...]
    skipped: tuple[tuple[str, str], ...]
    turns: tuple[int, ...]
    forms: int = 1

    def rows(self, indices: Sequence[Sequence[int]]) -> list[SftRow]:
        """Build rows from groups of indices that share a schema."""
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

    With several styles, an example has one form per epoch, in turn; its id determines the first. `pruning` is as in
    `make_prompts`. `on_progress` is called with the number of examples done.
    """
    schemas, answers, skipped, turns, lengths = [], [], [], [], []
    encoders = [Encoder(style, tokenizer, pruning, _MAX_CACHED_SCHEMAS) for style in styles]
    shared_schemas: dict[tuple[int, ...], tuple[int, ...]] = {}
    for index, (example, (number, style)) in enumerate(product(examples, enumerate(styles))):
        if on_progress:
            on_progress(index // len(styles))
        encoded = encoders[number].encode(example)
        schema, question = shared_schemas.setdefault(encoded.schema_ids, encoded.schema_ids), encoded.question_ids
        answer = make_answer(example, question, style.answer(example), encoders[number].control, end_token)
        lengths.append((len(schema) + len(question), len(answer.token_ids)))
        if lengths[-1][0] > max_prompt:
            skipped.append((example.uid, f"prompt over {max_prompt} tokens"))
        elif lengths[-1][1] > max_completion:
            skipped.append((example.uid, f"question and answer over {max_completion} tokens"))
        else:
            schemas.append(schema)
            answers.append(answer)
            turns.append((rank(example.uid, "form") + number) % len(styles))
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
        new = control.encode(text)
        ids += new
        loss_mask += [role == "assistant"] * len(new)
    names = frozenset(control.encode(control.escape(" " + target_sql(example))))
    return SftCompletion((*ids, end_token), (*loss_mask, True), names)


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the ids of a text without special tokens."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def word_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of words and parts of words, without SQL keywords (upper case) and punctuation."""
    texts = ((i, tokenizer.decode([i])) for i in range(len(tokenizer)))
    return tuple(i for i, text in texts if text.isalpha() and text.isascii() and not text.isupper())


def shuffle_identifiers(row: SftRow, word_ids: tuple[int, ...], rng: np.random.Generator) -> SftRow:
    """Replace word tokens of a row's names and values by random ones, consistently in schema, questions and answers.

    The model can then only copy names from the schema and the question, not recall them from other databases. Tokens
    of the schema and of the gold SQL are replaced wherever they occur; tokens of the explanation and of the tags
    around the SQL only if they are in `word_ids`.
    """
    used = {*word_ids} & {*row.prompt, *(token for answer in row.answers for token in answer.names)}
    chosen = rng.permutation(len(word_ids))[: len(used)]
    renamed = {old: word_ids[new] for old, new in zip(sorted(used), chosen, strict=True)}

    def apply(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(renamed.get(token, token) for token in tokens)

    return SftRow(apply(row.prompt), tuple(a._replace(token_ids=apply(a.token_ids)) for a in row.answers))


def include_questions_in_loss(row: SftRow) -> SftRow:
    """Include the questions in the loss, for a model that is trained from scratch."""
    return row._replace(answers=tuple(a._replace(loss_mask=(True,) * len(a.token_ids)) for a in row.answers))


# Map the lengths of a schema, and of a question with its answer, to the width of their batch.
Width = Callable[[int, int], int]


class RowOrder:
    """The order of batches over epochs, as a function of (seed, number).

    A batch has up to `databases` rows of up to `questions` examples of equal width, to limit padding; `width` returns
    the width of (schema, answer). Every example occurs once per epoch.
    """

    def __init__(self, batch: SftBatch, questions: int, databases: int, seed: int, width: Width) -> None:
        members: list[dict[tuple[int, tuple[int, ...]], list[int]]] = [{} for _ in range(batch.forms)]
        for i, (schema, answer, turn) in enumerate(zip(batch.schemas, batch.answers, batch.turns, strict=True)):
            members[turn].setdefault((width(len(schema), len(answer.token_ids)), schema), []).append(i)
        self._members = [{key: tuple(numbers) for key, numbers in sorted(by_schema.items())} for by_schema in members]
        self._questions = questions
        self._databases = databases
        self._seed = seed
        self._epoch = lru_cache(maxsize=2)(self._shuffle)
        # Epochs whose examples are in the same forms have the same number of batches.
        self._ends = list(accumulate(len(self._epoch(epoch)) for epoch in range(batch.forms)))

    def num_batches(self, epochs: int) -> int:
        """Return the number of batches in the first `epochs` epochs."""
        rounds, rest = divmod(epochs, len(self._ends))
        return rounds * self._ends[-1] + (self._ends[rest - 1] if rest else 0)

    def batch(self, number: int) -> list[tuple[int, ...]]:
        """Return batch `number` (from 0): rows of example indices."""
        rounds, offset = divmod(number, self._ends[-1])
        turn = bisect_right(self._ends, offset)
        return self._epoch(rounds * len(self._ends) + turn)[offset - (self._ends[turn - 1] if turn else 0)]

    def _shuffle(self, epoch: int) -> list[list[tuple[int, ...]]]:
        """Split shuffled examples into rows of similar size and shuffled rows into batches; shuffle the batches."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((self._seed, epoch))))
        rows: dict[int, list[tuple[int, ...]]] = {}
        for (width, _), numbers in self._members[epoch % len(self._members)].items():
            shuffled = [numbers[i] for i in _permutation(rng, len(numbers))]
            parts = -(-len(numbers) // self._questions)
            bounds = [len(numbers) * part // parts for part in range(parts + 1)]
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
