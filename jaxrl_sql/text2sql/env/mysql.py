"""Translate MySQL queries to SQLite: listed functions and clauses are translated, others refused by name.

sqlglot parses MySQL and writes SQLite. `_PLAIN` lists the nodes of its trees that mean the same in both engines.
Functions that SQLite lacks or that differ are rewritten (`mysql_dates`, `mysql_text`, `mysql_numbers`). Everything else
is refused, so an answer is never scored by the result of another query.

Many conversions depend on the kind of a value: `number`, `text`, `date` or `null`. `for_sqlite` stores it in each
node's `meta["kind"]`, from which `kind_of` reads it. It is None if the query alone does not determine it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlglot import exp

from jaxrl_sql.text2sql.env import mysql_dates, mysql_numbers, mysql_text
from jaxrl_sql.text2sql.env.mysql_parts import Refused, Rewrite, derive_kind, has_aggregate, name_of

_PLAIN = (
    # Clauses
    exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset,
    exp.Distinct, exp.Union, exp.Intersect, exp.Except, exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Table,
    exp.Identifier, exp.Column, exp.Star, exp.Alias, exp.Window, exp.WindowSpec, exp.Var, exp.Hint, exp.Lock,
    exp.IndexTableHint,
    # Values and operators
    exp.Null, exp.Boolean, exp.Paren, exp.Tuple, exp.And, exp.Or, exp.Not, exp.Is, exp.Exists, exp.If, exp.Neg,
    exp.DataType, exp.DataTypeParam, exp.Interval,
    # Functions
    exp.Coalesce, exp.Upper, exp.Lower, exp.Replace, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.AnyValue,
    exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead, exp.FirstValue,
    exp.LastValue, exp.NthValue, exp.Pi, exp.Atan2, exp.CurrentDate, exp.CurrentTime, exp.UtcDate, exp.UtcTime,
)  # fmt: skip


def for_sqlite(tree: exp.Expression, numeric: Collection[str] = ()) -> exp.Expression:
    """Rewrite parts that SQLite lacks, from the leaves to the root; raise Refused with the name of any other part.

    `numeric` are the names of numeric columns, in lower case.
    """
    root = exp.Paren(this=tree)
    nodes = list(tree.walk())
    if numeric:
        _mark_numeric(nodes, numeric)
    for node in nodes:
        if type(node) not in _REWRITES and not isinstance(node, _PLAIN):
            raise Refused(name_of(node))
        if isinstance(node, exp.Select):
            node.meta["has_groups"] = _has_groups(node)
    for node in reversed(nodes):
        rewrite = _REWRITES.get(type(node))
        kind = derive_kind(node)
        node.meta["kind"] = kind
        new = rewrite(node) if rewrite else None
        if new is not None and new is not node:
            new.meta.setdefault("kind", kind)
            node.replace(new)
    return root.this


def _mark_numeric(nodes: list[exp.Expression], numeric: Collection[str]) -> None:
    """Mark the nodes of numeric columns, except names that the query reuses for other values."""
    if any(isinstance(node, exp.SetOperation) and isinstance(node.parent, exp.Subquery | exp.CTE) for node in nodes):
        return  # its result columns combine values of several columns
    reused = set()
    for node in nodes:
        if isinstance(node, exp.Alias) and not (isinstance(node.this, exp.Column) and node.this.name == node.alias):
            reused.add(node.alias.lower())
        elif isinstance(node, exp.TableAlias):
            reused.update(column.name.lower() for column in node.args.get("columns") or ())
    for node in nodes:
        if isinstance(node, exp.Column):
            name = node.name.lower()
            node.meta["numeric"] = name in numeric and name not in reused


def _rewrite_call(node: exp.Expression) -> exp.Expression | None:
    """Rewrite a function without a class in sqlglot."""
    name, arguments = str(node.this).upper(), node.expressions
    if isinstance(node.parent, exp.Hint):
        return None
    for rewrite_call in (mysql_dates.rewrite_call, mysql_text.rewrite_call):
        new = rewrite_call(name, arguments)
        if new is not None:
            return new
    raise Refused(f"{name} with {len(arguments)} arguments")


def _rewrite_set_operation(node: exp.Expression) -> exp.Expression:
    """Remove the parentheses around a part of a UNION, which SQLite refuses; use a subquery for ORDER BY or LIMIT."""
    if not isinstance(node, exp.Union) and node.args.get("distinct") is False:
        raise Refused(f"{type(node).__name__.upper()} ALL")
    for name in ("this", "expression"):
        operand = node.args[name]
        if isinstance(operand, exp.Subquery) and not operand.alias:
            inner = operand.this
            is_plain = not any(inner.args.get(key) for key in ("order", "limit", "offset", "with_"))
            node.set(name, inner if is_plain else exp.select("*").from_(operand.copy()))
    return node


def _rewrite_select(node: exp.Expression) -> exp.Expression:
    """Drop planner hints and the dummy table DUAL, and convert a HAVING without groups to a WHERE condition."""
    node.set("operation_modifiers", None)
    source = node.args.get("from_")
    if source is not None and isinstance(source.this, exp.Table) and source.name.upper() == "DUAL":
        node.set("from_", None)
    having = node.args.get("having")
    if having is not None and node.meta["has_groups"]:
        _replace_aliases_in_having(node, having)
    elif having is not None:
        _move_having_to_where(node, having)
    return node


def _has_groups(select: exp.Expression) -> bool:
    """Return whether a query has a GROUP BY or an aggregate."""
    having = select.args.get("having")
    parts = [*select.expressions, *([having] if having is not None else [])]
    return bool(select.args.get("group")) or any(has_aggregate(part) for part in parts)


def _replace_aliases_in_having(select: exp.Expression, having: exp.Expression) -> None:
    """Replace aliases in HAVING by their expressions.

    If an alias and a column have the same name, MySQL uses the alias, but SQLite the column. MySQL also uses the column
    if GROUP BY has the name, and in aggregates and subqueries.
    """
    expressions = {output.alias.lower(): output.this for output in select.expressions if isinstance(output, exp.Alias)}
    group_by = select.args.get("group")
    keys = {key.name.lower() for key in group_by.expressions if isinstance(key, exp.Column)} if group_by else set()
    inside = having.walk(prune=lambda item: isinstance(item, exp.Select | exp.AggFunc | exp.GroupConcat))
    for column in [item for item in inside if isinstance(item, exp.Column)]:
        name = column.name.lower()
        if not column.table and name in expressions and name not in keys and expressions[name].find(exp.Window) is None:
            column.replace(exp.Paren(this=expressions[name].copy()))


def _move_having_to_where(select: exp.Expression, having: exp.Expression) -> None:
    """Move the condition of a HAVING without groups to WHERE, with aliases replaced by their expressions."""
    expressions = {output.alias.lower(): output.this for output in select.expressions if isinstance(output, exp.Alias)}
    if any(output.find(exp.Window) for output in select.expressions):
        raise Refused("HAVING without GROUP BY next to window functions")
    condition = exp.Paren(this=having.this.copy())
    for column in list(condition.find_all(exp.Column)):
        if not column.table and column.name.lower() in expressions:
            column.replace(exp.Paren(this=expressions[column.name.lower()].copy()))
    select.set("having", None)
    where = select.args.get("where")
    select.set("where", exp.Where(this=exp.and_(where.this, condition) if where else condition))


def _rewrite_join(node: exp.Expression) -> exp.Expression:
    """Write STRAIGHT_JOIN, which only fixes the order of execution, as an inner join."""
    if "STRAIGHT" in f"{node.args.get('kind')} {node.args.get('side')}":
        node.set("kind", None)
        node.set("side", None)
    return node


def _check_table(node: exp.Expression) -> exp.Expression | None:
    if not isinstance(node.this, exp.Identifier):
        raise Refused(f"the table function {name_of(node.this)}")
    for name in ("partition", "sample", "pivots", "version", "ordinality"):
        if node.args.get(name):
            raise Refused(f"{name.upper()} of a table")
    return None


def _check_derived_table(node: exp.Expression) -> exp.Expression | None:
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise Refused("names of the columns of a derived table")
    return None


def _check_group(node: exp.Expression) -> exp.Expression | None:
    for name in ("rollup", "cube", "grouping_sets", "totals"):
        if node.args.get(name):
            raise Refused(f"WITH {name.upper()}")
    return None


_REWRITES: Mapping[type[exp.Expression], Rewrite] = {
    **mysql_dates.REWRITES,
    **mysql_text.REWRITES,
    **mysql_numbers.REWRITES,
    exp.Anonymous: _rewrite_call,
    exp.Union: _rewrite_set_operation,
    exp.Intersect: _rewrite_set_operation,
    exp.Except: _rewrite_set_operation,
    exp.Select: _rewrite_select,
    exp.Join: _rewrite_join,
    exp.Table: _check_table,
    exp.Subquery: _check_derived_table,
    exp.Group: _check_group,
}
