"""A tokenizer that reads the names of compact schemas in lower case, and questions as they are."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer

from jaxrl_sql.data.benchmarks import load_folder
from jaxrl_sql.datagen.synth.__main__ import main as synth

ROOT = Path(__file__).parents[3]
START = ROOT / "configs/quickstart_start"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lower_names", ROOT / "scripts/lower_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_of_a_schema_are_small_and_the_question_stays(script: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "lower"
    assert script.main([str(START), str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {path.name for path in START.iterdir()}
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    schema = "Stadium(Stadium_ID, Name)\nsinger(SingerID, home=Stadium.Stadium_ID, IsMale)\n"
    question = "Which Singers of Asia have the name Joe Sharp?"
    text = tokenizer.decode(tokenizer.encode(schema + question).ids)
    assert text == schema.lower() + question
    before = Tokenizer.from_file(str(START / "tokenizer.json"))
    assert before.encode(schema.lower() + question).ids == tokenizer.encode(schema + question).ids


def test_golds_of_a_set_name_what_is_read(script: ModuleType, tmp_path: Path) -> None:
    made = ["--style", "grammar", "--seed", "3", "--train-dbs", "8", "--train-questions", "6", "--splits", "train"]
    assert synth([*made, "--out", str(tmp_path / "set")]) == 0
    assert script.main([str(tmp_path / "set"), str(tmp_path / "small")]) == 0
    before, after = (load_folder(tmp_path / name / "train").examples for name in ("set", "small"))
    assert [one.question for one in before] == [one.question for one in after]
    assert {one.gold_sql.lower() for one in before} == {one.gold_sql.lower() for one in after}
    assert sum(one.gold_sql != other.gold_sql for one, other in zip(before, after, strict=True)) > 10
    for one, other in zip(before, after, strict=True):
        with closing(sqlite3.connect(one.db_path)) as connection:
            first, second = (connection.execute(sql).fetchall() for sql in (one.gold_sql, other.gold_sql))
        assert first == second
    names = {"singer", "name"}
    assert script.lower_sql("SELECT Name FROM Singer WHERE Name = 'Name' AND \"Name\" > Age", names) == (
        "SELECT name FROM singer WHERE name = 'Name' AND \"name\" > Age"
    )


def test_folders_that_cannot_be_used_are_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert "no tokenizer.json" in capsys.readouterr().err
    assert script.main([str(START), str(tmp_path)]) == 2
    assert "is there" in capsys.readouterr().err
