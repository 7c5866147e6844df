"""Tables of one's own as spreadsheets and people write them, and what else lies in their folder."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.data.benchmarks import load_benchmark, load_split
from jaxrl_sql.types import InputError


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a folder with one database, in which questions are put."""
    return make_shop(tmp_path / "shop")


def make_shop(folder: Path) -> Path:
    folder.mkdir(parents=True)
    make_database(folder / "shop.sqlite")
    return folder


def make_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")


def asked(folder: Path, split: str = "train") -> list[tuple[str, str]]:
    return [(one.question, one.gold_sql) for one in load_benchmark(folder, split).examples]


def plain(folder: Path, question: str) -> None:
    """Write a set in the plain layout."""
    make_shop(folder / "databases/shop")
    line = {"id": "p", "db_id": "shop", "question": question, "sql": "SELECT 0"}
    (folder / "questions.jsonl").write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize("name", ["train.csv", "data/train.csv", "train.jsonl", "train-00000-of-00001.json"])
def test_a_splits_file_wins_over_a_folder_that_begins_as_it(shop: Path, name: str) -> None:
    plain(shop / "train_more", "Other?")
    assert asked(shop) == [("Other?", "SELECT 0")]
    (shop / "data").mkdir()
    own = "question,sql\nOwn?,SELECT 1\n" if name.endswith("csv") else '{"question": "Own?", "sql": "SELECT 1"}'
    (shop / name).write_text(own)
    assert asked(shop) == [("Own?", "SELECT 1")]
    assert [one.question for one in load_split(shop, "train").examples] == ["Own?"]
    plain(shop / "train", "Named?")
    assert asked(shop) == [("Named?", "SELECT 0")]


def test_a_splits_file_without_questions_is_not_replaced_in_silence(shop: Path) -> None:
    (shop / "train_more").mkdir()
    for name in ("train.json", "train_more/train.csv"):
        (shop / name).write_text("question,sql\nQ?,SELECT 1\n")
    with pytest.raises(InputError, match=r"no questions in a format that is known: it holds shop\.sqlite, train\.json"):
        load_benchmark(shop, "train")
