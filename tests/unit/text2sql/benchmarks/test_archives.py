"""Published archives and the quirks of each: the real files, and small files with the same quirks."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxrl_sql.text2sql.benchmarks import Benchmark, load_benchmark
from jaxrl_sql.text2sql.benchmarks.defog import golds_of
from jaxrl_sql.text2sql.benchmarks.released import question_texts
from jaxrl_sql.text2sql.benchmarks.spider2 import read_table
from jaxrl_sql.types import InputError

HEAD = "db_name,query_category,query,question,instructions"
KNOWLEDGE = "A cup holds tea."


def database(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        connection.commit()
    return path


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(example) + "\n" for example in value) if path.suffix == ".jsonl" else json.dumps(value)
    path.write_text(text, encoding="utf-8")
    return path


def brief(loaded: Benchmark) -> list[tuple[str, str, str, str]]:
    return [(example.db_id, example.question, example.evidence, example.gold_sql) for example in loaded.examples]


# -- CSV


def test_quote_inside_a_quoted_cell_is_parsed_like_in_pandas(tmp_path: Path) -> None:
    database(tmp_path / "databases/d.db")
    text = (
        f"{HEAD}\n"
        'd,a,SELECT 1,"Cars said to be "in stock" if open, or not.",\n'
        'd,a,"SELECT 2, 3","A ""rightly"" written one,\nof two lines",Say.\n'
        'd,a,SELECT 3,"In all, a price". Return it.,Say.\n'
    )
    path = tmp_path / "questions_gen_sqlite.csv"
    path.write_text(text.replace(", or not", " or not"))
    loaded = load_benchmark(tmp_path)
    wanted = pd.read_csv(path, keep_default_na=False)
    assert [example[1] for example in brief(loaded)] == list(wanted["question"])
    assert brief(loaded)[0] == ("d", 'Cars said to be in stock" if open or not."', "", "SELECT 1")
    (note,) = (note for note in loaded.notes if "quote" in note)
    assert "2 rows have a quote inside a quoted cell, the first in line 2:" in note
    # A comma after such a quote separates cells, so the row has too many.
    path.write_text(text)
    with pytest.raises(InputError, match="line 2: 6 cells under 5 columns"):
        load_benchmark(tmp_path)


@pytest.mark.parametrize("lines", [1, 40])
def test_unclosed_quote_is_refused_at_its_position(tmp_path: Path, lines: int) -> None:
    database(tmp_path / "mine.db")
    (tmp_path / "train.csv").write_text('question,sql\nQ?,SELECT 1\n"R?,SELECT 2\n' + "S?,SELECT 3\n" * lines)
    with pytest.raises(InputError, match=r"train\.csv: line 3: unexpected end of data: the quote opened here"):
        load_benchmark(tmp_path)
    (tmp_path / "gold.csv").write_text('a,b\n1,"x\n2,y\n')
    with pytest.raises(ValueError, match=r"gold\.csv, line 2: unexpected end of data"):
        read_table(tmp_path / "gold.csv", [])


# -- released rows


def sql_r1(evidence: Any, shown: str, **more: Any) -> dict[str, Any]:
    """Return a row whose prompt has an empty section above another line with a colon."""
    prompt = (
        f"Database Schema:\nCREATE TABLE t (a)\n\nExternal Knowledge:\n{shown}\n\nSQL Complexity Level: Complex\n\n"
    )
    row = {"question": "Which?", "db_id": "shop", "prompt": [{"role": "user", "content": prompt}], **more}
    row |= {"reward_model": {"style": "rule", "ground_truth": {"db_id": "shop", "sql": "SELECT a FROM t"}}}
    return row if evidence is ... else row | {"external_knowledge": evidence}


@pytest.mark.parametrize("ending", ["json", "parquet"])
@pytest.mark.parametrize(
    ("evidence", "shown", "loaded"),
    [
        ("", "", ""),
        ("", "In the prompt.", ""),  # the field exists and is empty
        (None, "In the prompt.", "In the prompt."),  # Parquet has null if a row lacks such a field
        (..., "In the prompt.", "In the prompt."),
        (..., "", ""),
        (KNOWLEDGE, "In the prompt.", KNOWLEDGE),
    ],
)
def test_empty_field_has_priority_over_the_prompt(
    ending: str, evidence: Any, shown: str, loaded: str, tmp_path: Path
) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    write_rows(tmp_path / f"train.{ending}", [sql_r1(evidence, shown)])
    assert brief(load_benchmark(tmp_path)) == [("shop", "Which?", loaded, "SELECT a FROM t")]


def test_empty_field_of_extra_info_or_of_a_pair_has_priority_too(tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    inside = sql_r1(..., "In the prompt.", extra_info={"evidence": "", "index": 1})
    pair = {"input_seq": "Question:\nSo it is.\nWhich?\n\nInstructions:", "output_seq": "SELECT a FROM t"}
    write(tmp_path / "train.json", [inside, {**pair, "db_id": "shop", "evidence": ""}, {**pair, "db_id": "shop"}])
    assert [example[2] for example in brief(load_benchmark(tmp_path))] == ["", "", "So it is."]


def test_prompt_section_ends_at_the_next_section() -> None:
    assert question_texts("External Knowledge:\n\nQuestion:\nWho?") == {"question": "Who?"}
    assert question_texts("External Knowledge:\nQuestion:\nWho?") == {"question": "Who?"}
    assert question_texts("External Knowledge: Tea.\n\nQuestion: Who?") == {"question": "Who?", "evidence": "Tea."}
    assert question_texts("Question:\nNote: who?\nInstructions:\n") == {"question": "Note: who?"}
    assert question_texts("Context:\nNone\n\nQuestion:\nWho?\n\nInstructions:") == {"question": "Who?"}
    more = "Tea.\n\nExternal knowledge for the style:\n- Cups."
    assert question_texts(f"Context:\n{more}\n\nQuestion:\nWho?\n\n") == {"question": "Who?", "evidence": more}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, rows)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_paverl_rows_have_their_gold_in_extra_info(ending: str, tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    prompt = (
        f"Database Schema:\n CREATE TABLE t (\na  INTEGER\n);\n\nContext:\n{KNOWLEDGE}\n\nQuestion:\nWhich?\n\nOutput:"
    )
    extra = {"dbname": "shop", "goldsql": "SELECT a FROM t", "question": "Which one?", "complexity": "Simple"}
    row = {
        "data_source": "SynSQL-2.5M",
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"style": "rule", "ground_truth": "/data/golden_csv/train_1_shop.csv"},
        "extra_info": {**extra, "dbfullp": "/data/databases/shop/shop.sqlite"},
    }
    write_rows(tmp_path / f"val.{ending}", [row])
    loaded = load_benchmark(tmp_path / f"val.{ending}")
    assert brief(loaded) == [("shop", "Which one?", KNOWLEDGE, "SELECT a FROM t")]
    assert loaded.examples[0].difficulty == "Simple"


def test_error_names_the_fields_of_the_rows(tmp_path: Path) -> None:
    database(tmp_path / "one.db")
    database(tmp_path / "two.db")
    row = {
        "question": "Which?",
        "reward_model": {"ground_truth": "/x/y.csv"},
        "extra_info": {"base": "one", "gold": ""},
    }
    write(tmp_path / "dev.jsonl", [row])
    has = r"the first record has question, reward_model\.ground_truth, extra_info\.base, extra_info\.gold"
    with pytest.raises(InputError, match=has):
        load_benchmark(tmp_path / "dev.jsonl")
    write(tmp_path / "dev.jsonl", [{"q": "Which?", "answer_sql": "SELECT 1"}])
    says = r"the first record of dev\.jsonl has no question and no sql, but q, answer_sql"
    for split in ("", "dev"):
        with pytest.raises(InputError, match=says):
            load_benchmark(tmp_path, split)


# -- EHRSQL


def shared_task(folder: Path, version: str = "v1", splits: tuple[str, ...] = ("train", "valid", "test")) -> None:
    """Write splits of EHRSQL's shared task with the authors' additions: the same questions with more fields."""
    for split in splits:
        questions = [{"id": f"{split}{i}", "question": f"{split} {i}?"} for i in range(3)]
        write(folder / split / "data.json", {"version": version, "data": questions})
        labels = {f"{split}0": "SELECT a FROM t", f"{split}1": "null", f"{split}2": None}
        write(folder / split / "label.json", labels)
        write(folder / split / "annotated.json", [example | {"query": "SELECT a FROM t"} for example in questions])
        write(folder / split / "answer.json", {f"{split}0": "[['1']]"})


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_shared_task_split_is_read_from_the_databases_folder(split: str, tmp_path: Path) -> None:
    folder = tmp_path / "data/mimic_iv"
    shared_task(folder)
    database(folder / "mimic_iv.sqlite")
    folders = [(tmp_path, split), (tmp_path / "data", split), (folder, split), (folder / split, "")]
    for path, name in folders:
        loaded = load_benchmark(path, name)
        assert (loaded.name, loaded.rule) == ("ehrsql", "ehrsql")
        assert [example.uid for example in loaded.examples] == [f"{split}{i}" for i in range(3)]
        assert [example.answerable for example in loaded.examples] == [True, False, False]
        assert {example.db_id for example in loaded.examples} == {"mimic_iv"}
        assert loaded.skipped == ()


def test_shared_task_sample_is_no_database(tmp_path: Path) -> None:
    shared_task(tmp_path / "sample_data", "mimic_iv_demo_1.0_train_sample", ("train",))
    expected = tmp_path / "sample_data/mimic_iv.sqlite"
    with pytest.raises(InputError, match=rf"databases are expected as {expected}.*no database mimic_iv: 3"):
        load_benchmark(tmp_path, "train")
    shared_task(tmp_path / "data/mimic_iv")
    database(tmp_path / "data/mimic_iv/mimic_iv.sqlite")
    for folder in (tmp_path, tmp_path / "sample_data", tmp_path / "sample_data/train"):
        loaded = load_benchmark(folder, "train")
        assert [(example.uid, example.db_id) for example in loaded.examples] == [
            (f"train{i}", "mimic_iv") for i in range(3)
        ]
        assert loaded.skipped == ()
    assert any("sample_data/ repeats some questions" in note for note in load_benchmark(tmp_path).notes)
    (tmp_path / "sample_data/train/label.json").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"label\.json: no such file"):
        load_benchmark(tmp_path / "sample_data", "train")


def test_sets_of_two_years_are_not_judged_together(tmp_path: Path) -> None:
    shared_task(tmp_path / "mimic_iv", splits=("valid",))
    record = {"id": "x", "db_id": "eicu", "question": "?", "query": "select 1", "is_impossible": False}
    write(tmp_path / "eicu/valid.json", [record])
    with pytest.raises(InputError, match=r"judged by different rules \(2022, 2024\): name one of the folders .*eicu"):
        load_benchmark(tmp_path)


# -- OmniSQL's archive


@pytest.mark.parametrize(
    ("folder", "name", "databases", "db_id"),
    [
        ("EHRSQL", "ehrsql", "database", "mimic_iv"),
        ("other", "ehrsql", "database", "eicu"),
        ("sciencebenchmark", "sciencebenchmark", "databases", "oncomx_v1_0_25_small"),
        ("other", "sciencebenchmark", "databases", "skyserver_dr16"),
    ],
)
def test_sets_in_the_omnisql_archive_use_its_rule(
    folder: str, name: str, databases: str, db_id: str, tmp_path: Path
) -> None:
    """OmniSQL runs the SQL unchanged and compares by BIRD's rule."""
    home = tmp_path / folder
    database(home / databases / db_id / f"{db_id}.sqlite")
    sql = "SELECT a FROM t WHERE b < current_time"
    write(home / "dev.json", [{"db_id": db_id, "question": "Which?", "query": sql}])
    write(home / "tables.json", [{"db_id": db_id}])
    for split in ("", "dev"):
        loaded = load_benchmark(home, split)
        assert (loaded.name, loaded.rule, loaded.prepare) == (name, "bird", None)
        assert brief(loaded) == [(db_id, "Which?", "", sql)]
    with pytest.raises(InputError, match=r"no split 'test' \(there are: dev\)"):
        load_benchmark(home, "test")


@pytest.mark.parametrize(
    ("folder", "db_id", "train"),
    [
        ("hospital", "mimicsql", "train_spider.json"),
        ("hospital", "mimic_iii", "train_spider.json"),
        ("hospital", "eicu_own", "train.json"),
        ("astro", "sdss_own", "train_spider.json"),
        ("astro", "cordis", "train_others.json"),
        ("EHRSQL", "mine", "train_spider.json"),
        ("sciencebenchmark", "oncomx", "dev_gold.sql"),
    ],
)
def test_sets_in_spiders_layout_are_spiders_under_any_name(folder: str, db_id: str, train: str, tmp_path: Path) -> None:
    home = tmp_path / folder
    database(home / "database" / db_id / f"{db_id}.sqlite")
    records = [{"db_id": db_id, "question": "Which?", "query": "SELECT a FROM t"}]
    write(home / "dev.json", records)
    write(home / "tables.json", [{"db_id": db_id}])
    if train.endswith(".sql"):
        (home / train).write_text(f"SELECT a FROM t\t{db_id}\n")
    else:
        write(home / train, records)
    loaded = load_benchmark(home)
    assert (loaded.name, loaded.rule) == ("spider", "test_suite")
    if train.startswith("train_spider"):
        assert load_benchmark(home, "train").name == "spider"


def test_spider_in_the_same_archive_stays_spider(tmp_path: Path) -> None:
    home = tmp_path / "spider"
    database(home / "database/concert/concert.sqlite")
    write(home / "dev.json", [{"db_id": "concert", "question": "Which?", "query": "SELECT a FROM t"}])
    write(home / "tables.json", [{"db_id": "concert"}])
    loaded = load_benchmark(home)
    assert (loaded.name, loaded.rule) == ("spider", "test_suite")


# -- the published files


@pytest.fixture
def archives(real_data: Path) -> Path:
    return real_data / "archives"


@pytest.mark.data
@pytest.mark.parametrize(
    ("split", "count"),
    [
        ("questions_gen", 210),
        ("questions_gen_postgres", 210),
        ("instruct_basic", 40),
        ("instruct_advanced", 64),
        ("instruct_advanced_postgres", 64),
        ("idk", 105),
    ],
)
def test_defog_files_load_like_in_pandas(archives: Path, tmp_path: Path, split: str, count: int) -> None:
    (tmp_path / "data").symlink_to(archives / "sql-eval/data")
    name = split if split.endswith("postgres") or split == "idk" else f"{split}_sqlite"
    table = pd.read_csv(tmp_path / f"data/{name}.csv", keep_default_na=False)
    for db_id in set(table["db_name"]):
        database(tmp_path / f"databases/{db_id}.db")
    loaded = load_benchmark(tmp_path, split)
    assert (loaded.skipped, len(loaded.examples)) == ((), count)
    assert [example.question for example in loaded.examples] == [text.strip() for text in table["question"]]
    assert [example.gold_sql for example in loaded.examples] == [golds_of(text)[0] for text in table["query"]]


@pytest.mark.data
def test_sql_r1_rows_have_the_evidence_of_their_field(archives: Path, tmp_path: Path) -> None:
    rows = parquet.read_table(archives / "sql_r1/test.parquet").to_pylist()
    loaded = _load(archives / "sql_r1/test.parquet", {row["db_id"] for row in rows}, tmp_path)
    assert [example.evidence for example in loaded.examples] == [row["external_knowledge"].strip() for row in rows]
    assert (len(loaded.examples), sum(not example.evidence for example in loaded.examples)) == (1000, 784)
    for example, row in zip(loaded.examples, rows, strict=True):
        (system, task), (user, question), begun = example.messages
        assert (system, user, begun) == ("system", "user", ("assistant", "<think>"))
        assert question == row["question"].replace("\n", " ") + "\n"
        assert f"\n\nSQL Complexity Level: {example.difficulty}\n" in task


@pytest.mark.data
def test_paverl_rows_load(archives: Path, tmp_path: Path) -> None:
    rows = parquet.read_table(archives / "paverl/val_syn_10K.parquet").to_pylist()
    loaded = _load(archives / "paverl/val_syn_10K.parquet", {row["extra_info"]["dbname"] for row in rows}, tmp_path)
    wanted = [
        (row["extra_info"]["dbname"], row["extra_info"]["question"], row["extra_info"]["goldsql"]) for row in rows
    ]
    assert [(example.db_id, example.question, example.gold_sql) for example in loaded.examples] == [
        tuple(text.strip() for text in example) for example in wanted
    ]
    assert all(example.evidence != "None" for example in loaded.examples)
    assert [example.messages for example in loaded.examples] == [
        (("user", row["prompt"][0]["content"]),) for row in rows
    ]
    assert 0 < sum(bool(example.evidence) for example in loaded.examples) < len(rows)


def _load(path: Path, db_ids: set[str], tmp_path: Path) -> Benchmark:
    """Load a published file with a small database in place of each of its own."""
    source = database(tmp_path / "any.sqlite")
    for db_id in db_ids:
        home = tmp_path / "databases" / db_id
        home.mkdir(parents=True)
        (home / f"{db_id}.sqlite").symlink_to(source)
    (tmp_path / path.name).symlink_to(path)
    loaded = load_benchmark(tmp_path / path.name)
    assert loaded.skipped == ()
    return loaded


@pytest.mark.data
def test_ehrsql_2024_sample_loads(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "sample_data").symlink_to(archives / "ehrsql-2024/sample_data")
    database(tmp_path / "mimic_iv.sqlite")
    loaded = load_benchmark(tmp_path, "train")
    assert (loaded.name, loaded.rule, loaded.skipped) == ("ehrsql", "ehrsql", ())
    assert [example.answerable for example in loaded.examples].count(False) == 10
    assert {example.db_id for example in loaded.examples} == {"mimic_iv"}
    with pytest.raises(InputError, match=r"valid/label\.json: no such file .*; splits with one: train"):
        load_benchmark(tmp_path, "valid")


@pytest.mark.data
def test_kaggledbqa_and_spider2_load(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "kaggle").mkdir()
    (tmp_path / "kaggle/examples").symlink_to(archives / "KaggleDBQA/examples")
    for path in (archives / "KaggleDBQA/examples").glob("*_test.json"):
        db_id = path.stem.removesuffix("_test")
        database(tmp_path / f"kaggle/databases/{db_id}/{db_id}.sqlite")
    assert load_benchmark(tmp_path / "kaggle").skipped == ()
    for name in ("evaluation_suite", "spider2-lite.jsonl"):
        (tmp_path / name).symlink_to(archives / "spider2-lite" / name)
    records = map(json.loads, io.StringIO((tmp_path / "spider2-lite.jsonl").read_text()))
    local = [record for record in records if record["instance_id"].startswith("local")]
    for db_id in {record["db"] for record in local}:
        database(tmp_path / f"resource/databases/spider2-localdb/{db_id}.sqlite")
    loaded = load_benchmark(tmp_path)
    assert (loaded.name, loaded.rule) == ("spider2", "spider2")
    assert {uid: reason for uid, reason in loaded.skipped if "gold table:" in reason} == {}
    assert len(loaded.examples) == len(local)
