"""The header of a GGUF file: metadata by key, and the offset of each tensor.

Package `gguf` is not used because its reader creates NumPy arrays for each token of the vocabulary. For the 262,144
tokens of Gemma this takes seconds and hundreds of megabytes, and config, weights and tokenizer each read the header.
The format is specified in ggml's docs/gguf.md; versions 2 and 3, little-endian, are supported.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl_sql.types import InputError, Json, Record

# The format's number of each type of metadata; of scalars with the format code of `struct`.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
# In bytes, of the first tensor, if the metadata have no alignment.
DEFAULT_ALIGNMENT = 32


class TensorEntry(NamedTuple):
    """A tensor of a GGUF file.

    shape: in NumPy's order (the file lists the innermost axis first); ggml_type: ggml's number of the type; offset: of
    the first byte in the file.
    """

    shape: tuple[int, ...]
    ggml_type: int
    offset: int


class GgufHeader(NamedTuple):
    """Metadata and tensor entries of a GGUF file."""

    metadata: Record
    tensors: dict[str, TensorEntry]


class _Cursor:
    """A reader of the file's bytes; each call reads a value at `position` and advances it."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def number(self, code: str) -> Json:
        """Read a number with a format code of `struct`."""
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        """Read a length and that number of bytes as UTF-8."""
        length = self.number("Q")
        start, self.position = self.position, self.position + length
        raw = self.data[start : self.position]
        if len(raw) < length:
            raise ValueError("a string extends past the end of the file")
        return raw.decode("utf-8", errors="replace")  # tokens of some vocabularies are parts of characters

    def value(self, kind: int) -> Json:
        """Read a value of the metadata of type `kind`; an array becomes a list."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(SCALARS[kind])
        item_kind, count = self.number("I"), self.number("Q")
        if item_kind not in SCALARS:
            return [self.value(item_kind) for _ in range(count)]
        dtype = np.dtype("<" + SCALARS[item_kind]) if SCALARS[item_kind] != "?" else np.dtype(bool)
        values = np.frombuffer(self.data, dtype, count, self.position).tolist()
        self.position += count * dtype.itemsize
        return values


def read_header(path: Path) -> GgufHeader:
    """Read a GGUF file's header; raises InputError if the file is missing, not GGUF, or truncated."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    stat = path.stat()
    return _read_version(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _read_version(path: Path, _mtime_ns: int, _size: int) -> GgufHeader:
    """Read a file's header; the result is cached, because config, weights and tokenizer each need it.

    Reading takes about a second. Time of change and size are arguments so that a changed file is read again.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data))
    except (ValueError, KeyError, struct.error, OverflowError) as error:
        raise InputError(f"{path}: not a readable GGUF file ({error}): copy or fetch it again") from error


def _parse(cursor: _Cursor) -> GgufHeader:
    """Parse a header: magic bytes, version, counts, metadata, then tensor entries.

    Raises ValueError, KeyError, struct.error or OverflowError for a damaged file.
    """
    if cursor.data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor.position = 4
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}; versions 2 and 3 in little-endian are read")
    n_tensors, n_values = cursor.number("Q"), cursor.number("Q")
    metadata = {}
    for _ in range(n_values):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    entries = {}
    for _ in range(n_tensors):
        name = cursor.string()
        shape = tuple(cursor.number("Q") for _ in range(cursor.number("I")))
        entries[name] = TensorEntry(shape[::-1], cursor.number("I"), cursor.number("Q"))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}, must be a whole number of at least 1")
    # Offsets in the entries are relative to the first tensor, which follows the header at the next aligned position.
    first = -(-cursor.position // alignment) * alignment
    tensors = {name: entry._replace(offset=first + entry.offset) for name, entry in entries.items()}
    return GgufHeader(metadata, tensors)
