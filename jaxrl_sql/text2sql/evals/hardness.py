"""Spider's levels of difficulty: easy, medium, hard and extra, by how many parts of three kinds a gold has.

As published with Spider (Yu et al., EMNLP 2018) and counted by its evaluation, of the first SELECT alone:

* parts: WHERE, GROUP BY, ORDER BY and LIMIT, one each; every table beyond the first; every OR and every LIKE in ON,
  WHERE and HAVING.
* nested: every query that ON, WHERE and HAVING compare with, and a UNION, INTERSECT or EXCEPT. A query in FROM is none.
* others, at most four: more than one aggregate; more than one column selected; more than one condition in WHERE; more
  than one column in GROUP BY. Aggregates are looked for in SELECT, GROUP BY and ORDER BY; those of HAVING are not
  counted, while a negated condition (NOT IN, NOT LIKE) counts as one. That is how the published levels came about.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import tables_of
from jaxrl_sql.text2sql.evals.parse import first_select, own_nodes, parsed


class Parts(NamedTuple):
    """How many parts of each kind a query has."""

    plain: int
    nested: int
    others: int


def spider_level(sql: str, dialect: str = "sqlite") -> str:
    """Return the level of a query in a dialect of `DIALECTS`, "" when it does not parse."""
    parts = count_parts(sql, dialect)
    return "" if parts is None else level(parts)


def level(parts: Parts) -> str:
    """Return the level for so many parts."""
    plain, nested, others = parts
    if nested == 0 and plain <= 1 and others == 0:
        return "easy"
    if nested == 0 and ((plain <= 1 and others <= 2) or (plain <= 2 and others < 2)):
        return "medium"
    if nested == 0 and ((plain <= 2 and others > 2) or (plain == 3 and others <= 2)):
        return "hard"
    return "hard" if plain <= 1 and others == 0 and nested <= 1 else "extra"


def count_parts(sql: str, dialect: str = "sqlite") -> Parts | None:
    """Count the parts of a query's first SELECT; None when it does not parse."""
    tree = parsed(sql, dialect)
    select = first_select(tree)
    if tree is None or select is None:
        return None
    where, having = select.args.get("where"), select.args.get("having")
    joins = select.args.get("joins") or []
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    conditions += [clause.this for clause in (where, having) if clause is not None]
    # What orders and cuts a set operation stands behind it, and is its last SELECT's to Spider: not the first one's.
    clauses = [select.args.get(name) for name in ("where", "group", "order", "limit")]
    plain = sum(clause is not None for clause in clauses) + len(tables_of(select)) - 1
    plain += sum(1 for part in conditions for _ in own_nodes(part, exp.Or, exp.Like))
    nested = sum(_queries(part) for part in conditions) + isinstance(tree, exp.SetOperation)
    return Parts(plain, nested, _others(select, where))


def _queries(condition: exp.Expression) -> int:
    """Count the queries that a condition holds, not those inside of them."""
    if isinstance(condition, exp.Query):
        return 1
    return sum(_queries(child) for child in condition.iter_expressions())


def _others(select: exp.Select, where: exp.Expression | None) -> int:
    group, order = select.args.get("group"), select.args.get("order")
    looked_at = [*select.expressions, *([group] if group else []), *([order] if order else [])]
    aggregates = sum(1 for part in looked_at for _ in own_nodes(part, exp.AggFunc))
    conditions = _conditions(where.this) if where is not None else []
    aggregates += sum(_is_negated(condition) for condition in conditions)
    columns = group.expressions if group is not None else []
    return (aggregates > 1) + (len(select.expressions) > 1) + (len(conditions) > 1) + (len(columns) > 1)


def _conditions(condition: exp.Expression) -> list[exp.Expression]:
    """Take a condition apart at AND and OR."""
    if isinstance(condition, exp.Connector):
        return _conditions(condition.left) + _conditions(condition.right)
    return _conditions(condition.this) if isinstance(condition, exp.Paren) else [condition]


def _is_negated(condition: exp.Expression) -> bool:
    return isinstance(condition, exp.Not) or bool(condition.args.get("negate"))
