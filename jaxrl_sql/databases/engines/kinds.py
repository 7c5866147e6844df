"""Choose the type of a copied column by the values of the SQLite column, or by its declared type if it has none.

SQLite stores any value in any column, but in other engines a column has one type. `ColumnKind` names these types. The
chosen kind holds all values unchanged, or is text for a mixture of numbers and texts. `kind_of` returns an error
message if no kind can hold the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from itertools import chain
from typing import Literal, NamedTuple, cast

from jaxrl_sql.types import Cell

ColumnKind = Literal["integer", "real", "text", "date", "timestamp", "blob"]
"""64-bit integers, 64-bit floats, text, dates, timestamps without a zone, and bytes."""

Converter = Callable[[Cell], Cell]
"""Convert one value before it is written."""

Rows = list[tuple[Cell, ...]]
"""Rows of a table, each with a value per column."""

CHUNK = 5_000
"""Number of rows that are read, written and compared at a time."""

_PLAIN = {type(None), int, float, str, bytes}
# A float represents every integer up to this absolute value.
_EXACT = 2**53
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)


class ColumnStats(NamedTuple):
    """Statistics of a column's values: counts by storage class, and properties that determine its kind.

    `longest` (characters) and `widest` (bytes) are the largest sizes of texts and blobs. `inexact` counts integers that
    no float represents, `infinite` the floats ±inf, `nul` texts with the character NUL, and `not_utf8` texts with
    invalid UTF-8. `dates` and `timestamps` count texts of the forms YYYY-MM-DD and YYYY-MM-DD HH:MM:SS.
    """

    integers: int = 0
    reals: int = 0
    texts: int = 0
    blobs: int = 0
    nulls: int = 0
    longest: int = 0
    widest: int = 0
    inexact: int = 0
    infinite: int = 0
    nul: int = 0
    not_utf8: int = 0
    dates: int = 0
    timestamps: int = 0

    @property
    def is_mixed(self) -> bool:
        """Return whether there are both numbers and texts."""
        return bool(self.texts and (self.integers or self.reals))


def column_stats(values: Sequence[Cell], *, counts_dates: bool) -> ColumnStats:
    """Return the statistics of some values of a column; `dates` and `timestamps` are 0 unless `counts_dates`."""
    ints = [value for value in values if type(value) is int]
    floats = [value for value in values if type(value) is float]
    texts = [value for value in values if type(value) is str]
    blobs = [value for value in values if type(value) is bytes]
    # All texts are checked at once first, because texts with NUL or invalid UTF-8 are rare.
    joined = "".join(texts)
    not_utf8 = 0 if _is_utf8(joined) else sum(not _is_utf8(text) for text in texts)
    sizes = [len(text.encode("utf-8", "surrogateescape")) for text in texts] + [len(blob) for blob in blobs]
    may_be_inexact = bool(ints) and (max(ints) > _EXACT or min(ints) < -_EXACT)
    return ColumnStats(
        integers=len(ints),
        reals=len(floats),
        texts=len(texts),
        blobs=len(blobs),
        nulls=len(values) - len(ints) - len(floats) - len(texts) - len(blobs),
        longest=max((len(value) for value in (*texts, *blobs)), default=0),
        widest=max(sizes, default=0),
        inexact=sum(int(float(number)) != number for number in ints) if may_be_inexact else 0,
        infinite=sum(abs(number) == float("inf") for number in floats),
        nul=sum("\0" in text for text in texts) if "\0" in joined else 0,
        not_utf8=not_utf8,
        dates=sum(map(_is_date, texts)) if counts_dates else 0,
        timestamps=sum(map(_is_timestamp, texts)) if counts_dates else 0,
    )


def merge_stats(first: ColumnStats, other: ColumnStats) -> ColumnStats:
    """Return the statistics of two parts of a column together: sums of counts, and maxima of sizes."""
    added = ColumnStats(*map(sum, zip(first, other, strict=True)))
    return added._replace(longest=max(first.longest, other.longest), widest=max(first.widest, other.widest))


def declares_dates(declared: str) -> bool:
    """Return whether a declared type names dates or times."""
    return bool(re.search("date|time", declared, re.IGNORECASE))


def kind_of(declared: str, stats: ColumnStats) -> ColumnKind | str:
    """Return the kind of a column's values; if no kind fits, any other text: the reason, for an error message."""
    if stats.blobs:
        others = [name for name in ("integers", "reals", "texts") if getattr(stats, name)]
        return f"has both blobs and {' and '.join(others)}" if others else "blob"
    if stats.texts:
        if not stats.is_mixed and declares_dates(declared):
            if stats.dates == stats.texts:
                return "date"
            if stats.timestamps == stats.texts:
                return "timestamp"
        return "text"
    if stats.reals:
        return "has both reals and integers beyond 2^53, which no float represents" if stats.inexact else "real"
    return "integer" if stats.integers else _declared_kind(declared)


def affinity_of(declared: str) -> str:
    """Return the affinity of a declared type, by which SQLite converts and compares a column's values.

    The rules are those of "Datatypes In SQLite", section 3.1. The affinity BLOB is "".
    """
    upper = declared.upper()
    if "INT" in upper:
        return "integer"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in upper or not upper:
        return ""
    return "real" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "numeric"


def _declared_kind(declared: str) -> ColumnKind:
    """Return the kind of a column without values; dates become text, because their format is unknown."""
    upper = declared.upper()
    kinds: dict[str, ColumnKind] = {"integer": "integer", "text": "text", "real": "real"}
    if "BOOL" in upper:
        return "integer"
    if "BLOB" in upper and "INT" not in upper:
        return "blob"
    return kinds.get(affinity_of(declared), "real" if re.search("NUM|DEC", upper) else "text")


def to_real(value: Cell) -> Cell:
    """Convert an integer to a float; return other values unchanged."""
    return float(value) if isinstance(value, int) else value


def to_text(value: Cell) -> Cell:
    """Convert a number to its shortest exact text; return other values unchanged."""
    return repr(value) if isinstance(value, int | float) else value


def _is_utf8(text: str) -> bool:
    # `decode_text` leaves surrogates for invalid bytes, which cannot be encoded.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _can_parse(date.fromisoformat, text)


def _is_timestamp(text: str) -> bool:
    return _TIMESTAMP.fullmatch(text) is not None and _can_parse(datetime.fromisoformat, text)


def _can_parse(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def plain_rows(rows: Sequence[tuple[object, ...]]) -> list[tuple[Cell, ...]]:
    """Convert rows of a driver to SQLite's types; rows that have only these types are returned unchanged."""
    if set(map(type, chain.from_iterable(rows))) <= _PLAIN:
        return cast("list[tuple[Cell, ...]]", rows)
    return [tuple(map(_plain_cell, row)) for row in rows]


def _plain_cell(value: object) -> Cell:
    """Convert a driver's value to SQLite's types: dates and times to text, memory views to bytes."""
    if value is None or isinstance(value, int | float | str | bytes):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    return bytes(cast("memoryview", value)) if isinstance(value, memoryview | bytearray) else str(value)


def decode_text(raw: bytes) -> str:
    """Decode SQLite's text; invalid UTF-8 becomes surrogate escapes, so that no byte is lost."""
    return raw.decode("utf-8", "surrogateescape")
