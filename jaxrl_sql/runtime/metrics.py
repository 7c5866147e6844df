"""Metrics: sums that travel with their weights, and the files that a run leaves of them.

A metrics pytree is `dict[str, tuple[sum, weight]]`; under a name that ends in `_max` stands (maximum, 1) instead.
Sums on the device and on the host look alike, so micro-batches, updates and hosts merge by the same rule.
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
"""How many lines a file has, and their CRC-32."""
START: Position = (0, 0)


def reduce_metrics(metrics: Metrics) -> dict[str, float]:
    """Return sum / weight of each name, or the maximum; what has no weight has no value and is left out."""
    reduced: dict[str, float] = {}
    for name, (amount, weight) in metrics.items():
        if name.endswith("_max"):
            reduced[name] = float(amount)
        elif float(weight) != 0:
            reduced[name] = float(amount) / float(weight)
    return reduced


def best_by(name: str, numbers: Mapping[str, float]) -> float | None:
    """Return a number by its whole name, or by a word the mean of `eval/<split>/<word>` over the splits; else None."""
    if "/" in name:
        return numbers.get(name)
    found = [value for key, value in numbers.items() if key.startswith("eval/") and key.split("/", 2)[2] == name]
    return sum(found) / len(found) if found else None


class MetricsWriter:
    """Write `metrics.jsonl` (one object a step, `step` first) after what a run folder holds, and to `trackers`.

    Each line is flushed, so an interrupted run leaves a readable file. A run that goes on calls `rewind` first.
    Without a folder nothing is written: one of a run's processes writes for all.
    """

    def __init__(self, folder: str | Path | None, trackers: Sequence[Tracker] = ()) -> None:
        self._lines = JsonLines(folder and Path(folder) / METRICS)
        self._trackers = trackers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*([] if error is None else [OSError])):  # a full disk is told once, not again on closing
            self.close()

    @property
    def position(self) -> Position:
        """Return where the file ends: what `rewind` comes back to."""
        return self._lines.position

    def write(self, step: int, values: Fields) -> None:
        """Write the values of one step; boards get the numbers, the file also words such as the phase."""
        self._lines.write({"step": step, **values})
        for board in self._trackers:
            board.write(step, values)

    def trace(self, step: int, question: str, answer: str, about: Fields) -> None:
        """Show an answer to a question where a tracker has traces; no file holds it."""
        for board in self._trackers:
            board.trace(step, question, answer, about)

    def rewind(self, position: Position, step: int) -> None:
        """Drop the lines after `position`, which was that of `step`: the run writes them again.

        Raises InputError as that of `JsonLines`.
        """
        kept = self._lines.rewind(position)
        for board in self._trackers:
            board.rewind(kept, step)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._lines.close()
        for board in self._trackers:
            board.close()


class JsonLines:
    """A JSON-lines file that is appended to, with a `step` in each object; a line that was torn is dropped.

    Without a path it is the null device. `position` is where it ends: what `rewind` comes back to.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = Path(path) if path else None
        self.position: Position = START
        self._file = self._open(self._read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, values: Fields) -> None:
        """Write one object and hand it to the system at once."""
        line = rest = (json.dumps(plain(values), ensure_ascii=False, allow_nan=False) + "\n").encode()
        while rest:  # a disk that is about to be full takes a part
            rest = rest[self._file.write(rest) :]
        count, crc = self.position
        self.position = (count + 1, zlib.crc32(line, crc))

    def rewind(self, position: Position) -> list[Record]:
        """Keep the lines up to a position and return their objects; of a file that was deleted, none.

        Raises InputError where they are not those that were written.
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
        """Return the lines that were not torn."""
        if self._path is None or not self._path.exists():
            return []
        return self._path.read_bytes().split(b"\n")[:-1]

    def _open(self, kept: list[bytes]) -> FileIO:
        """Replace the file by the kept lines, and open it where they end; without a buffer that would fail again."""
        self.position = _position(kept)
        if self._path is None:
            return Path(os.devnull).open("ab", buffering=0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f"{self._path.name}.tmp")
        scratch.write_bytes(b"".join(line + b"\n" for line in kept))
        scratch.replace(self._path)
        return self._path.open("ab", buffering=0)


class SampleWriter(JsonLines):
    """Write `samples.jsonl` of a run folder, after what is there: answers with their SQL, status and reward.

    Without a folder nothing is written.
    """

    def __init__(self, folder: str | Path | None) -> None:
        super().__init__(folder and Path(folder) / SAMPLES)


def _position(lines: Sequence[bytes]) -> Position:
    """Return the position behind lines."""
    return len(lines), zlib.crc32(b"".join(line + b"\n" for line in lines))
