"""Dataset augmentation with a real server: rows, tables and corrections; existing data are unchanged."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands.augment import main
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.text2sql.schema.describe import read_descriptions

SCHOOL = """
CREATE TABLE student(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, age INT CHECK (age < 200));
CREATE TABLE pet(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, student_id INT NOT NULL REFERENCES student(id));
INSERT INTO student VALUES (1, 'Ann', 20), (2, 'Bob', 21);
INSERT INTO pet VALUES (1, 'cat', 1), (2, 'cat', 2);
"""
SHOP = """
CREATE TABLE item(code TEXT PRIMARY KEY, price REAL);
CREATE TABLE STUDENT(other);
CREATE TABLE sale(item TEXT REFERENCES item(code), at DATE);
INSERT INTO item VALUES ('a', 1.5), ('b', 2.5), ('c', 3.5);
INSERT INTO sale VALUES ('a', '2020-01-01'), ('c', '2020-01-02');
"""
QUESTIONS = [
    ("all", "school", "SELECT name FROM student"),
    ("catless", "school", "SELECT name FROM student WHERE id NOT IN (SELECT student_id FROM pet WHERE kind = 'cat')"),
    ("dog", "school", "SELECT s.name FROM student s JOIN pet p ON p.student_id = s.id WHERE p.kind = 'dog'"),
    ("old", "school", "SELECT name FROM student WHERE age > 90"),
    ("never", "school", "SELECT name FROM student WHERE age > 500"),
    ("none", "school", "SELECT count(*) FROM student WHERE name = 'Zoe'"),
    ("fails", "school", "SELECT nme FROM student"),
    ("hopeless", "school", "SELECT nope FROM nowhere"),
    ("sold", "shop", "SELECT price FROM item JOIN sale ON sale.item = item.code"),
]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    split = tmp_path / "data/train"
    for name, script in (("school", SCHOOL), ("shop", SHOP)):
        path = split / f"databases/{name}/{name}.sqlite"
        path.parent.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
    questions = [{"id": uid, "db_id": db_id, "question": f"<{uid}>", "sql": sql} for uid, db_id, sql in QUESTIONS]
    (split / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    return ["data.source=folder", f"data.dir={tmp_path}/data", f"augment.out={tmp_path}/out"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file, ignoring gold execution times."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(re.sub(rb'"ms": [0-9.]+', b"", path.read_bytes())).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_rows_are_inserted_until_golds_return_rows(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digests(tmp_path / "data")
    assert main([*arguments, "augment.fill=empty"]) == 0
    assert digests(tmp_path / "data") == before
    out = tmp_path / "out"
    path = out / "databases/school/school.sqlite"
    assert {line["id"] for line in lines(out / "questions.jsonl")} == {"all", "catless", "dog", "old", "none", "sold"}
    changed = {line["id"]: line for line in lines(out / "changes.jsonl")}
    assert set(changed) == {"catless", "dog", "old"}
    assert all(line["step"] == "fill" and line["inserted"] for line in changed.values())
    dropped = {line["id"]: line for line in lines(out / "dropped.jsonl")}
    assert set(dropped) == {"never", "fails", "hopeless"}
    assert dropped["never"]["reason"] == "gold empty"
    assert "CHECK" in dropped["never"]["tried"]
    for line in lines(out / "questions.jsonl"):
        if line["db_id"] == "school":
            assert run(path, line["sql"]), line
    assert run(path, "PRAGMA foreign_key_check") == []
    assert run(path, "PRAGMA integrity_check") == [("ok",)]
    rows = sum(len(line["inserted"]) for line in changed.values())
    assert run(path, "SELECT (SELECT count(*) FROM student) + (SELECT count(*) FROM pet)") == [(4 + rows,)]
    output = capsys.readouterr().out
    assert "golds with inserted rows" in output
    counts = json.loads((out / "counts.json").read_text())
    assert (counts["questions"], counts["kept"], counts["rows inserted"]) == (9, 6, rows)
    assert len(load_folder(out).examples) == 6


def test_zero_counts_are_filled_if_configured(arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "augment.fill=trivial"]) == 0
    path = tmp_path / "out/databases/school/school.sqlite"
    assert run(path, {uid: sql for uid, _, sql in QUESTIONS}["none"]) == [(1,)]


def test_added_tables_keep_gold_results(arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "augment.distractors=5", "augment.distractor_rows=2"]) == 0
    out, data = tmp_path / "out", tmp_path / "data/train"
    school, shop = (out / f"databases/{name}/{name}.sqlite" for name in ("school", "shop"))
    names = "SELECT lower(name) FROM sqlite_master WHERE type = 'table' ORDER BY 1"
    # Existing table names are not added: STUDENT to the school, student to the shop.
    assert run(school, names) == [("item",), ("pet",), ("sale",), ("student",)]
    assert run(shop, names) == [("item",), ("pet",), ("sale",), ("student",)]
    assert run(school, "SELECT count(*) FROM item") == [(2,)]
    # A sale is omitted if its item was omitted.
    assert run(school, "SELECT item FROM sale") == [("a",)]
    assert run(school, "PRAGMA foreign_key_list(sale)")[0][2] == "item"
    assert run(shop, "PRAGMA foreign_key_list(pet)") == []
    for line in lines(out / "questions.jsonl"):
        name = line["db_id"]
        original = data / f"databases/{name}/{name}.sqlite"
        assert run(out / f"databases/{name}/{name}.sqlite", line["sql"]) == run(original, line["sql"])
    added = [(line["id"], line["table"], line["from"]) for line in lines(out / "changes.jsonl")]
    assert sorted(added) == [("school", "item", "shop"), ("school", "sale", "shop"), ("shop", "pet", "school")]


class Model:
    """Corrects one gold on the second attempt and never the other; writes rows, wrong ones first."""

    def __init__(self, chat_server: ModuleType) -> None:
        self.assistant = chat_server.assistant

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        assert "CREATE TABLE" in text
        if "returns no rows" in text:
            if "age > 500" not in text:
                return self.assistant("no")
            if "no good" in text:
                return self.assistant("```sql\nINSERT INTO student VALUES (9, 'Old', 600);\n```")
            return self.assistant("```sql\nDELETE FROM student\n```")
        if "<hopeless>" in text:
            return self.assistant("I do not know.")
        assert "<fails>" in text
        assert "nme" in text
        return self.assistant(
            "```sql\nSELECT name FROM student\n```" if "nme2" in text else "```sql\nSELECT nme2 FROM student\n```"
        )


@pytest.fixture
def with_model(arguments: list[str]) -> list[str]:
    return [
        *arguments, "distill.model=m", "distill.key_env=''", "distill.retries=0", "augment.correct=2",
        "augment.fill=empty", "augment.fill_tries=2",
    ]  # fmt: skip


def test_failing_golds_are_corrected_and_existing_rows_kept(
    with_model: list[str], tmp_path: Path, chat_server: ModuleType
) -> None:
    with chat_server.serve_script(Model(chat_server)) as (url, seen):
        assert main([*with_model, f"distill.base_url={url}"]) == 0
        count = len(seen)
        assert count == 2 + 2 + 2
        # A second run sends no requests and gives the same result.
        result = digests(tmp_path / "out")
        assert main([*with_model, f"distill.base_url={url}"]) == 0
        assert len(seen) == count
        assert digests(tmp_path / "out") == result
    questions = {line["id"]: line for line in lines(tmp_path / "out/questions.jsonl")}
    assert questions["fails"]["sql"] == "SELECT name FROM student"
    assert questions["fails"]["was"] == "SELECT nme FROM student"
    dropped = {line["id"]: line for line in lines(tmp_path / "out/dropped.jsonl")}
    assert dropped["hopeless"]["reason"] == "gold fails: schema_error"
    assert dropped["hopeless"]["tried"].startswith("correct: ")
    # The CHECK refuses the rows for "never", and a DELETE is not an INSERT.
    assert "never" in dropped
    assert dropped["never"]["tried"].startswith("fill: ")
    assert run(tmp_path / "out/databases/school/school.sqlite", "SELECT count(*) FROM student WHERE id < 3") == [(2,)]


def test_truncated_answers_are_ignored(with_model: list[str], tmp_path: Path, chat_server: ModuleType) -> None:
    """Each text would be valid: the query only lacks its WHERE; row, wording and SQL are complete."""

    def script(_number: int, body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        if "in other words" in text:
            return chat_server.assistant("Who goes to this school?", finish_reason="length")
        row = "INSERT INTO student VALUES (9, 'Old', 199)"
        sql = row if "returns no rows" in text else "SELECT name FROM student"
        return chat_server.assistant(f"```sql\n{sql}\n```", finish_reason="length")

    command = [*with_model, "augment.correct=1", "augment.fill_tries=1", "augment.reword=1"]
    with chat_server.serve_script(script) as (url, seen):
        assert main([*command, f"distill.base_url={url}"]) == 0
        count = len(seen)
        assert main([*command, f"distill.base_url={url}"]) == 0
        assert len(seen) == count, "truncated answers are not requested again"
    tried = {line["id"]: line["tried"] for line in lines(tmp_path / "out/dropped.jsonl") if "tried" in line}
    assert set(tried) >= {"fails", "hopeless"}
    assert all(
        "the endpoint's answer is truncated (length; distill.max_tokens=4096)" in reason for reason in tried.values()
    )
    assert not [line for line in lines(tmp_path / "out/changes.jsonl") if line["step"] in ("correct", "reword")]
    answers = [line for line in lines(tmp_path / "out/work.jsonl") if "try" in line]
    assert {answer["finish_reason"] for answer in answers} == {"length"}
    assert {answer["step"] for answer in answers} >= {"correct", "reword"}


class Writer:
    """Rewords two questions, one of them incorrectly, and answers questions literally."""

    def __init__(self, chat_server: ModuleType) -> None:
        self.assistant = chat_server.assistant

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        if "in other words" in text:
            assert "-- Its answer: SELECT" in text
            answers = {"<all>": "Who goes to this school?", "<sold>": "What do things cost?"}
            return self.assistant(next(item for mark, item in answers.items() if mark in text))
        sql_by_text = {"Who goes": "SELECT name FROM student", "cost": "SELECT price FROM item"}
        return self.assistant(f"```sql\n{next(sql for message, sql in sql_by_text.items() if message in text)}\n```")


def test_questions_are_reworded_if_the_rows_stay_equal(
    arguments: list[str], tmp_path: Path, chat_server: ModuleType
) -> None:
    command = [*arguments, "distill.model=m", "distill.key_env=''", "distill.retries=0", "augment.reword=1"]
    with chat_server.serve_script(Writer(chat_server)) as (url, seen):
        assert main([*command, f"distill.base_url={url}"]) == 0
        count = len(seen)
        assert count == 2 + 2  # the golds that return rows, and their new wordings
        assert main([*command, f"distill.base_url={url}"]) == 0
        assert len(seen) == count
    [change] = [line for line in lines(tmp_path / "out/changes.jsonl") if line["step"] == "reword"]
    assert (change["id"], change["question"]) == ("all", "Who goes to this school?")
    questions = {line["id"]: line["question"] for line in lines(tmp_path / "out/questions.jsonl")}
    assert questions["all"] == "Who goes to this school?"
    assert (questions["sold"], change["was"]) == ("<sold>", "<all>")
    assert json.loads((tmp_path / "out/counts.json").read_text())["questions reworded"] == 1


def test_request_limit_holds_across_runs(
    with_model: list[str], tmp_path: Path, chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server.serve_script(Model(chat_server)) as (url, seen):
        bounded = [*with_model, f"distill.base_url={url}"]
        assert main([*bounded, "distill.max_requests=2"]) == 0
        assert len(seen) == 2
        assert "increase it to continue" in capsys.readouterr().out
        assert main([*bounded, "distill.max_requests=20"]) == 0
        assert len(seen) == 6
    assert {line["id"] for line in lines(tmp_path / "out/questions.jsonl")} >= {"fails", "dog"}


def test_a_killed_run_resumes_from_finished_databases(arguments: list[str], tmp_path: Path) -> None:
    chosen = [*arguments, "augment.fill=empty", "augment.distractors=2"]
    assert main(chosen) == 0
    out = tmp_path / "out"
    result = digests(out)
    stamp = (out / "databases/school/school.sqlite").stat().st_mtime_ns
    journal = (out / "work.jsonl").read_text().splitlines(keepends=True)
    (out / "work.jsonl").write_text("".join(journal[:2]) + journal[2][:20])
    (out / "databases/shop/shop.sqlite").rename(out / "databases/shop/shop.part")
    (out / "questions.jsonl").unlink()
    assert main(chosen) == 0
    assert digests(out) == result
    assert (out / "databases/school/school.sqlite").stat().st_mtime_ns == stamp


def test_invalid_folders_and_numbers_are_reported(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, f"augment.out={tmp_path}/data/train"]) == 2
    assert "no work.jsonl" in capsys.readouterr().err
    assert main([*arguments, "augment.correct=1"]) == 2
    assert "distill.base_url" in capsys.readouterr().err
    assert main([*arguments, "augment.fill=everything"]) == 2
    assert main(arguments) == 0
    assert main([*arguments, "augment.distractors=1"]) == 2
    assert "was started with" in capsys.readouterr().err


def test_column_descriptions_are_copied_with_databases(arguments: list[str], tmp_path: Path) -> None:
    split = tmp_path / "data/train"
    written = split / "databases/school/database_description/student.csv"
    written.parent.mkdir()
    written.write_text("original_column_name,column_description\nage,age in years\n")
    names = {"db_id": "shop", "table_names_original": ["item"], "column_names_original": [[-1, "*"], [0, "code"]]}
    (split / "tables.json").write_text(json.dumps([{**names, "column_names": [[-1, "*"], [0, "number of the item"]]}]))
    assert main(arguments) == 0
    copies = tmp_path / "out/databases"
    assert read_descriptions(copies / "school/school.sqlite").of("student", "age") == "age in years"
    assert read_descriptions(copies / "shop/shop.sqlite").of("item", "code") == "number of the item"


def test_duplicate_database_names_are_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, rows in (("north", "(1)"), ("south", "(1), (2)")):
        (tmp_path / "own" / place).mkdir(parents=True)
        with closing(sqlite3.connect(tmp_path / "own" / place / "shop.sqlite")) as connection:
            connection.executescript(f"CREATE TABLE t(x); INSERT INTO t VALUES {rows};")
    questions = [{"question": f"In the {item}?", "sql": "SELECT x FROM t", "db_path": f"{item}/shop.sqlite"}
             for item in ("north", "south")]  # fmt: skip
    (tmp_path / "own/train.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    assert main([*arguments, f"data.dir={tmp_path}/own"]) == 2
    assert "north/shop.sqlite" in (output := capsys.readouterr().err)
    assert "both have the name shop" in output
    assert not (tmp_path / "out").exists()


def test_arctic_filters_run_last(arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "filter.min_sql_characters=57"]) == 0
    remaining = {line["id"] for line in lines(tmp_path / "out/questions.jsonl")}
    assert remaining == {"sold"}
    reasons = {line["id"]: line["reason"] for line in lines(tmp_path / "out/dropped.jsonl")}
    assert reasons["all"] == "gold under 57 characters"
    assert reasons["dog"] == "gold empty"


def test_a_question_with_a_lone_surrogate_is_written(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "data/train/questions.jsonl"
    path.write_text(path.read_text().replace("<all>", r"\ud83d all"))
    assert main([*arguments, "augment.fill=empty"]) == 0
    assert {line["question"] for line in lines(tmp_path / "out/questions.jsonl")} >= {"? all"}


@pytest.mark.parametrize("change", ["question", "gold", "rows"])
def test_a_changed_set_is_refused(
    change: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "augment.fill=empty"]) == 0
    capsys.readouterr()
    split = tmp_path / "data/train"
    questions = split / "questions.jsonl"
    if change == "rows":
        with closing(sqlite3.connect(split / "databases/shop/shop.sqlite")) as connection:
            connection.execute("DELETE FROM sale")
            connection.commit()
    else:
        old, new = {"question": ("<all>", "<each>"), "gold": ("age > 90", "age > 91")}[change]
        questions.write_text(questions.read_text().replace(old, new))
    before = digests(tmp_path / "out")
    assert main([*arguments, "augment.fill=empty"]) == 2
    output = capsys.readouterr().err
    assert "was started with questions='9 questions, " in output
    assert output.count("\n") == 1
    assert digests(tmp_path / "out") == before
