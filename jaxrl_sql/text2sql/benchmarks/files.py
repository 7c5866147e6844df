"""Files as others published them: JSON, JSON lines and gold lists, with a note of what had to be read otherwise."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.text2sql.env.files import ID_KEYS, whole_number_ids
from jaxrl_sql.text2sql.files.jsonl import ODD, as_windows, load_json
from jaxrl_sql.types import InputError, Json, Record

Notes = list[str]
"""Plain sentences for the user, in the order in which they came up."""

_HEAD_BYTES, _HEADER_BYTES = 4 << 20, 64 << 10
# What Excel writes, and reads, above a header.
_SEPARATOR = re.compile(r'"?sep=([,;\t|:])"?[\r\n]', re.IGNORECASE)
# A line below a table: a row by itself unless a quote is still open.
_LAST_LINE = "\0"
# What stands before a semicolon that is in no quotes and no comment.
_STATEMENT = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|[^;])+""", re.DOTALL)


def read_text(path: Path, notes: Notes) -> str:
    """Read a text file as UTF-8, with or without a byte order mark, or as UTF-16 with one.

    Bytes that are not UTF-8 are read as Windows-1252 and counted in `notes`, with the line of the first. Raises
    InputError for a file that cannot be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    try:
        text = raw.decode(_encoding(raw), errors="surrogateescape")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: begins as UTF-16 and is none ({error.reason}): save it as UTF-8") from error
    odd = list(ODD.finditer(text))
    if not odd:
        return text
    start = odd[0].start()
    line = (text.count("\n", 0, start) or text.count("\r", 0, start)) + 1
    near = text[max(0, start - 20) : start + 21]
    notes.append(
        f"{path.name}: {len(odd)} bytes are not UTF-8 and were read as Windows-1252, the first in line {line} "
        f"near {as_windows(near)!r}"
    )
    return as_windows(text)


def read_json(path: Path, notes: Notes) -> Json:
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


def read_csv(path: Path, notes: Notes, used: Collection[str]) -> list[Record]:
    """Read a table with a header and commas, semicolons or tabs; names of columns are taken in lower case.

    A column without a name before others is left out, and cells that a row lacks are empty. Raises InputError for what
    is no such table, one without rows, a name of `used` that several columns have, and with the line of a row that has
    more cells than the header has names. A quote inside a quoted cell is read as pandas reads it, with a note; the text
    `nan`, as Python writes a missing value of pandas, is an empty cell. Ids all written as 2.0 are
    whole numbers.
    """
    text = read_text(path, notes)
    if "\0" in text:
        raise InputError(f"{path}: is no text: save it as CSV in UTF-8")
    found = []
    odd: list[int] = []
    try:
        head = _header(text[:_HEADER_BYTES], used)
        if not head.names:
            raise InputError(f"{path}: its first line is empty: it should name the columns")
        if twice := sorted({name for name in head.names if name in used and head.names.count(name) > 1}):
            raise InputError(f"{path}: several columns are called {', '.join(twice)}: rename or remove all but one")
        for number, raw, is_strict in islice(csv_rows(text, head.delimiter), head.rows, None):
            cells = ["" if cell.strip().lower() == "nan" else cell for cell in raw]
            odd += [] if is_strict else [number]
            more = cells[len(head.names) :]
            if any(cell.strip() for cell in more) or (more and not is_strict):
                raise InputError(f"{path}: line {number}: {len(cells)} cells under {len(head.names)} columns")
            if any(cell.strip() for cell in cells):
                found.append({name: cell for name, cell in zip_longest(head.names, cells, fillvalue="") if name})
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from error
    if odd:
        notes.append(
            f"{path.name}: {len(odd)} rows have a quote inside a quoted cell, the first in line {odd[0]}; they are "
            "read as pandas reads them, without that quote"
        )
    if not found:
        raise InputError(f"{path}: has no rows below its header: write a question a row")
    whole_number_ids(found, ID_KEYS)
    return found


def csv_rows(text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str], bool]]:
    """Yield (last line, cells, whether its quotes are as CSV wants them) of each row, as pandas reads them.

    A quote inside a quoted cell ends the quoting, and the rest of the cell is read as it is. Raises csv.Error with the
    line for a quote that nothing closes.
    """
    lines = list(io.StringIO(text, newline=""))
    rows = csv.reader([*lines, _LAST_LINE], delimiter=delimiter)
    first = 1
    cells: list[str] = []
    try:
        for cells in rows:
            if (last := rows.line_num) <= len(lines):
                yield last, cells, _is_strict(lines[first - 1 : last], delimiter)
                first = last + 1
    except csv.Error as error:
        raise csv.Error(f"line {first}: {error}") from error
    if cells != [_LAST_LINE]:
        raise csv.Error(f"line {first}: unexpected end of data: a quote is opened here and never closed")


def _is_strict(lines: Sequence[str], delimiter: str) -> bool:
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return True


def csv_columns(path: Path, used: Collection[str]) -> list[str]:
    """Return the columns that the header of a file names; none where it cannot be read."""
    try:
        return [name for name in _header(_head(path, _HEADER_BYTES), used).names if name]
    except csv.Error:
        return []


class _Header(NamedTuple):
    """What parts a table's columns, their names, and how many rows the header is."""

    delimiter: str
    names: list[str]
    rows: int


def _header(text: str, used: Collection[str]) -> _Header:
    """Read a header by what Excel's `sep=` says, or else by what finds the most columns of `used`, or the most."""
    marked = _SEPARATOR.match(text)
    rows = 2 if marked else 1
    found = []
    for delimiter in marked[1] if marked else ",;\t":
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        cells = next(islice(lines, rows - 1, None), [])
        found.append(_Header(delimiter, ["_".join(name.casefold().split()) for name in cells], rows))
    best = max(found, key=lambda one: (len({*one.names} & {*used}), len(one.names)))
    while best.names and not best.names[-1]:
        best.names.pop()
    return best


def _head(path: Path, size: int) -> str:
    """Return the beginning of a text; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(size)
    except OSError:
        return ""
    return raw.decode(_encoding(raw), errors="replace")


def _encoding(raw: bytes) -> str:
    return "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def first_record(path: Path) -> Record:
    """Return the first object of a list or of JSON lines without reading the rest; empty where there is none."""
    text = _head(path, _HEAD_BYTES).lstrip()
    start = text.find("{")
    if start < 0 or text[:start].strip() not in ("", "["):
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
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
