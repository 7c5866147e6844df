"""Derive a short reasoning text from a query, simple enough for a small model to learn.

Inner queries come first. Each query is one clause: tables, conditions, grouping, sorting and result columns. An outer
query refers to the result of an inner one as `that`. Names are written without table aliases.
"""

from __future__ import annotations

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import parse_query, tables_of

_SET_WORDS = {exp.Union: "or", exp.Intersect: "and also", exp.Except: "but not"}
_INNER = "that"


def reason(sql: str) -> str:
    """Return the reasoning, such as `blasts where crew_size > 30: mine_id; then mines where id IN that: name`.

    Empty if the text does not parse as one query.
    """
    parsed = parse_query(sql)
    return "; then ".join(_thoughts(parsed)) if isinstance(parsed, exp.Query) else ""


def _thoughts(query: exp.Expression) -> list[str]:
    """Return the clauses of a query, those of its inner queries first."""
    if isinstance(query, exp.Subquery):
        return _thoughts(query.this)
    if isinstance(query, exp.SetOperation):
        left, right = _thoughts(query.left), _thoughts(query.right)
        word = next(word for query_type, word in _SET_WORDS.items() if isinstance(query, query_type))
        return [*left[:-1], *right[:-1], f"{left[-1]} {word} {right[-1]}"]
    if not isinstance(query, exp.Select):
        return []
    inner = [subquery for subquery in query.find_all(exp.Query) if _belongs(subquery, query)]
    return [*(thought for subquery in inner for thought in _thoughts(subquery)), _clause(query)]


def _belongs(query: exp.Expression, outer: exp.Select) -> bool:
    """Return whether a query is nested directly in another, not in a third."""
    return (
        query is not outer
        and not isinstance(query, exp.Subquery)
        and query.find_ancestor(exp.Select) is outer
        and (not isinstance(query.parent, exp.SetOperation))
    )


def _clause(select: exp.Select) -> str:
    """Return the clause of a SELECT, without its inner queries."""
    plain = _without_aliases(select)
    tables = ", ".join(dict.fromkeys(_table(table) for table in tables_of(plain)))
    text = tables
    if where := plain.args.get("where"):
        text += f" where {_words(where.this)}"
    if group := plain.args.get("group"):
        text += f" by {', '.join(map(_words, group.expressions))}"
    if having := plain.args.get("having"):
        text += f" with {_words(having.this)}"
    if order := plain.args.get("order"):
        text += f" sort {', '.join(map(_words, order.expressions))}"
    if limit := plain.args.get("limit"):
        text += f" top {_words(limit.expression)}"
    shown = ", ".join(map(_words, plain.expressions))
    return f"{text}: {'different ' if plain.args.get('distinct') else ''}{shown}"


def _without_aliases(select: exp.Select) -> exp.Select:
    """Return a copy without table names in columns, and with `that` in place of inner queries."""
    copy = select.copy()
    copy.set("with_", None)
    copy.set("with", None)
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    for query in list(copy.find_all(exp.Subquery)):
        if query.parent is not None and query.find_ancestor(exp.Subquery) is None:
            query.replace(
                exp.column(_INNER) if not isinstance(query.parent, exp.From | exp.Join) else exp.to_table(_INNER)
            )
    for node in copy.find_all(exp.In):
        if node.args.get("query") is not None:
            node.set("query", None)
            node.set("field", exp.column(_INNER))
    return copy


def _table(table: exp.Expression) -> str:
    return table.name or _INNER


def _words(expression: exp.Expression) -> str:
    return expression.sql("sqlite")
