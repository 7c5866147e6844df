"""The loaders and prompts on the real sets in JAXRL_SQL_DATA."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.text2sql.question_sets.filters import usable_golds
from jaxrl_sql.text2sql.question_sets.stream import open_stream
from jaxrl_sql.text2sql.schema import ddl, read_schema

ROOT = os.environ.get("JAXRL_SQL_DATA", "")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not ROOT, reason="JAXRL_SQL_DATA does not name the folder of the real sets"),
]


class Bytes:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())


@pytest.mark.parametrize(
    ("name", "questions", "databases"),
    [("spider_train", 7493, 139), ("spider_dev", 972, 19), ("bird_superhero", 129, 1)],
)
def test_every_question_loads_and_fits_a_prompt(name: str, questions: int, databases: int) -> None:
    loaded = load_split(ROOT, name)
    assert (len(loaded.examples), len({example.db_id for example in loaded.examples})) == (questions, databases)
    assert loaded.skipped == ()
    prompts = make_prompts(loaded.examples, compact_style(), Bytes(), 4096)
    assert prompts.examples == loaded.examples
    for example, prompt in zip(prompts.examples, prompts.prompts, strict=True):
        assert bytes(prompt.token_ids).decode() == prompt.text
        assert f"Q: {example.question}" in prompt.text
        assert example.gold_sql not in prompt.text


def test_train_and_dev_share_no_database() -> None:
    train, dev = (load_split(ROOT, name).examples for name in ("spider_train", "spider_dev"))
    assert not {example.db_id for example in train} & {example.db_id for example in dev}


def test_ddl_of_every_real_database_runs(tmp_path: Path) -> None:
    for path in sorted({example.db_path for example in load_split(ROOT, "spider_train").examples}):
        schema = read_schema(path)
        copy = tmp_path / Path(path).name
        with closing(sqlite3.connect(copy)) as connection:
            connection.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;" + ddl(schema))
        assert read_schema(copy) == schema, path


def test_unusable_golds_of_spider_dev_are_its_49_empty_golds() -> None:
    remaining, dropped = usable_golds(Executor(threads=2), load_split(ROOT, "spider_dev").examples)
    assert len(remaining) == 923
    assert {reason for _, reason in dropped} == {"gold empty"}
    assert len(dropped) == 49


def test_test_suite_next_to_spider_dev_is_found() -> None:
    benchmark = load_benchmark(ROOT, "spider_dev")
    assert (benchmark.name, benchmark.rule, len(benchmark.examples)) == ("plain", "test_suite", 972)
    assert {len(example.suite) for example in benchmark.examples} == {13}
    assert benchmark.notes == ("test suite: 19 of 19 databases have variants, 228 in all",)
    assert all(read_schema(path).tables for path in benchmark.examples[0].suite)
    assert load_benchmark(ROOT, "bird_superhero").rule == "bird"


def test_published_spider_dev_equals_the_plain_one(tmp_path: Path) -> None:
    plain = load_benchmark(ROOT, "spider_dev")
    folder = tmp_path / "spider"
    folder.mkdir()
    (folder / "tables.json").write_text("[]")
    (folder / "database").symlink_to(Path(ROOT) / "spider_dev" / "databases")
    questions = [{"db_id": e.db_id, "question": e.question, "query": e.gold_sql} for e in plain.examples]
    (folder / "dev.json").write_text(json.dumps(questions))
    (folder / "dev_gold.sql").write_text("".join(f"{e.gold_sql}\t{e.db_id}\n" for e in plain.examples))
    benchmark = load_benchmark(folder)
    assert (benchmark.name, benchmark.notes, benchmark.skipped) == ("spider", (), ())
    same = [(example.db_id, example.question, example.gold_sql) for example in plain.examples]
    assert [(item.db_id, item.question, item.gold_sql) for item in benchmark.examples] == same


def test_streamed_real_set_equals_the_loaded_one(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "databases").symlink_to(Path(ROOT) / "spider_train" / "databases")
    (folder / "questions.jsonl").write_bytes((Path(ROOT) / "spider_train" / "questions.jsonl").read_bytes())
    streamed = open_stream(folder, above=1000)
    assert streamed is not None
    assert tuple(streamed) == load_split(tmp_path, "train").examples
    assert open_stream(folder, above=10_000) is None
