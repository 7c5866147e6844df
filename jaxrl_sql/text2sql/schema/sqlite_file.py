"""Open a user's SQLite file for reading, like the executor: no file is written, created or deleted next to it.

A database in WAL mode (with a write-ahead log) needs care. SQLite creates its log (`-wal`) and the log's index (`-shm`)
for readers, too. If a reader with other permissions creates these files, the owner can no longer open the database. The
existing files therefore decide how to open it:

- without a log, only the file is read, without locks (`immutable`);
- with a log and an index, another process has or had it open: the index is read-only;
- with a log and no index, a temporary copy of the file and its log is read.

Any other database is read under SQLite's locks. A gap of microseconds remains: if the last writer closes the database
between the check and the opening, SQLite creates an empty log.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from jaxrl_sql.types import InputError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

# Attempts to read or copy a file that is written to concurrently.
_TRIES = 10
# The URI parameters of each way to open a database; `_FROM_COPY` means that a copy is necessary.
_WITH_LOCKS, _WITHOUT_LOCKS, _WITH_LOG_INDEX, _FROM_COPY = "mode=ro", "immutable=1", "mode=ro&readonly_shm=1", ""

Stamp = tuple[int, int, int, int] | None
"""Inode, size, and times of modification and status change of a file; None if it does not exist."""


def read_file(path: str | Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of `read` on a read-only connection; it is called again if the file was written to meanwhile.

    Bytes of texts that are not UTF-8 are replaced. Raises InputError if the file changes during every attempt, and like
    `readable`.
    """
    path = Path(path).resolve()
    for _ in range(_TRIES):
        with readable(path) as uri, closing(_connect(uri)) as connection:
            connection.text_factory = _decode
            before = _stamp(path)
            try:
                result = read(connection)
            except sqlite3.Error:
                # Two errors are retried: the last writer deleted the index, or wrote to a file that was read unlocked.
                has_lost_index = uri.endswith(_WITH_LOG_INDEX) and not _next_to(path, "-shm").exists()
                if not has_lost_index and not (uri.endswith(_WITHOUT_LOCKS) and _stamp(path) != before):
                    raise
            else:
                if not uri.endswith(_WITHOUT_LOCKS) or _stamp(path) == before:
                    return result
    raise InputError(f"{path}: changed during each attempt to read it: run again when no process writes to it")


def open_read_only(path: str | Path) -> sqlite3.Connection:
    """Open a database for reading. Raises like `readable`.

    The caller must ensure that nothing writes to the file meanwhile, or use `read_file`.
    """
    with readable(path) as uri:
        connection = _connect(uri)
        with suppress(sqlite3.Error):  # the caller's first statement then fails in the same way
            # SQLite opens the files of a temporary copy on the first read; after the context they are deleted.
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        return connection


@contextmanager
def readable(path: str | Path) -> Iterator[str]:
    """Yield a URI by which SQLite reads a database with its log; it is valid inside the context.

    Raises InputError for an empty file with a log that is not empty, as during a copy: SQLite would delete the log,
    even on a read-only connection. Raises InputError if a copy is necessary and cannot be written.
    """
    path = Path(path).resolve()
    log = _next_to(path, "-wal")
    if path.is_file() and not path.stat().st_size and _size(log):
        raise InputError(f"{path}: is empty, and {log.name} is not: wait until it is copied, or restore the file")
    access = _access(path)
    if access != _FROM_COPY:
        yield f"{path.as_uri()}?{access}"
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(TemporaryDirectory(prefix="jaxrl_sql-"))
            access, copy = _copy_snapshot(path, Path(folder))
        except OSError as error:
            is_unreadable = error.filename in (str(path), str(log))
            advice = (
                f"give the reader access to {error.filename}" if is_unreadable else "set TMPDIR to a folder with room"
            )
            raise InputError(
                f"{path}: has a log ({log.name}) and is read from a temporary copy, which cannot be made ({error}): "
                f"{advice}"
            ) from error
        yield f"{copy.as_uri()}?{access}"


def concerns_only_one_table(error: sqlite3.Error) -> bool:
    """Return whether an error concerns only a table or column, so that other parts of the file can be read.

    An example is a virtual table of an extension that is not loaded.
    """
    return _error_code(error) & 0xFF == sqlite3.SQLITE_ERROR or _error_code(error) == sqlite3.SQLITE_CORRUPT_VTAB


@contextmanager
def skip_unreadable(path: str, name: str) -> Iterator[None]:
    """Log a warning instead of an error inside the context if SQLite cannot read the table or column `name`.

    Other errors, such as those of a damaged file, are raised.
    """
    try:
        yield
    except sqlite3.Error as error:
        if not concerns_only_one_table(error):
            raise
        line = f"{path}: values of {name} are skipped: {error}"
        _LOG.warning("%s", repr(line)[1:-1])  # names of a database may hold escape codes of terminals


def _error_code(error: sqlite3.Error) -> int:
    """Return SQLite's error code; 0 for an error raised by Python."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True)


def _access(path: Path) -> str:
    """Return the URI parameters for opening a database; `_FROM_COPY` if it must be copied."""
    size = _size(_next_to(path, "-wal"))
    if size is not None and _next_to(path, "-shm").exists():
        return _WITH_LOG_INDEX
    if size:
        return _FROM_COPY
    if not _size(path):  # SQLite without locks would delete the journal of an empty file
        return _WITH_LOCKS
    return _WITHOUT_LOCKS if _is_in_wal_mode(path) else _WITH_LOCKS


def _is_in_wal_mode(path: Path) -> bool:
    """Return whether the database is in WAL mode: SQLite then refuses to open it with `nolock`.

    The file's header has the mode, too. But closing a file releases all POSIX locks of the process on it, and with them
    the locks of SQLite connections.
    """
    with closing(_connect(f"{path.as_uri()}?mode=ro&nolock=1")) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            return _error_code(error) == sqlite3.SQLITE_CANTOPEN
    return False


def _copy_snapshot(path: Path, folder: Path) -> tuple[str, Path]:
    """Copy a consistent snapshot of a database and its log; return the URI parameters and the file to open."""
    copy = folder / path.name
    source_and_copy = [(_next_to(path, end), _next_to(copy, end)) for end in ("", "-wal")]
    for _ in range(_TRIES):
        before = [_stamp(source) for source, _ in source_and_copy]
        with suppress(FileNotFoundError):  # a writer opened and closed the database, which deletes the log
            for source, target in source_and_copy:
                shutil.copyfile(source, target)
        access = _access(path)
        if access != _FROM_COPY:  # a writer opened or closed the database, so no copy is necessary any more
            return access, path
        if before == [_stamp(source) for source, _ in source_and_copy]:
            return _WITH_LOCKS, copy
    raise InputError(f"{path}: changed during each attempt to copy it: run again when no process writes to it")


def _next_to(path: Path, suffix: str) -> Path:
    """Return the path of a database's log (`-wal`) or index (`-shm`); "" is the database itself."""
    return Path(f"{path}{suffix}")


def _size(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it does not exist."""
    return None if (stamp := _stamp(path)) is None else stamp[1]


def _stamp(path: Path) -> Stamp:
    """Return inode, size and times of a file; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
