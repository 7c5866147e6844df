"""EHRSQL (Lee et al. 2022) and its 2024 shared task: questions on hospital records, some of which have no answer.

The first has `<database>/train.json`, `valid.json` and `test.json`, lists with `id`, `question`, `query` and
`is_impossible`; the second `<database>/<split>/data.json` and `label.json`, whose SQL is found by id and is `null` for
a question without one. Databases are `<database>/<database>.sqlite`, made by its own scripts from data under licence.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from jaxrl_sql.data.benchmarks.databases import Databases
from jaxrl_sql.data.benchmarks.files import Notes, Record, first_record, mended, read_json, read_records
from jaxrl_sql.data.benchmarks.gather import Format, Found, Item, no_split, said, uid_or
from jaxrl_sql.sqlenv.files import uid_of
from jaxrl_sql.types import InputError

_SPLITS = ("valid", "dev", "test", "train")
_NOW = {"mimic_iv": "2100-12-31 23:59:00"}
_NOW_BEFORE = "2105-12-31 23:59:00"
# What questions call normal: golds write `heart_rate_lower`, and the published scorers put the number there.
_RANGES = {
    "temperature": (35.5, 38.1),
    "sao2": (95.0, 100.0),
    "heart_rate": (60.0, 100.0),
    "respiration": (12.0, 18.0),
    "systolic_bp": (90.0, 120.0),
    "diastolic_bp": (60.0, 90.0),
    "mean_bp": (60.0, 110.0),
}
# MySQL's arithmetic on dates, which SQLite does by modifiers.
_SHIFT = re.compile(r"DATE_(SUB|ADD)\((\w+\(\)|'[^']+')[, ]+INTERVAL (\d+) (MONTH|YEAR|DAY)\)")
_BOUND = re.compile(rf"\b({'|'.join(_RANGES)})_(lower|upper)\b")


def _parts(folder: Path) -> list[Path]:
    """Return the folders of a set's databases: this one, or those in it."""
    inner = [one for one in sorted(folder.iterdir()) if one.is_dir()] if folder.is_dir() else []
    outer = [one for name in ("data", "dataset/ehrsql") for one in sorted((folder / name).glob("*/"))]
    return [one for one in (folder, *inner, *outer) if _splits(one)]


def _splits(folder: Path) -> list[str]:
    """Return the splits that one database's folder has."""
    return [split for split in _SPLITS if _is_2024(folder, split) or _is_first(folder / f"{split}.json")]


def _is_2024(folder: Path, split: str) -> bool:
    path = folder / split / "data.json"
    if not path.is_file():
        return False
    head = _head(path)
    return '"question"' in head and ((folder / split / "label.json").is_file() or '"data"' in head)


def _is_first(path: Path) -> bool:
    record = first_record(path) if path.is_file() else {}
    return "is_impossible" in record and "question" in record


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(1 << 16).decode("utf-8", errors="replace")


def is_ehrsql(folder: Path) -> bool:
    """Return whether a folder holds EHRSQL, for one database or for several."""
    return bool(_parts(folder))


def read_ehrsql(folder: Path, split: str, notes: Notes) -> Found:
    """Read a split, valid by default, of every database in the folder."""
    parts = _parts(folder)
    there = [name for name in _SPLITS if any(name in _splits(part) for part in parts)]
    asked = {"dev": "valid"}.get(split, split) if split not in there else split
    chosen = asked or there[0]
    if chosen not in there:
        raise no_split(folder, split, there)
    items = [item for part in parts if chosen in _splits(part) for item in _items(part, chosen, notes)]
    unanswerable = sum(not item.more.get("answerable", True) for item in items)
    notes.append(
        f"{unanswerable} of {len(items)} questions have no answer in the database: to give no SQL is right there"
    )
    databases = Databases(root for part in parts for root in (part, part / "database", part / "databases", part.parent))
    where = f"{folder}: {chosen} (databases are expected as {parts[0] / parts[0].name}.sqlite)"
    nows = {_NOW.get(item.db_id, _NOW_BEFORE) for item in items}
    return Found(items, databases, where, partial(as_run, now=nows.pop()) if len(nows) == 1 else None)


def _items(part: Path, split: str, notes: Notes) -> list[Item]:
    own = _shared_task(part, split, notes) if _is_2024(part, split) else read_records(part / f"{split}.json", notes)
    items = []
    changed = 0
    for number, record in enumerate(own):
        db_id = _database(part, said(record, "db_id"))
        sql = said(record, "query", "sql")
        is_answerable = not record.get("is_impossible", False) and sql.lower() not in ("null", "nan")
        run = as_run(sql, _NOW.get(db_id, _NOW_BEFORE)) if is_answerable else ""
        changed += is_answerable and run != sql
        uid = uid_or(record, f"{part.name}_{split}_{number}", "id")
        more = {} if is_answerable else {"answerable": False}
        items.append(Item(uid, db_id, said(record, "question"), run, difficulty=said(record, "importance"), more=more))
    if changed:
        notes.append(
            f"{part.name}/{split}: {changed} golds name today or the bounds of vital signs; they are "
            "replaced as the published scorer does, and predictions have to be too"
        )
    return items


def _shared_task(part: Path, split: str, notes: Notes) -> list[Record]:
    """Join questions and labels by id."""
    path, labels = part / split / "data.json", part / split / "label.json"
    found = read_json(path, notes)
    questions: Any = found.get("data") if isinstance(found, dict) else found
    if not isinstance(questions, list):
        raise InputError(f"{path}: expected a list of questions under `data`")
    if not labels.is_file():
        raise InputError(f"{labels}: no such file (it holds the SQL of each question by id)")
    golds = read_json(labels, notes)
    if isinstance(golds, list):
        by_id = [(uid_of(label, str(labels), ("id",)), label) for label in golds if isinstance(label, dict)]
        # Of a repeated id the first counts, as of questions.
        golds = {uid: said(label, "label", "sql") for uid, label in reversed(by_id) if uid}
    if not isinstance(golds, dict):
        raise InputError(f"{labels}: expected an object of SQL by id")
    questions = [one for one in questions if isinstance(one, dict)]
    return [{**one, "query": said(golds, uid_of(one, str(path), ("id",)))} for one in questions]


def _database(part: Path, db_id: str) -> str:
    """Return the database's name: questions may write `mimic3` for what lies in `mimic_iii`."""
    if db_id and any((place / f"{db_id}.sqlite").is_file() for place in (part, part / "database" / db_id)):
        return db_id
    own = any((part / f"{part.name}{ending}").is_file() for ending in (".sqlite", ".db"))
    return part.name if own or not db_id else db_id


def as_run(sql: str, now: str) -> str:
    """Return SQL as the published scorers run it: the set's own date for today, numbers for the bounds of vital signs.

    Both stand for what no database knows. Today is `current_time`, `current_date`, `'now'`, `NOW()`, `CURDATE()` or
    `CURTIME()`, written so; comparisons with a space inside, MySQL's DATE_ADD and DATE_SUB, and format letters that
    SQLite writes in capitals are mended too. Lines stay apart; the scorers join them, and a comment swallows SQL.
    """
    date, time = now.split(" ")
    text = _SHIFT.sub(_shifted, mended(sql))
    today = {
        "current_time": now,
        "current_date": date,
        "'now'": now,
        "NOW()": now,
        "CURDATE()": date,
        "CURTIME()": time,
    }
    for name, moment in today.items():
        text = text.replace(name, f"'{moment}'")
    text = _BOUND.sub(lambda found: str(_RANGES[found[1]][found[2] == "upper"]), text)
    return text.replace("%y", "%Y").replace("%j", "%J")


def _shifted(found: re.Match[str]) -> str:
    way, moment, number, unit = found.groups()
    plural = "" if number == "1" else "s"
    return f"datetime({moment}, '{'-' if way == 'SUB' else '+'}{number} {unit.lower()}{plural}')"


EHRSQL = Format(
    "ehrsql",
    "ehrsql",
    "ehrsql",
    "<database>/valid.json with is_impossible, or <database>/valid/data.json and label.json; <database>.sqlite",
    is_ehrsql,
    read_ehrsql,
)
