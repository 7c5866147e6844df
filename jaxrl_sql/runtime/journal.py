"""A journal of long work, from which a killed command resumes: JSON lines, appended and flushed.

The first line has the settings of the work, and each further line is a record of finished work. A file with records is
refused if the command now has other settings; without records, the new settings replace those of the file. A line that
a kill left incomplete is dropped. Each line ends with its CRC-32, and a damaged line is refused. One process at a time
locks the file.
"""

from __future__ import annotations

import fcntl
import io
import json
import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxrl_sql.runtime.folder import report_unwritable
from jaxrl_sql.types import Fields, InputError, Json, Record

_CRC = "crc"
# The text of a line between the record and its checksum.
_CRC_START = f', "{_CRC}": "'


class Journal:
    """The records of a piece of work, those of earlier runs first; a thread-safe context manager.

    `option` is the name of the setting that selects the journal's folder, for error messages. Raises InputError if the
    file has records and other `settings` (JSON values), if a line is damaged, or if another process has locked the
    file. Raises RunFolderError if its disk is full.
    """

    def __init__(self, path: str | Path, settings: Fields, option: str = "folder") -> None:
        self.path = Path(path)
        self._option = option
        self.records: list[Record] = []
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        try:
            self._lock_file()
            self._read_or_start(json.loads(json.dumps(settings)))  # as JSON returns them: lists instead of tuples
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: Fields) -> None:
        """Write one record and flush it to the operating system."""
        with self._lock:
            self.records.append(dict(record))
            self._write(_encode(record))

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise InputError(
                f"{self.path}: another process is using it: wait until it ends, or choose another folder"
            ) from error
        except OSError:  # a file system without locks
            pass

    def _read_or_start(self, settings: Fields) -> None:
        """Read the records and truncate an incomplete last line, so that the next record starts on its own line."""
        self._file.seek(0)
        raw = self._file.read()
        *lines, partial = raw.split(b"\n")
        is_partial = _parse(partial) is None
        line_by_number = {
            i: line for i, line in enumerate(lines if is_partial else [*lines, partial], 1) if line.strip()
        }
        records = [_parse(line) for line in line_by_number.values()]
        # A file without records has no finished work, so other settings may replace its own.
        if not records or (len(records) == 1 and (records[0] is None or "settings" in records[0])):
            self._file.truncate(0)
            self._write(_encode({"settings": settings}))
            return
        self._check_lines(line_by_number, records[0])
        self._check_settings((records[0] or {}).get("settings"), settings)
        # `pop` removes the checksum; it is true, because each checked line has a checksum.
        self.records = [record for record in records[1:] if record is not None and record.pop(_CRC)]
        if is_partial:
            self._file.truncate(len(raw) - len(partial))
        else:  # the last line is complete but has no line end
            self._write(b"\n")

    def _write(self, line: bytes) -> None:
        """Append a line, or none of it if the disk is full."""
        start = self._file.seek(0, io.SEEK_END)
        try:
            with report_unwritable(self.path):
                while line:
                    line = line[self._file.write(line) :]
        except BaseException:
            with suppress(OSError):
                self._file.truncate(start)
            raise

    def _check_lines(self, line_by_number: Mapping[int, bytes], first_record: Record | None) -> None:
        """Raise InputError for the first line that does not match its checksum.

        A file of another tool has no checksums; `_check_settings` refuses it with a better message.
        """
        if first_record is not None and not {"settings", _CRC} & first_record.keys():
            return
        for number, line in line_by_number.items():
            if not _is_intact(line):
                advice = "delete that line to do its work again" if number > 1 else "delete the file to start over"
                raise InputError(f"{self.path}: line {number} is damaged: restore the file from a copy, or {advice}")

    def _check_settings(self, stored: Json, settings: Fields) -> None:
        if not isinstance(stored, dict):
            raise InputError(f"{self.path}: its first line has no settings, so it is not this work's file")
        for name in {**stored, **settings}:
            before, now = stored.get(name), settings.get(name)
            if before != now:
                difference = f"{name}={before!r}, not {now!r}"
                if isinstance(before, Mapping) and isinstance(now, Mapping):
                    keys = sorted(key for key in {**before, **now} if before.get(key) != now.get(key))
                    difference = f"other {name} (different: {', '.join(keys)})"
                raise InputError(
                    f"{self.path} was started with {difference}: choose another {self._option}, or delete the file"
                )


def journal_settings(path: Path) -> Record:
    """Return the settings of a journal; empty if there is no journal."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        settings = (_parse(file.readline()) or {}).get("settings")
    return settings if isinstance(settings, dict) else {}


def _encode(record: Fields) -> bytes:
    """Return a record as a line, with its checksum as a last key: that of the JSON text without this key."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    return text[:-1] + f'{_CRC_START}{zlib.crc32(text):08x}"}}\n'.encode()


def _is_intact(line: bytes) -> bool:
    """Return whether a line is as `_encode` wrote it."""
    text, _, crc = line.rpartition(_CRC_START.encode())
    return crc == f'{zlib.crc32(text + b"}"):08x}"}}'.encode()


def _parse(line: bytes) -> Record | None:
    """Return the record in a line; None if it is incomplete or no JSON object."""
    try:
        record = json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
