"""A judged question's record is valid JSON for any database value and restores its verdict."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.evals.numbers import ExcludedCounts, compute_metrics, merge_metrics
from jaxrl_sql.text2sql.evals.records import CELL, ROWS, AnswerJudge, QuestionAnswers, response_of, verdict_of
from jaxrl_sql.text2sql.evals.tables import as_markdown, overview, tables
from jaxrl_sql.text2sql.evals.verdict import NOT_ASKED
from jaxrl_sql.types import Example

RULES = ("bird", "test_suite")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with make_executor(ExecutorConfig(threads=1, vm_steps=100_000)) as executor:
        yield executor


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE t(x); INSERT INTO t VALUES (9e999), (x'00ff'), (CAST(x'ff41' AS TEXT)), (NULL), (1), (2);"
            "CREATE TABLE n(x); INSERT INTO n VALUES (1), (1), (2);"
        )
    golds = ("SELECT x FROM t", "SELECT x FROM n", "SELECT x FROM nowhere")
    return [Example(f"q{i}", "a", str(path), "?", gold) for i, gold in enumerate(golds)]


def test_record_is_json_and_restores_its_verdict(executor: Executor, examples: list[Example]) -> None:
    long = "SELECT replace(hex(zeroblob(900)), '00', 'ab') AS x"
    dialogue = (("assistant", "a"), ("environment", "b"), ("assistant", "c"))
    answers = [
        QuestionAnswers(("SELECT x FROM t",), (dialogue,), "prompt"),
        QuestionAnswers((long,), ("an answer",), "prompt"),
        QuestionAnswers(("SELECT 1",), ("x",)),
    ]
    records = AnswerJudge(executor, RULES, "bird").records(examples, answers)
    again = [json.loads(json.dumps(record, allow_nan=False).encode()) for record in records]
    assert again == records
    first, second, third = records
    assert first["results"]["prediction"] == first["results"]["gold"]
    assert first["results"]["gold"]["rows"] == [["inf"], ["x'00ff'"], ["?A"], [None], [1]]
    assert len(first["results"]["gold"]["rows"]) == ROWS < first["results"]["gold"]["row_count"] == 6
    assert response_of(first) == [*dialogue]
    assert len(second["results"]["prediction"]["rows"][0][0]) == CELL + 1
    assert third["results"]["gold"]["error"].startswith("schema_error: no such table")
    verdicts = [verdict_of(item) for item in again]
    assert [verdict.scores for verdict in verdicts] == [
        {"bird": 1.0, "test_suite": 1.0},
        {"bird": 0.0, "test_suite": 0.0},
        {},
    ]
    assert verdicts[2].gold_status == "schema_error"


def test_unasked_question_is_wrong_with_a_reason(executor: Executor, examples: list[Example]) -> None:
    unanswerable = Example("q3", "a", examples[0].db_path, "?", "", answerable=False)
    answers = [QuestionAnswers((), error="prompt over 9 tokens"), QuestionAnswers((None,), ("nothing",))]
    records = AnswerJudge(executor, RULES, "bird").records([unanswerable, examples[1]], answers)
    assert [record["status"] for record in records] == [NOT_ASKED, "no_sql"]
    assert [item["scores"]["bird"] for item in records] == [0.0, 0.0]
    assert records[0]["error"] == "prompt over 9 tokens"


def test_votes_choose_and_are_counted_by_size(executor: Executor, examples: list[Example]) -> None:
    sqls = ("SELECT 7", "SELECT x FROM n", "SELECT x FROM n WHERE 1", "SELECT x FROM nowhere", None)
    judging = AnswerJudge(executor, RULES, "bird")
    (voted,) = judging.records(examples[1:2], [QuestionAnswers(sqls, tuple(f"answer {i}" for i in range(5)))])
    assert (voted["sql"], voted["answer"]) == ("SELECT x FROM n", "answer 1")
    assert voted["votes"] == [["SELECT x FROM n", 2.0], ["SELECT 7", 1.0]]
    assert (voted["samples"], voted["right"]) == (5, 2)
    assert [*voted["vote"]] == [*voted["pass"]] == ["1", "2", "4", "5"]
    assert voted["vote"]["5"] == 1.0
    assert voted["pass"]["1"] == pytest.approx(0.4)
    (failed,) = judging.records(examples[2:], [QuestionAnswers(sqls, tuple("abcde"))])
    assert "vote" not in failed, "a failing gold counts for votes"
    numbers = compute_metrics("s", "bird", examples[1:], [[voted, failed]], ExcludedCounts()).numbers
    assert numbers["vote/5"] == 1.0
    assert numbers["bird"] == 1.0
    assert numbers["accuracy"] == 0.5


def test_truncated_answers_are_counted_and_scored(executor: Executor, examples: list[Example]) -> None:
    right = "SELECT x FROM n"
    answers = [
        QuestionAnswers((right,), ("a",), finish_reasons=("length",)),
        QuestionAnswers((right, "SELECT 7", None), tuple("abc"), finish_reasons=("length", "stop", "content_filter")),
        QuestionAnswers((), error="prompt over 9 tokens"),
    ]
    questions = [dataclasses.replace(examples[1], uid=f"q{i}") for i in range(3)]
    records = AnswerJudge(executor, RULES, "bird").records(questions, answers)
    assert [(item["finish_reason"], item["scores"]["bird"]) for item in records] == [
        ("length", 1),
        ("length", 1),
        ("", 0),
    ]
    assert records[1]["finish_reasons"] == {"length": 1, "stop": 1, "content_filter": 1}
    stopped = [{**record, "finish_reason": "stop", "finish_reasons": {"stop": 3}} for record in records[:2]]
    summary = compute_metrics("s", "bird", questions, [records, [*stopped, records[2]]], ExcludedCounts())
    assert summary.numbers["truncated"] == (2 / 4 + 0) / 2
    counts = [summary.numbers[f"finish_reason/{name}"] for name in ("stop", "length", "content_filter")]
    assert counts == [(1 + 6) / 2, 2 / 2, 1 / 2], "means over two runs"
    text = as_markdown(tables(summary))
    assert "| answers truncated at the token limit, in % | 25 |" in text
    assert "| answer: length | 1 |" in text
    assert "| answer: content_filter | 0.5 |" in text


def test_predictions_have_no_finish_reason(executor: Executor, examples: list[Example]) -> None:
    records = AnswerJudge(executor, RULES, "bird").records(examples[:1], [QuestionAnswers(("SELECT x FROM t",))])
    assert records[0]["finish_reason"] == ""
    assert not [
        name
        for name in compute_metrics("s", "bird", examples[:1], [records], ExcludedCounts()).numbers
        if "finish" in name
    ]


def test_benchmark_with_query_preparation_prepares_predictions(executor: Executor, examples: list[Example]) -> None:
    judging = AnswerJudge(executor, RULES, "bird", prepare=lambda sql: sql.replace("THIS", "n"))
    (record,) = judging.records(examples[1:2], [QuestionAnswers(("SELECT x FROM THIS",), ("x",))])
    assert record["scores"]["bird"] == 1.0
    assert record["sql"] == "SELECT x FROM THIS"


def test_runs_are_averaged_and_benchmarks_weighted(executor: Executor, examples: list[Example]) -> None:
    def run(*sqls: str) -> list[dict[str, object]]:
        answers = [QuestionAnswers((sql,), ("x",)) for sql in sqls]
        return AnswerJudge(executor, RULES, "bird").records(examples[: len(sqls)], answers)

    right, wrong, other = "SELECT x FROM t", "SELECT 1", "SELECT DISTINCT x FROM n"
    two = compute_metrics("two", "bird", examples[:2], [run(right, wrong), run(wrong, wrong)], ExcludedCounts(extra=3))
    item = compute_metrics("one", "test_suite", examples[1:2], [run(right, other)[1:]], ExcludedCounts(missing=1))
    assert two.numbers["accuracy"] == 0.25
    assert two.numbers["accuracy/std"] == pytest.approx(0.125**0.5)
    assert two.numbers["runs"] == 2
    assert (item.numbers["accuracy"], item.numbers["bird"], item.numbers["sensitive/duplicates"]) == (0.0, 1.0, 1.0)
    all_of = merge_metrics([two, item])
    assert all_of["count"] == 3
    assert all_of["bird"] == pytest.approx((2 * 0.25 + 1.0) / 3)
    assert all_of["accuracy"] == pytest.approx((2 * 0.25 + 0.0) / 3)
    assert (all_of["extra"], all_of["missing"], all_of["one/missing"]) == (3, 1, 1)
    text = as_markdown([*tables(item), overview([two, item], all_of)])
    assert "| duplicates | the same rows with different multiplicities | 1 | q1 |" in text
    assert "| questions without a prediction, excluded from shares | 1 |" in text
    assert "| test_suite * | 0.0 |" in text
