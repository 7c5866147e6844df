"""Select the tables and columns of a schema that a question needs, within a budget (schema linking).

BM25 ranks tables by name, by all of their text, and by their best columns, including column descriptions and values
that the question names. A table also gets a share of the best score among its foreign-key neighbours. Tables are added
in this order with their keys and best columns, after the tables on the path to those already selected. Other columns
follow at half the rate, so a short prompt has many tables, and the first ones completely.

It does not use golds, so training, evaluation and users' questions have equal prompts (`data.schema_budget`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jaxrl_sql.text2sql.schema.cache import Version, version_of
from jaxrl_sql.text2sql.schema.describe import read_descriptions
from jaxrl_sql.text2sql.schema.prune import keys_of, largest
from jaxrl_sql.text2sql.schema.read import Schema, part_of, read_schema
from jaxrl_sql.text2sql.schema.retrieve import STOP, TOKEN, bm25, find_values, fold, unify
from jaxrl_sql.text2sql.schema.used import Name
from jaxrl_sql.types import Example

# Weights of a table's score: of BM25 of its best columns relative to its name and text, of a named value in points of
# BM25, and of the best neighbour's score. Tuned on 600 questions of Spider's training set over all of its databases as
# one. With 0.5, with 10 or 30, and with 0.2 or 0.5, respectively, recall differs by about one point.
_COLUMNS = 0.3
_VALUE = 20.0
_NEIGHBOUR = 0.3
# The number of values to retrieve, of a table's best columns, and of intermediate tables on a path.
_VALUES = 50
_BEST = 3
_BETWEEN = 2
# For a schema of at most this many columns, first check whether all of it fits.
_SMALL = 512

# Boundaries of words in a name: other characters than letters and digits, capitals, and changes to and from digits.
_CUT = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")


class _Ranker(NamedTuple):
    """A BM25 index of N texts: token t adds `scores[j]` to the score of text `text_ids[j]` (`retrieve.bm25`)."""

    texts: int
    tokens: dict[str, int]
    scores: np.ndarray
    text_ids: np.ndarray
    ends: np.ndarray

    def rank(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the score of each text, float64 [N]."""
        total = np.zeros(self.texts)
        for token in tokens:
            if (number := self.tokens.get(token)) is not None:
                part = slice(self.ends[number], self.ends[number + 1])
                total[self.text_ids[part]] += self.scores[part]  # a text occurs once per token
        return total


class _SchemaIndex(NamedTuple):
    """An index of the T tables and C columns of a schema, with views after the tables.

    Table t has the columns `starts[t]` to `starts[t + 1]`, and `ties[t]` are its foreign-key neighbours.
    """

    schema: Schema
    columns: tuple[Name, ...]
    starts: tuple[int, ...]
    keys: frozenset[Name]
    ties: tuple[tuple[int, ...], ...]
    names: _Ranker
    table_words: _Ranker
    column_words: _Ranker


def link(example: Example, schema: Schema, fits: Callable[[Schema], bool]) -> Schema:
    """Return the largest part of a schema that fits, in order of relevance to a question; the whole schema if it fits.

    The candidates include views. The first part, the keys and best columns of one table, is returned even if it does
    not fit. The number of calls of `fits` is logarithmic in the number of fitting parts. Raises InputError for an
    unreadable database, and without the package bm25s.
    """
    index = _open(version_of(example.db_path, example.hide))
    whole = replace(index.schema, matched=schema.matched)
    if len(index.columns) <= _SMALL and fits(whole):  # true for most, which then need no order
        return whole
    order = list(_in_order(index, example))
    count = largest(len(order), lambda count: fits(_first(whole, order, count)))
    return _first(whole, order, max(count, 1))


def _first(whole: Schema, order: Sequence[Sequence[Name]], count: int) -> Schema:
    return whole if count >= len(order) else part_of(whole, frozenset[Name]().union(*order[:count]))


@lru_cache(maxsize=64)
def _open(version: Version) -> _SchemaIndex:
    """Index a schema with the column descriptions at the time of the first call."""
    schema, descriptions = read_schema(version.path, version.hide), read_descriptions(version.path)
    tables = (*schema.tables, *schema.views)
    whole = Schema(tables)
    number_of = {table.name: i for i, table in enumerate(tables)}
    columns = tuple((table.name, column.name) for table in tables for column in table.columns)
    starts = np.cumsum([0, *(len(table.columns) for table in tables)])
    ties: list[set[int]] = [set() for _ in tables]
    for i, table in enumerate(tables):
        for other in {number_of[key.table] for key in table.foreign_keys} - {i}:
            ties[i].add(other)
            ties[other].add(i)
    column_texts = [f"{name_words(column)} {fold(descriptions.of(table, column))}" for table, column in columns]
    names = [name_words(table.name) for table in tables]
    of_tables = [" ".join((name, *column_texts[starts[i] : starts[i + 1]])) for i, name in enumerate(names)]
    rankers = (_Ranker(len(texts), *bm25(texts)) for texts in (names, of_tables, column_texts))
    tied = tuple(tuple(sorted(others)) for others in ties)
    return _SchemaIndex(whole, columns, tuple(starts.tolist()), keys_of(whole), tied, *rankers)


def name_words(name: str) -> str:
    """Return the words of a name in lower case: those of `StuID_2` are `stu`, `id` and `2`."""
    return " ".join(filter(None, _CUT.split(unify(name)))).casefold()


def _in_order(index: _SchemaIndex, example: Example) -> Iterator[list[Name]]:
    """Yield parts from best to worst: the first columns of a table and of tables on its path, or a single column."""
    question_words = name_words(f"{example.evidence} {example.question}").split()
    tokens = sorted({token for word in question_words if word not in STOP for token in TOKEN.findall(word)})
    by_words, by_values = index.column_words.rank(tokens), _VALUE * _named(index, example)
    scores = index.names.rank(tokens) + index.table_words.rank(tokens) + _of_columns(index, by_words, by_values)
    tied = np.array([max((scores[j] for j in ties), default=0.0) for ties in index.ties])
    order = [int(i) for i in np.argsort(-(scores + _NEIGHBOUR * tied), kind="stable")]
    of_columns = by_words + by_values
    first = {i: _first_columns(index, i, of_columns) for i in order}
    shown: set[int] = set()
    for step, i in enumerate(order):
        way = [j for j in (*_path(index, shown, i), i) if j not in shown]
        shown.update(way)
        if way:
            yield [name for j in way for name in first[j]]
        if step % 2:  # the remaining columns of one table per two new tables
            yield from _others(index, order[step // 2], first, of_columns)
    for i in order[len(order) // 2 :]:
        yield from _others(index, i, first, of_columns)


def _named(index: _SchemaIndex, example: Example) -> np.ndarray:
    """Return how certainly the question names a value of each column; less if many columns have the value."""
    number_of = {name: i for i, name in enumerate(index.columns)}
    having: dict[str, set[int]] = {}
    for table, column, value in find_values(example, _VALUES):
        having.setdefault(fold(value), set()).add(number_of[table, column])
    sure = np.zeros(len(index.columns))
    for value, columns in having.items():
        for i in columns:
            sure[i] = max(sure[i], (1.0 if len(value) > 3 else 0.5) / len(columns) ** 0.5)
    return sure


def _of_columns(index: _SchemaIndex, by_words: np.ndarray, by_values: np.ndarray) -> np.ndarray:
    """Return the contribution of each table's columns to its score: the best columns and the most certain value."""
    parts = list(pairwise(index.starts))
    sums = [np.sort(by_words[start:end])[::-1][:_BEST].sum() for start, end in parts]
    return _COLUMNS * np.array(sums) + [by_values[start:end].max(initial=0.0) for start, end in parts]


def _first_columns(index: _SchemaIndex, table: int, of_columns: np.ndarray) -> list[Name]:
    """Return a table's keys and best columns."""
    start, end = index.starts[table], index.starts[table + 1]
    best = sorted(range(start, end), key=lambda i: (-of_columns[i], i))[:_BEST]
    return [index.columns[i] for i in range(start, end) if index.columns[i] in index.keys or i in best]


def _others(
    index: _SchemaIndex, table: int, first: dict[int, list[Name]], of_columns: np.ndarray
) -> Iterator[list[Name]]:
    """Yield a table's other columns one at a time, from best to worst."""
    start, end = index.starts[table], index.starts[table + 1]
    for i in sorted(range(start, end), key=lambda i: (-of_columns[i], i)):
        if index.columns[i] not in first[table]:
            yield [index.columns[i]]


def _path(index: _SchemaIndex, shown: set[int], table: int) -> list[int]:
    """Return the tables on the foreign-key path to the nearest selected table; empty if it is too far."""
    came: dict[int, int] = {table: table}
    waiting = deque([(table, 0)])
    while waiting:
        here, far = waiting.popleft()
        if here in shown:
            way = []
            while (here := came[here]) != table:
                way.append(here)
            return way
        for other in index.ties[here] if far <= _BETWEEN else ():
            if other not in came:
                came[other] = here
                waiting.append((other, far + 1))
    return []
