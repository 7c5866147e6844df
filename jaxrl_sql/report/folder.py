"""Write a folder of answers that a browser opens from disk: a page, an index of all groups, and the groups in parts.

A page that is opened from disk can neither fetch nor import modules, so each data file is a classic script that calls
the page's function `jx(name, text)`; the text is JSON, deflated, in base64. At first the page loads only the index,
which its lists and filters need, and then the part of each group that is shown.
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

from jaxrl_sql.report.groups import AnswerGroup
from jaxrl_sql.report.html import PAGE, as_json, folder_page, write_text
from jaxrl_sql.runtime.rollouts import unpack_ids
from jaxrl_sql.types import DEMONSTRATION, Fields, InputError, Json, Record

DATA, MARKER = "data", "answers.json"
"""The subfolder of data files, and the file that marks a folder as written by this class."""
FORMAT_VERSION = 1
# Compression level of deflate: faster than the default, and slightly larger.
_LEVEL = 3

NO_SIGNAL, SUSPICIOUS, CONSTANT, JUDGED, TRUNCATED = 1, 2, 4, 8, 16
"""Flags of a group in the index, as bits.

All answers have equal rewards; an answer is right by `bird` and wrong by a stricter rule (`is_suspicious`); a right
answer reads no table; an answer has a verdict; an answer ended at the token limit.
"""


class IndexRow(NamedTuple):
    """The entry of a group in the index.

    `run` is the position of its run in the folder. `statuses`, `rewards` and `right` (whether it is right, None:
    unknown) have a value per sampled answer. `flags` are bits as above, and `sqls` the distinct SQL of all answers.
    """

    run: int
    step: int
    phase: str
    uid: str
    db: str
    question: str
    difficulty: str
    statuses: tuple[str, ...]
    rewards: tuple[float | None, ...]
    right: tuple[bool | None, ...]
    flags: int
    sqls: tuple[str, ...]


class AnswersFolder:
    """Write the folder; files are rewritten only if their content changes.

    Raises InputError for a folder with other files, or one that cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._written: dict[str, int] = {}
        try:
            if out.is_dir() and any(out.iterdir()) and not (out / MARKER).is_file():
                raise InputError(f"--out {out} has other files: name an empty folder, or one that this command wrote")
            (out / DATA).mkdir(parents=True, exist_ok=True)
            for old_part in (out / DATA).glob("*.js"):
                old_part.unlink()
            write_text(out / MARKER, json.dumps({"form": FORMAT_VERSION}) + "\n")
            shutil.copytree(PAGE, out / "page", dirs_exist_ok=True, ignore=shutil.ignore_patterns("shell.html"))
        except OSError as error:
            raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error

    def write_part(self, number: int, groups: Sequence[AnswerGroup]) -> None:
        """Write a part; the index refers to a group by the part's number and its position in it."""
        self._write(f"part-{number:04}", [_without_example(group) for group in groups])

    def write_index(self, head: Fields, parts: Sequence[Sequence[IndexRow]]) -> None:
        """Write the index of all parts in order, and the page; `parts[i]` are the groups of part i.

        `head` are the data of the whole folder: its title, runs (`html.run_data`) and notes.
        """
        self._write("texts", _texts(parts))
        self._write("index", _columns(parts))
        self._write("head", head)
        write_text(self.out / "index.html", folder_page(str(head["title"])))

    def write_data(self, name: str, value: Json) -> None:
        """Write data that the page loads on demand: `tokens`, `schemas`."""
        self._write(name, value)

    def write_stamp(self, stamp: int, is_live: bool) -> None:
        """Write the version number `stamp`, which an open page polls if `is_live`; call it after all other writes."""
        write_text(self.out / DATA / "stamp.js", f"jxStamp({stamp}, {'true' if is_live else 'false'});\n")

    def _write(self, name: str, value: Json) -> None:
        text = as_json(value, ensure_ascii=False, separators=(",", ":"))
        raw = text.encode("utf-8", errors="replace")
        digest = zlib.crc32(raw) << 32 | len(raw)
        if self._written.get(name) == digest:
            return
        compressor = zlib.compressobj(level=_LEVEL, wbits=-15)  # raw deflate, without header and checksum
        body = base64.b64encode(compressor.compress(raw) + compressor.flush()).decode()
        write_text(self.out / DATA / f"{name}.js", f'jx("{name}","{body}");\n')
        self._written[name] = digest


def row_of(group: AnswerGroup, run: int) -> IndexRow:
    """Return the index entry of a group of run number `run`."""
    answers = group["answers"]
    sampled = [answer for answer in answers if answer.get("finish_reason") != DEMONSTRATION]
    rewards = tuple(answer["reward"] for answer in sampled)
    scored = [answer["reward"] for answer in answers if answer["reward"] is not None]
    verdicts = [answer["verdict"] for answer in answers if answer.get("verdict")]
    conditions = (
        (NO_SIGNAL, len(scored) > 1 and max(scored) - min(scored) < 1e-6),
        (SUSPICIOUS, any(map(is_suspicious, verdicts))),
        (CONSTANT, any(verdict.get("constant") for verdict in verdicts)),
        (JUDGED, bool(verdicts)),
        (TRUNCATED, any(answer.get("finish_reason") == "length" for answer in answers)),
    )
    return IndexRow(
        run=run,
        step=group["step"],
        phase=group["phase"],
        uid=group["uid"],
        db=group["db"],
        question=group["question"],
        difficulty=group["hardness"],
        statuses=tuple(answer["status"] for answer in sampled),
        rewards=rewards,
        right=tuple(answer.get("right") for answer in sampled),
        flags=sum(flag for flag, is_set in conditions if is_set),
        sqls=tuple(dict.fromkeys(answer["sql"] for answer in answers if answer["sql"])),
    )


def is_suspicious(verdict: Fields) -> bool:
    """Return whether an answer is right by `bird` and wrong by a stricter rule.

    These are `refined` and `suite` (test-suite accuracy), or `test_suite` (the comparison of Spider's script on one
    database) if the set has no test suite.
    """
    scores = verdict.get("scores", {})
    stricter = ["refined", "suite" if "suite" in scores else "test_suite"]
    return scores.get("bird", 0.0) >= 1.0 and any(scores.get(rule, 1.0) < 1.0 for rule in stricter)


def _without_example(group: AnswerGroup) -> Record:
    return {name: value for name, value in group.items() if name != "example"}


def _columns(parts: Sequence[Sequence[IndexRow]]) -> Record:
    """Return the index by column: a number per group, and lists of the texts that the numbers refer to.

    `statuses` is a set of statuses as bits. `rewards` and `right` have a value per answer of all groups in order, with
    `count` answers per group; `parts` are the numbers of groups per part.
    """
    rows = [row for part in parts for row in part]
    tables = {name: _TextTable() for name in ("phases", "dbs", "hardness", "statuses", "questions")}
    statuses = [sum({1 << tables["statuses"].number(status) for status in row.statuses}) for row in rows]
    columns = {
        "run": [row.run for row in rows],
        "step": [row.step for row in rows],
        "phase": [tables["phases"].number(row.phase) for row in rows],
        "question": [tables["questions"].number((row.db, row.uid)) for row in rows],
        "db": [tables["dbs"].number(row.db) for row in rows],
        "hardness": [tables["hardness"].number(row.difficulty) for row in rows],
        "statuses": statuses,
        "flags": [row.flags for row in rows],
        "count": [len(row.rewards) for row in rows],
    }
    return {
        "columns": columns,
        "rewards": [reward for row in rows for reward in row.rewards],
        "right": [None if right is None else int(right) for row in rows for right in row.right],
        "parts": [len(part) for part in parts],
        "words": {name: table.all() for name, table in tables.items() if name != "questions"},
        "uids": [uid for _, uid in tables["questions"].all()],
    }


def _texts(parts: Sequence[Sequence[IndexRow]]) -> Record:
    """Return the searchable texts: the questions in the index's order, and the SQL of each group."""
    rows = [row for part in parts for row in part]
    questions = {(row.db, row.uid): row.question for row in reversed(rows)}  # of a repeated question the first text
    order = dict.fromkeys((row.db, row.uid) for row in rows)
    return {"questions": [questions[key] for key in order], "sqls": ["\n".join(row.sqls) for row in rows]}


class _TextTable:
    """Numbers for texts (or other JSON values), in order of first occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[Json, int] = {}

    def number(self, text: Json) -> int:
        """Return a text's number; a new text gets the next number."""
        return self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> list[Json]:
        """Return the texts in order."""
        return list(self._numbers)


def collect_token_ids(groups: Iterable[AnswerGroup]) -> set[int]:
    """Return the token ids in answers."""
    tokens: set[int] = set()
    for group in groups:
        # A sampled turn is [role, text, packed token ids, packed log-probabilities]; other turns have two entries.
        for turn in (turn for answer in group["answers"] for turn in answer["turns"] if len(turn) > 2):
            with suppress(ValueError):  # no tokens are shown for a malformed answer
                tokens.update(unpack_ids(turn[2]).tolist())
    return tokens
