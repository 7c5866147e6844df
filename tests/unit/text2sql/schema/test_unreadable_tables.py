"""A table or column that SQLite cannot read is omitted and reported, and the others are read."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.commands.ask import to_stderr
from jaxrl_sql.commands.copy import main as copy
from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.inference.ask import database_example
from jaxrl_sql.serving.mcp import McpDatabase
from jaxrl_sql.text2sql.benchmarks import load_benchmark
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.schema import RENDERERS, ForeignKey, read_schema, read_values
from jaxrl_sql.text2sql.schema.retrieve import read_texts
from jaxrl_sql.types import Example, InputError

ITEM = "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT); INSERT INTO item VALUES (1, 'nail'), (2, 'saw');"
FTS = "CREATE VIRTUAL TABLE idx USING fts5(a);"
TABLES_RECORD = {
    "db_id": "shop",
    "table_names_original": ["item"],
    "column_names_original": [[-1, "*"], [0, "id"], [0, "name"]],
    "column_names": [[-1, "*"], [0, "id"], [0, "name"]],
    "column_types": ["text", "number", "text"],
    "primary_keys": [1],
    "foreign_keys": [],
}
PERSON = "CREATE TABLE person(id INT, n TEXT, PRIMARY KEY (id, n)); INSERT INTO person VALUES (1, 'Ann');"
PET = "CREATE TABLE pet(id INT, n TEXT, FOREIGN KEY (id, n) REFERENCES person);"

# The script, a part of the schema, its replacement that SQLite cannot parse, and (name, reason) of the omissions.
UNREADABLE: dict[str, tuple[str, tuple[str, str], list[tuple[str, str]]]] = {
    "module": (FTS, ("fts5(a)", "VirtualSpatialIndex()"), [("idx", "no such module: VirtualSpatialIndex")]),
    "tokenizer": (FTS, ("fts5(a)", "fts5(a, tokenize='zh')"), [("idx", "no such tokenizer: zh")]),
    "collation": (
        PERSON,
        ("n TEXT", "n TEXT COLLATE LOCALIZED"),
        [("person.n", "no such collation sequence: LOCALIZED")],
    ),
    "collation of the only column": (
        "CREATE TABLE person(n TEXT);",
        ("n TEXT", "n TEXT COLLATE LOCALIZED"),
        [("person", "no such collation sequence: LOCALIZED")],
    ),
    "collation of the rows' order": (
        "CREATE TABLE person(n TEXT PRIMARY KEY, age INT) WITHOUT ROWID;",
        ("n TEXT", "n TEXT COLLATE LOCALIZED"),
        [("person", "no such collation sequence: LOCALIZED")],
    ),
    "function of a generated column": (
        "CREATE TABLE person(id INT, v AS (abs(id)));",
        ("abs(id)", "own(id)"),
        [("person.v", "unknown function: own()")],
    ),
    "view of an unreadable table": (
        f"{FTS} CREATE VIEW v AS SELECT a FROM idx;",
        ("fts5(a)", "VirtualSpatialIndex()"),
        [("idx", "no such module: VirtualSpatialIndex"), ("v", "no such module: VirtualSpatialIndex")],
    ),
    "view of no table": ("CREATE VIEW v AS SELECT x FROM gone;", ("", ""), [("v", "no such table: main.gone")]),
}


def make(path: Path, script: str, old: str = "", new: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        if old:
            connection.execute("PRAGMA writable_schema = 1")
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?)", (old, new))
            connection.commit()
    return path


@pytest.mark.parametrize(("script", "change", "left_out"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_part_is_omitted_with_the_reason(
    script: str, change: tuple[str, str], left_out: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "set/database/shop/shop.sqlite"
    path.parent.mkdir(parents=True)
    path = make(path, ITEM + script, *change)
    (tmp_path / "set/tables.json").write_text(json.dumps([TABLES_RECORD]))
    schema = read_schema(path)
    assert list(schema.left_out) == left_out
    names = {name for name, _ in left_out}
    shown = {table.name: [column.name for column in table.columns] for table in (*schema.tables, *schema.views)}
    assert shown["item"] == ["id", "name"]
    assert names.isdisjoint(shown)
    assert names.isdisjoint(f"{table}.{column}" for table, columns in shown.items() for column in columns)
    assert read_values(path)["item", "name"].frequent == ("nail", "saw")
    columns, texts = read_texts(str(path))
    assert texts[columns.index(("item", "name"))] == ["nail", "saw"]
    with closing(sqlite3.connect(path)) as connection:
        for table, names_there in shown.items():
            for name in names_there:
                connection.execute(f'SELECT "{name}", count(*) FROM "{table}" GROUP BY 1 ORDER BY 1').fetchall()
    for render in RENDERERS.values():
        assert "item" in render(Example("0", "shop", str(path), "?", ""), schema)


def test_keys_lose_an_omitted_column(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.sqlite", PERSON + PET, "n TEXT, PRIMARY", "n TEXT COLLATE LOCALIZED, PRIMARY")
    person, pet = read_schema(path).tables
    assert ([column.name for column in person.columns], person.primary_key) == (["id"], ())
    assert pet.foreign_keys == ()
    path = make(tmp_path / "other.sqlite", PERSON + PET, "n TEXT, FOREIGN", "n TEXT COLLATE LOCALIZED, FOREIGN")
    person, pet = read_schema(path).tables
    assert person.primary_key == ("id", "n")
    assert ([column.name for column in pet.columns], pet.foreign_keys) == (["id"], ())
    _, pet = read_schema(make(tmp_path / "whole.sqlite", PERSON + PET)).tables
    assert pet.foreign_keys == (ForeignKey(("id", "n"), "person", ("id", "n")),)


ROWS = {
    "text that is no JSON": "CREATE TABLE doc(j TEXT); INSERT INTO doc VALUES ('{');"
    "ALTER TABLE doc ADD COLUMN v AS (json_extract(j, '$.a'));",
    "full-text index of no table": "CREATE VIRTUAL TABLE doc USING fts5(v, content='gone');"
    "INSERT INTO doc(rowid, v) VALUES (1, 'word');",
}


@pytest.mark.parametrize("script", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("read", [read_values, lambda path: read_texts(str(path))], ids=["values", "texts"])
def test_uncomputable_values_are_reported(
    script: str, read: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path / "shop.sqlite", ITEM + script)
    with caplog.at_level(logging.WARNING):
        assert "nail" in repr(read(path))
    (line,) = caplog.messages
    assert "shop.sqlite: values of doc.v are skipped: " in line


def test_damaged_file_is_still_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.sqlite", ITEM)
    raw = bytearray(path.read_bytes())
    raw[4096:4200] = b"\xff" * 104  # the page of the table's rows
    path.write_bytes(raw)
    with pytest.raises(InputError, match="values cannot be read"):
        read_values(path)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return a set with one database that has an unreadable table."""
    script, change, _ = UNREADABLE["module"]
    make(tmp_path / "set/databases/shop/shop.sqlite", ITEM + script, *change)
    line = {"id": "0", "db_id": "shop", "question": "?", "sql": "SELECT count(*) FROM item"}
    (tmp_path / "set/questions.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path / "set"


LINE = "idx is skipped: no such module: VirtualSpatialIndex"


def test_set_keeps_its_questions_and_notes_the_table(broken: Path) -> None:
    loaded = load_benchmark(broken)
    assert ([example.uid for example in loaded.examples], loaded.skipped) == (["0"], ())
    assert f"1 database has parts that this SQLite cannot read: shop: {LINE}" in loaded.notes


def test_commands_report_the_table(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = broken / "databases/shop/shop.sqlite"
    database_example(str(path), report=to_stderr)
    assert capsys.readouterr().err == f"{LINE}\n"
    assert synth(["--db", str(path), "--out", str(tmp_path / "synth"), "--n", "3"]) == 0
    assert "no such module: VirtualSpatialIndex, such as idx" in capsys.readouterr().out
    arguments = ["--from", str(broken), "--to", f"duckdb:{tmp_path / 'files'}", "--out", str(tmp_path / "copy")]
    assert copy(arguments) == 0
    assert f"  {LINE}\n" in capsys.readouterr().out


def test_completely_unreadable_database_has_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, change, _ = UNREADABLE["collation of the only column"]
    path = make(tmp_path / "shop.sqlite", script, *change)
    with pytest.raises(InputError, match="the database has no tables that can be read"):
        database_example(str(path), report=to_stderr)
    assert capsys.readouterr().err == "person is skipped: no such collation sequence: LOCALIZED\n"
    assert synth(["--db", str(path), "--out", str(tmp_path / "synth"), "--n", "3"]) == 2
    assert "nothing to ask about: no such collation sequence: LOCALIZED (1)" in capsys.readouterr().err


VIEWS = "CREATE VIEW item_names AS SELECT 'nail' AS name UNION SELECT 'saw';"


def test_views_are_listed_and_replace_missing_tables(tmp_path: Path) -> None:
    schema = read_schema(make(tmp_path / "views.sqlite", VIEWS))
    assert ([table.name for table in schema.tables], schema.views) == (["item_names"], ())
    assert read_values(tmp_path / "views.sqlite")["item_names", "name"].frequent == ("nail", "saw")
    assert database_example(str(tmp_path / "views.sqlite")).dialect == "sqlite"
    schema = read_schema(make(tmp_path / "both.sqlite", ITEM + VIEWS))
    assert ([table.name for table in schema.tables], [view.name for view in schema.views]) == (["item"], ["item_names"])


def test_mcp_lists_views_and_omissions(tmp_path: Path) -> None:
    script, change, _ = UNREADABLE["module"]
    path = make(tmp_path / "both.sqlite", ITEM + VIEWS + script, *change)
    with make_executor(ExecutorConfig()) as executor:
        database = McpDatabase(str(path), None, executor, 10)
        text = database.schema(None)
        assert text.startswith("CREATE TABLE item (")
        assert "CREATE TABLE item_names (\n    name\n);\n\n-- views: item_names\n" in text
        assert text.endswith(f"\n-- {LINE}")
        assert database.schema(["ITEM_NAMES"]) == "CREATE TABLE item_names (\n    name\n);\n\n-- views: item_names"
        assert "views" not in database.schema(["item"])


def test_questions_are_generated_from_views(tmp_path: Path) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)"
    view = f"CREATE VIEW tool AS {numbers} SELECT 'tool ' || i AS name, i * 1.5 AS price, i % 3 + 7 AS weight FROM n;"
    path = make(tmp_path / "views.sqlite", view)
    assert synth(["--db", str(path), "--out", str(tmp_path / "out"), "--n", "5"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out/questions.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    assert all("FROM tool" in line["sql"] for line in lines)
