"""The cache of compiled programs, so that a repeated command with the same model compiles nothing."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from jaxrl_sql.runtime.cache_folder import cache_folder, processor_hash

AUTO = "auto"
MAX_BYTES = 2 << 30
"""Limit of the folder in the user's cache; the oldest files are evicted first."""
MIN_S = 0.02
"""Programs with a shorter compilation are not cached, unless JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS is set."""
MIN_COMPILE_TIME_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def keep_programs(setting: str) -> None:
    """Cache compiled programs of this process in the folder of `run.compilation_cache`.

    `auto` is a folder for this processor in the cache of JAXRL_SQL_CACHE, else the user's cache. It is not used if
    JAX_COMPILATION_CACHE_DIR is set, nor by runs of several processes: each would find different programs, and on GPUs
    kernels are chosen by timing. Empty: no cache.
    """
    if setting == AUTO:
        cache = cache_folder()
        if cache is None or cache_location() or jax.process_count() > 1:
            return
        folder = cache / "programs" / processor_hash()
        _evict_oldest(folder)
        setting = str(folder)
    if setting:
        if MIN_COMPILE_TIME_VARIABLE not in os.environ:
            jax.config.update(MIN_COMPILE_TIME_VARIABLE.lower(), MIN_S)
        jax.config.update("jax_compilation_cache_dir", setting)


def cache_location() -> str | None:
    """Return the folder of this process's compiled programs."""
    return jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # defined at run time


def _evict_oldest(folder: Path) -> None:
    """Remove the oldest files of a folder above MAX_BYTES, and empty files of killed processes.

    An unreadable folder is ignored: JAX warns and compiles.
    """
    try:
        stats = [(file.stat(), file) for file in folder.iterdir() if file.is_file()] if folder.exists() else []
        num_bytes = 0
        for _, size, file in sorted(((stat.st_mtime, stat.st_size, file) for stat, file in stats), reverse=True):
            num_bytes += size
            if size == 0 or num_bytes > MAX_BYTES:
                file.unlink(missing_ok=True)
    except OSError:
        return
