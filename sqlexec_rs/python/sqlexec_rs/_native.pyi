"""Types of the native module; `scripts/check_stubs.py` compares them with the built module."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, final

from numpy import float64, int64, uint8
from numpy.typing import NDArray

from sqlexec_rs.batches import RowBatches

_Path: TypeAlias = str | PathLike[str]
# Cells and parameters are None, int, float, str, bytes, NumPy scalars, Decimals, dates and times; others are rejected.
_Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[Any]]]
# A list is several golds; a tuple is a table.
_Gold: TypeAlias = str | _Table | Outcome | list[str] | list[_Table] | list[Outcome] | list[str | _Table | Outcome]
_Parameters: TypeAlias = Sequence[Any] | dict[str, Any]
_Query: TypeAlias = tuple[_Path, str | None] | tuple[_Path, str | None, _Parameters | None]
_Options: TypeAlias = dict[str, Any]
_Arrays: TypeAlias = dict[str, NDArray[uint8] | NDArray[int64] | NDArray[float64]]

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
    "compile_options",
    "join_url",
    "split_url",
    "sqlite_version",
]

STATUS_NAMES: Final[tuple[str, ...]]
"""Names of the statuses; an integer of `pred_status` or `gold_status` is an index into this tuple."""
STOP_NAMES: Final[tuple[str, ...]]
"""Names of the bounds that can stop a run; an integer of `pred_stop` is an index into this tuple (0: none)."""
RULE_NAMES: Final[tuple[str, ...]]
"""Names of the comparison rules."""

def sqlite_version() -> str:
    """Return the version of the bundled SQLite."""

def compile_options() -> list[str]:
    """Return the options that the bundled SQLite was compiled with."""

def split_url(url: str) -> tuple[str, str, int, str, str, str, list[tuple[str, str]]]:
    """Return the engine, host, port, user, password, database and options of a server's URL.

    Missing parts are empty, and a missing port is the engine's default. The engine is `postgresql` or `mysql`.

    Raises:
        ValueError: Not the URL of a server. The message does not show the password.

    """

def join_url(
    engine: str,
    host: str,
    port: int | None,
    user: str,
    password: str,
    database: str,
    options: Sequence[tuple[str, str]],
) -> str:
    """Return the URL with these parts, as `split_url` reads it. An empty password and a port of None are omitted."""

class ExecutorError(Exception):
    """An error of the executor itself. Bad SQL never raises: it has a status."""

@final
class Limits:
    """The limits of one run; None means no limit.

    `timeout_ms` limits the wall time of prepare and execution, `cpu_ms` the thread's CPU time, `vm_steps` the
    instructions of SQLite's virtual machine (rounded up to thousands, the same on every machine). A result over
    `max_rows` or `max_bytes` (16 per cell, plus texts and blobs) is `too_large`. So is a run for which SQLite needs
    more than `heap_bytes` of memory or `temp_bytes` of temporary files, or that exceeds SQLite's own limits: bytes of
    a value (`max_length`), of the SQL text, and of a LIKE or GLOB pattern; depth of an expression; terms of a compound
    SELECT; instructions of the prepared statement; columns of a result.

    The comparisons of a score have another `timeout_ms`, from their start, and each rule has `compare_steps` steps
    (cells that it hashes, compares or moves, the same on every machine). A rule that exceeds them gives 0, and the
    score's `pred_status` is `timeout` (stopped by `wall`) or `too_large`.

    With `on_excess="cut"`, a result over `max_rows` or `max_bytes` is `ok` with its first rows and `is_cut=True`; such
    results cannot be scored. Raises ValueError for another `on_excess`.

    `other_engines` are the limits for engines other than SQLite, which count no steps and enforce a timeout, rows and
    bytes; None: the same limits. Comparisons always use the outer limits.
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
        compare_steps: int = 2_000_000_000,
        on_excess: str = "refuse",
        max_length: int = 4_194_304,
        max_sql_length: int = 1_048_576,
        max_like_pattern: int = 1_000,
        max_expr_depth: int = 500,
        max_compound: int = 200,
        max_vdbe_ops: int = 1_000_000,
        max_columns: int = 2_000,
        other_engines: Limits | None = None,
    ) -> Self: ...
    def replace(self, **changes: Any) -> Limits:
        """Return the same limits with the given changes. Raises TypeError for an unknown name."""
    def __replace__(self, **changes: Any) -> Limits: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    @property
    def other_engines(self) -> Limits | None:
        """The limits for engines other than SQLite, if they differ."""
    @property
    def on_excess(self) -> str:
        """The treatment of a result over a limit: `refuse` or `cut`."""
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
    def compare_steps(self) -> int: ...
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
    """The result of a run. Bad SQL is data: check `status`."""

    @property
    def status(self) -> str: ...
    @property
    def columns(self) -> list[str]:
        """Names of the columns, as reported by the engine; they may repeat."""
    @property
    def column_types(self) -> list[str | None]:
        """Declared types of the columns, as written in the schema; None for an expression."""
    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows as Python values, created on first use; invalid UTF-8 becomes surrogate escapes."""
    def slice(self, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return the rows from `start` up to `stop` as Python values, newly created by each call."""
    def batches(self, size: int = 1_000) -> RowBatches:
        """Return the rows in lists of at most `size`, for `for` or `async for`.

        The lists are created one at a time to save memory.
        """
    @property
    def row_count(self) -> int: ...
    @property
    def is_cut(self) -> bool:
        """Whether `rows` are only the first rows because the limits allow no more (`on_excess="cut"`)."""
    @property
    def elapsed_ms(self) -> float:
        """Wall time of prepare and execution in milliseconds."""
    @property
    def error(self) -> str | None:
        """The error message, SQLite's own if it has one; None if the run was ok."""
    @property
    def error_offset(self) -> int | None:
        """Byte offset of the error in the SQL text, if SQLite reports it."""
    @property
    def hint(self) -> str | None:
        """A suggested table or column if a name is unknown or ambiguous."""
    @property
    def stopped_by(self) -> str | None:
        """The bound that stopped the run: `cancelled`, `wall`, `cpu`, `vm_steps`, `killed` (externally), `memory`."""
    @property
    def vm_steps(self) -> int:
        """Executed instructions of SQLite's virtual machine."""
    @property
    def set_digest(self) -> int | None:
        """A number that is equal for exactly the results that the rule `bird` considers equal.

        None if the run was not ok. It is meaningless in another process.
        """
    def to_arrow(self, *, unique_names: bool = False) -> ArrowTable:
        """Return the result as Arrow data, which every Arrow library can import.

        A column's type follows from its non-NULL cells: `int64` for integers; `float64` for reals, possibly with
        integers that a real represents exactly; `large_utf8` for text, possibly with numbers, and for reals with other
        integers; `large_binary` for blobs, possibly with other values, and for invalid UTF-8. Without values it follows
        from the declared type, and is `null` for an expression. Cells are converted like SQLite's CAST. With
        `unique_names` the second `id` is `id_2`. Raises ValueError without a table, if the run was not ok.
        """
    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with the columns of `to_arrow`; pyarrow is not needed.

        Integers are int64, or Int64 with NULLs; NULL is NaN among reals and missing among text. Raises ImportError
        without pandas, and ValueError without a table.
        """
    def to_polars(self) -> Any:
        """Return a polars.DataFrame with the columns of `to_arrow(unique_names=True)`.

        Raises ImportError without polars, and ValueError without a table.
        """
    def pretty(self, max_rows: int | None = 20, max_width: int | None = 120) -> str:
        """Return the first rows as an aligned text table in lines of `max_width` characters; None means no limit.

        Cut text ends in `…`, and the last line counts the rows. Without a table, returns status, error and hint.
        """
    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Return the pickled form, which only the same version of this package can read."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class ArrowTable:
    """A result as Arrow data, which pyarrow, polars, nanoarrow and others import without copying."""

    @property
    def names(self) -> list[str]: ...
    @property
    def types(self) -> list[str]:
        """Arrow types by name: `null`, `int64`, `float64`, `large_utf8` or `large_binary`."""
    def __len__(self) -> int:
        """Return the number of rows."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class _JobItems(Iterator[tuple[int, Any]], AsyncIterator[tuple[int, Any]]):
    def __next__(self) -> tuple[int, Any]: ...
    async def __anext__(self) -> tuple[int, Any]: ...

@final
class Job:
    """A submitted batch. In an asyncio event loop, `await job` returns its result.

    Cancelling the waiting task does not cancel the job; use `cancel`.
    """

    def done(self) -> bool:
        """Return whether every item is finished."""
    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until every item is finished; return whether they are."""
    def result(self) -> Any:
        """Wait and return the outcomes in order, or the arrays of a score job."""
    def cancel(self) -> None:
        """Cancel unfinished items, which get the status `cancelled`."""
    def progress(self) -> tuple[int, int]:
        """Return the number of finished distinct items and the number of distinct items."""
    def add_done_callback(self, function: Callable[[Job], object]) -> None:
        """Call `function(job)` once when every item is finished; immediately if they are.

        It is called on a thread of the executor, so it should be short and must not submit or wait. Its exceptions go
        to `sys.unraisablehook`.
        """
    def as_completed(self, timeout: float | None = None) -> _JobItems:
        """Iterate over (index, result) in completion order, with `for` or `async for`.

        Equal items finish together. A result is an `Outcome`, or the dict that `score` returns. Raises TimeoutError if
        an item is not finished `timeout` seconds after the call.
        """
    def __await__(self) -> Generator[Any, None, Any]: ...

@final
class Executor:
    """Runs untrusted SQL in parallel, read-only and under hard limits.

    Up to `threads` queries run at a time (None: one per core), on at most `max_open` open databases. Results other than
    those of golds are cached within `cache_bytes`. At most `max_queued` runs wait for a thread. Batches that find no
    room wait in turn, and a larger batch waits for an empty queue; Ctrl-C ends such a wait.

    `immutable` guarantees that no file changes while the executor lives, so SQLite takes no locks; if a file changes
    nevertheless, results are wrong. Databases of up to `copy_up_to_bytes` are copied to memory, all copies together
    within `copies_bytes`, and copied again when their files change.

    With `like_blobs=False` LIKE and GLOB match no blobs, like SQLite compiled with `LIKE_DOESNT_MATCH_BLOBS`.
    `cell_size_check` checks each page of a file when it is read (SQLite's pragma of that name), for untrusted files.
    `sqlite_version`, such as `3.40`, refuses functions and syntax of later versions.

    `hide` lists hidden columns as (table, column) and hidden tables as (table, None), in any case. A query that would
    read one is `forbidden`, and its error names it. This covers `SELECT *`, views, joins by USING or NATURAL, the
    `rowid` of a hidden key, columns computed from it, and full-text tables over it. If definitions may contain its
    values, `sql` of sqlite_schema is refused too. Databases without such a column are unrestricted, and copies of the
    values in other columns are not hidden. Databases of other engines raise ValueError.

    After each run, before its outcome is delivered, `on_run(db_path, sql, outcome)` is called on a thread of the
    executor. It should be short and must not submit, wait or close. Its exceptions go to `sys.unraisablehook`. Runs of
    at least `slow_query_ms` are logged as warnings of `sqlexec_rs.slow`.

    Each thread runs its queries in a separate worker process. The process is killed if a run exceeds its `timeout_ms`
    by `worker_grace_ms`; if a run without `timeout_ms`, opening a database, or sending rows takes `worker_hang_ms`
    (None: no limit). Each worker may use `worker_memory_bytes` of address space. `isolation="thread"` runs queries in
    the thread itself, for trusted SQL and files: a query is some microseconds faster, but a call of SQLite that does
    not return cannot be stopped, and a crash of SQLite ends the caller.

    Raises ValueError for a value out of range; ExecutorError if no thread can be created or the worker program is not
    installed.
    """

    def __new__(
        cls,
        threads: int | None = None,
        limits: Limits | None = None,
        isolation: str = "process",
        *,
        max_open: int = 512,
        immutable: bool = False,
        copy_up_to_bytes: int = 0,
        copies_bytes: int = 268_435_456,
        cache_bytes: int = 268_435_456,
        max_queued: int = 1_048_576,
        like_blobs: bool = True,
        cell_size_check: bool = False,
        sqlite_version: str | None = None,
        hide: Sequence[tuple[str, str | None]] = (),
        on_run: Callable[[Path, str, Outcome], object] | None = None,
        slow_query_ms: int | None = None,
        worker_grace_ms: int = 25,
        worker_hang_ms: int | None = 60_000,
        worker_memory_bytes: int = 2_147_483_648,
    ) -> Self: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def hide(self) -> list[tuple[str, str | None]]:
        """The hidden columns and tables."""
    @property
    def threads(self) -> int: ...
    @property
    def isolation(self) -> str:
        """Where queries run: `thread` or `process`."""
    @property
    def sqlite_version(self) -> str | None:
        """The version of SQLite whose functions and syntax are allowed; None: the bundled version."""
    def execute(
        self,
        db_path: _Path,
        sql: str | None,
        parameters: _Parameters | None = None,
        *,
        limits: Limits | None = None,
    ) -> Outcome:
        """Run a SQL text and return its outcome.

        `parameters` are the values of its parameters: a sequence by position, or a dict by name. If values and
        parameters do not match, the status is `runtime_error`.
        """
    def explain(
        self,
        db_path: _Path,
        sql: str | None,
        parameters: _Parameters | None = None,
        *,
        limits: Limits | None = None,
    ) -> Outcome:
        """Return the query plan of a SQL text without running it.

        The plan is the engine's own table: SQLite's EXPLAIN QUERY PLAN, or EXPLAIN of the others. Limits and statuses
        are those of `execute`. Texts that `execute` refuses, and statements without a plan, are refused.
        """
    def show(self, db_path: _Path, name: str, *, limits: Limits | None = None) -> Outcome:
        """Return a setting of a database's engine by name, as a run sees it; for SQLite a readable PRAGMA.

        Raises ValueError for a name with other characters than letters, digits and underscores and at most one point.
        """
    def execute_many(self, pairs: Sequence[_Query], *, limits: Limits | None = None) -> list[Outcome]:
        """Run (database, SQL) pairs or (database, SQL, parameters) triples and return their outcomes in order."""
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
        """Score a prediction against its gold."""
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
    def submit(self, pairs: Sequence[_Query], *, limits: Limits | None = None) -> Job:
        """Queue pairs or triples like `execute_many`, and return as soon as the queue has room."""
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
        """Queue predictions to score, and return as soon as the queue has room."""
    def stats(self) -> dict[str, int]:
        """Return the counters since the executor started."""
    def close(self) -> None:
        """Cancel everything in flight, and wait for the threads and their worker processes to end.

        Raises:
            ExecutorError: A callback of this executor's jobs called it, which would deadlock.

        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
