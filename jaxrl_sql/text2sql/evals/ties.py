"""Golds whose LIMIT cuts through ties: which of the equally good rows come back is the engine's choice alone.

A LIMIT (with its OFFSET) cuts where the rows before and behind the cut have the same values of ORDER BY, or where there
is no ORDER BY at all, and some of the tied rows differ in what is selected. Looked at is every part of a query that has
a LIMIT and runs by itself; one that refers to the query round it is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.dialect import SQLGLOT
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.parse import parsed

# Of ties at a cut so many rows are looked at.
_ROWS_BEHIND = 1_000
_MAX_LIMIT = 100_000


class _Cut(NamedTuple):
    """A query that returns rows with their keys; the rows `first` to `last` are what its LIMIT leaves."""

    sql: str
    keys: tuple[int, ...]  # columns of the result
    width: int | None  # where the columns end that the gold selects, and keys begin; None: nowhere
    first: int
    last: int


def cuts_through_ties(executor: SqlExecutor, golds: Sequence[tuple[str, str, str]]) -> list[bool]:
    """Return for each (database, gold, dialect) whether a LIMIT cuts through ties; False where that is not known."""
    plans = [(i, database, cut) for i, (database, sql, dialect) in enumerate(golds) for cut in _cuts(sql, dialect)]
    outcomes = executor.execute_many([(database, cut.sql) for _, database, cut in plans])
    found = [False] * len(golds)
    for (i, _, cut), outcome in zip(plans, outcomes, strict=True):
        if outcome.status == "ok":
            edges = [edge for edge in (cut.first, cut.last) if 0 < edge < len(outcome.rows)]
            found[i] = found[i] or any(_differs_round(outcome.rows, cut, edge) for edge in edges)
    return found


def _differs_round(rows: Sequence[tuple[object, ...]], cut: _Cut, edge: int) -> bool:
    """Return whether rows tied with those on both sides of an edge differ in what is selected."""
    key = _key(rows[edge], cut)
    if _key(rows[edge - 1], cut) != key:
        return False
    before = takewhile(lambda row: _key(row, cut) == key, reversed(rows[:edge]))
    behind = takewhile(lambda row: _key(row, cut) == key, rows[edge:])
    return len({row[: cut.width] for row in (*before, *behind)}) > 1


def _key(row: tuple[object, ...], cut: _Cut) -> list[object]:
    return [row[column] for column in cut.keys]


def _cuts(sql: str, dialect: str) -> list[_Cut]:
    if "limit" not in sql.lower():
        return []
    tree = parsed(sql, dialect)
    if tree is None:
        return []
    name = SQLGLOT.get(dialect, dialect)
    cuts = [_cut(query, name) for query in tree.find_all(exp.Select, exp.SetOperation) if query.args.get("limit")]
    return [cut for cut in cuts if cut is not None]


def _cut(query: exp.Expression, dialect: str) -> _Cut | None:
    limit, offset = query.args["limit"].expression, query.args.get("offset")
    kept, first = _number(limit), _number(offset.expression) if offset is not None else 0
    if kept is None or first is None or not 0 < first + kept <= _MAX_LIMIT:
        return None
    wider = query.copy()
    wider.set("offset", None)
    wider.set("limit", exp.Limit(expression=exp.Literal.number(first + kept + _ROWS_BEHIND)))
    order = query.args.get("order")
    ordered = [_bare(key.this) for key in order.expressions] if order is not None else []
    selected = query.selects
    if any(one.is_star for one in selected):
        # How many columns `*` is, is not known: keys are added behind it and counted from the end.
        keys = tuple(range(-len(ordered), 0)) if all(_is_added(wider, key) for key in ordered) else None
        width = -len(ordered) or None
    else:
        places = [_place(wider, selected, key) for key in ordered]
        keys = tuple(place for place in places if place is not None)
        keys, width = (keys if len(keys) == len(places) else None), len(selected)
    return None if keys is None else _Cut(wider.sql(dialect, comments=False), keys, width, first, first + kept)


def _place(query: exp.Expression, selected: Sequence[exp.Expression], key: exp.Expression) -> int | None:
    """Return the column that holds what a query is ordered by, added if need be; None where it cannot be."""
    names = [one.alias_or_name.lower() for one in selected]
    bare = [one.unalias() for one in selected]
    if isinstance(key, exp.Literal) and not key.is_string:
        return int(key.name) - 1 if key.name.isdigit() and 0 < int(key.name) <= len(selected) else None
    if isinstance(key, exp.Column) and not key.table and key.name.lower() in names:
        return names.index(key.name.lower())
    if key in bare:
        return bare.index(key)
    return len(query.selects) - 1 if _is_added(query, key) else None


def _is_added(query: exp.Expression, key: exp.Expression) -> bool:
    """Select a key as well, where that leaves the rows as they are."""
    is_plain = isinstance(query, exp.Select) and not query.args.get("distinct")
    if not is_plain or isinstance(key, exp.Literal):
        return False
    query.select(key.copy(), copy=False)
    return True


def _bare(key: exp.Expression) -> exp.Expression:
    while isinstance(key, exp.Collate | exp.Paren):
        key = key.this
    return key


def _number(node: exp.Expression) -> int | None:
    return int(node.name) if isinstance(node, exp.Literal) and node.name.isdigit() else None
