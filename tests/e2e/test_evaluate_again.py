"""A folder of an evaluation that is asked again in other words, and evaluations of other questions side by side."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.evaluate import main
from jaxrl_sql.run.benchmark_evaluation import answer_settings, judge_settings
from jaxrl_sql.run.benchmark_sets import open_sets

DOUBLED = "SELECT x FROM t UNION ALL SELECT x FROM t"  # bird compares sets of rows, refined counts them
GOLD = "SELECT x FROM t"


def make_set(folder: Path, sqls: tuple[str, str], asks: str = "") -> list[str]:
    """Make a benchmark of two questions and their predictions; return what to call `evaluate` with."""
    (folder / "databases/d").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "databases/d/d.sqlite")) as connection:
        connection.executescript("CREATE TABLE t (x INT); INSERT INTO t VALUES (1), (2);")
    lines = [
        {"id": str(i), "db_id": "d", "question": f"{asks}{i}?", "sql": GOLD, "pred_sql": sql}
        for i, sql in enumerate(sqls)
    ]
    write(folder / "questions.jsonl", [{k: v for k, v in line.items() if k != "pred_sql"} for line in lines])
    write(folder.with_suffix(".predictions"), [{"id": line["id"], "pred_sql": line["pred_sql"]} for line in lines])
    return ["--data", str(folder), "--predictions", str(folder.with_suffix(".predictions"))]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def judge(out: Path, *arguments: str) -> int:
    return main(
        [*arguments, "--field", "pred_sql", "--out", str(out), "run.display=plain", "executor.timeout_ms=60000"]
    )


def numbers(out: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((out / "metrics.json").read_text())
    return found


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def test_sets_in_another_order_keep_their_own_answers(tmp_path: Path) -> None:
    right, wrong = make_set(tmp_path / "right", (GOLD, GOLD)), make_set(tmp_path / "wrong", ("SELECT 9", "SELECT 8"))
    assert judge(tmp_path / "out", *right, *wrong) == 0
    before = numbers(tmp_path / "out")
    assert (before["right/accuracy"], before["wrong/accuracy"]) == (1.0, 0.0)
    assert judge(tmp_path / "out", *wrong, *right) == 0
    assert numbers(tmp_path / "out") == before
    assert {(one["set"], one["sql"]) for one in records(tmp_path / "out")} == {
        ("right", GOLD), ("wrong", "SELECT 9"), ("wrong", "SELECT 8"),
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_verdicts_on_a_database_that_was_written_to_are_not_taken(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = make_set(tmp_path / "a", (GOLD, "SELECT x FROM t WHERE x < 3"))
    with closing(sqlite3.connect(tmp_path / "a/databases/d/d.sqlite")) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        assert judge(tmp_path / "out", *asked) == 0
        assert numbers(tmp_path / "out")["accuracy"] == 1.0
        assert judge(tmp_path / "out", *asked) == 0
        capsys.readouterr()
        connection.execute("INSERT INTO t VALUES (3)")
        connection.commit()
        assert judge(tmp_path / "out", *asked) == 2
        assert "was begun with sets=" in capsys.readouterr().err
        assert judge(tmp_path / "new", *asked) == 0
        assert numbers(tmp_path / "new")["accuracy"] == 0.5


@pytest.mark.parametrize("rule", ["r_ves", "r_ves_alternate"])
def test_a_rule_of_speed_may_be_the_benchmarks_own(rule: str, tmp_path: Path) -> None:
    asked = make_set(tmp_path / "a", (GOLD, "SELECT 9"))
    assert judge(tmp_path / "out", *asked, f"evaluate.rule={rule}") == 0
    one, other = records(tmp_path / "out")
    assert (one["own"], other["own"]) == (rule, rule)
    assert one["scores"][rule] > other["scores"][rule] == 0.0


def test_another_rule_of_the_same_answers_is_the_records_own(tmp_path: Path) -> None:
    asked = make_set(tmp_path / "a", (GOLD, DOUBLED))
    assert judge(tmp_path / "out", *asked, "evaluate.rule=bird") == 0
    assert (numbers(tmp_path / "out")["accuracy"], records(tmp_path / "out")[0]["own"]) == (1.0, "bird")
    assert judge(tmp_path / "out", *asked, "evaluate.rule=refined") == 0
    assert (numbers(tmp_path / "out")["accuracy"], records(tmp_path / "out")[0]["own"]) == (0.5, "refined")


def test_several_answers_are_judged_by_the_rule_that_they_were_begun_with(tmp_path: Path) -> None:
    make_set(tmp_path / "a", (GOLD, GOLD))

    def settings(rule: str, samples: int) -> tuple[dict[str, Any], dict[str, Any]]:
        asked = [f"evaluate.data=[{tmp_path / 'a'}]", f"evaluate.rule={rule}", f"evaluate.samples={samples}"]
        config = load_config(None, [*asked, "evaluate.temperature=1.0"])
        sets = open_sets(config, [])
        return answer_settings(config, sets), judge_settings(config, sets)

    assert settings("bird", 1) == settings("refined", 1)
    (answers, judged), (same, others) = settings("bird", 4), settings("refined", 4)
    assert answers == same
    assert judged != others


def test_questions_that_share_an_id_alone_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(tmp_path / "one", *make_set(tmp_path / "a", (GOLD, GOLD))) == 0
    assert judge(tmp_path / "two", *make_set(tmp_path / "b", ("SELECT 9", "SELECT 9"), "Reworded ")) == 0
    capsys.readouterr()
    assert main(["--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0  # golds and databases are the same
    assert "2 questions changed by bird" in capsys.readouterr().out

    first, second = records(tmp_path / "two")
    write(tmp_path / "two/records.jsonl", [first, {**second, "gold_sql": "SELECT 9"}])
    assert main(["--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    shown = capsys.readouterr().out
    assert f"1 questions are others in {tmp_path / 'two'} and not compared (1)" in shown
    assert "1 questions changed by bird" in shown
    write(tmp_path / "two/records.jsonl", [{**one, "db_id": "another"} for one in (first, second)])
    assert main(["--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "have no question in common, only ids: 0, 1" in capsys.readouterr().err
