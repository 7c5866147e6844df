"""Derive a short reasoning text from a query, simple enough for a small model to learn to write before its SQL.

The text has a clause per SELECT: tables, conditions, grouping, sorting and result columns. The clauses of inner queries
come first, and an outer query refers to the result of an inner one as `that`. Columns are written without the names of
their tables.
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
    return "; then ".join(_clauses(parsed)) if isinstance(parsed, exp.Query) else ""


def _clauses(query: exp.Expression) -> list[str]:
    """Return the clauses of a query, those of its inner queries first."""
    if isinstance(query, exp.Subquery):
        return _clauses(query.this)
    if isinstance(query, exp.SetOperation):
        left, right = _clauses(query.left), _clauses(query.right)
        word = next(word for query_type, word in _SET_WORDS.items() if isinstance(query, query_type))
        return [*left[:-1], *right[:-1], f"{left[-1]} {word} {right[-1]}"]
    if not isinstance(query, exp.Select):
        return []
    inner = [subquery for subquery in query.find_all(exp.Query) if _is_nested_directly(subquery, query)]
    return [*(clause for subquery in inner for clause in _clauses(subquery)), _clause(query)]


def _is_nested_directly(query: exp.Expression, outer: exp.Select) -> bool:
    """Return whether a query is nested in `outer`, and not in another query inside of it."""
    return (
        query is not outer
        and not isinstance(query, exp.Subquery)
        and query.find_ancestor(exp.Select) is outer
        and (not isinstance(query.parent, exp.SetOperation))
    )


def _clause(select: exp.Select) -> str:
    """Return the clause of a SELECT, with `that` for its inner queries."""
    plain = _simplify(select)
    tables = ", ".join(dict.fromkeys(_table(table) for table in tables_of(plain)))
    text = tables
    if where := plain.args.get("where"):
        text += f" where {_sql(where.this)}"
    if group := plain.args.get("group"):
        text += f" by {', '.join(map(_sql, group.expressions))}"
    if having := plain.args.get("having"):
        text += f" with {_sql(having.this)}"
    if order := plain.args.get("order"):
        text += f" sort {', '.join(map(_sql, order.expressions))}"
    if limit := plain.args.get("limit"):
        text += f" top {_sql(limit.expression)}"
    columns = ", ".join(map(_sql, plain.expressions))
    return f"{text}: {'different ' if plain.args.get('distinct') else ''}{columns}"


def _simplify(select: exp.Select) -> exp.Select:
    """Return a copy without table names in columns, and with `that` in place of inner queries."""
    copy = select.copy()
    # The name of this argument depends on sqlglot's version.
    copy.set("with_", None)
    copy.set("with", None)
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    for query in list(copy.find_all(exp.Subquery)):
        if query.parent is not None and query.find_ancestor(exp.Subquery) is None:
            query.replace(
                exp.column(_INNER) if not isinstance(query.parent, exp.From | exp.Join) else exp.to_table(_INNER)
            )
    # `x IN (query)` becomes `x IN that`; sqlglot keeps a column there in `field`.
    for node in copy.find_all(exp.In):
        if node.args.get("query") is not None:
            node.set("query", None)
            node.set("field", exp.column(_INNER))
    return copy


def _table(table: exp.Expression) -> str:
    return table.name or _INNER


def _sql(expression: exp.Expression) -> str:
    return expression.sql("sqlite")
