"""Convert values of other types to SQLite values."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

Cell = int | float | str | bytes | None

_INT64 = range(-(2**63), 2**63)


def to_cell(value: Any) -> Cell:
    """Convert a NumPy scalar, a Decimal, a date, a time, or a bytes-like object to a SQLite value.

    A Decimal becomes an integer if it is whole and fits 64 bits, else the nearest float. NaN, NaT and the like become
    None. Dates and times become texts in the format of SQLite's date functions. Raises TypeError for other types.
    """
    if isinstance(value, decimal.Decimal):
        if value.is_nan():
            return None
        is_whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if is_whole and int(value) in _INT64 else float(value)
    if isinstance(value, dt.datetime):
        return value.isoformat(" ") if value == value else None  # noqa: PLR0124  pandas.NaT is not equal to itself
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        if kind.__name__ == "datetime64" and isinstance(value.item(), int):
            value = value.astype("datetime64[us]")  # finer units do not convert to a datetime
        plain = value.item()
        if type(plain) is not kind:
            is_plain = plain is None or isinstance(plain, int | float | str | bytes)
            return plain if is_plain else to_cell(plain)
    raise TypeError(
        "a value must be None, int, float, str, bytes, a NumPy scalar, a Decimal, a date or a time, "
        f"not {kind.__name__}"
    )
