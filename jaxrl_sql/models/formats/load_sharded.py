"""Read tensors of files into a leaf of the parameters on its devices.

A leaf is read shard by shard, one per device. The buffer of a shard is filled from the files a few rows at
a time and transferred to every device that holds it before the next one starts. So the host needs memory for one shard
and the rows in transposition. On the CPU the array uses the memory of the buffer without a copy.
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

# Rows transposed at once, so that the cache lines of the columns stay in the L1 cache.
BLOCK_ROWS = 64
# Values read and decoded at once for short rows, because each step holds Python's lock.
READ_VALUES = 1 << 18
# Rows per job: large compared with the overhead, small enough to balance threads.
JOB_ROWS = 4096
MAX_THREADS = 8
# With this alignment XLA uses host memory without a copy.
ALIGNMENT = 64

Bounds = tuple[tuple[int, int], ...]


def reading_threads() -> ThreadPoolExecutor:
    """Return a pool of reading threads: one per core, up to MAX_THREADS."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS))


def load_leaf(
    spec: ParamSpec,
    stored: Sequence[StoredTensor],
    dtype: np.dtype,
    sharding: jax.sharding.Sharding,
    threads: ThreadPoolExecutor,
    broken: set[str] | None = None,
) -> jax.Array:
    """Read the tensors of a leaf (one per layer if it is stacked) to this process's devices, in `dtype`.

    Names of tensors that are not sound in `dtype` (`tensor_files.is_sound`) are added to `broken`.
    """
    arrays: list[jax.Array] = []
    for bounds, devices in _local_shards(spec.shape, sharding).items():
        buffer = _empty(bounds, dtype)
        first, last = bounds[0] if spec.is_stacked else (0, 1)
        buffers = list(buffer) if spec.is_stacked else [buffer]
        named_tensors = list(zip(spec.hf_names(), stored, strict=True))[first:last]
        _read(spec, named_tensors, buffers, bounds[1:] if spec.is_stacked else bounds, threads, broken)
        arrays += [jax.device_put(buffer, device) for device in devices]
        # A running transfer would keep its buffer in memory.
        jax.block_until_ready(arrays)
    return jax.make_array_from_single_device_arrays(spec.shape, sharding, arrays)


def load_layers(
    spec: ParamSpec,
    stored: Sequence[StoredTensor],
    dtype: np.dtype,
    sharding: jax.sharding.Sharding,
    threads: ThreadPoolExecutor,
    broken: set[str] | None = None,
) -> list[jax.Array]:
    """Read the tensors of a stacked leaf as `load_leaf` does, to one array per layer with `sharding`."""
    arrays: list[list[jax.Array]] = [[] for _ in stored]
    for bounds, devices in _local_shards(spec.layer_shape, sharding).items():
        buffers = [_empty(bounds, dtype) for _ in stored]
        _read(spec, list(zip(spec.hf_names(), stored, strict=True)), buffers, bounds, threads, broken)
        for layer_arrays, buffer in zip(arrays, buffers, strict=True):
            layer_arrays += [jax.device_put(buffer, device) for device in devices]
        jax.block_until_ready(arrays)
    return [
        jax.make_array_from_single_device_arrays(spec.layer_shape, sharding, layer_arrays) for layer_arrays in arrays
    ]


def _local_shards(shape: tuple[int, ...], sharding: jax.sharding.Sharding) -> dict[Bounds, list[jax.Device]]:
    """Return the shards of an array on this process's devices, and the devices of each."""
    holders: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        parts = index or (slice(None),) * len(shape)
        bounds = tuple(part.indices(size)[:2] for part, size in zip(parts, shape, strict=True))
        holders.setdefault(bounds, []).append(device)
    return holders


class _TensorSlice(NamedTuple):
    """The rows and columns of a file's tensor in a shard, and whether the file holds the transpose."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    transposed: bool


def _tensor_slice(spec: ParamSpec, bounds: Bounds) -> _TensorSlice:
    """Return the rows and columns of a tensor for bounds of its leaf, without the axis of layers."""
    shape = spec.layer_shape
    if spec.hf_transposed:
        split = next(n for n in range(len(shape) + 1) if math.prod(shape[:n]) == spec.hf_shape[1])
        return _TensorSlice(_span(shape[split:], bounds[split:]), _span(shape[:split], bounds[:split]), transposed=True)
    split = len(spec.hf_shape) - 1
    return _TensorSlice(_span(shape[:split], bounds[:split]), _span(shape[split:], bounds[split:]), transposed=False)


def _span(shape: Sequence[int], bounds: Bounds) -> tuple[int, int]:
    """Return start and stop of the flattened bounds, of which only the outermost axis may be split."""
    if any(part != (0, size) for part, size in zip(bounds[1:], shape[1:], strict=True)):
        raise ValueError(f"bounds {bounds} of {shape} are not contiguous: the rule table splits an inner axis")
    inner = math.prod(shape[1:])
    start, stop = bounds[0] if bounds else (0, 1)
    return start * inner, stop * inner


def _read(
    spec: ParamSpec,
    stored: Sequence[tuple[str, StoredTensor]],
    buffers: Sequence[np.ndarray],
    bounds: Bounds,
    threads: ThreadPoolExecutor,
    broken: set[str] | None,
) -> None:
    """Read the bounds of named tensors into one buffer each, in parallel; `broken` is as in `load_leaf`."""
    part = _tensor_slice(spec, bounds)
    n_rows, n_columns = (stop - start for start, stop in (part.rows, part.columns))
    tensor_shape = (n_columns, n_rows) if part.transposed else (n_rows, n_columns)
    jobs = [
        (name, threads.submit(_fill, _bits(buffer).reshape(tensor_shape), tensor, start, part, buffer.dtype))
        for buffer, (name, tensor) in zip(buffers, stored, strict=True)
        for start in range(*part.rows, JOB_ROWS)
    ]
    for name, job in jobs:
        if not job.result() and broken is not None:
            broken.add(name)


def _fill(grid: np.ndarray, tensor: StoredTensor, first: int, part: _TensorSlice, dtype: np.dtype) -> bool:
    """Fill the rows (columns, if transposed) of a buffer from up to JOB_ROWS rows of a tensor, starting with `first`.

    Return whether the numbers are sound; the check runs while they are in the CPU's caches.
    """
    last = min(first + JOB_ROWS, part.rows[1])
    is_whole = part.columns == (0, tensor.shape[-1])
    if tensor.encoding.dtype == dtype and is_whole and tensor.order is None and not part.transposed:
        rows = grid[first - part.rows[0] : last - part.rows[0]]
        tensor.read_into(first, rows)
        return is_sound(rows.view(dtype))
    are_sound = True
    step = max(READ_VALUES // tensor.shape[-1] // BLOCK_ROWS, 1) * BLOCK_ROWS
    for start in range(first, last, step):
        numbers = _cast(tensor.read(start, min(start + step, last))[:, slice(*part.columns)], dtype)
        are_sound &= is_sound(numbers)
        block = _bits(numbers)
        offset = start - part.rows[0]
        if not part.transposed:
            grid[offset : offset + len(block)] = block
            continue
        for row in range(0, len(block), BLOCK_ROWS):
            transposed = block[row : row + BLOCK_ROWS].T
            grid[:, offset + row : offset + row + transposed.shape[1]] = transposed
    return are_sound


def _empty(bounds: Bounds, dtype: np.dtype) -> np.ndarray:
    """Return an uninitialized array of the size of bounds, in memory that XLA uses without a copy."""
    shape = tuple(stop - start for start, stop in bounds)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _bits(array: np.ndarray) -> np.ndarray:
    """View bfloat16 as integers, which NumPy copies without calling ml_dtypes per element."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def _cast(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast to `dtype`; bfloat16 is the upper half of a float32."""
    if block.dtype == BFLOAT16 and dtype == np.float32:
        wide = _bits(block).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return block.astype(dtype, copy=False)
