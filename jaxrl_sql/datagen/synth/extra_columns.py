"""Write demonstrations that select an extra column, the column that the query filters or sorts by.

A demonstration is the query that supervised training shows instead of the gold. Language models often add such a
column, and a comparison of results counts it as wrong. A policy trained on these demonstrations has a mistake to
unlearn that only execution feedback reveals.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from jaxrl_sql.datagen.synth.spec import SynthQuestion

# Parts of a SELECT that make it unsuitable; the name of WITH depends on sqlglot's version.
NOT_PLAIN = ("with", "with_", "group", "distinct")


def add_demonstrations(rng: random.Random, questions: Sequence[SynthQuestion], share: float) -> list[SynthQuestion]:
    """Add such a demonstration to each question with probability `share`, if its SQL permits it."""
    demonstrations = [add_column(question.sql) if rng.random() < share else "" for question in questions]
    return [dataclasses.replace(q, demonstration=sql) for q, sql in zip(questions, demonstrations, strict=True)]


def add_column(sql: str) -> str:
    """Return the query with an extra column, the first new one in ORDER BY or WHERE; "" if there is no such column.

    Only a plain SELECT of columns is changed, without grouping, DISTINCT, aggregates, set operations or WITH.
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
    """Return the text of the query from its first FROM on."""
    return sql[sql.index(" FROM ") :]
