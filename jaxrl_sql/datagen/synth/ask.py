"""Ask questions of a drawn database: draw templates by grade, keep those whose gold answers something, once each."""

from __future__ import annotations

import itertools
import random
import re
import sqlite3
from collections.abc import Callable, Sequence

from jaxrl_sql.datagen.synth.part_sampler import NoFit
from jaxrl_sql.datagen.synth.question_template import TEMPLATES, QuestionCandidate, Template
from jaxrl_sql.datagen.synth.spec import GRADES, Database, Question, SynthSpec

Run = Callable[[str], Sequence[tuple[object, ...]]]
MAX_RESULT_ROWS = 400
MAX_SQL_CHARS = 210
BEFORE_VOWEL = re.compile(r"\ba (?=[aeio]|u(?!ni|se))")
STUTTER = re.compile(r"\b(\w+) \1\b|\b(?:average|mean) (?:average|mean)\b|\b(?:maximum|highest|largest) max\b")


def is_one_answer(keys: Sequence[object]) -> bool:
    """Say whether the sort keys up to the cut and the first after it are all known and different."""
    return len(keys) > 1 and None not in keys and len(set(keys)) == len(keys)


def is_answer(rows: Sequence[tuple[object, ...]]) -> bool:
    """Say whether a gold gives something: rows, not too many, and not one row of only NULL or 0."""
    if not rows or len(rows) > MAX_RESULT_ROWS:
        return False
    return not (len(rows) == 1 and all(value is None or value == 0 for value in rows[0]))


def ask_questions(
    rng: random.Random,
    database: Database,
    connection: sqlite3.Connection,
    count: int,
    mix: Sequence[float] = SynthSpec().mix,
) -> list[Question]:
    """Return `count` different questions (fewer when the database is used up), in drawn order of grades.

    `mix` are the shares of the grades in per cent.
    """

    def run(sql: str) -> list[tuple[object, ...]]:
        return connection.execute(sql).fetchmany(MAX_RESULT_ROWS + 1)

    asked: set[str] = set()
    questions: list[Question] = []
    quota = grade_quota(count, mix)
    for grade, wanted in quota.items():
        weights = [template.weight for template in TEMPLATES[grade]]
        found = 0
        for _ in range(wanted * 25):
            if found == wanted:
                break
            question = _try(rng, database, run, rng.choices(TEMPLATES[grade], weights)[0], grade)
            if question is not None and question.text not in asked:
                asked.add(question.text)
                questions.append(question)
                found += 1
    rng.shuffle(questions)
    return questions


def grade_quota(count: int, mix: Sequence[float]) -> dict[str, int]:
    """Share `count` questions over the grades; every grade that has a share gets one when there are four or more.

    What is left of rounding goes to the grades that lost most by it; in the mix that has always been, to the easiest.
    """
    exact = {grade: count * share / 100 for grade, share in zip(GRADES, mix, strict=True) if share > 0}
    # A hair is added because 6.999999999999999 questions are 7.
    shares = {grade: int(wanted + 1e-9) for grade, wanted in exact.items()}
    lost = sorted(exact, key=lambda grade: shares[grade] - exact[grade])
    if count >= len(GRADES):
        shares = {grade: max(1, share) for grade, share in shares.items()}
    left = count - sum(shares.values())
    if left < 0:
        shares[max(shares, key=lambda grade: shares[grade])] += left
    takers = [GRADES[0]] if tuple(mix) == SynthSpec().mix else lost
    for grade in itertools.islice(itertools.cycle(takers), max(left, 0)):
        shares[grade] += 1
    return shares


def _try(rng: random.Random, database: Database, run: Run, template: Template, grade: str) -> Question | None:
    try:
        draft = template.build(rng, database)
    except NoFit:
        return None
    if len(draft.sql) > MAX_SQL_CHARS:
        return None
    if draft.order_check and not is_one_answer([row[0] for row in run(draft.order_check)]):
        return None
    if not is_answer(run(draft.sql)):
        return None
    text = worded(rng, draft)
    return Question(text, draft.sql, grade) if text else None


def worded(rng: random.Random, draft: QuestionCandidate) -> str:
    """Draw one of a draft's wordings; "" where it stutters."""
    text = BEFORE_VOWEL.sub("an ", rng.choice(draft.texts))
    return "" if STUTTER.search(text) else text
