"""MySQL's date and time functions in terms of SQLite's functions.

In the templates, `:d` is a date, `:a` and `:b` are two dates, and `:n` and `:x` are numbers. SQLite reads a number as a
Julian day, a time alone as a time of 2000-01-01, and 2024-02-31 as 2024-03-02. Literals are therefore checked here, and
column values at run time: texts without a digit are NULL, as in MySQL, and formats other than YYYY-MM-DD and HH:MM:SS
fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlglot import exp

from jaxrl_sql.text2sql.env.mysql_parts import (
    FAILS,
    Refused,
    Rewrite,
    fill,
    kind_of,
    name_of,
    text_literal,
    whole_number,
)

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = tuple("January February March April May June July August September October November December".split())

_DAY_PATTERN = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*"
_CLOCK_PATTERN = "[0-9][0-9]:[0-9][0-9]*"
# A column's value as a date, or as a date or time: itself in the expected format, NULL without digits, else a failure.
_DAY = f"CASE WHEN :d GLOB '{_DAY_PATTERN}' THEN :d WHEN :d GLOB '*[0-9]*' THEN {FAILS} END"
_CLOCK = (
    f"CASE WHEN :d GLOB '{_DAY_PATTERN}' OR :d GLOB '{_CLOCK_PATTERN}' THEN :d WHEN :d GLOB '*[0-9]*' THEN {FAILS} END"
)


def _write_names(code: str, names: tuple[str, ...], first: int, letters: int | None = None) -> str:
    """Return a template for the name of a date's part.

    `code` is strftime's code for the part's number, `first` is the number of the first name, and `letters` shortens the
    names. Numbers from 1 (months) have two digits, numbers from 0 (days of the week) one.
    """
    cases = " ".join(f"WHEN '{i:0{2 if first else 1}}' THEN '{name[:letters]}'" for i, name in enumerate(names, first))
    return f"CASE STRFTIME('{code}', :d) {cases} END"


def _write_number(code: str) -> str:
    """Return a template for the number of a date's part, by strftime's code."""
    return f"CAST(STRFTIME('{code}', :d) AS INTEGER)"


_DAY_NAME, _MONTH_NAME = _write_names("%w", _DAYS, 0), _write_names("%m", _MONTHS, 1)
# Weeks in MySQL's modes 1 and 2, for which SQLite has no code. Mode 1 has the weeks of ISO 8601 (%V), but days of the
# year before are in week 0, and days of the next year in week 53.
_WEEK_1 = (
    f"CASE WHEN STRFTIME('%m', :d) = '01' AND {_write_number('%V')} > 50 THEN 0"
    f" WHEN STRFTIME('%m', :d) = '12' AND {_write_number('%V')} = 1 THEN 53 ELSE {_write_number('%V')} END"
)
_LAST_WEEK = "STRFTIME('{}', :d, 'start of year', '-1 day')"
# Days before the first Sunday (week 00) are in the last week of the year before.
_IN_LAST_YEAR = "CASE WHEN STRFTIME('%U', :d) = '00' THEN"
_WEEK_2 = f"{_IN_LAST_YEAR} CAST({_LAST_WEEK.format('%U')} AS INTEGER) ELSE {_write_number('%U')} END"
_YEARWEEK_0 = f"{_IN_LAST_YEAR} CAST({_LAST_WEEK.format('%Y%U')} AS INTEGER) ELSE {_write_number('%Y%U')} END"
# WEEK and YEARWEEK by MySQL's mode; other modes are refused.
_WEEKS = {0: _write_number("%U"), 1: _WEEK_1, 2: _WEEK_2, 3: _write_number("%V"), 5: _write_number("%W")}
_YEARWEEKS = {0: _YEARWEEK_0, 1: _write_number("%G%V"), 2: _YEARWEEK_0, 3: _write_number("%G%V")}

# The parts of a date by MySQL's names; `:d` is the date.
_PARTS = {
    "YEAR": _write_number("%Y"),
    "QUARTER": f"(({_write_number('%m')} + 2) / 3)",
    "MONTH": _write_number("%m"),
    "WEEK": _WEEKS[0],
    "WEEKOFYEAR": _WEEKS[3],
    "DAY": _write_number("%d"),
    "DAYOFYEAR": _write_number("%j"),
    "DAYOFWEEK": f"({_write_number('%w')} + 1)",
    "WEEKDAY": f"(({_write_number('%w')} + 6) % 7)",
    "YEAR_MONTH": _write_number("%Y%m"),
    "DAY_HOUR": _write_number("%d%H"),
    "DAY_MINUTE": _write_number("%d%H%M"),
    "DAY_SECOND": _write_number("%d%H%M%S"),
    "DAYNAME": _DAY_NAME,
    "MONTHNAME": _MONTH_NAME,
    "UNIX_TIMESTAMP": "UNIXEPOCH(:d)",
    "LAST_DAY": "DATE(:d, 'start of month', '+1 month', '-1 day')",
    "TO_DAYS": "CAST(JULIANDAY(DATE(:d)) - 1721059.5 AS INTEGER)",
}
# The parts of a time, which may lack a date.
_CLOCK_PARTS = {
    "HOUR": _write_number("%H"),
    "MINUTE": _write_number("%M"),
    "SECOND": _write_number("%S"),
    "HOUR_MINUTE": _write_number("%H%M"),
    "HOUR_SECOND": _write_number("%H%M%S"),
    "MINUTE_SECOND": _write_number("%M%S"),
    "TIME": "TIME(:d)",
    "TIME_TO_SEC": "(STRFTIME('%H', :d) * 3600 + STRFTIME('%M', :d) * 60 + STRFTIME('%S', :d))",
}
_PART_NODES: dict[type[exp.Expression], str] = {
    exp.Year: "YEAR",
    exp.Quarter: "QUARTER",
    exp.Month: "MONTH",
    exp.WeekOfYear: "WEEKOFYEAR",
    exp.Day: "DAY",
    exp.DayOfMonth: "DAY",
    exp.DayOfYear: "DAYOFYEAR",
    exp.DayOfWeek: "DAYOFWEEK",
    exp.Hour: "HOUR",
    exp.Minute: "MINUTE",
    exp.Second: "SECOND",
    exp.Dayname: "DAYNAME",
    exp.LastDay: "LAST_DAY",
    exp.Time: "TIME",
}

# Format codes in Python's spelling, as sqlglot writes them: those with the same meaning in SQLite, and templates of
# others.
_SAME_CODES = frozenset("%Y %m %d %H %M %S %j %w %I %p %G %U %%".split())
_CODE_TEMPLATES = {
    "%B": _MONTH_NAME,
    "%b": _write_names("%m", _MONTHS, 1, 3),
    "%A": _DAY_NAME,
    "%a": _write_names("%w", _DAYS, 0, 3),
    "%y": "SUBSTR(STRFTIME('%Y', :d), 3, 2)",
    "%v": "STRFTIME('%V', :d)",
    "%W": f"PRINTF('%02d', {_WEEK_1})",
    "%D": f"{_write_number('%d')} || CASE WHEN STRFTIME('%d', :d) IN ('11', '12', '13') THEN 'th' "
    f"WHEN {_write_number('%d')} % 10 = 1 THEN 'st' WHEN {_write_number('%d')} % 10 = 2 THEN 'nd' "
    f"WHEN {_write_number('%d')} % 10 = 3 THEN 'rd' ELSE 'th' END",
    "%-d": f"CAST({_write_number('%d')} AS TEXT)",
    "%-m": f"CAST({_write_number('%m')} AS TEXT)",
    "%-H": f"CAST({_write_number('%H')} AS TEXT)",
    "%-I": f"CAST({_write_number('%I')} AS TEXT)",
}
# The codes of STR_TO_DATE: those for a column, as (part, number of digits), and those for a literal.
_COLUMN_CODES = {"%Y": ("year", 4), "%S": ("second", 2)}
_COLUMN_CODES |= {"%m": ("month", 2), "%d": ("day", 2), "%H": ("hour", 2), "%M": ("minute", 2)}
_LITERAL_CODES = frozenset({*_COLUMN_CODES, *"%B %b %y %I %p %j %-d %-m %-H %-I".split()})
# A format code, or a character of text.
_CODE = re.compile(r"%-.|%.|[^%]", re.DOTALL)

# An interval's unit as (SQLite's modifier, factor).
_UNITS = {"WEEK": ("day", 7), "QUARTER": ("month", 3)} | {
    unit: (unit.lower(), 1) for unit in ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND")
}
_SECONDS = {"WEEK": 604_800, "DAY": 86_400, "HOUR": 3_600, "MINUTE": 60, "SECOND": 1}
_MONTHS_IN = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}
# Whole months from :a to :b: the last month counts once its day and time of day are reached.
_MONTHS_BETWEEN = (
    "((STRFTIME('%Y', :b) - STRFTIME('%Y', :a)) * 12 + STRFTIME('%m', :b) - STRFTIME('%m', :a)"
    " - CASE WHEN DATETIME(:b) >= DATETIME(:a) THEN STRFTIME('%d %H:%M:%S', :b) < STRFTIME('%d %H:%M:%S', :a)"
    " ELSE -(STRFTIME('%d %H:%M:%S', :b) > STRFTIME('%d %H:%M:%S', :a)) END)"
)
_YEAR_0 = "0000-01-01"
_DATE_LITERAL = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(\.\d{1,6})?)?)?")
_TIME_LITERAL = re.compile(r"(\d{2}):(\d{2})(?::(\d{2})(\.\d{1,6})?)?")


def _normalize_literal(node: exp.Expression, has_day: bool) -> exp.Expression:
    """Return a literal date in SQLite's format; unknown formats are refused."""
    text = node.name.strip()
    if not has_day and _TIME_LITERAL.fullmatch(text):
        return text_literal(text)
    match = _DATE_LITERAL.fullmatch(text)
    if not match:
        raise Refused(f"the date {text!r}, which is not written YYYY-MM-DD")
    if text == _YEAR_0:
        return text_literal(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=UTC).replace(tzinfo=None)
    except ValueError:
        raise Refused(f"the date {text!r}, which does not exist") from None
    return text_literal(str(at.date()) if match[4] is None else f"{at}{match[7] or ''}")


def as_date(node: exp.Expression, has_day: bool = True) -> exp.Expression:
    """Convert a value to a date, as an argument of SQLite's functions.

    Without `has_day`, a time of day is accepted, too.
    """
    kind = kind_of(node)
    if isinstance(node, exp.Literal) and node.is_string:
        return _normalize_literal(node, has_day)
    if kind == "number":
        raise Refused("a number used as a date")
    return node if kind in {"date", "null"} else fill(_DAY if has_day else _CLOCK, d=node)


def _extract_part(name: str, date: exp.Expression) -> exp.Expression:
    """Return a part of a date or a time by its name in MySQL."""
    if name in _PARTS:
        return fill(_PARTS[name], d=as_date(date))
    if name in _CLOCK_PARTS:
        return fill(_CLOCK_PARTS[name], d=as_date(date, has_day=False))
    raise Refused(f"EXTRACT({name})")


def _rewrite_part(node: exp.Expression) -> exp.Expression:
    if any(value for name, value in node.args.items() if name != "this"):
        raise Refused(f"the arguments of {name_of(node)}")
    return _extract_part(_PART_NODES[type(node)], node.this)


def _rewrite_extract(node: exp.Expression) -> exp.Expression:
    return _extract_part(node.name.upper(), node.expression)


def _rewrite_week(node: exp.Expression) -> exp.Expression:
    return week_of("WEEK", [node.this, node.args.get("mode")])


def week_of(name: str, arguments: list[exp.Expression | None]) -> exp.Expression:
    """Return WEEK or YEARWEEK (`name`) of the arguments: a date, and a literal mode (default: 0)."""
    mode = 0 if len(arguments) < 2 or arguments[1] is None else whole_number(arguments[1])
    template = (_WEEKS if name == "WEEK" else _YEARWEEKS).get(-1 if mode is None else mode)
    if template is None or not arguments or arguments[0] is None:
        raise Refused(f"{name} of this mode")
    return fill(template, d=as_date(arguments[0]))


def _rewrite_date_format(node: exp.Expression) -> exp.Expression:
    """Write DATE_FORMAT as strftime, concatenated with the templates of codes that strftime lacks.

    `plain` collects the codes and texts of the current call of strftime.
    """
    form = node.args["format"]
    if not (isinstance(form, exp.Literal) and form.is_string):
        raise Refused("DATE_FORMAT of a format that is not written out")
    pieces, plain = [], ""

    def end_plain() -> None:
        if plain:
            pieces.append("STRFTIME('{}', :d)".format(plain.replace("'", "''")))

    for code in _CODE.findall(form.name):
        if code.startswith("%") and code not in _SAME_CODES and code not in _CODE_TEMPLATES:
            raise Refused(f"DATE_FORMAT of the code {code}")
        if code not in _CODE_TEMPLATES:
            plain += code
            continue
        end_plain()
        pieces.append(f"({_CODE_TEMPLATES[code]})")
        plain = ""
    end_plain()
    lacks_day = not re.search(r"%-?[YmdjwGUBbAayvWD]", form.name)
    return fill(" || ".join(pieces) or "''", d=as_date(node.this, has_day=not lacks_day))


def make_shift(sign: int) -> Rewrite:
    """Return the rewrite of a date plus (`sign` 1) or minus (-1) an interval; a date without a time stays one."""

    def rewrite(node: exp.Expression) -> exp.Expression | None:
        date, interval = node.this, node
        if isinstance(node, exp.Add | exp.Sub):
            if isinstance(date, exp.Interval) and isinstance(node, exp.Add):
                date, interval = node.expression, date
            else:
                interval = node.expression
            if not isinstance(interval, exp.Interval):
                return None
        amount = interval.this if isinstance(interval, exp.Interval) else interval.expression
        if isinstance(amount, exp.Interval):
            interval, amount = amount, amount.this
        return add_interval(date, amount, str(interval.args.get("unit") or "DAY"), sign)

    return rewrite


def add_interval(date: exp.Expression, amount: exp.Expression | None, unit: str, sign: int) -> exp.Expression:
    """Return a date plus `sign` times an amount of a unit, such as 2 months."""
    unit, factor = _UNITS.get(unit.upper(), ("", 1))
    if not unit or amount is None:
        raise Refused("an INTERVAL of this unit")
    if isinstance(amount, exp.Literal) and not re.fullmatch(r"-?\d+", amount.name):
        raise Refused(f"an INTERVAL of {amount.name!r}, which is not a whole number")
    step = f"((:n) * {sign * factor}) || ' {unit}'"
    # 'floor' selects the last day of a month that is too short; by default, SQLite counts into the next month.
    floor = ", 'floor'" if unit in {"month", "year"} else ""
    shifted = f"DATETIME(:d, {step}{floor})"
    if unit not in {"hour", "minute", "second"}:
        shifted = f"CASE WHEN LENGTH(:d) > 10 THEN {shifted} ELSE DATE(:d, {step}{floor}) END"
    return fill(shifted, d=as_date(date), n=amount)


def _rewrite_date_diff(node: exp.Expression) -> exp.Expression:
    earlier = node.expression
    if any(literal.name == _YEAR_0 for literal in earlier.find_all(exp.Literal)):
        # sqlglot writes TO_DAYS as a difference from 0000-01-01. SQLite's year 0 is a leap year, MySQL's is not.
        return fill("CAST(JULIANDAY(DATE(:a)) - 1721060.5 AS INTEGER)", a=as_date(node.this))
    between = "CAST(JULIANDAY(DATE(:a)) - JULIANDAY(DATE(:b)) AS INTEGER)"
    return fill(between, a=as_date(node.this), b=as_date(earlier))


def _rewrite_timestamp_diff(node: exp.Expression) -> exp.Expression:
    unit = str(node.args.get("unit") or "").upper()
    dates = {"a": as_date(node.expression), "b": as_date(node.this)}
    if unit in _SECONDS:
        return fill(f"(UNIXEPOCH(:b) - UNIXEPOCH(:a)) / {_SECONDS[unit]}", **dates)
    if unit in _MONTHS_IN:
        return fill(f"{_MONTHS_BETWEEN} / {_MONTHS_IN[unit]}", **dates)
    raise Refused(f"TIMESTAMPDIFF({unit})")


def _rewrite_str_to_date(node: exp.Expression) -> exp.Expression:
    """Parse a text by a literal format: a literal text now, a column's values at run time.

    At run time each code has a fixed number of digits, so each part has a fixed position.
    """
    form = node.args.get("format")
    if not (isinstance(form, exp.Literal) and form.is_string):
        raise Refused("STR_TO_DATE of a format that is not written out")
    codes: list[str] = _CODE.findall(form.name)
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        return _parse_literal(node.this.name, codes)
    pattern, numbers, position = "", {}, 1
    for code in codes:
        if code.startswith("%") and code not in _COLUMN_CODES:
            raise Refused(f"STR_TO_DATE of the code {code}")
        name, width = _COLUMN_CODES.get(code, ("", 1))
        numbers[name] = f"SUBSTR(:s, {position}, {width})"
        pattern += "[0-9]" * width if name else code.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")
        position += width
    # The second condition refuses a code that occurs twice.
    if (
        not {"year", "month", "day"} <= set(numbers)
        or len([code for code in codes if code in _COLUMN_CODES]) >= len(numbers) + 1
    ):
        raise Refused(f"STR_TO_DATE of the format {form.name!r}")
    clock = ("hour", "minute", "second")
    day = " || '-' || ".join(numbers[name] for name in ("year", "month", "day"))
    time = " || ':' || ".join(numbers.get(name, "'00'") for name in clock)
    # SQLite moves February 31 into March; in MySQL, it is not a date.
    date_text = f"{day} || ' ' || {time}" if set(clock) & set(numbers) else day
    function = "DATETIME" if set(clock) & set(numbers) else "DATE"
    valid = f"CASE WHEN DATE({day}) = {day} THEN {function}({date_text}) END"
    pattern = pattern.replace("'", "''")
    return fill(f"CASE WHEN :s GLOB '{pattern}*' THEN {valid} WHEN :s GLOB '*[0-9]*' THEN {FAILS} END", s=node.this)


def _parse_literal(text: str, codes: list[str]) -> exp.Expression:
    """Parse a literal text by the codes of a format, and return a literal in SQLite's format."""
    style = "".join("%" + code[2:] if code.startswith("%-") else code for code in codes)
    if any(code[0] == "%" and code not in _LITERAL_CODES for code in codes):
        raise Refused(f"STR_TO_DATE of the format {style!r}")
    try:
        parsed = datetime.strptime(text, style).replace(tzinfo=UTC)
    except ValueError:
        raise Refused(f"STR_TO_DATE of {text!r} in another form than the format") from None
    has_clock = bool(re.search(r"%[HIMSp]", style))
    if has_clock and not re.search(r"%[Yy]", style):
        return text_literal(f"{parsed:%H:%M:%S}")
    return text_literal(f"{parsed:%Y-%m-%d %H:%M:%S}" if has_clock else str(parsed.date()))


def _rewrite_now(node: exp.Expression) -> exp.Expression:
    if any(node.args.values()):
        raise Refused("fractions of seconds")
    return exp.CurrentTimestamp()


def _rewrite_from_unixtime(node: exp.Expression) -> exp.Expression:
    if any(value for name, value in node.args.items() if name not in {"this", "scale"}):
        raise Refused("FROM_UNIXTIME with a format")
    return fill("DATETIME(:n, 'unixepoch')", n=node.this)


# SEC_TO_TIME; 3,020,399 seconds are 838:59:59, the largest time in MySQL.
_TIME_OF_SECONDS = (
    "CASE WHEN :x IS NULL THEN NULL ELSE CASE WHEN :x < 0 THEN '-' ELSE '' END || PRINTF('%02d:%02d:%02d',"
    " MIN(ABS(CAST(:x AS INTEGER)), 3020399) / 3600, MIN(ABS(CAST(:x AS INTEGER)), 3020399) / 60 % 60,"
    " MIN(ABS(CAST(:x AS INTEGER)), 3020399) % 60) END"
)


def rewrite_call(name: str, arguments: list[exp.Expression]) -> exp.Expression | None:
    """Rewrite a date function without a class in sqlglot; None for other functions."""
    if name in {"WEEK", "YEARWEEK"} and len(arguments) in {1, 2}:
        return week_of(name, list(arguments))
    if name in {"NOW", "SYSDATE", "UTC_TIMESTAMP"} and not arguments:
        return exp.CurrentTimestamp()
    if name == "UNIX_TIMESTAMP" and not arguments:
        return fill("UNIXEPOCH('now')")
    if name in {"ADDDATE", "SUBDATE"} and len(arguments) == 2:
        amount = arguments[1]
        unit = str(amount.args.get("unit") or "") if isinstance(amount, exp.Interval) else "DAY"
        amount = amount.this if isinstance(amount, exp.Interval) else amount
        return add_interval(arguments[0], amount, unit, 1 if name == "ADDDATE" else -1)
    if name == "FROM_DAYS" and len(arguments) == 1:
        return fill("DATE(:n + 1721059.5)", n=arguments[0])  # the Julian day of day 0
    if name == "SEC_TO_TIME" and len(arguments) == 1:
        return fill(_TIME_OF_SECONDS, x=arguments[0])
    if len(arguments) == 1 and (name in _PARTS or name in _CLOCK_PARTS):
        return _extract_part(name, arguments[0])
    return None


REWRITES: Mapping[type[exp.Expression], Rewrite] = {
    **dict.fromkeys(_PART_NODES, _rewrite_part),
    exp.Extract: _rewrite_extract,
    exp.Week: _rewrite_week,
    exp.TimeToStr: _rewrite_date_format,
    exp.DateAdd: make_shift(1),
    exp.DateSub: make_shift(-1),
    exp.TimestampAdd: make_shift(1),
    exp.DateDiff: _rewrite_date_diff,
    exp.TimestampDiff: _rewrite_timestamp_diff,
    exp.StrToDate: _rewrite_str_to_date,
    exp.StrToTime: _rewrite_str_to_date,
    exp.TsOrDsToDate: lambda node: fill("DATE(:d)", d=as_date(node.this)),
    exp.TsOrDsToTimestamp: lambda node: node.this,
    exp.Timestamp: lambda node: fill("DATETIME(:d)", d=as_date(node.this)),
    exp.UnixToTime: _rewrite_from_unixtime,
    exp.Localtime: _rewrite_now,
    exp.Localtimestamp: _rewrite_now,
    exp.UtcTimestamp: _rewrite_now,
    exp.CurrentTimestamp: _rewrite_now,
}
