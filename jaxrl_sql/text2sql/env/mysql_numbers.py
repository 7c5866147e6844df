"""MySQL's numbers, comparisons and aggregates in terms of SQLite's functions.

Decimals are doubles here. MySQL rounds quotients and averages of integers to four additional digits; SQLite does not.
Rounding is away from zero, as for MySQL's decimals. In the templates, `:x` is a number, and `:n` a number of digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import exp

from jaxrl_sql.text2sql.env.mysql_dates import as_date, make_shift
from jaxrl_sql.text2sql.env.mysql_parts import (
    FAILS,
    Refused,
    Rewrite,
    as_number,
    as_text,
    fill,
    fill_evaluating_once,
    from_template,
    kind_of,
    name_of,
    whole_number,
)

_Type = exp.DataType.Type
# The mean of the squares less the square of the mean; rounding may make it slightly negative.
_VARIANCE = "MAX(AVG((:x) * (:x)) - AVG(:x) * AVG(:x), 0)"
_SAMPLE_VARIANCE = f"({_VARIANCE} * COUNT(:x) / NULLIF(COUNT(:x) - 1, 0))"
# A number as an integer; numbers in texts are truncated, not rounded.
_WHOLE = "CAST(CASE WHEN TYPEOF(:x) = 'real' THEN ROUND(:x) ELSE :x END AS INTEGER)"
# A number for ROUND. A double may be slightly less than the decimal: MySQL rounds 1.005 to 1.01. The factor adds two
# units in the last place of the double, which does not affect the rounded digits otherwise.
_ROUNDABLE = "CASE WHEN TYPEOF(:x) = 'integer' OR ABS(:x) >= 1e12 THEN :x ELSE :x * 1.0000000000000004 END"
_MAX_INTEGER = (1 << 63) - 1
# Likely dates and times, in formats that SQLite compares wrongly. Numbers and texts of other years may be counts and
# codes.
_YEAR, _MONTH, _DAY = r"(1[5-9]|20)\d\d", r"(0?[1-9]|1[0-2])", r"(0?[1-9]|[12]\d|3[01])"
_DATE_AS_NUMBER = re.compile(r"(1[89]|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])[0-5]\d[0-5]\d)?")
_NONSTANDARD_DATE = re.compile(rf"(?!\d{{4}}-\d\d-\d\d){_YEAR}-{_MONTH}-{_DAY}( .*)?|\d:[0-5]\d:[0-5]\d(\.\d+)?")


def _rewrite_comparison(node: exp.Expression) -> exp.Expression | None:
    """Compare a number with a text as numbers; SQLite compares them as texts or by type."""
    if isinstance(node.this, exp.Tuple) or isinstance(node.expression, exp.Tuple):
        return _rewrite_row_comparison(node)
    left, right = _convert_operands(node.this, node.expression)
    node.set("this", left)
    node.set("expression", right)
    return None


def _rewrite_row_comparison(node: exp.Expression) -> exp.Expression | None:
    """Compare rows such as (a, b) value by value.

    Comparisons with a query, and by an order such as <, stay unchanged if they need no conversion.
    """
    left, right = node.this, node.expression
    if not (isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple)):
        row, query = (left, right) if isinstance(left, exp.Tuple) else (right, left)
        _convert_row(row, query)
        return None
    if isinstance(node, exp.EQ | exp.NEQ | exp.NullSafeEQ):
        equal = _compare_rows(left, right, exp.NullSafeEQ if isinstance(node, exp.NullSafeEQ) else exp.EQ)
        return exp.Not(this=equal) if isinstance(node, exp.NEQ) else equal
    if "number" in {kind_of(value) for value in (*left.expressions, *right.expressions)}:
        raise Refused("an order of rows with numbers")
    return None


def _compare_rows(left: exp.Expression, right: exp.Expression, equal: type[exp.Binary] = exp.EQ) -> exp.Paren:
    """Return the conjunction of the comparisons of two rows' values."""
    rows = (left, right)
    if any(not isinstance(row, exp.Tuple) for row in rows) or len(left.expressions) != len(right.expressions):
        raise Refused("rows of different lengths compared")
    pairs = (_convert_operands(*values) for values in zip(left.expressions, right.expressions, strict=True))
    return exp.Paren(this=exp.and_(*(equal(this=value, expression=other) for value, other in pairs)))


def _convert_row(row: exp.Expression, query: exp.Expression) -> None:
    """Convert a row's values to numbers for comparison with a query's numeric columns."""
    select = query.this if isinstance(query, exp.Subquery) else query
    output_columns = select.expressions if isinstance(select, exp.Select) else []
    if any(column.is_star for column in output_columns) or not output_columns:
        output_columns = [exp.Column() for _ in row.expressions]  # columns of unknown kind
    if len(output_columns) != len(row.expressions):
        raise Refused("rows of different lengths compared")
    pairs = zip(row.expressions, output_columns, strict=True)
    row.set("expressions", [_convert_row_value(value, column) for value, column in pairs])


def _convert_row_value(value: exp.Expression, output_column: exp.Expression) -> exp.Expression:
    if kind_of(value) == "number" != kind_of(output_column) and kind_of(output_column) is not None:
        raise Refused("a number looked for among texts")
    return as_number(value) if kind_of(output_column) == "number" else value.copy()


def _convert_operands(left: exp.Expression, right: exp.Expression) -> tuple[exp.Expression, exp.Expression]:
    """Return both sides of a comparison, converted to numbers if either is a number."""
    kinds = {kind_of(left), kind_of(right)}
    for side in (left, right):
        if isinstance(side, exp.Literal) and side.is_string and _NONSTANDARD_DATE.fullmatch(side.name):
            raise Refused(f"the date or time {side.name!r}, which is not written YYYY-MM-DD or HH:MM:SS")
    if "number" not in kinds:
        return left, right
    for side, other in ((left, right), (right, left)):
        # "numeric" marks the numeric columns of the SQLite file (`mysql_columns`).
        if kind_of(other) != "number" and not other.meta.get("numeric") and _may_be_date(side):
            raise Refused(f"a comparison with {side.name}, which may be a date")
    return as_number(left), as_number(right)


def _may_be_date(node: exp.Expression) -> bool:
    """Return whether MySQL reads a literal number as a date in a comparison with a date."""
    return isinstance(node, exp.Literal) and bool(_DATE_AS_NUMBER.fullmatch(node.name))


def _rewrite_in(node: exp.Expression) -> exp.Expression | None:
    """Convert the sides of an IN with a list or a query to numbers if MySQL compares numbers."""
    query = node.args.get("query")
    values = [query] if query is not None else node.expressions
    if isinstance(node.this, exp.Tuple) and query is not None:
        _convert_row(node.this, query)
        return None
    if isinstance(node.this, exp.Tuple) or any(isinstance(value, exp.Tuple) for value in values):
        return exp.Paren(this=exp.or_(*(_compare_rows(node.this, value) for value in values)))
    if query is not None and kind_of(node.this) == "number" != kind_of(query):
        if kind_of(query) is not None:
            raise Refused("a number looked for among texts")
        return None
    kinds = {kind_of(value) for value in values} - {"null"}
    if "number" in kinds and len(kinds) > 1:
        return _rewrite_mixed_in(node.this, values)
    pairs = [_convert_operands(node.this, value) for value in values]
    if pairs:
        node.set("this", pairs[0][0].copy())
        if query is None:
            node.set("expressions", [value for _, value in pairs])
    return None


def _rewrite_mixed_in(value: exp.Expression, others: list[exp.Expression]) -> exp.Expression:
    """Compare with each item of a mixed list: with numbers as numbers, with numeric texts as texts."""
    if any(kind_of(other) == "text" and not _is_numeric_literal(other) for other in others):
        raise Refused("IN a list of numbers and others")
    pairs = (_convert_operands(value, other) for other in others)
    return exp.Paren(this=exp.or_(*(exp.EQ(this=left, expression=right) for left, right in pairs)))


def _is_numeric_literal(node: exp.Expression) -> bool:
    return isinstance(node, exp.Literal) and bool(re.fullmatch(r"-?\d+(\.\d+)?", node.name))


def _rewrite_between(node: exp.Expression) -> exp.Expression:
    """Compare with both bounds, converted for each."""
    value, low = _convert_operands(node.this, node.args["low"])
    other, high = _convert_operands(node.this, node.args["high"])
    if value == other:
        return exp.Between(this=value.copy(), low=low.copy(), high=high.copy())
    return fill("(:a >= :l AND :b <= :h)", a=value, l=low, b=other, h=high)


def _rewrite_case(node: exp.Expression) -> exp.Expression | None:
    """Compare the value of a CASE with each branch's value, converted for each."""
    value = node.this
    if value is None:
        return None
    branches = node.args["ifs"]
    kinds = {kind_of(branch.this) for branch in branches} - {"null"}
    if "number" in kinds and len(kinds) > 1:
        for branch in branches:
            left, right = _convert_operands(value, branch.this)
            branch.set("this", exp.EQ(this=left, expression=right))
        node.set("this", None)
        return None
    for branch in branches:
        value, compared = _convert_operands(node.this, branch.this)
        branch.set("this", compared)
    node.set("this", value.copy())
    return None


def _rewrite_null_if(node: exp.Expression) -> exp.Expression | None:
    left, right = _convert_operands(node.this, node.expression)
    return fill("CASE WHEN :l = :r THEN NULL ELSE :a END", l=left, r=right, a=node.this)


def _rewrite_greatest(node: exp.Expression) -> exp.Expression | None:
    """Convert the arguments of GREATEST and LEAST; with one argument, SQLite's functions are aggregates."""
    values = [node.this, *node.expressions]
    if len(values) < 2:
        raise Refused(f"{name_of(node)} of one argument")
    if "number" in map(kind_of, values):
        values = [as_number(value) for value in values]
        node.set("this", values[0])
        node.set("expressions", values[1:])
    return None


def _rewrite_coalesce(node: exp.Expression) -> exp.Expression | None:
    """Replace a COALESCE with one argument, which SQLite refuses."""
    return None if node.expressions else node.this.copy()


def _check_arithmetic(node: exp.Expression) -> exp.Expression | None:
    for value in (node.this, node.expression):
        if kind_of(value) == "date":
            raise Refused("a date or time used as a number")
    return None


def _make_sum(sign: int) -> Rewrite:
    """Return the rewrite of a sum (`sign` 1) or a difference (-1), of dates and intervals or of numbers."""
    shift = make_shift(sign)

    def rewrite(node: exp.Expression) -> exp.Expression | None:
        return shift(node) or _check_arithmetic(node)

    return rewrite


def _rewrite_remainder(node: exp.Expression) -> exp.Expression:
    a, b = as_number(node.this), as_number(node.expression)
    if whole_number(a) is not None and whole_number(b) is not None:
        return fill("(:a % :b)", a=a, b=b)
    remainder = "CASE WHEN TYPEOF(:a) = 'integer' AND TYPEOF(:b) = 'integer' THEN :a % :b"
    return fill(f"{remainder} ELSE :a - :b * CAST(CAST(:a AS REAL) / :b AS INTEGER) END", a=a, b=b)


def _make_bit_operation(template: str) -> Rewrite:
    """Return the rewrite of a bit operation, whose results are unsigned in MySQL: negative ones fail."""

    def rewrite(node: exp.Expression) -> exp.Expression:
        values = {name: fill(_WHOLE, x=as_number(value)) for name, value in (("a", node.this), ("b", node.expression))}
        return fill(f"CASE WHEN ({template}) < 0 THEN {FAILS} ELSE {template} END", **values)

    return rewrite


def _check_literal(node: exp.Expression) -> exp.Expression | None:
    if not node.is_string and node.name.isdigit() and int(node.name) > _MAX_INTEGER:
        raise Refused("a whole number of more than 63 bits")
    return None


def _rewrite_cast(node: exp.Expression) -> exp.Expression | None:
    """Write a CAST.

    As in MySQL, numbers are rounded, texts are read up to the first character that is not part of a number, and
    decimals are clipped to their number of digits.
    """
    to, value = node.args["to"], node.this
    if node.args.get("format"):
        raise Refused("CAST with a format")
    sizes = [int(size.name) for size in to.expressions]
    kind = to.this
    if kind in {_Type.DATE, _Type.DATETIME, _Type.TIMESTAMP, _Type.TIMESTAMPTZ, _Type.TIME}:
        if sizes and sizes != [0]:
            raise Refused("fractions of seconds")
        function = {_Type.DATE: "DATE", _Type.TIME: "TIME"}.get(kind, "DATETIME")
        return fill(f"{function}(:d)", d=as_date(value, has_day=kind != _Type.TIME))
    if kind in {_Type.CHARACTER_SET, _Type.CHAR, _Type.NCHAR, _Type.VARCHAR, _Type.NVARCHAR, _Type.TEXT}:
        text = "CAST(:x AS TEXT)" if not sizes or kind == _Type.CHARACTER_SET else f"SUBSTR(:x, 1, {sizes[0]})"
        return fill(text, x=as_text(value))
    number = value if kind_of(value) == "text" else as_number(value) if kind_of(value) == "date" else value
    if kind == _Type.BIGINT:
        return fill(_WHOLE, x=number)
    if kind == _Type.UBIGINT:
        return fill(f"CASE WHEN {_WHOLE} < 0 THEN {FAILS} ELSE {_WHOLE} END", x=number)
    if kind == _Type.DECIMAL:
        # DECIMAL is DECIMAL(10, 0), and DECIMAL(5) is DECIMAL(5, 0).
        digits, decimals = [*sizes, *(10, 0)[len(sizes) :]]
        maximum = f"{'9' * (digits - decimals)}.{'9' * decimals}" if digits > decimals else f"0.{'9' * decimals}"
        rounded = f"MIN(MAX(ROUND({_ROUNDABLE}, {decimals}), -{maximum}), {maximum})"
        return fill_evaluating_once(rounded if decimals else f"CAST({rounded} AS INTEGER)", number)
    if kind in {_Type.DOUBLE, _Type.FLOAT} and not sizes:
        return fill("CAST(:x AS REAL)", x=number)
    raise Refused(f"CAST to {to.sql('mysql')}")


def _rewrite_truncate(node: exp.Expression) -> exp.Expression:
    """Truncate decimals of the decimal that a double represents; the double of 4.35 is slightly less."""
    digits = whole_number(node.args.get("decimals"))
    if digits is None or abs(digits) > 15:
        raise Refused("TRUNCATE to a number of digits that is not written out")
    if digits < 0:
        return fill(f"CAST(:x / 1e{-digits} AS INTEGER) * 1e{-digits}", x=node.this)
    return fill(f"CAST(ROUND(:x * 1e{digits}, 8) AS INTEGER) / 1e{digits}", x=node.this)


def _rewrite_round(node: exp.Expression) -> exp.Expression | None:
    """Round to tens, hundreds, …, which SQLite's ROUND does not support; the number of digits must be a literal."""
    decimals = node.args.get("decimals")
    digits = 0 if decimals is None else whole_number(decimals)
    if digits is None:
        raise Refused("ROUND to a number of digits that is not written out")
    if digits >= 0:
        return fill_evaluating_once(f"ROUND({_ROUNDABLE}, {digits})" if digits else "ROUND(:x)", node.this)
    return fill(f"ROUND(:x / 1e{-digits}) * 1e{-digits}", x=node.this)


def _rewrite_format(node: exp.Expression) -> exp.Expression:
    """Write FORMAT, which writes a number with thousands separators."""
    digits = node.args.get("format")
    if digits is None or node.args.get("culture"):
        raise Refused("FORMAT of a locale")
    formatted = f"CASE WHEN :x IS NULL THEN NULL ELSE PRINTF('%,.' || MAX(:n, 0) || 'f', {_ROUNDABLE}) END"
    return fill(formatted, x=as_number(node.this), n=digits)


def _rewrite_log(node: exp.Expression) -> exp.Expression:
    if node.expression is None:
        return fill("LN(:x + 0)", x=node.this)
    return fill("LOG(:b + 0, :x + 0)", b=node.this, x=node.expression)


def _rewrite_count(node: exp.Expression) -> exp.Expression | None:
    """Count distinct rows of several columns as joined text, which is NULL (not counted) if any column is NULL."""
    counted = node.this.expressions if isinstance(node.this, exp.Distinct) else []
    if node.expressions:
        raise Refused("COUNT of several arguments")
    if len(counted) < 2:
        return None
    names = [f":x{i}" for i in range(len(counted))]
    joined = " || CHAR(31) || ".join(names)
    return fill(f"COUNT(DISTINCT {joined})", **{f"x{i}": value for i, value in enumerate(counted)})


def _rewrite_group_concat(node: exp.Expression) -> exp.Expression | None:
    """Replace the separator of a distinct GROUP_CONCAT afterwards, since SQLite accepts no separator with DISTINCT.

    SQLite joins the values with commas. Before that, commas in the values are replaced by another character.
    """
    separator = node.args.get("separator")
    if separator is None or node.find(exp.Distinct) is None:
        return None
    joined = node.copy()
    joined.set("separator", None)
    distinct = joined.find(exp.Distinct)
    comma, substitute = exp.Literal.string(","), exp.Literal.string("\x1f")
    distinct.set("expressions", [_call_replace(value, comma, substitute) for value in distinct.expressions])
    return _call_replace(_call_replace(joined, comma, separator), substitute, comma)


def _call_replace(text: exp.Expression, old: exp.Expression, new: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this="REPLACE", expressions=[text.copy(), old.copy(), new.copy()])


def _check_random(node: exp.Expression) -> exp.Expression | None:
    """Allow RAND only in ORDER BY: SQLite's RANDOM has another range of values."""
    if node.this is not None or not isinstance(node.parent, exp.Ordered):
        raise Refused("RAND, but for an order")
    return None


_FUNCTIONS = "ABS SIGN SQRT EXP LN SIN COS TAN ASIN ACOS ATAN RADIANS DEGREES".split()
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)

REWRITES: Mapping[type[exp.Expression], Rewrite] = {
    **dict.fromkeys(_COMPARISONS, _rewrite_comparison),
    **{exp.FUNCTION_BY_NAME[name]: from_template(f"{name}(:x + 0)", x="this") for name in _FUNCTIONS},
    exp.Literal: _check_literal,
    exp.In: _rewrite_in,
    exp.Between: _rewrite_between,
    exp.Case: _rewrite_case,
    exp.Nullif: _rewrite_null_if,
    exp.Coalesce: _rewrite_coalesce,
    exp.Greatest: _rewrite_greatest,
    exp.Least: _rewrite_greatest,
    exp.Add: _make_sum(1),
    exp.Sub: _make_sum(-1),
    exp.Mul: _check_arithmetic,
    exp.Div: _check_arithmetic,
    exp.IntDiv: _check_arithmetic,
    exp.Mod: _rewrite_remainder,
    exp.BitwiseAnd: _make_bit_operation(":a & :b"),
    exp.BitwiseOr: _make_bit_operation(":a | :b"),
    exp.BitwiseXor: _make_bit_operation("(:a | :b) - (:a & :b)"),
    exp.Xor: from_template("(NOT :a) <> (NOT :b)", a="this", b="expression"),
    exp.Cast: _rewrite_cast,
    exp.Trunc: _rewrite_truncate,
    exp.Round: _rewrite_round,
    exp.Floor: from_template("CAST((:x + 0) AS INTEGER) - ((:x + 0) < CAST((:x + 0) AS INTEGER))", x="this"),
    exp.Ceil: from_template("CAST((:x + 0) AS INTEGER) + ((:x + 0) > CAST((:x + 0) AS INTEGER))", x="this"),
    exp.Pow: from_template("POWER(:x + 0, :y + 0)", x="this", y="expression"),
    exp.Log: _rewrite_log,
    exp.NumberToStr: _rewrite_format,
    exp.VariancePop: from_template(_VARIANCE, x="this"),
    exp.Variance: from_template(_SAMPLE_VARIANCE, x="this"),
    exp.StddevPop: from_template(f"SQRT({_VARIANCE})", x="this"),
    exp.StddevSamp: from_template(f"SQRT({_SAMPLE_VARIANCE})", x="this"),
    exp.Count: _rewrite_count,
    exp.GroupConcat: _rewrite_group_concat,
    exp.Rand: _check_random,
}
