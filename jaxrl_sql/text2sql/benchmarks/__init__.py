"""Benchmarks: one loader per folder format, selected by the content of the folder.

A benchmark has questions, each with a gold (the correct SQL) and a database. Its rule is the comparison of two query
results that decides whether an answer is right (docs/reference/rules.md). A suite is several databases with the same
schema and different rows: a right answer has the gold's result on all of them.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.benchmark import Benchmark, summarize_skipped
from jaxrl_sql.text2sql.benchmarks.detect import FORMATS, USER_FORMATS, locate_benchmark
from jaxrl_sql.text2sql.benchmarks.folder import PLAIN, plain_record
from jaxrl_sql.text2sql.benchmarks.gather import AssignDatabase, Format, gather, mark_empty_ids, prefer_local_files
from jaxrl_sql.text2sql.benchmarks.lines import OWN, is_question_file
from jaxrl_sql.text2sql.benchmarks.memory import benchmark_of

__all__ = [
    "FORMATS",
    "Benchmark",
    "benchmark_of",
    "load_benchmark",
    "load_folder",
    "load_split",
    "make_unique_name",
    "plain_record",
    "summarize_skipped",
]


def load_benchmark(
    folder: str | Path, split: str = "", limit: int = 0, assign_database: AssignDatabase | None = None
) -> Benchmark:
    """Load the published folder of a benchmark, or a user's file of questions.

    `split` is a split or a subfolder; "" selects the split that is usually scored. `limit` is the maximum number of
    usable questions, 0 for all. `assign_database` sets the database of a user's question, for example to one on a
    server. If a database has variants (files with the same schema and other rows), they become the question's `suite`.
    Raises InputError with the expected files for an unknown format, a missing split, and a set without usable
    questions.
    """
    return _load(*locate_benchmark(Path(folder), split), limit, assign_database)


def load_folder(folder: str | Path, limit: int = 0, assign_database: AssignDatabase | None = None) -> Benchmark:
    """Load a folder in the plain layout, `questions.jsonl` and `databases/`; raises like `load_benchmark`."""
    return _load(PLAIN, Path(folder), "", limit, assign_database)


def load_split(
    root: str | Path, split: str, limit: int = 0, assign_database: AssignDatabase | None = None
) -> Benchmark:
    """Load a split for training, in any format: the folder `root/split` if it exists, else a split of `root`.

    Unanswerable questions have no gold to learn from and are skipped with a reason. Other arguments and errors are
    those of `load_benchmark`.
    """
    folder = Path(root) / split
    if (folder / "questions.jsonl").is_file() or _is_missing_folder(Path(root)):
        return load_folder(folder, limit, assign_database)
    benchmark = load_benchmark(root, split, limit, assign_database)
    unanswerable = tuple((example.uid, "has no answer") for example in benchmark.examples if not example.answerable)
    usable = tuple(example for example in benchmark.examples if example.answerable)
    return benchmark._replace(examples=usable, skipped=benchmark.skipped + unanswerable)


def check_split(root: str | Path, split: str) -> None:
    """Check that a split exists in a known format, without reading its questions; raises InputError as `load_split`."""
    if _is_missing_folder(Path(root)):
        load_folder(Path(root) / split)  # raises the error that names the expected files
    elif not (Path(root) / split / "questions.jsonl").is_file():
        locate_benchmark(Path(root), split)


def _is_missing_folder(path: Path) -> bool:
    """Return whether a path does not exist and is not the name of a missing file of questions."""
    return not path.exists() and not is_question_file(path)


def make_unique_name(name: str, used: Container[str]) -> str:
    """Return a set's unique name for metrics: `name`, with the smallest free suffix from 2 if it is taken."""
    return next(candidate for candidate in chain([name], (f"{name}_{n}" for n in count(2))) if candidate not in used)


def _load(form: Format, folder: Path, split: str, limit: int, assign_database: AssignDatabase | None) -> Benchmark:
    notes: list[str] = []
    loaded = form.read(folder, split, notes)
    # The questions of a huge set are read lazily, once, by `gather`, so nothing here may iterate over them.
    if not loaded.is_huge:
        loaded = loaded._replace(items=mark_empty_ids(loaded.items))
    if assign_database is not None and form.name in USER_FORMATS:
        set_database = prefer_local_files(assign_database, loaded.databases, prefers_files=form is not OWN)
        items = map(set_database, loaded.items)
        loaded = loaded._replace(items=items if loaded.is_huge else [*items])
    order = () if loaded.is_huge else tuple(str(item.uid) for item in loaded.items)
    lines = {} if loaded.is_huge else {str(item.uid): item.line for item in loaded.items if item.line}
    examples, skipped = gather(loaded, notes, limit)
    # A loader may override its format's rule. That of a plain set depends on whether its databases have variants.
    rule = loaded.rule or ("test_suite" if form is PLAIN and any(example.suite for example in examples) else form.rule)
    return Benchmark(
        name=form.name,
        rule=rule,
        examples=examples,
        skipped=skipped,
        notes=tuple(notes),
        submission=form.submission,
        prepare=loaded.prepare,
        order=order,
        lines=lines,
    )
