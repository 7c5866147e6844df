"""Convert a server's values to SQLite values, for the sample of its database.

The kind of a column (a key of `KINDS`) groups types of all servers that are converted in the same way. The server
writes each value as text. From this text the sample gets the value that the executor returns for the server's value
(docs/reference/executor_servers.md), so that a query has the same result on the sample. SQLite requires three
exceptions. A numeric with decimals is a real even for whole values, so that 3.00 / 2 is not a division of integers. A
time with a zone is in UTC without the zone, because SQLite's date functions do not read it. NaN is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from jaxrl_sql.types import Cell

# The zone at the end of a timestamp, or before the era of one before Christ.
_UTC = re.compile(r"\+00(?= BC$|$)")


class CellType(NamedTuple):
    """A column type as declared in SQLite, and the function that converts a value's text to a SQLite value."""

    declared: str
    convert: Callable[[str], Cell]


def _whole(text: str) -> Cell:
    """Return an integer of at most 64 bits, else the nearest real."""
    if text.lstrip("-").isdigit() and -(2**63) <= (number := int(text)) < 2**63:
        return number
    return _real(text)


def _real(text: str) -> Cell:
    number = float(text)
    return number if number == number else None  # noqa: PLR0124 - NaN, which SQLite does not hold


def _boolean(text: str) -> Cell:
    # PostgreSQL writes t or f, DuckDB 1 or 0 (`duckdb_reader`).
    return int(text in ("t", "1"))


def _blob(text: str) -> Cell:
    # PostgreSQL writes \x before hexadecimal bytes.
    return bytes.fromhex(text.removeprefix("\\x"))


def _without_zone(text: str) -> Cell:
    return _UTC.sub("", text)


KINDS = {
    "integer": CellType("INTEGER", int),
    "whole": CellType("NUMERIC", _whole),  # a numeric without decimals
    "numeric": CellType("REAL", _real),
    "float": CellType("REAL", _real),
    "boolean": CellType("BOOLEAN", _boolean),
    "text": CellType("TEXT", str),
    "padded": CellType("TEXT COLLATE RTRIM", str),  # char(n): comparisons ignore trailing spaces
    "caseless": CellType("TEXT COLLATE NOCASE", str),  # comparisons ignore case
    "date": CellType("DATE", str),
    "time": CellType("TIME", str),
    "timestamp": CellType("TIMESTAMP", str),
    "zoned": CellType("TIMESTAMPTZ", _without_zone),  # timestamps with a time zone
    "bytes": CellType("BLOB", _blob),
    "other": CellType("TEXT", str),  # the server's text
}
"""The kinds of values, by name."""


def to_cell(kind: str, text: str | None) -> Cell:
    """Return the SQLite value for the text of a value of this kind; None is NULL."""
    return None if text is None else KINDS[kind].convert(text)
