"""Have questions reworded by a chat endpoint, and keep a wording where execution shows that it still asks the same.

The endpoint words a question anew, and is then asked for the SQL of that wording alone, with the schema: it counts when
the SQL's rows are the gold's, by the test suite's rule (a round trip, as back-translation is checked).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.augment import Change
from jaxrl_sql.datagen.gold_repair import Correspondence
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.question_sets.filters import is_trivial
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.render import ddl
from jaxrl_sql.types import Example

_MAX_CHARS = 400
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


class Reworded(NamedTuple):
    """The questions, some of them in new words, and what was changed."""

    examples: list[Example]
    changes: list[Change]


def reword(talk: Correspondence | None, executor: Executor, examples: Sequence[Example], tries: int) -> Reworded:
    """Word questions anew, each up to so many times; those of which no wording holds stay as they are.

    So do those whose gold fails or returns nothing but 0 or NULL, as many a query would answer them.
    """
    outcomes = executor.execute_many([(one.database, one.gold_sql) for one in examples] if tries else [])
    left = {
        one.uid: one
        for one, outcome in zip(examples, outcomes, strict=False)
        if outcome.status == "ok" and outcome.row_count and not is_trivial(outcome.rows)
    }
    new: dict[str, Example] = {}
    for number in range(tries if talk else 0):
        assert talk is not None
        asked = [(uid, _REWORD.format(question=one.question, sql=one.gold_sql, schema=_schema(one)))
                 for uid, one in left.items()]  # fmt: skip
        worded = [
            dataclasses.replace(left[uid], question=text)
            for uid, text, error in talk.ask("reword", number, asked)
            if not error and _is_question(text, left[uid].question)
        ]
        answers = {
            uid: sql
            for uid, sql, error in talk.ask("answer", number, [(one.uid, _answer(one)) for one in worded])
            if not error
        }
        answered = [one for one in worded if one.uid in answers]
        verdicts = score_predictions(executor, answered, [answers[one.uid] for one in answered], ("test_suite",))
        for one, verdict in zip(answered, verdicts, strict=True):
            if verdict.is_right("test_suite"):
                new[one.uid] = one
                del left[one.uid]
    changes = [
        Change("reword", example.uid, {"was": example.question, "question": new[example.uid].question})
        for example in examples
        if example.uid in new
    ]
    return Reworded([new.get(one.uid, one) for one in examples], changes)


def _is_question(text: str, old: str) -> bool:
    """Return whether an answer is one line of words, no SQL, and not the question that was there."""
    is_line = 0 < len(text) <= _MAX_CHARS and "\n" not in text
    return is_line and not text.upper().startswith(("SELECT ", "WITH ")) and text.casefold() != old.casefold()


def _answer(example: Example) -> str:
    evidence = f"-- Known: {example.evidence}\n" if example.evidence else ""
    return _ANSWER.format(schema=_schema(example), question=example.question, evidence=evidence)


def _schema(example: Example) -> str:
    return ddl(read_schema(example.db_path, example.hide))
