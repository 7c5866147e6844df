"""Open a user's SQLite file to read it, as the executor does: no file is written, created or deleted next to it.

A database in WAL mode needs care, as SQLite creates its log (`-wal`) and its index (`-shm`) for a reader, too, and
a reader with other rights than the owner locks the owner out with them. So the files decide how it is opened:

- without a log, the file alone is read, without locks (`immutable`);
- with a log and an index, somebody has it open, or has left it: the index is only read;
- with a log and no index, a copy of both files is read.

Any other database is read under SQLite's locks. A gap of microseconds remains: where the last writer closes the
database between the look and the opening, SQLite creates an empty log.
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

# How often a file is read, or copied, that is written to meanwhile.
_TRIES = 10
_LOCKED, _ALONE, _INDEXED, _COPIED = "mode=ro", "immutable=1", "mode=ro&readonly_shm=1", ""

Stamp = tuple[int, int, int, int] | None


def read_file(path: str | Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of `read` on a connection, called again where the file was written meanwhile.

    Text that is not UTF-8 is replaced where it is not. Raises InputError where every try meets a writer, and as
    `readable` does.
    """
    path = Path(path).resolve()
    for _ in range(_TRIES):
        with readable(path) as uri, closing(_connect(uri)) as connection:
            connection.text_factory = _replaced
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
    raise InputError(f"{path}: is written to each time that it is read: run it again when nobody writes")


def open_read_only(path: str | Path) -> sqlite3.Connection:
    """Open a database to read it. Raises as `readable` does.

    The caller sees to it that nobody writes the file meanwhile, or uses `read_file`.
    """
    with readable(path) as uri:
        connection = _connect(uri)
        with suppress(sqlite3.Error):  # the caller's first statement fails in the same way
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # opens a copy's log before it goes
        return connection


@contextmanager
def readable(path: str | Path) -> Iterator[str]:
    """Yield the URI by which SQLite reads a database and what its log holds; it is valid inside the context.

    Raises InputError for an empty file whose log is not empty, as it is while the database is copied over: SQLite would
    delete the log, on a read-only connection, too. Raises InputError where a copy is needed and cannot be written.
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
            access, copy = _copied(path, Path(folder))
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
    """Return whether SQLite cannot read a table or column, for want of a module, say, but can read the file."""
    return _code(error) & 0xFF == sqlite3.SQLITE_ERROR or _code(error) == sqlite3.SQLITE_CORRUPT_VTAB


@contextmanager
def skip_unreadable(path: str, name: str) -> Iterator[None]:
    """Report a table or column that SQLite cannot read, and continue without it."""
    try:
        yield
    except sqlite3.Error as error:
        if not is_of_one_part(error):
            raise
        line = f"{path}: values of {name} are left out: {error}"
        _LOG.warning("%s", repr(line)[1:-1])  # names of a database may hold escape codes of terminals


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's code of an error; 0 for one that Python raised by itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True)


def _access(path: Path) -> str:
    """Return how a database is opened, as the parameters of its URI; `_COPIED` where a copy of it is."""
    size = _size(_next_to(path, "-wal"))
    if size is not None and _next_to(path, "-shm").exists():
        return _INDEXED
    if size:
        return _COPIED
    if not _size(path):  # SQLite without locks would delete the journal of an empty file
        return _LOCKED
    return _ALONE if _is_in_wal_mode(path) else _LOCKED


def _is_in_wal_mode(path: Path) -> bool:
    """Return whether SQLite would open a log, which it refuses to do without locks, before it creates one.

    The file's header says the same. But closing the file here would take the locks of this process's connections.
    """
    with closing(_connect(f"{path.as_uri()}?mode=ro&nolock=1")) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            return _code(error) == sqlite3.SQLITE_CANTOPEN
    return False


def _copied(path: Path, folder: Path) -> tuple[str, Path]:
    """Copy a database and its log as they are at one moment, and return how to open which file."""
    copy = folder / path.name
    names = [(_next_to(path, end), _next_to(copy, end)) for end in ("", "-wal")]
    for _ in range(_TRIES):
        before = [_stamp(source) for source, _ in names]
        with suppress(FileNotFoundError):  # a writer has opened and closed it
            for source, target in names:
                shutil.copyfile(source, target)
        access = _access(path)
        if access != _COPIED:  # a writer has come
            return access, path
        if before == [_stamp(source) for source, _ in names]:
            return _LOCKED, copy
    raise InputError(f"{path}: is written to each time that it is copied: run it again when nobody writes")


def _next_to(path: Path, suffix: str) -> Path:
    return Path(f"{path}{suffix}")


def _size(path: Path) -> int | None:
    return None if (stamp := _stamp(path)) is None else stamp[1]


def _stamp(path: Path) -> Stamp:
    """Return inode, size and times of a file; None where it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _replaced(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
