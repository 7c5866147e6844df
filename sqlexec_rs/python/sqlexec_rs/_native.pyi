"""Types of the native module; `scripts/check_stubs.py` compares them with what was built."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, final

from numpy import float64, int64, uint8
from numpy.typing import NDArray

from sqlexec_rs.batches import RowBatches

_Path: TypeAlias = str | PathLike[str]
# Cells and parameters are None, int, float, str, bytes, NumPy scalars, Decimals, dates and times; others are refused.
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
"""Names of the statuses; an integer of `pred_status` or `gold_status` is a place in this tuple."""
STOP_NAMES: Final[tuple[str, ...]]
"""Names of the bounds that can stop a run; an integer of `pred_stop` is a place in this tuple, 0 is none."""
RULE_NAMES: Final[tuple[str, ...]]
"""Names of the comparison rules."""

def sqlite_version() -> str:
    """Return the version of the bundled SQLite."""

def compile_options() -> list[str]:
    """Return the options that the bundled SQLite was compiled with."""

def split_url(url: str) -> tuple[str, str, int, str, str, str, list[tuple[str, str]]]:
    """Return the engine, host, port, user, password, database and options of a server's URL.

    A part that the URL lacks is empty, and the port then is the engine's own. The engine is `postgresql` or `mysql`.

    Raises:
        ValueError: It is no URL of a server. The message does not show the password.

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
    """Return the URL with these parts, as `split_url` reads it; an empty password and no port are left out."""

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

    A score's comparisons may take `timeout_ms` again, from when they begin, and each rule `compare_steps` steps (cells
    that it hashes, compares or moves, the same on every machine). A rule that would take more gives 0, and the score's
    `pred_status` is `timeout`, stopped by `wall`, or `too_large`.

    With `on_excess="cut"` a result over `max_rows` or `max_bytes` is `ok` with its first rows, and its `is_cut` is
    True; such results are not scored. Raises ValueError for another `on_excess`.

    `other_engines` are the bounds of runs on databases that are not SQLite's, which count no steps and honour a
    timeout, rows and bytes; None: these. Comparisons are bounded by the outer ones everywhere.
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
        """Return the same bounds but for those given by name. Raises TypeError for a name that is no bound's."""
    def __replace__(self, **changes: Any) -> Limits: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    @property
    def other_engines(self) -> Limits | None:
        """The bounds on databases that are not SQLite's, where they are others."""
    @property
    def on_excess(self) -> str:
        """What becomes of a result over a cap: `refuse` or `cut`."""
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
    """What one run gave. Bad SQL is data: look at `status`."""

    @property
    def status(self) -> str: ...
    @property
    def columns(self) -> list[str]:
        """Names of the columns, as SQLite gives them; they may repeat."""
    @property
    def column_types(self) -> list[str | None]:
        """Types that the columns were declared with, as they stand in the schema; an expression has None."""
    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows as Python values, made on first use; text that is not UTF-8 has surrogate escapes."""
    def slice(self, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return the rows from `start` on and before `stop` as Python values, made anew at each call."""
    def batches(self, size: int = 1_000) -> RowBatches:
        """Return the rows in lists of `size`, the last of fewer, for `for` or `async for`.

        Each list is made when it is asked for, so that never all rows are Python objects at once.
        """
    @property
    def row_count(self) -> int: ...
    @property
    def is_cut(self) -> bool:
        """Whether there were more rows than the limits allow; `rows` are the first, because `on_excess` is `cut`."""
    @property
    def elapsed_ms(self) -> float:
        """Wall time of prepare and execution in milliseconds."""
    @property
    def error(self) -> str | None:
        """What went wrong, in SQLite's words where it has some; None when it ran."""
    @property
    def error_offset(self) -> int | None:
        """Byte offset in the SQL text that the error points at, when SQLite gives one."""
    @property
    def hint(self) -> str | None:
        """A guess at the table or column that was meant, when a name is missing or ambiguous."""
    @property
    def stopped_by(self) -> str | None:
        """What stopped the run: `cancelled`, `wall`, `cpu`, `vm_steps`, `killed` by others, or `memory`."""
    @property
    def vm_steps(self) -> int:
        """Instructions of SQLite's virtual machine that the run took."""
    @property
    def set_digest(self) -> int | None:
        """A number that results share which the rule `bird` calls equal, and no others; None when the run was not ok.

        It means nothing in another process.
        """
    def to_arrow(self, *, unique_names: bool = False) -> ArrowTable:
        """Return the result as Arrow data, which any Arrow library imports.

        A column's type follows from its cells, NULL aside: integers `int64`; reals, with or without integers that a
        real can hold, `float64`; text, with or without numbers, and reals beside other integers, `large_utf8`; blobs
        with or without others, and text that is not UTF-8, `large_binary`. Without cells it follows from the declared
        type, and is `null` for an expression. Other cells are cast as SQLite's CAST does. With `unique_names` the
        second `id` is `id_2`. Raises ValueError when there is no table, because the run was not ok.
        """
    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with the columns of `to_arrow`; pyarrow is not needed.

        Integers are int64, or Int64 where there are NULLs; NULL is NaN among reals and missing among text. Raises
        ImportError without pandas, and ValueError when there is no table.
        """
    def to_polars(self) -> Any:
        """Return a polars.DataFrame with the columns of `to_arrow(unique_names=True)`.

        Raises ImportError without polars, and ValueError when there is no table.
        """
    def pretty(self, max_rows: int | None = 20, max_width: int | None = 120) -> str:
        """Return the first rows as an aligned text table in lines of `max_width` characters; None is no bound.

        What is cut ends in `…`, and the last line counts the rows. Without a table: status, error and hint.
        """
    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Return what pickle writes, which the same version of this package reads."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class ArrowTable:
    """A result as Arrow data: pyarrow, polars, nanoarrow and others import it without a copy."""

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
    """A batch that was submitted. `await job` gives its result in an asyncio event loop.

    Cancelling the task that waits does not cancel the job: `cancel` does.
    """

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
    def add_done_callback(self, function: Callable[[Job], object]) -> None:
        """Call `function(job)` once when every item is done, at once if they are.

        It is called on a thread of the executor, so it should be short and must not submit or wait; what it raises
        goes to `sys.unraisablehook`.
        """
    def as_completed(self, timeout: float | None = None) -> _JobItems:
        """Iterate over (index, result) in the order in which items end, with `for` or `async for`.

        Equal items end together.

        A result is an `Outcome`, or what `score` returns. Raises TimeoutError when `timeout` seconds after the call an
        item is not done.
        """
    def __await__(self) -> Generator[Any, None, Any]: ...

@final
class Executor:
    """Runs SQL that nobody has read, in parallel, read-only and under hard limits.

    `threads` queries run at a time (None: one a core), over at most `max_open` open databases; results that are no
    golds are kept within `cache_bytes`. At most `max_queued` runs wait for a thread: a batch that finds no room waits
    to be let in, in turn, and one that is larger waits for an empty queue; Ctrl-C ends such a wait.

    `immutable` promises that no file changes while the executor lives, so that SQLite takes no locks: after a broken
    promise results are wrong. Databases of up to `copy_up_to_bytes` are copied to memory, all copies together within
    `copies_bytes`, and copied again when their files change.

    With `like_blobs=False` LIKE and GLOB match no blob, as in a SQLite that was compiled with
    `LIKE_DOESNT_MATCH_BLOBS`. `cell_size_check` looks through each page of a file as it is read (SQLite's pragma of
    that name), for files that may be malformed on purpose. `sqlite_version`, such as `3.40`, refuses functions and
    syntax that later versions added.

    `hide` names columns as (table, column), and whole tables as (table, None), in any case. A query that would read one
    of them is `forbidden`, and its error names it: `SELECT *`, a view, a join by USING or NATURAL, the `rowid` of a
    hidden key, a column computed from it, and full-text tables over it. Where definitions may hold its values, `sql` of
    sqlite_schema is refused too. A database without such a column is read as usual; a copy of the values in another
    column is another column. Databases of other engines raise ValueError.

    After each run, before anybody has its outcome,
    `on_run(db_path, sql, outcome)` is called on a thread of the executor, so it should be short, and must not submit,
    wait or close; what it raises goes to `sys.unraisablehook`. Runs that took `slow_query_ms` or longer are logged as
    warnings under `sqlexec_rs.slow`.

    Each thread runs its queries in a worker process of its own, which is killed when a run takes `worker_grace_ms` more
    than its `timeout_ms`, or takes `worker_hang_ms` (None: no bound) without having a `timeout_ms`, or takes that long
    to open a database or to send its rows; each worker may take `worker_memory_bytes` of address space.
    `isolation="thread"` runs them in the thread itself, for SQL and files that you trust: a query is some microseconds
    faster, but what never comes back from SQLite cannot be stopped, and what ends SQLite ends the caller.

    Raises ValueError for a value out of range, ExecutorError when the system gives no thread or the worker's program
    is not installed.
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
        """The columns that no query may read."""
    @property
    def threads(self) -> int: ...
    @property
    def isolation(self) -> str:
        """Where queries run: `thread` or `process`."""
    @property
    def sqlite_version(self) -> str | None:
        """The version of SQLite whose functions and syntax there are; None: the one that was compiled in."""
    def execute(
        self,
        db_path: _Path,
        sql: str | None,
        parameters: _Parameters | None = None,
        *,
        limits: Limits | None = None,
    ) -> Outcome:
        """Run one SQL text and return its outcome.

        `parameters` is bound to its parameters: a sequence by position, one value each, or a dict by name. Where values
        and parameters do not go together the status is `runtime_error`.
        """
    def explain(
        self,
        db_path: _Path,
        sql: str | None,
        parameters: _Parameters | None = None,
        *,
        limits: Limits | None = None,
    ) -> Outcome:
        """Return the engine's plan for one SQL text that `execute` would run; nothing of it is run.

        The plan is the engine's own table: SQLite's EXPLAIN QUERY PLAN, and EXPLAIN of the others. Limits and statuses
        are those of `execute`; what it would not run is refused here, too, and so is what has no plan.
        """
    def show(self, db_path: _Path, name: str, *, limits: Limits | None = None) -> Outcome:
        """Return a setting of a database's engine by its name, as a run sees it; of SQLite a PRAGMA that may be read.

        Raises ValueError for a name that is not of letters, digits and underscores, with at most one point.
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
    def submit(self, pairs: Sequence[_Query], *, limits: Limits | None = None) -> Job:
        """Queue what `execute_many` takes and return at once, or when the queue has room for it."""
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
        """Queue predictions to score and return at once, or when the queue has room for them."""
    def stats(self) -> dict[str, int]:
        """Return counts since the executor began."""
    def close(self) -> None:
        """Cancel what is in flight and wait for the threads, and their worker processes, to end.

        Raises:
            ExecutorError: A callback of this executor's jobs called it, and would wait for itself.

        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
