"""Derive the rows that a query needs to return a row, as tables and conditions on their columns.

In `SELECT a.x FROM a JOIN b ON a.id = b.a WHERE b.y > 3`, these are one row of `a` and one of `b`, with a.id = b.a and
b.y > 3. Each table of each SELECT that must return something contributes one row. Columns that the query equates share
a value, which its literals constrain. Unsupported constructs are ignored, because the caller checks the result by
running the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import parse_query, tables_of
from jaxrl_sql.text2sql.schema.read import Schema, Table

RequiredCell = tuple[int, str]
"""A value of a required row: the index of the row in `RequiredRows.rows`, and the column's name in lower case."""
Scalar = Callable[[str], Any]
"""Runs a scalar subquery on the database and returns its value; None if it returns no row, or NULL."""

# The operator after both sides of a comparison are swapped.
_FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_SIGNS: dict[type[exp.Expression], str] = {
    exp.EQ: "=", exp.NEQ: "!=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.Is: "is",
    exp.NullSafeEQ: "=", exp.Like: "like", exp.Glob: "like",
}  # fmt: skip
# Functions that are ignored around a column, because for most values they change nothing that matters here.
_IGNORED_FUNCTIONS = (exp.Paren, exp.Lower, exp.Upper, exp.Trim, exp.Cast, exp.Abs, exp.Round)
_AGGREGATES = (exp.Avg, exp.Sum, exp.Max, exp.Min)
_MAX_COPIES = 50  # larger numbers of required rows are ignored


@dataclass
class RequiredRows:
    """The rows that a query needs: `rows` has the table of each.

    `conditions` are (cell, operator, value); operators other than comparisons are `like`, `null` (is NULL), `known` (is
    not NULL), and `new` (is not an existing value of the column). `equal` has the cells of equal value as a union-find
    forest: each maps to another cell of its set, up to the root, which maps to itself. `copies` is how many such rows a
    group (HAVING COUNT) or an OFFSET needs.
    """

    rows: list[Table] = field(default_factory=list)
    conditions: list[tuple[RequiredCell, str, Any]] = field(default_factory=list)
    equal: dict[RequiredCell, RequiredCell] = field(default_factory=dict)
    copies: int = 1

    def root(self, cell: RequiredCell) -> RequiredCell:
        """Return the root of the cells that are equal to this one, and add it to `equal` if it is new."""
        while (parent := self.equal.setdefault(cell, cell)) != cell:
            cell = parent
        return cell


def read_required_rows(sql: str, schema: Schema, scalar: Scalar, branch: int = 0) -> RequiredRows | None:
    """Return the rows that a query needs; None if it does not parse or reads no table.

    `branch` chooses between alternatives: 0 the first side of each OR and UNION and the first value of each IN list, 1
    the second. `scalar` runs scalar subqueries, whose values then are like literals.
    """
    tree = parse_query(sql)
    if not isinstance(tree, exp.Query):
        return None
    reader = _RequirementReader(schema, scalar, branch)
    reader.query(tree, [])
    return reader.required if reader.required.rows else None


@dataclass
class _Scope:
    """The names visible in a SELECT.

    `rows` has the index of the required row by the alias of its table, `inner` the cells of the result columns by the
    alias of an inner query.
    """

    rows: dict[str, int] = field(default_factory=dict)
    inner: dict[str, Mapping[str, RequiredCell | None]] = field(default_factory=dict)


class _RequirementReader:
    """Reads a query and collects the rows that it needs in `required`."""

    def __init__(self, schema: Schema, scalar: Scalar, branch: int) -> None:
        self.tables = {table.name.lower(): table for table in schema.tables}
        self.scalar, self.branch = scalar, branch
        self.required = RequiredRows()
        self.ctes: dict[str, exp.Expression] = {}
        # The CTEs that are being read, by `id`, because a recursive one contains itself.
        self.opened: set[int] = set()

    def query(self, tree: exp.Expression, outer: list[_Scope]) -> dict[str, RequiredCell | None]:
        """Read a query and return the cells of its result columns, by name, in order; None for an expression.

        `outer` are the scopes of the enclosing SELECTs, the innermost first.
        """
        for cte in tree.find_all(exp.CTE):
            self.ctes[cte.alias.lower()] = cte.this
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, outer)
        if isinstance(tree, exp.Union):
            return self.query(tree.right if self.branch else tree.left, outer)
        if isinstance(tree, exp.Except):
            left = self.query(tree.left, outer)
            for cell in left.values():
                self._add_bound(cell, "new", True)
            return left
        if isinstance(tree, exp.Intersect):
            left, right = self.query(tree.left, outer), self.query(tree.right, outer)
            for left_cell, right_cell in zip(left.values(), right.values(), strict=False):
                self._equate(left_cell, right_cell)
            return left
        return self._select(tree, outer) if isinstance(tree, exp.Select) else {}

    def _select(self, select: exp.Select, outer: list[_Scope]) -> dict[str, RequiredCell | None]:
        """Read a SELECT: its tables, joins, conditions and OFFSET; return the cells of its result columns."""
        scope = _Scope()
        scopes = [scope, *outer]
        for expression in tables_of(select):
            self._add_source(expression, scope, outer)
        for join in select.args.get("joins") or []:
            if on := join.args.get("on"):
                self._add_condition(on, scopes)
            for using in join.args.get("using") or ():
                joined = [row for row in scope.rows.values() if self._has_column(row, using.name)]
                for row in joined[1:]:
                    self._equate((joined[0], using.name.lower()), (row, using.name.lower()))
        for part in ("where", "having"):
            if clause := select.args.get(part):
                self._add_condition(clause.this, scopes)
        offset = select.args.get("offset")
        if offset is not None and (value := _literal(offset.expression)) is not None and isinstance(value, int):
            self._require_copies(value + 1)
        output_columns: dict[str, RequiredCell | None] = {}
        for number, expression in enumerate(select.expressions):
            node = expression.this if isinstance(expression, exp.Alias) else expression
            # Over one row, an aggregate equals the row's value.
            cell = self._cell(node.this if isinstance(node, _AGGREGATES) else node, scopes)
            output_columns[(expression.alias_or_name or f"#{number}").lower()] = cell
        return output_columns

    def _add_source(self, source: exp.Expression, scope: _Scope, outer: list[_Scope]) -> None:
        """Add a table or a subquery of a FROM clause to a scope, a table also to the required rows."""
        name = source.alias_or_name.lower()
        if isinstance(source, exp.Subquery):
            scope.inner[name] = self.query(source.this, outer)
        elif isinstance(source, exp.Table):
            inner = self.ctes.get(source.name.lower())
            if inner is not None and id(inner) not in self.opened:
                # Reading a recursive CTE again would not terminate.
                self.opened.add(id(inner))
                scope.inner[name] = self.query(inner, outer)
                self.opened.discard(id(inner))
            elif table := self.tables.get(source.name.lower()):
                scope.rows[name] = len(self.required.rows)
                self.required.rows.append(table)

    def _has_column(self, row: int, column: str) -> bool:
        return any(item.name.lower() == column.lower() for item in self.required.rows[row].columns)

    def _cell(self, node: exp.Expression | None, scopes: list[_Scope]) -> RequiredCell | None:
        """Return the cell of a column, also inside of ignored functions; None for other expressions."""
        while isinstance(node, _IGNORED_FUNCTIONS):
            node = node.this
        if not isinstance(node, exp.Column):
            return None
        name, table = node.name.lower(), node.table.lower()
        for scope in scopes:
            for alias, row in scope.rows.items():
                if table in ("", alias) and self._has_column(row, name):
                    return row, name
            for alias, columns in scope.inner.items():
                if table in ("", alias) and name in columns:
                    return columns[name]
        return None

    def _equate(self, cell: RequiredCell | None, other_cell: RequiredCell | None) -> None:
        """Require that two cells have the same value."""
        if cell is not None and other_cell is not None:
            self.required.equal[self.required.root(other_cell)] = self.required.root(cell)

    def _add_condition(self, node: exp.Expression, scopes: list[_Scope]) -> None:
        """Add a condition that must hold for the rows."""
        if isinstance(node, exp.Paren):
            self._add_condition(node.this, scopes)
        elif isinstance(node, exp.And):
            self._add_condition(node.left, scopes)
            self._add_condition(node.right, scopes)
        elif isinstance(node, exp.Or):
            self._add_condition(node.right if self.branch else node.left, scopes)
        elif isinstance(node, exp.Between):
            for sign, bound in ((">=", "low"), ("<=", "high")):
                self._add_bound(self._cell(node.this, scopes), sign, _literal(node.args[bound]))
        elif isinstance(node, exp.In):
            self._add_membership(node, scopes)
        elif isinstance(node, exp.Exists):
            self.query(node.this, scopes)
        elif isinstance(node, exp.Not):
            self._add_negation(node.this, scopes)
        elif type(node) in _SIGNS:
            self._add_comparison(node, _SIGNS[type(node)], scopes)

    def _add_membership(self, node: exp.In, scopes: list[_Scope]) -> None:
        cell = self._cell(node.this, scopes)
        if (query := node.args.get("query")) is not None:
            output_columns = list(self.query(query, scopes).values())
            self._equate(cell, output_columns[0] if output_columns else None)
        elif node.expressions:
            self._add_bound(cell, "=", _literal(node.expressions[min(self.branch, len(node.expressions) - 1)]))

    def _add_negation(self, node: exp.Expression, scopes: list[_Scope]) -> None:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            self._add_bound(self._cell(node.this, scopes), "known", True)
        elif isinstance(node, exp.EQ):
            self._add_bound(self._cell(node.left, scopes), "!=", _literal(node.right))
        elif isinstance(node, exp.In):
            if node.args.get("query") is not None:
                self._add_bound(self._cell(node.this, scopes), "new", True)
            for expression in node.expressions:
                self._add_bound(self._cell(node.this, scopes), "!=", _literal(expression))

    def _add_comparison(self, node: exp.Expression, sign: str, scopes: list[_Scope]) -> None:
        """Add a comparison. Supported are a column with a literal, a column or a scalar subquery, and COUNT."""
        left, right = node.this, node.expression
        if sign == "is":
            if isinstance(right, exp.Null):
                self._add_bound(self._cell(left, scopes), "null", True)
            return
        if isinstance(left, exp.Count):
            self._add_count(sign, _literal(right))
            return
        if isinstance(left, _AGGREGATES):
            left = left.this
        if isinstance(left, exp.Subquery) or (self._cell(left, scopes) is None and self._cell(right, scopes)):
            left, right, sign = right, left, _FLIPPED.get(sign, sign)
        cell, other = self._cell(left, scopes), self._cell(right, scopes)
        if cell is None:
            return
        if isinstance(right, exp.Subquery):
            self._compare_with_scalar(cell, sign, right, scopes)
        elif other is not None:
            if sign == "=":
                self._equate(cell, other)
        else:
            self._add_bound(cell, sign, _literal(right))

    def _compare_with_scalar(self, cell: RequiredCell, sign: str, query: exp.Subquery, scopes: list[_Scope]) -> None:
        """Compare a cell with the value of a scalar subquery; if it has no value yet, its rows are required too."""
        value = self.scalar(query.this.sql("sqlite"))
        if value is not None:
            self._add_bound(cell, sign, value)
            return
        output_columns = list(self.query(query, scopes).values())
        if sign == "=":
            self._equate(cell, output_columns[0] if output_columns else None)

    def _add_count(self, sign: str, value: Any) -> None:
        """Require several rows for a condition on COUNT."""
        if isinstance(value, int) and sign in (">", ">=", "="):
            self._require_copies(value + (sign == ">"))

    def _require_copies(self, count: int) -> None:
        if 0 < count <= _MAX_COPIES:
            self.required.copies = max(self.required.copies, count)

    def _add_bound(self, cell: RequiredCell | None, sign: str, value: Any) -> None:
        if cell is not None and value is not None:
            self.required.conditions.append((cell, sign, value))


def _literal(node: exp.Expression | None) -> Any:
    """Return the value of a literal, or None.

    A double-quoted word is read as text, as SQLite reads it if there is no such column.
    """
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Neg):
        value = _literal(node.this)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, exp.Boolean):
        return int(node.this)
    if isinstance(node, exp.Column) and not node.table and node.this.args.get("quoted"):
        return node.name
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.this
    return int(node.this) if re.fullmatch(r"\d+", node.this) else float(node.this)


def value_for(conditions: Iterator[tuple[str, Any]]) -> tuple[str, Any]:
    """Choose a value that meets (operator, value) conditions.

    Returns ("is", value), ("free", None) if the conditions do not determine a value, or ("none", None) if they
    contradict each other. Conditions `!=`, `new` and `known` alone leave the value free.
    """
    by_sign: dict[str, list[Any]] = {}
    for sign, value in conditions:
        by_sign.setdefault(sign, []).append(value)
    if "null" in by_sign:
        return ("is", None) if set(by_sign) == {"null"} else ("none", None)
    chosen: Any = None
    if equal := by_sign.get("="):
        if any(str(other) != str(equal[0]) for other in equal):
            return "none", None
        chosen = equal[0]
    elif likes := by_sign.get("like"):
        # The text of the pattern without wildcards matches it.
        chosen = "".join(str(pattern).replace("%", "").replace("*", "").replace("_", "a") for pattern in likes)
    elif bounds := [sign for sign in by_sign if sign in _FLIPPED]:
        chosen = _between(by_sign, bounds)
    if chosen is None:
        return "free", None
    return ("none", None) if chosen in by_sign.get("!=", ()) else ("is", chosen)


def _between(by_sign: Mapping[str, list[Any]], bounds: list[str]) -> Any:
    """Return a value between lower and upper bounds; `bounds` are the operators of the conditions that are bounds."""
    lows = [value for sign in bounds if sign[0] == ">" for value in by_sign[sign]]
    highs = [value for sign in bounds if sign[0] == "<" for value in by_sign[sign]]
    are_numbers = all(isinstance(value, int | float) for value in (*lows, *highs))
    if lows and highs:
        if not are_numbers:
            # A text with a space appended sorts directly after it, so usually below the upper bound.
            return max(map(str, lows)) if ">=" in bounds else f"{max(map(str, lows))} "
        least = max(value + (sign == ">") for sign in bounds if sign[0] == ">" for value in by_sign[sign])
        maximum = min(value - (sign == "<") for sign in bounds if sign[0] == "<" for value in by_sign[sign])
        if all(isinstance(value, int) for value in (least, maximum)) and least <= maximum:
            return (least + maximum) // 2
        return (max(lows) + min(highs)) / 2
    if are_numbers:
        return max(lows) + 1 if lows else min(highs) - 1
    return _shift_text(max(map(str, lows)), 1) if lows else _shift_text(min(map(str, highs)), -1)


def _shift_text(text: str, years: int) -> str:
    """Return a text that sorts after another, or before it if `years` is negative.

    If the text begins with a year, `years` is added to it, so that a date remains a date.
    """
    if year := re.match(r"\d{4}", text):
        return f"{int(year[0]) + years:04}{text[4:]}"
    return f"{text}z" if years > 0 else text[:-1]
