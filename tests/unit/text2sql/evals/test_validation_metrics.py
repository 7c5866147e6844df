"""Validation metrics of training, counted by hand on a small database."""

import dataclasses
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.evals.records import AnswerJudge, QuestionAnswers, verdict_of
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.summary import validation_metrics
from jaxrl_sql.text2sql.question_sets.filters import usable_golds
from jaxrl_sql.types import Example


@pytest.fixture
def executor() -> Executor:
    return make_executor(ExecutorConfig(threads=2))


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    return str(path)


def _example(db: str, uid: str, gold: str, difficulty: str = "") -> Example:
    return Example(uid, "t", db, "?", gold, difficulty=difficulty)


def test_counts_of_a_mixed_batch(executor: Executor, db: str) -> None:
    questions = [
        (_example(db, "q1", "SELECT a FROM t", "easy"), "SELECT a FROM t ORDER BY a DESC"),  # right
        (_example(db, "q2", "SELECT b FROM t", "hard"), "SELECT a FROM t"),  # wrong
        (_example(db, "q3", "SELECT a FROM t", "easy"), "SELECT c FROM t"),  # fails
        (_example(db, "q4", "SELECT a FROM t", "hard"), None),  # no SQL
        (_example(db, "q5", "SELECT z FROM t"), "SELECT a FROM t"),  # the gold fails
        (_example(db, "q6", "SELECT b FROM t", "easy"), "SELECT b FROM t"),  # right
    ]
    examples = [example for example, _ in questions]
    verdicts = score_predictions(executor, examples, [sql for _, sql in questions])
    assert [(verdict.uid, verdict.status, verdict.is_right("bird")) for verdict in verdicts] == [
        ("q1", "ok", True),
        ("q2", "ok", False),
        ("q3", "schema_error", False),
        ("q4", "no_sql", False),
        ("q5", "ok", False),
        ("q6", "ok", True),
    ]
    assert [item.gold_status for item in verdicts if not item.gold_ok] == ["schema_error"]
    assert validation_metrics(examples, verdicts) == {
        "accuracy": 2 / 6,
        "correct": 2.0,
        "count": 6.0,
        "valid": 4 / 6,
        "gold_failures": 1.0,
        "status/ok": 4.0,
        "status/schema_error": 1.0,
        "status/no_sql": 1.0,
        "accuracy/easy": 2 / 3,
        "count/easy": 3.0,
        "accuracy/hard": 0.0,
        "count/hard": 2.0,
    }


def test_empty_set_and_answers_without_sql(executor: Executor, db: str) -> None:
    nothing = {"accuracy": 0.0, "correct": 0.0, "count": 0.0, "valid": 0.0, "gold_failures": 0.0}
    assert validation_metrics([], score_predictions(executor, [], [])) == nothing
    example = _example(db, "q", "SELECT 1")
    numbers = validation_metrics([example], score_predictions(executor, [example], [None]))
    assert numbers == {**nothing, "count": 1.0, "status/no_sql": 1.0}


def test_different_lengths_are_refused(executor: Executor, db: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        score_predictions(executor, [_example(db, "q", "SELECT 1")], [])


def test_failing_or_empty_golds_are_dropped_with_a_reason(executor: Executor, db: str, tmp_path: Path) -> None:
    examples = [
        _example(db, "q1", "SELECT a FROM t"),
        _example(db, "q2", "SELECT a FROM t WHERE a > 5"),
        _example(db, "q3", "SELECT nope FROM t"),
        _example(db, "q4", "SELECT a FROM"),
        _example(str(tmp_path / "none.sqlite"), "q5", "SELECT 1"),
        _example(db, "q6", "SELECT count(*) FROM t WHERE a > 5"),
    ]
    remaining, dropped = usable_golds(executor, examples)
    assert [example.uid for example in remaining] == ["q1", "q6"]
    assert dropped == [
        ("q2", "gold empty"),
        ("q3", "gold fails: schema_error"),
        ("q4", "gold fails: syntax_error"),
        ("q5", "gold fails: db_error"),
    ]
    assert [example.uid for example in usable_golds(executor, examples, drop_empty=False)[0]] == ["q1", "q2", "q6"]


@pytest.mark.data
@pytest.mark.skipif(
    "JAXRL_SQL_DATA" not in os.environ, reason="JAXRL_SQL_DATA does not name the folder of the real sets"
)
def test_golds_of_spider_dev_get_full_scores(executor: Executor) -> None:
    examples = load_split(os.environ["JAXRL_SQL_DATA"], "spider_dev").examples
    numbers = validation_metrics(
        examples, score_predictions(executor, examples, [example.gold_sql for example in examples])
    )
    assert (numbers["correct"], numbers["count"]) == (972, 972)


def test_other_dialects_are_translated_and_any_gold_may_match(executor: Executor, db: str) -> None:
    mysql = dataclasses.replace(_example(db, "q1", "SELECT b || '!' FROM t"), dialect="mysql")
    several = dataclasses.replace(_example(db, "q2", "SELECT 0"), other_golds=("SELECT 1", "SELECT a FROM t"))
    questions = [mysql, mysql, several]
    verdicts = score_predictions(executor, questions, ["SELECT CONCAT(b, '!') FROM t", "SELECT ) b", "SELECT a FROM t"])
    assert [(verdict.status, verdict.is_right("bird")) for verdict in verdicts] == [
        ("ok", True),
        ("syntax_error", False),
        ("ok", True),
    ]
    assert verdicts[0].sql == "SELECT CONCAT(b, '!') FROM t"


def test_unasked_questions_count_as_wrong(executor: Executor, db: str) -> None:
    examples = [_example(db, "a", "SELECT 1"), _example(db, "b", "SELECT 2")]
    verdicts = score_predictions(executor, examples, ["SELECT 1", "SELECT 2"])
    assert validation_metrics(examples, verdicts)["accuracy"] == 1.0
    numbers = validation_metrics(examples, verdicts, unasked=2)
    assert (numbers["accuracy"], numbers["count"], numbers["status/not_asked"]) == (0.5, 4.0, 2.0)


def test_unasked_questions_are_scored_like_in_evaluate(executor: Executor, db: str) -> None:
    """Training's verdicts come from the same `AnswerJudge` as `evaluate`'s records."""
    examples = [_example(db, "a", "SELECT 1"), _example(db, "b", "SELECT 2"), _example(db, "c", "SELECT 3")]
    answered = [
        QuestionAnswers(("SELECT 1",), ("a",)),
        QuestionAnswers((), error="no room"),
        QuestionAnswers((None,), ("c",)),
    ]
    judging = AnswerJudge(executor, ("bird",), "bird")
    verdicts = judging.verdicts(examples, answered)
    assert [(verdict.status, verdict.scores) for verdict in verdicts] == [
        ("ok", {"bird": 1.0}),
        ("not_asked", {"bird": 0.0}),
        ("no_sql", {"bird": 0.0}),
    ]
    assert [verdict_of(item).scores for item in judging.records(examples, answered)] == [
        record.scores for record in verdicts
    ]
