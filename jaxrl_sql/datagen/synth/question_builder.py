"""Give question templates what they choose from: tables, columns, values of rows, and conditions in words and SQL.

A template is a function of a `QuestionBuilder` that returns a `QuestionCandidate` (several wordings, one SQL), or
raises `NoFit` when the database has nothing for it. Every choice comes from the scene's generator, so a seed decides
all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxrl_sql.datagen.synth.spec import Column, Database, ForeignKey, Table, Value

T = TypeVar("T")
MEASURE = ("int", "real")
NUMERIC = ("int", "real", "year")
SORTABLE = ("int", "real", "year", "date")
SYNONYM_SHARE = 0.06
NO_ARTICLE = ("parking", "catering", "isolation", "tours")
IS_VALUE = ("whose {c} is {v}", "with {c} {v}", "where the {c} is {v}", "with {v} as {c}")
IS_NUMBER = ("whose {c} is {v}", "with a {c} of {v}", "whose {c} equals {v}")
COMPARES = ("whose {c} is {r} {v}", "with {c} {r} {v}", "where {c} is {r} {v}")
RELATIONS = {
    ">": ("above", "greater than", "more than"),
    ">=": ("at least", "no less than"),
    "<": ("below", "less than", "under"),
    "<=": ("at most", "no more than"),
}
TIME_RELATIONS = {
    ">": ("after", "later than"),
    ">=": ("on or after", "not before"),
    "<": ("before", "earlier than"),
    "<=": ("on or before", "not after"),
}


class NoFit(Exception):  # noqa: N818 - it is a signal to the caller, not a fault
    """Say that this database has nothing for this template."""


@dataclass(frozen=True)
class QuestionCandidate:
    """A question in several wordings and its SQL.

    `order_check` selects the sort keys up to the cut and one more: all must differ, or the answer is not one answer.
    `sort_check` selects (sort key, what is shown) of a whole sorted list: where keys are the same, so must that be.
    """

    texts: tuple[str, ...]
    sql: str
    order_check: str = ""
    sort_check: str = ""


@dataclass(frozen=True)
class Condition:
    """A filter: SQL, and words that follow a plural noun (`whose salary is above 100`)."""

    sql: str
    words: str
    column: Column


@dataclass(frozen=True)
class Link:
    """A child table, its parent, and the key between them."""

    child: Table
    parent: Table
    key: ForeignKey

    @property
    def join(self) -> str:
        """Return `child AS T1 JOIN parent AS T2 ON ...`."""
        on = f"T1.{self.key.column} = T2.{self.key.target}"
        return f"{self.child.name} AS T1 JOIN {self.parent.name} AS T2 ON {on}"


def literal(value: Value) -> str:
    """Write a value as an SQL literal."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else repr(value)


class QuestionBuilder:
    """A database and a generator, with the choices that templates share."""

    def __init__(self, rng: random.Random, database: Database) -> None:
        self.rng = rng
        self.database = database

    def one(self, options: Sequence[T]) -> T:
        """Draw one; NoFit when there is none."""
        if not options:
            raise NoFit
        return self.rng.choice(options)

    def say(self, column: Column) -> str:
        """Name a column in words, now and then by another name of its role."""
        if column.synonyms and self.rng.random() < SYNONYM_SHARE:
            return self.rng.choice(column.synonyms)
        return column.words

    def many(self, table: Table) -> str:
        """Name a table in the plural, now and then by another name of its role."""
        if table.synonyms and self.rng.random() < SYNONYM_SHARE:
            return self.rng.choice(table.synonyms)
        return table.plural

    def table(self, fits: Callable[[Table], object] = lambda _: True) -> Table:
        """Draw a table that fits."""
        return self.one([table for table in self.database.tables if fits(table)])

    def table_with(self, *kinds: str) -> Table:
        """Draw a table with a column of one of the kinds."""
        return self.table(lambda table: any(column.kind in kinds for column in table.columns))

    def column(self, table: Table, kinds: Sequence[str], without: Sequence[Column] = ()) -> Column:
        """Draw a column of one of the kinds, leaving some out."""
        return self.one([column for column in table.columns if column.kind in kinds and column not in without])

    def shown(self, table: Table, without: Sequence[Column] = ()) -> Column:
        """Draw a column to show: most often the label."""
        if table.label is not None and table.label not in without and self.rng.random() < 0.65:
            return table.label
        return self.one([column for column in table.columns if column.kind != "bool" and column not in without])

    def label(self, table: Table) -> Column:
        """Return the label of a table; NoFit when it has none."""
        if table.label is None:
            raise NoFit
        return table.label

    def link(self, fits: Callable[[Link], object] = lambda _: True) -> Link:
        """Draw a child and its parent."""
        links = [
            Link(child, self.database.table(key.table), key)
            for child in self.database.tables
            for key, _ in child.foreign
        ]
        return self.one([link for link in links if fits(link)])

    def value(self, column: Column) -> Value:
        """Draw a value that a row holds and that is not NULL."""
        return self.one([value for value in column.values if value is not None])

    def inner_value(self, column: Column, low: float, high: float) -> Value:
        """Draw a value between two quantiles of the column."""
        ranked = sorted(value for value in column.values if value is not None)
        if len(ranked) < 8:
            raise NoFit
        return ranked[int((len(ranked) - 1) * self.rng.uniform(low, high))]

    def conditions(self, table: Table, without: Sequence[Column] = ()) -> list[Column]:
        """List the columns that a condition can stand on: not the label, and no text that is different in every row."""
        return [
            column
            for column in table.columns
            if column not in without
            and column is not table.label
            and (column.kind != "text" or len(set(column.values)) < len(column.values) // 3)
        ]

    def condition(self, table: Table, prefix: str = "", without: Sequence[Column] = ()) -> Condition:
        """Draw a condition on a table; `prefix` (`T1.`) stands before the column in SQL."""
        return self.condition_on(self.one(self.conditions(table, without)), prefix)

    def condition_on(self, column: Column, prefix: str = "") -> Condition:
        """Draw a condition on a column."""
        name = prefix + column.name
        if column.kind == "bool":
            return self._bool_condition(column, name)
        said = self.say(column)
        if column.kind in ("text", "category"):
            value = self.value(column)
            return Condition(f"{name} = {literal(value)}", self.one(IS_VALUE).format(c=said, v=value), column)
        if column.kind in ("int", "year") and self.rng.random() < 0.12:
            value = self.value(column)
            return Condition(f"{name} = {literal(value)}", self.one(IS_NUMBER).format(c=said, v=value), column)
        return self._compare_condition(column, name, said)

    def _bool_condition(self, column: Column, name: str) -> Condition:
        holds = self.rng.random() < 0.65
        if column.name.startswith("has_"):
            patterns: tuple[str, ...] = ("that have {}", "with {}") if holds else ("that do not have {}", "without {}")
        else:
            patterns = ("that are {}",) if holds else ("that are not {}",)
        claim = column.words
        if claim.startswith("has "):
            thing = claim.removeprefix("has ")
            claim = thing if thing in NO_ARTICLE else f"a {thing}"
        words = self.one(patterns).format(claim)
        return Condition(f"{name} = {int(holds)}", words, column)

    def _compare_condition(self, column: Column, name: str, said: str) -> Condition:
        is_upward = self.rng.random() < 0.5
        value = self.inner_value(column, *((0.3, 0.92) if is_upward else (0.08, 0.7)))
        sign = (">" if is_upward else "<") + ("" if self.rng.random() < 0.75 else "=")
        relation = self.one((RELATIONS if column.kind in MEASURE else TIME_RELATIONS)[sign])
        words = self.one(COMPARES).format(c=said, r=relation, v=value)
        return Condition(f"{name} {sign} {literal(value)}", words, column)

    def aggregate(self, column: Column, prefix: str = "") -> tuple[str, str]:
        """Draw an aggregate of a measure: its SQL and its words (`average price`)."""
        said = self.say(column)
        function = self.one(("AVG", "AVG", "MAX", "MIN", "SUM")) if column.kind in MEASURE else self.one(("MAX", "MIN"))
        texts: tuple[str, ...] = {
            "AVG": ("average {}", "mean {}"),
            "MAX": ("maximum {}", "highest {}", "largest {}"),
            "MIN": ("minimum {}", "lowest {}", "smallest {}"),
            "SUM": ("total {}", "sum of {}"),
        }[function]
        if function == "SUM" and "total" in said:
            texts = ("sum of {}",)
        if column.kind in ("year", "date"):
            texts = ("latest {}", "most recent {}") if function == "MAX" else ("earliest {}", "first {}")
        return f"{function}({prefix}{column.name})", self.one(texts).format(said)


def listing(what: str, things: str) -> tuple[str, ...]:
    """Word the request for columns of things (`name and age`, `employees whose ...`)."""
    return (
        f"List the {what} of {things}.",
        f"Show the {what} of all {things}.",
        f"What is the {what} of {things}?",
        f"Find the {what} of the {things}.",
        f"Give the {what} for all {things}.",
        f"For {things}, show the {what}.",
        f"Return the {what} of every one of the {things}.",
        f"I want to see the {what} of {things}.",
    )
