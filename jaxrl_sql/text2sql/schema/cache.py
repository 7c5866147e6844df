"""Disk cache of data that is expensive to compute from a database, such as its column values, keyed by file content.

The key is a hash of the file, so a set of 16,000 databases is read once, regardless of location and copies. Entries
may be deleted at any time. Unreadable entries are recomputed, and without a writable folder nothing is cached.

Hidden columns (`data.hide`) are those that the model must not see. They are in no prompt, and queries that read them
fail. `hide` lists them as `table.column`; the name of a table hides all of its columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from jaxrl_sql.runtime.atomic import atomic_write
from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.types import InputError

T = TypeVar("T")


class Version(NamedTuple):
    """The version of a database file and its write-ahead log, by size and time, and the hidden columns.

    It is the key of caches in memory; `content_hash` is that of the disk cache. Times are in nanoseconds, sizes in
    bytes.
    """

    path: str
    mtime_ns: int
    size: int
    log_mtime_ns: int = 0
    log_size: int = 0
    hide: tuple[str, ...] = ()


def version_of(db_path: str | Path, hide: Sequence[str] = ()) -> Version:
    """Return the current version of a database file, for readers that ignore the columns of `hide`.

    Raises InputError if the file does not exist.
    """
    path = Path(db_path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, not a database file: pass the file in it")
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: no database file ({error.strerror})") from error
    resolved = str(path.resolve())
    version = Version(resolved, stat.st_mtime_ns, stat.st_size, hide=tuple(hide))
    with suppress(OSError):
        log = Path(f"{resolved}-wal").stat()
        return version._replace(log_mtime_ns=log.st_mtime_ns, log_size=log.st_size)
    return version


def load_or_compute(
    kind: str, version: Version, load: Callable[[bytes], T], dump: Callable[[T], bytes], compute: Callable[[], T]
) -> T:
    """Return a database's cache entry of a kind; compute and save it if it is missing.

    `kind` names the entry's content and format, and must change with either. `dump` converts an entry to bytes, `load`
    converts them back. `load` may raise any error for other bytes: the entry is then recomputed. A file is written
    under a temporary name and renamed, so concurrent processes are safe.
    """
    folder = cache_folder()
    if folder is None:
        return compute()
    digest = content_hash(version)
    path = folder / kind / digest[:2] / digest
    with suppress(Exception):  # recompute a damaged, foreign or missing entry
        return load(path.read_bytes())
    entry = compute()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(dump(entry))
    return entry


def content_of(db_path: str | Path) -> str:
    """Return a hash of a database file's content, computed once per version."""
    return content_hash(version_of(db_path))


@lru_cache(maxsize=1 << 16)
def content_hash(version: Version) -> str:
    """Return a hash of the file, its write-ahead log and the hidden columns."""
    digest = hashlib.blake2b(digest_size=20)
    try:
        for path in (Path(version.path), Path(f"{version.path}-wal")):
            with suppress(FileNotFoundError), path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    except OSError as error:
        raise InputError(f"{version.path}: cannot be read ({error.strerror})") from error
    if version.hide:
        digest.update(json.dumps(sorted(version.hide)).encode())
    return digest.hexdigest()
