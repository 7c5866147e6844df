"""Read tensors of files into a leaf of the parameters on its devices.

A leaf is an array of the parameters; it stacks the tensors of all layers, one tensor of the files each. It is read
shard by shard: a shard is the part that a device holds. The buffer of a shard is filled from the files a few rows at a
time. Then it is transferred to every device that holds this shard, before the next shard is read. So the host needs
memory for one shard and for the rows that are being transposed. On the CPU the array uses the memory of the buffer
without a copy.
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

# Rows transposed at a time: few enough that the cache lines of the columns stay in the L1 cache.
BLOCK_ROWS = 64
# Values read and decoded at a time: enough that a step is long compared with its time in Python code, during which
# other threads wait for Python's lock.
READ_VALUES = 1 << 18
# Rows per job: large compared with the overhead, small enough to balance threads.
JOB_ROWS = 4096
MAX_THREADS = 8
# With this alignment, in bytes, XLA uses host memory without a copy.
ALIGNMENT = 64

# (start, stop) of a shard in each axis of its array; stop is exclusive.
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
    """Read a leaf to this process's devices, in `dtype`.

    stored: its tensors in the files, in the order of `spec.hf_names()`: one per layer if the leaf is stacked. Names of
    tensors that are not sound in `dtype` (`tensor_files.is_sound`: finite and not too large) are added to `broken`.
    """
    arrays: list[jax.Array] = []
    for bounds, devices in _local_shards(spec.shape, sharding).items():
        buffer = _empty(bounds, dtype)
        first, last = bounds[0] if spec.is_stacked else (0, 1)
        buffers = list(buffer) if spec.is_stacked else [buffer]
        named_tensors = list(zip(spec.hf_names(), stored, strict=True))[first:last]
        _read(spec, named_tensors, buffers, bounds[1:] if spec.is_stacked else bounds, threads, broken)
        arrays += [jax.device_put(buffer, device) for device in devices]
        # Wait for the transfers, so that the buffer is freed before the next is allocated.
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
    """Read a stacked leaf as `load_leaf` does, but to one array per layer, each with `sharding`."""
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
    """The part of a file's tensor that belongs to a shard.

    rows, columns: (start, stop) in the file's tensor. transposed: whether the leaf holds the transpose of the file's
    tensor.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    transposed: bool


def _tensor_slice(spec: ParamSpec, bounds: Bounds) -> _TensorSlice:
    """Return the part of a tensor for `bounds`, those of a shard of its leaf without the axis of layers.

    The first axes of the leaf together are the tensor's rows and the others its columns; for a transposed leaf it is
    the reverse.
    """
    shape = spec.layer_shape
    if spec.hf_transposed:
        # The number of the leaf's first axes that are the inputs, the columns of the file's tensor.
        split = next(n for n in range(len(shape) + 1) if math.prod(shape[:n]) == spec.hf_shape[1])
        return _TensorSlice(_span(shape[split:], bounds[split:]), _span(shape[:split], bounds[:split]), transposed=True)
    split = len(spec.hf_shape) - 1
    return _TensorSlice(_span(shape[:split], bounds[:split]), _span(shape[split:], bounds[split:]), transposed=False)


def _span(shape: Sequence[int], bounds: Bounds) -> tuple[int, int]:
    """Return (start, stop) of a shard in an array of `shape` that is flattened to one axis.

    Only the first axis may be split. Raises ValueError otherwise.
    """
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
    """Read the parts of tensors (name, tensor) at `bounds` into one buffer each, in parallel.

    `broken` is as in `load_leaf`.
    """
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


def _fill(buffer: np.ndarray, tensor: StoredTensor, first: int, part: _TensorSlice, dtype: np.dtype) -> bool:
    """Fill the rows (columns, if transposed) of a buffer from up to JOB_ROWS rows of a tensor, starting with `first`.

    buffer: the part as a matrix, with bfloat16 viewed as integers (`_bits`); dtype: that of its numbers. Return whether
    the numbers are sound; the check runs here, because the numbers are still in the CPU's caches.
    """
    last = min(first + JOB_ROWS, part.rows[1])
    has_all_columns = part.columns == (0, tensor.shape[-1])
    if tensor.encoding.dtype == dtype and has_all_columns and tensor.order is None and not part.transposed:
        rows = buffer[first - part.rows[0] : last - part.rows[0]]
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
            buffer[offset : offset + len(block)] = block
            continue
        for row in range(0, len(block), BLOCK_ROWS):
            transposed = block[row : row + BLOCK_ROWS].T
            buffer[:, offset + row : offset + row + transposed.shape[1]] = transposed
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
        bits = _bits(block).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return block.astype(dtype, copy=False)
