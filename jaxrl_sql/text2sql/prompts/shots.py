"""Few-shot examples ("shots"): the training questions on other databases that are most similar to a question.

Similarity is BM25 over character trigrams of the questions (`schema.retrieve`). Ties are resolved by the order of the
questions, so the same training set gives the same examples everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_sql.text2sql.schema.retrieve import TOKEN_PATTERN, bm25, fold
from jaxrl_sql.types import Example, InputError


class ShotSelector:
    """Select up to `count` of N training examples for a question, from other databases.

    Examples without SQL are ignored. Raises InputError if no example has SQL.
    """

    def __init__(self, examples: Sequence[Example], count: int) -> None:
        self.examples = [example for example in examples if example.gold_sql and example.answerable]
        self.count = count
        if not self.examples:
            raise InputError(f"data.shots={count}: none of the {len(examples)} training questions has SQL to show")
        self._tokens, self._scores, self._text_ids, self._ends = bm25(
            [fold(example.question) for example in self.examples]
        )
        self._databases = np.array([example.db_id.casefold() for example in self.examples])
        # SQLite's golds are valid for any dialect, another engine's only for its own.
        self._engines = np.array([example.dialect if example.engine_url else "" for example in self.examples])

    def choose(self, example: Example) -> tuple[Example, ...]:
        """Return the few-shot examples of a question in its dialect, the most similar last, next to the question.

        Raises InputError if all examples are on the question's database.
        """
        is_shown = (self._engines == "") | (self._engines == example.dialect)
        others = np.flatnonzero(is_shown & (self._databases != example.db_id.casefold()))
        if not len(others):
            raise InputError(
                f"data.shots={self.count} shows questions of other databases, but all {len(self.examples)} training "
                f"questions are on {example.db_id}, the database of {example.uid}"
            )
        best = others[np.argsort(-self._similarity(example.question)[others], kind="stable")[: self.count]]
        return tuple(dataclasses.replace(self.examples[i], dialect=example.dialect) for i in reversed(best))

    def _similarity(self, question: str) -> np.ndarray:
        """Return the BM25 score of each example's question, float64 [N]."""
        token_ids = sorted(
            {self._tokens[token] for token in TOKEN_PATTERN.findall(fold(question)) if token in self._tokens}
        )
        parts = [slice(self._ends[token], self._ends[token + 1]) for token in token_ids]
        if not parts:
            return np.zeros(len(self.examples))
        text_ids, scores = (np.concatenate([array[part] for part in parts]) for array in (self._text_ids, self._scores))
        return np.bincount(text_ids, weights=scores, minlength=len(self.examples))
