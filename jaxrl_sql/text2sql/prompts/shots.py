"""Few-shot examples: of the training questions on other databases, those most like the question that is asked.

BM25 over the questions' words, cut into three characters each as values are (`schema.retrieve`). The order of the
questions decides between equals, so that the same training set shows the same examples everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_sql.text2sql.schema.retrieve import TOKEN, bm25, fold
from jaxrl_sql.types import Example, InputError


class Shots:
    """Chooses up to `count` of N examples for a question, none of them on its database; those without SQL are left out.

    Raises InputError where no example has SQL.
    """

    def __init__(self, examples: Sequence[Example], count: int) -> None:
        self.examples = [example for example in examples if example.gold_sql and example.answerable]
        self.count = count
        if not self.examples:
            raise InputError(f"data.shots={count}: none of the {len(examples)} training questions has SQL to show")
        self._tokens, self._scores, self._found, self._ends = bm25([fold(one.question) for one in self.examples])
        self._databases = np.array([one.db_id.casefold() for one in self.examples])
        # SQLite's golds are shown in any dialect, another engine's in its own alone.
        self._engines = np.array([one.dialect if one.engine_url else "" for one in self.examples])

    def choose(self, example: Example) -> tuple[Example, ...]:
        """Return the examples to show before a question, the most similar one last, asked in the question's dialect.

        Raises InputError where all examples are on the question's database.
        """
        is_shown = (self._engines == "") | (self._engines == example.dialect)
        others = np.flatnonzero(is_shown & (self._databases != example.db_id.casefold()))
        if not len(others):
            raise InputError(
                f"data.shots={self.count} shows questions of other databases, and all {len(self.examples)} training "
                f"questions are on {example.db_id}, which {example.uid} asks"
            )
        best = others[np.argsort(-self._similarity(example.question)[others], kind="stable")[: self.count]]
        return tuple(dataclasses.replace(self.examples[i], dialect=example.dialect) for i in reversed(best))

    def _similarity(self, question: str) -> np.ndarray:
        """Return the BM25 score of each example's question, float64 [N]."""
        known = sorted({self._tokens[token] for token in TOKEN.findall(fold(question)) if token in self._tokens})
        parts = [slice(self._ends[token], self._ends[token + 1]) for token in known]
        if not parts:
            return np.zeros(len(self.examples))
        found, scores = (np.concatenate([array[part] for part in parts]) for array in (self._found, self._scores))
        return np.bincount(found, weights=scores, minlength=len(self.examples))
