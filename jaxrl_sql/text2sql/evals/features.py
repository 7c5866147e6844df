"""Name the SQL features of a query, to group accuracy by feature."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import tables_of
from jaxrl_sql.text2sql.evals.parse import parse_cached

_CACHE_SIZE = 16_384


def _has_join(tree: exp.Expression) -> bool:
    return any(len(tables_of(select)) > 1 for select in tree.find_all(exp.Select))


def _has_nested_query(tree: exp.Expression) -> bool:
    """Return whether an expression or a FROM clause contains a query.

    Members of set operations (such as UNION) and common table expressions do not count.
    """
    inner = (node for node in tree.find_all(exp.Select) if node is not tree)
    return any(not isinstance(_enclosing_node(select), exp.SetOperation | exp.CTE | None) for select in inner)


def _enclosing_node(select: exp.Expression) -> exp.Expression | None:
    """Return the node that contains a query, outside its parentheses and set operations."""
    node = select.parent
    while isinstance(node, exp.Subquery) and isinstance(node.parent, exp.SetOperation | exp.Subquery):
        node = node.parent
    if isinstance(node, exp.SetOperation):
        return _enclosing_node(node) or node
    if isinstance(node, exp.Subquery) and node.parent is None:
        return None
    return node


# The node types of each feature: any of them suffices. DISTINCT counts in SELECT and in aggregates, as both affect
# results.
NODE_TYPES: dict[str, tuple[type[exp.Expression], ...]] = {
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
PREDICATES: dict[str, Callable[[exp.Expression], bool]] = {
    "join": _has_join,
    "outer_join": lambda tree: any(join.side for join in tree.find_all(exp.Join)),
    "nested": _has_nested_query,
}


@lru_cache(_CACHE_SIZE)
def features_of(sql: str, dialect: str = "sqlite") -> tuple[str, ...]:
    """Return the names of a query's features, `plain` if it has none, `unparsed` if it does not parse."""
    tree = parse_cached(sql, dialect)
    if tree is None:
        return ("unparsed",)
    node_types = {type(node) for node in tree.walk()}
    names = [name for name, predicate in PREDICATES.items() if predicate(tree)]
    names += [name for name, types in NODE_TYPES.items() if any(issubclass(type_, types) for type_ in node_types)]
    return tuple(names) or ("plain",)
