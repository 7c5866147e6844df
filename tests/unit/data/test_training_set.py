"""The training set: one function makes it, so that each command sees the very questions that training sees."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import DataConfig, ExecutorConfig, TrainConfig
from jaxrl_sql.data.source import training_questions
from jaxrl_sql.filter_data import ask
from jaxrl_sql.runtime.display import Display
from jaxrl_sql.sources import load_questions
from jaxrl_sql.sqlenv.executor import make_executor

MODEL = Path(__file__).parents[3] / "configs" / "quickstart_start"


class Notes(list[str]):
    def note(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    path = tmp_path / "train" / "databases" / "d" / "d.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1);")
    questions = [{"id": f"q{i}", "db_id": "d", "question": f"Which {i}?", "sql": "SELECT x FROM t"} for i in range(12)]
    (tmp_path / "train" / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    return DataConfig(source="folder", dir=str(tmp_path), evals=["train"], mysql_share=0.5, tokenizer=str(MODEL))


@pytest.mark.parametrize("keep", ["", "q1\nq2\nq5\nq6\n"])
def test_the_share_of_mysql_is_that_of_training(data: DataConfig, keep: str, tmp_path: Path) -> None:
    if keep:
        (tmp_path / "ids").write_text(keep)
        object.__setattr__(data, "keep", str(tmp_path / "ids"))
    notes: Display = Notes()  # type: ignore[assignment]
    config = TrainConfig(data=data)
    with make_executor(ExecutorConfig(threads=1)) as executor:
        trained, _ = load_questions(config, executor, notes)
    assert {one.dialect for one in trained} == {"sqlite", "mysql"}
    chosen = training_questions(data).examples
    assert list(chosen) == list(trained)
    asked = {prompt.uid: "MySQL" in prompt.text for prompt in ask(config, chosen).prompts}
    assert asked == {one.uid: one.dialect == "mysql" for one in trained}
