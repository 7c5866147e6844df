"""Find queries whose LIMIT cuts through ties, so that the engine decides which of the tied rows it returns.

A LIMIT (with its OFFSET) cuts through a tie if the rows before and after the cut have the same values of ORDER BY, or
if there is no ORDER BY. `cuts_through_ties` checks every part of a gold that has a LIMIT and runs by itself. It counts
a tie only if the tied rows differ in the selected columns. `is_tied` is stricter: it checks the outermost SELECT and
compares only sort keys.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.dialect import SQLGLOT
from jaxrl_sql.text2sql.env.parse import parse_query
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.parse import parse_cached

# The number of rows after a cut that are checked for ties. Larger limits are not checked.
_ROWS_AFTER = 1_000
_MAX_LIMIT = 100_000


class _Cut(NamedTuple):
    """A query for a gold's rows with their sort keys, without OFFSET and with a larger LIMIT than the gold.

    `keys` are the indices of the sort keys' columns in the result; negative ones count from the end. `selected_end` is
    the index after the last column that the gold selects, before added sort keys. It is negative if it counts from the
    end, and None if no keys are added. The gold returns the rows from `first` (included) to `last` (excluded).
    """

    sql: str
    keys: tuple[int, ...]
    selected_end: int | None
    first: int
    last: int


def cuts_through_ties(executor: SqlExecutor, golds: Sequence[tuple[str, str, str]]) -> list[bool]:
    """Return for each (database, gold, dialect) whether a LIMIT cuts through ties; False if unknown."""
    plans = [(i, database, cut) for i, (database, sql, dialect) in enumerate(golds) for cut in _make_cuts(sql, dialect)]
    outcomes = executor.execute_many([(database, cut.sql) for _, database, cut in plans])
    is_cut = [False] * len(golds)
    for (i, _, cut), outcome in zip(plans, outcomes, strict=True):
        if outcome.status == "ok":
            cut_positions = [position for position in (cut.first, cut.last) if 0 < position < len(outcome.rows)]
            is_cut[i] = is_cut[i] or any(_tied_rows_differ(outcome.rows, cut, position) for position in cut_positions)
    return is_cut


def _tied_rows_differ(rows: Sequence[tuple[object, ...]], cut: _Cut, position: int) -> bool:
    """Return whether rows before and after the cut have the same sort key, but differ in the selected columns.

    The cut is between the rows `position` - 1 and `position`.
    """
    key = _sort_key(rows[position], cut)
    if _sort_key(rows[position - 1], cut) != key:
        return False
    before = takewhile(lambda row: _sort_key(row, cut) == key, reversed(rows[:position]))
    after = takewhile(lambda row: _sort_key(row, cut) == key, rows[position:])
    return len({row[: cut.selected_end] for row in (*before, *after)}) > 1


def _sort_key(row: tuple[object, ...], cut: _Cut) -> list[object]:
    return [row[column] for column in cut.keys]


def _make_cuts(sql: str, dialect: str) -> list[_Cut]:
    """Return the cuts of each part of a query that has a LIMIT."""
    if "limit" not in sql.lower():
        return []
    tree = parse_cached(sql, dialect)
    if tree is None:
        return []
    name = SQLGLOT.get(dialect, dialect)
    cuts = [_make_cut(query, name) for query in tree.find_all(exp.Select, exp.SetOperation) if query.args.get("limit")]
    return [cut for cut in cuts if cut is not None]


def _make_cut(query: exp.Expression, dialect: str) -> _Cut | None:
    """Return the cut of a query; None if its LIMIT is not a small literal, or if its sort keys cannot be selected."""
    limit, offset = query.args["limit"].expression, query.args.get("offset")
    count, first = _literal_count(limit), _literal_count(offset.expression) if offset is not None else 0
    if count is None or first is None or not 0 < first + count <= _MAX_LIMIT:
        return None
    extended = query.copy()
    extended.set("offset", None)
    extended.set("limit", exp.Limit(expression=exp.Literal.number(first + count + _ROWS_AFTER)))
    order = query.args.get("order")
    ordered = [_without_collation(key.this) for key in order.expressions] if order is not None else []
    selected = query.selects
    if any(item.is_star for item in selected):
        # The number of columns of `*` is unknown, so keys are added after it and indexed from the end.
        keys = tuple(range(-len(ordered), 0)) if all(_add_key(extended, key) for key in ordered) else None
        selected_end = -len(ordered) or None
    else:
        positions = [_key_index(extended, selected, key) for key in ordered]
        keys = tuple(position for position in positions if position is not None)
        keys, selected_end = (keys if len(keys) == len(positions) else None), len(selected)
    return (
        None if keys is None else _Cut(extended.sql(dialect, comments=False), keys, selected_end, first, first + count)
    )


def _key_index(query: exp.Expression, selected: Sequence[exp.Expression], key: exp.Expression) -> int | None:
    """Return the index of a sort key among the selected columns; None if it is not there and cannot be added."""
    column = _selected_index(key, selected)
    if column is not None:
        return column
    return len(query.selects) - 1 if _add_key(query, key) else None


def _add_key(query: exp.Expression, key: exp.Expression) -> bool:
    """Add a key to the selected columns, unless that may change the rows; return whether it was added."""
    is_plain = isinstance(query, exp.Select) and not query.args.get("distinct")
    if not is_plain or isinstance(key, exp.Literal):
        return False
    query.select(key.copy(), copy=False)
    return True


def _without_collation(key: exp.Expression) -> exp.Expression:
    """Return a sort key without COLLATE and parentheses."""
    while isinstance(key, exp.Collate | exp.Paren):
        key = key.this
    return key


def _literal_count(node: exp.Expression) -> int | None:
    """Return the value of a literal whole number; None for anything else."""
    return int(node.name) if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit() else None


def is_tied(connection: sqlite3.Connection, sql: str) -> bool:
    """Return whether the last row of `ORDER BY … LIMIT k` and the next row have the same sort keys.

    False for a query without such a cut, or one that cannot be parsed.
    """
    cut = _cut_of_keys(sql)
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


def key_query(sql: str) -> str | None:
    """Return a query for the sort keys of a query's rows, in their order.

    None if the query does not sort, uses DISTINCT, or cannot be parsed.
    """
    tree = _select_sort_keys(sql)
    return None if tree is None else tree.sql("sqlite")


@lru_cache(1 << 14)
def _cut_of_keys(sql: str) -> tuple[str, int] | None:
    """Return a query for the sort keys up to one row after the cut, and the number of rows before the cut."""
    tree = _select_sort_keys(sql)
    limit = tree.args.get("limit") if tree is not None else None
    if tree is None or limit is None or tree.args.get("offset"):
        return None
    count = _literal_count(limit.expression)
    if not count:
        return None
    tree.set("limit", exp.Limit(expression=exp.Literal.number(count + 1)))
    return tree.sql("sqlite"), count


def _select_sort_keys(sql: str) -> exp.Expression | None:
    """Return a query's tree with its sort keys as the selected columns; None if it is not sorted, or DISTINCT."""
    tree = parse_query(sql)
    order = tree.args.get("order") if tree is not None else None
    if not isinstance(tree, exp.Select) or not order or tree.args.get("distinct"):
        return None
    for key in order.expressions:
        key.set("this", _without_alias(key.this, tree.selects))
    tree.set("expressions", [key.this.copy() for key in order.expressions])
    return tree


def _without_alias(key: exp.Expression, selected: Sequence[exp.Expression]) -> exp.Expression:
    """Return the selected expression that a sort key names by number or alias, otherwise the key itself."""
    column = _selected_index(key, selected)
    if column is None or (isinstance(key, exp.Column) and not isinstance(selected[column], exp.Alias)):
        return key
    return selected[column].unalias().copy()


def _selected_index(key: exp.Expression, selected: Sequence[exp.Expression]) -> int | None:
    """Return the index of the selected column that a sort key names by number, alias or name, or repeats, if any."""
    if isinstance(key, exp.Literal) and not key.is_string:
        return int(key.name) - 1 if key.name.isdigit() and 0 < int(key.name) <= len(selected) else None
    if isinstance(key, exp.Column) and not key.table:
        name = key.name.lower()
        for names in ([item.alias.lower() for item in selected], [item.alias_or_name.lower() for item in selected]):
            if name in names:
                return names.index(name)
    bare = [item.unalias() for item in selected]
    return bare.index(key) if key in bare else None
