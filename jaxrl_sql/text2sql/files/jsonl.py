"""Read JSON-lines files and lists of ids, with the line number in every error."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.text2sql.env.files import uid_of
from jaxrl_sql.types import Fields, InputError, Json, Record

# The characters by which Python's error handler `surrogateescape` represents bytes that are not UTF-8.
UNDECODED_BYTE = re.compile("[\udc80-\udcff]")
# Windows-1252 leaves five bytes undefined; they are decoded as Latin-1.
_WINDOWS_1252 = {
    chr(0xDC00 + n): bytes([n]).decode("cp1252", "replace").replace("\ufffd", chr(n)) for n in range(128, 256)
}

# A surrogate in JSON's escaped spelling; some writers spell an emoji as two of them.
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode_windows_1252(text: str) -> str:
    """Decode the bytes of a text that are not UTF-8, which `surrogateescape` represents, as Windows-1252."""
    return UNDECODED_BYTE.sub(lambda match: _WINDOWS_1252[match.group()], text)


def from_json(line: str) -> Json:
    """Return the value of a JSON text; a lone surrogate, which UTF-8 cannot encode, becomes `?`."""
    value = json.loads(line)
    if _ESCAPED_SURROGATE.search(line):
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def load_json(line: str, path: Path, number: int = 0) -> Json:
    """Return the value of a JSON text, `line`, of a file; raises InputError (`file:line: not JSON`).

    `number` is its line number; 0 means that the text is the whole file.
    """
    try:
        return from_json(line)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a ValueError
        number = number or (error.lineno if isinstance(error, json.JSONDecodeError) else 1)
        raise InputError(f"{path}:{number}: not JSON ({error})") from error


def records(path: Path) -> list[tuple[int, Record]]:
    """Return (line number, object) of each line that is not blank; raises InputError (`file:line: message`)."""
    numbered = []
    for number, line in _lines(path):
        record = load_json(line, path, number)
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, found {type(record).__name__}")
        numbered.append((number, record))
    return numbered


def write_lines(path: Path, rows: Sequence[Fields]) -> None:
    """Write a JSON object per line."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8", errors="replace")


def read_ids(path: str | Path) -> frozenset[str]:
    """Read ids: each line, or entry of a JSON list, is an id or an object with an id field (`uid_of`).

    Raises InputError for an unreadable file or a file without ids.
    """
    path = Path(path)
    lines = _lines(path)
    if lines and lines[0][1].lstrip().startswith("["):
        entries = list(enumerate(load_json("\n".join(line for _, line in lines), path), start=1))
    else:
        entries = [
            (number, load_json(line, path, number) if line.lstrip().startswith("{") else line.strip())
            for number, line in lines
        ]
    ids = set()
    for number, entry in entries:
        record = entry if isinstance(entry, dict) else {"id": entry}
        if not (uid := uid_of(record, f"{path}:{number}")):
            raise InputError(f"{path}:{number}: no id")
        ids.add(uid)
    if not ids:
        raise InputError(f"{path}: no ids")
    return frozenset(ids)


def text(value: object) -> str:
    """Return strings and whole numbers as text, and "" for anything else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return (number from 1, text) of each line that is not blank; raises InputError if a line is not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    lines = []
    # Split only at "\n": str.splitlines also splits at characters that may occur in JSON strings.
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            lines.append((number, line.decode("utf-8-sig" if number == 1 else "utf-8")))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}: not UTF-8 ({error.reason})") from error
    return lines
