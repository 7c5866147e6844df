"""Reword questions with a chat endpoint, and accept a rewording if execution confirms its meaning.

The endpoint rewords a question, then writes SQL for the new question, without seeing the old one. The rewording is
accepted if the rows of that SQL equal those of the gold, the question's reference query (a round trip, as in
back-translation). Rows are compared by the rule `test_suite`, as in Spider's evaluation: columns may be in any order,
and rows too unless the gold has an ORDER BY.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.augment import Change
from jaxrl_sql.datagen.gold_repair import EndpointSession
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.question_sets.filters import is_trivial
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.render import ddl
from jaxrl_sql.types import Example

_MAX_CHARS = 400  # of a reworded question
_REWORD = """{schema}

-- Question: {question}
-- Its answer: {sql}

Write the question as somebody would who knows the subject but has never seen the tables: in other words than the names
of tables and columns, with all values, numbers and limits, and so that it has the same answer. Write the question
alone.
"""
_ANSWER = """{schema}

-- Question: {question}
{evidence}
Write the SQLite query that answers it, and nothing else, in one ```sql block.
"""


class Rewording(NamedTuple):
    """All questions, some of them reworded, and the changes."""

    examples: list[Example]
    changes: list[Change]


def reword(session: EndpointSession | None, executor: Executor, examples: Sequence[Example], tries: int) -> Rewording:
    """Reword questions, with up to `tries` attempts each; without a `session`, all questions are unchanged.

    A question without an accepted rewording is unchanged, and so is one whose gold fails or returns no row or only 0 or
    NULL, because many wrong queries would return the same.
    """
    # Without tries no gold runs, and `outcomes` is empty.
    outcomes = executor.execute_many([(example.database, example.gold_sql) for example in examples] if tries else [])
    pending = {
        example.uid: example
        for example, outcome in zip(examples, outcomes, strict=False)
        if outcome.status == "ok" and outcome.row_count and not is_trivial(outcome.rows)
    }
    new: dict[str, Example] = {}
    for attempt in range(tries if session else 0):
        assert session is not None
        prompts = [(uid, _REWORD.format(question=example.question, sql=example.gold_sql, schema=_schema(example)))
                 for uid, example in pending.items()]  # fmt: skip
        reworded = [
            dataclasses.replace(pending[uid], question=text, messages=())
            for uid, text, error in session.ask("reword", attempt, prompts)
            if not error and _is_question(text, pending[uid].question)
        ]
        answers = {
            uid: sql
            for uid, sql, error in session.ask(
                "answer", attempt, [(example.uid, _answer_prompt(example)) for example in reworded]
            )
            if not error
        }
        answered = [example for example in reworded if example.uid in answers]
        verdicts = score_predictions(
            executor, answered, [answers[example.uid] for example in answered], ("test_suite",)
        )
        for question, verdict in zip(answered, verdicts, strict=True):
            if verdict.is_right("test_suite"):
                new[question.uid] = question
                del pending[question.uid]
    changes = [
        Change("reword", example.uid, {"was": example.question, "question": new[example.uid].question})
        for example in examples
        if example.uid in new
    ]
    return Rewording([new.get(example.uid, example) for example in examples], changes)


def _is_question(text: str, old: str) -> bool:
    """Return whether an answer is one line of text, not SQL, and differs from the old question."""
    is_line = 0 < len(text) <= _MAX_CHARS and "\n" not in text
    return is_line and not text.upper().startswith(("SELECT ", "WITH ")) and text.casefold() != old.casefold()


def _answer_prompt(example: Example) -> str:
    evidence = f"-- Known: {example.evidence}\n" if example.evidence else ""
    return _ANSWER.format(schema=_schema(example), question=example.question, evidence=evidence)


def _schema(example: Example) -> str:
    return ddl(read_schema(example.db_path, example.hide))
