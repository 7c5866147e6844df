"""Metrics: weighted sums, and the files of a run that hold them.

A metrics pytree is `dict[str, tuple[sum, weight]]`; a name that ends in `_max` holds (maximum, 1). Sums on the device
and on the host have the same form, so micro-batches, updates and hosts are merged by the same rule: sums and weights
are added, maxima are compared.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxrl_sql.runtime.folder import METRICS, SAMPLES
from jaxrl_sql.runtime.plain import plain
from jaxrl_sql.runtime.trackers import Tracker
from jaxrl_sql.types import Fields, InputError, Record

Metrics = Mapping[str, tuple[Any, Any]]
Position = tuple[int, int]
"""A position in a file of lines: the number of lines before it, and their CRC-32."""
START: Position = (0, 0)
"""The position before the first line."""


def reduce_metrics(metrics: Metrics) -> dict[str, float]:
    """Return sum / weight of each name, or the maximum; names without weight are omitted."""
    reduced: dict[str, float] = {}
    for name, (amount, weight) in metrics.items():
        if name.endswith("_max"):
            reduced[name] = float(amount)
        elif float(weight) != 0:
            reduced[name] = float(amount) / float(weight)
    return reduced


def find_metric_value(name: str, numbers: Mapping[str, float]) -> float | None:
    """Return the value of a metric by its full name, or the mean of `eval/<split>/<name>` over splits; None if absent.

    A name without a slash, such as `accuracy`, is the short name of a metric of evaluations.
    """
    if "/" in name:
        return numbers.get(name)
    values = [value for key, value in numbers.items() if key.startswith("eval/") and key.split("/", 2)[2] == name]
    return sum(values) / len(values) if values else None


class MetricsWriter:
    """Append to `metrics.jsonl` (one object per step, `step` first) of a run folder, and write to `trackers`.

    Each line is flushed, so an interrupted run leaves a readable file. A resumed run calls `rewind` first. Without a
    folder nothing is written: one of a run's processes writes for all.
    """

    def __init__(self, folder: str | Path | None, trackers: Sequence[Tracker] = ()) -> None:
        self._lines = JsonLines(folder and Path(folder) / METRICS)
        self._trackers = trackers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*([] if error is None else [OSError])):  # a full disk is reported once, not again on closing
            self.close()

    @property
    def position(self) -> Position:
        """Return the position of the file's end, for `rewind`."""
        return self._lines.position

    def write(self, step: int, values: Fields) -> None:
        """Write the values of one step; the file also gets texts such as the phase, trackers only numbers."""
        self._lines.write({"step": step, **values})
        for tracker in self._trackers:
            tracker.write(step, values)

    def trace(self, step: int, question: str, answer: str, metadata: Fields) -> None:
        """Send an answer to the trackers that support traces; it is not written to a file."""
        for tracker in self._trackers:
            tracker.trace(step, question, answer, metadata)

    def rewind(self, position: Position, step: int) -> None:
        """Drop the lines after `position`, the position of `step`: the resumed run writes them again.

        Raises InputError as `JsonLines.rewind`.
        """
        lines = self._lines.rewind(position)
        for tracker in self._trackers:
            tracker.rewind(lines, step)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._lines.close()
        for tracker in self._trackers:
            tracker.close()


class JsonLines:
    """A JSON-lines file in append mode, with a `step` in each object; an incomplete last line is dropped.

    Without a path nothing is written. `position` is the position of its end, for `rewind`.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = Path(path) if path else None
        self.position: Position = START
        self._file = self._open(self._read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, values: Fields) -> None:
        """Write one object and hand it to the system at once."""
        line = unwritten = (json.dumps(plain(values), ensure_ascii=False, allow_nan=False) + "\n").encode()
        while unwritten:  # a nearly full disk may accept only a part
            unwritten = unwritten[self._file.write(unwritten) :]
        count, crc = self.position
        self.position = (count + 1, zlib.crc32(line, crc))

    def rewind(self, position: Position) -> list[Record]:
        """Keep the lines up to a position and return their objects; of a file that was deleted, none.

        Raises InputError if they are not the lines that the run wrote.
        """
        self._file.close()
        lines, (count, crc) = self._read(), position
        if lines and _position(lines[:count]) != (count, crc):
            raise InputError(
                f"{self._path}: its first {count} lines are not those that the run wrote: put it back from a copy, or "
                "delete it to resume without them"
            )
        self._file = self._open(lines[:count])
        return [json.loads(line) for line in lines[:count]]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _read(self) -> list[bytes]:
        """Return the complete lines."""
        if self._path is None or not self._path.exists():
            return []
        return self._path.read_bytes().split(b"\n")[:-1]

    def _open(self, lines: list[bytes]) -> FileIO:
        """Replace the file's content by `lines` and open it at their end, unbuffered: closing cannot fail again."""
        self.position = _position(lines)
        if self._path is None:
            return Path(os.devnull).open("ab", buffering=0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f"{self._path.name}.tmp")
        scratch.write_bytes(b"".join(line + b"\n" for line in lines))
        scratch.replace(self._path)
        return self._path.open("ab", buffering=0)


class SampleWriter(JsonLines):
    """Append to `samples.jsonl` of a run folder: answers with their SQL, status and reward.

    Without a folder nothing is written.
    """

    def __init__(self, folder: str | Path | None) -> None:
        super().__init__(folder and Path(folder) / SAMPLES)


def _position(lines: Sequence[bytes]) -> Position:
    """Return the position after lines."""
    return len(lines), zlib.crc32(b"".join(line + b"\n" for line in lines))
