"""Shared parts of the translation from MySQL to SQLite: refusals, templates, and kinds of values.

A template is SQL for SQLite with placeholders such as `:x`, which `fill` replaces by expressions. The kind of a value
is `number`, `text`, `date` or `null`, or None if the query alone does not determine it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import sqlglot
from sqlglot import ErrorLevel, exp

Rewrite = Callable[[exp.Expression], exp.Expression | None]
"""Returns the new form of a node; None if the node stays, perhaps changed in place. Raises Refused."""

FAILS = "ABS(-9223372036854775807 - 1)"
"""An expression that fails in SQLite (by an overflow), for values whose translation would be wrong at run time."""

# MySQL writes the fewest digits that give the same number when parsed, and small numbers without an exponent. In
# SQLite's PRINTF, `!` allows more than 16 digits.
_DIGITS_16 = "CASE WHEN ABS(:x) < 1e15 OR :x <> ROUND(:x) THEN '%!.16g' ELSE '%!.15e' END"
_DIGITS_17 = "CASE WHEN ABS(:x) < 1e15 OR :x <> ROUND(:x) THEN '%!.17g' ELSE '%!.16e' END"
_TEXT_OF_NUMBER = (
    "CASE WHEN TYPEOF(:x) <> 'real' THEN :x"
    " WHEN ABS(:x) > 1e-14 AND ABS(:x) < 1e-4 THEN RTRIM(PRINTF('%.30f', :x), '0')"
    " ELSE REPLACE(CASE WHEN CAST(PRINTF('%.15g', :x) AS REAL) = :x THEN PRINTF('%.15g', :x)"
    f" WHEN CAST(PRINTF('%!.16g', :x) AS REAL) = :x THEN PRINTF({_DIGITS_16}, :x)"
    f" ELSE PRINTF({_DIGITS_17}, :x) END, 'e+', 'e') END"
)
_DECIMAL = re.compile(r"\d+(\.\d+)?|\.\d+")
# Limit of a filled template: nested functions whose templates repeat their argument grow exponentially.
_MAX_NODES = 20_000
# The types of a CAST that give numbers, and those that give dates or times; the others give texts.
_NUMERIC = {exp.DataType.Type.DECIMAL, exp.DataType.Type.BIGINT, exp.DataType.Type.UBIGINT}
_NUMERIC |= {exp.DataType.Type.FLOAT, exp.DataType.Type.DOUBLE, exp.DataType.Type.INT, exp.DataType.Type.UINT}
_TIMES = {exp.DataType.Type.DATE, exp.DataType.Type.DATETIME, exp.DataType.Type.TIME, exp.DataType.Type.TIMESTAMPTZ}
_TIMES |= {exp.DataType.Type.TIMESTAMP}
# Nodes by the kind of their value; that of a condition is a number, 0 or 1.
_CONDITIONS = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean, exp.Xor, exp.RegexpLike)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.BitwiseAnd, exp.BitwiseOr)
_NUMBERS = (
    exp.Count, exp.Sum, exp.Avg, exp.StddevPop, exp.StddevSamp, exp.VariancePop, exp.Variance, exp.Round, exp.Trunc,
    exp.Floor, exp.Ceil, exp.Abs, exp.Sign, exp.Sqrt, exp.Pow, exp.Exp, exp.Ln, exp.Log, exp.Pi, exp.Length,
    exp.StrPosition, exp.Ascii, exp.BitwiseXor, exp.DateDiff, exp.TimestampDiff, exp.Year, exp.Quarter, exp.Month,
    exp.Week, exp.Day, exp.DayOfMonth, exp.DayOfYear, exp.DayOfWeek, exp.Hour, exp.Minute, exp.Second, exp.Extract,
    exp.WeekOfYear, exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile,
)  # fmt: skip
_TEXTS = (
    exp.Concat, exp.ConcatWs, exp.Upper, exp.Lower, exp.Trim, exp.Replace, exp.Substring, exp.Left, exp.Right, exp.Pad,
    exp.Repeat, exp.Reverse, exp.Hex, exp.LowerHex, exp.SubstringIndex, exp.GroupConcat, exp.NumberToStr, exp.Dayname,
    exp.TimeToStr, exp.Chr, exp.Space, exp.National,
)  # fmt: skip
_DATES = (
    exp.TsOrDsToDate, exp.Time, exp.Timestamp, exp.CurrentDate, exp.CurrentTime,
    exp.CurrentTimestamp, exp.UtcDate, exp.UtcTime, exp.UtcTimestamp, exp.Localtime, exp.Localtimestamp, exp.LastDay,
    exp.DateAdd, exp.DateSub, exp.TimestampAdd, exp.StrToDate, exp.StrToTime, exp.UnixToTime,
)  # fmt: skip
# Nodes whose value has the kind of their first argument.
_SAME_AS_FIRST = (
    exp.Paren, exp.Window, exp.Alias, exp.Min, exp.Max, exp.AnyValue, exp.FirstValue, exp.LastValue, exp.NthValue,
    exp.Lag, exp.Lead, exp.Nullif,
)  # fmt: skip
# Functions without a class in sqlglot, by the kind of their value.
_CALLS = {
    "number": "FIND_IN_SET FIELD STRCMP MOD WEEKDAY DAYOFYEAR YEARWEEK UNIX_TIMESTAMP TIME_TO_SEC WEEKOFYEAR",
    "text": "MID",
    "date": "NOW SYSDATE UTC_TIMESTAMP ADDDATE SUBDATE FROM_DAYS SEC_TO_TIME",
}
_KIND_OF_CALL = {name: kind for kind, names in _CALLS.items() for name in names.split()}


class Refused(Exception):  # noqa: N818 - a refusal of an answer, not an error of this program
    """The name of the part of a query that is not translated."""


def kind_of(node: exp.Expression | None) -> str | None:
    """Return the kind of a value that `derive_kind` found: `number`, `text`, `date`, `null` or None."""
    return node.meta.get("kind") if node is not None else None


def derive_kind(node: exp.Expression) -> str | None:
    """Return the kind of a value, from its node and the kinds of its parts."""
    if isinstance(node, exp.Literal):
        return "text" if node.is_string else "number"
    if isinstance(node, exp.Null):
        return "null"
    if isinstance(node, exp.Cast):
        kind = node.args["to"].this
        return "number" if kind in _NUMERIC else "date" if kind in _TIMES else "text"
    if isinstance(node, exp.Anonymous):
        return _KIND_OF_CALL.get(node.name.upper())
    if isinstance(node, exp.Add | exp.Sub) and any(isinstance(side, exp.Interval) for side in node.iter_expressions()):
        return "date"
    for kind, classes in (("text", _TEXTS), ("date", _DATES), ("number", _NUMBERS + _CONDITIONS + _ARITHMETIC)):
        if isinstance(node, classes):
            return kind
    kinds = {kind_of(part) for part in _values_of(node)} - {"null"}
    return kinds.pop() if len(kinds) == 1 else None


def _values_of(node: exp.Expression) -> list[exp.Expression]:
    """Return the subexpressions that may be an expression's value."""
    if isinstance(node, exp.Subquery):
        output_columns = node.this.expressions if isinstance(node.this, exp.Select) else []
        return list(output_columns) if len(output_columns) == 1 else []
    if isinstance(node, _SAME_AS_FIRST):
        return [node.this]
    if isinstance(node, exp.If):
        return [part for part in (node.args["true"], node.args.get("false")) if part is not None]
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        return [*(branch.args["true"] for branch in node.args["ifs"]), *([default] if default is not None else [])]
    return [node.this, *node.expressions] if isinstance(node, exp.Coalesce | exp.Greatest | exp.Least) else []


@lru_cache(1024)
def _parse_template(text: str) -> exp.Expression:
    return sqlglot.parse_one(f"SELECT {text}", dialect="sqlite").expressions[0]  # REPLACE alone is a statement


def fill(text: str, **values: exp.Expression) -> exp.Expression:
    """Parse a template of SQLite's SQL and replace each `:name` by a copy of the expression `values[name]`."""
    tree = exp.Paren(this=_parse_template(text).copy())
    n_nodes = 0
    for placeholder in list(tree.find_all(exp.Placeholder)):
        value = values[placeholder.name].copy()
        n_nodes += sum(1 for _ in value.walk())
        if n_nodes > _MAX_NODES:
            raise Refused("functions nested too deep")
        is_operator = isinstance(value, exp.Binary | exp.Connector | exp.Unary) and not isinstance(value, exp.Paren)
        placeholder.replace(exp.Paren(this=value) if is_operator else value)
    inner = tree.this
    return tree if isinstance(inner, exp.Binary) else inner


def from_template(text: str, **names: str) -> Rewrite:
    """Return a rewrite that fills a template: `names` has the node's argument for each placeholder.

    The rewrite refuses a node with other arguments.
    """

    def rewrite(node: exp.Expression) -> exp.Expression:
        values = {placeholder: node.args.get(name) for placeholder, name in names.items()}
        expressions = {placeholder: value for placeholder, value in values.items() if isinstance(value, exp.Expression)}
        arguments = [value for value in node.args.values() if isinstance(value, exp.Expression | list) and value]
        if len(expressions) < len(values) or len(arguments) > len(expressions):
            raise Refused(f"the arguments of {name_of(node)}")
        return fill(text, **expressions)

    return rewrite


def name_of(node: exp.Expression) -> str:
    """Return the name of a function, or the beginning of a clause, in MySQL's dialect."""
    text = " ".join(node.sql("mysql", comments=False, unsupported_level=ErrorLevel.IGNORE).split())
    call = re.match(r"[A-Za-z_0-9]+(?=\()", text)
    return call[0].upper() if call else text[:40]


def whole_number(node: exp.Expression | None) -> int | None:
    """Return the value of a literal whole number, with an optional sign; None for anything else."""
    sign = 1
    while isinstance(node, exp.Neg | exp.Paren):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    is_whole = isinstance(node, exp.Literal) and not node.is_string and re.fullmatch(r"\d{1,18}", node.name)
    return sign * int(node.name) if is_whole and node is not None else None


def as_number(node: exp.Expression) -> exp.Expression:
    """Convert a value to a number as MySQL does: a text by its numeric prefix."""
    if kind_of(node) in {"number", "null"} or node.meta.get("numeric"):
        return node.copy()
    if kind_of(node) == "date":
        raise Refused("a date or time used as a number")
    number = fill("(:x + 0)", x=node)
    number.meta["kind"] = "number"
    return number


def as_text(node: exp.Expression) -> exp.Expression:
    """Convert a value to text as MySQL does: a real number with the fewest digits and no unnecessary point."""
    if isinstance(node, exp.Literal) and not node.is_string and _DECIMAL.fullmatch(node.name):
        whole, point, decimals = node.name.partition(".")
        return text_literal((whole.lstrip("0") or "0") + point + decimals)
    if kind_of(node) in {"text", "date", "null"}:
        return node.copy()
    return fill_evaluating_once(_TEXT_OF_NUMBER, node)


def fill_evaluating_once(text: str, value: exp.Expression) -> exp.Expression:
    """Fill a template that repeats `:x`; a subquery as the value runs once."""
    if value.find(exp.Select) is None or has_aggregate(value) or value.find(exp.Window) is not None:
        return fill(text, x=value)
    inner = text.replace(":x", "_value")
    return fill(f"(WITH _once(_value) AS MATERIALIZED (SELECT :x) SELECT {inner} FROM _once)", x=value)


def has_aggregate(node: exp.Expression) -> bool:
    """Return whether an expression has an aggregate outside of subqueries and windows."""
    inside = node.walk(prune=lambda part: isinstance(part, exp.Subquery | exp.Select | exp.Window))
    return any(isinstance(part, exp.AggFunc | exp.GroupConcat) for part in inside)


def text_literal(text: str) -> exp.Expression:
    """Return a text literal with its kind."""
    literal = exp.Literal.string(text)
    literal.meta["kind"] = "text"
    return literal
