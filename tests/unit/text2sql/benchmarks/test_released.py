"""Published training sets of other text-to-SQL systems: small files in their formats."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.benchmarks.released import question_texts, read_prompt_tables
from jaxrl_sql.types import Example, InputError

SHOP = "CREATE TABLE item(id INTEGER, name TEXT); INSERT INTO item VALUES (1, 'cup');"
BANK = "CREATE TABLE item(id INTEGER); CREATE TABLE account(no INTEGER, owner TEXT);"
SQL = "SELECT name FROM item"
# A shortened prompt in OmniSQL's format of schema and question.
SHOWN = """Database Schema:
CREATE TABLE `item` (
    `id` INTEGER, -- example: [1]
    "name" TEXT, -- its name, example: ['cup']
    PRIMARY KEY (`id`)
);

{external}Question:
{question}

Instructions:
- Think.
"""


def database(path: Path, script: str = SHOP) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """Write rows in the format of the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text(json.dumps(records))


def brief(result: Example) -> tuple[str, str, str, str]:
    return result.question, result.evidence, result.gold_sql, str(Path(result.db_path).parents[2].name)


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
@pytest.mark.parametrize("reward", ["reward_spec", "reward_model"])
def test_skyrl_sql_rows(reward: str, ending: str, tmp_path: Path) -> None:
    """Both sources have a database of one name: `data` selects the source. SkyRL's script unpacks the archive there."""
    archive = tmp_path / "db_files/data"
    database(archive / "SynSQL-2.5M/databases/shop/shop.sqlite")
    database(archive / "spider/database/shop/shop.sqlite", SHOP + BANK.split(";")[1] + ";")

    def row(number: int, data: str) -> dict[str, Any]:
        user_message = (
            f"{{db_details}}:CREATE TABLE x;\n {{external_knowledge}}: none {number};\n {{question}}: Which {number}?"
        )
        return {
            "data_source": "synsql",
            "prompt": [
                {"role": "system", "content": "Question: how many pigs?"},
                {"role": "user", "content": user_message},
            ],
            "db_id": "shop",
            "data": data,
            reward: {"method": "rule", "ground_truth": SQL},
            "extra_info": {"split": "dummy", "index": 0},
        }

    write(tmp_path / f"train.{ending}", [row(0, "synsql"), row(1, "spider")])
    split = load_split(tmp_path, "train")
    assert [example.uid for example in split.examples] == ["train_0", "train_1"]
    assert [brief(item) for item in split.examples] == [
        ("Which 0?", "none 0", SQL, "SynSQL-2.5M"), ("Which 1?", "none 1", SQL, "spider"),
    ]  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_verl_rows(ending: str, nested: bool, tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    truth: Any = {"db_id": "shop", "sql": SQL}
    prompt = [{"role": "user", "content": SHOWN.format(external="External Knowledge:\nA cup.\n\n", question="Which?")}]
    records = [
        {"prompt": prompt, "reward_model": {"style": "rule", "ground_truth": truth | {"extra": ""}}, "id": None},
        {"prompt": prompt, "reward_model": {"style": "rule", "ground_truth": truth | {"extra": ""}}, "id": "mine"},
    ]
    if nested:
        for record in records:
            record["reward_model"]["ground_truth"] = json.dumps({"ground_truth": truth})
    write(tmp_path / f"train.{ending}", records)
    benchmark = load_benchmark(tmp_path)
    assert [example.uid for example in benchmark.examples] == ["train_0", "mine"]
    assert {brief(item)[:3] for item in benchmark.examples} == {("Which?", "A cup.", SQL)}
    assert {entry.db_id for entry in benchmark.examples} == {"shop"}


def test_gold_that_resembles_json_is_a_failing_gold(tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    written = str({"db_id": "shop", "sql": SQL})  # Python's notation, invalid as JSON
    rows = [
        {"prompt": "Question:\nWhich?", "db_id": "shop", "reward_model": {"ground_truth": truth}}
        for truth in (written, json.dumps({"sql": SQL}))
    ]
    write(tmp_path / "train.jsonl", rows)
    assert [example.gold_sql for example in load_benchmark(tmp_path).examples] == [written, SQL]


@pytest.mark.parametrize("empty", [None, "", " "])
def test_empty_question_is_read_from_the_prompt_and_empty_evidence_is_not(empty: str | None, tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    prompt = "External Knowledge:\nA cup.\n\nQuestion:\nWhich?"
    row = {"prompt": prompt, "db_id": "shop", "question": empty, "reward_model": {"ground_truth": SQL}}
    write(tmp_path / "train.jsonl", [row, row | {"evidence": ""}])
    benchmark = load_benchmark(tmp_path)
    assert [brief(example)[:2] for example in benchmark.examples] == [("Which?", "A cup."), ("Which?", "")]


def test_question_next_to_the_prompt_has_priority(tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    row = {"prompt": "Say.", "extra_info": {"question": "Which?", "index": 3}, "db_id": "shop"}
    write(tmp_path / "train.jsonl", [row | {"reward_model": {"ground_truth": SQL}}, row | {"reward_model": None}])
    benchmark = load_benchmark(tmp_path)
    assert [brief(example)[0] for example in benchmark.examples] == ["Which?"]
    assert benchmark.skipped == (("train_1", "no sql"),)


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
def test_omnisql_pairs_use_the_database_of_their_schema(ending: str, tmp_path: Path) -> None:
    """The pairs name no database. A schema within two others matches the smaller; no or two matches give none."""
    spider = tmp_path / "spider/database"
    database(spider / "shop/shop.sqlite")
    database(spider / "bank/bank.sqlite", BANK)
    database(spider / "mall/mall.sqlite", SHOP + "CREATE TABLE floor(no INTEGER);")
    database(tmp_path / "SynSQL-2.5M/databases/other/other.sqlite")
    thought = f"First I look.\n```sql\n{SQL}\n```"
    lost = "CREATE TABLE `lost` (\n    `id` INTEGER\n);\nQuestion:\nWhere?\n\nInstructions:"
    pairs = [
        {"input_seq": SHOWN.format(external="", question="A cup is a thing.\nWhich?"), "output_seq": SQL},
        {"input_seq": SHOWN.format(external="", question="Why?"), "output_seq": thought},
        {"input_seq": lost, "output_seq": SQL},
    ]
    write(tmp_path / f"train_spider.{ending}", pairs)
    benchmark = load_benchmark(tmp_path / f"train_spider.{ending}")
    assert [(example.db_id, *brief(example)[:3]) for example in benchmark.examples] == [
        ("shop", "Which?", "A cup is a thing.", SQL), ("shop", "Why?", "", SQL),
    ]  # fmt: skip
    assert benchmark.examples[1].reasoning == "First I look."
    assert benchmark.skipped == (("train_spider_2", "no unique database has the schema in its prompt"),)
    database(spider / "kiosk/kiosk.sqlite")
    with pytest.raises(InputError, match="no unique database has the schema in its prompt: 3"):
        load_benchmark(tmp_path / f"train_spider.{ending}")


def test_gretel_rows_name_the_source_of_their_databases(tmp_path: Path) -> None:
    row = {"id": 7, "sql_prompt": "Which?", "sql_context": SHOP, "sql": SQL, "sql_complexity": "basic SQL"}
    write(tmp_path / "train.jsonl", [row])
    with pytest.raises(InputError, match=r"its database is a script: run jaxrl-sql data prepare to create it: 1"):
        load_benchmark(tmp_path)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/dev_20251106-00000-of-00001.json", "dev_20251106"),
        ("dev_20251106.json", "dev_20251106"),
        ("data/train-00000-of-00001.jsonl", "train"),
        ("train_filtered.json", "train_filtered"),
        ("bird-verified-train.json", "bird-verified-train"),
        ("bird-verified-train.parquet", "bird-verified-train"),
    ],
)
@pytest.mark.parametrize("has_first_release", [False, True])
def test_bird_revisions(name: str, split: str, has_first_release: bool, tmp_path: Path) -> None:
    """Revisions are filtered and verified questions, next to the databases or in the first release's folder."""
    part = "train" if "train" in name else "dev"
    database(tmp_path / f"{part}_databases/shop/shop.sqlite")
    row = {"question_id": 3, "db_id": "shop", "question": "Which?", "evidence": "A cup.", "SQL": SQL}
    write(tmp_path / name, [row])
    if has_first_release:
        write(tmp_path / f"{part}.json", [row | {"question": "Old?"}])
    if has_first_release and (name.startswith("data/") or name.endswith("parquet")):
        benchmark = load_benchmark(tmp_path / name)  # the folder is read like the first release
    else:
        benchmark = load_benchmark(tmp_path, split)
    (item,) = benchmark.examples
    assert (item.uid, *brief(item)[:3], benchmark.rule) == ("3", "Which?", "A cup.", SQL, "bird")


def test_prompt_is_split_into_question_and_schema() -> None:
    assert question_texts("{question}: Who?\nReally?") == {"question": "Who?\nReally?"}
    assert question_texts("Question:\n  Who?\nInstructions:\n- Go.\n\nQuestion: pigs") == {"question": "Who?"}
    assert question_texts("Tell me.") == {}
    assert read_prompt_tables(SHOWN) == {"item": frozenset({"id", "name"})}
    assert read_prompt_tables("nothing") == {}
