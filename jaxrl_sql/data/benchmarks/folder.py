"""Load the one folder layout that every set has: `questions.jsonl` and `databases/<db_id>/<db_id>.sqlite`.

Spider, BIRD and the generated sets are read by the same function. A line that is not a JSON object stops the load,
because then the file is not what it claims to be; a single question that cannot be used is skipped with a reason.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from jaxrl_sql.data.benchmarks.benchmark import Loaded
from jaxrl_sql.data.benchmarks.databases import Databases, suites_of
from jaxrl_sql.data.benchmarks.files import Notes
from jaxrl_sql.data.benchmarks.gather import Format, Found, Item, Lines, no_split
from jaxrl_sql.data.jsonl import records, text
from jaxrl_sql.data.schema.read import read_schema
from jaxrl_sql.types import DIALECTS, Example, InputError


def load_folder(folder: str | Path, limit: int = 0) -> Loaded:
    """Load a set; `limit` keeps the first so many usable questions, 0 keeps all.

    Raises InputError for a missing folder or file, a malformed line (`file:line: what`), or a set with no usable
    question. Skipped with a reason: missing or empty fields, an id seen before, a dialect that is none, a db_id without
    a readable database. `evidence`, `difficulty`, `demonstration`, `reasoning`, `dialect` and `other_sql`, a list of
    golds that are as right, may be left out.
    """
    folder = Path(folder)
    path = folder / "questions.jsonl"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (expected questions.jsonl and databases/ in it)")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    examples: list[Example] = []
    skipped: list[tuple[str, str]] = []
    seen: set[str] = set()
    order: list[str] = []
    databases: dict[str, str] = {}
    for number, record in records(path):
        uid = text(record.get("id")) or f"line {number}"
        reason = _unusable_fields(record) or ("duplicate id" if uid in seen else "")
        order.append(uid)
        if not reason:
            db_id = record["db_id"]
            if db_id not in databases:
                databases[db_id] = _database_fault(folder, db_id)
            reason = databases[db_id]
        if reason:
            skipped.append((uid, reason))
            continue
        seen.add(uid)
        examples.append(_example(folder, uid, record))
    if not examples:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in Counter(r for _, r in skipped).most_common(3))
        raise InputError(f"{path}: no usable question ({reasons or 'the file is empty'})")
    return Loaded(tuple(examples[:limit] if limit > 0 else examples), tuple(skipped), tuple(order))


def load_plain(folder: Path, limit: int, notes: Notes) -> Loaded:
    """Load a set and the variants of its databases, where a test suite lies in its folder or beside it."""
    loaded = load_folder(folder, limit)
    databases = Databases([folder / "databases"], suites_of(folder))
    examples = [dataclasses.replace(one, suite=databases.suite(one.db_id)) for one in loaded.examples]
    databases.tell(notes)
    return Loaded(tuple(examples), loaded.skipped, loaded.order)


def plain_lines(folder: Path, split: str) -> Lines:
    """Return where a set's records are, for sets that are read by number."""
    if split:
        raise no_split(folder, split, [])
    return Lines(folder / "questions.jsonl", _item, Databases([folder / "databases"], suites_of(folder)))


def _item(record: dict[str, Any], number: int) -> Item:
    uid = text(record.get("id")) or f"record {number}"
    reason = _unusable_fields(record)
    if reason:
        return Item(uid, text(record.get("db_id")), text(record.get("question")), fault=reason)
    example = _example(Path(), uid, record)
    more = {name: getattr(example, name) for name in ("demonstration", "reasoning", "dialect", "other_golds")}
    return Item(
        uid,
        example.db_id,
        example.question,
        example.gold_sql,
        example.evidence,
        example.difficulty,
        more=more,
    )


def _unusable_fields(record: dict[str, Any]) -> str:
    missing = [] if text(record.get("id")) else ["id"]
    for name in ("db_id", "question", "sql"):
        value = record.get(name)
        if not isinstance(value, str) or not value.strip():
            missing.append(name)
    if missing:
        return f"no {', '.join(missing)}"
    dialect = record.get("dialect") or "sqlite"
    return "" if dialect in DIALECTS else f"dialect {dialect!r} is none of {', '.join(DIALECTS)}"


def _database_path(folder: Path, db_id: str) -> Path:
    return folder / "databases" / db_id / f"{db_id}.sqlite"


def _database_fault(folder: Path, db_id: str) -> str:
    """Return why this database cannot be used, or an empty text."""
    if db_id in (".", "..") or any(character in db_id for character in "/\\\0"):
        return f"db_id {db_id!r} is not a folder name"
    path = _database_path(folder, db_id)
    if not path.is_file():
        return f"no database {db_id}"
    try:
        schema = read_schema(path)
    except InputError:
        return f"database {db_id} is corrupt"
    return "" if schema.tables else f"database {db_id} has no tables"


def _example(folder: Path, uid: str, record: dict[str, Any]) -> Example:
    def optional(name: str) -> str:
        value = record.get(name)
        return value.strip() if isinstance(value, str) else ""

    others = record.get("other_sql")
    others = others if isinstance(others, list) else []
    return Example(
        uid=uid,
        db_id=record["db_id"],
        db_path=str(_database_path(folder, record["db_id"])),
        question=record["question"].strip(),
        gold_sql=record["sql"].strip(),
        evidence=optional("evidence"),
        difficulty=text(record.get("difficulty")),
        demonstration=optional("demonstration"),
        reasoning=optional("reasoning"),
        dialect=optional("dialect") or "sqlite",
        other_golds=tuple(sql.strip() for sql in others if isinstance(sql, str) and sql.strip()),
    )


def _reads(folder: Path, split: str, _notes: Notes) -> Found:
    raise no_split(folder, split, [])


PLAIN = Format(
    "plain",
    "bird",
    "jsonl",
    "questions.jsonl, databases/<db_id>/<db_id>.sqlite",
    lambda folder: (folder / "questions.jsonl").is_file(),
    _reads,
)
