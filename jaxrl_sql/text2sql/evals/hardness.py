"""Spider's difficulty levels: easy, medium, hard and extra, from three component counts of a gold (a reference query).

The levels follow Spider's evaluation (Yu et al., EMNLP 2018), which counts only the first SELECT:

* plain: one each for WHERE, GROUP BY, ORDER BY and LIMIT; one per table beyond the first; one per OR and LIKE in ON,
  WHERE and HAVING.
* nested: one per subquery in ON, WHERE and HAVING, and one for UNION, INTERSECT or EXCEPT. Subqueries in FROM do not
  count.
* others, at most four: one each for more than one aggregate, selected column, WHERE condition and GROUP BY column.
  Aggregates count in SELECT, GROUP BY and ORDER BY, but not in HAVING. A negated condition (NOT IN, NOT LIKE) counts as
  an aggregate, as in the published levels.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import tables_of
from jaxrl_sql.text2sql.evals.parse import first_select, own_nodes, parse_cached


class ComponentCounts(NamedTuple):
    """The component counts of a query, as the module's docstring defines them."""

    plain: int
    nested: int
    others: int


def spider_level(sql: str, dialect: str = "sqlite") -> str:
    """Return the level of a query in a dialect of `DIALECTS`, "" if it does not parse."""
    parts = count_parts(sql, dialect)
    return "" if parts is None else level(parts)


def level(parts: ComponentCounts) -> str:
    """Return the level of component counts."""
    plain, nested, others = parts
    if nested == 0 and plain <= 1 and others == 0:
        return "easy"
    if nested == 0 and ((plain <= 1 and others <= 2) or (plain <= 2 and others < 2)):
        return "medium"
    if nested == 0 and ((plain <= 2 and others > 2) or (plain == 3 and others <= 2)):
        return "hard"
    return "hard" if plain <= 1 and others == 0 and nested <= 1 else "extra"


def count_parts(sql: str, dialect: str = "sqlite") -> ComponentCounts | None:
    """Count the components of a query's first SELECT; None if it does not parse."""
    tree = parse_cached(sql, dialect)
    select = first_select(tree)
    if tree is None or select is None:
        return None
    where, having = select.args.get("where"), select.args.get("having")
    joins = select.args.get("joins") or []
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    conditions += [clause.this for clause in (where, having) if clause is not None]
    # ORDER BY and LIMIT of a set operation count for its last SELECT in Spider, not for the first.
    clauses = [select.args.get(name) for name in ("where", "group", "order", "limit")]
    plain = sum(clause is not None for clause in clauses) + len(tables_of(select)) - 1
    plain += sum(1 for part in conditions for _ in own_nodes(part, exp.Or, exp.Like))
    nested = sum(_queries(part) for part in conditions) + isinstance(tree, exp.SetOperation)
    return ComponentCounts(plain, nested, _others(select, where))


def _queries(condition: exp.Expression) -> int:
    """Count the outermost queries in a condition."""
    if isinstance(condition, exp.Query):
        return 1
    return sum(_queries(child) for child in condition.iter_expressions())


def _others(select: exp.Select, where: exp.Expression | None) -> int:
    """Return the count `others` of the module's docstring."""
    group_by, order_by = select.args.get("group"), select.args.get("order")
    clauses = [*select.expressions, *([group_by] if group_by else []), *([order_by] if order_by else [])]
    aggregates = sum(1 for part in clauses for _ in own_nodes(part, exp.AggFunc))
    conditions = _conditions(where.this) if where is not None else []
    aggregates += sum(_is_negated(condition) for condition in conditions)
    columns = group_by.expressions if group_by is not None else []
    return (aggregates > 1) + (len(select.expressions) > 1) + (len(conditions) > 1) + (len(columns) > 1)


def _conditions(condition: exp.Expression) -> list[exp.Expression]:
    """Split a condition at AND and OR."""
    if isinstance(condition, exp.Connector):
        return _conditions(condition.left) + _conditions(condition.right)
    return _conditions(condition.this) if isinstance(condition, exp.Paren) else [condition]


def _is_negated(condition: exp.Expression) -> bool:
    return isinstance(condition, exp.Not) or bool(condition.args.get("negate"))
