"""An index of the records in a huge file of JSON lines or one JSON list, which is scanned once and never fully parsed.

The offsets are saved in a NumPy file next to the data, or in the cache folder if the data's folder is not writable, and
later opened as a memory map. The name of the index file contains the time of the data and its identity, a hash of its
size, first and last 64 KiB. Changed data is scanned again.
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

from jaxrl_sql.runtime.atomic import atomic_write
from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.text2sql.files.jsonl import decode_windows_1252, from_json
from jaxrl_sql.types import InputError, Record

# The bytes that are scanned at a time, and those at each end of a file that identify it.
_CHUNK = 4 << 20
_EDGE_BYTES = 64 << 10
# The format of index files; it must change with their content.
_VERSION = 1
_BOM = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'
_STRUCTURAL = np.zeros(256, dtype=bool)
_STRUCTURAL[[_QUOTE, _BACKSLASH, _OPEN, _CLOSE]] = True


class LineIndex:
    """The records of a file by index: `len(index)`, `index.raw(i)` and `index[i]`, read from the file on access.

    `index[i]` raises InputError (`file: record i: message`) for anything but a JSON object; bytes that are not UTF-8
    are decoded as Windows-1252. `identity` identifies the content of the file, independent of its path.
    """

    def __init__(self, path: Path, ranges: np.ndarray, identity: str) -> None:
        self.path, self.identity = path, identity
        self._ranges = ranges  # [N, 2] of uint64: offset and size of each record in bytes
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._ranges)

    def raw(self, number: int) -> bytes:
        """Return the bytes of a record."""
        start, size = (int(value) for value in self._ranges[number])
        return os.pread(self._file, size, start)

    def __getitem__(self, number: int) -> Record:
        raw = self.raw(number)
        try:
            record = from_json(decode_windows_1252(raw.decode("utf-8", errors="surrogateescape")))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: record {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise InputError(f"{self.path}: record {number}: expected an object, found {type(record).__name__}")
        return record

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
    """Open a file's index, or create it if the current content has no index.

    The index is saved next to the file, or in the cache folder if the file's folder is not writable. If neither is, it
    is created again each time. Raises InputError for an unreadable file, and for a truncated JSON list.
    """
    path = Path(path).resolve()
    try:
        identity = _identity(path)
        version = f"{identity}-{path.stat().st_mtime_ns:x}"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    prefixes = [path.parent / f".{path.name}."]
    if (folder := cache_folder()) is not None:
        path_hash = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
        prefixes.append(folder / f"{path.name}.{path_hash}.")
    for prefix in prefixes:
        index_path = prefix.with_name(f"{prefix.name}{version}.npy")
        if index_path.is_file():
            with contextlib.suppress(ValueError, OSError, EOFError):  # an incomplete index
                return LineIndex(path, np.load(index_path, mmap_mode="r"), identity)
    record_ranges = scan(path)
    for prefix in prefixes:
        with contextlib.suppress(OSError):
            return LineIndex(path, np.load(_save_index(prefix, version, record_ranges), mmap_mode="r"), identity)
    return LineIndex(path, record_ranges, identity)


def _identity(path: Path) -> str:
    """Return a hash of a file's size, head and tail."""
    stat = path.stat()
    digest = hashlib.blake2b(f"{_VERSION} {stat.st_size}".encode(), digest_size=8)
    with path.open("rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        file.seek(max(0, stat.st_size - _EDGE_BYTES))
        digest.update(file.read(_EDGE_BYTES))
    return digest.hexdigest()


def _save_index(prefix: Path, version: str, ranges: np.ndarray) -> Path:
    """Write an index atomically, and remove those of earlier versions of the file; return its path.

    The name is `prefix`, then `version`, which identifies the content of the file.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index_path = prefix.with_name(f"{prefix.name}{version}.npy")
    with atomic_write(index_path) as file:
        np.save(file, ranges)
    pattern = re.compile(re.escape(prefix.name) + r"[0-9a-f]{16}-[0-9a-f]+\.npy")
    for old in prefix.parent.iterdir():
        if pattern.fullmatch(old.name) and old != index_path:
            old.unlink(missing_ok=True)
    return index_path


def scan(path: Path) -> np.ndarray:
    """Scan a file and return the offset and size of each record, [N, 2] of uint64.

    A file whose first character is `[` is one list of objects; any other has a record per line.
    """
    with path.open("rb") as file:
        head = file.read(_EDGE_BYTES)
        start = len(_BOM) if head.startswith(_BOM) else 0
        is_list = head[start:].lstrip()[:1] == b"["
        file.seek(start)
        begins, sizes = _scan_list(path, file, start) if is_list else _scan_lines(file, start)
    return np.stack((begins, sizes), axis=1)


def _scan_lines(file: BinaryIO, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of lines that are not blank, and their sizes without the line end."""
    ends = []
    offset = start
    while chunk := file.read(_CHUNK):
        ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")).astype(np.uint64) + np.uint64(offset))
        offset += len(chunk)
    end = np.concatenate([*ends, np.array([offset], np.uint64)])
    begin = np.concatenate([np.array([start], np.uint64), end[:-1] + np.uint64(1)])
    size = end - begin
    # No object is shorter than `{}`; slightly longer lines are checked for white space.
    is_record = size >= 2
    for number in np.flatnonzero(is_record & (size < 16)):
        file.seek(int(begin[number]))
        is_record[number] = bool(file.read(int(size[number])).strip())
    return begin[is_record], size[is_record]


def _scan_list(path: Path, file: BinaryIO, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and sizes of the objects of a list.

    Unescaped quotes open and close strings; a brace outside of strings opens or closes an object.
    """
    begins, ends = [], []
    offset, carry, is_in_string, depth = start, b"", 0, 0
    while chunk := file.read(_CHUNK):
        chunk = carry + chunk
        # Backslashes at the end are left to the next chunk, because the character that they escape is there.
        carry = chunk[len(chunk.rstrip(b"\\")) :]
        data = np.frombuffer(chunk, np.uint8, len(chunk) - len(carry))
        positions = np.flatnonzero(_STRUCTURAL[data])
        characters = data[positions]
        quotes = (characters == _QUOTE) & ~_find_escaped(positions, characters)
        quotes_before = np.cumsum(quotes) + is_in_string  # odd inside of strings
        braces = ((characters == _OPEN) | (characters == _CLOSE)) & (quotes_before % 2 == 0)
        depth_change = np.where(characters[braces] == _OPEN, 1, -1)
        depth_after = np.cumsum(depth_change) + depth
        offsets = positions[braces] + offset
        begins.append(offsets[(depth_change == 1) & (depth_after == 1)])
        ends.append(offsets[(depth_change == -1) & (depth_after == 0)] + 1)
        is_in_string = int(quotes_before[-1]) % 2 if len(quotes_before) else is_in_string
        depth = int(depth_after[-1]) if len(depth_after) else depth
        offset += len(data)
    begin = np.concatenate([*begins, np.zeros(0, np.int64)]).astype(np.uint64)
    end = np.concatenate([*ends, np.zeros(0, np.int64)]).astype(np.uint64)
    if len(begin) != len(end) or is_in_string or depth:
        raise InputError(f"{path}: the list is truncated after {len(end)} records")
    return begin, end - begin


def _find_escaped(positions: np.ndarray, characters: np.ndarray) -> np.ndarray:
    """Return which characters are escaped: those that directly follow an odd number of backslashes.

    `characters` are the structural characters of a text (quotes, backslashes and braces), at `positions`.
    """
    is_backslash = characters == _BACKSLASH
    follows = np.zeros(len(positions), dtype=bool)
    follows[1:] = is_backslash[:-1] & (positions[1:] == positions[:-1] + 1)
    run_start = np.where(is_backslash & ~follows, positions, 0)
    index_in_run = positions - np.maximum.accumulate(run_start) if len(positions) else positions
    escapes = is_backslash & (index_in_run % 2 == 0)
    is_escaped = np.zeros(len(positions), dtype=bool)
    is_escaped[1:] = follows[1:] & escapes[:-1]
    return is_escaped
