"""Streamed sets: the same questions as a loaded set, in an order that a cursor resumes."""

import dataclasses
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import DatabasesConfig, DataConfig, DialectsConfig, replace_values
from jaxrl_sql.inference.training_set import open_question_stream, training_questions
from jaxrl_sql.text2sql.benchmarks import lines, load_benchmark
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.text2sql.question_sets.stream import StreamedQuestions, open_stream, spread, stream_prompts
from jaxrl_sql.types import Example, InputError


class Bytes:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())


def database(folder: Path, db_id: str) -> None:
    path = folder / "databases" / db_id / f"{db_id}.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {db_id}(a)")
        connection.commit()


def records(count: int) -> list[dict[str, Any]]:
    return [{"db_id": f"d{i % 3}", "question": f"How many {i}?", "sql": f"SELECT {i}", "cot": ""} for i in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        database(tmp_path, f"d{i}")
    return tmp_path


def open_streamed(folder: Path, split: str = "", above: int = 0) -> StreamedQuestions:
    stream = open_stream(folder, split, above)
    assert stream is not None
    return stream


@pytest.mark.parametrize("as_list", [True, False], ids=["list", "lines"])
def test_streamed_set_equals_the_loaded_one(folder: Path, as_list: bool) -> None:
    if as_list:
        (folder / "data.json").write_text(json.dumps(records(20), indent=1))
    else:
        (folder / "data.jsonl").write_text("\n".join(map(json.dumps, records(20))))
    streamed = open_streamed(folder)
    assert (len(streamed), tuple(streamed)) == (20, load_benchmark(folder).examples)
    assert streamed[-1] == streamed[19]
    assert [item.uid for item in streamed[3:5]] == ["synsql_3", "synsql_4"]
    with pytest.raises(IndexError):
        streamed[20]
    prompts = stream_prompts(streamed, compact_style(), Bytes(), 1000)
    result = make_prompts(load_benchmark(folder).examples, compact_style(), Bytes(), 1000)
    assert (tuple(prompts.examples), tuple(prompts.prompts)) == (result.examples, result.prompts)
    assert prompts.streamed == (streamed.identity, 1000)
    assert [entry.uid for entry in prompts.sample(5)] == [f"synsql_{i}" for i in (0, 4, 8, 12, 16)]
    assert prompts.lengths() == [*(len(prompt.token_ids) for prompt in result.prompts), 1000]
    assert (result.sample(5), len(result.lengths())) == (result.prompts, 20)


def test_user_and_plain_sets_are_streamed_too(folder: Path) -> None:
    plain = folder / "plain"
    (plain / "databases").mkdir(parents=True)
    for i in range(3):
        (plain / f"databases/d{i}").symlink_to(folder / f"databases/d{i}")
    questions = [{"id": f"q{i}", **record} for i, record in enumerate(records(4))]
    questions[1]["dialect"] = "none"
    questions[2] |= {"difficulty": 3, "evidence": " e ", "reasoning": "r", "other_sql": ["SELECT 9"]}
    text = "\n".join(map(json.dumps, questions))
    (plain / "questions.jsonl").write_text(text)
    (folder / "train.jsonl").write_text(text)
    streamed = open_streamed(folder, "plain")
    loaded = load_benchmark(plain).examples
    assert [streamed[i] for i in (0, 2, 3)] == list(loaded)
    assert streamed[1] == streamed[2]
    assert dict(streamed.skipped) == {"dialect 'none' is not one of sqlite, mysql, postgresql, duckdb": 1}
    assert open_streamed(folder, "train")[2].uid == "q2"


def test_small_sets_and_other_formats_are_not_streamed(folder: Path) -> None:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, records(20))))
    assert open_stream(folder, "train", above=1_000) is None
    assert not list(folder.glob(".train*"))  # not scanned at all
    assert open_stream(folder, "train", above=20) is None
    assert open_stream(folder, "train", above=19) is not None
    spider = folder / "spider"
    spider.mkdir()
    (spider / "tables.json").write_text("[]")
    (spider / "dev.json").write_text(json.dumps([{"db_id": "d", "question": "Q", "query": "S"}]))
    assert open_stream(spider) is None


def test_unusable_record_is_replaced_by_the_next(folder: Path) -> None:
    bad = records(8)
    bad[2]["db_id"] = "gone"
    bad[3]["question"] = ""
    bad[7]["question"] = "long " * 100
    (folder / "data.json").write_text(json.dumps(bad))
    streamed, notes = open_streamed(folder), []
    streamed.report = notes.append
    assert [item.uid for item in streamed] == [f"synsql_{i}" for i in (0, 1, 4, 4, 4, 5, 6, 7)]
    assert notes[0].startswith("skipped record 2 (no database gone), 1 of those read so far")
    assert len(notes) == 2
    assert dict(streamed.skipped) == {"no database gone": 1, "no question": 1}
    result = stream_prompts(streamed, compact_style(), Bytes(), 100)
    assert [entry.uid for entry in result.examples] == [example.uid for example in result.prompts]
    assert result.examples[7].uid == "synsql_0"
    assert streamed.skipped["prompt over 100 tokens"] == 1
    none = stream_prompts(streamed, compact_style(), Bytes(), 3)
    with pytest.raises(InputError, match=r"none of the 8 records from 5 on can be used"):
        none.prompts[5]


def test_long_prompts_are_reported_at_the_first_and_at_each_power_of_ten(folder: Path) -> None:
    questions = records(15)
    for question in questions[1:]:
        question["question"] = "long " * 100
    (folder / "data.json").write_text(json.dumps(questions))
    reports: list[tuple[int, int, list[str]]] = []

    def report(lengths: Counter[int], long: Sequence[Example]) -> None:
        reports.append((lengths.total(), max(lengths), [example.uid for example in long]))

    result = stream_prompts(open_streamed(folder), compact_style(), Bytes(), 100, on_long=report)
    assert {example.uid for example in result.examples} == {"synsql_0"}
    longest = len(stream_prompts(open_streamed(folder), compact_style(), Bytes(), 10_000).prompts[1].token_ids)
    first, tenth = reports
    assert first == (2, longest, ["synsql_1"])
    assert tenth == (11, longest, [f"synsql_{i}" for i in range(1, 11)])


def test_record_without_an_id_is_replaced_by_the_next_if_the_first_has_an_id(folder: Path) -> None:
    path = folder / "train.jsonl"
    ids = ("a", None, "c")
    path.write_text(
        "".join(json.dumps(record | {"id": uid}) + "\n" for record, uid in zip(records(3), ids, strict=True))
    )
    streamed = open_streamed(folder, "train")
    assert [item.uid for item in streamed] == ["a", "c", "c"]
    assert streamed.skipped == {"no id": 1}


def test_cache_of_records_is_limited(folder: Path) -> None:
    (folder / "data.json").write_text(json.dumps(records(50)))
    whole = open_streamed(folder)
    streamed = StreamedQuestions(
        whole.record_file, whole.records, lambda item: dataclasses.replace(item, dialect="mysql"), 40, 4
    )
    assert {entry.dialect for entry in streamed} == {"mysql"}
    assert streamed._read.cache_info().currsize == 4
    assert [element.uid for element in whole.sample(5)] == [f"synsql_{i}" for i in (0, 10, 20, 30, 40)]
    assert list(spread(3, 10)) == [0, 1, 2]


def test_huge_file_is_loaded_by_its_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data.json").write_text(json.dumps(records(9)))
    whole = load_benchmark(folder)
    assert not list(folder.glob(".data*"))
    monkeypatch.setattr(lines, "HUGE_BYTES", 0)
    assert load_benchmark(folder) == whole
    assert len(list(folder.glob(".data*.npy"))) == 1
    assert load_benchmark(folder, limit=2).examples == whole.examples[:2]


def test_training_streams_sets_above_the_limit(folder: Path) -> None:
    (folder / "data.json").write_text(json.dumps(records(9)))
    data = DataConfig(
        source="folder", dir=str(folder), train="", stream_above=8, dialects=DialectsConfig(0.0, mysql=1.0)
    )
    databases = DatabasesConfig(mysql="translated")
    streamed = open_question_stream(data, databases)
    assert streamed is not None
    assert (len(streamed), streamed[3].uid, streamed[3].dialect) == (9, "synsql_3", "mysql")
    for change in ({"stream_above": 9}, {"stream_above": 0}, {"select.limit_train": 8}):
        assert open_question_stream(replace_values(data, change), databases) is None
    some = open_question_stream(replace_values(data, {"stream_above": 3, "select.limit_train": 4}), databases)
    assert some is not None
    assert [entry.uid for entry in some] == [f"synsql_{i}" for i in range(4)]
    assert some.identity != streamed.identity
    some.check = lambda item: "gold empty" if item.uid == "synsql_1" else ""
    some._read.cache_clear()
    assert [element.uid for element in some] == [f"synsql_{i}" for i in (0, 2, 2, 3)]
    assert dict(some.skipped) == {"gold empty": 1}
    (folder / "ids").write_text("synsql_7\nsynsql_2\nsynsql_5\n")
    remaining = replace_values(data, {"select.include_ids": str(folder / "ids")})
    assert open_question_stream(remaining, databases) is None
    assert [example.uid for example in training_questions(remaining, databases).examples] == [
        "synsql_2",
        "synsql_5",
        "synsql_7",
    ]
    first = training_questions(replace_values(remaining, {"select.limit_train": 1}), databases).examples
    assert [one.uid for one in first] == ["synsql_2"]
