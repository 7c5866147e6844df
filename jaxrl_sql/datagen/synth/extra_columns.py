"""Give a gold the habit of a teacher of extra columns: show what was filtered or sorted by, next to what was asked for.

Language models do so all the time, and a comparison of results counts it as wrong. A cold start that imitates such
answers has something to unlearn that execution alone can tell it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from jaxrl_sql.datagen.synth.spec import Question

NOT_PLAIN = ("with", "with_", "group", "distinct")


def demonstrated(rng: random.Random, questions: Sequence[Question], share: float) -> list[Question]:
    """Give `share` of the questions that allow it a demonstration with the habit; the others keep their gold."""
    wordy = [show_more(question.sql) if rng.random() < share else "" for question in questions]
    return [dataclasses.replace(q, demonstration=sql) for q, sql in zip(questions, wordy, strict=True)]


def show_more(sql: str) -> str:
    """Return the query with one more column, the first that its WHERE or ORDER BY names; "" where there is none.

    Only a plain SELECT of columns is changed: no grouping, no DISTINCT, no aggregate, no set operation, no WITH.
    """
    select = sqlglot.parse_one(sql, read="sqlite")
    if not isinstance(select, exp.Select) or any(select.args.get(part) for part in NOT_PLAIN):
        return ""
    if not all(isinstance(shown, exp.Column) for shown in select.expressions):
        return ""
    shown = {column.sql("sqlite") for column in select.expressions}
    clauses = [clause for part in ("order", "where") if (clause := select.args.get(part)) is not None]
    for clause in clauses:
        for column in clause.find_all(exp.Column):
            name = column.sql("sqlite")
            if column.find_ancestor(exp.Select) is select and name not in shown:
                return f"SELECT {', '.join(each.sql('sqlite') for each in select.expressions)}, {name}{_rest(sql)}"
    return ""


def _rest(sql: str) -> str:
    """Return the query from its first FROM on, letter by letter."""
    return sql[sql.index(" FROM ") :]
