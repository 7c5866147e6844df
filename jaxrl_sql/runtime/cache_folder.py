"""The folder that keeps what is dear to find out: indices of huge files, values of databases, compiled programs."""

import hashlib
import os
import platform
from pathlib import Path

VARIABLE = "JAXRL_SQL_CACHE"
"""The environment variable that names the folder; `off` means that there is none."""


def cache_folder() -> Path | None:
    """Return the folder that JAXRL_SQL_CACHE names, or `jaxrl_sql` in the user's cache; None for `off`."""
    named = os.environ.get(VARIABLE, "")
    if named == "off":
        return None
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxrl_sql"


def processor() -> str:
    """Return a name for what this processor can do, which JAX's keys of programs leave out and programs die without."""
    told, cpu = [platform.machine()], Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text(encoding="utf-8").splitlines()
        told += sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
