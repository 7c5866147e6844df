"""Question filters on real databases: skipped questions, their reasons, and the files that list them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import ExecutorConfig, FilterSettings
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.files.jsonl import read_ids
from jaxrl_sql.text2sql.files.shares import hold_out, one_in
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.text2sql.question_sets.filters import (
    DroppedQuestion,
    by_gold,
    by_pass_rate,
    by_prompt,
    by_text,
    keep_only,
    plain_words,
    usable_golds,
    without_repeats,
)
from jaxrl_sql.types import Example, InputError, Prompt

COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT max(i) FROM n"


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2);")
    return str(path)


def example(db: str, uid: str, sql: str = "SELECT a FROM t", question: str = "?") -> Example:
    return Example(uid, "t", db, question, sql)


def test_failing_slow_and_empty_golds_are_skipped_with_their_numbers(db: str) -> None:
    questions = [
        example(db, "good"),
        example(db, "fails", "SELECT b FROM t"),
        example(db, "empty", "SELECT a FROM t WHERE a > 9"),
        example(db, "slow", COUNTING),
    ]
    with make_executor(ExecutorConfig(threads=1)) as executor:
        remaining, dropped = by_gold(executor, questions, FilterSettings(max_gold_steps=5_000))
        assert dropped[0].error == "no such column: b"
        assert usable_golds(executor, questions)[1] == [("fails", "gold fails: schema_error"), ("empty", "gold empty")]
        everything = by_gold(executor, questions, FilterSettings(failing_gold=False, empty_gold=False))
    assert [item.uid for item in remaining] == ["good"]
    assert [(entry.uid, entry.reason) for entry in dropped] == [
        ("fails", "gold fails: schema_error"),
        ("empty", "gold empty"),
        ("slow", "gold over 5000 VM steps"),
    ]
    with make_executor(ExecutorConfig(threads=1, vm_steps=5_000)) as executor:
        assert usable_golds(executor, questions)[1][2] == ("slow", "gold fails: timeout, over vm_steps")
    assert dropped[2].numbers["vm_steps"] > 5_000
    assert dropped[1].numbers["rows"] == 0
    assert len(everything[0]) == 4


def test_long_and_noisy_golds(db: str, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.write_text('{"id": "b"}\nc\n', encoding="utf-8")
    questions = [example(db, uid, "SELECT a FROM t" + " " * extra) for uid, extra in (("a", 0), ("b", 0), ("d", 9))]
    remaining, dropped = by_text(questions, FilterSettings(min_sql_characters=16))
    assert [item.uid for item in remaining] == ["d"]
    assert dropped[0] == DroppedQuestion("a", "gold under 16 characters", {"characters": 15})
    remaining, dropped = by_text(questions, FilterSettings(max_sql_characters=15, noisy=str(noisy)))
    assert [entry.uid for entry in remaining] == ["a"]
    assert dropped == [
        DroppedQuestion("b", "noisy gold"),
        DroppedQuestion("d", "gold over 15 characters", {"characters": 24}),
    ]


def test_question_is_asked_once_per_database(db: str) -> None:
    questions = [
        example(db, "a", question="How many, in  all?"),
        example(db, "b", question="how many in all"),
        example(db + "2", "c", question="how many in all"),
        example(db, "d", question="how many"),
    ]
    remaining, dropped = without_repeats(questions)
    assert [item.uid for item in remaining] == ["a", "c", "d"]
    assert dropped == [DroppedQuestion("b", "asked before")]
    assert plain_words("Ｗho's_it?\n ") == "who s it"
    assert plain_words("a < 5") != plain_words("a > 5")


def test_prompt_lengths_and_pass_rates_have_limits(db: str) -> None:
    questions = [example(db, uid) for uid in "abc"]
    prompts = PromptSet(
        tuple(questions), tuple(Prompt(uid, (0,) * n, "") for uid, n in zip("abc", (3, 4, 5), strict=True)), ()
    )
    remaining, dropped = by_prompt(prompts, 4)
    assert [item.uid for item in remaining] == ["a", "b"]
    assert dropped == [DroppedQuestion("c", "prompt over 4 tokens", {"tokens": 5})]
    rates = {"a": (0, 10), "b": (3, 10), "c": (10, 10)}
    remaining, dropped = by_pass_rate(questions, rates, 0.3, 0.9)
    assert [entry.uid for entry in remaining] == ["b"]
    assert [(element.uid, element.reason) for element in dropped] == [("a", "seldom right"), ("c", "often right")]


def test_shares_are_exact_nested_and_depend_only_on_ids(db: str) -> None:
    questions = [example(db, f"q{i}") for i in range(100)]
    taught, held = hold_out(questions, 0.2)
    assert (len(taught), len(held)) == (80, 20)
    assert {item.uid for item in held} == {entry.uid for entry in hold_out(questions[::-1], 0.2)[1]}
    assert one_in(questions, 8) < one_in(questions, 4)
    assert len(one_in(questions, 3)) == 34
    assert hold_out(questions, 0.0)[1] == []
    assert len(hold_out(questions[:3], 0.01)[1]) == 1


def test_files_of_ids(db: str, tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text('{"id": "q1", "why": 1}\n\n{"id": 7}\nplain id\n', encoding="utf-8")
    assert read_ids(path) == {"q1", "7", "plain id"}
    questions = [example(db, "q0"), example(db, "q1"), example(db, "7")]
    assert [item.uid for item in keep_only(questions, path)] == ["q1", "7"]
    assert [entry.uid for entry in keep_only(questions, path, 1)] == ["q1"]
    with pytest.raises(InputError, match="none of its 3 ids"):
        keep_only(questions[:1], path)
    listed = '[{"instance_id": "q1", "db_id": "d"},\n {"question_id": 7}]'
    for form in ('{"question_id": 7, "id": ""}\nq1', listed, '["q1", 7]'):
        path.write_text(form, encoding="utf-8")
        assert read_ids(path) == {"q1", "7"}, form
    path.write_text('{"name": 3}\n', encoding="utf-8")
    with pytest.raises(InputError, match="ids:1: no id"):
        read_ids(path)
    with pytest.raises(InputError, match="nowhere"):
        read_ids(tmp_path / "nowhere")
