"""A folder of answers that a browser opens from disk: a page, an index of all groups, and the groups in pieces.

A page that is opened from disk may neither fetch nor import modules, so data are classic scripts that call `jx(name,
text)`; the text is JSON, deflated, in base64. Only the index is read at once.
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.report.groups import Group
from jaxrl_sql.report.html import PAGE, as_json, folder_page, write_text
from jaxrl_sql.runtime.rollouts import unpack_ids
from jaxrl_sql.types import DEMONSTRATION, Fields, InputError, Json, Record

DATA, MARK = "data", "answers.json"
FORM = 1
_LEVEL = 3

# What a group is marked with in the index, as bits.
NO_SIGNAL, SUSPICIOUS, CONSTANT, JUDGED, TRUNCATED = 1, 2, 4, 8, 16


class Row(NamedTuple):
    """What the index knows of a group."""

    run: int
    step: int
    phase: str
    uid: str
    db: str
    question: str
    hardness: str
    statuses: tuple[str, ...]
    rewards: tuple[float | None, ...]
    flags: int
    sqls: tuple[str, ...]


class AnswersFolder:
    """Write the folder; of what is written again only what is other than before.

    Raises InputError for a folder that holds something else, or that cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._written: dict[str, int] = {}
        try:
            if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
                raise InputError(f"--out {out} holds other files: name an empty folder, or one that this command wrote")
            (out / DATA).mkdir(parents=True, exist_ok=True)
            for old in (out / DATA).glob("*.js"):
                old.unlink()
            write_text(out / MARK, json.dumps({"form": FORM}) + "\n")
            shutil.copytree(PAGE, out / "page", dirs_exist_ok=True, ignore=shutil.ignore_patterns("shell.html"))
        except OSError as error:
            raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error

    def write_part(self, number: int, groups: Sequence[Group]) -> None:
        """Write a piece of groups, which the index names by its number and their place in it."""
        self._write(f"part-{number:04}", [_shown(one) for one in groups])

    def write_index(self, head: Fields, parts: Sequence[Sequence[Row]]) -> None:
        """Write the index of all pieces, in order, and the page; `parts[i]` are the groups of piece i."""
        self._write("texts", _texts(parts))
        self._write("index", _columns(parts))
        self._write("head", head)
        write_text(self.out / "index.html", folder_page(str(head["title"])))

    def write_more(self, name: str, value: Json) -> None:
        """Write what is read when it is asked for: `tokens`, `schemas`."""
        self._write(name, value)

    def write_stamp(self, stamp: int, is_live: bool) -> None:
        """Write, last of all, what a page that is open asks again and again: whether there is more."""
        write_text(self.out / DATA / "stamp.js", f"jxStamp({stamp}, {'true' if is_live else 'false'});\n")

    def _write(self, name: str, value: Json) -> None:
        text = as_json(value, ensure_ascii=False, separators=(",", ":"))
        raw = text.encode("utf-8", errors="replace")
        digest = zlib.crc32(raw) << 32 | len(raw)
        if self._written.get(name) == digest:
            return
        packed = zlib.compressobj(level=_LEVEL, wbits=-15)
        body = base64.b64encode(packed.compress(raw) + packed.flush()).decode()
        write_text(self.out / DATA / f"{name}.js", f'jx("{name}","{body}");\n')
        self._written[name] = digest


def row_of(group: Group, run: int) -> Row:
    """Return what the index knows of a group of run number `run`."""
    answers = group["answers"]
    sampled = [one for one in answers if one.get("finish_reason") != DEMONSTRATION]
    rewards = tuple(one["reward"] for one in sampled)
    known = [one["reward"] for one in answers if one["reward"] is not None]
    verdicts = [one["verdict"] for one in answers if one.get("verdict")]
    marks = (
        (NO_SIGNAL, len(known) > 1 and max(known) - min(known) < 1e-6),
        (SUSPICIOUS, any(map(is_suspicious, verdicts))),
        (CONSTANT, any(one.get("constant") for one in verdicts)),
        (JUDGED, bool(verdicts)),
        (TRUNCATED, any(one.get("finish_reason") == "length" for one in answers)),
    )
    return Row(
        run=run,
        step=group["step"],
        phase=group["phase"],
        uid=group["uid"],
        db=group["db"],
        question=group["question"],
        hardness=group["hardness"],
        statuses=tuple(one["status"] for one in sampled),
        rewards=rewards,
        flags=sum(bit for bit, holds in marks if holds),
        sqls=tuple(dict.fromkeys(one["sql"] for one in answers if one["sql"])),
    )


def is_suspicious(verdict: Fields) -> bool:
    """Return whether an answer is right by `bird` and wrong by `refined` or on the suite (without one: test_suite)."""
    scores = verdict.get("scores", {})
    stricter = ["refined", "suite" if "suite" in scores else "test_suite"]
    return scores.get("bird", 0.0) >= 1.0 and any(scores.get(rule, 1.0) < 1.0 for rule in stricter)


def _shown(group: Group) -> Record:
    return {name: value for name, value in group.items() if name != "example"}


def _columns(parts: Sequence[Sequence[Row]]) -> Record:
    """Return the index by column: a number a group, and lists of what numbers stand for."""
    rows = [row for part in parts for row in part]
    words = {name: _Words() for name in ("phases", "dbs", "hardness", "statuses", "questions")}
    statuses = [sum({1 << words["statuses"].number(one) for one in row.statuses}) for row in rows]
    columns = {
        "run": [row.run for row in rows],
        "step": [row.step for row in rows],
        "phase": [words["phases"].number(row.phase) for row in rows],
        "question": [words["questions"].number((row.db, row.uid)) for row in rows],
        "db": [words["dbs"].number(row.db) for row in rows],
        "hardness": [words["hardness"].number(row.hardness) for row in rows],
        "statuses": statuses,
        "flags": [row.flags for row in rows],
        "count": [len(row.rewards) for row in rows],
    }
    return {
        "columns": columns,
        "rewards": [reward for row in rows for reward in row.rewards],
        "parts": [len(part) for part in parts],
        "words": {name: found.all() for name, found in words.items() if name != "questions"},
        "uids": [uid for _, uid in words["questions"].all()],
    }


def _texts(parts: Sequence[Sequence[Row]]) -> Record:
    """Return what is searched: the questions' texts in the index's order, and the SQL of each group."""
    rows = [row for part in parts for row in part]
    questions = {(row.db, row.uid): row.question for row in reversed(rows)}
    order = dict.fromkeys((row.db, row.uid) for row in rows)
    return {"questions": [questions[key] for key in order], "sqls": ["\n".join(row.sqls) for row in rows]}


class _Words:
    """Numbers for words, in the order in which they come."""

    def __init__(self) -> None:
        self._found: dict[Json, int] = {}

    def number(self, word: Json) -> int:
        """Return a word's number."""
        return self._found.setdefault(word, len(self._found))

    def all(self) -> list[Json]:
        """Return the words in order."""
        return list(self._found)


def used_tokens(groups: Iterable[Group]) -> set[int]:
    """Return the token ids that answers were written with."""
    found: set[int] = set()
    for group in groups:
        for turn in (turn for answer in group["answers"] for turn in answer["turns"] if len(turn) > 2):
            with suppress(ValueError):  # of a broken one no token is shown
                found.update(unpack_ids(turn[2]).tolist())
    return found
