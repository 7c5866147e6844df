"""Run SQL on DuckDB files in a worker process of an executor. A program that no module imports.

Arguments are the path of the native module, the folder of the package `duckdb`, the maximum bytes of address space and
the maximum number of open databases. Standard input is a socket to the executor. The native module implements the
protocol and confines the process; this file contains the calls of DuckDB.
"""

from __future__ import annotations

import datetime as dt
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

# Status by exception of DuckDB; any other is a runtime_error.
EXCEPTION_STATUSES = {
    "BinderException": "schema_error",
    "CatalogException": "schema_error",
    "ConnectionException": "db_error",
    "FatalException": "db_error",
    "IOException": "db_error",
    "InternalException": "db_error",
    "InterruptException": "timeout",
    "MemoryError": "too_large",
    "NotImplementedException": "forbidden",
    "OutOfMemoryException": "too_large",
    "ParserException": "syntax_error",
    "PermissionException": "forbidden",
    "RecursionError": "too_large",
    "SerializationException": "db_error",
    "SyntaxException": "syntax_error",
    "TimeoutError": "timeout",
}

# Status by message fragment, where messages are more specific than exceptions.
MESSAGE_STATUSES = {
    "attached in read-only mode": "forbidden",
    "has been locked": "forbidden",
    "Max expression depth": "too_large",
    "argument count mismatch": "runtime_error",
}

# A single thread per query respects the executor's number of threads, and makes row order and sums deterministic.
# Other files, the network and extensions are out of reach.
SETTINGS = {
    "threads": "1",
    "async_threads": "0",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "temp_directory": "",
    "errors_as_json": "true",
}

LONG_INTERVAL = "an INTERVAL has more than 999,999,999 days, the supported maximum: cast it to VARCHAR"

EXPLAIN = "EXPLAIN (FORMAT text) "

LOCKING = ("SET GLOBAL TimeZone = 'UTC'", "SET GLOBAL lock_configuration = true")


class Refusal(Exception):  # noqa: N818  not an error of this program
    """A refused text, with its status."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Alarm(threading.Thread):
    """Interrupts the running query at its deadline."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._changed = threading.Condition()
        self._cursor: Any = None
        self._deadline: float | None = None

    def set(self, cursor: Any, deadline: float | None) -> None:
        """Set the cursor and its deadline on the monotonic clock, or None."""
        with self._changed:
            self._cursor, self._deadline = cursor, deadline
            self._changed.notify()

    def run(self) -> None:
        """Wait for deadlines in an endless loop."""
        with self._changed:
            while True:
                remaining = None if self._deadline is None else self._deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    self._cursor.interrupt()
                    remaining = 0.005  # repeated, because an interrupt between two calls has no effect
                self._changed.wait(remaining)


class Engine:
    """Adapter of DuckDB with the methods that the native module calls."""

    def __init__(self, folder: str, memory_bytes: int, values: ModuleType) -> None:
        self._folder = folder
        # The rest is for memory that DuckDB does not count, and for remains of other runs.
        self._settings = {**SETTINGS, "memory_limit": f"{memory_bytes * 3 // 8 // 1024}KiB"}
        self._values = values
        self._duckdb: Any = None
        self._failure: Exception | None = None
        self._open: dict[str, Any] = {}
        self._alarm = Alarm()
        self._cursor: Any = None
        self._deadline: float | None = None
        # Bytes that precede the caller's text.
        self._n_prefix_bytes = 0

    def load(self) -> None:
        """Import DuckDB."""
        self._alarm.start()
        sys.path.append(self._folder)
        try:
            import duckdb  # noqa: PLC0415  after confinement
        except Exception as error:  # noqa: BLE001  reported by each query
            self._failure = error
            return
        if int(duckdb.__version__.split(".")[0]) < 2:
            self._failure = ImportError(
                f"DuckDB {duckdb.__version__} is too old, 2.0 is required: pip install -U duckdb"
            )
        self._duckdb = duckdb

    def open(self, file: str) -> None:
        """Open a file read-only."""
        if self._failure is not None:
            raise self._failure
        connection = self._duckdb.connect(file, read_only=True, config=self._settings)
        for statement in LOCKING:
            connection.execute(statement)
        self._open[file] = connection

    def close(self, file: str) -> None:
        """Close a file."""
        self._open.pop(file).close()

    def start(
        self, file: str, sql: str, parameters: Any, seconds: float | None, is_plan: bool
    ) -> tuple[list[str], list[str | None]]:
        """Start or plan a query on a separate connection; return the columns' names and types."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        # Settings, temporary tables, variables and prepared statements end with the connection.
        cursor = self._cursor = self._open[file].cursor()
        self._alarm.set(cursor, self._deadline)
        self._n_prefix_bytes = 0
        statements = cursor.extract_statements(sql)
        if not statements:
            raise Refusal("no_sql", "the text holds no SQL statement")
        if len(statements) > 1:
            raise Refusal("forbidden", "the text holds more than one SQL statement")
        if statements[0].type != self._duckdb.StatementType.SELECT:
            raise Refusal(
                "forbidden", "only SELECT, FROM, VALUES, WITH and statements that DuckDB rewrites to them are run"
            )
        if is_plan:
            # After our options the text, already parsed as a single query, cannot add others.
            self._n_prefix_bytes = len(EXPLAIN)
            statements = cursor.extract_statements(EXPLAIN + sql)
        cursor.execute(statements[0], parameters)
        columns = cursor.description or []
        return [column[0] for column in columns], [str(column[1]) for column in columns]

    def fetch(self, n_rows: int) -> list[tuple[Any, ...]]:
        """Return the next rows; fewer than `n_rows` are the last."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError
        try:
            rows: list[tuple[Any, ...]] = self._cursor.fetchmany(n_rows)
        except OverflowError:  # only intervals can exceed Python's type
            raise Refusal("runtime_error", LONG_INTERVAL) from None
        return rows

    def end(self) -> None:
        """End the run, successful or not."""
        self._alarm.set(None, None)
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def to_cell(self, value: Any) -> Any:
        """Convert a value to None, bool, a 64-bit int, float, str or bytes."""
        if isinstance(value, int):
            return float(value)
        if isinstance(value, dt.timedelta | uuid.UUID):
            return str(value)
        if isinstance(value, list | tuple | dict):
            return json.dumps(self._plain(value), ensure_ascii=False)
        try:
            return self._values.to_cell(value)
        except TypeError:
            return str(value)

    def _plain(self, value: Any) -> Any:
        """Convert a value to types that JSON can represent."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            names = [name if isinstance(name, str) else str(self._plain(name)) for name in value]
            return dict(zip(names, map(self._plain, value.values()), strict=True))
        return self.to_cell(value)

    def explain(self, error: BaseException) -> tuple[str, str, int | None, str | None]:
        """Return status, message, offset in the text and hint of an exception."""
        if isinstance(error, Refusal):
            return error.status, str(error), None, None
        name, text = type(error).__name__, str(error)
        if "'pytz'" in text:
            return "db_error", "DuckDB needs pytz for times with a zone: pip install pytz", None, None
        details: dict[str, str] = {}
        if "{" in text:
            try:
                details = json.loads(text[text.index("{") :])
            except ValueError:
                details = {}
        lines = [line for line in details.get("exception_message", text).splitlines() if line.strip()] or [name]
        specific = [status for fragment, status in MESSAGE_STATUSES.items() if fragment in text]
        status = specific[0] if specific else EXCEPTION_STATUSES.get(name, "runtime_error")
        hint = next((line for line in lines[1:] if line.startswith(("Did you mean", "Candidate bindings"))), None)
        offset = int(details["position"]) - self._n_prefix_bytes if details.get("position", "").isdigit() else -1
        return status, lines[0], offset if offset >= 0 else None, hint


def load(name: str, path: str) -> ModuleType:
    """Load a module from its path, without its package."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(native: str, folder: str, memory_bytes: str, cap: str, *_access: str) -> None:
    """Serve the executor that started this process."""
    # In KiB. By default the module's allocator would reserve a GiB of address space.
    os.environ["MIMALLOC_ARENA_RESERVE"] = "16384"
    values = load("values", str(Path(__file__).with_name("values.py")))
    engine = Engine(folder, int(memory_bytes), values)
    load("_native", native)._serve_duckdb(engine, int(memory_bytes), int(cap))  # noqa: SLF001  reserved for this program


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit("duckdb_worker.py is started by sqlexec_rs, which communicates over its standard input")
    main(*sys.argv[1:])
