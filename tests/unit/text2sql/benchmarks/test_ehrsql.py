"""EHRSQL as published: its layouts, its current date, its rule and its score."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.benchmarks.ehrsql import prepare_2022, prepare_2024
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.summary import summarize
from jaxrl_sql.types import InputError

NOW = "2100-12-31 23:59:00"
NUMBERS = "with recursive n(i) as (select 0 union all select i + 1 from n where i < 149)"


def database(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES(?, ?)", [(0, "v0"), (1, "v1")])
        connection.commit()


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def test_ehrsql_has_unanswerable_questions(tmp_path: Path) -> None:
    part = tmp_path / "mimic_iii"
    database(part / "mimic_iii.sqlite")
    later = "SELECT a FROM t WHERE a < current_time AND a > heart_rate_lower AND a < heart_rate_upper"
    write(
        part / "valid.json",
        [
            {
                "id": "x",
                "db_id": "mimic3",
                "question": "Who?",
                "query": later,
                "is_impossible": False,
                "importance": "high",
            },
            {"id": "y", "db_id": "mimic3", "question": "Why?", "query": "nan", "is_impossible": True},
        ],
    )
    benchmark = load_benchmark(tmp_path)
    assert (benchmark.name, benchmark.rule, benchmark.submission) == ("ehrsql", "ehrsql_2022", "ehrsql")
    first, second = benchmark.examples
    assert first.gold_sql == "select a from t where a < '2105-12-31 23:59:00' and a > 60.0 and a < 100.0"
    assert (first.answerable, first.difficulty, second.answerable, second.gold_sql) == (True, "high", False, "")
    assert any(note.startswith("1 of 2 questions is unanswerable") for note in benchmark.notes)
    assert any("1 gold refers to the current date" in note for note in benchmark.notes)
    assert benchmark.prepare is not None
    assert benchmark.prepare("SELECT current_time") == "select '2105-12-31 23:59:00'"
    loaded = load_split(tmp_path, "valid")
    assert ([example.uid for example in loaded.examples], loaded.skipped) == (["x"], (("y", "has no answer"),))


def test_shared_task_pairs_golds_by_id(tmp_path: Path) -> None:
    database(tmp_path / "data/mimic_iv/mimic_iv.sqlite")
    for split in ("train", "valid"):
        folder = tmp_path / "data/mimic_iv" / split
        questions = [{"id": "b", "question": "B?"}, {"id": "a", "question": "A?"}, {"id": "c", "question": "C?"}]
        write(folder / "data.json", {"version": "1", "data": questions})
        write(folder / "label.json", {"a": "SELECT 1", "b": "null"})
    benchmark = load_benchmark(tmp_path)
    assert [(example.uid, example.gold_sql, example.answerable) for example in benchmark.examples] == [
        ("b", "", False),
        ("a", "SELECT 1", True),
    ]
    assert benchmark.skipped == (("c", "no sql"),)
    assert len(load_benchmark(tmp_path, "train").examples) == 2
    (tmp_path / "data/mimic_iv/valid/label.json").unlink()
    with pytest.raises(InputError, match=r"label\.json: no such file"):
        load_benchmark(tmp_path)


@pytest.mark.parametrize(
    ("sql", "run"),
    [
        ("strftime('%j', current_time)", f"strftime('%J', '{NOW}')"),
        ("date('now', '-1 year')", f"date('{NOW}', '-1 year')"),
        ("SELECT current_date, NOW(), CURDATE(), CURTIME()", f"SELECT '2100-12-31', '{NOW}', '2100-12-31', '23:59:00'"),
        ("DATE_SUB(NOW(), INTERVAL 1 MONTH)", f"datetime('{NOW}', '-1 month')"),
        ("DATE_ADD('2100-01-01', INTERVAL 10 DAY)", "datetime('2100-01-01', '+10 days')"),
        ("a < = 1 AND b > = 2 AND c ! = 3", "a <= 1 AND b >= 2 AND c != 3"),
    ],
)
def test_current_date_is_the_sets(sql: str, run: str) -> None:
    assert prepare_2024(sql, NOW) == run


@pytest.mark.parametrize(
    ("sql", "run"),
    [
        ("SELECT strftime('%Y', current_time)", "select strftime('%Y', '2105-12-31 23:59:00')"),
        ("strftime('%J', 'now')", "strftime('%J', '2105-12-31 23:59:00')"),
        ("b = 'X' AND a < = 1", "b = 'x' and a <= 1"),
        ("datetime('current_time')", "datetime('2105-12-31 23:59:00')"),
        ("NOW(), a > = current_date", "now(), a > = current_date"),  # only the scorer of 2024 replaces these
    ],
)
def test_sql_is_prepared_like_in_the_scorer_of_2022(sql: str, run: str) -> None:
    assert prepare_2022(sql, "2105-12-31 23:59:00") == run


def test_rule_of_2022_agrees_with_its_scorer(tmp_path: Path) -> None:
    """Check verdicts on which the rules of the two years differ, and the scores of the 2022 scorer."""
    database(tmp_path / "eicu/eicu.sqlite")
    golds = {
        "types": ("select 1", "SELECT 1.0", 0.0),  # 2024: right
        "rounded": ("select 0.12345", "SELECT 0.1234999", 0.0),  # 2024: right
        "text": ("select b from t", "SELECT B FROM T ORDER BY a DESC", 1.0),
        "case": ("select 'v1'", "SELECT 'V1'", 1.0),  # all is in lower case; 2024: wrong
        "first": (f"{NUMBERS} select i from n", f"{NUMBERS} select i from n order by i desc", 0.0),  # 2024: wrong, too
        "behind": (f"{NUMBERS} select i from n", f"{NUMBERS} select i + (i > 99) * 1000 from n", 1.0),
        "silent": ("select a from t", None, 0.0),
        "fails": ("select nope from t", "select nope from t", None),
        "mute": ("null", None, 1.0),
        "answered": ("null", "select 1", 0.0),
    }
    records = [
        {"id": uid, "db_id": "eicu", "question": "?", "query": gold, "is_impossible": gold == "null"}
        for uid, (gold, _, _) in golds.items()
    ]
    write(tmp_path / "eicu/valid.json", records)
    benchmark = load_benchmark(tmp_path)
    assert benchmark.prepare is not None
    sqls = [sql and benchmark.prepare(sql) for _, sql, _ in golds.values()]
    with Executor(threads=1) as executor:
        verdicts = score_predictions(executor, benchmark.examples, sqls, (benchmark.rule,))
    assert {verdict.uid: verdict.scores.get("ehrsql_2022") for verdict in verdicts} == {
        uid: right for uid, (_, _, right) in golds.items()
    }
    numbers = summarize(benchmark.examples, verdicts, benchmark.rule).metrics()
    # Eight questions got SQL: seven answerable ones and an unanswerable one. Three answers are right.
    wanted = {"precision_ans": 7 / 8, "recall_ans": 7 / 8, "f1_ans": 7 / 8}
    wanted |= {"precision_exec": 3 / 8, "recall_exec": 3 / 8, "f1_exec": 3 / 8}
    assert {name: numbers[f"abstention/{name}"] for name in wanted} == pytest.approx(wanted)


def test_verdict_does_not_depend_on_the_current_date(tmp_path: Path) -> None:
    """A gold and a prediction with different spellings of the current date are equal on any day."""
    database(tmp_path / "mimic_iv/mimic_iv.sqlite")
    write(tmp_path / "mimic_iv/valid/data.json", {"data": [{"id": "a", "question": "Since when?"}]})
    write(tmp_path / "mimic_iv/valid/label.json", {"a": "SELECT strftime('%Y', current_time)"})
    benchmark = load_benchmark(tmp_path)
    assert benchmark.prepare is not None
    sqls = [benchmark.prepare("SELECT strftime('%Y', 'now')"), benchmark.prepare("SELECT strftime('%Y', CURDATE())")]
    with Executor(threads=1) as executor:
        verdicts = score_predictions(executor, [*benchmark.examples] * 2, sqls, ("ehrsql",))
        rows = executor.execute(benchmark.examples[0].db_path, benchmark.examples[0].gold_sql).rows
    assert [verdict.scores for verdict in verdicts] == [{"ehrsql": 1.0}] * 2
    assert rows == [("2100",)]


def test_reliability_score_uses_its_own_rule(tmp_path: Path) -> None:
    """Check verdicts on which BIRD's rule and EHRSQL's differ, and the resulting scores."""
    database(tmp_path / "mimic_iv/mimic_iv.sqlite")
    golds = {
        "rounded": ("SELECT 0.12345", "SELECT 0.1234999"),  # right to three digits
        "text": ("SELECT 7", "SELECT '7'"),  # right: a text that is a number
        "twice": ("SELECT 1 FROM t", "SELECT 1"),  # wrong: rows are not a set
        "silent": ("SELECT a FROM t", None),
        "fails": ("SELECT nope FROM t", "SELECT nope FROM t"),  # an error, equal to no prediction
        "fails, silent": ("SELECT nope FROM t", None),
        "mute": ("null", None),
        "answered": ("null", "SELECT 1"),
    }
    write(tmp_path / "mimic_iv/valid/data.json", {"data": [{"id": uid, "question": "?"} for uid in golds]})
    write(tmp_path / "mimic_iv/valid/label.json", {uid: gold for uid, (gold, _) in golds.items()})
    benchmark = load_benchmark(tmp_path)
    with Executor(threads=1) as executor:
        verdicts = score_predictions(
            executor,
            benchmark.examples,
            [golds[example.uid][1] for example in benchmark.examples],
            (benchmark.rule, "bird"),
        )
    assert {verdict.uid: verdict.scores.get("ehrsql") for verdict in verdicts} == {
        "rounded": 1.0, "text": 1.0, "twice": 0.0, "silent": 0.0, "fails": None, "fails, silent": None,
        "mute": 1.0, "answered": 0.0,
    }  # fmt: skip
    numbers = summarize(benchmark.examples, verdicts, benchmark.rule).metrics()
    scores = [numbers[f"reliability/{cost}"] for cost in ("0", "5", "10", "N")]
    assert scores == pytest.approx([3 / 8, (3 - 3 * 5) / 8, (3 - 3 * 10) / 8, (3 - 3 * 8) / 8])
