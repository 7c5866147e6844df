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


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_what_excel_writes_keeps_its_signs(shop: Path, ending: str) -> None:
    question, sql = "Who’s “in” – for 5 €?", "SELECT '’“”–€é'"
    text = (
        f"question,sql\n{question},{sql}\n"
        if ending == "csv"
        else json.dumps({"question": question, "sql": sql}, ensure_ascii=False)
    )
    (shop / f"train.{ending}").write_bytes(text.encode("cp1252"))
    assert asked(shop) == [(question, sql)]
    (note,) = load_benchmark(shop, "train").notes
    assert note.startswith(f"train.{ending}: 11 bytes are not UTF-8 and were read as Windows-1252, the first in line ")
    assert "Who’s" in note


def test_every_byte_is_read(shop: Path) -> None:
    every = bytes(range(0x80, 0x100))
    (shop / "train.csv").write_bytes(b"question,sql\n" + every + b",SELECT 1\n")
    ((question, _),) = asked(shop)
    assert [question[n - 0x80] for n in (0x80, 0x81, 0x8D, 0x8F, 0x90, 0x9D, 0x9F, 0xA9, 0xFF)] == [
        "€", "\x81", "\x8d", "\x8f", "\x90", "\x9d", "Ÿ", "©", "ÿ",
    ]  # fmt: skip
