"""Ask a chat endpoint to correct golds that fail, and to write rows for golds that return nothing.

A gold is the reference query of a question. Every answer is appended to a journal, a file in the output folder, so that
a repeated run sends no question twice. Answers are validated by running them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jaxrl_sql.config import DistillSettings
from jaxrl_sql.datagen.augment import Change
from jaxrl_sql.runtime.budget import BudgetSpentError, Usage
from jaxrl_sql.runtime.endpoint import Endpoint, make_budget, open_endpoint
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.rewards.extract import fenced_blocks, sql_blocks
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.render import ddl
from jaxrl_sql.types import TRUNCATED_REASONS, Example, Record

FAILURES = ("syntax_error", "schema_error", "runtime_error")
"""The executor's statuses that indicate wrong SQL; other failures have other causes, such as a time limit."""

_CORRECT = """{schema}

-- Question: {question}
{evidence}-- This query was meant to answer it, but the database (SQLite) refuses it: {error}
{sql}

Write the corrected query, with the same meaning, in a ```sql block.
"""
_FILL = """{schema}

-- This query returns no rows on this SQLite database:
{sql}

Write INSERT statements, and nothing else, in one ```sql block, so that it returns at least one row. Respect NOT NULL,
UNIQUE, CHECK and foreign keys.{error}
"""


class Correction(NamedTuple):
    """All questions, some with corrected golds, the changes, and the error of each gold that still fails, by id."""

    examples: list[Example]
    changes: list[Change]
    failed: dict[str, str]


@dataclasses.dataclass
class EndpointSession:
    """A chat endpoint and the journal of its answers; once the budget is used up, nothing more is sent.

    `answers` has the journal's record of each answer by (step, id of the question, number of the attempt from 0).
    """

    cfg: DistillSettings
    journal: Journal
    endpoint: Endpoint
    is_budget_spent: bool = False

    def __post_init__(self) -> None:
        """Read the answers of earlier runs."""
        self.answers: dict[tuple[str, str, int], Record] = {
            (record["step"], record["id"], record["try"]): record
            for record in self.journal.records
            if "try" in record and not record["error"]
        }
        self.is_budget_spent = bool(self.endpoint.budget.reached_limit)

    def ask(self, step: str, attempt: int, questions: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
        """Send (id, text) questions that the journal does not answer; yield (id, SQL of the answer, error) of all.

        `step` names the purpose of the questions, and `attempt` counts from 0 how often each was asked before; both
        identify an answer in the journal. A truncated answer is an error, because its incomplete SQL could run.
        """
        options = {"temperature": self.cfg.temperature, self.cfg.token_limit: self.cfg.max_tokens}
        new = [
            (uid, [{"role": "user", "content": text}])
            for uid, text in questions
            if (step, uid, attempt) not in self.answers
        ]
        try:
            for uid, answer in self.endpoint.ask_all([] if self.is_budget_spent else new, **options):
                record = {
                    "step": step, "id": uid, "try": attempt, **answer.spent._asdict(),
                    "sql": extract_sql(answer.text), "finish_reason": answer.finish_reason, "error": answer.error,
                }  # fmt: skip
                self.journal.add(record)
                self.answers[step, uid, attempt] = record
        except BudgetSpentError:
            self.is_budget_spent = True
        for uid, _ in questions:
            answer_record = self.answers.get((step, uid, attempt))
            if answer_record is None:
                yield uid, "", "not sent: the budget is spent"
            elif answer_record["finish_reason"] in TRUNCATED_REASONS:
                reason = answer_record["finish_reason"]
                limit = f"distill.max_tokens={self.cfg.max_tokens}"
                yield uid, "", f"the endpoint's answer is truncated ({reason}; {limit})"
            else:
                yield uid, answer_record["sql"], answer_record["error"]


@contextmanager
def open_session(cfg: DistillSettings, journal: Journal) -> Iterator[EndpointSession]:
    """Open the endpoint; the requests and the cost of earlier runs in the journal count towards the budget."""
    with open_endpoint(cfg, make_budget(cfg, Usage.total(journal.records))) as endpoint:
        yield EndpointSession(cfg, journal, endpoint)


def extract_sql(text: str) -> str:
    """Return the content of an answer's last ```sql block, else of its last fenced block, else the whole answer."""
    blocks = sql_blocks(text, any_case=True) or fenced_blocks(text)
    return blocks[-1] if blocks else text.strip()


def correct(session: EndpointSession | None, executor: Executor, examples: Sequence[Example], tries: int) -> Correction:
    """Ask for corrections of golds that fail, up to `tries` times each; without a `session`, only report the failures.

    A correction is accepted if it runs and returns rows. The question then has no demonstration (an example answer),
    reasoning or further golds, because they belong to the old gold.
    """
    outcomes = executor.execute_many([(example.database, example.gold_sql) for example in examples])
    errors = {
        example.uid: (example.gold_sql, f"{outcome.status}: {outcome.error}")
        for example, outcome in zip(examples, outcomes, strict=True)
        if outcome.status in FAILURES
    }
    del outcomes  # they hold the rows of all golds
    by_id = {example.uid: example for example in examples}
    new: dict[str, str] = {}
    for attempt in range(tries if session else 0):
        prompts = [(uid, _correction_prompt(by_id[uid], *errors[uid])) for uid in errors if uid not in new]
        assert session is not None
        for uid, sql, error in session.ask("correct", attempt, prompts):
            if error:
                errors[uid] = (errors[uid][0], error)
                continue
            outcome = executor.execute(by_id[uid].database, sql)
            if outcome.status == "ok" and outcome.row_count:
                new[uid] = sql
            else:
                errors[uid] = (sql, f"{outcome.status}: {outcome.error}" if outcome.error else "it returns no rows")
    changes = [Change("correct", uid, {"was": by_id[uid].gold_sql, "sql": sql}) for uid, sql in new.items()]
    corrected = [
        dataclasses.replace(example, gold_sql=new[example.uid], demonstration="", reasoning="", other_golds=())
        if example.uid in new
        else example
        for example in examples
    ]
    failed = {uid: error for uid, (_, error) in errors.items() if uid not in new}
    return Correction(corrected, changes, failed)


def _correction_prompt(example: Example, sql: str, error: str) -> str:
    evidence = f"-- Known: {example.evidence}\n" if example.evidence else ""
    schema = ddl(read_schema(example.db_path, example.hide))
    return _CORRECT.format(schema=schema, question=example.question, evidence=evidence, error=error, sql=sql)


def rows_prompt(example: Example, error: str = "") -> str:
    """Return the prompt for INSERT statements after which the gold returns rows.

    `error` is the reason why the previous answer was rejected, or "".
    """
    complaint = f" The last ones were no good: {error}." if error else ""
    return _FILL.format(schema=ddl(read_schema(example.db_path, example.hide)), sql=example.gold_sql, error=complaint)
