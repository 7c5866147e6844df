"""Data preparation: selection, balance, merges, splits by database, and one-line errors for invalid inputs."""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.prepare import main
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.config.prepare import PrepareConfig, load_prepare
from jaxrl_sql.datagen.prepare.script import make_database
from jaxrl_sql.datagen.prepare.split import pick
from jaxrl_sql.text2sql.benchmarks import load_benchmark, load_split
from jaxrl_sql.text2sql.schema.describe import read_descriptions

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "configs/data").glob("*.yaml"))
PAPERS = ("arctic", "sql_r1", "sql_r1_sft", "paverl", "paverl_mixed", "think2sql", "think2sql_sft", "skyrl_sql")
ARCTIC_MIXES = {
    "arctic": ["bird", "spider_train", "spider_dev", "gretel"],
    "arctic_bird": ["bird"],
    "arctic_bird_spider": ["bird", "spider_train", "spider_dev"],
    "arctic_nonfiltered": ["bird", "spider_train", "spider_dev", "gretel"],
    "arctic_bird_aug": ["bird", "spider_train", "spider_dev", "gretel", "bird_aug"],
}
LABELS = ("Simple", "Moderate", "Complex")
WIDE, EMPTY, WRONG = "SELECT x, y FROM t WHERE x > 0", "SELECT x FROM t WHERE x > 9", "SELECT lost FROM t"


def database(path: Path, more: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"CREATE TABLE t(x INT, y INT); INSERT INTO t VALUES (1, 2), (3, 4);{more}")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def synsql(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small read-only SynSQL in its published layout: 60 questions, ten databases, three complexities."""
    folder = tmp_path_factory.mktemp("source") / "SynSQL-2.5M"
    records = [
        {
            "db_id": f"d{i % 10}",
            "question": f"User: how is {i}? Assistant: fine." if i % 12 == 11 else f"What is {i}?",
            "external_knowledge": "",
            "sql": f"SELECT x FROM t WHERE x < {i + 2}" if i % 5 else WIDE,
            "sql_complexity": LABELS[i % 3] if i < 30 else "Complex",
            "cot": f"Because.\n```sql\nSELECT {i}\n```",
        }
        for i in range(60)
    ]
    for i in range(10):
        database(folder / f"databases/d{i}/d{i}.sqlite", f"CREATE TABLE u{i}(z);")
    (folder / "data.json").write_text(json.dumps(records))
    return folder


Prepare = Callable[..., tuple[int, str]]


@pytest.fixture
def prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prepare:
    """Return a function that runs the command on values and returns its exit code and output."""

    def run(*values: str, config: Path | None = None, out: str = "out") -> tuple[int, str]:
        file = ["--config", str(config)] if config else []
        code = main([*file, "--out", str(tmp_path / out), *values, "threads=1"])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_selection_by_complexity_is_deterministic(synsql: Path, prepare: Prepare, tmp_path: Path) -> None:
    settings = (f"sources.s.dir={synsql}", "sources.s.complexity=[Complex]", "sources.s.count=12")
    assert prepare(*settings)[0] == 0
    result = load_split(tmp_path / "out", "train").examples
    assert (len(result), {item.difficulty for item in result}) == (12, {"Complex"})
    assert result[0].reasoning == "Because."
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["sources"]["s"]["format"] == "synsql"
    assert manifest["sources"]["s"]["left_out"] == {"not among those chosen": 28, "complexity": 20}
    assert manifest["written"]["train"]["questions"] == 12
    assert manifest["settings"]["sources"]["s"]["complexity"] == ["Complex"]
    again = (tmp_path / "out/train/questions.jsonl").read_bytes()
    assert prepare(*settings)[0] == 0
    assert (tmp_path / "out/train/questions.jsonl").read_bytes() == again
    assert json.loads((tmp_path / "out/manifest.json").read_text())["written"] == manifest["written"]
    assert prepare(*settings, "seed=1", out="other")[0] == 0
    assert (tmp_path / "other/train/questions.jsonl").read_bytes() != again


def test_groups_are_balanced_up_to_their_sizes(synsql: Path, prepare: Prepare, tmp_path: Path) -> None:
    balanced = (f"sources.s.dir={synsql}", "sources.s.balance=complexity")
    assert prepare(*balanced, "sources.s.count=20", "sources.s.exclude=['^User:']")[0] == 0
    result = load_split(tmp_path / "out", "train").examples
    assert Counter(item.difficulty for item in result) == {"Complex": 7, "Moderate": 7, "Simple": 6}
    assert not any("User:" in entry.question for entry in result)
    assert prepare(*balanced, "sources.s.count=40", out="more")[0] == 0
    result = load_split(tmp_path / "more", "train").examples
    assert Counter(element.difficulty for element in result) == {"Complex": 20, "Moderate": 10, "Simple": 10}
    code, output = prepare(f"sources.s.dir={synsql}", "sources.s.count=100", "sources.s.balance=database", out="all")
    assert (code, "only 60 of the 100 requested questions are available" in output) == (0, True)
    few = (f"sources.s.dir={synsql}", "sources.s.count=10", "sources.s.balance=database")
    assert prepare(*few, out="few")[0] == 0
    assert len({example.db_id for example in load_split(tmp_path / "few", "train").examples}) == 10


def test_filters_use_golds_levels_ids_and_pass_rates(synsql: Path, prepare: Prepare, tmp_path: Path) -> None:
    synsql = shutil.copytree(synsql, tmp_path / "SynSQL-2.5M")
    records = json.loads((synsql / "data.json").read_text())
    records[1]["sql"], records[2]["sql"], records[3]["db_id"] = EMPTY, WRONG, "lost"
    (synsql / "data.json").write_text(json.dumps(records))
    assert prepare(f"sources.s.dir={synsql}")[0] == 0
    (manifest,) = (json.loads((tmp_path / "out/manifest.json").read_text()),)
    assert manifest["sources"]["s"]["left_out"] == {"no database": 1, "gold fails: schema_error": 1, "gold empty": 1}
    assert prepare(f"sources.s.dir={synsql}", "sources.s.empty_gold=false", out="run")[0] == 0
    assert EMPTY in [item["sql"] for item in lines(tmp_path / "run/train/questions.jsonl")]
    assert prepare(f"sources.s.dir={synsql}", "sources.s.run_golds=false", out="all")[0] == 0
    assert len(lines(tmp_path / "all/train/questions.jsonl")) == 59
    assert prepare(f"sources.s.dir={synsql}", "sources.s.hardness=[medium]", out="medium")[0] == 0
    assert {entry["sql"] for entry in lines(tmp_path / "medium/train/questions.jsonl")} == {WIDE}
    (tmp_path / "ids").write_text("".join(f"synsql_{i}\n" for i in range(10, 20)))
    rates = [{"settings": {}}, *({"id": f"synsql_{i}", "right": i - 10, "of": 10} for i in range(10, 19))]
    (tmp_path / "rates.jsonl").write_text("".join(json.dumps(rate) + "\n" for rate in rates))
    bound = (f"sources.s.rates={tmp_path}/rates.jsonl", "sources.s.low=0.1", "sources.s.high=0.3")
    listed = f"sources.s.include_ids={tmp_path}/ids"
    assert prepare(f"sources.s.dir={synsql}", listed, *bound, out="rated")[0] == 0
    result = [line["id"] for line in lines(tmp_path / "rated/train/questions.jsonl")]
    assert result == ["synsql_11", "synsql_12", "synsql_13"]


def test_validation_split_shares_no_database(synsql: Path, prepare: Prepare, tmp_path: Path) -> None:
    split = ("validation.questions=18", "validation.databases=3", "count=30", "subsets=[2,4]")
    assert prepare(f"sources.s.dir={synsql}", *split)[0] == 0
    train, held = (load_split(tmp_path / "out", name).examples for name in ("train", "validation"))
    assert (len(train), len(held), len({element.db_id for element in held})) == (30, 18, 3)
    assert not {entry.db_id for entry in train} & {item.db_id for item in held}
    half, quarter = ({line["id"] for line in lines(tmp_path / f"out/train_1_{n}.jsonl")} for n in (2, 4))
    assert (len(half), len(quarter), quarter < half < {one.uid for one in train}) == (15, 8, True)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["left_out"] == {"more than count": 12}
    code, output = prepare(f"sources.s.dir={synsql}", "validation.questions=20", "validation.databases=3", out="bad")
    assert (code, output) == (
        2, "error: validation: no 3 databases add up to 20 questions (the nearest sum is 18): change the numbers\n"
    )  # fmt: skip
    code, output = prepare(f"sources.s.dir={synsql}", "validation.questions=9", "validation.databases=10", out="bad")
    assert code == 2
    assert "cannot split 9 questions of 10 databases off 60 of 10" in output


def test_whole_databases_are_picked_for_a_sum() -> None:
    counts = [7, 11, 2, 30, 5]
    for total, many, chosen in ((18, 2, {7, 11}), (14, 3, {7, 2, 5}), (37, 2, {7, 30}), (12, 0, {7, 5})):
        assert {counts[i] for i in pick(counts, total, many)} == chosen
    assert sum(counts[i] for i in pick(counts, 31, 1)) == 30
    assert pick(counts, 1, 2) == []
    assert sum(counts[i] for i in pick(counts, 25, 0)) == 25
    many = [3 + i % 40 for i in range(3000)]
    assert sum(many[i] for i in pick(many, 648, 50)) == 648
    assert len(pick(many, 648, 50)) == 50


def plain(folder: Path, ids: tuple[str, ...], more: str = "", db_id: str = "shop") -> Path:
    database(folder / f"databases/{db_id}/{db_id}.sqlite", more)
    questions = [{"id": id_, "db_id": db_id, "question": f"Which {id_}?", "sql": WIDE} for id_ in ids]
    (folder / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    return folder


def test_sets_are_merged_unless_two_databases_share_a_name(prepare: Prepare, tmp_path: Path) -> None:
    item, same = plain(tmp_path / "one", ("q1", "q2")), plain(tmp_path / "same", ("q2", "q3"))
    other = plain(tmp_path / "other", ("q9",), "INSERT INTO t VALUES (5, 6);")
    described = item / "databases/shop/database_description"
    described.mkdir()
    (described / "t.csv").write_text("original_column_name\nx\n")
    both = (f"sources.one.dir={item}", f"sources.same.dir={same}")
    assert prepare(*both)[0] == 0
    result = load_split(tmp_path / "out", "train").examples
    assert [example.uid for example in result] == ["one_q1", "one_q2", "same_q2", "same_q3"]
    assert len({example.db_path for example in result}) == 1
    assert (tmp_path / "out/train/databases/shop/database_description/t.csv").is_file()
    clash = (f"sources.one.dir={item}", f"sources.other.dir={other}")
    code, output = prepare(*clash, out="bad")
    assert (code, output.count("\n")) == (2, 1)
    assert "database shop differs between one and other: set sources.other.prefix" in output
    assert prepare(*clash, "sources.other.prefix=o_", "link=true", out="apart")[0] == 0
    apart = load_split(tmp_path / "apart", "train").examples
    assert {example.db_id for example in apart} == {"shop", "o_shop"}
    assert (tmp_path / "apart/train/databases/o_shop/o_shop.sqlite").is_symlink()
    manifest = json.loads((tmp_path / "apart/manifest.json").read_text())
    assert [manifest["sources"][name]["taken"] for name in ("one", "other")] == [2, 1]
    assert len({source["hash"] for source in manifest["sources"].values()}) == 2


def test_evaluation_sets_are_written_next_to_the_training_set(prepare: Prepare, tmp_path: Path) -> None:
    item, judged = plain(tmp_path / "one", ("q1",)), plain(tmp_path / "judged", ("q1", "q2", "q2"))
    questions = lines(judged / "questions.jsonl")
    questions[2]["id"] = "again"  # evaluation keeps questions that training would omit
    questions[1]["sql"] = EMPTY
    (judged / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    asked_for = (f"sources.one.dir={item}", f"evals.shop_dev.dir={judged}")
    assert prepare(*asked_for)[0] == 0
    assert [example.uid for example in load_split(tmp_path / "out", "shop_dev").examples] == ["q1", "q2", "again"]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["written"]["shop_dev"]["questions"] == 3
    assert prepare(*asked_for)[0] == 0  # a second run into the same folder


def test_questions_omitted_from_an_evaluation_set_are_reported(prepare: Prepare, tmp_path: Path) -> None:
    item, hospital = plain(tmp_path / "one", ("q1",)), tmp_path / "ehrsql/mimic_iii"
    database(hospital / "mimic_iii.sqlite")
    questions = [
        {"id": "a", "question": "Which?", "query": WIDE, "is_impossible": False},
        {"id": "b", "question": "Why?", "query": "nan", "is_impossible": True},
    ]
    (hospital / "valid.json").write_text(json.dumps(questions))
    code, output = prepare(f"sources.one.dir={item}", f"evals.dev.dir={tmp_path}/ehrsql")
    assert code == 0
    assert "dev: skipped 1 (has no answer), such as b" in output
    (messages,) = json.loads((tmp_path / "out/manifest.json").read_text())["evals"].values()
    assert messages["left_out"] == {"has no answer": 1}


def test_databases_with_the_same_name_do_not_overwrite_each_other(prepare: Prepare, tmp_path: Path) -> None:
    item, local = plain(tmp_path / "one", ("q1",)), tmp_path / "own"
    database(local / "north/shop.sqlite")
    database(local / "south/shop.sqlite", "INSERT INTO t VALUES (5, 6);")
    questions = [
        {"question": f"Which {name}?", "sql": WIDE, "db_path": f"{name}/shop.sqlite"} for name in ("north", "south")
    ]
    (local / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    for values, where in (
        ((f"sources.one.dir={item}", f"evals.dev.dir={local}"), "evals.dev: "),
        ((f"sources.own.dir={local}",), "sources.own: "),
    ):
        code, output = prepare(*values)
        assert (code, output.count("\n"), where in output) == (2, 1, True), output
        assert "both have the name shop" in output
    questions = [{**line, "db_id": line["db_path"].partition("/")[0]} for line in questions]
    (local / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    assert prepare(f"sources.one.dir={item}", f"evals.dev.dir={local}")[0] == 0
    assert [example.db_id for example in load_split(tmp_path / "out", "dev").examples] == ["north", "south"]


def test_natural_names_are_copied_with_their_databases(prepare: Prepare, tmp_path: Path) -> None:
    item, other = plain(tmp_path / "one", ("q1",)), plain(tmp_path / "other", ("q2",), "INSERT INTO t VALUES (5, 6);")
    names = {"db_id": "shop", "table_names_original": ["t"], "column_names_original": [[-1, "*"], [0, "x"]]}
    for folder, output in ((item, "shelf"), (other, "corner")):
        (folder / "tables.json").write_text(json.dumps([{**names, "column_names": [[-1, "*"], [0, output]]}]))
    sources = (f"sources.one.dir={item}", f"sources.other.dir={other}", "sources.other.prefix=o_")
    assert prepare(*sources)[0] == 0
    descriptions = {
        example.db_id: read_descriptions(example.db_path).of("t", "x")
        for example in load_split(tmp_path / "out", "train").examples
    }
    assert descriptions == {"shop": "shelf", "o_shop": "corner"}


def test_each_question_is_counted_once(prepare: Prepare, tmp_path: Path) -> None:
    folder = plain(tmp_path / "one", tuple(f"q{i}" for i in range(400)))
    questions = [
        {**line, "sql": line["sql"] if i % 2 else WRONG} for i, line in enumerate(lines(folder / "questions.jsonl"))
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    assert prepare(f"sources.one.dir={folder}", "sources.one.count=3")[0] == 0
    (output,) = json.loads((tmp_path / "out/manifest.json").read_text())["sources"].values()
    assert output["taken"] == 3
    assert sum(output["left_out"].values()) == 397
    assert 0 < output["left_out"]["gold fails: schema_error"] < output["left_out"]["not among those chosen"]


def test_repeated_questions_are_skipped(prepare: Prepare, tmp_path: Path) -> None:
    folder = plain(tmp_path / "one", ("q1",))
    questions = lines(folder / "questions.jsonl")
    questions += [{**questions[0], "id": "q2", "question": "which q1 ?"}]
    (folder / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    assert "left out:        1  asked before" in prepare(f"sources.one.dir={folder}")[1]
    assert len(lines(tmp_path / "out/train/questions.jsonl")) == 1
    assert prepare(f"sources.one.dir={folder}", "repeats=false")[0] == 0
    assert len(lines(tmp_path / "out/train/questions.jsonl")) == 2


def test_gretel_databases_are_built_from_its_scripts(prepare: Prepare, tmp_path: Path) -> None:
    home, outside = tmp_path / "gretel", tmp_path / "outside.sqlite"
    home.mkdir()
    script = "CREATE TABLE t (x INT, y TEXT); INSERT INTO t VALUES (1, 'a;b');"
    rows = [
        {"id": 1, "sql_context": script, "sql": "SELECT y FROM t", "inserts": "INSERT INTO t VALUES (2, 'c')"},
        {"id": 2, "sql_context": "CREATE TABLE t (x INT", "sql": "SELECT x FROM t"},
        {"id": 3, "sql_context": f"ATTACH DATABASE '{outside}' AS o; CREATE TABLE o.t (x INT)", "sql": "SELECT 1"},
        {"id": 4, "sql_context": "CREATE TABLE t (x INT)", "sql": "SELECT x FROM t", "inserts": []},
    ]
    more = {"sql_prompt": "Which?", "sql_complexity": "basic SQL", "domain": "shops"}
    (home / "train.jsonl").write_text("".join(json.dumps(more | row) + "\n" for row in rows))
    code, output = prepare(f"sources.g.dir={home}")
    assert code == 0, output
    result = load_split(tmp_path / "out", "train").examples
    assert [(item.uid, item.db_id, item.difficulty) for item in result] == [("1", "gretel_1", "basic SQL")]
    with closing(sqlite3.connect(result[0].db_path)) as connection:
        assert connection.execute("SELECT y FROM t").fetchall() == [("a;b",), ("c",)]
    assert not outside.exists()
    assert "its script fails: not authorized" in output
    assert "gold empty" in output
    assert not (tmp_path / "out/scripts").exists()
    assert prepare(f"sources.g.dir={home}", "sources.g.run_golds=false", "link=true", out="all")[0] == 0
    assert [example.db_id for example in load_benchmark(tmp_path / "all/train").examples] == ["gretel_1", "gretel_4"]


def test_endless_script_is_stopped(tmp_path: Path) -> None:
    endless = "CREATE TABLE t AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
    assert make_database(tmp_path / "a/a.sqlite", endless) == "its script fails: interrupted"
    assert not (tmp_path / "a/a.sqlite").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "sources is empty"),
        (["sources.s.dir=SET", "sources.s.compexity=[Complex]"], "the nearest is sources.s.complexity"),
        (["sorces.s.dir=SET"], "unknown key sorces.s.dir; the nearest is sources"),
        (["sources.s=SET"], "sources.s is a section and needs keys below it"),
        (["sources.s.dir=SET", "validation=3"], "validation is a section and needs keys below it"),
        (["sources.s.dir=SET", "validation.question=3"], "the nearest is validation.questions"),
        (["sources.s.split=dev"], "sources.s.dir is empty"),
        (["sources.s.dir=SET", "sources.s.count=many"], "sources.s.count must be a whole number, not 'many'"),
        (["sources.s.dir=SET", "sources.s.count=-1"], "sources.s.count=-1 must be 0 or more"),
        (["sources.s.dir=SET", "sources.s.balance=size"], "sources.s.balance='size' is not one of none, complexity"),
        (["sources.s.dir=SET", "sources.s.low=0.5"], "set rates, the file that data filter writes"),
        (["sources.s.dir=SET", "sources.s.exclude=['(']"], "not a regular expression"),
        (["sources.s.dir=SET", "sources.s.complexity=[Hard]"], "sources.s: no question of"),
        (["sources.s.dir=SET", "sources.s.include_ids=nowhere"], "nowhere: No such file"),
        (["sources.s.dir=nowhere"], "nowhere: no such folder"),
        (["sources.s.dir=SET", "sources.s.split=moon"], "no split 'moon'"),
        (["sources.s.dir=SET", "validation.databases=2"], "validation.databases needs validation.questions"),
        (["sources.s.dir=SET", "subsets=[1]"], "subsets: 1 must be 2 or more"),
        (["sources.s.dir=SET", "evals.dev.split=dev"], "evals.dev.dir is empty"),
        (["sources.s.dir=SET", "evals.dev.dir=nowhere"], "nowhere"),
        (["sources.s.dir=SET", "evals.dev.folder=SET"], "unknown key evals.dev.folder; the nearest is evals.dev.dir"),
        (["sources.s.dir=SET", "evals.train.dir=SET"], "evals.train names a folder in"),
        (["sources.s.dir=SET", "evals.a/b.dir=SET"], "evals.a/b names a folder in"),
        (["sources.s.dir"], "'sources.s.dir' is not of the form key.sub=value"),
        (["sources.s.dir=SET", "sources.t=null"], "sources.t=null drops nothing: there are s"),
        (["sources.s.dir=SET", "sources.s=null"], "sources is empty"),
    ],
)  # fmt: skip
def test_invalid_input_is_reported_in_one_line(values: list[str], message: str, synsql: Path, prepare: Prepare) -> None:
    code, output = prepare(*(value.replace("SET", str(synsql)) for value in values))
    assert (code, output.count("\n")) == (2, 1), output
    assert message in output


def test_unexpected_folder_or_file_is_refused(synsql: Path, prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    code, output = prepare(f"sources.s.dir={synsql}", out="mine")
    assert (code, "holds thesis.txt and no manifest.json: choose an empty folder" in output) == (2, True)
    (tmp_path / "bad.yaml").write_text("sources: [")
    assert "not YAML" in prepare(config=tmp_path / "bad.yaml")[1]
    assert "nowhere.yaml: No such file" in prepare(config=tmp_path / "nowhere.yaml")[1]


@functools.cache
def load_prepared(path: Path) -> PrepareConfig:
    return load_prepare(path)


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_every_papers_mix_can_be_loaded(path: Path) -> None:
    config = load_prepared(path)
    assert config.out.startswith("data/")
    assert config.sources


def test_null_drops_a_source_of_the_file(synsql: Path, prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(f"sources: {{s: {{dir: {synsql}, count: 3}}, gone: {{dir: nowhere}}}}\n")
    code, _ = prepare("sources.gone=null", config=tmp_path / "mix.yaml")
    assert code == 0
    assert load_prepare(tmp_path / "mix.yaml", ["out=x", "sources.gone=null"]).sources.keys() == {"s"}
    again = load_prepare(tmp_path / "mix.yaml", ["out=x", "sources.s=null", "sources.s.dir=d"]).sources["s"]
    assert (again.dir, again.count) == ("d", 0)


def test_mixes_of_arctics_tables_differ_in_their_sources() -> None:
    mixes = {name: load_prepared(ROOT / f"configs/data/{name}.yaml") for name in ARCTIC_MIXES}
    assert {name: list(mix.sources) for name, mix in mixes.items()} == ARCTIC_MIXES
    assert len({mix.out for mix in mixes.values()}) == len(mixes)
    every = mixes["arctic_nonfiltered"].sources["gretel"]
    assert (every.include_ids, every.min_sql_characters) == ("", 161)


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_trains_on_its_prepared_data(name: str) -> None:
    data = load_config(TrainConfig, ROOT / f"configs/{name}.yaml").data
    (mix,) = (settings for path in CONFIGS if (settings := load_prepared(path)).out == data.dir)
    assert set(data.evals) <= {*mix.evals, *(["validation"] if mix.validation.questions else [])}
    assert data.train == "train"
