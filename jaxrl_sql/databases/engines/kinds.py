"""Column types: what stands in a SQLite column decides, and its declared type where nothing does.

SQLite keeps any value in any column; an engine's column holds one type. A column is of the one kind that holds all its
values as they are, or text where numbers stand beside text; what no kind holds is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from itertools import chain
from typing import Literal, NamedTuple, cast

from jaxrl_sql.types import Cell

Kind = Literal["integer", "real", "text", "date", "timestamp", "blob"]
"""64-bit integers, 64-bit floats, text, days, seconds of days without a zone, and bytes."""

Converter = Callable[[Cell], Cell]

Rows = list[tuple[Cell, ...]]

CHUNK = 5_000
"""So many rows are read, sent and compared at a time."""

_PLAIN = {type(None), int, float, str, bytes}
# Integers up to here have a float of their own.
_EXACT = 2**53
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SECOND = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)


class Seen(NamedTuple):
    """What stands in a column: how many values of each class, and what a type has to know of them.

    `longest` is in characters and `widest` in bytes, of text and blobs. `beyond` are integers that no float holds;
    `nul` and `odd` texts with the character NUL and with bytes that are no UTF-8.
    """

    integers: int = 0
    reals: int = 0
    texts: int = 0
    blobs: int = 0
    nulls: int = 0
    longest: int = 0
    widest: int = 0
    beyond: int = 0
    infinite: int = 0
    nul: int = 0
    odd: int = 0
    dates: int = 0
    seconds: int = 0

    @property
    def is_mixed(self) -> bool:
        """Return whether numbers stand beside text."""
        return bool(self.texts and (self.integers or self.reals))


def look(values: Sequence[Cell], *, is_dated: bool) -> Seen:
    """Return what stands in some values of a column; texts that are dates are counted where the column's type asks."""
    ints = [value for value in values if type(value) is int]
    floats = [value for value in values if type(value) is float]
    texts = [value for value in values if type(value) is str]
    blobs = [value for value in values if type(value) is bytes]
    whole = "".join(texts)
    odd = 0 if _is_utf8(whole) else sum(not _is_utf8(text) for text in texts)
    sizes = [len(text.encode("utf-8", "surrogateescape")) for text in texts] + [len(blob) for blob in blobs]
    is_far = bool(ints) and (max(ints) > _EXACT or min(ints) < -_EXACT)
    return Seen(
        integers=len(ints),
        reals=len(floats),
        texts=len(texts),
        blobs=len(blobs),
        nulls=len(values) - len(ints) - len(floats) - len(texts) - len(blobs),
        longest=max((len(value) for value in (*texts, *blobs)), default=0),
        widest=max(sizes, default=0),
        beyond=sum(int(float(number)) != number for number in ints) if is_far else 0,
        infinite=sum(abs(number) == float("inf") for number in floats),
        nul=sum("\0" in text for text in texts) if "\0" in whole else 0,
        odd=odd,
        dates=sum(map(_is_date, texts)) if is_dated else 0,
        seconds=sum(map(_is_second, texts)) if is_dated else 0,
    )


def merged(one: Seen, other: Seen) -> Seen:
    """Return what stands in two parts of a column together."""
    added = Seen(*map(sum, zip(one, other, strict=True)))
    return added._replace(longest=max(one.longest, other.longest), widest=max(one.widest, other.widest))


def is_dated(declared: str) -> bool:
    """Return whether a declared type says that its values are dates or times."""
    return bool(re.search("date|time", declared, re.IGNORECASE))


def kind_of(declared: str, seen: Seen) -> Kind | str:
    """Return the kind that holds a column's values, or in words why none does.

    Raises nothing: a text that is no kind is the reason.
    """
    if seen.blobs:
        others = [name for name in ("integers", "reals", "texts") if getattr(seen, name)]
        return f"holds blobs beside {' and '.join(others)}" if others else "blob"
    if seen.texts:
        if not seen.is_mixed and is_dated(declared):
            if seen.dates == seen.texts:
                return "date"
            if seen.seconds == seen.texts:
                return "timestamp"
        return "text"
    if seen.reals:
        return "holds reals beside integers beyond 2^53, which no float holds" if seen.beyond else "real"
    return "integer" if seen.integers else _declared_kind(declared)


def affinity_of(declared: str) -> str:
    """Return the affinity of a declared type, by which SQLite compares a column; "" is none.

    Datatypes In SQLite, section 3.1.
    """
    upper = declared.upper()
    if "INT" in upper:
        return "integer"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in upper or not upper:
        return ""
    return "real" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "numeric"


def _declared_kind(declared: str) -> Kind:
    """Return the kind of a column without values; one that never held a date is text."""
    upper = declared.upper()
    kinds: dict[str, Kind] = {"integer": "integer", "text": "text", "real": "real"}
    if "BOOL" in upper:
        return "integer"
    if "BLOB" in upper and "INT" not in upper:
        return "blob"
    return kinds.get(affinity_of(declared), "real" if re.search("NUM|DEC", upper) else "text")


def to_real(value: Cell) -> Cell:
    """Return an integer as the float that it is equal to, and anything else as it is."""
    return float(value) if isinstance(value, int) else value


def to_text(value: Cell) -> Cell:
    """Return a number in the fewest digits that mean it, and anything else as it is."""
    return repr(value) if isinstance(value, int | float) else value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _reads(date.fromisoformat, text)


def _is_second(text: str) -> bool:
    return _SECOND.fullmatch(text) is not None and _reads(datetime.fromisoformat, text)


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def plain_rows(rows: Sequence[tuple[object, ...]]) -> list[tuple[Cell, ...]]:
    """Return rows that a driver gave as SQLite has them."""
    if set(map(type, chain.from_iterable(rows))) <= _PLAIN:
        return cast("list[tuple[Cell, ...]]", rows)
    return [tuple(map(_plain_cell, row)) for row in rows]


def _plain_cell(value: object) -> Cell:
    """Return a value that a driver gave as SQLite has it: dates and times as text, a view of bytes as bytes."""
    if value is None or isinstance(value, int | float | str | bytes):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    return bytes(cast("memoryview", value)) if isinstance(value, memoryview | bytearray) else str(value)


def decode_text(raw: bytes) -> str:
    """Decode SQLite's text; bytes that are no UTF-8 become surrogate escapes, so that none is lost."""
    return raw.decode("utf-8", "surrogateescape")
