"""Huge sets: questions and prompts that are made when they are asked for, by number, with a bounded number kept.

The records lie in one file with an index (`text2sql.files.index`); only the questions requested last are in memory. A
record that cannot be used gives its place to the next one that can, so that every number has a question and an order
over the numbers is one over questions: the same in every run, and resumed by one cursor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar, overload

from jaxrl_sql.text2sql.benchmarks.detect import located
from jaxrl_sql.text2sql.benchmarks.folder import PLAIN, plain_lines
from jaxrl_sql.text2sql.benchmarks.gather import ByPlace, EmptyId, Item, Lines, example_of, fault_of
from jaxrl_sql.text2sql.benchmarks.lines import OWN, SYNSQL, own_lines, synsql_lines
from jaxrl_sql.text2sql.files.index import LineIndex, open_index
from jaxrl_sql.text2sql.prompts.prompts import Encoder, PromptSet, PromptStyle, Pruning
from jaxrl_sql.types import Example, InputError, Prompt, Tokenizer

_READS = {PLAIN.name: plain_lines, SYNSQL.name: synsql_lines, OWN.name: own_lines}
# A record of a question is at least about this long: shorter files are not worth an index.
_RECORD_BYTES = 50
# So many records in a row that cannot be used are no accident.
_MOST_UNUSABLE = 1000
_TOLD = (10, 100, 1000, 10_000, 100_000, 1_000_000)
# Token ids of schemas that are kept.
_SCHEMAS = 512
# Of so many questions spread over a set, lengths and words are taken for those of all.
SAMPLE = 512

T = TypeVar("T")


class Numbered(Sequence[T], Generic[T]):
    """A sequence whose items are made by number when they are asked for."""

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


class Streamed(Numbered[Example]):
    """The questions of a huge set, or the first `limit` of its records (0: all); `change` is done to each.

    `check` returns why a question is not to be used, or nothing. `skipped` counts the records that were asked for and
    not used, by reason; `tell` is given the first few, and the count whenever it has grown tenfold.
    """

    check: Callable[[Example], str] | None = None
    tell: Callable[[str], None] | None = None

    def __init__(
        self,
        lines: Lines,
        records: LineIndex,
        change: Callable[[Example], Example] | None = None,
        limit: int = 0,
        kept: int = 2048,
    ) -> None:
        count = min(limit, len(records)) if limit > 0 else len(records)
        super().__init__(count, lambda number: _first_usable(count, number, self.at, self.skipped))
        self.lines, self.records, self.change = lines, records, change
        self.skipped: Counter[str] = Counter()
        self._read = lru_cache(kept)(self._read_record)

    @property
    def identity(self) -> str:
        """Return a short word for the records as they are."""
        return f"{self.records.identity} {len(self)}"

    def at(self, number: int) -> Example | None:
        """Return the question of a record, or None where it cannot be used."""
        return self._read(number)

    def _read_record(self, number: int) -> Example | None:
        item = self.lines.item(self.records[number], number)
        reason = "no id" if self._is_without_id(item) else fault_of(item, self.lines.databases)
        if not reason:
            example = example_of(item, self.lines.databases)
            reason = self.check(example) if self.check else ""
            if not reason:
                return self.change(example) if self.change else example
        self.skip(number, reason)
        return None

    def _is_without_id(self, item: Item) -> bool:
        """Return whether a question has an empty id while the first record has an id."""
        if not isinstance(item.uid, EmptyId):
            return False
        return not isinstance(self.lines.item(self.records[0], 0).uid, ByPlace)

    def skip(self, number: int, reason: str) -> None:
        """Count a record that cannot be used."""
        self.skipped[reason] += 1
        total = self.skipped.total()
        if self.tell and (total <= 3 or total in _TOLD):
            self.tell(
                f"record {number} is left out ({reason}), {total} of those read so far; the next one takes its place"
            )

    def changed(self, change: Callable[[Example], Example] | None, limit: int = 0) -> Streamed:
        """Return the same questions, or the first so many, each with something done to it."""
        return Streamed(self.lines, self.records, change, limit)

    def usable(self) -> Iterator[Example]:
        """Yield the question of each record that has one, in the order of the file."""
        return (example for number in range(len(self)) if (example := self.at(number)) is not None)

    def sample(self, count: int = SAMPLE) -> list[Example]:
        """Return questions that are spread evenly over the set."""
        return [self[number] for number in spread(len(self), count)]


def stream_prompts(
    examples: Streamed,
    style: PromptStyle,
    tokenizer: Tokenizer,
    max_tokens: int,
    pruning: Pruning | None = None,
    kept: int = 1024,
) -> PromptSet:
    """Return a set whose prompts are made when they are asked for.

    A question whose prompt is longer than `max_tokens` gives its place to the next one that fits, as one that cannot be
    used does; `pruning` cuts down its schema first. Raises InputError, when such a one is asked for, where none of the
    next thousand fits.
    """
    encoder = Encoder(style, tokenizer, pruning, _SCHEMAS)

    @lru_cache(kept)
    def made(number: int) -> tuple[Example, Prompt] | None:
        example = examples.at(number)
        if example is None:
            return None
        encoded = encoder.encode(example)
        if encoded.length > max_tokens:
            examples.skip(number, f"prompt over {max_tokens} tokens")
            return None
        return example, encoded.prompt(example.uid)

    def pair(number: int) -> tuple[Example, Prompt]:
        return _first_usable(len(examples), number, made, examples.skipped)

    return PromptSet(
        Numbered(len(examples), lambda number: pair(number)[0]),
        Numbered(len(examples), lambda number: pair(number)[1]),
        (),
        (examples.identity, max_tokens),
    )


def _first_usable(count: int, number: int, at: Callable[[int], T | None], skipped: Counter[str]) -> T:
    """Return what stands at a number, or at the first after it where something does; the first follows the last."""
    for step in range(min(_MOST_UNUSABLE, count)):
        found = at((number + step) % count)
        if found is not None:
            return found
    reasons = ", ".join(f"{reason}: {times}" for reason, times in skipped.most_common(3))
    raise InputError(f"none of the {min(_MOST_UNUSABLE, count)} records from {number} on can be used ({reasons})")


def spread(count: int, most: int) -> range:
    """Return at most `most` numbers below `count`, evenly spread."""
    return range(0, count, max(1, -(-count // most)))


def open_stream(root: str | Path, split: str = "", above: int = 0) -> Streamed | None:
    """Open a set of one file of JSON for reading by number; None where it has at most `above` records.

    None too where its format is not a file of records. The first opening looks the file through and keeps an index.
    Raises InputError as `load_benchmark` does, and where the set is empty.
    """
    form, place, chosen = located(Path(root), split)
    read = _READS.get(form.name)
    if read is None or (place.is_file() and chosen):  # whose splits are made of all its questions
        return None
    try:
        lines = read(place, chosen)
    except InputError:
        return None  # several files, or Parquet: they are read whole
    if lines.path.suffix.lower() not in (".json", ".jsonl") or lines.path.stat().st_size < above * _RECORD_BYTES:
        return None
    index = open_index(lines.path)
    if len(index) <= above:
        return None
    if not len(index):
        raise InputError(f"{lines.path}: no questions in it")
    return Streamed(lines, index)
