"""Huge sets: questions and prompts are created lazily by index, with a bounded cache.

The records are in one file with an index (`text2sql.files.index`); only recently used questions are in memory. The next
usable record replaces an unusable one, so every index has a question. Training can thus shuffle the indices without
reading the file: the order is the same in every run, and its position is enough to resume it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar, overload

from jaxrl_sql.text2sql.benchmarks.detect import locate_benchmark
from jaxrl_sql.text2sql.benchmarks.folder import PLAIN, locate_plain_records
from jaxrl_sql.text2sql.benchmarks.gather import (
    AssignDatabase,
    EmptyId,
    PositionId,
    PublishedQuestion,
    RecordFile,
    error_of,
    example_of,
    prefer_local_files,
)
from jaxrl_sql.text2sql.benchmarks.lines import OWN, SYNSQL, locate_synsql_records, locate_user_records
from jaxrl_sql.text2sql.files.index import LineIndex, open_index
from jaxrl_sql.text2sql.prompts.prompts import Encoder, PromptSet, Pruning
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.types import Example, InputError, Prompt, Tokenizer

_LOCATE_RECORDS = {PLAIN.name: locate_plain_records, SYNSQL.name: locate_synsql_records, OWN.name: locate_user_records}
# The approximate minimum size of a record; smaller files need no index.
_MIN_RECORD_BYTES = 50
# More consecutive unusable records are an error.
_MAX_UNUSABLE = 1000
# The numbers of skipped records at which a message is printed.
_REPORTED_COUNTS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
# The number of recent examples with too long prompts, on which the effect of other settings can be measured.
_NUM_LONG_EXAMPLES = 32
# The number of schemas whose token ids are cached.
_NUM_CACHED_SCHEMAS = 512
# The size of an evenly spread sample from which a set's prompt lengths and vocabulary are estimated.
SAMPLE = 512

LongCallback = Callable[[Counter[int], Sequence[Example]], None]
"""Callback: the number of prompts read so far by length, and the last examples with a prompt over the limit."""

T = TypeVar("T")


class LazySequence(Sequence[T], Generic[T]):
    """A sequence of `count` items; `make` creates an item on access from its index."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> T: ...
    @overload
    def __getitem__(self, number: slice) -> list[T]: ...
    def __getitem__(self, number: int | slice) -> T | list[T]:
        if isinstance(number, slice):
            return [self._make(index) for index in range(*number.indices(self._count))]
        if not -self._count <= number < self._count:
            raise IndexError(f"{number} of {self._count}")
        return self._make(number % self._count)


class StreamedQuestions(LazySequence[Example]):
    """The questions of a huge set, or of the first `limit` records (0: all), each transformed by `transform`.

    The caller may set `check`, which returns why a question must not be used, or "", and `report`. `report` gets a
    message for each of the first three unusable records, and then at each power of ten. `skipped` counts the unusable
    records that were read so far, by reason. `cache_size` is the number of questions in memory.
    """

    check: Callable[[Example], str] | None = None
    report: Callable[[str], None] | None = None

    def __init__(
        self,
        record_file: RecordFile,
        records: LineIndex,
        transform: Callable[[Example], Example] | None = None,
        limit: int = 0,
        cache_size: int = 2048,
    ) -> None:
        count = min(limit, len(records)) if limit > 0 else len(records)
        super().__init__(count, lambda number: _first_usable(count, number, self.get, self.skipped))
        self.record_file, self.records, self.transform = record_file, records, transform
        self.skipped: Counter[str] = Counter()
        self._read = lru_cache(cache_size)(self._read_record)

    @property
    def identity(self) -> str:
        """Return an identifier of the file's content and of the number of questions, to detect changes on resuming."""
        return f"{self.records.identity} {len(self)}"

    def get(self, number: int) -> Example | None:
        """Return the question of a record, or None if it is unusable."""
        return self._read(number)

    def _read_record(self, number: int) -> Example | None:
        """Return the question of a record; None if it is unusable, which is counted."""
        item = self.record_file.convert(self.records[number], number)
        reason = "no id" if self._is_without_id(item) else error_of(item, self.record_file.databases)
        if not reason:
            example = example_of(item, self.record_file.databases)
            reason = self.check(example) if self.check else ""
            if not reason:
                return self.transform(example) if self.transform else example
        self.skip(number, reason)
        return None

    def _is_without_id(self, item: PublishedQuestion) -> bool:
        """Return whether a question has an empty id while the first record has an id."""
        if not isinstance(item.uid, EmptyId):
            return False
        return not isinstance(self.record_file.convert(self.records[0], 0).uid, PositionId)

    def skip(self, number: int, reason: str) -> None:
        """Count an unusable record by its reason, and report it if few or a power of ten were skipped before."""
        self.skipped[reason] += 1
        total = self.skipped.total()
        if self.report and (total <= 3 or total in _REPORTED_COUNTS):
            self.report(
                f"skipped record {number} ({reason}), {total} of those read so far; the next usable record replaces it"
            )

    def with_transform(self, transform: Callable[[Example], Example] | None, limit: int = 0) -> StreamedQuestions:
        """Return the same questions, or those of the first `limit` records, each transformed by `transform`."""
        return StreamedQuestions(self.record_file, self.records, transform, limit)

    def usable(self) -> Iterator[Example]:
        """Yield the question of each usable record, in file order."""
        return (example for number in range(len(self)) if (example := self.get(number)) is not None)

    def sample(self, count: int = SAMPLE) -> list[Example]:
        """Return questions at evenly spread indices."""
        return [self[number] for number in spread(len(self), count)]


def stream_prompts(
    examples: StreamedQuestions,
    style: PromptStyle,
    tokenizer: Tokenizer,
    max_tokens: int,
    pruning: Pruning | None = None,
    cache_size: int = 1024,
    on_long: LongCallback = lambda _lengths, _examples: None,
) -> PromptSet:
    """Return a set whose prompts are created on access.

    If a prompt exceeds `max_tokens`, `pruning` reduces its schema. If it is still too long, the next question that fits
    replaces it. `on_long` is called at the first question replaced in this way, and then at each power of ten.
    `cache_size` is the number of prompts in memory. Accessing a prompt raises InputError if none of the next thousand
    questions fits.
    """
    encoder = Encoder(style, tokenizer, pruning, _NUM_CACHED_SCHEMAS)
    lengths: Counter[int] = Counter()
    long: deque[Example] = deque(maxlen=_NUM_LONG_EXAMPLES)

    @lru_cache(cache_size)
    def make(number: int) -> tuple[Example, Prompt] | None:
        example = examples.get(number)
        if example is None:
            return None
        encoded = encoder.encode(example)
        lengths[encoded.length] += 1
        if encoded.length > max_tokens:
            examples.skip(number, f"prompt over {max_tokens} tokens")
            long.append(example)
            if sum(count for length, count in lengths.items() if length > max_tokens) in (1, *_REPORTED_COUNTS):
                on_long(lengths, tuple(long))
            return None
        return example, encoded.prompt(example.uid)

    def pair(number: int) -> tuple[Example, Prompt]:
        return _first_usable(len(examples), number, make, examples.skipped)

    return PromptSet(
        LazySequence(len(examples), lambda number: pair(number)[0]),
        LazySequence(len(examples), lambda number: pair(number)[1]),
        (),
        (examples.identity, max_tokens),
    )


def _first_usable(count: int, number: int, get: Callable[[int], T | None], skipped: Counter[str]) -> T:
    """Return the first item from index `number` on that is not None, wrapping around at the end."""
    for step in range(min(_MAX_UNUSABLE, count)):
        item = get((number + step) % count)
        if item is not None:
            return item
    reasons = ", ".join(f"{reason}: {times}" for reason, times in skipped.most_common(3))
    raise InputError(f"none of the {min(_MAX_UNUSABLE, count)} records from {number} on can be used ({reasons})")


def spread(count: int, max_count: int) -> range:
    """Return at most `max_count` evenly spread indices from 0 to `count`, exclusive."""
    return range(0, count, max(1, -(-count // max_count)))


def open_stream(
    root: str | Path, split: str = "", above: int = 0, assign_database: AssignDatabase | None = None
) -> StreamedQuestions | None:
    """Open a set of one JSON file for reading by index; None if it has at most `above` records.

    Sets of other formats or of several files return None, too, and must be read completely. `assign_database` sets the
    database of a user's question. The first opening scans the file and saves an index. Raises InputError like
    `load_benchmark`.
    """
    form, where, chosen = locate_benchmark(Path(root), split)
    locate_records = _LOCATE_RECORDS.get(form.name)
    # A split of a single file depends on all of its questions (`lines.read_own`).
    if locate_records is None or (where.is_file() and chosen):
        return None
    try:
        record_file = locate_records(where, chosen)
    except InputError:
        return None  # several files, or Parquet: these are read completely
    if (
        record_file.path.suffix.lower() not in (".json", ".jsonl")
        or record_file.path.stat().st_size < above * _MIN_RECORD_BYTES
    ):
        return None
    index = open_index(record_file.path)
    if len(index) <= above:
        return None
    if not len(index):
        raise InputError(f"{record_file.path}: no questions")
    if assign_database is not None:
        convert = record_file.convert
        set_database = prefer_local_files(assign_database, record_file.databases, prefers_files=form is not OWN)
        record_file = record_file._replace(convert=lambda record, number: set_database(convert(record, number)))
    return StreamedQuestions(record_file, index)
