"""Settings of a whole process, made before JAX is imported, and the error where it is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from jaxrl_sql.planning import gpus
from jaxrl_sql.runtime.memory import keep_freed_memory
from jaxrl_sql.types import InputError

NEEDS_JAX = "this needs JAX: pip install 'jaxrl-sql[train]' (for GPUs 'jaxrl-sql[cuda]', for TPUs 'jaxrl-sql[tpu]')"
_JAX = ("jax", "jaxlib", "flax", "optax", "orbax")


def prepare_process() -> None:
    """Set what holds for a whole process, before anything is computed; it may be called again."""
    flags = os.environ.get("XLA_FLAGS", "")
    if gpus.has_compiler() and "xla_gpu_enable_command_buffer" not in flags:
        # A chunk of decode steps is a loop: as one CUDA graph its small kernels are not launched one by one.
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_enable_command_buffer=+WHILE".strip()
    keep_freed_memory()


def lacks_jax(error: ModuleNotFoundError) -> bool:
    """Return whether a failed import is of JAX or of a package that is installed with it."""
    return (error.name or "").partition(".")[0] in _JAX


@contextmanager
def needing_jax() -> Iterator[None]:
    """Raise InputError with the packages to install where JAX cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not lacks_jax(error):
            raise
        raise InputError(NEEDS_JAX) from error
