"""Settings of a process, applied before JAX is imported, and the error if JAX is not installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jaxrl_sql.planning import gpus
from jaxrl_sql.runtime.memory import keep_freed_memory
from jaxrl_sql.types import InputError

NEEDS_JAX = "this needs JAX: pip install 'jaxrl-sql[train]' (for GPUs 'jaxrl-sql[cuda]', for TPUs 'jaxrl-sql[tpu]')"
# JAX, and the packages that the extra `train` installs with it.
_JAX_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax")


def prepare_process() -> None:
    """Apply the settings of a process before its first computation; repeated calls have no effect."""
    # On CPUs with AVX-512, XLA uses half of a vector register by default.
    _set_xla_flag("xla_cpu_prefer_vector_width", "512")
    if gpus.has_compiler():
        # A chunk of decode steps is a loop: one CUDA graph avoids launching its small kernels one by one.
        _set_xla_flag("xla_gpu_enable_command_buffer", "+WHILE")
    keep_freed_memory()


def _set_xla_flag(name: str, value: str) -> None:
    """Add a flag to XLA_FLAGS unless it is set there."""
    flags = os.environ.get("XLA_FLAGS", "")
    if name not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{name}={value}".strip()


def lacks_jax(error: ModuleNotFoundError) -> bool:
    """Return whether an import failed because JAX or a package installed with it is missing."""
    return (error.name or "").partition(".")[0] in _JAX_PACKAGES


def platform_error() -> str:
    """Return why JAX cannot use the platforms of JAX_PLATFORMS, with those that it can use; "" if it can."""
    jax, named = sys.modules.get("jax"), os.environ.get("JAX_PLATFORMS", "")
    if jax is None or not named:
        return ""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        reason = (str(error).strip() or "JAX cannot start it").splitlines()[0]
        jax.config.update("jax_platforms", None)  # the process ends with this error
        platform = jax.default_backend()
        return f"JAX_PLATFORMS={named}: {reason}; found here: {platform}: set JAX_PLATFORMS={platform}, or unset it"
    return ""


@contextmanager
def require_jax() -> Iterator[None]:
    """Raise InputError with the packages to install if JAX cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not lacks_jax(error):
            raise
        raise InputError(NEEDS_JAX) from error
