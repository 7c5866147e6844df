"""Generate the synthetic data set: databases, questions, tokenizer, and a summary in `synth.json`.

Each database has its own random generators, seeded by (seed, split, db_id), and is independent of the others.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import math
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from jaxrl_sql.datagen.reasoning import reason
from jaxrl_sql.datagen.synth.databases import generate_database
from jaxrl_sql.datagen.synth.extra_columns import add_demonstrations
from jaxrl_sql.datagen.synth.grammar.naming import rename
from jaxrl_sql.datagen.synth.notation import SEEN_DOMAINS, UNSEEN_DOMAINS
from jaxrl_sql.datagen.synth.questions import ask_in_mysql, generate_questions, run_on
from jaxrl_sql.datagen.synth.spec import (
    DIFFICULTIES,
    SPLITS,
    STYLES,
    VERSION,
    Domain,
    SynthDatabase,
    SynthQuestion,
    SynthReport,
    SynthSpec,
)
from jaxrl_sql.datagen.synth.store import write_database
from jaxrl_sql.datagen.synth.tokenizer import train_tokenizer
from jaxrl_sql.runtime.progress import ProgressCallback
from jaxrl_sql.runtime.tokenizer_files import save_tokenizer
from jaxrl_sql.text2sql.schema.render import compact
from jaxrl_sql.types import InputError, Tokenizer

# Number of questions tokenized at once.
_CHUNK = 1024
# How often each schema is in the training texts of the tokenizer, because every prompt contains its schema.
_SCHEMA_COPIES = 8
# Counts in `synth.json`, in addition to spec and version.
_COUNTED = ("questions", "databases", "grades", "tokens")


def check_spec(spec: SynthSpec) -> None:
    """Raise InputError for an invalid value."""
    for name in ("train_dbs", "dev_dbs", "unseen_dbs", "train_questions", "dev_questions"):
        if getattr(spec, name) < 1:
            raise InputError(f"synth: {name} must be at least 1, not {getattr(spec, name)}")
    for name in ("decorated_share", "extra_columns_share", "mysql_share"):
        if not 0 <= getattr(spec, name) <= 1:
            raise InputError(f"synth: {name} must lie in [0, 1], not {getattr(spec, name)}")
    _check_choices(spec)
    if spec.vocab_size < 300:
        raise InputError(f"synth: vocab_size must be at least 300 (bytes and special tokens), not {spec.vocab_size}")


def _check_choices(spec: SynthSpec) -> None:
    unknown = [split for split in spec.splits if split not in SPLITS]
    if unknown or not spec.splits or len(set(spec.splits)) < len(spec.splits):
        raise InputError(f"synth: splits {', '.join(spec.splits) or '(none)'} must be some of {', '.join(SPLITS)}")
    if spec.rows < 0 or 0 < spec.rows < 8:
        raise InputError(f"synth: rows must be at least 8 per table, or 0 for the default, not {spec.rows}")
    if spec.style not in STYLES:
        raise InputError(f"synth: style {spec.style!r} must be one of {', '.join(STYLES)}")
    shares = list(spec.shares)
    if any(share < 0 or not math.isfinite(share) for share in shares) or not sum(shares):
        raise InputError(
            f"synth: the shares of {', '.join(DIFFICULTIES)} must be 0 or more and not all 0, not {shares}"
        )


def _plan(spec: SynthSpec, split: str) -> Iterator[tuple[str, Domain, bool]]:
    """Yield (db_id, domain, is_decorated) of every database of a split; domains take turns."""
    sizes = {"train": spec.train_dbs, "dev": spec.dev_dbs, "dev_unseen": spec.unseen_dbs}
    domains = UNSEEN_DOMAINS if split == "dev_unseen" else SEEN_DOMAINS
    # The databases of `dev` continue the turns where the training databases stopped.
    offset = spec.train_dbs if split == "dev" else 0
    for index in range(sizes[split]):
        domain = domains[(index + offset) % len(domains)]
        # True for the share of all indices, evenly spread: where the share's multiple reaches the next integer.
        is_selected = int((index + 1) * spec.decorated_share) > int(index * spec.decorated_share)
        is_decorated = split == "train" and is_selected and spec.style == "templates"
        yield f"{domain.name}_{split}_{index:03d}", domain, is_decorated


def _generate_split(out: Path, spec: SynthSpec, split: str) -> Iterator[tuple[SynthDatabase, list[SynthQuestion]]]:
    """Generate the databases of a split one after another, with one in memory at a time."""
    count = spec.train_questions if split == "train" else spec.dev_questions
    for db_id, domain, is_decorated in _plan(spec, split):
        seed = f"{spec.seed}/{split}/{db_id}"
        database = generate_database(random.Random(f"{seed}/rows"), domain, db_id, is_decorated, spec.rows)
        if spec.style == "grammar":
            database = rename(random.Random(f"{seed}/names"), database)
        path = out / split / "databases" / db_id / f"{db_id}.sqlite"
        write_database(database, path)
        with closing(sqlite3.connect(path)) as connection:
            run = run_on(connection)
            questions = generate_questions(
                random.Random(f"{seed}/questions"), database, run, count, spec.mix, spec.style
            )
            if spec.mysql_share:
                questions = ask_in_mysql(random.Random(f"{seed}/dialects"), questions, run, spec.mysql_share)
        if split == "train" and spec.extra_columns_share:
            rng = random.Random(f"{seed}/demonstrations")
            questions = add_demonstrations(rng, questions, spec.extra_columns_share)
        yield database, questions


@dataclasses.dataclass
class _SplitStats:
    """Summary of a split: (schema as text, number of questions) per database, and the questions by difficulty."""

    schemas: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    grades: Counter[str] = dataclasses.field(default_factory=Counter)


def _write_split(out: Path, spec: SynthSpec, split: str, advance: Callable[[], None]) -> _SplitStats:
    """Generate a split and write it database by database; `advance` is called after each database."""
    stats = _SplitStats()
    (out / split).mkdir()
    with (out / split / "questions.jsonl").open("w", encoding="utf-8", newline="\n") as stream:
        for database, questions in _generate_split(out, spec, split):
            stats.schemas.append((compact(database.schema), len(questions)))
            for index, question in enumerate(questions):
                stats.grades[question.template_difficulty] += 1
                line = {
                    "id": f"{database.db_id}_{index:03d}",
                    "db_id": database.db_id,
                    "question": question.text,
                    "evidence": "",
                    "sql": question.sql,
                    "split": split,
                    "difficulty": question.difficulty,
                }
                if question.demonstration:
                    line["demonstration"] = question.demonstration
                if question.dialect != "sqlite":
                    line["dialect"] = question.dialect
                if split == "train":
                    line["reasoning"] = reason(question.demonstration or question.sql)
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            advance()
    return stats


def _read_questions(path: Path) -> Iterator[tuple[str, str]]:
    """Read the question and the SQL of each line."""
    with path.open(encoding="utf-8", newline="\n") as stream:
        for text in stream:
            line = json.loads(text)
            yield line["question"], line["sql"]


def _tokenizer_texts(out: Path, stats: _SplitStats) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on: schemas, questions and SQL of the training split."""
    pairs = _read_questions(out / "train/questions.jsonl")
    for schema, num_questions in stats.schemas:
        yield from (schema for _ in range(_SCHEMA_COPIES))
        for question, sql in itertools.islice(pairs, num_questions):
            yield question
            yield sql


def _lengths(tokenizer: Tokenizer, path: Path, stats: _SplitStats) -> dict[str, float]:
    """Return the mean and the maximum number of tokens of schemas, questions and SQL, such as `sql_mean`."""
    sizes: dict[str, list[int]] = {"schema": [], "question": [], "sql": []}

    def measure(names: Sequence[str], texts: Sequence[str]) -> None:
        for name, ids in zip(itertools.cycle(names), tokenizer(texts)["input_ids"], strict=False):
            sizes[name].append(len(ids))

    measure(("schema",), [schema for schema, _ in stats.schemas])
    pairs = _read_questions(path)
    while chunk := [text for pair in itertools.islice(pairs, _CHUNK) for text in pair]:
        measure(("question", "sql"), chunk)
    means = {f"{name}_mean": round(sum(size) / max(len(size), 1), 1) for name, size in sizes.items()}
    return means | {f"{name}_max": float(max(size, default=0)) for name, size in sizes.items()}


def find_generated(out: Path, spec: SynthSpec) -> SynthReport | None:
    """Return the report of data in the folder; None if the folder is empty or missing.

    Raises InputError if the folder holds data of another spec or version, or other files.
    """
    if not out.exists() or not any(out.iterdir()):
        return None
    if not (out / "synth.json").exists():
        raise InputError(f"synth: {out} is not empty and holds no synth.json; choose another folder")
    expected = {**spec.record(), "version": VERSION}
    try:
        record = json.loads((out / "synth.json").read_text(encoding="utf-8"))
        present = {**record["spec"], "version": record["version"]}
        differ = [f"{name}={present[name]}, not {value}" for name, value in expected.items() if present[name] != value]
        questions, databases, grades, tokens = (record[name] for name in _COUNTED)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"synth: {out}: its synth.json is invalid; choose another folder, or remove this one"
        ) from error
    if differ:
        raise InputError(
            f"synth: {out} holds other data: {'; '.join(differ)}; choose another folder (data.dir, --out), or remove it"
        )
    return SynthReport(spec, questions, databases, grades, tokens, was_present=True)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that only one process generates data there."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def generate(out: Path, spec: SynthSpec, on_progress: ProgressCallback = lambda _: None) -> SynthReport:
    """Write the data set to `out`, or do nothing if it exists. `on_progress` gets the number of databases written.

    The data is generated in a folder next to `out`, which is renamed once complete. Existing files are never changed.
    Raises InputError for an invalid spec or folder.
    """
    check_spec(spec)
    if report := find_generated(out, spec):
        return report
    target = out.resolve()
    with _lock_folder(target.parent):
        # Another process may have generated the data before this one got the lock.
        if report := find_generated(out, spec):
            return report
        scratch = target.with_name(f"{target.name}.unfinished")
        shutil.rmtree(scratch, ignore_errors=True)  # of an interrupted process
        scratch.mkdir()
        report = _write_dataset(scratch, spec, on_progress)
        scratch.replace(target)
    return report


def _write_dataset(out: Path, spec: SynthSpec, on_progress: ProgressCallback) -> SynthReport:
    """Write the data set to an empty folder."""
    written = itertools.count(1)
    stats_by_split = {
        split: _write_split(out, spec, split, lambda: on_progress(next(written)))
        for split in SPLITS
        if split in spec.splits
    }
    tokens: dict[str, dict[str, float]] = {}
    if "train" in stats_by_split:
        tokenizer = train_tokenizer(_tokenizer_texts(out, stats_by_split["train"]), spec.vocab_size)
        save_tokenizer(tokenizer, out / "tokenizer")
        tokens = {
            split: _lengths(tokenizer, out / split / "questions.jsonl", stats)
            for split, stats in stats_by_split.items()
        }
    report = SynthReport(
        spec=spec,
        questions={split: sum(count for _, count in stats.schemas) for split, stats in stats_by_split.items()},
        databases={split: len(stats.schemas) for split, stats in stats_by_split.items()},
        grades=dict(sum((stats.grades for stats in stats_by_split.values()), Counter())),
        tokens=tokens,
        was_present=False,
    )
    record = {
        "spec": spec.record(),
        **{name: getattr(report, name) for name in _COUNTED},
    }
    (out / "synth.json").write_text(json.dumps({"version": VERSION, **record}, indent=1) + "\n", encoding="utf-8")
    return report
