"""What a server's values become in SQLite: one table of kinds for all servers.

A value arrives as the text that the server writes for it. What it becomes is what the executor gives for it
(docs/executor.md), so that a query's result on the copy equals the server's, with three exceptions that SQLite asks
for: a numeric with decimals is a real also where it is whole, so that 3.00 / 2 is no division of integers; a time with
a zone is in UTC and names none, which SQLite's date functions would not read; NaN is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from jaxrl_sql.types import Cell

_UTC = re.compile(r"\+00(?= BC$|$)")


class Kind(NamedTuple):
    """A declared type of SQLite's, what turns a value's text into a cell, and how it is masked ("": not at all)."""

    declared: str
    convert: Callable[[str], Cell]
    mask: str = ""


def _whole(text: str) -> Cell:
    """Return an integer where it has 64 bits, else the nearest real."""
    if text.lstrip("-").isdigit() and -(2**63) <= (number := int(text)) < 2**63:
        return number
    return _real(text)


def _real(text: str) -> Cell:
    number = float(text)
    return number if number == number else None  # noqa: PLR0124 - NaN, which SQLite does not hold


def _boolean(text: str) -> Cell:
    return int(text in ("t", "1"))


def _blob(text: str) -> Cell:
    return bytes.fromhex(text.removeprefix("\\x"))


def _without_zone(text: str) -> Cell:
    return _UTC.sub("", text)


KINDS = {
    "integer": Kind("INTEGER", int, "number"),
    "whole": Kind("NUMERIC", _whole, "number"),  # decimal digits before the point alone
    "numeric": Kind("REAL", _real, "number"),
    "float": Kind("REAL", _real, "number"),
    "boolean": Kind("BOOLEAN", _boolean),
    "text": Kind("TEXT", str, "text"),
    "padded": Kind("TEXT COLLATE RTRIM", str, "text"),  # char(n): compared without regard to spaces at the end
    "caseless": Kind("TEXT COLLATE NOCASE", str, "text"),
    "date": Kind("DATE", str, "moment"),
    "time": Kind("TIME", str, "moment"),
    "timestamp": Kind("TIMESTAMP", str, "moment"),
    "zoned": Kind("TIMESTAMP", _without_zone, "moment"),
    "uuid": Kind("TEXT", str, "uuid"),
    "json": Kind("TEXT", str, "json"),
    "bytes": Kind("BLOB", _blob, "bytes"),
    "other": Kind("TEXT", str),  # the server's text
}
"""The kinds of values, by name."""


def make_converter(kind: str, mask: Callable[[str], str] | None = None) -> Callable[[str | None], Cell]:
    """Return what turns the text of a value of a kind into a cell, masked on the way; NULL stays NULL."""
    convert = KINDS[kind].convert
    is_hexadecimal = kind == "bytes"

    def plain(text: str | None) -> Cell:
        return None if text is None else convert(text)

    def masked(text: str | None) -> Cell:
        if text is None or mask is None:
            return None
        return convert(mask(text.removeprefix("\\x") if is_hexadecimal else text))

    return plain if mask is None else masked
