"""The supervised batches: questions on one database share its schema, which is then run once for all of them.

A row is a schema and up to Q of its questions, each followed by its answer. The schema takes the place of the prompt
and (question, answer) that of the completion, of which only the answer is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxrl_sql.data.prompts import PromptStyle, Tokenizer, make_prompt_parts
from jaxrl_sql.types import Example, InputError


class Answer(NamedTuple):
    """A completion whose last `trained` tokens are learned; those before them are only read."""

    token_ids: tuple[int, ...]
    trained: int


class Row(NamedTuple):
    """A shared prompt and what follows it."""

    prompt: tuple[int, ...]
    answers: tuple[Answer, ...]


class Supervised(NamedTuple):
    """Tokenised examples: `schemas[i]` is shared by all of its database, `answers[i]` ends with the end token."""

    schemas: tuple[tuple[int, ...], ...]
    answers: tuple[Answer, ...]
    skipped: tuple[tuple[str, str], ...]

    def rows(self, indices: Sequence[Sequence[int]]) -> list[Row]:
        """Build rows from groups of indices that share a schema."""
        return [Row(self.schemas[group[0]], tuple(self.answers[i] for i in group)) for group in indices]


def supervise(
    examples: Sequence[Example],
    style: PromptStyle,
    tokenizer: Tokenizer,
    end_token: int,
    max_prompt: int,
    max_completion: int,
) -> Supervised:
    """Tokenise examples and the answers they teach; leave out, with a reason, what exceeds either length in tokens."""
    schemas, answers, skipped = [], [], []
    for example in examples:
        schema, question, answer = make_prompt_parts(example, style, tokenizer)
        learned = (*answer, end_token)
        if len(schema) + len(question) > max_prompt:
            skipped.append((example.uid, f"prompt over {max_prompt} tokens"))
        elif len(question) + len(learned) > max_completion:
            skipped.append((example.uid, f"question and answer over {max_completion} tokens"))
        else:
            schemas.append(schema)
            answers.append(Answer((*question, *learned), len(learned)))
    if not answers:
        raise InputError(f"none of {len(examples)} examples fits {max_prompt} + {max_completion} tokens")
    return Supervised(tuple(schemas), tuple(answers), tuple(skipped))


def word_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that are words or parts of words, not SQL keywords (which are upper case) nor punctuation."""
    texts = ((i, tokenizer.decode([i])) for i in range(len(tokenizer)))
    return tuple(i for i, text in texts if text.isalpha() and text.isascii() and not text.isupper())


def rename_words(row: Row, words: tuple[int, ...], rng: np.random.Generator) -> Row:
    """Replace the word tokens of a row's names and values by random others, alike in schema, questions and answers.

    What is asked stays the same up to its names, which can now only be copied from the schema and the question, not
    remembered from other databases. The replaced tokens are those of the schema and of the learned answers.
    """
    known = frozenset(words)
    used = {token for token in row.prompt if token in known}
    used |= {token for answer in row.answers for token in answer.token_ids[-answer.trained :] if token in known}
    drawn = rng.permutation(len(words))[: len(used)]
    renamed = {old: words[new] for old, new in zip(sorted(used), drawn, strict=True)}

    def apply(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(renamed.get(token, token) for token in tokens)

    return Row(apply(row.prompt), tuple(Answer(apply(ids), trained) for ids, trained in row.answers))


def whole(row: Row) -> Row:
    """Learn the questions as well as the answers: how a model made from scratch comes to its language."""
    return row._replace(answers=tuple(answer._replace(trained=len(answer.token_ids)) for answer in row.answers))


class RowOrder:
    """The order of batches, epoch after epoch, as a function of (seed, number).

    A batch is up to `databases` rows of up to `questions` examples whose lengths fall into the same bucket of `width`,
    so that little of it is padding. Every example comes once an epoch.
    """

    def __init__(
        self, taught: Supervised, questions: int, databases: int, seed: int, width: Callable[[int], int]
    ) -> None:
        members: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for i, (schema, answer) in enumerate(zip(taught.schemas, taught.answers, strict=True)):
            members.setdefault((width(len(answer.token_ids)), schema), []).append(i)
        self._members = {key: tuple(group) for key, group in sorted(members.items())}
        self._questions = questions
        self._databases = databases
        self._seed = seed
        self._epoch = lru_cache(maxsize=2)(self._shuffle)
        self.batches_per_epoch = len(self._epoch(0))

    def batch(self, number: int) -> list[tuple[int, ...]]:
        """Return batch `number` (from 0): rows of example indices."""
        epoch, offset = divmod(number, self.batches_per_epoch)
        return self._epoch(epoch)[offset]

    def _shuffle(self, epoch: int) -> list[list[tuple[int, ...]]]:
        """Cut shuffled examples into rows of nearly equal size, shuffled rows into batches, and shuffle the batches."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((self._seed, epoch))))
        rows: dict[int, list[tuple[int, ...]]] = {}
        for (width, _), group in self._members.items():
            shuffled = [group[i] for i in _shuffled(rng, len(group))]
            parts = -(-len(group) // self._questions)
            cuts = [len(group) * part // parts for part in range(parts + 1)]
            rows.setdefault(width, []).extend(tuple(shuffled[a:b]) for a, b in pairwise(cuts))
        batches = []
        for found in rows.values():
            mixed = [found[i] for i in _shuffled(rng, len(found))]
            batches += [mixed[at : at + self._databases] for at in range(0, len(mixed), self._databases)]
        return [batches[i] for i in _shuffled(rng, len(batches))]


def _shuffled(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.argsort(rng.random(n), kind="stable")
