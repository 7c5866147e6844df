"""The log of slow queries: a line per run, in Python's logger `sqlexec_rs.slow`."""

from __future__ import annotations

import logging
from os import PathLike

from sqlexec_rs._native import Outcome
from sqlexec_rs.terminal import printable

_LOG = logging.getLogger("sqlexec_rs.slow")
_MAX_CHARS = 1_000


def log_slow(db_path: PathLike[str], sql: str, outcome: Outcome) -> None:
    """Log a slow run: its time, its status, the database and the first 1,000 characters of the SQL."""
    cut = sql if len(sql) <= _MAX_CHARS else sql[:_MAX_CHARS] + "…"
    end = f"{outcome.status}, {outcome.row_count} rows, {outcome.vm_steps} VM steps"
    shown = printable(f"{db_path}: {' '.join(cut.split())}")
    _LOG.warning("%.0f ms (%s) on %s", outcome.elapsed_ms, end, shown)
