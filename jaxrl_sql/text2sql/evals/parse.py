"""Cached parsing of SQL for all parts of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sqlglot import exp

from jaxrl_sql.text2sql.env.dialect import SQLGLOT
from jaxrl_sql.text2sql.env.parse import parse_query

_CACHE_SIZE = 16_384


@lru_cache(_CACHE_SIZE)
def parse_cached(sql: str, dialect: str = "sqlite") -> exp.Expression | None:
    """Return the tree of a query in a dialect of `DIALECTS`, None if it does not parse; callers must not modify it."""
    return parse_query(sql, SQLGLOT.get(dialect, dialect))


def own_nodes(tree: exp.Expression | None, *types: type[exp.Expression]) -> Iterator[exp.Expression]:
    """Yield the nodes of the given types in a part of a query, without those in nested queries."""
    if tree is None or isinstance(tree, exp.Query):
        return
    if isinstance(tree, types):
        yield tree
    for child in tree.iter_expressions():
        yield from own_nodes(child, *types)


def first_select(tree: exp.Expression | None) -> exp.Select | None:
    """Return the first SELECT of a query: the left-most of a set operation, or the content of parentheses."""
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    return tree if isinstance(tree, exp.Select) else None
