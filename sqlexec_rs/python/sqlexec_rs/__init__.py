"""Run untrusted SQL on databases: read-only, in parallel, under hard limits; and compare the results.

The package exports the native module, which works detached from the interpreter. Bad SQL is data (an ``Outcome``
has a ``status``); only an error of the executor itself raises ``ExecutorError``.
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
