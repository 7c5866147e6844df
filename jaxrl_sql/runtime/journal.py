"""A file that long work is written to as it goes, and gone on from after a kill: JSON lines, appended and flushed.

The first line says what the work was asked with; another question to the same file is refused. A line that was torn
by a kill is dropped. One process at a time holds the file, until it is closed or the process is gone.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxrl_sql.runtime.folder import goes_on
from jaxrl_sql.types import InputError


class Journal:
    """The records of a piece of work, those of earlier runs first; a context manager, safe to use from threads.

    Raises InputError when the file is of work with other `settings` (what JSON can write), and when another process
    holds it; RunFolderError when its disk is full.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.records: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        try:
            self._hold()
            self._begin(json.loads(json.dumps(settings)))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one record and hand it to the system at once."""
        with self._lock:
            self.records.append(dict(record))
            self._write(_line(record))

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise InputError(
                f"{self.path}: another process is at work there: wait for its end, or name another folder"
            ) from error
        except OSError:  # a file system without locks
            pass

    def _begin(self, wanted: Mapping[str, Any]) -> None:
        """Read what is there and leave the file so that the next line is one of its own."""
        self._file.seek(0)
        raw = self._file.read()
        found = [one for line in raw.split(b"\n") if (one := _record(line)) is not None]
        # Without a record nothing was done yet: then other settings may take its place.
        if not found or (len(found) == 1 and "settings" in found[0]):
            self._file.truncate(0)
            self._write(_line({"settings": wanted}))
            return
        self._refuse_another(found[0].get("settings"), wanted)
        self.records = found[1:]
        torn = raw.rpartition(b"\n")[2]
        if _record(torn) is None:
            self._file.truncate(len(raw) - len(torn))
        else:
            self._write(b"\n")

    def _write(self, line: bytes) -> None:
        with goes_on(self.path):
            while line:
                line = line[self._file.write(line) :]

    def _refuse_another(self, there: Any, wanted: Mapping[str, Any]) -> None:
        if not isinstance(there, dict):
            raise InputError(f"{self.path}: its first line has no settings, so it is not this work's file")
        for name in {**there, **wanted}:
            if there.get(name) != wanted.get(name):
                raise InputError(
                    f"{self.path} was begun with {name}={there.get(name)!r}, not {wanted.get(name)!r}: "
                    "name another folder, or delete the file"
                )


def begun_with(path: Path) -> dict[str, Any]:
    """Return the settings that a journal was begun with; none where there is no journal."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        settings = (_record(file.readline()) or {}).get("settings")
    return settings if isinstance(settings, dict) else {}


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="replace")


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; None where it is torn or none."""
    try:
        found = json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
