"""Tensors in files, read a few rows at a time.

The headers of safetensors and GGUF files have the offset of each tensor. So a tensor is represented by an open file, an
offset, and a decoder of rows (`StoredTensor`). Reads use `pread` and not a memory map, so that file pages stay in the
system's cache and do not count as memory of the process.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxrl_sql.types import InputError, Record

BFLOAT16 = np.dtype(jnp.bfloat16)
# Supported dtypes by their names in safetensors; others (float8 with scales) are rejected.
SAFETENSORS_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
HEADER_BYTES = 100 << 20  # a limit for damaged files; headers of real models are shorter


# Limit of a weight's absolute value. A larger weight, as a flipped bit in a file may cause, makes squares of states
# overflow in float32, and norms then return 0.
LARGEST_WEIGHT = 1e15


def is_sound(numbers: np.ndarray) -> bool:
    """Return whether all floats are finite and below LARGEST_WEIGHT in absolute value.

    The check compares bits as integers, without computing with floats. As signed integers, positive floats order by
    value and negative floats are below 0. As unsigned integers, negative floats are above all positive ones and order
    by absolute value. Infinity and NaN have the largest bits of their sign.
    """
    with np.errstate(over="ignore"):  # in float16 the limit is infinity
        limits = np.array([LARGEST_WEIGHT, -LARGEST_WEIGHT]).astype(numbers.dtype)
    signed, unsigned = (np.dtype(f"{kind}{numbers.dtype.itemsize}") for kind in "iu")
    return bool(
        numbers.view(signed).max(initial=0) < limits.view(signed)[0]
        and numbers.view(unsigned).max(initial=0) < limits.view(unsigned)[1]
    )


def refuse_broken_weights(where: object, names: Collection[str]) -> None:
    """Raise InputError that lists `names`, those of tensors that are not sound (`is_sound`); do nothing without names.

    `where`: the file, folder or operation, for the message.
    """
    if names:
        first, others = min(names), f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise InputError(
            f"{where}: the weights are broken: NaN, infinity or numbers beyond {LARGEST_WEIGHT:g} in {first}{others}; "
            "copy or fetch the model again, or take an earlier checkpoint"
        )


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors to a file, replacing an existing file only when the new one is complete.

    The file gets the permissions of the umask; safetensors alone would make it readable by its owner only. Raises
    OSError, and leaves no part of the new file, if it cannot be written.
    """
    part = path.with_name(f".part-{path.name}")
    part.unlink(missing_ok=True)
    part.touch()  # creates it with the permissions of the umask
    mode = part.stat().st_mode
    try:
        save_file(dict(tensors), part, metadata={"format": "pt"})
    except SafetensorError as error:  # its text ends with the number of the system's error
        part.unlink()
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    part.chmod(mode)
    part.replace(path)


class Encoding(NamedTuple):
    """The encoding of the rows of a tensor.

    name: its name in the file's format; row_bytes: bytes per row.
    dtype: type of the numbers if a row is a plain array; otherwise None, and `decode` converts rows, bytes
    [N,row_bytes] -> numbers [N,columns]. If both are None, the encoding is not supported.
    """

    name: str
    row_bytes: int
    dtype: np.dtype | None
    decode: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in an open file.

    path, file: its path, for messages, and the open file's descriptor.
    offset: of the tensor's first byte in the file.
    shape: Hugging Face's shape; a vector is stored as one row.
    encoding: of its rows.
    order: for a file with the rows in a different order: for each of Hugging Face's rows, the index of the file's row.
    """

    path: Path
    file: int
    offset: int
    shape: tuple[int, ...]
    encoding: Encoding
    order: np.ndarray | None = None

    @property
    def is_readable(self) -> bool:
        """Return whether the encoding is supported."""
        return self.encoding.dtype is not None or self.encoding.decode is not None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows [start, stop) as [stop - start, columns], in the stored or decoded dtype."""
        if self.order is None:
            return self._decode(start, stop)
        rows = self.order[start:stop]
        first, last = int(rows.min()), int(rows.max())
        return self._decode(first, last + 1)[rows - first]

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Read N stored rows, starting with `start`, into a contiguous array out [N,columns].

        The stored bytes are copied without decoding, so `out` must have the encoding's dtype or one of its size.
        """
        self._read_bytes(start, out.view(np.uint8))

    def _decode(self, start: int, stop: int) -> np.ndarray:
        """Return the file's rows [start, stop), in the file's order."""
        raw = np.empty((stop - start, self.encoding.row_bytes), np.uint8)
        self._read_bytes(start, raw)
        if self.encoding.dtype is not None:
            return raw.view(self.encoding.dtype)
        if self.encoding.decode is None:
            raise InputError(f"{self.path}: tensors of type {self.encoding.name} are not read")
        return self.encoding.decode(raw)

    def _read_bytes(self, start: int, out: np.ndarray) -> None:
        """Fill out [N,row_bytes] with the bytes of the file's rows from `start`; a single `preadv` may return fewer."""
        remaining = out.data.cast("B")
        position = self.offset + start * self.encoding.row_bytes
        while remaining:
            count = os.preadv(self.file, [remaining], position)
            if not count:
                raise InputError(f"{self.path}: ends in the middle of a tensor")
            remaining, position = remaining[count:], position + count


def read_safetensors(path: Path, file: int) -> dict[str, StoredTensor]:
    """Return the tensors of an open safetensors file by name, from its header; `file` is its descriptor.

    Raises InputError if the file is invalid or truncated.
    """
    try:
        return dict(_entries(path, file))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error}): copy or fetch it again") from error


def _entries(path: Path, file: int) -> list[tuple[str, StoredTensor]]:
    """Parse the header: its length in 8 bytes, then JSON with an entry per tensor; the tensors' bytes follow."""
    size = os.fstat(file).st_size
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    if length > min(size - 8, HEADER_BYTES):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header: Record = json.loads(os.pread(file, length, 8))
    header.pop("__metadata__", None)
    return [(name, _entry(path, file, 8 + length, size, entry)) for name, entry in header.items()]


def _entry(path: Path, file: int, data: int, size: int, entry: Record) -> StoredTensor:
    """Read a tensor's header entry and check it against the file's size.

    `data` is the offset of the first tensor in the file, and `data_offsets` are relative to it.
    """
    shape, (start, stop) = tuple(int(n) for n in entry["shape"]), entry["data_offsets"]
    name, dtype = entry["dtype"], SAFETENSORS_DTYPES.get(entry["dtype"])
    rows = shape[0] if len(shape) > 1 else 1
    if dtype is not None and stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{stop - start} bytes for {list(shape)} of {name}")
    if not 0 <= start <= stop <= size - data:
        raise ValueError(f"bytes {start} to {stop} of {size - data}")
    encoding = Encoding(name, (stop - start) // max(rows, 1), dtype)
    return StoredTensor(path, file, data + start, shape, encoding)
