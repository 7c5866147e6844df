"""JSON-lines files and lists of ids: what others wrote is read with care, and every fault names its line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.text2sql.env.files import uid_of
from jaxrl_sql.types import Fields, InputError, Json, Record

# What `surrogateescape` makes of a byte that is not UTF-8.
ODD = re.compile("[\udc80-\udcff]")
# Five bytes are none of Windows-1252's: they are Latin-1's.
_WINDOWS = {chr(0xDC00 + n): bytes([n]).decode("cp1252", "replace").replace("\ufffd", chr(n)) for n in range(128, 256)}

# How JSON spells half a character, a surrogate; some spell an emoji as two of them.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def as_windows(text: str) -> str:
    """Return a text whose bytes that are not UTF-8, which `surrogateescape` kept, are read as Windows-1252."""
    return ODD.sub(lambda found: _WINDOWS[found.group()], text)


def from_json(line: str) -> Json:
    """Return the value of a JSON text; half a character, which JSON can spell and no file can hold, is read as `?`."""
    found = json.loads(line)
    if _HALF.search(line):
        return json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    return found


def load_json(line: str, path: Path, number: int = 0) -> Json:
    """Return the value in a line of a file, or in all of it; raises InputError (`file:line: not JSON`)."""
    try:
        return from_json(line)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        number = number or (error.lineno if isinstance(error, json.JSONDecodeError) else 1)
        raise InputError(f"{path}:{number}: not JSON ({error})") from error


def records(path: Path) -> list[tuple[int, Record]]:
    """Return (line number, object) of each line that is not blank; raises InputError (`file:line: what`)."""
    found = []
    for number, line in _lines(path):
        record = load_json(line, path, number)
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, found {type(record).__name__}")
        found.append((number, record))
    return found


def write_lines(path: Path, found: Sequence[Fields]) -> None:
    """Write a JSON object a line."""
    lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in found)
    path.write_text("".join(lines), encoding="utf-8", errors="replace")


def read_ids(path: str | Path) -> frozenset[str]:
    """Read ids: a line, or an entry of a JSON list, is the id itself or an object with a field of it (`uid_of`).

    Raises InputError for a file that cannot be read or holds none.
    """
    path = Path(path)
    lines = _lines(path)
    if lines and lines[0][1].lstrip().startswith("["):
        entries = list(enumerate(load_json("\n".join(line for _, line in lines), path), start=1))
    else:
        entries = [(n, load_json(x, path, n) if x.lstrip().startswith("{") else x.strip()) for n, x in lines]
    ids = set()
    for number, entry in entries:
        named = entry if isinstance(entry, dict) else {"id": entry}
        if not (uid := uid_of(named, f"{path}:{number}")):
            raise InputError(f"{path}:{number}: no id")
        ids.add(uid)
    if not ids:
        raise InputError(f"{path}: no ids in it")
    return frozenset(ids)


def text(value: object) -> str:
    """Return strings and whole numbers as text, anything else as nothing."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    found = []
    # Split at "\n" alone: str.splitlines also splits at characters that JSON strings may hold as they are.
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append((number, line.decode("utf-8-sig" if number == 1 else "utf-8")))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}: not UTF-8 ({error.reason})") from error
    return found
