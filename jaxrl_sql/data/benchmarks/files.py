"""Files as others published them: JSON, JSON lines and gold lists, with a note of what had to be read otherwise."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_sql.data.jsonl import ODD, as_windows, load_json
from jaxrl_sql.types import InputError

Record = dict[str, Any]
Notes = list[str]
"""Plain sentences for the user, in the order in which they came up."""

_HEAD_BYTES = 4 << 20
# What stands before a semicolon that is in no quotes and no comment.
_STATEMENT = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|[^;])+""", re.DOTALL)


def read_text(path: Path, notes: Notes) -> str:
    """Read a text file as UTF-8, with or without a byte order mark.

    Bytes that are not UTF-8 are read as Windows-1252 and counted in `notes`, with the line of the first. Raises
    InputError for a file that cannot be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    text = raw.decode("utf-8-sig", errors="surrogateescape")
    odd = list(ODD.finditer(text))
    if not odd:
        return text
    start = odd[0].start()
    line, near = text.count("\n", 0, start) + 1, text[max(0, start - 20) : start + 21]
    notes.append(
        f"{path.name}: {len(odd)} bytes are not UTF-8 and were read as Windows-1252, the first in line {line} "
        f"near {as_windows(near)!r}"
    )
    return as_windows(text)


def read_json(path: Path, notes: Notes) -> Any:
    """Read a JSON file; raises InputError (`file:line: what`) where it is none."""
    return load_json(read_text(path, notes), path)


def read_records(path: Path, notes: Notes) -> list[Record]:
    """Read a JSON list of objects, or one object a line; raises InputError with the place of what is neither."""
    text = read_text(path, notes)
    if text.lstrip()[:1] == "[":
        found = load_json(text, path)
        places = [f"item {number}" for number in range(1, len(found) + 1)]
    else:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        found = [load_json(line, path, number) for number, line in lines]
        places = [f"line {number}" for number, _ in lines]
    for place, record in zip(places, found, strict=True):
        if not isinstance(record, dict):
            raise InputError(f"{path}: {place}: expected a JSON object, found {type(record).__name__}")
    return found


def read_csv(path: Path, notes: Notes) -> list[Record]:
    """Read a file with a header and commas, semicolons or tabs; names of columns are taken in lower case.

    Raises InputError for a file that is empty, and with the line of a row that has more cells than the header.
    """
    text = read_text(path, notes)
    header = text.partition("\n")[0]
    names = _csv_columns(header)
    if not names:
        raise InputError(f"{path}: its first line is empty: it should name the columns")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(header), strict=True)
    found = []
    try:
        next(lines)
        for cells in lines:
            if len(cells) > len(names):
                raise InputError(f"{path}: line {lines.line_num}: {len(cells)} cells under {len(names)} columns")
            if any(cell.strip() for cell in cells):
                found.append(dict(zip(names, cells, strict=False)))
    except csv.Error as error:
        raise InputError(f"{path}: line {lines.line_num}: {error}") from error
    return found or [dict.fromkeys(names, "")]


def csv_columns(path: Path) -> list[str]:
    """Return the columns that the first line of a file names; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return _csv_columns(file.readline(_HEAD_BYTES).decode("utf-8-sig", errors="replace"))
    except OSError:
        return []


def _csv_columns(header: str) -> list[str]:
    cells = next(csv.reader([header.strip()], delimiter=_delimiter(header)), [])
    return ["_".join(name.casefold().split()) for name in cells]


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


def first_record(path: Path) -> Record:
    """Return the first object of a list or of JSON lines without reading the rest; empty where there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace").lstrip()
    except OSError:
        return {}
    start = text.find("{")
    if start < 0 or text[:start].strip() not in ("", "["):
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_gold_lines(path: Path, notes: Notes) -> list[tuple[str, str]]:
    r"""Read a list of golds, `SQL<tab>db_id` a line -> (SQL, db_id) each; blank lines are left out."""
    lines = [line.rstrip("\r") for line in read_text(path, notes).split("\n")]
    return [(sql.strip(), db_id.strip()) for sql, _, db_id in (line.rpartition("\t") for line in lines if line.strip())]


def compare_golds(path: Path, golds: Sequence[tuple[str, str, str]], source: str, notes: Notes) -> None:
    """Note where a list of golds says otherwise than the questions, `golds`: (uid, SQL, db_id) each.

    The list has no ids, so nothing is taken from it: it only shows whether the questions' own SQL is what is scored.
    """
    lines = read_gold_lines(path, notes)
    if len(lines) != len(golds):
        notes.append(f"{path.name} has {len(lines)} golds for the {len(golds)} questions of {source}; {source} is used")
        return
    other = [
        uid
        for (uid, sql, db_id), (said, of) in zip(golds, lines, strict=True)
        if (_plain(sql), db_id) != (_plain(said), of)
    ]
    if other:
        notes.append(
            f"{path.name} has another gold than {source} for {len(other)} of {len(golds)} questions, first "
            f"{', '.join(other[:3])}; {source} is used"
        )


def _plain(sql: str) -> str:
    return " ".join(sql.rstrip(" ;").split())


def statements(sql: str) -> list[str]:
    """Return the statements of a text, stripped, without their semicolons; those that are empty are left out."""
    return [one for part in _STATEMENT.findall(sql) if (one := part.strip())]


def mended(sql: str) -> str:
    """Return SQL with `>=`, `<=` and `!=` for the same with a space inside."""
    return sql.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
