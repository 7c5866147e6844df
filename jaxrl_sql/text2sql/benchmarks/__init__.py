"""Benchmarks: one loader a folder format, found by what is in the folder."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.benchmark import Benchmark, skipped_lines
from jaxrl_sql.text2sql.benchmarks.detect import FORMATS, located
from jaxrl_sql.text2sql.benchmarks.folder import PLAIN, plain_record
from jaxrl_sql.text2sql.benchmarks.gather import Format, gather, with_ids
from jaxrl_sql.text2sql.benchmarks.memory import benchmark_of

__all__ = [
    "FORMATS",
    "Benchmark",
    "benchmark_of",
    "load_benchmark",
    "load_folder",
    "load_split",
    "plain_record",
    "skipped_lines",
    "unused_name",
]


def load_benchmark(folder: str | Path, split: str = "", limit: int = 0) -> Benchmark:
    """Load a benchmark's folder as it was published, or a file of one's own questions.

    `split` names one of its splits, or a folder in it; empty means the one that is usually scored. `limit` keeps the
    first so many usable questions, 0 all. A set whose databases have variants is judged on all of them by the rule
    `test_suite`. Raises InputError, with what is looked for and where, for a folder of no known format, a split that is
    not there, and where no question can be used.
    """
    return _load(*located(Path(folder), split), limit)


def load_folder(folder: str | Path, limit: int = 0) -> Benchmark:
    """Load a folder in the plain layout, `questions.jsonl` and `databases/`; raises as `load_benchmark` does."""
    return _load(PLAIN, Path(folder), "", limit)


def load_split(root: str | Path, split: str, limit: int = 0) -> Benchmark:
    """Load the split of a set in any format for training: `root/split` where that is a folder, else a split of `root`.

    What has no answer cannot be learned from its gold, and is left out with a reason.
    """
    folder = Path(root) / split
    if (folder / "questions.jsonl").is_file() or not Path(root).exists():
        return load_folder(folder, limit)
    benchmark = load_benchmark(root, split, limit)
    mute = tuple((example.uid, "has no answer") for example in benchmark.examples if not example.answerable)
    usable = tuple(one for one in benchmark.examples if one.answerable)
    return benchmark._replace(examples=usable, skipped=benchmark.skipped + mute)


def unused_name(name: str, taken: Container[str]) -> str:
    """Return what a set goes by in numbers: its name, with the least number from 2 on where it is taken."""
    return next(one for one in chain([name], (f"{name}_{n}" for n in count(2))) if one not in taken)


def _load(form: Format, folder: Path, split: str, limit: int) -> Benchmark:
    notes: list[str] = []
    found = form.reads(folder, split, notes)
    if not found.is_huge:
        found = found._replace(items=with_ids(found.items))
    order = () if found.is_huge else tuple(str(item.uid) for item in found.items)
    examples, skipped = gather(found, notes, limit)
    rule = found.rule or ("test_suite" if form is PLAIN and any(example.suite for example in examples) else form.rule)
    return Benchmark(form.name, rule, examples, skipped, tuple(notes), form.submission, found.prepare, order)
