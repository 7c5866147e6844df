"""What values of other types are in a cell of SQLite."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

Cell = int | float | str | bytes | None

_INT64 = range(-(2**63), 2**63)


def to_cell(value: Any) -> Cell:
    """Return a value as SQLite would hold it: a NumPy scalar, a Decimal, a date, a time, or bytes of another type.

    A Decimal is an integer where it is whole and fits, else the nearest float; NaN, NaT and the like are None. Dates
    and times are texts in the form of SQLite's own functions. Raises TypeError for anything else.
    """
    if isinstance(value, decimal.Decimal):
        if value.is_nan():
            return None
        is_whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if is_whole and int(value) in _INT64 else float(value)
    if isinstance(value, dt.datetime):
        return value.isoformat(" ") if value == value else None  # noqa: PLR0124  pandas.NaT is one, and not itself
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        if kind.__name__ == "datetime64" and isinstance(value.item(), int):
            value = value.astype("datetime64[us]")  # what is finer has no date of Python's
        plain = value.item()
        if type(plain) is not kind:
            is_plain = plain is None or isinstance(plain, int | float | str | bytes)
            return plain if is_plain else to_cell(plain)
    raise TypeError(
        "a value must be None, int, float, str, bytes, a NumPy scalar, a Decimal, a date or a time, "
        f"not {kind.__name__}"
    )
