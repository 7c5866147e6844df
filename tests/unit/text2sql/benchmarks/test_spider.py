"""Spider and the sets on its databases in their published layouts, as small files."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.text2sql.benchmarks import Benchmark, load_benchmark, load_split
from jaxrl_sql.text2sql.benchmarks.spider import prepare_spider
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


def question_record(number: int, db_id: str = "d", **more: Any) -> dict[str, Any]:
    return {"db_id": db_id, "question": f"How many {number}?", "query": f"SELECT {number}", **more}


def uids(result: Benchmark) -> list[str]:
    return [example.uid for example in result.examples]


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    folder = tmp_path / "spider"
    database(folder / "database/d/d.sqlite")
    database(folder / "test_database/d/d.sqlite", rows=9)
    write(folder / "tables.json", [{"db_id": "d"}])
    write(folder / "dev.json", [question_record(0), question_record(1, "gone"), question_record(2)])
    write(folder / "train_spider.json", [question_record(3), question_record(4)])
    write(folder / "train_others.json", [question_record(5)])
    return folder


def test_spider_is_read_by_split(spider: Path) -> None:
    assert load_benchmark(spider).name == "spider"
    dev = load_benchmark(spider)
    assert (dev.name, dev.rule, dev.submission) == ("spider", "test_suite", "spider")
    assert uids(dev) == ["spider_dev_0", "spider_dev_2"]
    assert dev.skipped == (("spider_dev_1", "no database gone"),)
    assert dev.examples[0].db_path == str(spider / "database/d/d.sqlite")
    assert (dev.examples[1].gold_sql, dev.examples[1].question) == ("SELECT 2", "How many 2?")
    assert uids(load_benchmark(spider, "train")) == [f"spider_train_{i}" for i in range(3)]
    assert uids(load_benchmark(spider, "train_spider")) == ["spider_train_0", "spider_train_1"]
    assert uids(load_benchmark(spider, "dev", limit=1)) == ["spider_dev_0"]
    assert [example.gold_sql for example in load_split(spider, "train").examples] == [
        "SELECT 3",
        "SELECT 4",
        "SELECT 5",
    ]
    with pytest.raises(InputError, match=r"no split 'test' \(there are: dev, train, train_spider, train_others\)"):
        load_benchmark(spider, "test")


# The SQL as run by `exec_eval.py` and `parse.py` of the test suite's repository.
RUN_BY_SPIDER = [
    ("SELECT 1 WHERE 1 > = 1", "SELECT 1 WHERE 1 >= 1"), ("SELECT 1 < = 2, 1 ! = 2", "SELECT 1 <= 2, 1 != 2"),
    ("SELECT '> ='", "SELECT '>='"),  # in literals, too
    ("SELECT a FROM t; SELECT b FROM t", "SELECT a FROM t"), ("SELECT 1;", "SELECT 1;"),
    ("SELECT ';' ; SELECT 2", "SELECT ';'"), ("SELECT 1 -- a; b\n + 2; SELECT 3", "SELECT 1 -- a; b\n + 2"),
    ("SELECT /* ; */ 1; DROP TABLE t", "SELECT /* ; */ 1"), ("", ""), (";", ";"),
    ("SELECT year ( CurDate() ) - 1", "SELECT 2020- 1"), ("SELECT YEAR(x)", "SELECT YEAR(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "run"), RUN_BY_SPIDER)
def test_prediction_is_prepared_like_in_spiders_scorer(sql: str, run: str) -> None:
    assert prepare_spider(sql) == run


def test_sets_on_spiders_databases_prepare_predictions_and_repair_golds(spider: Path, tmp_path: Path) -> None:
    write(spider / "dev.json", [question_record(0, query="SELECT a FROM t WHERE a < = 1")])
    write(tmp_path / "dk/Spider-DK.json", [question_record(0, query="SELECT a FROM t WHERE a ! = 1")])
    write(
        tmp_path / "en_data/dev.json",
        [question_record(0, query="SELECT a FROM t WHERE a > = 1", commonsense_knowledge="")],
    )
    for folder, sign in ((spider, "<="), (tmp_path / "dk", "!="), (tmp_path / "en_data", ">=")):
        benchmark = load_benchmark(folder)
        assert benchmark.examples[0].gold_sql == f"SELECT a FROM t WHERE a {sign} 1"
        assert benchmark.prepare is prepare_spider


def test_missing_spider_files_are_reported(spider: Path) -> None:
    (spider / "train_others.json").unlink()
    (note,) = load_benchmark(spider, "train").notes
    assert note.startswith("train_others.json is missing")
    (spider / "database/d/d.sqlite").unlink()
    with pytest.raises(InputError, match=r"expected in .*spider/database\): no usable question \(no database d: 2;"):
        load_benchmark(spider, "train_spider")


def test_golds_of_spider_that_differ_from_its_list_are_reported(spider: Path) -> None:
    (spider / "dev_gold.sql").write_text("SELECT  0 ;\td\nSELECT 1\tgone\nSELECT 7\td\n\n")
    (note,) = load_benchmark(spider).notes
    assert note.startswith(
        "dev_gold.sql has a different gold than the questions' file for 1 of 3 questions, first spider_dev_2"
    )
    (spider / "dev_gold.sql").write_text("SELECT 0\td\n")
    assert "has 1 gold for 3 questions" in load_benchmark(spider).notes[0]


def test_spiders_test_set_has_its_own_databases_and_separate_golds(spider: Path) -> None:
    test = [{key: value for key, value in question_record(i).items() if key != "query"} for i in range(2)]
    write(spider / "test.json", test)
    (spider / "test_gold.sql").write_text("SELECT 8\td\nSELECT 9\td\n")
    benchmark = load_benchmark(spider, "test")
    assert [(example.uid, example.gold_sql) for example in benchmark.examples] == [
        ("spider_test_0", "SELECT 8"),
        ("spider_test_1", "SELECT 9"),
    ]
    assert benchmark.examples[0].db_path == str(spider / "test_database/d/d.sqlite")
    assert "line by line" in benchmark.notes[0]
    (spider / "test_gold.sql").write_text("SELECT 8\td\nSELECT 9\tother\n")
    with pytest.raises(InputError, match=r"no usable question \(no sql: 2"):
        load_benchmark(spider, "test")


@pytest.mark.parametrize("folder", ["spider/test_suite/database", "spider_testsuite/databases", "test_suite_database"])
def test_variants_of_a_database_make_a_suite(spider: Path, tmp_path: Path, folder: str) -> None:
    variants = [database(tmp_path / folder / f"d/dv{i}.sqlite", rows=i) for i in range(3)]
    benchmark = load_benchmark(spider)
    assert benchmark.examples[0].suite == (benchmark.examples[0].db_path, *map(str, variants))
    assert benchmark.notes[-1] == "test suite: 1 of 1 databases has variants, 3 in all"


def test_databases_packed_with_variants_are_a_suite(spider: Path) -> None:
    variant = database(spider / "database/d/dv1.sqlite")
    (first, _) = load_benchmark(spider).examples
    assert first.suite == (str(spider / "database/d/d.sqlite"), str(variant))


def test_sets_on_spiders_databases_find_the_spider_folder(spider: Path, tmp_path: Path) -> None:
    dk, syn, realistic = (tmp_path / name for name in ("Spider-DK", "Spider-Syn", "spider-realistic"))
    database(dk / "database/new_d/new_d.sqlite")
    write(
        dk / "Spider-DK.json",
        [question_record(0, "new_d", type="3"), question_record(1, type="34"), question_record(2, type="0")],
    )
    syn_question = {"SpiderQuestion": "Plain?", "SpiderSynQuestion": "Synonym?", "query": "SELECT 1", "db_id": "d"}
    write(syn / "dev.json", [syn_question])
    write(syn / "train_spider.json", [syn_question])
    write(realistic / "spider-realistic.json", [question_record(5)])
    benchmark = load_benchmark(dk)
    assert (benchmark.name, uids(benchmark)[:2]) == ("spider_dk", ["spider_dk_0", "spider_dk_1"])
    assert [example.difficulty for example in benchmark.examples] == ["T3", "T34", "T0"]
    assert [Path(item.db_path).stem for item in benchmark.examples] == ["new_d", "d", "d"]
    assert benchmark.notes == (f"using Spider's databases in {spider / 'database'}",)
    benchmark = load_benchmark(syn)
    assert (benchmark.name, benchmark.examples[0].question, uids(benchmark)) == (
        "spider_syn",
        "Synonym?",
        ["spider_syn_dev_0"],
    )
    assert uids(load_benchmark(syn, "train")) == ["spider_syn_train_0"]
    benchmark = load_benchmark(realistic)
    assert (benchmark.name, benchmark.examples[0].db_path) == ("spider_realistic", str(spider / "database/d/d.sqlite"))


def test_each_database_comes_from_the_sibling_folder_that_has_it(tmp_path: Path) -> None:
    """Folders of other sets also have databases, and several may have Spider's: none of these has the questions."""
    realistic, dk = tmp_path / "spider-realistic", tmp_path / "Spider-DK"
    write(
        realistic / "spider-realistic.json",
        [question_record(0, "a"), question_record(1, "b"), question_record(2, "b"), question_record(3, "gone")],
    )
    write(dk / "Spider-DK.json", [question_record(0, "new_a"), question_record(1, "a")])
    other = database(dk / "database/new_a/new_a.sqlite")
    database(tmp_path / "bird_some/databases/other/other.sqlite")
    first = database(tmp_path / "spider_dev/databases/a/a.sqlite")
    second = database(tmp_path / "spider_train/databases/b/b.sqlite")
    benchmark = load_benchmark(realistic)
    assert [example.db_path for example in benchmark.examples] == [str(first), str(second), str(second)]
    assert benchmark.skipped == (("spider_realistic_3", "no database gone"),)
    assert benchmark.notes == (f"using Spider's databases in {first.parents[1]} and {second.parents[1]}",)
    benchmark = load_benchmark(dk)
    assert [item.db_path for item in benchmark.examples] == [str(other), str(first)]
    database(tmp_path / "spider/database/a/a.sqlite")
    write(tmp_path / "spider/dev.json", [question_record(0, "a")])
    write(tmp_path / "spider/tables.json", [])
    assert load_benchmark(dk).examples[1].db_path == str(tmp_path / "spider/database/a/a.sqlite")


def test_missing_spider_folder_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "sets/spider-realistic/spider-realistic.json", [question_record(5)])
    with pytest.raises(InputError, match=r"no database d: 1"):
        load_benchmark(tmp_path / "sets/spider-realistic")


def test_invalid_bytes_are_read_and_reported(spider: Path) -> None:
    text = json.dumps([question_record(0, question="é naïve?"), question_record(2)], ensure_ascii=False, indent=0)
    (spider / "dev.json").write_bytes(b"\xef\xbb\xbf" + text.replace("naïve", "na@ve").encode().replace(b"@", b"\xef"))
    benchmark = load_benchmark(spider)
    assert benchmark.examples[0].question == "é naïve?"
    (note,) = benchmark.notes
    assert note.startswith("dev.json: 1 byte is not UTF-8, read as Windows-1252, the first in line 4 near ")
    assert "naïve" in note
    (spider / "dev.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_benchmark(spider).notes == ()


def test_mistaken_files_are_named(spider: Path, tmp_path: Path) -> None:
    (spider / "dev.json").write_text('[{"db_id": "d", "question": "Q", "query": "S"},\n{]')
    with pytest.raises(InputError, match=r"dev\.json:2: not JSON"):
        load_benchmark(spider)
    (spider / "dev.json").write_text('[{"db_id": "d", "question": "Q", "query": "S"}, 3]')
    with pytest.raises(InputError, match=r"dev\.json: item 2: expected a JSON object, found int"):
        load_benchmark(spider)
    with pytest.raises(InputError, match="no such folder"):
        load_benchmark(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"known format: it is empty\. Expected questions\.jsonl, databases/<db_id>"):
        load_benchmark(tmp_path / "empty")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_set_is_found_in_nested_folders(spider: Path, tmp_path: Path, depth: int) -> None:
    root = spider
    for level in range(depth):
        (tmp_path / f"round{level}").mkdir()
        root = root.rename(tmp_path / f"round{level}" / root.name).parent
    assert uids(load_benchmark(root)) == ["spider_dev_0", "spider_dev_2"]
    assert uids(load_benchmark(root, "train")) == ["spider_train_0", "spider_train_1", "spider_train_2"]
    assert uids(load_benchmark(root, "train_others")) == ["spider_train_others_0"]


def test_archer_has_its_knowledge_and_both_splits(spider: Path, tmp_path: Path) -> None:
    known = {"commonsense_knowledge": "A year has 12 months.", "reasoning_type": "- + C"}
    write(tmp_path / "en_data/dev.json", [question_record(0, **known), question_record(1, **known, id="own")])
    write(tmp_path / "en_data/train.json", [question_record(2, commonsense_knowledge="", reasoning_type="/ * H")])
    benchmark = load_benchmark(tmp_path / "en_data")
    assert (benchmark.name, benchmark.rule, uids(benchmark)) == ("archer", "test_suite", ["archer_dev_0", "own"])
    assert [(example.evidence, example.difficulty, example.gold_sql) for example in benchmark.examples] == [
        ("A year has 12 months.", "+ - C", "SELECT 0"),
        ("A year has 12 months.", "+ - C", "SELECT 1"),
    ]
    assert benchmark.examples[0].db_path == str(spider / "database/d/d.sqlite")
    train = load_benchmark(tmp_path / "en_data", "train").examples
    assert [(item.uid, item.evidence, item.difficulty) for item in train] == [("archer_train_0", "", "* / H")]
    with pytest.raises(InputError, match=r"no split 'test' \(there are: dev, train\)"):
        load_benchmark(tmp_path / "en_data", "test")
