"""Settings of a whole process, made before JAX is imported."""

from __future__ import annotations

import os

from jaxrl_sql.planning import gpus
from jaxrl_sql.runtime.memory import keep_freed_memory


def prepare_process() -> None:
    """Set what holds for a whole process, before anything is computed; it may be called again."""
    flags = os.environ.get("XLA_FLAGS", "")
    if gpus.has_compiler() and "xla_gpu_enable_command_buffer" not in flags:
        # A chunk of decode steps is a loop: as one CUDA graph its small kernels are not launched one by one.
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_enable_command_buffer=+WHILE".strip()
    keep_freed_memory()
