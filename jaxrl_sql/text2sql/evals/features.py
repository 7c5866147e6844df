"""What a query uses, by name: the columns of a table that says where a model is weak."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import tables_of
from jaxrl_sql.text2sql.evals.parse import parsed

_KEPT = 16_384


def _joins(tree: exp.Expression) -> bool:
    return any(len(tables_of(select)) > 1 for select in tree.find_all(exp.Select))


def _nests(tree: exp.Expression) -> bool:
    """Return whether a query stands in an expression or in FROM; parts of a set operation and CTEs are not nested."""
    inner = (node for node in tree.find_all(exp.Select) if node is not tree)
    return any(not isinstance(_holder(select), exp.SetOperation | exp.CTE | None) for select in inner)


def _holder(select: exp.Expression) -> exp.Expression | None:
    """Return what a query stands in, whatever brackets and set operations it is a part of."""
    node = select.parent
    while isinstance(node, exp.Subquery) and isinstance(node.parent, exp.SetOperation | exp.Subquery):
        node = node.parent
    if isinstance(node, exp.SetOperation):
        return _holder(node) or node
    if isinstance(node, exp.Subquery) and node.parent is None:
        return None
    return node


# Kinds of nodes, of which a query that uses the feature has one. DISTINCT of SELECT and of an aggregate both count:
# either one left out changes a result.
KINDS: dict[str, tuple[type[exp.Expression], ...]] = {
    "group": (exp.Group,),
    "having": (exp.Having,),
    "order": (exp.Order,),
    "limit": (exp.Limit,),
    "distinct": (exp.Distinct,),
    "aggregate": (exp.AggFunc,),
    "set_operation": (exp.SetOperation,),
    "cte": (exp.CTE,),
    "window": (exp.Window,),
    "like": (exp.Like, exp.Glob),
    "case": (exp.Case,),
    "cast": (exp.Cast,),
    "date": (exp.TsOrDsToTime, exp.TimeToStr, exp.Date, exp.CurrentDate),
    "arithmetic": (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod),
}
SHAPES: dict[str, Callable[[exp.Expression], bool]] = {
    "join": _joins,
    "outer_join": lambda tree: any(join.side for join in tree.find_all(exp.Join)),
    "nested": _nests,
}


@lru_cache(_KEPT)
def features_of(sql: str, dialect: str = "sqlite") -> tuple[str, ...]:
    """Return the names of what a query uses, `plain` when none of them, `unparsed` when it does not parse."""
    tree = parsed(sql, dialect)
    if tree is None:
        return ("unparsed",)
    found = {type(node) for node in tree.walk()}
    names = [name for name, has in SHAPES.items() if has(tree)]
    names += [name for name, kinds in KINDS.items() if any(issubclass(kind, kinds) for kind in found)]
    return tuple(names) or ("plain",)
