"""Generate questions about a user's SQLite files, and write them as a training folder.

The executor runs every gold within its limits. A gold is accepted if it completes with an informative result, and with
an unambiguous order if the question asks for one. The databases are copied as a consistent snapshot, or linked.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.databases.copy_database import copy_database, copy_descriptions, write_natural_names
from jaxrl_sql.databases.sample.external import describe_samples, open_external
from jaxrl_sql.databases.sample.options import is_external, refuse_leave_out
from jaxrl_sql.datagen.reasoning import reason
from jaxrl_sql.datagen.synth.dataset import check_spec
from jaxrl_sql.datagen.synth.on_server import GoldTranslator, make_gold_translator
from jaxrl_sql.datagen.synth.questions import QuestionGenerator, ask_in_mysql, difficulty_quota
from jaxrl_sql.datagen.synth.read_database import read_database
from jaxrl_sql.datagen.synth.spec import RunSql, SynthQuestion, SynthSpec
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.executor import Executor, Limits, make_executor
from jaxrl_sql.types import InputError

# Counting the rows of a large table needs a higher limit than golds have.
_READ_TIMEOUT_MS = 60_000
# Limit of SQLite instructions per query: about 3 s, enough for a table of millions of rows.
_MAX_INSTRUCTIONS = 300_000_000


class FileQuestions(NamedTuple):
    """The questions of a file, the number of rejected candidates by reason, and omitted parts with the reason."""

    db_id: str
    questions: tuple[SynthQuestion, ...]
    rejected: Counter[str]
    left_out: tuple[tuple[str, str], ...]


class SqlRunners(NamedTuple):
    """Functions that run SQL on a file: `read` to read the database, `gold` to run golds within the limits of training.

    `translate` translates golds for the server if the file is a sample of a server's database.
    """

    read: RunSql
    gold: RunSql
    translate: GoldTranslator | None = None


def questions_of_file(path: Path, runners: SqlRunners, count: int, spec: SynthSpec) -> FileQuestions:
    """Generate up to `count` distinct questions about a file.

    If a difficulty yields fewer questions than its share, the others compensate. Raises InputError if the file is not a
    database or no question can be generated.
    """
    db_id = path.stem
    read = read_database(path, db_id, runners.read)
    if not read.joined.tables:
        reasons = Counter(reason for _, reason in read.left_out)
        raise InputError(f"{path}: nothing to ask about: {_most_common(reasons) or 'it holds no tables and no views'}")
    rng = random.Random(f"{spec.seed}/own/{db_id}")
    # `read.joined` has also the foreign keys with dangling references. Only templates that join tables use them,
    # because a join drops rows without a parent; other templates would count them.
    generator = QuestionGenerator(rng, runners.gold, read.whole, read.joined, is_strict=True, style=spec.style)
    questions = generator.questions
    # The difficulties that yielded all requested questions so far.
    productive = [
        difficulty
        for difficulty, quota in difficulty_quota(count, spec.mix).items()
        if generator.generate(difficulty, quota) == quota
    ]
    while len(questions) < count and productive:
        share = -(-(count - len(questions)) // len(productive))  # rounded up
        productive = [
            difficulty
            for difficulty in productive
            if (n := min(share, count - len(questions))) and generator.generate(difficulty, n) == n
        ]
    if not questions:
        raise InputError(f"{path}: no question could be generated: {_most_common(generator.rejected)}")
    rng.shuffle(questions)
    if spec.mysql_share:
        names = {column.name for table in read.joined.tables for column in table.columns}
        questions = ask_in_mysql(rng, questions, runners.gold, spec.mysql_share, names)
    return FileQuestions(db_id, tuple(questions), generator.rejected, read.left_out)


def _most_common(reasons: Counter[str]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(3))


def generate_for_databases(
    databases: Sequence[str],
    out: Path,
    count: int,
    spec: SynthSpec,
    leave_out: Sequence[str] = (),
    is_linked: bool = False,
    note: Callable[[str], object] = lambda _: None,
) -> list[FileQuestions]:
    """Generate up to `count` questions per SQLite file or server URL, and write them with `generate_for_files`.

    A server's database is sampled into a SQLite file first, from which the questions are generated. `leave_out` lists
    its tables and columns to omit, as `table` or `table.column`; `note` is called with messages about samples.
    """
    check_spec(spec)
    for db in databases:
        if not is_external(db):
            refuse_leave_out(leave_out, db)
    opened = [open_external(db, None, leave_out, note) if is_external(db) else None for db in databases]
    for line in describe_samples([database for database in opened if database]):
        note(line)
    paths = [database.sample_path if database else Path(db) for db, database in zip(databases, opened, strict=True)]
    with make_executor(ExecutorConfig(vm_steps=_MAX_INSTRUCTIONS)) as executor:
        limits = Limits(timeout_ms=_READ_TIMEOUT_MS)
        runners = {
            path: SqlRunners(
                _run_on(executor, path, limits),
                _run_on(executor, path),
                make_gold_translator(executor, database) if database else None,
            )
            for path, database in zip(paths, opened, strict=True)
        }
        return generate_for_files(paths, out, runners, count, spec, is_linked)


def _run_on(executor: Executor, path: Path, limits: Limits | None = None) -> RunSql:
    """Return a function that runs SQL on a file, by default within the executor's limits."""

    def run(sql: str) -> Sequence[tuple[object, ...]] | None:
        outcome = executor.execute(path, sql, limits=limits)
        return outcome.rows if outcome.status == "ok" else None

    return run


def generate_for_files(
    paths: Sequence[Path],
    out: Path,
    runners: Mapping[Path, SqlRunners],
    count: int,
    spec: SynthSpec,
    is_linked: bool = False,
) -> list[FileQuestions]:
    """Write `questions.jsonl` and `databases/` of files to a new folder; return the written questions.

    Raises InputError for an unusable file or folder, and if no gold of a file has a result on its server.
    """
    stems = Counter(path.stem for path in paths)
    if twice := [stem for stem, times in stems.items() if times > 1]:
        raise InputError(f"{twice[0]}: two files have this name; a database is identified by its file name")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder; choose another")
    generated = [questions_of_file(path, runners[path], count, spec) for path in paths]
    accepted = [_accept(file, path, runners[path].translate) for path, file in zip(paths, generated, strict=True)]
    for path, file in zip(paths, generated, strict=True):
        target = out / "databases" / file.db_id / f"{file.db_id}.sqlite"
        copy_database(path, target, is_linked)
        copy_descriptions(path, target)
    write_natural_names(out, [(file.db_id, path) for path, file in zip(paths, generated, strict=True)])
    with (out / "questions.jsonl").open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(line, ensure_ascii=False) + "\n" for _, lines in accepted for line in lines)
    return [file for file, _ in accepted]


def _accept(
    generated: FileQuestions, path: Path, translate: GoldTranslator | None
) -> tuple[FileQuestions, list[dict[str, str]]]:
    """Return the questions with an informative result on the server, and their records; the others are rejected.

    Raises InputError if there is none.
    """
    questions, lines, reasons = [], [], Counter[str]()
    for index, question in enumerate(generated.questions):
        server_fields = translate(question.sql) if translate else {}
        if isinstance(server_fields, str):
            reasons[server_fields] += 1
        else:
            questions.append(question)
            lines.append(_line(generated.db_id, index, question) | server_fields)
    if not questions:
        raise InputError(
            f"{generated.db_id}: 0 of {quantity(len(generated.questions), 'questions')} written, as every gold "
            f"{_most_common(reasons)}: check that the role may read the tables by these names (in PostgreSQL, ALTER "
            f"ROLE … SET search_path names their schemas), and delete an outdated sample: {path}"
        )
    return generated._replace(questions=tuple(questions), rejected=generated.rejected + reasons), lines


def _line(db_id: str, index: int, question: SynthQuestion) -> dict[str, str]:
    line = {"id": f"{db_id}_{index:04d}", "db_id": db_id, "question": question.text, "evidence": ""}
    line |= {"sql": question.sql, "difficulty": question.difficulty, "reasoning": reason(question.sql)}
    return line | ({"dialect": question.dialect} if question.dialect != "sqlite" else {})
