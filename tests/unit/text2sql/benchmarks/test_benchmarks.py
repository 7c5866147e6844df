"""Benchmarks in their published layouts, as small files."""

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.text2sql.benchmarks import Benchmark, load_benchmark, load_split
from jaxrl_sql.text2sql.benchmarks.bird import description_folder
from jaxrl_sql.text2sql.benchmarks.defog import golds_of
from jaxrl_sql.text2sql.benchmarks.spider2 import read_table
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.question_sets.stream import open_stream
from jaxrl_sql.types import InputError


def database(path: Path, rows: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES(?, ?)", [(i, f"v{i}") for i in range(rows)])
        connection.commit()
    return path


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def question_record(number: int, db_id: str = "d", **more: Any) -> dict[str, Any]:
    return {"db_id": db_id, "question": f"How many {number}?", "query": f"SELECT {number}", **more}


def uids(result: Benchmark) -> list[str]:
    return [example.uid for example in result.examples]


def bird(number: int, **more: Any) -> dict[str, Any]:
    question = {"db_id": "d", "question": f"How many {number}?", "evidence": "e", "SQL": f"SELECT {number}"}
    return {"question_id": number, **question, "difficulty": "simple", **more}


def test_bird_is_read_by_split_and_with_its_ids(tmp_path: Path) -> None:
    dev = tmp_path / "bird/dev_20240627"
    path = database(dev / "dev_databases/d/d.sqlite")
    (path.parent / "database_description").mkdir()
    database(dev / "dev_databases/bare/bare.sqlite")
    write(dev / "dev.json", [bird(3), bird(1, db_id="bare"), bird(3), bird(4, evidence="", db_id="gone")])
    (dev / "dev.sql").write_text("SELECT 3\td\nSELECT 1\tbare\nSELECT 33\td\nSELECT 4\tgone\n")
    write(dev / "dev_tied_append.json", [bird(1, SQL="SELECT 1, 1"), bird(99)])
    train = tmp_path / "bird/train"
    database(train / "train_databases/d/d.sqlite")
    write(
        train / "train.json", [{key: value for key, value in bird(i).items() if key != "question_id"} for i in (0, 1)]
    )
    benchmark = load_benchmark(dev)
    assert (benchmark.name, benchmark.rule, benchmark.submission) == ("bird", "bird", "bird")
    assert [
        (example.uid, example.gold_sql, example.evidence, example.difficulty) for example in benchmark.examples
    ] == [
        ("3", "SELECT 3", "e", "simple"),
        ("1", "SELECT 1", "e", "simple"),
    ]
    assert benchmark.skipped == (("3", "duplicate id"), ("4", "no database gone"))
    gold, tied, described = benchmark.notes
    assert gold.startswith("dev.sql has a different gold than dev.json for 1 of 4 questions, first 3")
    assert tied.startswith(
        "dev_tied_append.json has alternative golds for 2 questions with tied answers, 1 of this split"
    )
    assert described.startswith("1 of 2 databases has no database_description/")
    assert description_folder(path) == path.parent / "database_description"
    assert benchmark.examples[1].golds == "SELECT 1"
    # The folder around both, whose splits are folders.
    assert uids(load_benchmark(tmp_path / "bird", "dev")) == ["3", "1"]
    assert uids(load_benchmark(tmp_path / "bird", "train")) == ["bird_train_0", "bird_train_1"]
    assert len(load_split(tmp_path / "bird", "train").examples) == 2
    with pytest.raises(InputError, match=r"sets are in the folders dev_20240627, train"):
        load_benchmark(tmp_path / "bird")


def test_mini_dev_and_packed_databases(tmp_path: Path) -> None:
    folder = tmp_path / "minidev/MINIDEV"
    database(folder / "dev_databases/d/d.sqlite")
    write(folder / "mini_dev_sqlite.json", [bird(1471)])
    (folder / "mini_dev_sqlite_gold.sql").write_text("SELECT 1471\td\n")
    benchmark = load_benchmark(tmp_path / "minidev", "mini_dev")
    assert (benchmark.name, uids(benchmark)) == ("bird", ["1471"])
    assert not any("gold" in note for note in benchmark.notes)
    packed = tmp_path / "packed"
    write(packed / "dev.json", [bird(0)])
    (packed / "dev_databases.zip").touch()
    with pytest.raises(InputError, match=r"dev_databases\.zip: unpack it here first"):
        load_benchmark(packed)


def gold(path: Path, *rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def test_spider2_on_sqlite_has_tables_as_golds(tmp_path: Path) -> None:
    database(tmp_path / "resource/databases/spider2-localdb/E_shop.sqlite")
    (tmp_path / "resource/documents").mkdir(parents=True)
    (tmp_path / "resource/documents/rfm.md").write_text("# RFM\n")
    questions = [
        {"instance_id": "local002", "db": "E_shop", "question": "Which?", "external_knowledge": "rfm.md"},
        {"instance_id": "local003", "db": "e_shop", "question": "How many?", "external_knowledge": None},
        {"instance_id": "local004", "db": "E_shop", "question": "Why?", "external_knowledge": "none.md"},
        {"instance_id": "local005", "db": "E_shop", "question": "No gold?"},
        {"instance_id": "bq011", "db": "ga4", "question": "Elsewhere?"},
    ]
    lines(tmp_path / "spider2-lite.jsonl", *questions)
    results = tmp_path / "evaluation_suite/gold/exec_result"
    gold(results / "local002.csv", ["a", "b", "c"], ["0", "v0", ""], ["1", "2", "1.5"])
    gold(results / "local002_x1.csv", ["not"], ["mine"])
    gold(results / "local003_a.csv", ["a", "b"], ["2", "x"])
    gold(results / "local003_b.csv", ["n", "a"], ["z", "2"])
    gold(results / "local004.csv", ["a"])
    lines(
        tmp_path / "evaluation_suite/gold/spider2lite_eval.jsonl",
        {"instance_id": "local002", "condition_cols": [1], "ignore_order": True},
        {"instance_id": "local003", "condition_cols": [[0], [1]], "ignore_order": False},
    )
    benchmark = load_benchmark(tmp_path)
    assert (benchmark.name, benchmark.rule, benchmark.submission) == ("spider2", "spider2", "spider2")
    first, second, third = benchmark.examples
    assert (first.uid, first.gold_sql, first.evidence, first.db_id) == ("local002", "", "# RFM", "E_shop")
    assert first.gold_tables == ((("a", "b", "c"), ((0, "v0", None), (1, "2", 1.5))),)
    assert first.options == {"ignore_order": True, "condition_cols": [1]}
    assert second.gold_tables == ((("a",), ((2,),)), (("a",), ((2,),)))
    assert second.options == {"ignore_order": False}
    assert (third.gold_tables, third.evidence) == (((("a",), ()),), "")
    assert [reason for _, reason in benchmark.skipped] == [
        "no gold table",
        "requires an engine other than SQLite (BigQuery or Snowflake)",
    ]
    assert any("local004: external knowledge none.md is missing" in note for note in benchmark.notes)
    assert any("e_shop as E_shop.sqlite" in note for note in benchmark.notes)
    with Executor(threads=1) as executor:
        for example, sql, right in (
            (first, "SELECT b FROM (VALUES ('2', '2'), ('v0', 'v0')) AS x(z, b)", 0.0),
            (first, "SELECT 5 AS q, column1 FROM (VALUES ('2'), ('v0'))", 1.0),
            (first, "SELECT column1 FROM (VALUES ('2'), ('v1'))", 0.0),
            (second, "SELECT count(*) FROM t", 1.0),
        ):
            verdict = executor.score(
                example.db_path, sql, example.golds, rules=("spider2",), options=dict(example.options)
            )
            assert (verdict["gold_status"], verdict["spider2"] if verdict["pred_status"] == "ok" else 0.0) == (
                "ok",
                right,
            )


def test_spider2_in_one_folder_and_an_invalid_gold_table(tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    record = {"db_id": "shop", "question": "Q?", "external_knowledge": "in words"}
    write(tmp_path / "test.json", [{"instance_id": "local1", **record}, {"instance_id": "local2", **record}])
    gold(tmp_path / "gold_exec_result/local1.csv", ["a"], ["1"])
    gold(tmp_path / "gold_exec_result/local2.csv", ["a"], ["1", "2"])
    benchmark = load_benchmark(tmp_path)
    assert (uids(benchmark), benchmark.examples[0].evidence) == (["local1"], "in words")
    assert benchmark.skipped == (("local2", "gold table: row 2 of local2.csv lacks the 1 columns of its header"),)
    assert benchmark.notes[0].startswith("no evaluation standard")


@pytest.mark.parametrize("lists", [[[0], [1]], [[0], [1], [0]]], ids=["one per gold", "more than golds"])
def test_spider2_columns_that_count_belong_to_each_gold(tmp_path: Path, lists: list[list[int]]) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    lines(tmp_path / "spider2-lite.jsonl", {"instance_id": "local1", "db": "shop", "question": "Q?"})
    lines(tmp_path / "gold/spider2lite_eval.jsonl", {"instance_id": "local1", "condition_cols": lists})
    gold(tmp_path / "gold/exec_result/local1_a.csv", ["name", "other"], ["nail", "x"])
    gold(tmp_path / "gold/exec_result/local1_b.csv", ["other", "name"], ["x", "nail"])
    (example,) = load_benchmark(tmp_path).examples
    assert example.gold_tables == ((("name",), (("nail",),)), (("name",), (("nail",),)))
    assert dict(example.options) == {"ignore_order": True}


def test_spider2_golds_have_the_types_of_their_csv(tmp_path: Path) -> None:
    """Missing values do not turn numbers into text, and digits in a text column stay text."""
    long = "12345678901234567890123"
    gold(
        tmp_path / "g.csv", list("abcdef"), ["NA", "01", "1e3", "01", long, "None"], ["2", "x", ".5", "02", "1", "inf"]
    )
    names, rows = read_table(tmp_path / "g.csv", [])
    assert names == tuple("abcdef")
    assert rows == ((None, "01", 1000.0, 1, long, None), (2, "x", 0.5, 2, "1", "inf"))


def test_kaggledbqa_and_sciencebenchmark(tmp_path: Path) -> None:
    kaggle = tmp_path / "kaggle"
    database(kaggle / "databases/Soccer/Soccer.sqlite")
    for name in ("Soccer", "Soccer_test", "Soccer_fewshot"):
        write(kaggle / f"examples/{name}.json", [question_record(len(name), "Soccer")])
    benchmark = load_benchmark(kaggle)
    assert (benchmark.name, benchmark.rule, uids(benchmark)) == ("kaggledbqa", "test_suite", ["Soccer_test_0"])
    assert uids(load_benchmark(kaggle, "fewshot")) == ["Soccer_fewshot_0"]
    assert uids(load_benchmark(kaggle, "all")) == ["Soccer_0"]
    science = tmp_path / "science"
    database(science / "databases/sdss/sdss.sqlite")
    (science / "cordis").mkdir(parents=True)
    write(science / "cordis/seed.json", [question_record(1, "cordis")])
    write(science / "sdss/dev.json", [question_record(2, "sdss_v2")])
    benchmark = load_benchmark(science)
    assert (benchmark.name, uids(benchmark)) == ("sciencebenchmark", ["sdss_dev_0"])
    assert benchmark.notes[0] == "missing: cordis/dev.json"
    with pytest.raises(InputError, match=r"no split 'tests' \(there are: dev, seed\)"):
        load_benchmark(science, "tests")


def test_synsql_demonstrates_its_chain_of_thought(tmp_path: Path) -> None:
    database(tmp_path / "databases/d/d.sqlite")
    record = {
        "db_id": "d",
        "sql_complexity": "Simple",
        "question": "How many?",
        "external_knowledge": "",
        "cot": "Count the rows.\n```sql\nSELECT count(*) FROM t\n```\n",
        "sql": "SELECT COUNT(*) FROM t",
    }
    write(tmp_path / "data.json", [record, record | {"db_id": "gone"}])
    write(tmp_path / "tables.json", [])
    benchmark = load_benchmark(tmp_path)
    (item,) = benchmark.examples
    assert (benchmark.name, item.uid, item.difficulty, item.reasoning) == (
        "synsql",
        "synsql_0",
        "Simple",
        "Count the rows.",
    )
    assert (item.gold_sql, item.target_sql) == ("SELECT COUNT(*) FROM t", "SELECT count(*) FROM t")
    assert benchmark.skipped == (("synsql_1", "no database gone"),)


def test_user_records_with_their_own_field_names(tmp_path: Path) -> None:
    database(tmp_path / "databases/d/d.sqlite")
    path = database(tmp_path / "elsewhere/shop.db")
    think = "<think>one\ntwo</think><answer>\n```sql\nSELECT 3\n```\n</answer>"
    reasoning = "<reasoning>r</reasoning>\n<answer>SELECT 4</answer>"
    lines(
        tmp_path / "train.jsonl",
        {"id": 7, "db_id": "d", "question": "A?", "SQL": "SELECT 1", "hint": "h", "other_sql": ["SELECT 2"]},
        {"db_path": "elsewhere/shop.db", "question": "B?", "query": "SELECT 2"},
        {"db_id": "d", "question": "C?", "response": think},
        {"db": "elsewhere/shop.db", "question": "D?", "gold": "SELECT 5", "completion": reasoning},
        {
            "db_id": "d",
            "question": "E?",
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": think}],
        },
        {"db_id": "d", "question": "F?"},
    )
    benchmark = load_benchmark(tmp_path, "train")
    assert (benchmark.name, uids(benchmark)) == ("own", ["7", "train_1", "train_2", "train_3", "train_4"])
    first, second, third, fourth, fifth = benchmark.examples
    assert (first.evidence, first.golds) == ("h", ["SELECT 1", "SELECT 2"])
    assert (second.db_path, second.db_id) == (str(path), "shop")
    assert (third.reasoning, third.demonstration, third.gold_sql) == ("one\ntwo", "SELECT 3", "SELECT 3")
    assert (fourth.reasoning, fourth.demonstration, fourth.gold_sql) == ("r", "SELECT 4", "SELECT 5")
    assert (fourth.db_path, fifth.demonstration) == (str(path), "SELECT 3")
    assert benchmark.skipped == (("train_5", "no sql"),)
    assert uids(load_benchmark(tmp_path / "train.jsonl")) == uids(benchmark)
    assert len(load_split(tmp_path, "train", limit=2).examples) == 2


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ('Question,SQL\n"How many, all?",SELECT count(*) FROM t\n\n', [("How many, all?", "SELECT count(*) FROM t")]),
        ('\ufeffid;question;Gold SQL\r\n7;Which?;"SELECT a\nFROM t"\r\n', [("Which?", "SELECT a\nFROM t")]),
        ("nl\tquery\nWhich?\tSELECT a FROM t\n", [("Which?", "SELECT a FROM t")]),
    ],
)
def test_user_csv_needs_no_name_of_its_only_database(
    tmp_path: Path, text: str, requests: list[tuple[str, str]]
) -> None:
    database(tmp_path / "mine.db")
    (tmp_path / "train.csv").write_text(text, newline="")
    for benchmark in (load_benchmark(tmp_path, "train"), load_benchmark(tmp_path / "train.csv")):
        assert [(example.question, example.gold_sql) for example in benchmark.examples] == requests
        assert {(item.db_id, item.db_path) for item in benchmark.examples} == {("mine", str(tmp_path / "mine.db"))}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_file_next_to_one_database_is_split_by_its_golds(tmp_path: Path, ending: str) -> None:
    database(tmp_path / "mine.db")
    rows = [{"question": f"Q{n}?", "sql": f"SELECT {n // 2}" + "  " * (n % 2)} for n in range(40)]
    path = tmp_path / f"all.{ending}"
    if ending == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif ending == "csv":
        path.write_text("question,sql\n" + "".join(f"{row['question']},{row['sql']}\n" for row in rows))
    else:
        lines(path, *rows)
    whole, taught, held = (load_split(path, name) if name else load_benchmark(path) for name in ("", "train", "dev"))
    assert len(whole.examples) == 40
    assert {example.db_path for example in whole.examples} == {str(tmp_path / "mine.db")}
    assert sorted(uids(taught) + uids(held)) == sorted(uids(whole))
    assert len(held.examples) == 10, "a quarter of the golds"
    assert not {entry.gold_sql for entry in taught.examples} & {item.gold_sql for item in held.examples}
    assert (whole.notes, uids(load_split(path, "test"))) == ((), uids(held))
    assert taught.notes[0].startswith(f"using 30 of the 40 questions of all.{ending}, which has no splits")
    assert open_stream(path, "train", 1) is None, "a split was opened as a stream"
    for name in ("train", "dev"):
        with pytest.raises(InputError, match=rf"no split '{name}' \(there are: all\); name {path} as the data, and"):
            load_split(tmp_path, name)


def test_file_with_one_gold_cannot_be_split(tmp_path: Path) -> None:
    database(tmp_path / "mine.db")
    path = tmp_path / "all.jsonl"
    lines(path, {"question": "Q?", "sql": "SELECT 1"}, {"question": "R?", "sql": "select  1"})
    assert len(load_split(path, "dev").examples) == 2
    with pytest.raises(InputError, match=r"no training questions remain: its questions \(2\) have one gold"):
        load_split(path, "train")


def test_text_nan_in_a_csv_is_an_empty_cell(tmp_path: Path) -> None:
    database(tmp_path / "mine.db")
    rows = "id,question,sql,evidence\na,Q?,SELECT 1,nan\nb,Q?,nan,NaN\nc,Banana?,SELECT 'nan',banana\n"
    (tmp_path / "dev.csv").write_text(rows)
    benchmark = load_benchmark(tmp_path)
    assert [(example.uid, example.gold_sql, example.evidence) for example in benchmark.examples] == [
        ("a", "SELECT 1", ""),
        ("c", "SELECT 'nan'", "banana"),
    ]
    assert [uid for uid, _ in benchmark.skipped] == ["b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Qestion,db,notes\nWhich?,t,x\n",
            r"no column question and no column sql; its columns are q.* \(did you mean question for qestion\?\)",
        ),
        (
            "question,sqll\nWhich?,SELECT 1\n",
            r"no column sql; its columns are question, sqll \(did you mean sql for sqll\?\)",
        ),
        ("question,sql\nWhich?,SELECT 1,2\n", "line 2: 3 cells under 2 columns"),
        ('question,sql\nWhich?,"SELECT 1\n', "line 2: unexpected end of data"),
        ("\n", "the first line is empty"),
        ("question,sql\n", "has no rows below its header"),
    ],
)
def test_csv_without_questions_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    database(tmp_path / "mine.db")
    (tmp_path / "train.csv").write_text(text)
    for path, split in ((tmp_path, "train"), (tmp_path / "train.csv", "")):
        with pytest.raises(InputError, match=message) as caught:
            load_benchmark(path, split)
        assert "\n" not in str(caught.value)


def test_question_in_the_column_of_database_names_is_skipped(tmp_path: Path) -> None:
    database(tmp_path / "databases/shop/shop.sqlite")
    long_name = "How many? " * 30
    (tmp_path / "dev.csv").write_text(f"question,sql,db_id\nHow many?,SELECT 1,shop\nx,SELECT 1,{long_name}\n")
    benchmark = load_benchmark(tmp_path)
    assert [example.db_id for example in benchmark.examples] == ["shop"]
    ((_, reason),) = benchmark.skipped
    assert reason == f"db_id {long_name[:40] + '…'!r} is not a folder name"


def test_parquet_is_read_in_parts(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    database(tmp_path / "databases/d/d.sqlite")
    for part in range(2):
        rows = [{"id": f"q{part}", "db_id": "d", "question": "A?", "sql": f"SELECT {part}", "evidence": None}]
        (tmp_path / "data").mkdir(exist_ok=True)
        parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / f"data/train-0000{part}-of-00002.parquet")
    benchmark = load_benchmark(tmp_path, "train")
    assert [(example.uid, example.gold_sql) for example in benchmark.examples] == [
        ("q0", "SELECT 0"),
        ("q1", "SELECT 1"),
    ]
    (tmp_path / "data/train-00000-of-00002.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="not a Parquet file"):
        load_benchmark(tmp_path, "train")


SCREEN = 24 * 80


def test_error_for_large_folders_fits_half_a_screen(tmp_path: Path) -> None:
    for i in range(50):
        (tmp_path / "odd" / f"some folder that holds no questions {i}").mkdir(parents=True)
        lines(tmp_path / "sets" / f"a set of questions {i}" / "questions.jsonl", {})
        database(tmp_path / "around" / f"other {i}" / "database/other/other.sqlite")
        write(tmp_path / "own" / f"file of questions {i}.json", [question_record(i, sql="SELECT 1")])
    write(tmp_path / "around/dk/Spider-DK.json", [question_record(0)])
    errors = {}
    for name, split in (("odd", ""), ("odd", "dev"), ("sets", ""), ("around/dk", ""), ("own", "dev")):
        with pytest.raises(InputError) as caught:
            load_benchmark(tmp_path / name, split)
        errors[name, split] = str(caught.value).replace(str(tmp_path), "")
    assert max(map(len, errors.values())) <= SCREEN // 2
    assert "it holds some folder that holds no questions 0, " in errors["odd", ""]
    assert " and 42 more. Expected questions.jsonl" in errors["odd", ""]
    assert "sets are in the folders a set of questions 0, " in errors["sets", ""]
    assert errors["around/dk", ""].endswith(" and 47 more)")


def test_splits_folder_is_found_one_level_deeper(tmp_path: Path) -> None:
    for split in ("dev", "train"):
        folder = tmp_path / "bird" / f"{split}_20240627"
        database(folder / f"{split}_databases/d/d.sqlite")
        write(folder / f"{split}.json", [question_record(0, SQL="SELECT 1", evidence="e")])
    assert uids(load_benchmark(tmp_path, "train")) == ["bird_train_0"]
    assert uids(load_benchmark(tmp_path, "dev")) == ["bird_dev_0"]
    with pytest.raises(InputError, match=r"sets are in the folders bird/dev_20240627, bird/train_20240627"):
        load_benchmark(tmp_path)


HEAD = "db_name,db_type,query_category,query,question"


def test_defog_csv_has_several_golds(tmp_path: Path) -> None:
    database(tmp_path / "databases/d.db")
    data = tmp_path / "data"
    data.mkdir()
    (data / "questions_gen_sqlite.csv").write_text(
        f"{HEAD},instructions\n"
        """d,sqlite,group_by,"SELECT {a, b}, 1 FROM t GROUP BY {};SELECT ';' FROM t;","Which?",Say it.\n"""
        """d,sqlite,ratio,SELECT 1;,"How many, in ORDER?",\n"""
    )
    (data / "instruct_advanced_sqlite.csv").write_text(
        f"{HEAD},instructions,full_instructions\nd,sqlite,keyword,SELECT 2,Q?,short,long\n"
    )
    (data / "questions_gen_postgres.csv").write_text(f"{HEAD}\nd,postgres,x,SELECT 9,Q?\n")
    benchmark = load_benchmark(tmp_path)
    assert (benchmark.name, uids(benchmark)) == ("defog", ["defog_questions_gen_0", "defog_questions_gen_1"])
    first, second = benchmark.examples
    assert (first.evidence, first.difficulty, second.other_golds) == ("Say it.", "group_by", ())
    assert (benchmark.rule, first.options, second.options) == (
        "defog",
        {"asks_for_order": False},
        {"asks_for_order": True},
    )
    assert [first.gold_sql, *first.other_golds] == [
        "SELECT a, 1 FROM t GROUP BY a", "SELECT b, 1 FROM t GROUP BY b", "SELECT a, b, 1 FROM t GROUP BY a, b",
        "SELECT ';' FROM t",
    ]  # fmt: skip
    assert benchmark.notes == ("1 of 2 questions has several golds: any of them counts",)
    assert [example.evidence for example in load_benchmark(tmp_path, "instruct_advanced").examples] == ["long"]
    assert uids(load_benchmark(data / "questions_gen_sqlite.csv")) == uids(benchmark)
    there = r"questions_gen, instruct_advanced, questions_gen_postgres"
    with pytest.raises(InputError, match=rf"no split 'x' \(there are: {there}\)"):
        load_benchmark(tmp_path, "x")


@pytest.mark.parametrize(
    ("text", "golds"),
    [
        ("SELECT 1", ["SELECT 1"]), (" ; ;", []), ("SELECT {a} FROM t;", ["SELECT a FROM t"]),
        ("SELECT 'it''s; so';SELECT \"a;b\"", ["SELECT 'it''s; so'", 'SELECT "a;b"']),
        ("SELECT 1;SELECT 1;", ["SELECT 1"]), ("SELECT {a FROM t", ["SELECT {a FROM t"]),
        ("SELECT 'open; x", ["SELECT 'open", "x"]),
    ],
)  # fmt: skip
def test_defogs_golds(text: str, golds: list[str]) -> None:
    assert golds_of(text) == golds


def test_many_columns_in_braces_make_a_limited_number_of_golds() -> None:
    golds = golds_of(f"SELECT {{{', '.join(f'c{i}' for i in range(30))}}} FROM t")
    assert len(golds) == 31
    assert golds[-1].count(",") == 29


def test_plain_folder_uses_the_suite_next_to_it(tmp_path: Path) -> None:
    database(tmp_path / "dev/databases/d/d.sqlite")
    lines(tmp_path / "dev/questions.jsonl", {"id": "q", "db_id": "d", "question": "Q?", "sql": "SELECT 1"})
    benchmark = load_benchmark(tmp_path, "dev")
    assert (benchmark.name, benchmark.rule, benchmark.examples[0].suite) == ("plain", "bird", ())
    variant = database(tmp_path / "dev_testsuite/databases/d/dv.sqlite")
    benchmark = load_benchmark(tmp_path, "dev")
    assert (benchmark.rule, benchmark.examples[0].suite) == (
        "test_suite",
        (benchmark.examples[0].db_path, str(variant)),
    )
