"""Ask questions of somebody's own SQLite files, by the generator's templates, and write them as a plain folder.

Every gold is run by the executor within its limits, and stays when it ends and answers something: rows, not too many,
in one order where the question asks for an order. The databases are copied as they are at one moment, or linked.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.datagen.copy_database import copy_database
from jaxrl_sql.datagen.reasoning import reason
from jaxrl_sql.datagen.synth.ask import grade_quota, is_answer, is_one_answer, worded
from jaxrl_sql.datagen.synth.own_read import Read, Run, read_own
from jaxrl_sql.datagen.synth.part_sampler import NoFit
from jaxrl_sql.datagen.synth.question_template import TEMPLATES, QuestionCandidate, Template
from jaxrl_sql.datagen.synth.spec import Question
from jaxrl_sql.sqlenv.dialect import from_sqlite, normal_form, to_sqlite
from jaxrl_sql.types import InputError

_TRIES = 25
_LONGEST_SQL = 1000


class Asked(NamedTuple):
    """What came of one database: questions, how often a draft was left out by reason, and what was not asked about."""

    db_id: str
    questions: tuple[Question, ...]
    tried: Counter[str]
    left_out: tuple[tuple[str, str], ...]


class Runs(NamedTuple):
    """How SQL is run on one database: to look around in it, and as a gold, within the limits of training."""

    look: Run
    gold: Run


class _Asking:
    """Drafts questions on a database until the grades have theirs."""

    def __init__(self, rng: random.Random, read: Read, run: Run) -> None:
        self.run = run
        self.rng = rng
        # A template of the hard grade joins, so that a reference that leads nowhere drops out; others count on it.
        self.databases = {grade: read.joined if grade == "hard" else read.whole for grade in TEMPLATES}
        self.tried: Counter[str] = Counter()
        self.texts: set[str] = set()
        self.sqls: set[str] = set()
        self.questions: list[Question] = []

    def ask(self, grade: str, wanted: int) -> int:
        """Ask up to `wanted` questions of a grade and return how many were found."""
        weights = [template.weight for template in TEMPLATES[grade]]
        found = 0
        for _ in range(wanted * _TRIES):
            if found == wanted:
                break
            made = self._try(self.rng.choices(TEMPLATES[grade], weights)[0], grade)
            if isinstance(made, Question):
                self.questions.append(made)
                found += 1
            else:
                self.tried[made] += 1
        return found

    def _try(self, template: Template, grade: str) -> Question | str:
        try:
            draft = template.build(self.rng, self.databases[grade])
        except NoFit:
            return "nothing in the database for the template"
        if fault := self._fault(draft):
            return fault
        text, sql = worded(self.rng, draft), normal_form(draft.sql)
        if not text:
            return "stutters"
        if text.casefold() in self.texts or sql in self.sqls:
            return "asked before"
        self.texts.add(text.casefold())
        self.sqls.add(sql)
        return Question(text, draft.sql, grade)

    def _fault(self, draft: QuestionCandidate) -> str:
        """Return why the SQL of a draft is no gold, or an empty text."""
        rows = self.run(draft.sql) if len(draft.sql) <= _LONGEST_SQL else None
        if rows is None:
            return "fails, or does not end within the limits"
        if not is_answer(rows):
            return "no answer: no rows, 0 or NULL alone, or too many rows"
        if draft.order_check and not is_one_answer([row[0] for row in self.run(draft.order_check) or ()]):
            return "ties at the cut"
        if draft.sort_check and not _is_one_order(self.run(draft.sort_check) or ()):
            return "ties in the order"
        return ""


def _is_one_order(rows: Sequence[tuple[object, ...]]) -> bool:
    """Say whether rows with one sort key (the first cell) show one thing (the second)."""
    shown: dict[object, object] = {}
    return bool(rows) and all(shown.setdefault(row[0], row[1]) == row[1] for row in rows)


def ask_own(path: Path, runs: Runs, count: int, mix: Sequence[float], seed: int = 0, mysql_share: float = 0.0) -> Asked:
    """Ask up to `count` different questions of a database, in shares of the grades; what one lacks others give.

    Raises InputError for a file that is no database, and for one that no question fits.
    """
    db_id = path.stem
    run = runs.gold
    read = read_own(path, db_id, runs.look)
    if not read.joined.tables:
        why = Counter(reason for _, reason in read.left_out).most_common(3)
        raise InputError(f"{path}: nothing to ask about: {_told(why) or 'it holds no tables (views are not read)'}")
    rng = random.Random(f"{seed}/own/{db_id}")
    asking = _Asking(rng, read, run)
    quota = grade_quota(count, mix)
    full = [grade for grade, wanted in quota.items() if asking.ask(grade, wanted) == wanted]
    while len(asking.questions) < count and full:
        missing = count - len(asking.questions)
        share = -(-missing // len(full))
        full = [
            grade for grade in full if (n := min(share, count - len(asking.questions))) and asking.ask(grade, n) == n
        ]
    if not asking.questions:
        raise InputError(f"{path}: no question could be made: {_told(asking.tried.most_common(3))}")
    rng.shuffle(asking.questions)
    names = {column.name for table in read.joined.tables for column in table.columns}
    questions = [
        _mysql(question, run, names) if mysql_share and rng.random() < mysql_share else question
        for question in asking.questions
    ]
    return Asked(db_id, tuple(questions), asking.tried, read.left_out)


def _told(reasons: Sequence[tuple[str, int]]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in reasons)


def _mysql(question: Question, run: Run, names: set[str]) -> Question:
    """Let a question ask for MySQL where its gold means the same there and back."""
    there = from_sqlite(question.sql, "mysql", names)
    back = to_sqlite(there, "mysql") if there else None
    same = back is not None and run(back) == run(question.sql)
    return Question(question.text, question.sql, question.grade, dialect="mysql") if same else question


def make_own(
    paths: Sequence[Path],
    out: Path,
    run_on: Mapping[Path, Runs],
    count: int,
    mix: Sequence[float],
    seed: int = 0,
    mysql_share: float = 0.0,
    is_linked: bool = False,
) -> list[Asked]:
    """Write `questions.jsonl` and `databases/` of some files to a new folder; InputError for what cannot be used."""
    stems = Counter(path.stem for path in paths)
    if twice := [stem for stem, times in stems.items() if times > 1]:
        raise InputError(f"{twice[0]}: two files of this name; a database is known by its file's name")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder; give another")
    asked = [ask_own(path, run_on[path], count, mix, seed, mysql_share) for path in paths]
    for path, made in zip(paths, asked, strict=True):
        copy_database(path, out / "databases" / made.db_id / f"{made.db_id}.sqlite", is_linked)
    with (out / "questions.jsonl").open("w", encoding="utf-8", newline="\n") as stream:
        for made in asked:
            for index, question in enumerate(made.questions):
                stream.write(json.dumps(_line(made.db_id, index, question), ensure_ascii=False) + "\n")
    return asked


def _line(db_id: str, index: int, question: Question) -> dict[str, str]:
    line = {"id": f"{db_id}_{index:04d}", "db_id": db_id, "question": question.text, "evidence": ""}
    line |= {"sql": question.sql, "difficulty": question.grade, "reasoning": reason(question.sql)}
    return line | ({"dialect": question.dialect} if question.dialect != "sqlite" else {})
