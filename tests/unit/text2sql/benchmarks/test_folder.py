"""The folder loader: accepted questions, skipped questions with reasons, and errors."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.benchmarks import load_folder, load_split, summarize_skipped
from jaxrl_sql.types import InputError


def _database(folder: Path, db_id: str) -> Path:
    path = folder / "databases" / db_id / f"{db_id}.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a)")
        connection.commit()
    return path


def _question(**changes: object) -> dict[str, object]:
    record: dict[str, object] = {"id": "q1", "db_id": "d", "question": " How many? ", "sql": "SELECT 1 "}
    record.update(changes)
    return {key: value for key, value in record.items() if value is not None}


def _write(folder: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    (folder / "questions.jsonl").write_text(text + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _database(tmp_path, "d")
    return tmp_path


def test_question_becomes_an_example(folder: Path) -> None:
    _write(folder, _question(evidence="e", difficulty="hard"))
    (example,) = load_folder(folder).examples
    assert (example.uid, example.db_id, example.question, example.gold_sql) == ("q1", "d", "How many?", "SELECT 1")
    assert (example.evidence, example.difficulty) == ("e", "hard")
    assert example.db_path == str(folder / "databases/d/d.sqlite")


def test_optional_fields_may_be_missing_and_ids_may_be_numbers(folder: Path) -> None:
    _write(folder, _question(id=7), "", _question(id=8, difficulty=2, evidence=None))
    first, second = load_folder(folder).examples
    assert (first.uid, first.evidence, first.difficulty) == ("7", "", "")
    assert (second.uid, second.difficulty) == ("8", "2")


def test_demonstration_is_taught_and_the_gold_judges(folder: Path) -> None:
    _write(folder, _question(demonstration=" SELECT 1, 2 "), _question(id="q2", demonstration=3))
    first, second = load_folder(folder).examples
    assert (first.gold_sql, first.demonstration, first.target_sql) == ("SELECT 1", "SELECT 1, 2", "SELECT 1, 2")
    assert (second.demonstration, second.target_sql) == ("", "SELECT 1")


def test_order_and_limit(folder: Path) -> None:
    _write(folder, *[_question(id=f"q{i}", db_id="none" if i == 0 else "d") for i in range(5)])
    assert [example.uid for example in load_folder(folder, limit=2).examples] == ["q1", "q2"]
    assert len(load_folder(folder).examples) == 4


def test_split_is_a_folder_of_the_root(tmp_path: Path) -> None:
    _database(tmp_path / "dev", "d")
    _write(tmp_path / "dev", _question())
    assert [example.uid for example in load_split(tmp_path, "dev").examples] == ["q1"]


def test_line_separators_inside_strings_do_not_end_a_line(folder: Path) -> None:
    _write(folder, _question(question="a\u2028b\u0085c"))
    assert load_folder(folder).examples[0].question == "a\u2028b\u0085c"


def test_unusable_questions_are_skipped_with_a_reason(folder: Path) -> None:
    corrupt = folder / "databases/bad/bad.sqlite"
    corrupt.parent.mkdir()
    corrupt.write_bytes(b"this is not a database" * 100)
    empty = folder / "databases/empty/empty.sqlite"
    empty.parent.mkdir()
    empty.touch()
    _write(
        folder,
        _question(),
        _question(),
        _question(id="q2", db_id="nowhere"),
        _question(id="q3", db_id="bad"),
        _question(id="q4", db_id="bad"),
        _question(id="q5", db_id="../d"),
        _question(id="q6", sql="  "),
        _question(id="q7", question=None, db_id=None),
        _question(id=None),
        _question(id="q8", sql=3),
        _question(id="q9", db_id="empty"),
    )
    loaded = load_folder(folder)
    assert [example.uid for example in loaded.examples] == ["q1"]
    assert loaded.skipped == (
        ("q1", "duplicate id"),
        ("q2", "no database nowhere"),
        ("q3", "database bad is corrupt"),
        ("q4", "database bad is corrupt"),
        ("q5", "db_id '../d' is not a folder name"),
        ("q6", "no sql"),
        ("q7", "no db_id, question"),
        ("line 9", "no id"),
        ("q8", "no sql"),
        ("q9", "database empty has no tables"),
    )
    assert "skipped 2 (database bad is corrupt), such as q3" in summarize_skipped(loaded.skipped)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{not json", "not JSON"),
        ("[1]", "expected a JSON object, found list"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5_000, "not JSON"),
    ],
    ids=["text", "list", "deep", "digits"],
)
def test_malformed_line_is_named_by_file_and_number(folder: Path, line: str, what: str) -> None:
    _write(folder, _question(), "", line)
    with pytest.raises(InputError, match=rf"questions\.jsonl:3: {what}") as caught:
        load_folder(folder)
    assert "\n" not in str(caught.value)


def test_invalid_utf8_is_named_by_file_and_number(folder: Path) -> None:
    (folder / "questions.jsonl").write_bytes(json.dumps(_question()).encode() + b'\n{"id": "\xff"}\n')
    with pytest.raises(InputError, match=r"questions\.jsonl:2: not UTF-8"):
        load_folder(folder)


def test_empty_folder_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"questions\.jsonl: no such file"):
        load_folder(folder)
    _write(folder, _question(db_id="x"), _question(db_id="x", id="q2"))
    with pytest.raises(InputError, match=r"no usable question \(no database x: 2;"):
        load_folder(folder)
    (folder / "questions.jsonl").write_text("\n")
    with pytest.raises(InputError, match="the file is empty"):
        load_folder(folder)


def test_reasoning_and_dialect_are_read_and_an_unknown_dialect_is_skipped(folder: Path) -> None:
    _write(folder, _question(reasoning=" because ", dialect="mysql"), _question(id="q2"), _question(id=3, dialect="t"))
    loaded = load_folder(folder)
    assert [(example.reasoning, example.dialect) for example in loaded.examples] == [
        ("because", "mysql"),
        ("", "sqlite"),
    ]
    assert loaded.skipped == (("3", "dialect 't' is not one of sqlite, mysql, postgresql, duckdb"),)


def test_other_golds_are_read(folder: Path) -> None:
    _write(
        folder, _question(other_sql=["SELECT 2 ", "", 3]), _question(id="q2", other_sql="SELECT 2"), _question(id="q3")
    )
    golds = [example.golds for example in load_folder(folder).examples]
    assert golds[0] == [golds[2], "SELECT 2"]
    assert golds[1] == golds[2]
    assert isinstance(golds[2], str)
