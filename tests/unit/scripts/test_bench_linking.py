"""Sets of databases as one, and of the gold's tables alone, that `scripts/bench_linking.py --write` makes."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.data.benchmarks import load_folder
from jaxrl_sql.data.schema import read_schema
from jaxrl_sql.types import Example

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench_linking.py"
SCHOOL = """
CREATE TABLE student(id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE course(id INTEGER PRIMARY KEY, title TEXT);
CREATE TABLE taken(student_id INT REFERENCES student(id), course_id INT REFERENCES course(id));
INSERT INTO student VALUES (1, 'Ann', 'Rome'), (2, 'Bo', 'Oslo');
INSERT INTO course VALUES (1, 'Art');
INSERT INTO taken VALUES (2, 1);
"""
DORM = """
CREATE TABLE Student(id INTEGER PRIMARY KEY, room INT);
CREATE TABLE room(number INTEGER PRIMARY KEY, floor INT);
INSERT INTO Student VALUES (1, 10), (2, 11), (3, 11);
INSERT INTO room VALUES (10, 1), (11, 2);
"""


@pytest.fixture
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_linking", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_golds_answer_as_they_did_on_all_databases_and_on_their_tables_alone(bench: ModuleType, tmp_path: Path) -> None:
    for name, script in (("school", SCHOOL), ("dorm", DORM)):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as connection:
            connection.executescript(script)
    asked = [
        ("school", "SELECT count(*) FROM student"),
        ("dorm", 'SELECT count(*) FROM student WHERE student.room = "11"'),
        ("school", "SELECT T1.name FROM student AS T1 JOIN taken AS T2 ON T1.id = T2.student_id"),
        ("school", "SELECT title FROM course WHERE id IN (SELECT course_id FROM taken)"),
        ("dorm", "SELECT floor FROM room"),
        ("dorm", "SELECT nothing FROM room"),  # does not run, and is left out
    ]
    examples = [Example(f"q{i}", db, str(tmp_path / f"{db}.sqlite"), "?", sql) for i, (db, sql) in enumerate(asked)]
    assert bench.write_sets(examples, tmp_path / "sets", qualified=False) == (6, 5)
    merged, oracle = (load_folder(tmp_path / "sets" / name).examples for name in ("merged", "oracle"))
    assert [one.uid for one in merged] == [one.uid for one in oracle] == ["q0", "q1", "q2", "q3", "q4"]
    assert {one.db_id for one in merged} == {"merged"}
    for whole, alone in zip(merged, oracle, strict=True):
        found = [rows(one.db_path, one.gold_sql) for one in (whole, alone)]
        first = next(one for one in examples if one.uid == whole.uid)
        assert found == [rows(first.db_path, first.gold_sql)] * 2
    assert [table.name for table in read_schema(merged[0].db_path).tables] == [
        "dorm.Student", "room", "school.student", "course", "taken",
    ]  # fmt: skip
    shown = [{table.name for table in read_schema(one.db_path).tables} for one in oracle]
    assert shown == [{"school.student"}, {"dorm.Student"}, {"school.student", "taken"}, {"course", "taken"}, {"room"}]
    (taken,) = (table for table in read_schema(oracle[2].db_path).tables if table.name == "taken")
    assert [key.table for key in taken.foreign_keys] == ["school.student"]


def rows(path: str, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()
