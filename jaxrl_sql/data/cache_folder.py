"""The folder that keeps what is dear to find out about data: indices of huge files, values of databases."""

import os
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
