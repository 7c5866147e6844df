"""Users' tables from spreadsheets and editors, and other files in their folder."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.benchmarks.benchmark import label_notes
from jaxrl_sql.text2sql.question_sets.stream import open_stream
from jaxrl_sql.types import InputError


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a folder with one database, for files of questions."""
    return make_shop(tmp_path / "shop")


def make_shop(folder: Path) -> Path:
    folder.mkdir(parents=True)
    make_database(folder / "shop.sqlite")
    return folder


def make_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")


def question_pairs(folder: Path, split: str = "train") -> list[tuple[str, str]]:
    return [(example.question, example.gold_sql) for example in load_benchmark(folder, split).examples]


def plain(folder: Path, question: str) -> None:
    """Write a set in the plain layout."""
    make_shop(folder / "databases/shop")
    line = {"id": "p", "db_id": "shop", "question": question, "sql": "SELECT 0"}
    (folder / "questions.jsonl").write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize("name", ["train.csv", "data/train.csv", "train.jsonl", "train-00000-of-00001.json"])
def test_splits_file_has_priority_over_a_folder_with_its_prefix(shop: Path, name: str) -> None:
    plain(shop / "train_more", "Other?")
    assert question_pairs(shop) == [("Other?", "SELECT 0")]
    (shop / "data").mkdir()
    local = "question,sql\nOwn?,SELECT 1\n" if name.endswith("csv") else '{"question": "Own?", "sql": "SELECT 1"}'
    (shop / name).write_text(local)
    assert question_pairs(shop) == [("Own?", "SELECT 1")]
    assert [example.question for example in load_split(shop, "train").examples] == ["Own?"]
    plain(shop / "train", "Named?")
    assert question_pairs(shop) == [("Named?", "SELECT 0")]


def test_empty_split_file_is_not_replaced_silently(shop: Path) -> None:
    (shop / "train_more").mkdir()
    for name in ("train.json", "train_more/train.csv"):
        (shop / name).write_text("question,sql\nQ?,SELECT 1\n")
    with pytest.raises(InputError, match=r"no questions in a known format: it holds shop\.sqlite, train\.json"):
        load_benchmark(shop, "train")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_excel_files_keep_their_special_characters(shop: Path, ending: str) -> None:
    question, sql = "Who’s “in” – for 5 €?", "SELECT '’“”–€é'"
    text = (
        f"question,sql\n{question},{sql}\n"
        if ending == "csv"
        else json.dumps({"question": question, "sql": sql}, ensure_ascii=False)
    )
    (shop / f"train.{ending}").write_bytes(text.encode("cp1252"))
    assert question_pairs(shop) == [(question, sql)]
    (note,) = load_benchmark(shop, "train").notes
    assert note.startswith(f"train.{ending}: 11 bytes are not UTF-8, read as Windows-1252, the first in line ")
    assert "Who’s" in note


def test_every_byte_is_read(shop: Path) -> None:
    every = bytes(range(0x80, 0x100))
    (shop / "train.csv").write_bytes(b"question,sql\n" + every + b",SELECT 1\n")
    ((question, _),) = question_pairs(shop)
    assert [question[n - 0x80] for n in (0x80, 0x81, 0x8D, 0x8F, 0x90, 0x9D, 0x9F, 0xA9, 0xFF)] == [
        "€", "\x81", "\x8d", "\x8f", "\x90", "\x9d", "Ÿ", "©", "ÿ",
    ]  # fmt: skip


ROW = [("Q?", "SELECT 'é'")]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_spreadsheet_encodings_and_line_ends_are_read(shop: Path, encoding: str, end: str) -> None:
    text = end.join(("question\tsql", "Q?\tSELECT 'é'", ""))
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (shop / "train.csv").write_bytes(mark + text.encode(encoding))
    assert question_pairs(shop) == ROW
    (shop / "train.csv").rename(shop / "mine.csv")
    assert question_pairs(shop, "") == ROW, "the columns were not recognized"


def test_invalid_bytes_line_is_reported_for_any_line_end(shop: Path) -> None:
    for end in (b"\r", b"\n", b"\r\n"):
        (shop / "train.csv").write_bytes(b"question,sql" + end + b"Q\x92?,SELECT 1" + end)
        assert "the first in line 2 near" in load_benchmark(shop, "train").notes[0]


@pytest.mark.parametrize(
    "other",
    [
        "question\tsql\nQ?\tSELECT 1".encode("utf-16")[:-1],
        "prices\tin €\n1\t2\n".encode("utf-16"),
        b"prices\rof\r",
        b'"' + b"x" * 200_000,
        b"PK\x03\x04\0\0\r,\n",
        bytes(range(256)),
        b"",
    ],
)
def test_unreadable_file_affects_only_its_own_load(shop: Path, other: bytes) -> None:
    (shop / "mine.csv").write_text("question,sql\nQ?,SELECT 'é'\n", encoding="utf-8")
    (shop / "prices.csv").write_bytes(other)
    if not other.startswith(b"\xff\xfeq"):  # its header makes it a set of questions
        assert question_pairs(shop, "") == ROW
    (shop / "train.csv").write_bytes(other)
    for path, split in ((shop, "train"), (shop / "prices.csv", "")):
        with pytest.raises(InputError) as caught:
            load_benchmark(path, split)
        assert "\n" not in str(caught.value)
        assert "\r" not in str(caught.value)


def test_reason_for_a_non_text_table_is_reported(shop: Path) -> None:
    (shop / "train.csv").write_bytes("question,sql\nQ?,SELECT 1".encode("utf-16")[:-1])
    with pytest.raises(InputError, match=r"train\.csv: has a UTF-16 mark but is not UTF-16 \(.*\): save it as UTF-8"):
        load_benchmark(shop, "train")
    (shop / "train.csv").write_bytes("question,sql\nQ?,SELECT 1".encode("utf-16-le"))
    with pytest.raises(InputError, match=r"train\.csv: not a text file: save it as CSV in UTF-8"):
        load_benchmark(shop, "train")


@pytest.mark.parametrize(
    "text",
    [
        "\tquestion\tsql\n0\tQ?\tSELECT 'é'\n",
        "question\tsql\t\nQ?\tSELECT 'é'\t\n",
        "question,sql\nQ?,SELECT 'é',,\n",
        "question,sql,\"note\n(English)\"\nQ?,SELECT 'é',\n",
        '"question";"sql";"note, note, note, x"\n"Q?";"SELECT \'é\'";""\n',
        "question;sql;note, note, note, x\nQ?;SELECT 'é';\n",
        "sep=;\nquestion;sql\nQ?;SELECT 'é'\n",
        "sep=|\r\nquestion|sql\r\nQ?|SELECT 'é'\r\n",
        "SEP=,\rquestion,sql\rQ?,SELECT 'é'\r",
        "note,question,sql,note\nx,Q?,SELECT 'é',y\n",
    ],
)
def test_unusual_headers_are_read(shop: Path, text: str) -> None:
    for name in ("train.csv", "train.CSV", "train.tsv", "train.Tsv"):
        path = shop / name
        path.write_text(text, encoding="utf-8", newline="")
        assert question_pairs(shop) == question_pairs(path, "") == ROW
        assert open_stream(path) is None, "another format than JSON is read by position"
        path = path.rename(shop / f"mine{path.suffix}")
        assert question_pairs(shop, "") == ROW, "the columns were not recognized"
        path.unlink()


def test_missing_cell_of_a_row_is_empty(shop: Path) -> None:
    (shop / "train.csv").write_text("question,sql\nShort?\nQ?,SELECT 'é'\n", encoding="utf-8")
    assert question_pairs(shop) == ROW
    assert load_benchmark(shop, "train").skipped == (("train_0", "no sql"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,sql,sql\nQ?,SELECT 1,SELECT 2\n", "several columns are named sql: rename or remove all but one"),
        ("question,Question,sql\nQ?,R?,SELECT 1\n", "several columns are named question: rename or remove"),
        ('"question\n(English)",sql\nQ?,SELECT 1\n', r"no column question; its columns are question_\(english\), sql"),
        ("sep=;\nquestion;sql\nQ?;SELECT 1;2\n", "line 3: 3 cells under 2 columns"),
        ("question,sql,\nQ?,SELECT 1,2\n", "line 2: 3 cells under 2 columns"),
        (";;\n;;x\n", "the first line is empty"),
        (
            "\tquestion\n0\tQ?\n",
            r"columns are question; rename the header to one of the names tried: sql \(sql, SQL, query, .*\)$",
        ),
        ("question,sql\r\n\r\n", r"train\.csv: has no rows below its header: write one question per row$"),
    ],
)
def test_missing_column_is_reported_in_one_line(shop: Path, text: str, message: str) -> None:
    (shop / "train.csv").write_text(text, newline="")
    with pytest.raises(InputError, match=message) as caught:
        load_benchmark(shop, "train")
    assert "\n" not in str(caught.value)


def test_second_database_is_reported_if_questions_name_none(shop: Path) -> None:
    (shop / "train.csv").write_text("question,sql\nQ?,SELECT 1\nR?,SELECT 2\n")
    make_database(shop / "shop.db")
    message = (
        r"no db_id, and 2 databases are there, shop\.db, shop\.sqlite: name one in db_path, or move the others away: 2;"
    )
    for path in (shop, shop / "train.csv"):
        with pytest.raises(InputError, match=message):
            load_benchmark(path, "train" if path == shop else "")
    (shop / "train.csv").write_text("question,sql,db_path\nQ?,SELECT 1,shop.db\nR?,SELECT 2,\n")
    benchmark = load_benchmark(shop, "train")
    assert [example.db_path for example in benchmark.examples] == [str(shop / "shop.db")]
    assert [uid for uid, _ in benchmark.skipped] == ["train_1"]
    (shop / "databases").mkdir()
    (shop / "shop.db").rename(shop / "databases/shop.db")
    (shop / "train.csv").write_text("question,sql,db_id\nQ?,SELECT 1,shop\nR?,SELECT 2,\n")
    ((_, reason),) = load_benchmark(shop, "train").skipped
    assert ", databases/shop.db, shop.sqlite: name one" in reason
    (shop / "databases/shop.db").unlink()
    assert load_benchmark(shop, "train").skipped == ()


def test_a_note_of_several_sets_is_one_line() -> None:
    shared = "the model sees an earlier sample"
    notes = [("train", ("matched with 9", shared)), ("dev", ("matched with 3", shared))]
    assert label_notes(notes) == ["train: matched with 9", f"train, dev: {shared}", "dev: matched with 3"]
