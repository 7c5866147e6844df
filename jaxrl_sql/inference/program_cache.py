"""Where compiled programs are kept from one command to the next: the same model asked again compiles nothing."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from jaxrl_sql.runtime.cache_folder import cache_folder, processor

AUTO = "auto"
MOST_BYTES = 2 << 30
"""So much may lie in the user's folder; what was written first goes first."""
LEAST_S = 0.02
"""A program that took less to compile is not kept, unless the variable SHORTEST says otherwise."""
SHORTEST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def keep_programs(named: str) -> None:
    """Keep compiled programs in the folder that `run.compilation_cache` names, of this process from here on.

    `auto` is a folder for this processor in the cache that JAXRL_SQL_CACHE names, else the user's; it is not taken
    where JAX_COMPILATION_CACHE_DIR names one, nor by a run of several processes: each would find other programs there,
    and on GPUs kernels are chosen by timing them. Empty: none are kept.
    """
    if named == AUTO:
        cache = cache_folder()
        if cache is None or kept_in() or jax.process_count() > 1:
            return
        folder = cache / "programs" / processor()
        _make_room(folder)
        named = str(folder)
    if named:
        if SHORTEST not in os.environ:
            jax.config.update(SHORTEST.lower(), LEAST_S)
        jax.config.update("jax_compilation_cache_dir", named)


def kept_in() -> str | None:
    """Return the folder where this process keeps compiled programs."""
    return jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # defined when it is loaded


def _make_room(folder: Path) -> None:
    """Remove what was written first where the folder holds more than MOST_BYTES, and what a killed process left empty.

    A folder that cannot be read is left alone: JAX warns of it, and compiles.
    """
    try:
        stats = [(file.stat(), file) for file in folder.iterdir() if file.is_file()] if folder.exists() else []
        held = 0
        for _, size, file in sorted(((stat.st_mtime, stat.st_size, file) for stat, file in stats), reverse=True):
            held += size
            if size == 0 or held > MOST_BYTES:
                file.unlink(missing_ok=True)
    except OSError:
        return
