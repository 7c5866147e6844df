"""What is dear to find out about a database, kept on disk under the content of its file.

A set of 16,000 databases is profiled once, wherever it lies and however often it is copied: an entry is named by a hash
of the file. Entries may be deleted at any time. One that cannot be read is made again, and a folder that cannot be
written to costs the time alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.runtime.written import written_whole
from jaxrl_sql.types import InputError

T = TypeVar("T")


class Version(NamedTuple):
    """A database file as it is now, and its write-ahead log, without what `data.hide` hides.

    Another size or time of either file makes another version.
    """

    path: str
    mtime_ns: int
    size: int
    log_mtime_ns: int = 0
    log_size: int = 0
    hide: tuple[str, ...] = ()


def version_of(db_path: str | Path, hide: Sequence[str] = ()) -> Version:
    """Return the version of a database file; InputError when there is none."""
    path = Path(db_path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, and no database file: name the file in it")
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: no database file ({error.strerror})") from error
    place = str(path.resolve())
    version = Version(place, stat.st_mtime_ns, stat.st_size, hide=tuple(hide))
    with suppress(OSError):
        log = Path(f"{place}-wal").stat()
        return version._replace(log_mtime_ns=log.st_mtime_ns, log_size=log.st_size)
    return version


def kept(
    kind: str, version: Version, load: Callable[[bytes], T], dump: Callable[[T], bytes], make: Callable[[], T]
) -> T:
    """Return the entry of a kind for a database, from disk where it is, else made and kept.

    `kind` names the entry's meaning and form, and changes when either does. `load` raises what it likes for bytes that
    `dump` did not write: the entry is then made again. Files are written beside their place and moved there, so that
    several processes may do the same at once.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    digest = content_hash(version)
    path = folder / kind / digest[:2] / digest
    with suppress(Exception):  # torn, foreign or absent, it is made again
        return load(path.read_bytes())
    found = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(dump(found))
    return found


def content_of(db_path: str | Path) -> str:
    """Return a hash of a database file's content, read once for each version of it."""
    return content_hash(version_of(db_path))


@lru_cache(maxsize=1 << 16)
def content_hash(version: Version) -> str:
    """Return a hash of the file, its write-ahead log and the hidden columns."""
    whole = hashlib.blake2b(digest_size=20)
    try:
        for path in (Path(version.path), Path(f"{version.path}-wal")):
            with suppress(FileNotFoundError), path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    whole.update(chunk)
    except OSError as error:
        raise InputError(f"{version.path}: cannot be read ({error.strerror})") from error
    if version.hide:
        whole.update(json.dumps(sorted(version.hide)).encode())
    return whole.hexdigest()
