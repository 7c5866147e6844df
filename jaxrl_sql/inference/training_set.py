"""Load the questions that a configuration names.

Golds (reference queries) are not run here; `questions.py` later skips questions whose gold is unusable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl_sql.config import DatabasesConfig, DataConfig
from jaxrl_sql.databases.question_files import DatabaseResolver, load_split
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.text2sql.benchmarks import Benchmark, load_folder
from jaxrl_sql.text2sql.prompts.dialects import DialectAssigner, check_translation_support, with_server_urls
from jaxrl_sql.text2sql.prompts.shots import ShotSelector
from jaxrl_sql.text2sql.question_sets.filters import keep_only
from jaxrl_sql.text2sql.question_sets.hiding import hide_in_benchmark, refuse_hide
from jaxrl_sql.text2sql.question_sets.stream import StreamedQuestions, open_stream
from jaxrl_sql.types import Example, InputError

TRANSLATED = "translated"
"""Value of `executor.databases.<dialect>` instead of a folder of copies on that engine.

Answers in the dialect are then translated, and run on the question's SQLite database.
"""


def is_generated(data: DataConfig) -> bool:
    """Return whether the folder of generated data has files."""
    return Path(data.dir).is_dir() and any(Path(data.dir).iterdir())


def make_synthetic(data: DataConfig, on_progress: Callable[[int], None] = lambda _: None) -> bool:
    """Generate `data.dir` if its source is `synth`; return True if it existed already, or if the source is another.

    `on_progress` gets the number of generated databases.
    """
    return data.source != "synth" or generate(Path(data.dir), SynthSpec(seed=data.seed), on_progress).was_present


def databases_to_generate(data: DataConfig) -> int:
    """Return the number of databases that `make_synthetic` generates."""
    return 0 if data.source != "synth" or is_generated(data) else SynthSpec(seed=data.seed).databases


def training_questions(data: DataConfig, databases: DatabasesConfig) -> Benchmark:
    """Load `data.train`, after generating it if it is synthetic.

    `data.select.include_ids` and `data.select.limit_train` choose questions. `data.dialects` sets the shares of
    questions that ask for SQL in other dialects, which runs on copies of the databases (`databases`). Raises InputError
    as `load_split` does, and for unknown ids.
    """
    return _with_dialects(data, databases, sqlite_questions(data, databases))


def process_caller_questions(data: DataConfig, caller_questions: Benchmark, databases: DatabasesConfig) -> Benchmark:
    """Return training questions that the caller of the Python API passed, processed as in `training_questions`."""
    select = data.select
    questions = configure_questions(data, caller_questions, 0 if select.include_ids else select.limit_train, databases)
    if select.include_ids:
        questions = questions._replace(
            examples=tuple(keep_only(questions.examples, select.include_ids, select.limit_train))
        )
    return _with_dialects(data, databases, questions)


def _with_dialects(data: DataConfig, databases: DatabasesConfig, questions: Benchmark) -> Benchmark:
    assign_dialect = _make_dialect_assigner(data, databases)
    return questions._replace(examples=tuple(map(assign_dialect, questions.examples))) if assign_dialect else questions


def _make_dialect_assigner(data: DataConfig, databases: DatabasesConfig) -> DialectAssigner | None:
    """Return a function that assigns dialects to questions; None if all are in SQLite's."""
    shares, addresses = dataclasses.asdict(data.dialects), dataclasses.asdict(databases)
    other_databases = {
        dialect: addresses[dialect] for dialect, share in shares.items() if share and dialect != "sqlite"
    }
    if data.hide and (
        engine := next((dialect for dialect, address in other_databases.items() if address != TRANSLATED), "")
    ):
        refuse_hide(data.hide, f"data.dialects.{engine} needs another engine")
    copies = {
        dialect: _load_copies(dialect, address) for dialect, address in other_databases.items() if address != TRANSLATED
    }
    return DialectAssigner(shares, copies) if other_databases else None


def _load_copies(dialect: str, address: str) -> tuple[Example, ...]:
    """Load the questions on an engine's copies; raises InputError for a folder of another engine or without copies."""
    key = f"executor.databases.{dialect}={address}"
    if not (Path(address) / "questions.jsonl").is_file():
        raise InputError(f"{key}: it has no questions.jsonl: name the --out of `jaxrl-sql data copy … --questions SET`")
    examples = load_folder(address).examples
    if mismatched := next(
        (example for example in examples if example.dialect != dialect or not example.engine_url), None
    ):
        raise InputError(f"{key}: {mismatched.uid} is for {mismatched.dialect}: name copies on {dialect}")
    return examples


def load_split_questions(data: DataConfig, split: str, limit: int, databases: DatabasesConfig | None) -> Benchmark:
    """Load a split as `load_split` does, with the servers of `databases` for other engines (None: unset)."""
    return configure_questions(data, load_split(data.dir, split, limit, data.database), 0, databases)


def configure_questions(
    data: DataConfig, questions: Benchmark, limit: int, databases: DatabasesConfig | None
) -> Benchmark:
    """Return the first `limit` questions of a set (0: all) with their servers, and with `data.hide` hidden.

    `databases` as in `load_split_questions`.
    """
    questions = questions._replace(examples=questions.examples[: limit or None])
    if databases is not None:
        questions = questions._replace(examples=with_server_urls(questions.examples, dataclasses.asdict(databases)))
    return hide_in_benchmark(questions, data.hide)


def sqlite_questions(data: DataConfig, databases: DatabasesConfig | None) -> Benchmark:
    """Load `data.train` as `training_questions` does, but without the assignment of other dialects."""
    make_synthetic(data)
    select = data.select
    if select.include_ids and (streamed := _open_large_set(data)):
        selected = tuple(keep_only(streamed.usable(), select.include_ids, select.limit_train))
        questions = hide_in_benchmark(Benchmark(data.train, "", selected), data.hide)
    else:
        questions = load_split_questions(data, data.train, 0 if select.include_ids else select.limit_train, databases)
        if select.include_ids:
            questions = questions._replace(
                examples=tuple(keep_only(questions.examples, select.include_ids, select.limit_train))
            )
    return questions


def open_question_stream(
    data: DataConfig, databases: DatabasesConfig, sqlite_version: str = ""
) -> StreamedQuestions | None:
    """Open `data.train` for streaming if more than `data.stream_above` of its questions are used, else return None.

    With `data.select.include_ids` the return value is None, too. The first opening indexes the file, which takes a
    minute for ten gigabytes. With `sqlite_version`, a question whose answers are translated is refused when it is read.
    """
    streamed = _open_large_set(data) if _is_streamed(data) else None
    if streamed is not None and data.hide:
        raise InputError(
            f"data.hide=[{', '.join(data.hide)}] needs all golds, and {data.dir}/{data.train} is streamed: set "
            "data.select.limit_train, data.select.include_ids or data.stream_above=0"
        )
    assign_dialect = _make_dialect_assigner(data, databases)

    def prepare(example: Example) -> Example:
        example = assign_dialect(example) if assign_dialect else example
        check_translation_support([example], sqlite_version)
        return example

    if streamed is None:
        return None
    return streamed.with_transform(prepare if sqlite_version else assign_dialect, data.select.limit_train)


def _is_streamed(data: DataConfig) -> bool:
    """Return whether the settings allow streaming, if the set is large."""
    return not data.select.include_ids and not 0 < data.select.limit_train <= data.stream_above


def choose_shots(data: DataConfig) -> Callable[[Example], Sequence[Example]] | None:
    """Return a function that chooses `data.shots` few-shot examples for a question; None if `data.shots` is 0.

    Candidates are the questions of `data.train` by `data.select.include_ids` and `data.select.limit_train`; their golds
    are not run. Raises InputError if the set is missing or too large for memory.
    """
    if not data.shots:
        return None
    if not Path(data.dir).exists():
        raise InputError(
            f"data.shots={data.shots} needs the training set, and {data.dir} does not exist: set data.source, data.dir "
            "and data.train"
        )
    if _is_streamed(data) and _open_large_set(data) is not None:
        raise InputError(
            f"data.shots={data.shots} holds the training questions in memory, and {data.dir}/{data.train} has over "
            f"data.stream_above={data.stream_above}: set data.select.limit_train or data.select.include_ids"
        )
    return ShotSelector(sqlite_questions(data, None).examples, data.shots).choose


def _open_large_set(data: DataConfig) -> StreamedQuestions | None:
    """Open `data.train` if it has more than `data.stream_above` questions, else return None."""
    if data.source == "synth" or not data.stream_above or not Path(data.dir).exists():
        return None
    return open_stream(data.dir, data.train, data.stream_above, DatabaseResolver(data.database))
