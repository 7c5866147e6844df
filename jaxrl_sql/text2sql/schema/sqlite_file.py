"""Open a user's SQLite file for reading, like the executor: no file is written, created or deleted next to it.

A database in WAL mode needs care. SQLite creates its log (`-wal`) and index (`-shm`) for readers, too, and a reader
with other permissions locks the owner out with them. The existing files therefore decide how to open it:

- without a log, only the file is read, without locks (`immutable`);
- with a log and an index, another process has or had it open: the index is read-only;
- with a log and no index, a copy of both files is read.

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
_LOCKED, _ALONE, _INDEXED, _COPIED = "mode=ro", "immutable=1", "mode=ro&readonly_shm=1", ""

Stamp = tuple[int, int, int, int] | None


def read_file(path: str | Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of `read` on a connection, retried if the file was written to meanwhile.

    Bytes that are not UTF-8 are replaced. Raises InputError if every attempt meets a writer, and like `readable`.
    """
    path = Path(path).resolve()
    for _ in range(_TRIES):
        with readable(path) as uri, closing(_connect(uri)) as connection:
            connection.text_factory = _decode
            before = _stamp(path)
            try:
                result = read(connection)
            except sqlite3.Error:
                has_lost_index = uri.endswith(_INDEXED) and not _next_to(path, "-shm").exists()
                if not has_lost_index and not (uri.endswith(_ALONE) and _stamp(path) != before):
                    raise
            else:
                if not uri.endswith(_ALONE) or _stamp(path) == before:
                    return result
    raise InputError(f"{path}: changed during each attempt to read it: run again when no process writes to it")


def open_read_only(path: str | Path) -> sqlite3.Connection:
    """Open a database for reading. Raises like `readable`.

    The caller must ensure that nothing writes to the file meanwhile, or use `read_file`.
    """
    with readable(path) as uri:
        connection = _connect(uri)
        with suppress(sqlite3.Error):  # the caller's first statement then fails in the same way
            connection.execute(
                "SELECT 1 FROM sqlite_master LIMIT 1"
            ).fetchall()  # opens a copy's log before its deletion
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
    if access != _COPIED:
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


def is_of_one_part(error: sqlite3.Error) -> bool:
    """Return whether SQLite cannot read a table or column (for example without a module) but can read the file."""
    return _code(error) & 0xFF == sqlite3.SQLITE_ERROR or _code(error) == sqlite3.SQLITE_CORRUPT_VTAB


@contextmanager
def skip_unreadable(path: str, name: str) -> Iterator[None]:
    """Report a table or column that SQLite cannot read, and continue without it."""
    try:
        yield
    except sqlite3.Error as error:
        if not is_of_one_part(error):
            raise
        line = f"{path}: values of {name} are skipped: {error}"
        _LOG.warning("%s", repr(line)[1:-1])  # names of a database may hold escape codes of terminals


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's error code; 0 for an error raised by Python."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True)


def _access(path: Path) -> str:
    """Return the URI parameters for opening a database; `_COPIED` if it must be copied."""
    size = _size(_next_to(path, "-wal"))
    if size is not None and _next_to(path, "-shm").exists():
        return _INDEXED
    if size:
        return _COPIED
    if not _size(path):  # SQLite without locks would delete the journal of an empty file
        return _LOCKED
    return _ALONE if _is_in_wal_mode(path) else _LOCKED


def _is_in_wal_mode(path: Path) -> bool:
    """Return whether the database is in WAL mode, which SQLite refuses to open without locks.

    The file's header has this, too, but closing the file here would release this process's SQLite locks.
    """
    with closing(_connect(f"{path.as_uri()}?mode=ro&nolock=1")) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            return _code(error) == sqlite3.SQLITE_CANTOPEN
    return False


def _copy_snapshot(path: Path, folder: Path) -> tuple[str, Path]:
    """Copy a consistent snapshot of a database and its log; return the URI parameters and the file to open."""
    copy = folder / path.name
    names = [(_next_to(path, end), _next_to(copy, end)) for end in ("", "-wal")]
    for _ in range(_TRIES):
        before = [_stamp(source) for source, _ in names]
        with suppress(FileNotFoundError):  # a writer opened and closed it
            for source, target in names:
                shutil.copyfile(source, target)
        access = _access(path)
        if access != _COPIED:  # a writer opened it
            return access, path
        if before == [_stamp(source) for source, _ in names]:
            return _LOCKED, copy
    raise InputError(f"{path}: changed during each attempt to copy it: run again when no process writes to it")


def _next_to(path: Path, suffix: str) -> Path:
    return Path(f"{path}{suffix}")


def _size(path: Path) -> int | None:
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
