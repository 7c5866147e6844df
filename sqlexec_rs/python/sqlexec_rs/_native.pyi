"""Types of the native module; `scripts/check_stubs.py` compares them with what was built."""

from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, final

from numpy import float64, int64, uint8
from numpy.typing import NDArray

_Path: TypeAlias = str | PathLike[str]
# A table's cells are None, int, float, str or bytes; anything else is a TypeError.
_Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[Any]]]
_Gold: TypeAlias = str | _Table | Outcome | Sequence[str | _Table | Outcome]
_Options: TypeAlias = dict[str, Any]
_Arrays: TypeAlias = dict[str, NDArray[uint8] | NDArray[int64] | NDArray[float64]]

__all__ = [
    "RULE_NAMES",
    "STATUS_NAMES",
    "STOP_NAMES",
    "Executor",
    "ExecutorError",
    "Job",
    "Limits",
    "Outcome",
    "compile_options",
    "sqlite_version",
]

STATUS_NAMES: Final[tuple[str, ...]]
"""Names of the statuses; an integer of `pred_status` or `gold_status` is a place in this tuple."""
STOP_NAMES: Final[tuple[str, ...]]
"""Names of the bounds that can stop a run; an integer of `pred_stop` is a place in this tuple, 0 is none."""
RULE_NAMES: Final[tuple[str, ...]]
"""Names of the comparison rules."""

def sqlite_version() -> str:
    """Return the version of the bundled SQLite."""

def compile_options() -> list[str]:
    """Return the options that the bundled SQLite was compiled with."""

class ExecutorError(Exception):
    """A fault of the executor itself. Bad SQL never raises: it has a status."""

@final
class Limits:
    """The bounds of one run; None is no bound.

    `timeout_ms` is wall time of prepare and execution, `cpu_ms` the thread's CPU time, `vm_steps` instructions of
    SQLite's virtual machine (rounded up to thousands, the same on every machine); a result over `max_rows` or
    `max_bytes` (16 a cell, plus text and blobs) is `too_large`. So is a run for which SQLite would hold more than
    `heap_bytes` of memory or `temp_bytes` of temporary files, and what exceeds SQLite's own limits: bytes of a value
    (`max_length`), of the SQL text, of a pattern of LIKE or GLOB; levels of an expression; terms of a compound SELECT;
    instructions of the prepared statement; columns of a result.
    """

    def __new__(
        cls,
        timeout_ms: int | None = 30_000,
        cpu_ms: int | None = None,
        vm_steps: int | None = None,
        max_rows: int = 1_000_000,
        max_bytes: int = 268_435_456,
        *,
        heap_bytes: int = 268_435_456,
        temp_bytes: int = 1_073_741_824,
        max_length: int = 4_194_304,
        max_sql_length: int = 1_048_576,
        max_like_pattern: int = 1_000,
        max_expr_depth: int = 500,
        max_compound: int = 200,
        max_vdbe_ops: int = 1_000_000,
        max_columns: int = 2_000,
    ) -> Self: ...
    @property
    def timeout_ms(self) -> int | None: ...
    @property
    def cpu_ms(self) -> int | None: ...
    @property
    def vm_steps(self) -> int | None: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def heap_bytes(self) -> int: ...
    @property
    def temp_bytes(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def max_sql_length(self) -> int: ...
    @property
    def max_like_pattern(self) -> int: ...
    @property
    def max_expr_depth(self) -> int: ...
    @property
    def max_compound(self) -> int: ...
    @property
    def max_vdbe_ops(self) -> int: ...
    @property
    def max_columns(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Outcome:
    """What one run gave. Bad SQL is data: look at `status`."""

    @property
    def status(self) -> str: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows as Python values, made on first use; text that is not UTF-8 has surrogate escapes."""
    @property
    def row_count(self) -> int: ...
    @property
    def elapsed_ms(self) -> float:
        """Wall time of prepare and execution in milliseconds."""
    @property
    def error(self) -> str | None: ...
    @property
    def error_offset(self) -> int | None:
        """Byte offset in the SQL text that the error points at, when SQLite gives one."""
    @property
    def stopped_by(self) -> str | None:
        """Which bound stopped the run: `cancelled`, `wall`, `cpu` or `vm_steps`."""
    @property
    def vm_steps(self) -> int:
        """Instructions of SQLite's virtual machine that the run took."""

@final
class Job:
    """A batch that was submitted."""

    def done(self) -> bool:
        """Tell whether every item is done."""
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every item is done, at most `timeout` seconds; true when they are."""
    def result(self) -> Any:
        """Wait and return the outcomes in order, or the arrays of a score job."""
    def cancel(self) -> None:
        """Cancel what has not ended; those items have the status `cancelled`."""
    def progress(self) -> tuple[int, int]:
        """Return how many distinct items are done, and how many there are."""

@final
class Executor:
    """Runs SQL that nobody has read, in parallel, read-only and under hard limits."""

    def __new__(
        cls,
        threads: int | None = None,
        limits: Limits | None = None,
        isolation: str = "thread",
        *,
        max_open: int = 512,
        cache_bytes: int = 268_435_456,
    ) -> Self: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def threads(self) -> int: ...
    def execute(self, db_path: _Path, sql: str | None, *, limits: Limits | None = None) -> Outcome:
        """Run one SQL text and return its outcome."""
    def execute_many(self, pairs: Sequence[tuple[_Path, str | None]], *, limits: Limits | None = None) -> list[Outcome]:
        """Run (database, SQL) pairs and return their outcomes in order."""
    def score(
        self,
        db_path: _Path | Sequence[_Path],
        pred_sql: str | None,
        gold: _Gold,
        rules: Sequence[str] = ...,
        *,
        options: _Options | None = None,
        limits: Limits | None = None,
    ) -> dict[str, Any]:
        """Score one prediction against its gold."""
    def score_many(
        self,
        db_paths: Sequence[_Path | Sequence[_Path]],
        pred_sqls: Sequence[str | None],
        golds: Sequence[_Gold],
        rules: Sequence[str] = ...,
        *,
        options: _Options | Sequence[_Options | None] | None = None,
        limits: Limits | None = None,
    ) -> _Arrays:
        """Score predictions against their golds and return arrays."""
    def submit(self, pairs: Sequence[tuple[_Path, str | None]], *, limits: Limits | None = None) -> Job:
        """Queue (database, SQL) pairs and return at once."""
    def submit_score(
        self,
        db_paths: Sequence[_Path | Sequence[_Path]],
        pred_sqls: Sequence[str | None],
        golds: Sequence[_Gold],
        rules: Sequence[str] = ...,
        *,
        options: _Options | Sequence[_Options | None] | None = None,
        limits: Limits | None = None,
    ) -> Job:
        """Queue predictions to score and return at once."""
    def stats(self) -> dict[str, int]:
        """Return counts since the executor began."""
    def close(self) -> None:
        """Cancel what is in flight and wait for the threads to end."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
