"""Return whether a query cuts a sorted list between rows of equal keys: then more than one answer is right."""

from __future__ import annotations

import sqlite3
from functools import lru_cache

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import parse_query


def is_tied(connection: sqlite3.Connection, sql: str) -> bool:
    """Return whether the last row of `ORDER BY … LIMIT k` and the first one behind it have the same sort keys.

    False for what has no such cut, or cannot be read.
    """
    cut = _cut(sql)
    if cut is None:
        return False
    keys, limit = cut
    try:
        rows = connection.execute(keys).fetchall()
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise
        return False
    return len(rows) > limit and rows[limit - 1] == rows[limit]


@lru_cache(1 << 14)
def _cut(sql: str) -> tuple[str, int] | None:
    """Return the query of the sort keys up to the cut and one more, and the number of rows before the cut."""
    tree = _keys(sql)
    limit = tree.args.get("limit") if tree is not None else None
    if tree is None or limit is None:
        return None
    number = limit.expression
    if (
        tree.args.get("offset")
        or not isinstance(number, exp.Literal)
        or number.is_string
        or not number.this.isdecimal()
    ):
        return None
    tree.set("limit", exp.Limit(expression=exp.Literal.number(int(number.this) + 1)))
    return (tree.sql("sqlite"), int(number.this)) if int(number.this) else None


def key_query(sql: str) -> str | None:
    """Return the query of the sort keys of the rows that a query sorts, in their order.

    None for what does not sort, shows only distinct rows, or cannot be read.
    """
    tree = _keys(sql)
    return None if tree is None else tree.sql("sqlite")


def _keys(sql: str) -> exp.Expression | None:
    tree = parse_query(sql)
    order = tree.args.get("order") if tree is not None else None
    if not isinstance(tree, exp.Select) or not order or tree.args.get("distinct"):
        return None
    for key in order.expressions:
        key.set("this", _meant(key.this, tree.expressions))
    tree.set("expressions", [key.this.copy() for key in order.expressions])
    return tree


def _meant(key: exp.Expression, shown: list[exp.Expression]) -> exp.Expression:
    """Return what a sort key stands for: a number or an alias names what is shown."""
    if isinstance(key, exp.Literal) and not key.is_string and 0 < int(key.this) <= len(shown):
        found = shown[int(key.this) - 1]
        return (found.this if isinstance(found, exp.Alias) else found).copy()
    if isinstance(key, exp.Column) and not key.table:
        for one in shown:
            if isinstance(one, exp.Alias) and one.alias.lower() == key.name.lower():
                return one.this.copy()
    return key
