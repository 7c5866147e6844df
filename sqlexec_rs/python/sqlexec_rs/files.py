"""Read gold files in the formats of Spider, BIRD and plain JSON lines; `predictions` reads predictions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

ID_KEYS = ("id", "question_id", "instance_id", "uid", "qid")
# The first key with a text is used. Spider's `sql` is a parse tree, and `query` has the text.
_GOLD_KEYS = ("sql", "SQL", "query", "gold_sql", "gold")

_SHOWN = 3
_WITH_POINT = re.compile(r"(-?\d+)\.0+")
# Signatures of binary files, each with advice.
_BINARY = {
    b"PAR1": "a Parquet file: write it as JSON lines (pandas: to_json(orient='records', lines=True))",
    b"PK\x03\x04": "a zip archive or an Excel workbook: unpack it, or save it as CSV",
    b"\x1f\x8b": "a gzip file: unpack it",
    b"\x28\xb5\x2f\xfd": "a zstd file: unpack it",
    b"SQLite format 3\0": "a SQLite database: write JSON lines or a CSV with id and sql",
    b"ARROW1": "an Arrow file: write JSON lines or a CSV with id and sql",
    b"\x80\x04": "a pickle file: write JSON lines or a CSV with id and sql",
    b"\x80\x05": "a pickle file: write JSON lines or a CSV with id and sql",
}


class InputError(Exception):
    """An invalid argument or file; the message is a single line with the location."""


@dataclass(frozen=True)
class Gold:
    """A question's accepted SQL (any may match; empty list: no answer), its database, and optionally a difficulty."""

    uid: str
    db_id: str
    sql: str | list[str]
    difficulty: str
    location: str


def cases(values: Iterable[str]) -> str:
    """Return the first of some values for a message, with `…` if there are more."""
    listed = list(values)
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")


def id_values(record: Mapping[str, Any], keys: Sequence[str] = ID_KEYS) -> list[Any]:
    """Return the values of a record's id fields, in the order of `keys`, ignoring the case of field names."""
    values = [record[key] for key in keys if key in record]
    if values:
        return values
    lowered = {name.lower(): value for name, value in record.items()}
    return [lowered[key] for key in keys if key in lowered]


def id_text(value: Any) -> str:
    """Return an id as text if it is a text or a whole number; otherwise return an empty text.

    pandas writes whole numbers in a column with missing values as 2.0. From 2**53 a float may be inexact.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    is_real = isinstance(value, float | Decimal) and math.isfinite(value)
    return str(int(value)) if is_real and abs(value) < 2**53 and value % 1 == 0 else ""


def whole_number_ids(records: Sequence[dict[str, Any]], names: Iterable[str]) -> None:
    """Convert ids such as 2.0, as pandas writes columns with missing values, to 2 in place.

    Columns that are not entirely of this form, such as 1.0 and 1.1, or 2 and 2.0, are unchanged.
    """
    for name in names:
        filled = [record for record in records if not is_blank(record.get(name))]
        numbers = [_WITH_POINT.fullmatch(str(record[name]).strip()) for record in filled]
        for record, number in zip(filled, numbers, strict=True):
            if number and all(numbers):
                record[name] = number[1]


def is_blank(value: Any) -> bool:
    """Return whether an id field is empty: null, NaN or blank text."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value  # noqa: PLR0124 (NaN)


def uid_of(record: Mapping[str, Any], location: str, keys: Sequence[str] = ID_KEYS) -> str:
    """Return a record's id as text, or an empty text without an id field; raises InputError for an invalid id."""
    values = id_values(record, keys)
    uid = next(filter(None, map(id_text, values)), "")
    if values and not uid:
        raise InputError(f"{location}: its id is {values[0]!r:.60}, which is neither text nor a whole number")
    return uid


def text_of(path: Path) -> str:
    """Read a UTF-8 text file; raises InputError with advice for another encoding or kind of file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    for start, advice in _BINARY.items():
        if raw.startswith(start):
            raise InputError(f"{path}: {advice}")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:64]:
        raise InputError(f"{path}: not UTF-8, but UTF-16 or a binary file: write it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        bad = [f"line {number}" for number, line in enumerate(raw.split(b"\n"), start=1) if not _is_utf8(line)]
        raise InputError(f"{path}: not UTF-8 in {len(bad)} lines ({cases(bad)}): write it as UTF-8") from None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class _Entry(NamedTuple):
    location: str
    content: Any


def read_golds(path: Path) -> list[Gold]:
    """Read JSON or JSON lines with `db_id` and `sql`, `SQL` or `query`; or lines of SQL, tab, db_id.

    Raises InputError.
    """
    golds: list[Gold] = []
    for number, (location, content) in enumerate(_entries(path)):
        if isinstance(content, str):
            if not content.strip():
                continue
            sql, tab, db_id = content.rpartition("\t")
            if not tab:
                raise InputError(f"{location}: no tab between the SQL and its database")
            golds.append(Gold(str(len(golds)), db_id.strip(), sql.strip(), "", location))
        else:
            if not isinstance(content, dict):
                raise InputError(f"{location}: a gold must be a JSON object")
            if not isinstance(content.get("db_id"), str):
                raise InputError(f"{location}: no db_id")
            uid = uid_of(content, location) or str(number)
            gold_sql = _gold_sql(content, location)
            difficulty = content.get("difficulty") or content.get("hardness") or ""
            golds.append(Gold(uid, content["db_id"], gold_sql, str(difficulty), location))
    if not golds:
        raise InputError(f"{path}: no golds")
    repeated = [uid for uid, count in Counter(gold.uid for gold in golds).items() if count > 1]
    if repeated:
        raise InputError(f"{path}: {len(repeated)} ids are repeated ({cases(repeated)})")
    return golds


def _entries(path: Path) -> list[_Entry]:
    """Return the file's entries with their locations: objects, (key, value) pairs of an object, or lines of text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    first = text.lstrip()[:1]
    if first == "[":
        return [_Entry(f"{path}: entry {number}", entry) for number, entry in enumerate(_parse(text, path, 1))]
    if first != "{":
        return [_Entry(f"{path}:{number}", line.strip("\r\n ")) for number, line in enumerate(lines, 1)]
    try:
        whole = json.loads(text)
    except ValueError:
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if numbered[0][1].strip() == "{":  # a malformed object of several lines
            _parse(text, path, 1)
        return [_Entry(f"{path}:{number}", _parse(line, path, number)) for number, line in numbered]
    if any(key in whole for key in _GOLD_KEYS):
        return [_Entry(f"{path}:1", whole)]  # JSON lines with a single line
    return [_Entry(f"{path}: entry {key}", item) for key, item in zip(whole, whole.items(), strict=True)]


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{line + error.lineno - 1}: not JSON: {error.msg} at column {error.colno}") from None


def _gold_sql(content: dict[str, Any], location: str) -> str | list[str]:
    for key in _GOLD_KEYS:
        sql = content.get(key)
        if isinstance(sql, str):
            return sql
        if isinstance(sql, list) and sql and all(isinstance(text, str) for text in sql):
            return sql
    raise InputError(f"{location}: no SQL under {', '.join(_GOLD_KEYS)}")
