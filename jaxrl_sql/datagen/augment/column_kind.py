"""Choose values that resemble those of a column: dates in its format, whole numbers, codes of its pattern."""

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
_YEARS = range(1700, 2200)
_STEPS = [0, 1, -1, *(sign * 365 * years for years in range(1, 300) for sign in (1, -1))]
_COMPARISONS = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "!=": operator.ne,
}  # fmt: skip


def is_alike(value: Any, known: Sequence[Any], *, is_named: bool = False) -> bool:
    """Return whether a value is of the same kind as known ones: a date in their format, a whole number, a code, a text.

    If the query names the value (`is_named`), any code or text is accepted.
    """
    if not known or value is None:
        return True
    if form := date_form(known):
        return _date(value, form) is not None
    if all(isinstance(item, int) for item in known):
        return not isinstance(value, float) and (is_named or isinstance(value, int))
    if all(isinstance(item, str) for item in known):
        is_code = not is_named and _are_codes(known)
        return isinstance(value, str) and not (is_code and _pattern(value) not in {_pattern(item) for item in known})
    return True


def value_within(conditions: Sequence[Condition], value: Any, known: Sequence[Any]) -> Any:
    """Return a value of the column's kind that meets the conditions and is near `value`, or None."""
    near = chain([value], _near(conditions, value, known))
    return next((item for item in near if is_alike(item, known) and _holds(item, conditions)), None)


def next_value(known: Sequence[Any]) -> Any:
    """Return a new date or code of the kind of the known ones; None if they are neither."""
    taken = {*known}
    return next((item for item in _after(known) if item not in taken), None) if known else None


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
    is_whole = form != "%Y%m%d" or len(text) == len("20200101")
    return moment if is_whole and ("%y" not in form.lower() or moment.year in _YEARS) else None


def _moved(moment: datetime, step: timedelta, form: str, like: Any) -> Any:
    text = (moment + step).strftime(form)
    return int(text) if isinstance(like, int) else text


def _near(conditions: Sequence[Condition], value: Any, known: Sequence[Any]) -> Iterator[Any]:
    """Yield values of a column's kind, nearest to the conditions' values first."""
    yield str(value)
    for other in (item for item in known if isinstance(item, str)):  # known texts with the pattern's text inserted
        for start in range(len(other) - len(str(value)) + 1):
            yield f"{other[:start]}{value}{other[start + len(str(value)) :]}"
    if form := date_form(known):
        moments = [date for item in (*(bound for _, bound in conditions), *known[:5]) if (date := _date(item, form))]
        yield from (_moved(moment, timedelta(days), form, known[0]) for days in _STEPS for moment in moments)
    for number in (_number(item) for item in (value, *(bound for _, bound in conditions))):
        if number is not None:
            yield from (math.floor(number), math.ceil(number), math.floor(number) + 1, math.ceil(number) - 1)
    yield from known
    yield from _after(known)


def _after(known: Sequence[Any]) -> Iterator[Any]:
    """Yield the days (for times, the minutes) after the last date, or the codes after the last code."""
    if form := date_form(known):
        last = max(known, key=lambda item: _date(item, form) or datetime.min)  # noqa: DTZ901
        unit = timedelta(days=1) if "%d" in form else timedelta(minutes=1)
        yield from (_moved(_date(last, form) or datetime.min, unit * n, form, last) for n in range(1, 1000))  # noqa: DTZ901
    elif _are_codes(known):
        last = max(known, key=lambda item: (len(item), item))
        before, digits, behind = re.fullmatch(r"(.*?)(\d+)(\D*)", last).groups()  # type: ignore[union-attr]
        yield from (f"{before}{int(digits) + n:0{len(digits)}}{behind}" for n in range(1, 1000))


def _are_codes(known: Sequence[Any]) -> bool:
    """Return whether all values are texts with a digit and without spaces: A-17, 0042, w3."""
    return all(isinstance(item, str) and re.fullmatch(r"(?=\D*\d)\S+", item) for item in known)


def _pattern(code: str) -> str:
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", code))


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _holds(value: Any, conditions: Sequence[Condition]) -> bool:
    """Return whether a value meets conditions, with SQLite's comparison rules for its column affinity."""
    return all(_compares(value, sign, bound) for sign, bound in conditions)


def _compares(value: Any, sign: str, bound: Any) -> bool:
    if sign == "like":
        parts = re.split(r"([%*_?])", str(bound))
        pattern = "".join({"%": ".*", "*": ".*", "_": ".", "?": "."}.get(item, re.escape(item)) for item in parts)
        return re.fullmatch(pattern, str(value), re.IGNORECASE | re.DOTALL) is not None
    if sign not in _COMPARISONS:
        return True
    if isinstance(value, str):
        return _COMPARISONS[sign](value, str(bound))
    number = _number(bound)
    # A number is less than every text that is not a number.
    return sign in ("<", "<=", "!=") if number is None else _COMPARISONS[sign](value, number)
