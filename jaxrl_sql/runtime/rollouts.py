"""Every answer of a run, kept in its folder: pieces `rollouts/train-000012.jsonl.gz` and `eval-000003.jsonl.gz`.

A line is a group: a question, and the answers to it. Each append is a gzip member of its own, so what was written is
whole whatever comes after, a position is a piece and its length in bytes, and `gunzip` and `zcat` read a piece. Token
ids and log-probabilities, hundreds an answer, are packed as base64: as JSON's numbers they would take longer to write
than all else.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl_sql.types import Fields, InputError, Record

FOLDER, TOKENS = "rollouts", "tokens.json"
KINDS = ("train", "eval")
FEWEST_PIECES, MOST_ANSWERS = 8, 1024
# Of gzip: twice as fast as the usual one, for a tenth more bytes.
_LEVEL = 3
# A log-probability is kept in thousandths of a nat; the number that stands for none.
_NAT, _NONE = 1000, 32_767

Position = tuple[int, int, int]
"""The number of a piece, how many bytes of it there are, and how many answers are in them."""


class Piece(NamedTuple):
    """A piece's file, its number, and how many bytes it holds now."""

    path: Path
    number: int
    size: int


class RolloutWriter:
    """Append groups to the pieces of a run folder; of each kind at most `keep` answers stay, the oldest go first.

    They go by the piece, and a group is never cut, so the newest stays whatever `keep` says. With a `keep` of 0, or
    without a folder, nothing is written.
    """

    def __init__(self, folder: Path | None, keep: int) -> None:
        self._folder = folder / FOLDER if folder and keep else None
        self._kinds = {kind: _Pieces(folder / FOLDER, kind, keep) for kind in KINDS} if folder else {}
        self.keeps = keep > 0

    @property
    def position(self) -> dict[str, Position]:
        """Return where the pieces end: what `rewind` comes back to."""
        return {kind: pieces.position for kind, pieces in self._kinds.items()}

    def write(self, kind: str, records: Sequence[Fields]) -> None:
        """Append records of a kind, of what JSON knows, and hand them to the system at once."""
        if self._folder is not None and records:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._kinds[kind].append(records)

    @property
    def has_tokens(self) -> bool:
        """Return whether there is nothing to write of what the tokens say."""
        return self._folder is None or (self._folder / TOKENS).exists()

    def write_tokens(self, texts: Sequence[str]) -> None:
        """Keep what each token id says, which records name by id; once a run."""
        if self._folder is not None and not self.has_tokens:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = self._folder / f"{TOKENS}.tmp"
            scratch.write_text(json.dumps(list(texts), ensure_ascii=False), encoding="utf-8")
            scratch.replace(self._folder / TOKENS)

    def rewind(self, position: Mapping[str, Sequence[int]]) -> None:
        """Drop the records behind a position; all of a kind that it does not name.

        Raises InputError where the piece of a position is cut or damaged before it.
        """
        for kind, pieces in self._kinds.items():
            number, size, answers = position.get(kind, (0, 0, 0))
            pieces.rewind((number, size, answers))


class _Pieces:
    """The pieces of one kind."""

    def __init__(self, folder: Path, kind: str, keep: int) -> None:
        self._folder, self._kind = folder, kind
        self._keep, self._most = keep, max(1, min(MOST_ANSWERS, keep // FEWEST_PIECES))
        self.position: Position = (0, 0, 0)
        if found := pieces_of(folder, kind):
            path, number, size = found[-1]
            self.position = (number, size, sum(map(_answers_in, read_piece(path).records)))

    def append(self, records: Sequence[Fields]) -> None:
        left = list(records)
        self._most = max(self._most, *map(_answers_in, left))
        while left:
            taken = self._fitting(left)
            if taken:
                self._add(left[:taken])
            else:
                self.position = (self.position[0] + 1, 0, 0)
            left = left[taken:]
        for piece in pieces_of(self._folder, self._kind)[: -max(1, self._keep // self._most)]:
            piece.path.unlink()

    def rewind(self, position: Position) -> None:
        number, size, _ = position
        path = self._path(number)
        if size and path.exists():
            raw = path.read_bytes()[:size]
            if len(raw) < size or None in _members(raw):
                raise InputError(
                    f"{path}: its first {size} bytes are not those that the run wrote: put it back from a copy, or "
                    "delete it to resume without it"
                )
            os.truncate(path, size)
        elif size:  # it was the oldest, and is gone: its room is kept, so that later positions hold
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_empty_member(size))
        else:
            path.unlink(missing_ok=True)
        for piece in pieces_of(self._folder, self._kind):
            if piece.number > number:
                piece.path.unlink()
        self.position = position

    def _fitting(self, records: Sequence[Fields]) -> int:
        """Return how many of the records the piece has room for: all that make it no fuller than it may be."""
        answers = self.position[2]
        for taken, one in enumerate(records):
            answers += _answers_in(one)
            if answers > self._most:
                return taken
        return len(records)

    def _add(self, records: Sequence[Fields]) -> None:
        number, size, answers = self.position
        rest = _member(records)
        self.position = (number, size + len(rest), answers + sum(map(_answers_in, records)))
        with self._path(number).open("ab", buffering=0) as file:
            while rest:  # a disk that is about to be full takes a part
                rest = rest[file.write(rest) :]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._kind}-{number:06}.jsonl.gz"


class Read(NamedTuple):
    """The records of a piece that are whole; `is_cut` where more stood behind them."""

    records: list[Record]
    is_cut: bool


def pieces_of(folder: Path, kind: str) -> list[Piece]:
    """Return the pieces of a kind in a folder of pieces, oldest first."""
    found = []
    for path in folder.glob(f"{kind}-*.jsonl.gz"):
        number = path.name.removeprefix(f"{kind}-").removesuffix(".jsonl.gz")
        if number.isdecimal():
            found.append(Piece(path, int(number), path.stat().st_size))
    return sorted(found, key=lambda piece: piece.number)


def read_piece(path: Path) -> Read:
    """Return the records of a piece; what a kill or a copy cut off is left out, and so is what is no record."""
    records: list[Record] = []
    is_cut = False
    for text in _members(path.read_bytes()):
        if text is None:
            is_cut = True
            continue
        for line in io.BytesIO(text):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
            else:
                is_cut = True
    return Read(records, is_cut)


def pack_ids(ids: Sequence[int]) -> str:
    """Return token ids as text."""
    return base64.b64encode(np.asarray(ids, "<u4").tobytes()).decode()


def unpack_ids(text: str) -> np.ndarray:
    """Return the token ids [T] that a text holds; raises ValueError for one that holds none."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4")


def pack_logprobs(logprobs: Sequence[float]) -> str:
    """Return log-probabilities as text, to a thousandth of a nat, and as none what is no number."""
    values = np.asarray(logprobs, np.float64) * _NAT
    kept = np.where(np.isfinite(values), np.clip(np.nan_to_num(values), 1 - _NONE, _NONE - 1), _NONE)
    return base64.b64encode(kept.round().astype("<i2").tobytes()).decode()


def unpack_logprobs(text: str) -> list[float]:
    """Return the log-probabilities that a text holds, NaN for none; raises ValueError for one that holds none."""
    raw = np.frombuffer(base64.b64decode(text, validate=True), "<i2").tolist()
    return [math.nan if one == _NONE else one / _NAT for one in raw]


def _members(raw: bytes) -> Iterator[bytes | None]:
    """Yield the text of each gzip member, and None in the place of a rest that is none."""
    while raw:
        member = zlib.decompressobj(wbits=31)
        try:
            text = member.decompress(raw)
        except zlib.error:
            yield None
            return
        if not member.eof:
            yield None
            return
        yield text
        raw = member.unused_data


def _member(records: Sequence[Fields]) -> bytes:
    """Return records as a gzip member that says nothing of when it was made: the same records, the same bytes."""
    packed = zlib.compressobj(level=_LEVEL, wbits=31)
    text = "".join(
        json.dumps(one, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n" for one in records
    )
    return packed.compress(text.encode("utf-8", errors="replace")) + packed.flush()


def _empty_member(size: int) -> bytes:
    """Return a gzip member of nothing, as long as asked for: a comment fills it."""
    head, end = b"\x1f\x8b\x08\x10\0\0\0\0\0\x03", b"\0\x03\0" + bytes(8)
    return head + b" " * (size - len(head) - len(end)) + end


def _answers_in(record: Fields) -> int:
    return len(record.get("answers", ()))
