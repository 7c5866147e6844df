"""Where each record of a huge file stands: JSON lines, or one JSON list, looked through once and never parsed whole.

The places are kept in a NumPy file beside the data, or in a cache folder where that one cannot be written, and mapped
into memory when it is opened again. The file's name holds what the data's identity is: size, time, and a hash of its
head and tail. Data that was changed is looked through again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.runtime.written import written_whole
from jaxrl_sql.text2sql.files.jsonl import as_windows, from_json
from jaxrl_sql.types import InputError, Record

_CHUNK = 4 << 20
_EDGE = 64 << 10
_VERSION = 1
_BOM = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'
_STRUCTURAL = np.zeros(256, dtype=bool)
_STRUCTURAL[[_QUOTE, _BACKSLASH, _OPEN, _CLOSE]] = True


class LineIndex:
    """The records of a file, by number: `len(index)`, `index.raw(i)` and `index[i]`, read from the file when asked for.

    `index[i]` raises InputError (`file: record i: what`) for what is not a JSON object; bytes that are not UTF-8 are
    read as Windows-1252. `identity` is a short word for what is in the file, wherever it lies.
    """

    def __init__(self, path: Path, places: np.ndarray, identity: str) -> None:
        self.path, self.identity = path, identity
        self._places = places  # [N, 2] of uint64: where a record begins, and its bytes
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._places)

    def raw(self, number: int) -> bytes:
        """Return the bytes of a record."""
        start, size = (int(value) for value in self._places[number])
        return os.pread(self._file, size, start)

    def __getitem__(self, number: int) -> Record:
        raw = self.raw(number)
        try:
            found = from_json(as_windows(raw.decode("utf-8", errors="surrogateescape")))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: record {number}: not JSON ({error})") from error
        if not isinstance(found, dict):
            raise InputError(f"{self.path}: record {number}: expected an object, found {type(found).__name__}")
        return found

    def __iter__(self) -> Iterator[Record]:
        return (self[number] for number in range(len(self)))

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()


def open_index(path: str | Path) -> LineIndex:
    """Open a file's index, which is made first where there is none for the file as it is.

    It lies beside the file, or in the cache folder where that cannot be written, or is made again each time.
    Raises InputError for a file that cannot be read, and for a JSON list that is cut off.
    """
    path = Path(path).resolve()
    try:
        identity = _identity(path)
        version = f"{identity}-{path.stat().st_mtime_ns:x}"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    places = [path.parent / f".{path.name}."]
    if (folder := cache_folder()) is not None:
        other = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
        places.append(folder / f"{path.name}.{other}.")
    for place in places:
        kept = place.with_name(f"{place.name}{version}.npy")
        if kept.is_file():
            with contextlib.suppress(ValueError, OSError, EOFError):  # one that was not written whole
                return LineIndex(path, np.load(kept, mmap_mode="r"), identity)
    found = scan(path)
    for place in places:
        with contextlib.suppress(OSError):
            return LineIndex(path, np.load(_keep(place, version, found), mmap_mode="r"), identity)
    return LineIndex(path, found, identity)


def _identity(path: Path) -> str:
    stat = path.stat()
    whole = hashlib.blake2b(f"{_VERSION} {stat.st_size}".encode(), digest_size=8)
    with path.open("rb") as file:
        whole.update(file.read(_EDGE))
        file.seek(max(0, stat.st_size - _EDGE))
        whole.update(file.read(_EDGE))
    return whole.hexdigest()


def _keep(place: Path, version: str, found: np.ndarray) -> Path:
    """Write an index whole or not at all, and remove those of what the file was before."""
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = place.with_name(f"{place.name}{version}.npy")
    with written_whole(kept) as file:
        np.save(file, found)
    own = re.compile(re.escape(place.name) + r"[0-9a-f]{16}-[0-9a-f]+\.npy")
    for old in place.parent.iterdir():
        if own.fullmatch(old.name) and old != kept:
            old.unlink(missing_ok=True)
    return kept


def scan(path: Path) -> np.ndarray:
    """Look through a file -> where each record begins and its bytes, [N, 2] of uint64.

    A file whose first character is `[` is one list of objects; any other holds a record a line.
    """
    with path.open("rb") as file:
        head = file.read(_EDGE)
        start = len(_BOM) if head.startswith(_BOM) else 0
        is_list = head[start:].lstrip()[:1] == b"["
        file.seek(start)
        begins, sizes = _scan_list(path, file, start) if is_list else _scan_lines(file, start)
    return np.stack((begins, sizes), axis=1)


def _scan_lines(file: BinaryIO, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where lines that are not blank begin, and their bytes without the end of the line."""
    ends = []
    place = start
    while chunk := file.read(_CHUNK):
        ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")).astype(np.uint64) + np.uint64(place))
        place += len(chunk)
    end = np.concatenate([*ends, np.array([place], np.uint64)])
    begin = np.concatenate([np.array([start], np.uint64), end[:-1] + np.uint64(1)])
    size = end - begin
    # No object is shorter than `{}`; of what is a little longer, white space is looked for.
    kept = size >= 2
    for number in np.flatnonzero(kept & (size < 16)):
        file.seek(int(begin[number]))
        kept[number] = bool(file.read(int(size[number])).strip())
    return begin[kept], size[kept]


def _scan_list(path: Path, file: BinaryIO, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the objects of a list begin, and their bytes.

    Quotes that no backslash escapes open and close texts; a brace outside of them opens or closes an object.
    """
    begins, ends = [], []
    place, held, in_text, depth = start, b"", 0, 0
    while chunk := file.read(_CHUNK):
        chunk = held + chunk
        # A run of backslashes at the end belongs to what follows it.
        held = chunk[len(chunk.rstrip(b"\\")) :]
        data = np.frombuffer(chunk, np.uint8, len(chunk) - len(held))
        at = np.flatnonzero(_STRUCTURAL[data])
        kind = data[at]
        quotes = (kind == _QUOTE) & ~_escaped(at, kind)
        texts = np.cumsum(quotes) + in_text
        braces = ((kind == _OPEN) | (kind == _CLOSE)) & (texts % 2 == 0)
        step = np.where(kind[braces] == _OPEN, 1, -1)
        after = np.cumsum(step) + depth
        where = at[braces] + place
        begins.append(where[(step == 1) & (after == 1)])
        ends.append(where[(step == -1) & (after == 0)] + 1)
        in_text = int(texts[-1]) % 2 if len(texts) else in_text
        depth = int(after[-1]) if len(after) else depth
        place += len(data)
    begin = np.concatenate([*begins, np.zeros(0, np.int64)]).astype(np.uint64)
    end = np.concatenate([*ends, np.zeros(0, np.int64)]).astype(np.uint64)
    if len(begin) != len(end) or in_text or depth:
        raise InputError(f"{path}: the list is cut off after {len(end)} records")
    return begin, end - begin


def _escaped(at: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Return which of the found characters a backslash escapes: those after a run of an odd number of them."""
    slash = kind == _BACKSLASH
    follows = np.zeros(len(at), dtype=bool)
    follows[1:] = slash[:-1] & (at[1:] == at[:-1] + 1)
    first = np.where(slash & ~follows, at, 0)
    in_run = at - np.maximum.accumulate(first) if len(at) else at
    escapes = slash & (in_run % 2 == 0)
    found = np.zeros(len(at), dtype=bool)
    found[1:] = follows[1:] & escapes[:-1]
    return found
