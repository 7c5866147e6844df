"""Question ids: whole numbers of any type are accepted, unusable ids are refused, and repeated ids cause no mix-up."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.types import InputError


def database(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t(a)")
        connection.commit()


def write_lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_user_file(folder: Path, uids: list[Any]) -> Path:
    """Write a user's file of questions."""
    database(folder / "shop.sqlite")
    records = [{"id": uid, "question": f"Q{i}?", "sql": f"SELECT {i}"} for i, uid in enumerate(uids)]
    return write_lines(folder / "dev.jsonl", *records)


def spider(folder: Path, uids: list[Any]) -> Path:
    database(folder / "database/d/d.sqlite")
    records = [{"id": uid, "db_id": "d", "question": "Q?", "query": f"SELECT {i}"} for i, uid in enumerate(uids)]
    (folder / "dev.json").write_text(json.dumps(records))
    (folder / "tables.json").write_text("[]")
    return folder


def bird(folder: Path, uids: list[Any]) -> Path:
    database(folder / "dev_databases/d/d.sqlite")
    records = [
        {"question_id": uid, "db_id": "d", "question": "Q?", "evidence": "", "SQL": f"SELECT {i}"}
        for i, uid in enumerate(uids)
    ]
    (folder / "dev.json").write_text(json.dumps(records))
    return folder


def plain(folder: Path, uids: list[Any]) -> Path:
    database(folder / "databases/d/d.sqlite")
    records = [{"id": uid, "db_id": "d", "question": "Q?", "sql": f"SELECT {i}"} for i, uid in enumerate(uids)]
    write_lines(folder / "questions.jsonl", *records)
    return folder


@pytest.mark.parametrize("make", [write_user_file, spider, bird, plain])
def test_whole_numbers_are_ids_and_other_values_are_refused(make: Any, tmp_path: Path) -> None:
    assert [example.uid for example in load_benchmark(make(tmp_path, [7, 2.0, " x "])).examples] == ["7", "2", "x"]
    for unusable in ([1], 2.5, True, {"a": 1}):
        with pytest.raises(InputError, match=r"\.jsonl?: (question \w+_1|line 2): its id is .*, which is neither"):
            load_benchmark(make(tmp_path, [7, unusable]))


@pytest.mark.parametrize("make", [write_user_file, spider, bird, plain])
def test_question_with_an_empty_id_is_skipped_and_not_numbered(make: Any, tmp_path: Path) -> None:
    for empty in (None, "", " ", float("nan")):
        loaded = load_benchmark(make(tmp_path, [7, empty]))
        assert [example.uid for example in loaded.examples] == ["7"]
        assert [reason for _, reason in loaded.skipped] == ["no id"]


@pytest.mark.parametrize(("make", "name"), [(write_user_file, "dev"), (spider, "spider_dev"), (bird, "bird_dev")])
def test_questions_are_numbered_by_position_if_all_ids_are_empty(make: Any, name: str, tmp_path: Path) -> None:
    loaded = load_benchmark(make(tmp_path, [None, "", float("nan")]))
    assert [example.uid for example in loaded.examples] == [f"{name}_{i}" for i in range(3)]
    assert {type(example.uid) for example in loaded.examples} == {str}


def test_automatic_split_does_not_number_questions_of_a_file_with_ids(tmp_path: Path) -> None:
    path = write_user_file(tmp_path, [None] * 39 + [7])
    usable = []
    for name in ("train", "dev"):
        try:
            usable += [example.uid for example in load_split(path, name).examples]
        except InputError as error:
            assert "no id" in str(error)  # noqa: PT017
    assert usable == ["7"]


def test_empty_ids_of_tables(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    database(tmp_path / "shop.sqlite")
    (tmp_path / "dev.csv").write_text("id,question,sql\n1,A?,SELECT 1\n,B?,SELECT 2\n")
    for ids, uids, skipped in (([1, None], ["1"], ["no id"]), ([None, None], ["dev_0", "dev_1"], [])):
        table = arrow.table({"id": ids, "question": ["A?", "B?"], "sql": ["SELECT 1", "SELECT 2"]})
        parquet.write_table(table, tmp_path / "dev.parquet")
        loaded = load_benchmark(tmp_path / "dev.parquet")
        assert [example.uid for example in loaded.examples] == uids
        assert [reason for _, reason in loaded.skipped] == skipped
    loaded = load_benchmark(tmp_path / "dev.csv")
    assert ([example.uid for example in loaded.examples], loaded.skipped) == (["1"], (("dev_1", "no id"),))


def test_empty_id_in_ehrsql_has_no_label(tmp_path: Path) -> None:
    database(tmp_path / "mimic_iv/mimic_iv.sqlite")
    folder = tmp_path / "mimic_iv/valid"
    folder.mkdir()
    (folder / "data.json").write_text(
        json.dumps({"data": [{"id": None, "question": "A?"}, {"id": "b", "question": "B?"}]})
    )
    (folder / "label.json").write_text(
        json.dumps([{"id": None, "label": "SELECT 1"}, {"id": "b", "label": "SELECT 2"}])
    )
    loaded = load_benchmark(tmp_path)
    assert [(example.uid, example.gold_sql) for example in loaded.examples] == [("b", "SELECT 2")]
    assert [reason for _, reason in loaded.skipped] == ["no id"]


def test_parquet_types_of_whole_numbers_are_ids(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    database(tmp_path / "shop.sqlite")
    for uids in ([0.0, 2.0], [Decimal("0.00"), Decimal("2.00")], arrow.array([0, 2], arrow.uint8())):
        table = arrow.table({"id": uids, "question": ["A?", "B?"], "sql": ["SELECT 1", "SELECT 2"]})
        parquet.write_table(table, tmp_path / "dev.parquet")
        assert [example.uid for example in load_benchmark(tmp_path / "dev.parquet").examples] == ["0", "2"]
    parquet.write_table(table.set_column(0, "id", arrow.array([b"0", b"2"])), tmp_path / "dev.parquet")
    with pytest.raises(InputError, match="its id is b'0', which is neither text nor a whole number"):
        load_benchmark(tmp_path / "dev.parquet")


@pytest.mark.parametrize(("ids", "expected"), [("0.0 2.0", "0 2"), ("1.0 1.1", "1.0 1.1"), ("2 1.0", "2 1.0")])
def test_float_ids_of_a_pandas_table_are_whole_numbers(ids: str, expected: str, tmp_path: Path) -> None:
    database(tmp_path / "shop.sqlite")
    rows = "".join(f"{uid},Q{uid}?,SELECT 1\n" for uid in ids.split())
    (tmp_path / "dev.csv").write_text(f"Question_ID,question,sql\n{rows}")
    assert [example.uid for example in load_benchmark(tmp_path / "dev.csv").examples] == expected.split()


def test_repeated_id_does_not_move_a_gold_between_train_and_held_out(tmp_path: Path) -> None:
    path = write_user_file(tmp_path, [i % 2 for i in range(40)])
    parts = [load_split(path, name) for name in ("train", "dev")]
    assert [len(part.examples) + len(part.skipped) for part in parts] == [30, 10]


def test_repeated_id_in_ehrsql_has_its_first_label(tmp_path: Path) -> None:
    database(tmp_path / "mimic_iv/mimic_iv.sqlite")
    folder = tmp_path / "mimic_iv/valid"
    folder.mkdir()
    questions = [{"id": 1.0, "question": "A?"}, {"id": "b", "question": "B?"}, {"id": "b", "question": "C?"}]
    labels = [{"id": 1, "label": "SELECT 1"}, {"id": "b", "label": "SELECT 2"}, {"id": "b", "label": "SELECT 3"}]
    (folder / "data.json").write_text(json.dumps({"data": questions}))
    (folder / "label.json").write_text(json.dumps(labels))
    examples = load_benchmark(tmp_path).examples
    assert [(example.uid, example.gold_sql) for example in examples] == [("1", "SELECT 1"), ("b", "SELECT 2")]
