"""SQL as a tree, parsed once for all parts of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sqlglot import exp

from jaxrl_sql.text2sql.env.dialect import SQLGLOT
from jaxrl_sql.text2sql.env.parse import parse_query

_KEPT = 16_384


@lru_cache(_KEPT)
def parsed(sql: str, dialect: str = "sqlite") -> exp.Expression | None:
    """Return the tree of a query in a dialect of `DIALECTS`, None when it does not parse; nobody may change it."""
    return parse_query(sql, SQLGLOT.get(dialect, dialect))


def own_nodes(tree: exp.Expression | None, *kinds: type[exp.Expression]) -> Iterator[exp.Expression]:
    """Iterate over the nodes of some kinds in a part of a query, those of queries inside it left out."""
    if tree is None or isinstance(tree, exp.Query):
        return
    if isinstance(tree, kinds):
        yield tree
    for child in tree.iter_expressions():
        yield from own_nodes(child, *kinds)


def first_select(tree: exp.Expression | None) -> exp.Select | None:
    """Return the first SELECT of a query: of a set operation the left-most one, of brackets what is in them."""
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    return tree if isinstance(tree, exp.Select) else None
