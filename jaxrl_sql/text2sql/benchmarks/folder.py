"""The one folder layout that every set may have: `questions.jsonl` and `databases/<db_id>/<db_id>.sqlite`.

Generated sets have it, and Spider and BIRD where they were brought into it. A line that is not a JSON object stops the
load, because then the file is not what it claims to be; a single question that cannot be used is skipped with a reason.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.databases import Databases, suites_of
from jaxrl_sql.text2sql.benchmarks.files import Notes
from jaxrl_sql.text2sql.benchmarks.gather import Format, Found, Item, Lines, id_of, no_split, said_all
from jaxrl_sql.text2sql.env.address import open_url, told_url
from jaxrl_sql.text2sql.files.jsonl import records, text
from jaxrl_sql.types import DIALECTS, Example, InputError, Record


def read_plain(folder: Path, split: str, _notes: Notes) -> Found:
    """Read a set: every question with its id, and a fault for missing or empty fields and a dialect that is none.

    `evidence`, `difficulty`, `demonstration`, `reasoning`, `dialect` and `other_sql`, a list of golds that are as
    right, may be left out. With `db`, a URL, a question is about a database of another engine, which the file in
    `databases/` stands in for where it is shown. Raises InputError for a missing folder or file and a malformed line
    (`file:line: what`).
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (expected questions.jsonl and databases/ in it)")
    lines = plain_lines(folder, split)
    if not lines.path.is_file():
        raise InputError(f"{lines.path}: no such file")
    items = [lines.item(record, number) for number, record in records(lines.path)]
    return Found(items, lines.databases, str(lines.path))


def plain_lines(folder: Path, split: str) -> Lines:
    """Return where a set's records are, for sets that are read by number."""
    if split:
        raise no_split(folder, split, [])
    path = folder / "questions.jsonl"
    return Lines(path, partial(_item, path), Databases([folder / "databases"], suites_of(folder)))


def _item(path: Path, record: Record, number: int) -> Item:
    def optional(name: str) -> str:
        value = record.get(name)
        return value.strip() if isinstance(value, str) else ""

    names = ("demonstration", "reasoning")
    uid = id_of(record, f"{path}: line {number}", "id")
    fault = _unusable_fields(record, uid)
    return Item(
        uid or f"line {number}",
        optional("db_id"),
        optional("question"),
        optional("sql"),
        optional("evidence"),
        text(record.get("difficulty")),
        fault=fault,
        more={
            **{name: optional(name) for name in names},
            "dialect": optional("dialect") or "sqlite",
            "engine_url": "" if fault else open_url(optional("db")) if optional("db") else "",
            "other_golds": said_all(record, "other_sql"),
        },
        fields=tuple(record),
    )


def plain_record(example: Example) -> Record:
    """Return the line of `questions.jsonl` that says what an example says; no password is in it."""
    line: Record = {
        "id": example.uid, "db_id": example.db_id, "question": example.question, "evidence": example.evidence,
        "sql": example.gold_sql,
    }  # fmt: skip
    more = {
        "difficulty": example.difficulty,
        "demonstration": example.demonstration,
        "reasoning": example.reasoning,
        "dialect": "" if example.dialect == "sqlite" else example.dialect,
        "db": told_url(example.engine_url),
        "other_sql": list(example.other_golds),
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
        return f"dialect {dialect!r} is none of {', '.join(DIALECTS)}"
    has_engine = bool(text(record.get("db")))
    if not has_engine and dialect not in ("sqlite", "mysql"):
        return f"dialect {dialect!r} needs a db, the URL that it runs at"
    return ""


PLAIN = Format(
    "plain",
    "bird",
    "jsonl",
    "questions.jsonl, databases/<db_id>/<db_id>.sqlite",
    lambda folder: (folder / "questions.jsonl").is_file(),
    read_plain,
)
