"""Read published files: JSON, JSON lines, CSV and gold lists, with notes on repairs."""

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

from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.files import ID_KEYS, whole_number_ids
from jaxrl_sql.text2sql.files.jsonl import UNDECODED_BYTE, decode_windows_1252, load_json
from jaxrl_sql.types import InputError, Json, Record

Notes = list[str]
"""Messages for the user, in order of occurrence."""

# The bytes that are read for the first record of a JSON file, and for the header of a CSV.
_HEAD_BYTES, _HEADER_BYTES = 4 << 20, 64 << 10
# Excel's separator line above a header.
_SEPARATOR = re.compile(r'"?sep=([,;\t|:])"?[\r\n]', re.IGNORECASE)
# A line that is appended to a table. It is a separate row, unless a quoted cell before it is never closed.
_LAST_LINE = "\0"
# The text before a semicolon outside of quotes and comments.
_STATEMENT = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|[^;])+""", re.DOTALL)


def read_text(path: Path, notes: Notes) -> str:
    """Read a text file as UTF-8, with or without a byte order mark, or as UTF-16 with a byte order mark.

    Bytes that are not UTF-8 are decoded as Windows-1252; a note with their number and the first line is added to
    `notes`. Raises InputError for an unreadable file.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    try:
        text = raw.decode(_encoding(raw), errors="surrogateescape")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: has a UTF-16 mark but is not UTF-16 ({error.reason}): save it as UTF-8") from error
    odd = list(UNDECODED_BYTE.finditer(text))
    if not odd:
        return text
    start = odd[0].start()
    line = (text.count("\n", 0, start) or text.count("\r", 0, start)) + 1
    near = text[max(0, start - 20) : start + 21]
    notes.append(
        f"{path.name}: {quantity(len(odd), 'bytes', 'are')} not UTF-8, read as Windows-1252, the first in line {line} "
        f"near {decode_windows_1252(near)!r}"
    )
    return decode_windows_1252(text)


def read_json(path: Path, notes: Notes) -> Json:
    """Read a JSON file; raises InputError (`file:line: message`) if it is invalid."""
    return load_json(read_text(path, notes), path)


def read_records(path: Path, notes: Notes, question_positions: list[str] | None = None) -> list[Record]:
    """Read a JSON list of objects, or one object per line; raises InputError with the position of anything else.

    The position of each record (`file:line`, or `file: item 3`) is appended to `question_positions`.
    """
    text = read_text(path, notes)
    if text.lstrip()[:1] == "[":
        records = load_json(text, path)
        positions = [f": item {number}" for number in range(1, len(records) + 1)]
    else:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        records = [load_json(line, path, number) for number, line in lines]
        positions = [f":{number}" for number, _ in lines]
    for position, record in zip(positions, records, strict=True):
        if not isinstance(record, dict):
            shown_position = position.replace(":", ": line ") if position[1:].isdigit() else position
            raise InputError(f"{path}{shown_position}: expected a JSON object, found {type(record).__name__}")
    if question_positions is not None:
        question_positions += [f"{path}{position}" for position in positions]
    return records


def read_csv(
    path: Path, notes: Notes, used: Collection[str], question_positions: list[str] | None = None
) -> list[Record]:
    """Read a table with a header, separated by commas, semicolons or tabs, as a record per row.

    `used` are the column names that the caller reads. Names become lower case, with underscores for spaces. A column
    without a name is skipped, and missing cells are empty. `nan`, which pandas writes for a missing value, is an empty
    cell. A quote inside a quoted cell is read like pandas reads it, with a note. If all ids have the form 2.0, they
    become whole numbers. `file:line` of each record's first line is appended to `question_positions`.

    Raises InputError for a file that is not such a table, a table without rows, a name of `used` that several columns
    have, and (with the line) a row with more cells than the header.
    """
    text = read_text(path, notes)
    if "\0" in text:
        raise InputError(f"{path}: not a text file: save it as CSV in UTF-8")
    records: list[Record] = []
    starts: list[int] = []
    not_strict: list[int] = []
    try:
        header = _header(text[:_HEADER_BYTES], used)
        if not header.names:
            raise InputError(f"{path}: the first line is empty: it should have the column names")
        if repeated := sorted({name for name in header.names if name in used and header.names.count(name) > 1}):
            raise InputError(f"{path}: several columns are named {', '.join(repeated)}: rename or remove all but one")
        rows = csv_rows(text, header.delimiter)
        last_line = max((line for line, _, _ in islice(rows, header.rows)), default=0)  # skips the header
        for line, raw_cells, is_strict in rows:
            start, last_line = last_line + 1, line
            cells = ["" if cell.strip().lower() == "nan" else cell for cell in raw_cells]
            not_strict += [] if is_strict else [line]
            surplus = cells[len(header.names) :]
            if any(cell.strip() for cell in surplus) or (surplus and not is_strict):
                raise InputError(f"{path}: line {line}: {len(cells)} cells under {len(header.names)} columns")
            if any(cell.strip() for cell in cells):
                records.append({name: cell for name, cell in zip_longest(header.names, cells, fillvalue="") if name})
                starts.append(start)
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from error
    if not_strict:
        notes.append(
            f"{path.name}: {quantity(len(not_strict), 'rows', 'have')} a quote inside a quoted cell, the first in line "
            f"{not_strict[0]}: read without that quote, as by pandas"
        )
    if not records:
        raise InputError(f"{path}: has no rows below its header: write one question per row")
    whole_number_ids(records, ID_KEYS)
    if question_positions is not None:
        question_positions += [f"{path}:{start}" for start in starts]
    return records


def csv_rows(text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str], bool]]:
    """Yield (last line, cells, whether its quoting is strict CSV) per row, with pandas' reading of quotes.

    A quote inside a quoted cell ends the quoting, and the rest of the cell is literal. Raises csv.Error with the line
    of an unclosed quote.
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
        raise csv.Error(f"line {first}: unexpected end of data: the quote opened here is never closed")


def _is_strict(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether the lines of a row are valid for Python's strict CSV reader."""
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return True


def csv_columns(path: Path, used: Collection[str]) -> list[str]:
    """Return the column names in a CSV's header, in the form of `read_csv`; empty if it cannot be read."""
    try:
        return [name for name in _header(_head(path, _HEADER_BYTES), used).names if name]
    except csv.Error:
        return []


class _Header(NamedTuple):
    """The delimiter of a table, its column names, and the number of header rows."""

    delimiter: str
    names: list[str]
    rows: int


def _header(text: str, used: Collection[str]) -> _Header:
    """Read a header and detect its delimiter: that of Excel's line `sep=`, else the one with the best columns.

    The best columns are those with the most names of `used`, then the most columns.
    """
    marked = _SEPARATOR.match(text)
    rows = 2 if marked else 1
    headers = []
    for delimiter in marked[1] if marked else ",;\t":
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        cells = next(islice(lines, rows - 1, None), [])
        headers.append(_Header(delimiter, ["_".join(name.casefold().split()) for name in cells], rows))
    best = max(headers, key=lambda header: (len({*header.names} & {*used}), len(header.names)))
    while best.names and not best.names[-1]:
        best.names.pop()
    return best


def _head(path: Path, size: int) -> str:
    """Return the beginning of a text file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(size)
    except OSError:
        return ""
    return raw.decode(_encoding(raw), errors="replace")


def _encoding(raw: bytes) -> str:
    return "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def first_record(path: Path) -> Record:
    """Return the first object of a list or of JSON lines without reading the rest; empty if there is no object."""
    text = _head(path, _HEAD_BYTES).lstrip()
    start = text.find("{")
    if start < 0 or text[:start].strip() not in ("", "["):
        return {}
    try:
        record, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def read_gold_lines(path: Path, notes: Notes) -> list[tuple[str, str]]:
    r"""Read a list of golds with `SQL<tab>db_id` per line as (SQL, db_id) pairs; blank lines are skipped."""
    lines = [line.rstrip("\r") for line in read_text(path, notes).split("\n")]
    return [(sql.strip(), db_id.strip()) for sql, _, db_id in (line.rpartition("\t") for line in lines if line.strip())]


def compare_golds(path: Path, golds: Sequence[tuple[str, str, str]], source: str, notes: Notes) -> None:
    """Add a note if the published list of golds in `path` differs from the golds in the questions' file.

    `golds` has (uid, SQL, db_id) per question, and `source` names the questions' file. A leaderboard's scorer reads the
    list. It has no ids, so its SQL is not used here: it only verifies the SQL in the questions' file.
    """
    lines = read_gold_lines(path, notes)
    if len(lines) != len(golds):
        counts = f"{quantity(len(lines), 'golds')} for {quantity(len(golds), 'questions')}"
        notes.append(f"{path.name} has {counts} of {source}; {source} is used")
        return
    differing = [
        uid
        for (uid, sql, db_id), (listed_sql, listed_db) in zip(golds, lines, strict=True)
        if (_normalize_sql(sql), db_id) != (_normalize_sql(listed_sql), listed_db)
    ]
    if differing:
        notes.append(
            f"{path.name} has a different gold than {source} for {len(differing)} of {len(golds)} questions, first "
            f"{', '.join(differing[:3])}; {source} is used"
        )


def _normalize_sql(sql: str) -> str:
    """Return SQL without final semicolons and with single spaces, for comparison."""
    return " ".join(sql.rstrip(" ;").split())


def statements(sql: str) -> list[str]:
    """Return the SQL statements of a text, stripped and without semicolons; empty statements are omitted."""
    return [statement for part in _STATEMENT.findall(sql) if (statement := part.strip())]


def fix_operators(sql: str) -> str:
    """Return SQL with `> =`, `< =` and `! =`, as in Spider's golds, replaced by `>=`, `<=` and `!=`."""
    return sql.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
