"""Generate questions about a database from templates or the grammar, and keep those with an informative gold.

A gold, the reference query of a question, is informative if its result has rows and is not a single row of 0 or NULL.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from jaxrl_sql.datagen.synth.grammar.table import GRAMMAR, Form
from jaxrl_sql.datagen.synth.part_sampler import NoFit
from jaxrl_sql.datagen.synth.question_template import TEMPLATES, QuestionCandidate, Template
from jaxrl_sql.datagen.synth.spec import DIFFICULTIES, RunSql, SynthDatabase, SynthQuestion, SynthSpec
from jaxrl_sql.text2sql.env.dialect import from_sqlite, normal_form, to_sqlite
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.text2sql.question_sets.filters import is_trivial

TRIES = {"templates": 25, "grammar": 80}
"""Candidates per requested question, by style."""
FORMS: Mapping[str, Mapping[str, Sequence[Template | Form]]] = {"templates": TEMPLATES, "grammar": GRAMMAR}
# With fewer questions than this, a difficulty may get none.
_MIN_QUESTIONS_FOR_ALL = 4
MAX_RESULT_ROWS = 400
MAX_SQL_CHARS = 210
MAX_STRICT_SQL_CHARS = 1000
# The article `a` where `an` is right.
BEFORE_VOWEL = re.compile(r"\ba (?=[aeio]|u(?!ni|se))")
# Questions that repeat a word or its meaning.
STUTTER = re.compile(r"\b(\w+) \1\b|\b(?:average|mean) (?:average|mean)\b|\b(?:maximum|highest|largest) max\b")


class QuestionGenerator:
    """Generates distinct questions about one database.

    `questions` are the accepted questions, and `rejected` counts the other candidates by reason. `run` runs SQL on the
    database. `joined` is the database with all foreign keys, also those with dangling references; `database` has only
    the others. Hard templates and the grammar use `joined` if it is passed. With `is_strict`, questions must differ by
    more than case, golds are unique, and a sorted list has one order. The style `grammar` always requires one order,
    and its difficulties are Spider's.
    """

    def __init__(
        self,
        rng: random.Random,
        run: RunSql,
        database: SynthDatabase,
        joined: SynthDatabase | None = None,
        is_strict: bool = False,
        style: str = "templates",
    ) -> None:
        self.questions: list[SynthQuestion] = []
        self.rejected: Counter[str] = Counter()
        self._rng = rng
        self._run = run
        # Grammar questions reach other tables only by joins, which drop dangling references.
        on_joins = ("easy", "medium", "hard", "extra") if style == "grammar" else ("hard",)
        self._databases = {
            difficulty: joined if joined and difficulty in on_joins else database for difficulty in DIFFICULTIES
        }
        self._is_strict = is_strict
        self._style = style
        self._seen: set[str] = set()

    def generate(self, difficulty: str, count: int) -> int:
        """Generate up to `count` questions of a difficulty and return their number."""
        templates = FORMS[self._style][difficulty]
        weights = [template.weight for template in templates]
        start = len(self.questions)
        for _ in range(count * TRIES[self._style]):
            if len(self.questions) - start == count:
                break
            if reason := self._try(self._rng.choices(templates, weights)[0], difficulty):
                self.rejected[reason] += 1
        return len(self.questions) - start

    def _try(self, template: Template | Form, difficulty: str) -> str:
        """Add a question of a template and return "", or return the reason for the rejection."""
        try:
            candidate = template.build(self._rng, self._databases[difficulty])
        except NoFit:
            return "nothing in the database for the template"
        if self._style == "grammar" and difficulty != "advanced" and spider_level(candidate.sql) != difficulty:
            return "of another difficulty"
        if reason := self._reject_reason(candidate):
            return reason
        text = BEFORE_VOWEL.sub("an ", self._rng.choice(candidate.texts))
        if STUTTER.search(text):
            return "stutters"
        keys = {text.casefold(), normal_form(candidate.sql)} if self._is_strict else {text}
        if keys & self._seen:
            return "asked before"
        self._seen |= keys
        self.questions.append(SynthQuestion(text, candidate.sql, difficulty))
        return ""

    def _reject_reason(self, candidate: QuestionCandidate) -> str:
        """Return the reason why a candidate's SQL is not a usable gold, or ""."""
        is_strict = self._is_strict or self._style == "grammar"
        longest = MAX_STRICT_SQL_CHARS if is_strict else MAX_SQL_CHARS
        rows = self._run(candidate.sql) if len(candidate.sql) <= longest else None
        if rows is None:
            return "fails, or does not end within the limits"
        if not _is_informative(rows):
            return "no answer: no rows, 0 or NULL alone, or too many rows"
        if candidate.order_check and not _are_distinct_keys(self._run(candidate.order_check) or ()):
            return "ties at the cut"
        if is_strict and candidate.sort_check and not _is_order_unique(self._run(candidate.sort_check) or ()):
            return "ties in the order"
        return ""


def _is_informative(rows: Sequence[tuple[object, ...]]) -> bool:
    """Return whether a result is informative: some rows, not too many, and not a single row of only NULL or 0."""
    return 0 < len(rows) <= MAX_RESULT_ROWS and not is_trivial(rows)


def _are_distinct_keys(rows: Sequence[tuple[object, ...]]) -> bool:
    """Return whether sort keys (the rows of an `order_check`) are distinct and not NULL."""
    keys = [row[0] for row in rows]
    return len(keys) > 1 and None not in keys and len(set(keys)) == len(keys)


def _is_order_unique(rows: Sequence[tuple[object, ...]]) -> bool:
    """Return whether rows with equal sort keys (first cell) have equal results (second cell)."""
    result_by_key: dict[object, object] = {}
    return bool(rows) and all(result_by_key.setdefault(row[0], row[1]) == row[1] for row in rows)


def run_on(connection: sqlite3.Connection) -> RunSql:
    """Return a function that runs a query and returns at most one row more than a gold's result may have."""

    def run(sql: str) -> Sequence[tuple[object, ...]] | None:
        try:
            return connection.execute(sql).fetchmany(MAX_RESULT_ROWS + 1)
        except sqlite3.Error:
            return None

    return run


def generate_questions(
    rng: random.Random,
    database: SynthDatabase,
    run: RunSql,
    count: int,
    mix: Sequence[float] = SynthSpec().mix,
    style: str = "templates",
) -> list[SynthQuestion]:
    """Return `count` distinct questions (fewer if the database is exhausted), in random order of difficulties.

    `mix` holds the shares of the difficulties in per cent, in the order of `DIFFICULTIES`.
    """
    generator = QuestionGenerator(rng, run, database, style=style)
    for difficulty, quota in difficulty_quota(count, mix).items():
        generator.generate(difficulty, quota)
    rng.shuffle(generator.questions)
    return generator.questions


def difficulty_quota(count: int, mix: Sequence[float]) -> dict[str, int]:
    """Return the number of questions of each difficulty, for `count` in all and shares `mix` in per cent.

    Each difficulty with a share gets at least one question if possible. Numbers are rounded down; the remaining
    questions go to the difficulties that lost most by rounding, in the default mix to the easiest.
    """
    exact = {difficulty: count * share / 100 for difficulty, share in zip(DIFFICULTIES, mix, strict=True) if share > 0}
    # The epsilon makes 6.999999999999999 questions 7.
    quota = {difficulty: int(number + 1e-9) for difficulty, number in exact.items()}
    by_loss = sorted(exact, key=lambda difficulty: quota[difficulty] - exact[difficulty])
    if count >= _MIN_QUESTIONS_FOR_ALL:
        quota = {difficulty: max(1, number) for difficulty, number in quota.items()}
    remaining = count - sum(quota.values())
    if remaining < 0:
        quota[max(quota, key=lambda difficulty: quota[difficulty])] += remaining
    receivers = [DIFFICULTIES[0]] if tuple(mix) == SynthSpec().mix else by_loss
    for difficulty in itertools.islice(itertools.cycle(receivers), max(remaining, 0)):
        quota[difficulty] += 1
    return quota


def ask_in_mysql(
    rng: random.Random, questions: Sequence[SynthQuestion], run: RunSql, share: float, names: Collection[str] = ()
) -> list[SynthQuestion]:
    """Set the dialect MySQL for a share of the questions, whose answers then must be MySQL.

    The gold stays SQLite; it must have the same result after translation to MySQL and back. `names` are the columns of
    the database, some of which may need double quotes.
    """
    return [
        dataclasses.replace(question, dialect="mysql")
        if rng.random() < share and _is_translatable(question.sql, run, names)
        else question
        for question in questions
    ]


def _is_translatable(sql: str, run: RunSql, names: Collection[str]) -> bool:
    mysql = from_sqlite(sql, "mysql", names)
    translated_back = to_sqlite(mysql, "mysql") if mysql else None
    return translated_back is not None and run(translated_back) == run(sql)
