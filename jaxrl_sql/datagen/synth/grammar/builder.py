"""Building blocks for the forms of the grammar: tables, joins, result columns, and phrasing of requests.

A form is a function that builds one structure of question. In these modules `side` is a `QueryTable`, a table of the
query with the columns used so far. `things` are the words for some of its rows, such as `employees older than 30`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from jaxrl_sql.datagen.synth.grammar.phrases import Clause, Phrases, QueryTable, join_phrases, plural_words
from jaxrl_sql.datagen.synth.part_sampler import NoFit
from jaxrl_sql.datagen.synth.question_template import QuestionCandidate
from jaxrl_sql.datagen.synth.spec import AnnotatedColumn, AnnotatedTable, Reference, Relation, SynthDatabase

SORTABLE = ("int", "real", "year", "date")
"""The kinds of columns that can be sorted by."""
# Requests for columns `{c}` of rows `{t}`.
_SHOW = (
    "What are the {c} of {t}?",
    "What are the {c} of {t}?",
    "Show the {c} of {t}.",
    "List the {c} of {t}.",
    "Find the {c} of {t}.",
    "Return the {c} of {t}.",
    "Give me the {c} of {t}.",
    "Please show the {c} of {t}.",
    "For {t}, what are the {c}?",
    "I would like to see the {c} of {t}.",
)
_SHOW_ONE = (
    "What is the {c} of {t}?",
    "What is the {c} of {t}?",
    "Show the {c} of {t}.",
    "Find the {c} of {t}.",
    "Give the {c} of {t}.",
    "Return the {c} of {t}.",
    "Tell me the {c} of {t}.",
)
_COUNT = (
    "How many {t} are there?",
    "How many {t} do we have?",
    "Count the number of {t}.",
    "What is the number of {t}?",
    "Find the number of {t}.",
    "What is the total number of {t}?",
    "How many {t} are there in total?",
)


@dataclass
class JoinedTables:
    """The two tables of a foreign key, their join, and the words of the relation between them."""

    child: QueryTable
    parent: QueryTable
    sql: str
    relation: Relation
    reference: Reference

    @property
    def parent_id(self) -> str:
        """Return the parent's key, by which its children are grouped."""
        return f"{self.parent.prefix}{self.reference.target}"


class Builder(Phrases):
    """Builds parts of questions about one database."""

    def __init__(self, rng: random.Random, database: SynthDatabase) -> None:
        super().__init__(rng)
        self.database = database

    def choose_table(self, *kinds: str, label: bool = False) -> QueryTable:
        """Choose a table that has a column of one of these kinds (none: any table), and a label if `label`."""
        fitting = [
            table
            for table in self.database.tables
            if (not kinds or any(column.kind in kinds for column in table.columns)) and (table.label or not label)
        ]
        return QueryTable(self.choose(fitting))

    def links(self) -> list[tuple[AnnotatedTable, AnnotatedTable, Reference]]:
        """Return all foreign keys with their tables."""
        return [
            (child, self.database.table(reference.table), reference)
            for child in self.database.tables
            for reference in child.references
        ]

    def link(self, *, label: bool = False) -> tuple[QueryTable, QueryTable, Reference]:
        """Choose a foreign key; with `label`, the parent must have a label. Return (child, parent, reference)."""
        child, parent, reference = self.choose([link for link in self.links() if link[1].label or not label])
        return QueryTable(child), QueryTable(parent), reference

    def join(self, *, label: bool = False) -> JoinedTables:
        """Choose a foreign key and join its tables as T1 and T2, in either order."""
        child, parent, reference = self.link(label=label)
        keys = (reference.column.name, reference.target)
        if self.chance(0.5):
            child.prefix, parent.prefix = "T1.", "T2."
            first, second = child.table.name, parent.table.name
        else:
            child.prefix, parent.prefix = "T2.", "T1."
            first, second, keys = parent.table.name, child.table.name, keys[::-1]
        sql = f"{first} AS T1 JOIN {second} AS T2 ON T1.{keys[0]} = T2.{keys[1]}"
        return JoinedTables(child, parent, sql, reference.relation, reference)

    def column(self, side: QueryTable, *kinds: str) -> AnnotatedColumn:
        """Choose an unused column of one of these kinds."""
        return side.take(self.choose([column for column in side.free() if column.kind in kinds]))

    def choose_category(self, side: QueryTable) -> AnnotatedColumn:
        """Choose an unused column whose values repeat across rows: a category or a place."""
        return side.take(
            self.choose(
                [
                    column
                    for column in side.free()
                    if column.kind in ("category", "text")
                    and column is not side.table.label
                    and None not in column.values
                    and 1 < len(set(column.values)) < max(len(column.values) // 3, 3)
                ]
            )
        )

    def choose_result_columns(self, side: QueryTable, count: int = 1) -> list[AnnotatedColumn]:
        """Choose `count` result columns, usually the label first, and no flags."""
        columns: list[AnnotatedColumn] = []
        label = side.table.label
        if label is not None and label in side.free() and self.chance(0.7):
            columns.append(side.take(label))
        while len(columns) < count:
            free = [column for column in side.free() if column.kind != "bool" and column is not label]
            columns.append(side.take(self.choose(free)))
        return columns

    def clauses(self, side: QueryTable, count: int) -> list[Clause]:
        """Choose `count` conditions, at most one of which precedes the noun (`remote employees`)."""
        clauses: list[Clause] = []
        for _ in range(count):
            clause = self.clause(side)
            if clause.before and any(earlier.before for earlier in clauses):
                raise NoFit
            clauses.append(clause)
        return clauses

    def columns_words(self, columns: Sequence[AnnotatedColumn], side: QueryTable, *, many: bool) -> str:
        """Name columns of a table as a list, in the plural if `many`."""
        return join_phrases([self.noun_of(column, side, many=many) for column in columns])

    def ask(self, columns: str, things: str, *, many: bool = True) -> str:
        """Phrase a request for columns of several rows, or of one row if not `many`."""
        return self.choose(_SHOW if many else _SHOW_ONE).format(c=columns, t=things)

    def ask_number(self, things: str) -> str:
        """Phrase a request for the number of rows."""
        # Avoid a second `have`: "How many singers who have albums do we have?"
        forms = [form for form in _COUNT if not ("have" in form and " have " in things)]
        return self.choose(forms).format(t=things)

    def all_of(self, side: QueryTable, clauses: Sequence[Clause] = ()) -> str:
        """Name the rows that meet the conditions; without conditions, all rows."""
        things = self.things(side, clauses)
        return things if clauses else self.choose(("all {}", "all the {}", "the {}", "{}")).format(things)

    def measure(self, side: QueryTable) -> AnnotatedColumn:
        """Choose an unused numeric column with a meaningful average."""
        return side.take(self.choose([column for column in side.free() if self.is_quantity(column)]))

    def choose_table_with_quantity(self) -> QueryTable:
        """Choose a table that has a numeric column with a meaningful average."""
        return QueryTable(
            self.choose([table for table in self.database.tables if any(map(self.is_quantity, table.columns))])
        )

    def k(self, low: int, high: int) -> int:
        """Choose a number of rows to return, from `low` to `high` inclusive."""
        return self.rng.randint(low, high)


def where(clauses: Sequence[Clause]) -> str:
    """Return the WHERE clause of conditions with a leading space; "" without conditions."""
    return f" WHERE {' AND '.join(clause.sql for clause in clauses)}" if clauses else ""


def candidate(text: str, sql: str, order_check: str = "", sort_check: str = "") -> QuestionCandidate:
    """Return a candidate whose question starts with a capital letter; `QuestionCandidate` explains the checks."""
    return QuestionCandidate((text[0].upper() + text[1:],), sql, order_check, sort_check)


__all__ = ["SORTABLE", "Builder", "JoinedTables", "candidate", "plural_words", "where"]
