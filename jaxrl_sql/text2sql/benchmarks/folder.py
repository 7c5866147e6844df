"""The plain folder layout: `questions.jsonl` and `databases/<db_id>/<db_id>.sqlite`.

The sets that `data synth` and `data prepare` write have it, for example. A line that is not a JSON object is
an error, because the file is damaged; an unusable question is skipped with a reason.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.databases import Databases, suites_of
from jaxrl_sql.text2sql.benchmarks.files import Notes
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    RecordFile,
    id_of,
    missing_split_error,
    text_list,
)
from jaxrl_sql.text2sql.benchmarks.released import messages_of
from jaxrl_sql.text2sql.env.address import url_with_password, without_password
from jaxrl_sql.text2sql.files.jsonl import records, text
from jaxrl_sql.types import DIALECTS, Example, InputError, Record


def read_plain(folder: Path, split: str, _notes: Notes) -> LoadedQuestions:
    """Read a set; a question with missing fields or an unknown dialect has an `error`.

    `id`, `db_id`, `question` and `sql` are required. `evidence`, `difficulty`, `demonstration`, `reasoning`, `dialect`,
    `other_sql` (a list of equivalent golds) and `prompt` (the chat messages of a row that another system published) are
    optional. With `db`, a URL, a question is about a database of another engine. A file in `databases/` then only
    provides the schema and values for prompts; without it, the caller samples the engine's database. Raises InputError
    for a missing folder or file and a malformed line (`file:line: message`).
    """
    if not folder.parent.is_dir():
        raise InputError(f"{folder.parent}: no such folder")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (expected questions.jsonl and databases/ in it)")
    record_file = locate_plain_records(folder, split)
    if not record_file.path.is_file():
        raise InputError(f"{record_file.path}: no such file")
    items = [record_file.convert(record, number) for number, record in records(record_file.path)]
    return LoadedQuestions(items, record_file.databases, str(record_file.path))


def locate_plain_records(folder: Path, split: str) -> RecordFile:
    """Return the file of a set's records, with its converter and databases; raises InputError if a split is named."""
    if split:
        raise missing_split_error(folder, split, [])
    path = folder / "questions.jsonl"
    databases = Databases([folder / "databases"], suites_of(folder))
    return RecordFile(path, partial(_item, path, databases), databases)


def _item(path: Path, databases: Databases, record: Record, number: int) -> PublishedQuestion:
    def optional(name: str) -> str:
        value = record.get(name)
        return value.strip() if isinstance(value, str) else ""

    names = ("demonstration", "reasoning")
    uid = id_of(record, f"{path}: line {number}", "id")
    error = _unusable_fields(record, uid)
    dialect = optional("dialect") or "sqlite"
    url = "" if error or not optional("db") else url_with_password(optional("db"))
    # A SQLite file next to the questions has the schema and rows of the URL's database, for prompts.
    has_file = bool(url and databases.path(optional("db_id")))
    # The caller must set such a database. MySQL without a URL needs none: its answers are translated to SQLite.
    needs_database = not has_file and (bool(url) or dialect in ("postgresql", "duckdb"))
    return PublishedQuestion(
        uid=uid or f"line {number}",
        db_id=optional("db_id"),
        question=optional("question"),
        sql=optional("sql"),
        evidence=optional("evidence"),
        difficulty=text(record.get("difficulty")),
        error=error,
        more={
            **{name: optional(name) for name in names},
            "dialect": "sqlite" if needs_database else dialect,
            "engine_url": url if has_file else "",
            "other_golds": text_list(record, "other_sql"),
            "messages": messages_of(record),
        },
        fields=tuple(record),
        line=f"{path}:{number}",
        url="" if has_file else url,
        dialect=dialect if needs_database and optional("dialect") else "",
    )


def plain_record(example: Example) -> Record:
    """Return an example's line of `questions.jsonl`, without passwords."""
    line: Record = {
        "id": example.uid, "db_id": example.db_id, "question": example.question, "evidence": example.evidence,
        "sql": example.gold_sql,
    }  # fmt: skip
    more = {
        "difficulty": example.difficulty,
        "demonstration": example.demonstration,
        "reasoning": example.reasoning,
        "dialect": "" if example.dialect == "sqlite" else example.dialect,
        "db": without_password(example.engine_url),
        "other_sql": list(example.other_golds),
        "prompt": [{"role": role, "content": text} for role, text in example.messages],
    }
    return line | {name: value for name, value in more.items() if value}


def _unusable_fields(record: Record, uid: str) -> str:
    """Return an error for missing required fields or an unknown dialect, or ""."""
    missing = [] if uid else ["id"]
    for name in ("db_id", "question", "sql"):
        value = record.get(name)
        if not isinstance(value, str) or not value.strip():
            missing.append(name)
    if missing:
        return f"no {', '.join(missing)}"
    dialect = record.get("dialect") or "sqlite"
    if dialect not in DIALECTS:
        return f"dialect {dialect!r} is not one of {', '.join(DIALECTS)}"
    return ""


PLAIN = Format(
    name="plain",
    rule="bird",
    submission="jsonl",
    description="questions.jsonl, databases/<db_id>/<db_id>.sqlite",
    matches=lambda folder: (folder / "questions.jsonl").is_file(),
    read=read_plain,
)
