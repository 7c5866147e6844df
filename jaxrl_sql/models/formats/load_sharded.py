"""From tensors in files to a leaf of the parameters on its devices.

A leaf is built piece by piece: the part that one device holds, with the layers stacked or apart, is filled from the
files a few rows at a time, handed to every device that holds it, and only then is the next one begun. So beside the
arrays themselves the host holds one piece and the rows being turned; on the CPU the piece is the array, not copied
again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_sql.models.formats.tensor_files import BFLOAT16, StoredTensor, is_sound
from jaxrl_sql.models.spec import ParamSpec

# Rows turned at once: their columns' cache lines stay in the first cache until all of a line is used.
BLOCK_ROWS = 64
# Values read and decoded at once, where rows are short: each piece waits for Python, which one thread has at a time.
READ_VALUES = 1 << 18
# Rows that a thread takes at once: large enough to be worth it, small enough to share out.
JOB_ROWS = 4096
MAX_THREADS = 8
# XLA takes memory of the host as its own, uncopied, from this alignment on.
ALIGNMENT = 64

Bounds = tuple[tuple[int, int], ...]


def reading_threads() -> ThreadPoolExecutor:
    """Open the threads that read: a core each, as far as one disk or memory bus has use for them."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS))


def place(
    spec: ParamSpec,
    stored: Sequence[StoredTensor],
    dtype: np.dtype,
    sharding: jax.sharding.Sharding,
    threads: ThreadPoolExecutor,
    broken: set[str] | None = None,
) -> jax.Array:
    """Read a leaf's tensors (one a layer where it is stacked) to this process's devices, in `dtype`.

    The names of those that are not sound there (`tensor_files.is_sound`) are added to `broken`.
    """
    arrays: list[jax.Array] = []
    for bounds, devices in _holders(spec.shape, sharding).items():
        piece = _empty(bounds, dtype)
        first, last = bounds[0] if spec.is_stacked else (0, 1)
        pieces = list(piece) if spec.is_stacked else [piece]
        named = list(zip(spec.hf_names(), stored, strict=True))[first:last]
        _read(spec, named, pieces, bounds[1:] if spec.is_stacked else bounds, threads, broken)
        arrays += [jax.device_put(piece, device) for device in devices]
        # A transfer that still runs would keep its piece beside the next one.
        jax.block_until_ready(arrays)
    return jax.make_array_from_single_device_arrays(spec.shape, sharding, arrays)


def place_layers(
    spec: ParamSpec,
    stored: Sequence[StoredTensor],
    dtype: np.dtype,
    sharding: jax.sharding.Sharding,
    threads: ThreadPoolExecutor,
    broken: set[str] | None = None,
) -> list[jax.Array]:
    """Read a stacked leaf's tensors as `place` does, but each to an array of its own, on the sharding of one layer."""
    arrays: list[list[jax.Array]] = [[] for _ in stored]
    for bounds, devices in _holders(spec.layer_shape, sharding).items():
        pieces = [_empty(bounds, dtype) for _ in stored]
        _read(spec, list(zip(spec.hf_names(), stored, strict=True)), pieces, bounds, threads, broken)
        for placed, piece in zip(arrays, pieces, strict=True):
            placed += [jax.device_put(piece, device) for device in devices]
        jax.block_until_ready(arrays)
    return [jax.make_array_from_single_device_arrays(spec.layer_shape, sharding, placed) for placed in arrays]


def _holders(shape: tuple[int, ...], sharding: jax.sharding.Sharding) -> dict[Bounds, list[jax.Device]]:
    """Return the parts of an array that this process's devices hold, and which of them hold each."""
    holders: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        parts = index or (slice(None),) * len(shape)
        bounds = tuple(part.indices(size)[:2] for part, size in zip(parts, shape, strict=True))
        holders.setdefault(bounds, []).append(device)
    return holders


class _Part(NamedTuple):
    """What of a file's tensor a piece holds: rows and columns, first to last, and how a row of the piece relates."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    transposed: bool


def _part(spec: ParamSpec, bounds: Bounds) -> _Part:
    """Return which rows and columns of one tensor are the bounds of its leaf, without the layers' axis."""
    shape = spec.layer_shape
    if spec.hf_transposed:
        split = next(n for n in range(len(shape) + 1) if math.prod(shape[:n]) == spec.hf_shape[1])
        return _Part(_span(shape[split:], bounds[split:]), _span(shape[:split], bounds[:split]), transposed=True)
    split = len(spec.hf_shape) - 1
    return _Part(_span(shape[:split], bounds[:split]), _span(shape[split:], bounds[split:]), transposed=False)


def _span(shape: Sequence[int], bounds: Bounds) -> tuple[int, int]:
    """Return first and last of a flattened range; only the outermost axis may be split, or it would be none."""
    if any(part != (0, size) for part, size in zip(bounds[1:], shape[1:], strict=True)):
        raise ValueError(f"bounds {bounds} of {shape} are no range: the rule table splits an inner axis")
    inner = math.prod(shape[1:])
    start, stop = bounds[0] if bounds else (0, 1)
    return start * inner, stop * inner


def _read(
    spec: ParamSpec,
    stored: Sequence[tuple[str, StoredTensor]],
    pieces: Sequence[np.ndarray],
    bounds: Bounds,
    threads: ThreadPoolExecutor,
    broken: set[str] | None,
) -> None:
    """Read the bounds of named tensors into pieces, one each, several threads at a time; `broken` is as in `place`."""
    part = _part(spec, bounds)
    n_rows, n_columns = (stop - start for start, stop in (part.rows, part.columns))
    sides = (n_columns, n_rows) if part.transposed else (n_rows, n_columns)
    jobs = [
        (name, threads.submit(_fill, _bits(piece).reshape(sides), tensor, start, part, piece.dtype))
        for piece, (name, tensor) in zip(pieces, stored, strict=True)
        for start in range(*part.rows, JOB_ROWS)
    ]
    for name, job in jobs:
        if not job.result() and broken is not None:
            broken.add(name)


def _fill(grid: np.ndarray, tensor: StoredTensor, first: int, part: _Part, dtype: np.dtype) -> bool:
    """Fill a piece's rows (columns, where it is transposed) that come from a tensor's rows from `first` on.

    Return whether these numbers are sound; they are checked while they lie in the processor's caches.
    """
    last = min(first + JOB_ROWS, part.rows[1])
    whole = part.columns == (0, tensor.shape[-1])
    if tensor.encoding.dtype == dtype and whole and tensor.order is None and not part.transposed:
        rows = grid[first - part.rows[0] : last - part.rows[0]]
        tensor.read_into(first, rows)
        return is_sound(rows.view(dtype))
    are_sound = True
    step = max(READ_VALUES // tensor.shape[-1] // BLOCK_ROWS, 1) * BLOCK_ROWS
    for start in range(first, last, step):
        numbers = _cast(tensor.read(start, min(start + step, last))[:, slice(*part.columns)], dtype)
        are_sound &= is_sound(numbers)
        block = _bits(numbers)
        at = start - part.rows[0]
        if not part.transposed:
            grid[at : at + len(block)] = block
            continue
        for row in range(0, len(block), BLOCK_ROWS):
            turned = block[row : row + BLOCK_ROWS].T
            grid[:, at + row : at + row + turned.shape[1]] = turned
    return are_sound


def _empty(bounds: Bounds, dtype: np.dtype) -> np.ndarray:
    """Return memory for what is within bounds that XLA takes without a copy."""
    shape = tuple(stop - start for start, stop in bounds)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _bits(array: np.ndarray) -> np.ndarray:
    """View bfloat16 as integers: NumPy moves those without asking another library about each."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def _cast(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to `dtype`; bfloat16 is the upper half of a float32."""
    if block.dtype == BFLOAT16 and dtype == np.float32:
        wide = _bits(block).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return block.astype(dtype, copy=False)
