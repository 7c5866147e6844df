"""Select the tables and columns of a schema that a question needs, within a budget (schema linking).

BM25 ranks tables by their names, by the names and descriptions of all their columns, and by their best columns. Values
of a column that the question names increase its table's score. A table also gets a share of the best score among its
foreign-key neighbours. Tables are added in this order, each with its keys and best columns. If a table is not joined to
those already selected, the tables on the foreign-key path between them are added first. After every second table
that is added, the next of the selected tables, from the best on, gets its remaining columns. So a short prompt has many
tables, and the best ones completely.

The gold SQL is not used, so training, evaluation and users' questions have equal prompts. The budget is the setting
`data.schema_budget`, in tokens.
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
from jaxrl_sql.text2sql.schema.prune import find_largest, keys_of
from jaxrl_sql.text2sql.schema.read import Schema, part_of, read_schema
from jaxrl_sql.text2sql.schema.retrieve import STOP_WORDS, TOKEN_PATTERN, bm25, find_values, fold, unify
from jaxrl_sql.text2sql.schema.used import Name
from jaxrl_sql.types import Example

# Weights of a table's score: of BM25 of its best columns relative to its name and text, of a named value in points of
# BM25, and of the best neighbour's score. Tuned on 600 questions of Spider's training set over all of its databases as
# one. With 0.5, with 10 or 30, and with 0.2 or 0.5, respectively, recall differs by about one point.
_COLUMN_WEIGHT = 0.3
_VALUE_WEIGHT = 20.0
_NEIGHBOUR_WEIGHT = 0.3
# The number of values to retrieve, of a table's best columns, and of intermediate tables on a path.
_NUM_VALUES = 50
_BEST_COLUMNS = 3
_MAX_INTERMEDIATE = 2
# For a schema of at most this many columns, first check whether all of it fits.
_SMALL_SCHEMA = 512

# Boundaries of words in a name: other characters than letters and digits, capitals, and changes to and from digits.
_BOUNDARY = re.compile(
    r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)


class _Ranker(NamedTuple):
    """A BM25 index of N texts (`retrieve.bm25`).

    Token t adds `scores[j]` to the score of text `text_ids[j]`, for j from `ends[t]` to `ends[t + 1]` (exclusive).
    """

    num_texts: int
    tokens: dict[str, int]
    scores: np.ndarray
    text_ids: np.ndarray
    ends: np.ndarray

    def rank(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the score of each text, float64 [N]."""
        total = np.zeros(self.num_texts)
        for token in tokens:
            if (token_id := self.tokens.get(token)) is not None:
                span = slice(self.ends[token_id], self.ends[token_id + 1])
                total[self.text_ids[span]] += self.scores[span]  # a text occurs once per token
        return total


class _SchemaIndex(NamedTuple):
    """An index of the T tables and C columns of a schema, with views after the tables.

    Table t has the columns `starts[t]` to `starts[t + 1]` (exclusive), and `neighbours[t]` are the tables that it is
    joined to by a foreign key. `keys` are the columns of primary and foreign keys. `names` ranks the T tables by their
    names, `table_words` by all of their text, and `column_words` ranks the C columns.
    """

    schema: Schema
    columns: tuple[Name, ...]
    starts: tuple[int, ...]
    keys: frozenset[Name]
    neighbours: tuple[tuple[int, ...], ...]
    names: _Ranker
    table_words: _Ranker
    column_words: _Ranker


def link(example: Example, schema: Schema, fits: Callable[[Schema], bool]) -> Schema:
    """Return the largest part of a schema that fits, in order of relevance to a question; the whole schema if it fits.

    The candidates include views. The first part, the keys and best columns of one table, is returned even if it does
    not fit. The number of calls of `fits` is logarithmic in the number of fitting parts. Raises InputError for an
    unreadable database, and without the package bm25s.

    The schema is read from the question's database. Of the argument `schema` only `matched` is used: the values of
    columns that the question names.
    """
    index = _build_index(version_of(example.db_path, example.hide))
    whole = replace(index.schema, matched=schema.matched)
    if len(index.columns) <= _SMALL_SCHEMA and fits(whole):  # true for most schemas, which then need no order
        return whole
    order = list(_rank_parts(index, example))
    count = find_largest(len(order), lambda count: fits(_prefix(whole, order, count)))
    return _prefix(whole, order, max(count, 1))


def _prefix(whole: Schema, order: Sequence[Sequence[Name]], count: int) -> Schema:
    """Return the schema of the first `count` parts in order."""
    return whole if count >= len(order) else part_of(whole, frozenset[Name]().union(*order[:count]))


@lru_cache(maxsize=64)
def _build_index(version: Version) -> _SchemaIndex:
    """Index the tables and views of a schema, with the column descriptions at the time of the first call."""
    schema, descriptions = read_schema(version.path, version.hide), read_descriptions(version.path)
    tables = (*schema.tables, *schema.views)
    whole = Schema(tables)
    number_of = {table.name: i for i, table in enumerate(tables)}
    columns = tuple((table.name, column.name) for table in tables for column in table.columns)
    starts = np.cumsum([0, *(len(table.columns) for table in tables)])
    neighbours: list[set[int]] = [set() for _ in tables]
    for i, table in enumerate(tables):
        for other in {number_of[key.table] for key in table.foreign_keys} - {i}:
            neighbours[i].add(other)
            neighbours[other].add(i)
    column_texts = [f"{name_words(column)} {fold(descriptions.of(table, column))}" for table, column in columns]
    names = [name_words(table.name) for table in tables]
    table_texts = [" ".join((name, *column_texts[starts[i] : starts[i + 1]])) for i, name in enumerate(names)]
    rankers = (_Ranker(len(texts), *bm25(texts)) for texts in (names, table_texts, column_texts))
    sorted_neighbours = tuple(tuple(sorted(others)) for others in neighbours)
    return _SchemaIndex(whole, columns, tuple(starts.tolist()), keys_of(whole), sorted_neighbours, *rankers)


def name_words(name: str) -> str:
    """Return the words of a name in lower case: those of `StuID_2` are `stu`, `id` and `2`."""
    return " ".join(filter(None, _BOUNDARY.split(unify(name)))).casefold()


def _rank_parts(index: _SchemaIndex, example: Example) -> Iterator[list[Name]]:
    """Yield parts of the schema from best to worst.

    A part is either the first columns of a table, and of the tables on its path to those before, or a single column.
    """
    question_words = name_words(f"{example.evidence} {example.question}").split()
    tokens = sorted(
        {token for word in question_words if word not in STOP_WORDS for token in TOKEN_PATTERN.findall(word)}
    )
    by_words, by_values = index.column_words.rank(tokens), _VALUE_WEIGHT * _value_confidence(index, example)
    scores = (
        index.names.rank(tokens) + index.table_words.rank(tokens) + _column_contribution(index, by_words, by_values)
    )
    neighbour_scores = np.array([max((scores[j] for j in neighbours), default=0.0) for neighbours in index.neighbours])
    order = [int(i) for i in np.argsort(-(scores + _NEIGHBOUR_WEIGHT * neighbour_scores), kind="stable")]
    column_scores = by_words + by_values
    first_columns = {i: _first_columns(index, i, column_scores) for i in order}
    selected: set[int] = set()
    for step, i in enumerate(order):
        path = [j for j in (*_path_to_selected(index, selected, i), i) if j not in selected]
        selected.update(path)
        if path:
            yield [name for j in path for name in first_columns[j]]
        if step % 2:  # the remaining columns of one table per two new tables
            yield from _other_columns(index, order[step // 2], first_columns, column_scores)
    for i in order[len(order) // 2 :]:
        yield from _other_columns(index, i, first_columns, column_scores)


def _value_confidence(index: _SchemaIndex, example: Example) -> np.ndarray:
    """Return how certainly the question names a value of each column, float64 [C] from 0 to 1.

    It is 1 for a value of more than three characters and 0.5 for a shorter one, divided by the square root of the
    number of columns that have the value.
    """
    number_of = {name: i for i, name in enumerate(index.columns)}
    columns_by_value: dict[str, set[int]] = {}
    for table, column, value in find_values(example, _NUM_VALUES):
        columns_by_value.setdefault(fold(value), set()).add(number_of[table, column])
    confidence = np.zeros(len(index.columns))
    for value, columns in columns_by_value.items():
        for i in columns:
            confidence[i] = max(confidence[i], (1.0 if len(value) > 3 else 0.5) / len(columns) ** 0.5)
    return confidence


def _column_contribution(index: _SchemaIndex, by_words: np.ndarray, by_values: np.ndarray) -> np.ndarray:
    """Return the contribution of the columns to the score of each table, float64 [T].

    It is the weighted BM25 score of the best columns, and the score of the most certain value.
    """
    parts = list(pairwise(index.starts))
    sums = [np.sort(by_words[start:end])[::-1][:_BEST_COLUMNS].sum() for start, end in parts]
    return _COLUMN_WEIGHT * np.array(sums) + [by_values[start:end].max(initial=0.0) for start, end in parts]


def _first_columns(index: _SchemaIndex, table: int, column_scores: np.ndarray) -> list[Name]:
    """Return a table's keys and best columns, in the table's order."""
    start, end = index.starts[table], index.starts[table + 1]
    best = sorted(range(start, end), key=lambda i: (-column_scores[i], i))[:_BEST_COLUMNS]
    return [index.columns[i] for i in range(start, end) if index.columns[i] in index.keys or i in best]


def _other_columns(
    index: _SchemaIndex, table: int, first: dict[int, list[Name]], column_scores: np.ndarray
) -> Iterator[list[Name]]:
    """Yield a table's other columns one at a time, from best to worst."""
    start, end = index.starts[table], index.starts[table + 1]
    for i in sorted(range(start, end), key=lambda i: (-column_scores[i], i)):
        if index.columns[i] not in first[table]:
            yield [index.columns[i]]


def _path_to_selected(index: _SchemaIndex, selected: set[int], table: int) -> list[int]:
    """Return the tables between a table and the nearest selected one, along foreign keys; empty if it is too far."""
    previous: dict[int, int] = {table: table}
    queue = deque([(table, 0)])
    while queue:
        table_id, distance = queue.popleft()
        if table_id in selected:
            path = []
            while (table_id := previous[table_id]) != table:
                path.append(table_id)
            return path
        for other in index.neighbours[table_id] if distance <= _MAX_INTERMEDIATE else ():
            if other not in previous:
                previous[other] = table_id
                queue.append((other, distance + 1))
    return []
