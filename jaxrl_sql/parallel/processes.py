"""Several processes, one run: JAX's own multi-controller runtime, in which every process runs the same program.

Arrays belong to all processes, and each holds the pieces on its own devices. What happens beside the devices is shared
out: `share` says which part of a list (questions whose SQL is to run) is this process's, and `exchange` brings the
parts together, so that every process decides the same from the same numbers. Files are the first process's to write.
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

# What the libraries below a collective say of a process that is gone: gloo, NCCL, JAX's coordination service.
_AROUND = "Error dispatching computation: "
_LOST = (
    "by peer",
    "Connection refused",
    "remote process",
    "heartbeat",
    "oordination service",
    "UNAVAILABLE",
    "DEADLINE",
)
ADDRESS, NUMBER, COUNT = "JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"


class LostProcessError(JaxrlSqlError):
    """Another process of the run has ended, and this one cannot go on without it."""


@contextmanager
def told_of_lost(advice: str) -> Iterator[None]:
    """Raise LostProcessError, one line with `advice`, for the error of a collective whose other side is gone."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # where it computes at once, JAX raises the second
        said = (str(error).strip() or type(error).__name__).splitlines()[0].replace(_AROUND, "")
        if jax.process_count() == 1 or not any(word in said for word in _LOST):
            raise
        raise LostProcessError(f"another process of this run has ended ({said[:200]}); {advice}") from error


def start_processes(count: int) -> None:
    """Join the processes of a run, before anything touches a device; 1 is a run of one process and does nothing.

    0 takes the count from JAX_NUM_PROCESSES or from what started the run (Slurm, Open MPI, GKE, Cloud TPU: JAX knows
    them). Elsewhere JAX_COORDINATOR_ADDRESS (host:port of process 0) and JAX_PROCESS_ID say who is who.
    Raises InputError when they do not, or when another number of processes has come.
    """
    if count == 1:
        return
    if not jax.distributed.is_initialized():
        number = _number(NUMBER)
        try:
            jax.distributed.initialize(num_processes=count or _number(COUNT), process_id=number)
        except (RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"mesh.processes={count}: {reason} (outside of a cluster that JAX knows, {ADDRESS}, {COUNT} and "
                f"{NUMBER} say who is who)"
            ) from error
    if count and jax.process_count() != count:
        raise InputError(f"mesh.processes={count}: {jax.process_count()} processes have come")


def _number(name: str) -> int | None:
    """Read a whole number from the environment; None where the variable is not set."""
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise InputError(f"environment: {name}={text!r} is no whole number")
    return int(text) if text else None


def to_host(array: jax.Array) -> np.ndarray:
    """Return a whole array on every process's host, wherever its parts lie."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def is_first() -> bool:
    """Return whether this process is the one that writes the run's files and talks to the user."""
    return jax.process_index() == 0


def share(n: int) -> range:
    """Return which of `n` things are this process's; all of them when it is alone."""
    me, all_ = jax.process_index(), jax.process_count()
    return range(n * me // all_, n * (me + 1) // all_)


def exchange(values: Sequence[Any]) -> list[Any]:
    """Return the values of all processes, in the order of the processes; every process must call it.

    Values are what JSON can hold; tuples come back as lists. A process that is alone gets back its own as they are.
    """
    if jax.process_count() == 1:
        return list(values)
    return [value for said in exchange_bytes(json.dumps(list(values)).encode()) for value in json.loads(said)]


def exchange_bytes(own: bytes) -> list[bytes]:
    """Return what each process gives, in the order of the processes; every process must call it."""
    if jax.process_count() == 1:
        return [own]
    sizes = np.ravel(multihost_utils.process_allgather(np.array([len(own)], np.int32)))
    # A gather is compiled for its shape: sizes are rounded up so that a run compiles a handful.
    padded = np.zeros(bucket(int(sizes.max()), 1024), np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    rows = np.reshape(multihost_utils.process_allgather(padded), (len(sizes), -1))
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def gathered(array: jax.Array | np.ndarray) -> np.ndarray:
    """Return a whole array on the host; every process must call it when its pieces are spread over processes."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def wait_for_all(what: str) -> None:
    """Block until every process has come to `what`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


@contextmanager
def first_process_first(what: str) -> Iterator[None]:
    """Let the first process do `what` before the others begin: they then find its files, whole.

    When it fails the others go on all the same, and fail as it did instead of waiting for it.
    """
    if not is_first():
        wait_for_all(what)
    try:
        yield
    finally:
        if is_first():
            wait_for_all(what)
