"""Runs on several processes: JAX's multi-controller runtime, in which every process runs the same program.

Arrays are global, and each process has the shards of its devices. Host work is split: `share` returns this process's
part of a list (such as questions whose SQL is to run), and `exchange` combines the parts. So all processes take the
same decisions from the same values. Only the first process writes files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxrl_sql.batch import bucket
from jaxrl_sql.types import InputError, JaxrlSqlError

_ERROR_PREFIX = "Error dispatching computation: "
# Parts of the error messages of gloo, NCCL and JAX's coordination service when a process is lost.
_LOST_MESSAGES = (
    "by peer",
    "Connection refused",
    "remote process",
    "heartbeat",
    "oordination service",
    "UNAVAILABLE",
    "DEADLINE",
)
# Environment variables.
ADDRESS, NUMBER, COUNT = "JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"


class LostProcessError(JaxrlSqlError):
    """Another process of the run has ended, so this process cannot continue."""


@contextmanager
def report_lost_process(advice: str) -> Iterator[None]:
    """Convert the error of a collective operation with a lost process to LostProcessError, one line with `advice`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises ValueError from eager computations
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].replace(_ERROR_PREFIX, "")
        if jax.process_count() == 1 or not any(message in reason for message in _LOST_MESSAGES):
            raise
        raise LostProcessError(f"another process of this run has ended ({reason[:200]}); {advice}") from error


def start_processes(count: int) -> None:
    """Connect the processes of a run; call it before any use of a device. With a `count` of 1 it does nothing.

    count: number of processes; 0 takes it from JAX_NUM_PROCESSES or from the launcher (JAX supports Slurm, Open MPI,
    GKE, Cloud TPU). With other launchers JAX_COORDINATOR_ADDRESS (host:port of process 0) and JAX_PROCESS_ID must be
    set. Raises InputError if they are missing, or if the number of processes differs from `count`.
    """
    if count == 1:
        return
    if not jax.distributed.is_initialized():
        number = _read_number(NUMBER)
        try:
            jax.distributed.initialize(num_processes=count or _read_number(COUNT), process_id=number)
        except (RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"mesh.processes={count}: {reason} (outside of the clusters that JAX detects, set {ADDRESS}, "
                f"{COUNT} and {NUMBER})"
            ) from error
    if count and jax.process_count() != count:
        raise InputError(f"mesh.processes={count}: {jax.process_count()} processes joined")


def _read_number(name: str) -> int | None:
    """Read a whole number from the environment; None if the variable is not set."""
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise InputError(f"environment: {name}={text!r} is not a whole number")
    return int(text) if text else None


def to_host(array: jax.Array) -> np.ndarray:
    """Return a global array in full on the host of every process; every process must call it."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def is_first() -> bool:
    """Return whether this is the first process, which writes the files and the output."""
    return jax.process_index() == 0


def share(n: int) -> range:
    """Return the indices of this process's share of `n` items; all of them if it is the only process."""
    index, count = jax.process_index(), jax.process_count()
    return range(n * index // count, n * (index + 1) // count)


def exchange(values: Sequence[Any]) -> list[Any]:
    """Return the values of all processes in process order (all-gather); every process must call it.

    Values must be JSON; tuples are returned as lists. A single process gets its own values back unchanged.
    """
    if jax.process_count() == 1:
        return list(values)
    return [value for text in exchange_bytes(json.dumps(list(values)).encode()) for value in json.loads(text)]


def exchange_bytes(data: bytes) -> list[bytes]:
    """Return the bytes of all processes in process order; every process must call it."""
    if jax.process_count() == 1:
        return [data]
    sizes = np.ravel(multihost_utils.process_allgather(np.array([len(data)], np.int32)))
    # A gather has one shape for all processes and is compiled per shape, so data are padded to a rounded size.
    padded = np.zeros(bucket(int(sizes.max()), 1024), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = np.reshape(multihost_utils.process_allgather(padded), (len(sizes), -1))
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def gather_array(array: jax.Array | np.ndarray) -> np.ndarray:
    """Return an array in full on the host, as `to_host` does.

    NumPy arrays are allowed too, and replicated arrays need no communication. Every process must call it if the array
    spans processes.
    """
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def wait_for_all(barrier: str) -> None:
    """Block until every process has reached the barrier of this name."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(barrier)


@contextmanager
def first_process_first(barrier: str) -> Iterator[None]:
    """Run the context on the first process before the others, which then see its complete files.

    `barrier` names the barrier. If the first process fails, the others continue and fail in the same way.
    """
    if not is_first():
        wait_for_all(barrier)
    try:
        yield
    finally:
        if is_first():
            wait_for_all(barrier)
