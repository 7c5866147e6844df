"""All answers of a run, in files such as `rollouts/train-000012.jsonl.gz` and `eval-000003.jsonl.gz` (shards).

A line is a record: a group, which is a question with its answers, or the advantages of a training batch. Each append is
a separate gzip member (a gzip file is a sequence of members). So earlier records stay readable whatever happens later,
a shard can be truncated after any append, and `gunzip` and `zcat` read a shard. Token ids and log-probabilities are
packed as base64, because JSON numbers would dominate the time of a write.
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
# A shard has at most 1 / MIN_SHARDS of the answers that a run keeps, so that deleting the oldest shard loses few.
MIN_SHARDS, MAX_ANSWERS_PER_SHARD = 8, 1024
# gzip level: twice as fast as the default, for a tenth more bytes.
_LEVEL = 3
# Log-probabilities are stored in thousandths of a nat; _MISSING marks a missing value.
_PER_NAT, _MISSING = 1000, 32_767

Position = tuple[int, int, int]
"""The end of a kind's records: the number of the newest shard, its size in bytes, and its number of answers."""


class Shard(NamedTuple):
    """A shard's file, its number, and its size in bytes."""

    path: Path
    number: int
    size: int


class RolloutWriter:
    """Append records to the shards of a run folder; the oldest shards of a kind are deleted above `keep` answers.

    A record is never split, and the newest shard always stays. With a `keep` of 0, or without a folder, nothing is
    written. `keeps` is whether answers are to be kept.
    """

    def __init__(self, folder: Path | None, keep: int) -> None:
        self._folder = folder / FOLDER if folder and keep else None
        self._kinds = {kind: _ShardWriter(folder / FOLDER, kind, keep) for kind in KINDS} if folder else {}
        self.keeps = keep > 0

    @property
    def position(self) -> dict[str, Position]:
        """Return the position of each kind's end, for `rewind`."""
        return {kind: shards.position for kind, shards in self._kinds.items()}

    def write(self, kind: str, records: Sequence[Fields]) -> None:
        """Append records (JSON objects) of a kind of `KINDS` and flush them.

        A record needs an integer `step`; readers skip others. The length of its list `answers`, if any, counts towards
        the size of a shard.
        """
        if self._folder is not None and records:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._kinds[kind].append(records)

    @property
    def has_tokens(self) -> bool:
        """Return whether the texts of the tokens are written already, or nothing is written at all."""
        return self._folder is None or (self._folder / TOKENS).exists()

    def write_tokens(self, texts: Sequence[str]) -> None:
        """Write the text of each token id, once per run; records have ids only."""
        if self._folder is not None and not self.has_tokens:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = self._folder / f"{TOKENS}.tmp"
            scratch.write_text(json.dumps(list(texts), ensure_ascii=False), encoding="utf-8")
            scratch.replace(self._folder / TOKENS)

    def rewind(self, position: Mapping[str, Sequence[int]]) -> None:
        """Drop the records after a `position` of this class, and all records of a kind that it does not have.

        Raises InputError if a shard is truncated or damaged before the position.
        """
        for kind, shards in self._kinds.items():
            number, size, answers = position.get(kind, (0, 0, 0))
            shards.rewind((number, size, answers))


class _ShardWriter:
    """The shards of one kind in a folder, of which about `keep` answers stay."""

    def __init__(self, folder: Path, kind: str, keep: int) -> None:
        self._folder, self._kind = folder, kind
        self._keep, self._max_answers = keep, max(1, min(MAX_ANSWERS_PER_SHARD, keep // MIN_SHARDS))
        self.position: Position = (0, 0, 0)
        if shards := list_shards(folder, kind):
            path, number, size = shards[-1]
            self.position = (number, size, sum(map(_answers_in, read_shard(path).records)))

    def append(self, records: Sequence[Fields]) -> None:
        remaining = list(records)
        # A shard must have room for the largest record, because records are never split.
        self._max_answers = max(self._max_answers, *map(_answers_in, remaining))
        while remaining:
            count = self._num_fitting(remaining)
            if count:
                self._add(remaining[:count])
            else:  # the current shard is full: begin the next
                self.position = (self.position[0] + 1, 0, 0)
            remaining = remaining[count:]
        num_kept_shards = max(1, self._keep // self._max_answers)
        for shard in list_shards(self._folder, self._kind)[:-num_kept_shards]:
            shard.path.unlink()

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
        elif size:  # the shard was deleted as the oldest: an empty shard of equal size keeps the position valid
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_empty_member(size))
        else:
            path.unlink(missing_ok=True)
        for shard in list_shards(self._folder, self._kind):
            if shard.number > number:
                shard.path.unlink()
        self.position = position

    def _num_fitting(self, records: Sequence[Fields]) -> int:
        """Return how many of the records fit into the current shard."""
        answers = self.position[2]
        for count, record in enumerate(records):
            answers += _answers_in(record)
            if answers > self._max_answers:
                return count
        return len(records)

    def _add(self, records: Sequence[Fields]) -> None:
        number, size, answers = self.position
        unwritten = _member(records)
        self.position = (number, size + len(unwritten), answers + sum(map(_answers_in, records)))
        with self._path(number).open("ab", buffering=0) as file:
            while unwritten:  # a nearly full disk may accept only a part
                unwritten = unwritten[file.write(unwritten) :]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._kind}-{number:06}.jsonl.gz"


class ShardRecords(NamedTuple):
    """The readable records of a shard; `is_incomplete` if it also has data that cannot be read.

    Such data are a truncated or damaged end, and lines that are not a JSON object with an integer `step`.
    """

    records: list[Record]
    is_incomplete: bool


def list_shards(folder: Path, kind: str) -> list[Shard]:
    """Return the shards of a kind in a folder, oldest first."""
    shards = []
    for path in folder.glob(f"{kind}-*.jsonl.gz"):
        number = path.name.removeprefix(f"{kind}-").removesuffix(".jsonl.gz")
        if number.isdecimal():
            shards.append(Shard(path, int(number), path.stat().st_size))
    return sorted(shards, key=lambda shard: shard.number)


def read_shard(path: Path) -> ShardRecords:
    """Return the records of a shard; data that cannot be read are omitted."""
    records: list[Record] = []
    is_incomplete = False
    for text in _members(path.read_bytes()):
        if text is None:
            is_incomplete = True
            continue
        for line in io.BytesIO(text):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
            else:
                is_incomplete = True
    return ShardRecords(records, is_incomplete)


def pack_ids(ids: Sequence[int]) -> str:
    """Return token ids as text."""
    return base64.b64encode(np.asarray(ids, "<u4").tobytes()).decode()


def unpack_ids(text: str) -> np.ndarray:
    """Return the token ids [T] of a packed text; raises ValueError if it is invalid."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4")


def pack_logprobs(logprobs: Sequence[float]) -> str:
    """Return log-probabilities as text, rounded to a thousandth of a nat and clipped to ±32.766 nats.

    A value that is not finite is stored as missing.
    """
    values = np.asarray(logprobs, np.float64) * _PER_NAT
    scaled = np.where(np.isfinite(values), np.clip(np.nan_to_num(values), 1 - _MISSING, _MISSING - 1), _MISSING)
    return base64.b64encode(scaled.round().astype("<i2").tobytes()).decode()


def unpack_logprobs(text: str) -> list[float]:
    """Return the log-probabilities of a packed text, NaN if missing; raises ValueError if it is invalid."""
    raw = np.frombuffer(base64.b64decode(text, validate=True), "<i2").tolist()
    return [math.nan if value == _MISSING else value / _PER_NAT for value in raw]


def _members(raw: bytes) -> Iterator[bytes | None]:
    """Yield the text of each gzip member, and None for trailing bytes that are no complete member."""
    while raw:
        member = zlib.decompressobj(wbits=31)  # 31: with gzip's header
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
    """Return records as a gzip member without a timestamp: equal records give equal bytes."""
    packed = zlib.compressobj(level=_LEVEL, wbits=31)
    text = "".join(
        json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n" for record in records
    )
    return packed.compress(text.encode("utf-8", errors="replace")) + packed.flush()


def _empty_member(size: int) -> bytes:
    """Return an empty gzip member of `size` bytes, filled up by its comment field."""
    # RFC 1952: magic number, deflate, the flag of a comment, no time, no flags, Unix. At the end: the zero byte after
    # the comment, an empty deflate block, and the CRC-32 and length of no data.
    head, end = b"\x1f\x8b\x08\x10\0\0\0\0\0\x03", b"\0\x03\0" + bytes(8)
    return head + b" " * (size - len(head) - len(end)) + end


def _answers_in(record: Fields) -> int:
    return len(record.get("answers", ()))
