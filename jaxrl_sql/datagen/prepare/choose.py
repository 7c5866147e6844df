"""Select questions of a source, a published or own question set of the configuration, with a count per group.

Questions are selected by text, labels, ids, pass rates (how often a model answered them correctly), and golds (their
reference queries).
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import FilterSettings
from jaxrl_sql.config.prepare import SourceConfig
from jaxrl_sql.datagen.prepare.script import make_database
from jaxrl_sql.runtime.progress import agree
from jaxrl_sql.text2sql.benchmarks.detect import locate_benchmark
from jaxrl_sql.text2sql.benchmarks.gather import (
    LoadedQuestions,
    PublishedQuestion,
    error_of,
    example_of,
    mark_empty_ids,
)
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.text2sql.files.jsonl import read_ids, records, text
from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.text2sql.question_sets.filters import by_gold, plain_words
from jaxrl_sql.types import Example, InputError

# Golds run in chunks of this size.
_CHUNK = 256
# Candidates that are held per requested question, because some golds turn out to be unusable.
_SPARE = 4
# Without a requested count, all questions of a source are held in memory.
_MAX_WITHOUT_COUNT = 500_000
_NOT_CHOSEN = "not among those chosen"


class SelectedQuestions(NamedTuple):
    """The questions selected from a source, the name of its format, the number omitted by reason, and messages."""

    examples: list[Example]
    form: str
    left_out: Counter[str]
    notes: list[str]


def choose(name: str, cfg: SourceConfig, seed: int, executor: SqlExecutor, scratch: Path) -> SelectedQuestions:
    """Select questions of the source with this name; databases that are published as scripts are built in `scratch`.

    The selection is random, but depends only on the seed and the ids. Raises InputError if the set cannot be loaded or
    no question is left.
    """
    form, folder, split = locate_benchmark(Path(cfg.dir), cfg.split)
    notes: list[str] = []
    source, left_out = form.read(folder, split, notes), Counter[str]()
    candidates = _filter_by_settings(
        name, cfg, source.items if source.is_huge else mark_empty_ids(source.items), left_out
    )
    salt = f"prepare {seed}"

    def random_rank(item: PublishedQuestion) -> int:
        return rank(item.uid, salt)

    if cfg.subsample_every > 1:
        candidates = (item for item in candidates if rank(item.uid, "subsample") % cfg.subsample_every == 0)
    groups = _group_candidates(cfg, candidates, random_rank, left_out)
    selected = _take_balanced(cfg, groups, _UsableFilter(cfg, source, executor, scratch, left_out))
    source.databases.add_notes(notes)
    if 0 < len(selected) < cfg.count:
        notes.append(
            f"only {len(selected)} of the {cfg.count} requested questions {agree(len(selected), 'are')} available"
        )
    if not selected:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in left_out.most_common(3))
        raise InputError(
            f"sources.{name}: no question of {source.where} matches ({reasons or 'it holds no questions'})"
        )
    return SelectedQuestions(selected, form.name, left_out, notes)


def _filter_by_settings(
    name: str, cfg: SourceConfig, items: Iterable[PublishedQuestion], left_out: Counter[str]
) -> Iterator[PublishedQuestion]:
    """Yield the questions that pass the checks of ids, text, labels and pass rates; count the others by reason."""
    ids = read_ids(cfg.include_ids) if cfg.include_ids else None
    rates = read_rates(Path(cfg.rates)) if cfg.rates else {}
    try:
        patterns = [re.compile(pattern) for pattern in cfg.exclude]
    except re.error as error:
        raise InputError(f"sources.{name}.exclude: {error}: not a regular expression") from error
    seen: set[str] = set()
    checks: list[tuple[str, Callable[[PublishedQuestion], bool]]] = [
        ("duplicate id", lambda item: item.uid not in seen),
        ("not in include_ids", lambda item: ids is None or item.uid in ids),
        ("complexity", lambda item: not cfg.complexity or item.difficulty in cfg.complexity),
        ("excluded by its words", lambda item: not any(pattern.search(item.question) for pattern in patterns)),
        ("short SQL", lambda item: len(item.sql) >= cfg.min_sql_characters),
        ("no pass rate", lambda item: not cfg.rates or item.uid in rates),
        ("pass rate", lambda item: not cfg.rates or _is_within(rates[item.uid], cfg.low, cfg.high)),
        ("hardness", lambda item: not cfg.hardness or spider_level(item.sql) in cfg.hardness),
    ]
    for item in items:
        reason = next((label for label, passes in checks if not passes(item)), "")
        if reason:
            left_out[reason] += 1
        else:
            seen.add(item.uid)
            yield item


def _is_within(rate: tuple[int, int], low: float, high: float) -> bool:
    """Return whether the pass rate (right, total) is between `low` and `high`, both inclusive."""
    right, total = rate
    return low * total - 1e-9 <= right <= high * total + 1e-9


def read_rates(path: Path) -> dict[str, tuple[int, int]]:
    """Read the pass rates that `data filter` wrote: by id, (number of right answers, number of scored answers).

    A question without scored answers has no rate. The last line of an id counts. Raises InputError for any other line.
    """
    rates = {}
    for number, record in records(path):
        uid, right, total = text(record.get("id")), record.get("right"), record.get("of")
        if not uid or not isinstance(right, int) or not isinstance(total, int) or not 0 <= right <= total:
            if "settings" in record:  # the first line of data filter's journal
                continue
            raise InputError(f"{path}:{number}: a rate has an id, right and of, not {json.dumps(record)[:80]}")
        if total:
            rates[uid] = (right, total)
    return rates


def _group_candidates(
    cfg: SourceConfig,
    items: Iterable[PublishedQuestion],
    random_rank: Callable[[PublishedQuestion], int],
    left_out: Counter[str],
) -> dict[str, list[PublishedQuestion]]:
    """Return the candidates by group, in the order of selection; the setting `balance` names the label that groups.

    Without a requested count that is the order of the file. Otherwise it is the order of `random_rank`, and each group
    holds at most `_SPARE` times the count plus a chunk; the others are counted as omitted.
    """
    labels: Mapping[str, Callable[[PublishedQuestion], str]] = {
        "none": lambda _: "",
        "complexity": lambda item: item.difficulty,
        "hardness": lambda item: spider_level(item.sql),
        "database": lambda item: item.db_id or item.db_path,
    }
    label_of, capacity = labels[cfg.balance], _SPARE * cfg.count + _CHUNK if cfg.count else 0
    # A heap per group, whose first entry has the highest rank. Keys are negated, because heapq's heaps are min-heaps.
    groups: dict[str, list[tuple[int, int, PublishedQuestion]]] = {}
    for number, item in enumerate(items):
        if not capacity and number >= _MAX_WITHOUT_COUNT:
            raise InputError(
                f"more than {_MAX_WITHOUT_COUNT:,} questions do not fit in memory: set the count of {cfg.dir}"
            )
        heap = groups.setdefault(label_of(item), [])
        entry = (-random_rank(item) if capacity else 0, -number, item)
        if not capacity or len(heap) < capacity:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
            left_out[_NOT_CHOSEN] += 1
    return {name: [item for _, _, item in sorted(heap, reverse=True)] for name, heap in sorted(groups.items())}


class _UsableFilter:
    """Filters candidates to usable questions: those with a database and, if `run_golds` is set, a gold that runs.

    `left_out` counts the others by reason.
    """

    def __init__(
        self, cfg: SourceConfig, source: LoadedQuestions, executor: SqlExecutor, scratch: Path, left_out: Counter[str]
    ) -> None:
        self.cfg, self.source, self.executor, self.scratch, self.left_out = cfg, source, executor, scratch, left_out
        self.limits = FilterSettings(max_gold_steps=cfg.max_gold_steps, empty_gold=cfg.empty_gold)

    def __call__(self, items: Iterable[PublishedQuestion]) -> Iterator[Example]:
        """Yield the usable questions in order, reading one chunk of `items` at a time."""
        rest = iter(items)
        while chunk := list(islice(rest, _CHUNK)):
            examples = [example for item in chunk if (example := self._example(item))]
            if self.cfg.run_golds:
                examples, dropped = by_gold(self.executor, examples, self.limits)
                self.left_out.update(drop.reason for drop in dropped)
            yield from examples

    def _example(self, item: PublishedQuestion) -> Example | None:
        """Return the question as an example, or None and count the reason; builds a database that is a script."""
        if item.script:
            path = self.scratch / item.db_id / f"{item.db_id}.sqlite"
            item = item._replace(error=make_database(path, item.script), db_path=str(path), script="")
        error = error_of(item, self.source.databases)
        if not error and not item.more.get("answerable", True):
            error = "has no answer"
        if not error and item.more.get("gold_tables"):
            error = "its gold is a table, not SQL"
        if error:
            # Names of databases are removed from reasons, so that equal reasons are counted together.
            self.left_out[re.sub(r"(no database|database) \S+", r"\1", error)] += 1
            return None
        return example_of(item, self.source.databases)


def _take_balanced(
    cfg: SourceConfig, groups: Mapping[str, list[PublishedQuestion]], usable: _UsableFilter
) -> list[Example]:
    """Take an equal number of each group, `cfg.count` in all (0: all); larger groups compensate for small ones."""
    if not cfg.count:
        return [example for items in groups.values() for example in usable(items)]
    streams = {name: usable(items) for name, items in groups.items()}
    selected: list[Example] = []
    num_left_out_before = usable.left_out.total()
    while streams and len(selected) < cfg.count:
        share, remainder = divmod(cfg.count - len(selected), len(streams))
        for number, name in enumerate(list(streams)):
            quota = share + (number < remainder)
            batch = list(islice(streams[name], quota))
            selected += batch
            if len(batch) < quota:
                del streams[name]
    num_unusable = usable.left_out.total() - num_left_out_before
    if num_unused := sum(map(len, groups.values())) - len(selected) - num_unusable:
        usable.left_out[_NOT_CHOSEN] += num_unused
    return selected


def without_repeats(sources: Mapping[str, list[Example]]) -> tuple[dict[str, list[Example]], int]:
    """Remove questions with the same words on the same database; return the others by source, and the number removed.

    The first of them stays, in the order of the sources.
    """
    seen: set[tuple[str, str]] = set()
    unique: dict[str, list[Example]] = {}
    for name, examples in sources.items():
        unique[name] = []
        for example in examples:
            key = example.db_path, plain_words(example.question)
            if key not in seen:
                unique[name].append(example)
            seen.add(key)
    return unique, sum(map(len, sources.values())) - sum(map(len, unique.values()))
