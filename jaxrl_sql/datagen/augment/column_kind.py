"""Choose new values that resemble the existing values of a column, for rows that are inserted into its table.

The kind of a column is a date format that all its values share, whole numbers, codes (texts with digits and without
spaces, such as A-17), or other texts.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

Condition = tuple[str, Any]
"""A condition on a column: an operator (`>`, `!=`, `like`, …) and a value."""

_DATE_FORMS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y",
    "%d/%m/%Y", "%m/%d/%y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y", "%d %B %Y", "%Y%m%d", "%H:%M:%S", "%H:%M",
)  # fmt: skip
# Dates of other years are not accepted, because a number can look like a date.
_YEARS = range(1700, 2200)
# Shifts of a date in days, in the order in which they are tried: by days, then by years.
_SHIFTS = [0, 1, -1, *(sign * 365 * years for years in range(1, 300) for sign in (1, -1))]
_COMPARISONS = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "!=": operator.ne,
}  # fmt: skip


def has_same_kind(value: Any, existing_values: Sequence[Any], *, is_named: bool = False) -> bool:
    """Return whether a value is of the same kind as a column's existing values.

    That is a date in their format, a whole number, a code of the same pattern, or a text. NULL is accepted, and so is
    any value without existing ones. If the query contains the value (`is_named`), any code or text is accepted.
    """
    if not existing_values or value is None:
        return True
    if form := date_form(existing_values):
        return _date(value, form) is not None
    if all(isinstance(item, int) for item in existing_values):
        return not isinstance(value, float) and (is_named or isinstance(value, int))
    if all(isinstance(item, str) for item in existing_values):
        is_code = not is_named and _are_codes(existing_values)
        return isinstance(value, str) and not (
            is_code and _pattern(value) not in {_pattern(item) for item in existing_values}
        )
    return True


def nearest_value(conditions: Sequence[Condition], value: Any, existing_values: Sequence[Any]) -> Any:
    """Return a value of the column's kind that meets the conditions, `value` itself if possible; None if none does.

    Further candidates are close to `value` and to the values of the conditions.
    """
    candidates = chain([value], _candidates(conditions, value, existing_values))
    return next(
        (item for item in candidates if has_same_kind(item, existing_values) and _meets_all(item, conditions)), None
    )


def next_value(existing_values: Sequence[Any]) -> Any:
    """Return a date or code after the existing ones, in their format; None if the values are neither."""
    existing = {*existing_values}
    return (
        next((item for item in _next_values(existing_values) if item not in existing), None)
        if existing_values
        else None
    )


def date_form(values: Sequence[Any]) -> str | None:
    """Return the date or time format that all values share, or None; values are texts or integers (19991231)."""
    return next((form for form in _DATE_FORMS if all(_date(value, form) for value in values)), None)


def _date(value: Any, form: str) -> datetime | None:
    if not isinstance(value, str) and (form != "%Y%m%d" or not isinstance(value, int)):
        return None
    text = str(value)
    try:
        moment = datetime.strptime(text, form)  # noqa: DTZ007 - columns have no time zones
    except ValueError:
        return None
    # strptime accepts %Y%m%d without leading zeros.
    is_complete = form != "%Y%m%d" or len(text) == len("20200101")
    return moment if is_complete and ("%y" not in form.lower() or moment.year in _YEARS) else None


def _shift(moment: datetime, step: timedelta, form: str, example: Any) -> Any:
    """Return a shifted date in a format, as an integer if `example` (an existing value) is one."""
    text = (moment + step).strftime(form)
    return int(text) if isinstance(example, int) else text


def _candidates(conditions: Sequence[Condition], value: Any, existing_values: Sequence[Any]) -> Iterator[Any]:
    """Yield values of a column's kind, nearest to the conditions' values first."""
    yield str(value)
    # `value` may be the text of a LIKE pattern without wildcards: put it at each position of the existing texts.
    for other in (item for item in existing_values if isinstance(item, str)):
        for start in range(len(other) - len(str(value)) + 1):
            yield f"{other[:start]}{value}{other[start + len(str(value)) :]}"
    if form := date_form(existing_values):
        moments = [
            date for item in (*(bound for _, bound in conditions), *existing_values[:5]) if (date := _date(item, form))
        ]
        yield from (_shift(moment, timedelta(days), form, existing_values[0]) for days in _SHIFTS for moment in moments)
    for number in (_number(item) for item in (value, *(bound for _, bound in conditions))):
        if number is not None:
            yield from (math.floor(number), math.ceil(number), math.floor(number) + 1, math.ceil(number) - 1)
    yield from existing_values
    yield from _next_values(existing_values)


def _next_values(existing_values: Sequence[Any]) -> Iterator[Any]:
    """Yield the days (for times, the minutes) after the last date, or the codes after the last code."""
    if form := date_form(existing_values):
        last = max(existing_values, key=lambda item: _date(item, form) or datetime.min)  # noqa: DTZ901
        unit = timedelta(days=1) if "%d" in form else timedelta(minutes=1)
        yield from (_shift(_date(last, form) or datetime.min, unit * n, form, last) for n in range(1, 1000))  # noqa: DTZ901
    elif _are_codes(existing_values):
        last = max(existing_values, key=lambda item: (len(item), item))
        prefix, digits, suffix = re.fullmatch(r"(.*?)(\d+)(\D*)", last).groups()  # type: ignore[union-attr]
        yield from (f"{prefix}{int(digits) + n:0{len(digits)}}{suffix}" for n in range(1, 1000))


def _are_codes(existing_values: Sequence[Any]) -> bool:
    """Return whether all values are texts with a digit and without spaces: A-17, 0042, w3."""
    return all(isinstance(item, str) and re.fullmatch(r"(?=\D*\d)\S+", item) for item in existing_values)


def _pattern(code: str) -> str:
    """Return the pattern of a code: `0` for each digit and `a` for each letter."""
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", code))


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _meets_all(value: Any, conditions: Sequence[Condition]) -> bool:
    """Return whether a value meets all conditions, compared as SQLite compares texts and numbers."""
    return all(_meets(value, comparison, bound) for comparison, bound in conditions)


def _meets(value: Any, comparison: str, bound: Any) -> bool:
    if comparison == "like":
        parts = re.split(r"([%*_?])", str(bound))
        pattern = "".join({"%": ".*", "*": ".*", "_": ".", "?": "."}.get(item, re.escape(item)) for item in parts)
        return re.fullmatch(pattern, str(value), re.IGNORECASE | re.DOTALL) is not None
    if comparison not in _COMPARISONS:
        return True
    if isinstance(value, str):
        return _COMPARISONS[comparison](value, str(bound))
    number = _number(bound)
    # A number is less than every text that is not a number.
    return comparison in ("<", "<=", "!=") if number is None else _COMPARISONS[comparison](value, number)
