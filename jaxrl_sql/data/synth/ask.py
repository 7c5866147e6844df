"""Ask questions of a drawn database: draw templates by grade, keep those whose gold answers something, once each."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable

from jaxrl_sql.data.synth.scene import Draft, NoFit, Scene
from jaxrl_sql.data.synth.spec import GRADES, Database, Question
from jaxrl_sql.data.synth.templates_easy import EASY
from jaxrl_sql.data.synth.templates_extra import EXTRA
from jaxrl_sql.data.synth.templates_hard import HARD
from jaxrl_sql.data.synth.templates_medium import MEDIUM

Template = Callable[[Scene], Draft]
TEMPLATES: dict[str, tuple[tuple[Template, int], ...]] = dict(zip(GRADES, (EASY, MEDIUM, HARD, EXTRA), strict=True))
GRADE_MIX = (35, 30, 20, 15)
MAX_RESULT_ROWS = 400
MAX_SQL_CHARS = 210
BEFORE_VOWEL = re.compile(r"\ba (?=[aeio]|u(?!ni|se))")
STUTTER = re.compile(r"\b(\w+) \1\b|\b(?:average|mean) (?:average|mean)\b|\b(?:maximum|highest|largest) max\b")


def _is_one_answer(connection: sqlite3.Connection, order_check: str) -> bool:
    """Say whether the sort keys up to the cut and the first after it are all known and different."""
    keys = [row[0] for row in connection.execute(order_check)]
    return len(keys) > 1 and None not in keys and len(set(keys)) == len(keys)


def _is_answer(connection: sqlite3.Connection, sql: str) -> bool:
    """Say whether a gold gives something: rows, not too many, and not one row of only NULL or 0."""
    rows = connection.execute(sql).fetchmany(MAX_RESULT_ROWS + 1)
    if not rows or len(rows) > MAX_RESULT_ROWS:
        return False
    return not (len(rows) == 1 and all(value is None or value == 0 for value in rows[0]))


def ask_questions(rng: random.Random, database: Database, connection: sqlite3.Connection, count: int) -> list[Question]:
    """Return `count` different questions (fewer when the database is used up), in drawn order of grades."""
    scene = Scene(rng, database)
    asked: set[str] = set()
    questions: list[Question] = []
    quota = _quota(count)
    for grade, wanted in quota.items():
        templates = [template for template, _ in TEMPLATES[grade]]
        weights = [weight for _, weight in TEMPLATES[grade]]
        found = 0
        for _ in range(wanted * 25):
            if found == wanted:
                break
            question = _try(scene, connection, rng.choices(templates, weights)[0], grade)
            if question is not None and question.text not in asked:
                asked.add(question.text)
                questions.append(question)
                found += 1
    rng.shuffle(questions)
    return questions


def _quota(count: int) -> dict[str, int]:
    """Share `count` questions over the grades; every grade gets one when there are four or more."""
    shares = {grade: count * share // 100 for grade, share in zip(GRADES, GRADE_MIX, strict=True)}
    if count >= len(GRADES):
        shares = {grade: max(1, share) for grade, share in shares.items()}
    shares[GRADES[0]] += count - sum(shares.values())
    return shares


def _try(scene: Scene, connection: sqlite3.Connection, template: Template, grade: str) -> Question | None:
    try:
        draft = template(scene)
    except NoFit:
        return None
    if len(draft.sql) > MAX_SQL_CHARS:
        return None
    if draft.order_check and not _is_one_answer(connection, draft.order_check):
        return None
    if not _is_answer(connection, draft.sql):
        return None
    text = BEFORE_VOWEL.sub("an ", scene.one(draft.texts))
    return None if STUTTER.search(text) else Question(text, draft.sql, grade)
