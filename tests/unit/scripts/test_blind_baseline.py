"""What answers earn that ignore the question, on a set that is worked out by hand."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/blind_baseline.py"
# The number of rows of the first table is right on two questions of `zoo` and on one of `bank`; no answer is on more.
QUESTIONS = (
    ("zoo", "SELECT COUNT(*) FROM animal"),
    ("zoo", "SELECT COUNT(*) FROM animal WHERE id < 9"),
    ("zoo", 'SELECT name FROM "the keeper"'),
    ("bank", "SELECT COUNT(*) FROM branch"),
    ("bank", "SELECT town FROM branch"),
    ("bank", "SELECT id FROM branch WHERE id = 7"),
)


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("blind_baseline", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path: Path) -> Path:
    scripts = {
        "zoo": "CREATE TABLE animal(id); INSERT INTO animal VALUES (1), (2);"
        'CREATE TABLE "the keeper"(name); INSERT INTO "the keeper" VALUES (\'Ada\');',
        "bank": "CREATE TABLE branch(id, town); INSERT INTO branch VALUES (1, 'Rome'), (2, 'Oslo'), (7, 'Rome');",
    }
    for name, script in scripts.items():
        path = tmp_path / f"set/databases/{name}/{name}.sqlite"
        path.parent.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
    asked = [{"id": f"{at}", "db_id": db_id, "question": f"<{at}>", "sql": sql}
             for at, (db_id, sql) in enumerate(QUESTIONS)]  # fmt: skip
    (tmp_path / "set/questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    return tmp_path / "set"


def test_the_best_rule_and_the_best_answer_of_each_database(
    script: ModuleType, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--data", str(data)]) == 0
    assert capsys.readouterr().out == (
        "6 questions, rule test_suite\n"
        "best rule, the number of rows of table 1: 50.0 % (3)\n"
        "best answer of each database, golds in sight: 50.0 % (3)\n"
    )
    assert script.best({("a", "x"): 3, ("a", "y"): 1, ("b", "x"): 0, ("b", "y"): 2}) == (("x", 3), 5)


def test_a_folder_that_is_no_set_is_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--data", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
