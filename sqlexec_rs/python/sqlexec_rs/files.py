"""Files of golds, as Spider, BIRD and plain JSON lines write them; `predictions` reads the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ID_KEYS = ("id", "question_id", "instance_id", "uid", "qid")
# Spider's `sql` is a parse tree, and its text stands under `query`: the first that is text counts.
_GOLD_KEYS = ("sql", "SQL", "query", "gold_sql", "gold")

_SHOWN = 3


class InputError(Exception):
    """An argument or a file is wrong: one line that says what and where."""


@dataclass(frozen=True)
class Gold:
    """A question's accepted SQL (any may match; an empty list: there is none), its database, perhaps a difficulty."""

    uid: str
    db_id: str
    sql: str | list[str]
    difficulty: str
    place: str


def cases(found: Iterable[str]) -> str:
    """Return the first of some cases, with `…` where there are more."""
    first = list(found)
    return ", ".join(first[:_SHOWN]) + (", …" if len(first) > _SHOWN else "")


class _Entry(NamedTuple):
    place: str
    content: Any


def read_golds(path: Path) -> list[Gold]:
    """Read JSON or JSON lines with `db_id` and `sql`, `SQL` or `query`; or lines of SQL, tab, db_id.

    Raises InputError.
    """
    golds: list[Gold] = []
    for number, (place, content) in enumerate(_entries(path)):
        if isinstance(content, str):
            if not content.strip():
                continue
            sql, tab, db_id = content.rpartition("\t")
            if not tab:
                raise InputError(f"{place}: no tab between the SQL and its database")
            golds.append(Gold(str(len(golds)), db_id.strip(), sql.strip(), "", place))
        else:
            if not isinstance(content, dict):
                raise InputError(f"{place}: a gold must be a JSON object")
            if not isinstance(content.get("db_id"), str):
                raise InputError(f"{place}: no db_id")
            uid = _uid(content)
            gold_sql = _gold_sql(content, place)
            difficulty = content.get("difficulty") or content.get("hardness") or ""
            golds.append(Gold(str(number) if uid is None else uid, content["db_id"], gold_sql, str(difficulty), place))
    if not golds:
        raise InputError(f"{path}: no golds")
    twice = [uid for uid, count in Counter(gold.uid for gold in golds).items() if count > 1]
    if twice:
        raise InputError(f"{path}: {len(twice)} ids stand more than once ({cases(twice)})")
    return golds


def _entries(path: Path) -> list[_Entry]:
    """Return the file's entries with their places: objects, (key, value) pairs of one object, or lines of text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    first = text.lstrip()[:1]
    if first == "[":
        return [_Entry(f"{path}: entry {number}", one) for number, one in enumerate(_parse(text, path, 1))]
    if first != "{":
        return [_Entry(f"{path}:{number}", line.strip("\r\n ")) for number, line in enumerate(lines, 1)]
    try:
        whole = json.loads(text)
    except ValueError:
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if numbered[0][1].strip() == "{":  # one object over many lines, and broken
            _parse(text, path, 1)
        return [_Entry(f"{path}:{number}", _parse(line, path, number)) for number, line in numbered]
    if any(key in whole for key in _GOLD_KEYS):
        return [_Entry(f"{path}:1", whole)]  # JSON lines, of one line
    return [_Entry(f"{path}: entry {key}", one) for key, one in zip(whole, whole.items(), strict=True)]


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{line + error.lineno - 1}: not JSON: {error.msg} at column {error.colno}") from None


def _uid(content: dict[str, Any]) -> str | None:
    return next((str(content[key]) for key in ID_KEYS if content.get(key) is not None), None)


def _gold_sql(content: dict[str, Any], place: str) -> str | list[str]:
    for key in _GOLD_KEYS:
        sql = content.get(key)
        if isinstance(sql, str):
            return sql
        if isinstance(sql, list) and sql and all(isinstance(one, str) for one in sql):
            return sql
    raise InputError(f"{place}: no SQL under {', '.join(_GOLD_KEYS)}")
