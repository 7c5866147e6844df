"""The cache folder, shared by all runs of a user: indices of large files, values of databases, compiled programs."""

import hashlib
import os
import platform
from pathlib import Path

VARIABLE = "JAXRL_SQL_CACHE"
"""Environment variable that names the folder; `off` disables the cache."""


def cache_folder() -> Path | None:
    """Return the folder that JAXRL_SQL_CACHE names, or `jaxrl_sql` in the user's cache; None for `off`."""
    value = os.environ.get(VARIABLE, "")
    if value == "off":
        return None
    if value:
        return Path(value).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxrl_sql"


def processor_hash() -> str:
    """Return a hash of the processor's features.

    JAX's cache keys omit them, and a program compiled for features that the processor lacks crashes.
    """
    features, cpu = [platform.machine()], Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text(encoding="utf-8").splitlines()
        features += sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16]
