"""The plain folder layout: `questions.jsonl` and `databases/<db_id>/<db_id>.sqlite`.

Generated and converted sets have it. A line that is not a JSON object is an error, because the file is damaged; an
unusable question is skipped with a reason.
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
    """Read a set: every question with its id, with an error for missing or empty fields and an unknown dialect.

    `evidence`, `difficulty`, `demonstration`, `reasoning`, `dialect`, `other_sql` (a list of equivalent golds) and
    `prompt` (the messages of a released row) are optional. With `db`, a URL, a question is about a database of
    another engine; a file in `databases/` then only provides the schema and values in prompts, in place of a
    sample. Raises InputError for a missing folder or file and a malformed line (`file:line: message`).
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (expected questions.jsonl and databases/ in it)")
    lines = plain_lines(folder, split)
    if not lines.path.is_file():
        raise InputError(f"{lines.path}: no such file")
    items = [lines.item(record, number) for number, record in records(lines.path)]
    return LoadedQuestions(items, lines.databases, str(lines.path))


def plain_lines(folder: Path, split: str) -> RecordFile:
    """Return the location of a set's records, for sets that are read by index."""
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
    # The file shows the database of the URL; without it, the caller takes a sample.
    is_shown = bool(url and databases.path(optional("db_id")))
    is_elsewhere = not is_shown and (bool(url) or dialect in ("postgresql", "duckdb"))
    return PublishedQuestion(
        uid or f"line {number}",
        optional("db_id"),
        optional("question"),
        optional("sql"),
        optional("evidence"),
        text(record.get("difficulty")),
        error=error,
        more={
            **{name: optional(name) for name in names},
            "dialect": "sqlite" if is_elsewhere else dialect,
            "engine_url": url if is_shown else "",
            "other_golds": text_list(record, "other_sql"),
            "messages": messages_of(record),
        },
        fields=tuple(record),
        line=f"{path}:{number}",
        url="" if is_shown else url,
        dialect=dialect if is_elsewhere and optional("dialect") else "",
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
    "plain",
    "bird",
    "jsonl",
    "questions.jsonl, databases/<db_id>/<db_id>.sqlite",
    lambda folder: (folder / "questions.jsonl").is_file(),
    read_plain,
)
