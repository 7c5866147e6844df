"""Run SQL that nobody has read on SQLite files: read-only, in parallel, under hard limits, and compare the results.

The work is done in Rust, detached from the interpreter; this package is its names. Bad SQL is data (an ``Outcome``
has a ``status``); only a fault of the executor itself raises ``ExecutorError``.
"""

from sqlexec_rs._native import (
    RULE_NAMES,
    STATUS_NAMES,
    STOP_NAMES,
    ArrowTable,
    Executor,
    ExecutorError,
    Job,
    Limits,
    Outcome,
    compile_options,
    join_url,
    split_url,
    sqlite_version,
)
from sqlexec_rs.waiting import as_completed

__all__ = [
    "RULE_NAMES",
    "STATUS_NAMES",
    "STOP_NAMES",
    "ArrowTable",
    "Executor",
    "ExecutorError",
    "Job",
    "Limits",
    "Outcome",
    "as_completed",
    "compile_options",
    "join_url",
    "split_url",
    "sqlite_version",
]
