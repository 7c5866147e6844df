"""Hidden columns occur in no prompt, retrieved value, example, cache or question."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.config import (
    DatabasesConfig,
    DataConfig,
    DialectsConfig,
    EvaluateConfig,
    ExecutorConfig,
    RetrievalConfig,
    load_config,
)
from jaxrl_sql.datagen.gold_repair import rows_prompt
from jaxrl_sql.inference.benchmark_sets import open_sets
from jaxrl_sql.inference.fingerprint import fingerprint
from jaxrl_sql.inference.training_set import (
    choose_shots,
    load_split_questions,
    open_question_stream,
    training_questions,
)
from jaxrl_sql.runtime.model_locator import prompt_settings
from jaxrl_sql.text2sql.benchmarks import Benchmark
from jaxrl_sql.text2sql.env.executor import make_executor, timing_executor
from jaxrl_sql.text2sql.prompts.prompts import message_texts
from jaxrl_sql.text2sql.question_sets.hiding import check_hide, hide_in_benchmark, hide_in_example
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.text2sql.schema import find_values, read_schema, read_values
from jaxrl_sql.text2sql.schema.link import link
from jaxrl_sql.types import Example, InputError

SCRIPT = """
CREATE TABLE users(
  id INTEGER PRIMARY KEY, name TEXT, "Password_Hash" TEXT, short TEXT AS (substr(password_hash, 1, 6))
);
INSERT INTO users(name, password_hash) VALUES ('Ann', 'topsecret one'), ('Bob', 'topsecret two');
CREATE TABLE orders(id INTEGER PRIMARY KEY, hash TEXT REFERENCES users(password_hash), city TEXT);
INSERT INTO orders VALUES (1, NULL, 'Berlin');
CREATE TABLE audit(line TEXT); INSERT INTO audit VALUES ('topsecret three');
CREATE VIEW logins AS SELECT name, password_hash FROM users;
CREATE VIEW people AS SELECT name AS person FROM users;
"""
HIDE = ("users.password_hash", "AUDIT")
SECRETS = ("topsecret", "password", "short", "audit", "logins")
QUESTION = "Who has topsecret one or topsec, and lives in Berlin with Ann (topsecret three)?"


def make(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
    return str(path)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))
    return make(tmp_path / "d.sqlite")


def example(path: str, **more: str) -> Example:
    return hide_in_example(Example("q", "d", path, "", "SELECT 1", **more), HIDE)


def set_of(folder: Path, golds: dict[str, str], split: str = "train") -> DataConfig:
    """Write a split with a database per question, so that each may be an example of the others."""
    for uid in golds:
        make(folder / split / "databases" / uid / f"{uid}.sqlite")
    lines = [{"id": uid, "db_id": uid, "question": f"{uid}?", "sql": sql} for uid, sql in golds.items()]
    (folder / split / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return DataConfig(source="folder", dir=str(folder), train=split, evals=[split], hide=[*HIDE])


def test_schema_has_no_hidden_column_and_no_key_to_one(path: str) -> None:
    schema = read_schema(path, HIDE)
    assert {table.name: [column.name for column in table.columns] for table in schema.tables} == {
        "users": ["id", "name"],
        "orders": ["id", "hash", "city"],
    }
    assert not any(table.foreign_keys for table in schema.tables)
    assert len(read_schema(path).tables) == 3


@pytest.mark.parametrize("form", ["compact", "ddl", "omnisql", "profile", "names_only"])
@pytest.mark.parametrize("matched", ["examples", "question"])
def test_prompt_contains_nothing_of_a_hidden_column(path: str, form: str, matched: str) -> None:
    pytest.importorskip("bm25s")
    data = DataConfig(
        prompt="chat", schema=form, retrieval=RetrievalConfig(top_k=20, placement=matched), schema_budget=150
    )
    style = find_recipe("omnisql").endpoint_style(data)
    text = "".join(message_texts(example(path), style))
    text_for_question = "".join(message_texts(dataclasses.replace(example(path), question=QUESTION), style)).replace(
        QUESTION, ""
    )
    for shown in (text, text_for_question):
        assert "users" in shown
        assert not [word for word in SECRETS if word in shown.lower()]


def test_hidden_values_are_not_retrieved_and_not_cached_on_disk(path: str, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    asking_example = dataclasses.replace(example(path), question=QUESTION)
    assert set(find_values(asking_example, 20)) == {("users", "name", "Ann"), ("orders", "city", "Berlin")}
    assert ("users", "Password_Hash") not in read_values(path, HIDE)
    files = [item for item in (tmp_path / "cache").rglob("*") if item.is_file()]
    assert files
    assert not [file for file in files if b"secret" in file.read_bytes()]
    whole = find_values(dataclasses.replace(asking_example, hide=()), 20)
    assert ("users", "Password_Hash", "topsecret one") in whole


def test_view_of_a_hidden_column_is_not_linked(path: str) -> None:
    pytest.importorskip("bm25s")
    item = dataclasses.replace(example(path), question="Which logins and people have a password hash?")
    names = {table.name for table in link(item, read_schema(path, HIDE), lambda _: True).tables}
    assert names == {"users", "orders", "people"}


def test_texts_for_a_teacher_show_no_hidden_column(path: str) -> None:
    assert not [word for word in SECRETS if word in rows_prompt(example(path)).lower()]


def test_question_with_a_hidden_column_in_its_gold_is_skipped_with_the_reason(tmp_path: Path) -> None:
    golds = {
        "fine": "SELECT name FROM users",
        "star": "SELECT * FROM users",
        "where": "SELECT name FROM users WHERE password_hash = 'topsecret one'",
        "table": "SELECT count(*) FROM audit",
        "broken": "SELECT nothing FROM users",
    }
    data = set_of(tmp_path, golds)
    result = training_questions(data, DatabasesConfig())
    assert [(entry.uid, entry.hide) for entry in result.examples] == [("fine", HIDE), ("broken", HIDE)]
    reasons = dict(result.skipped)
    assert reasons["star"] == "gold refused: access to users.Password_Hash is prohibited: it is hidden"
    assert (reasons["where"], "audit" in reasons["table"]) == (reasons["star"], True)
    config = load_config(EvaluateConfig, None, [f"evaluate.data=[{tmp_path}/train]", f"data.hide=[{','.join(HIDE)}]"])
    notes: list[str] = []
    (item,) = open_sets(config.evaluate, config.recipe, config.executor, config.data.hide, notes)
    assert [example.uid for example in item.examples] == ["fine", "broken"]
    assert item.counts.left_out == 3
    assert any("skipped 2 (gold refused: access to users.Password_Hash" in note for note in notes)
    with pytest.raises(InputError, match=r"no question is left; star: gold refused: access to users.Password_Hash"):
        training_questions(set_of(tmp_path / "all", {"star": golds["star"]}), DatabasesConfig())


def test_predictions_are_still_paired_by_position(tmp_path: Path) -> None:
    examples = [Example(uid, "d", make(tmp_path / "d" / f"{uid}.sqlite"), "", sql)
                for uid, sql in (("a", "SELECT * FROM users"), ("b", "SELECT name FROM users"))]  # fmt: skip
    assert hide_in_benchmark(Benchmark("x", "bird", tuple(examples)), HIDE).order == ("a", "b")


def test_examples_with_hidden_columns_in_their_sql_are_not_shown(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    golds = {"fine": "SELECT name FROM users", "star": "SELECT * FROM users", "other": "SELECT city FROM orders"}
    data = dataclasses.replace(set_of(tmp_path, golds), shots=2)
    choose = choose_shots(data)
    assert choose is not None
    shown = choose(Example("q", "x", "", "star?", ""))
    assert [(item.uid, item.hide) for item in shown] == [("other", HIDE), ("fine", HIDE)]


@pytest.mark.parametrize(
    ("hide", "message"),
    [
        (["users.pasword_hash"], "no table or column users.pasword_hash; the nearest is users.Password_Hash"),
        (["user.password_hash"], "no table or column user.password_hash; the nearest is users.Password_Hash"),
        (["odits"], "no table or column odits; the nearest is audit"),
        (["users.name", "users."], "no table or column users.; the nearest is users."),
        ([""], "no table or column ; the nearest is"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(path: str, hide: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_hide(hide, [path])
    check_hide(["USERS.id", "orders"], [path, path])


def test_names_distinct_in_sqlite_are_kept_distinct(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript('CREATE TABLE "Ärzte"("É" TEXT, "a.b" TEXT, c)')
    with pytest.raises(InputError, match=r"the nearest is Ärzte\.É"):
        check_hide(["Ärzte.é"], [str(path)])
    check_hide(["Ärzte.É", "Ärzte.A.B"], [str(path)])
    schema = read_schema(path, ("Ärzte.É", "Ärzte.A.B"))
    assert [column.name for column in schema.tables[0].columns] == ["c"]


def test_other_engines_and_streamed_sets_are_refused(tmp_path: Path) -> None:
    server = Example("q", "d", "", "", "SELECT 1", dialect="postgresql", engine_url="postgresql://u@h:1/d")
    message = r"is for SQLite files, and .*GRANT SELECT \(…\) ON users TO reader.*--leave-out users.password_hash"
    for call in (hide_in_example, lambda item, hide: hide_in_benchmark(Benchmark("x", "bird", (item,)), hide)):
        with pytest.raises(InputError, match=message):
            call(server, HIDE)
    data = set_of(tmp_path, {f"q{i}": "SELECT name FROM users" for i in range(4)})
    copies = dataclasses.replace(data, dialects=DialectsConfig(0.5, postgresql=0.5))
    with pytest.raises(InputError, match=r"data.dialects.postgresql needs another engine"):
        training_questions(copies, DatabasesConfig(postgresql=str(tmp_path)))
    with pytest.raises(InputError, match=r"needs all golds.*data.stream_above=0"):
        open_question_stream(dataclasses.replace(data, stream_above=1), DatabasesConfig())
    assert len(load_split_questions(data, "train", 0, DatabasesConfig()).examples) == 4


def test_executor_and_timing_executor_refuse_hidden_columns(path: str) -> None:
    with make_executor(ExecutorConfig(), HIDE) as executor, timing_executor(executor) as timer:
        for item in (executor, timer):
            assert item.execute(path, "SELECT * FROM users").status == "forbidden"
            assert item.execute(path, "SELECT 1 FROM audit").status == "forbidden"
            assert item.execute(path, "SELECT name FROM users").status == "ok"


def test_journal_records_hidden_columns_and_a_model_does_not() -> None:
    plain, hidden = DataConfig(), DataConfig(hide=["a.b"])
    assert "data.hide" not in fingerprint({}, plain, ExecutorConfig())
    assert fingerprint({}, hidden, ExecutorConfig())["data.hide"] == ["a.b"]
    assert "hide" not in prompt_settings(hidden)
