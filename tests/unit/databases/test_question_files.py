"""Files of questions whose database is elsewhere: a server, a DuckDB file, or a SQLite file."""

from __future__ import annotations

import csv
import dataclasses
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.databases.question_files import DatabaseResolver, load_benchmark, load_split, single_database
from jaxrl_sql.inference.fingerprint import digests
from jaxrl_sql.text2sql.benchmarks import Benchmark
from jaxrl_sql.text2sql.env.address import parse_address
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.prompts.prompts import prompt_texts
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.text2sql.question_sets.stream import open_stream
from jaxrl_sql.text2sql.schema import RENDERERS
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError
from sqlexec_rs.servers import Server

ENGINES = ("postgresql", "mariadb", "duckdb", "sqlite")
FILES = ("duckdb", "sqlite")
NAMES = {"postgresql": "PostgreSQL", "mysql": "MySQL", "duckdb": "DuckDB"}
SCRIPT = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR(40), country VARCHAR(40));
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers (id), amount DECIMAL(8, 2));
INSERT INTO customers VALUES (1, 'Ada', 'Chile'), (2, 'Bo', 'Peru'), (3, 'Cem', 'Chile');
INSERT INTO orders VALUES (1, 1, 5.50), (2, 1, 7.25), (3, 2, 9.00);
"""
# Each is in the dialect of its engine alone.
GOLDS = {
    "postgresql": "SELECT count(*)::int FROM customers WHERE country ILIKE 'chile'",
    "mariadb": "SELECT count(*) FROM customers WHERE country <=> 'Chile'",
    "duckdb": "FROM customers SELECT count(*) WHERE country = 'Chile'",
    "sqlite": "SELECT count(*) FROM customers WHERE country GLOB 'Ch*'",
}
QUESTION = "How many customers live in Chile?"


class Shop(NamedTuple):
    """A database: its engine, dialect, the setting that names it, its name, and its password."""

    engine: str
    dialect: str
    database: str
    name: str
    password: str = ""

    @property
    def without_name(self) -> str:
        """Return the setting without the name of the database."""
        if "://" in self.database:
            return self.database.replace(f"/{self.name}?", "?")
        return self.database.rpartition("/")[0]

    def record(self, **more: Any) -> dict[str, Any]:
        return {"question": QUESTION, "sql": GOLDS[self.engine], **more}


@pytest.fixture(scope="module")
def make_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Shop]:
    def make(engine: str, script: str) -> Shop:
        path = tmp_path_factory.mktemp("shop") / f"shop.{engine}"
        if engine == "duckdb":
            with closing(duckdb.connect(path)) as connection:
                connection.execute(script)
            return Shop(engine, engine, f"duckdb:{path}", "shop")
        if engine == "sqlite":
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(script)
            return Shop(engine, engine, str(path), "shop")
        server: Server = request.getfixturevalue("server_database")(engine, script)
        address = parse_address(f"{server.reader}?roles=16")
        dialect = {"mariadb": "mysql"}.get(engine, engine)
        return Shop(engine, dialect, address.public_url(address.database), address.database, address.password)

    return make


PARAMS = {name: pytest.param(name, marks=() if name in FILES else pytest.mark.servers) for name in ENGINES}


@pytest.fixture(scope="module", params=PARAMS.values())
def engine_shop(request: pytest.FixtureRequest, make_shop: Callable[[str, str], Shop]) -> Shop:
    return make_shop(request.param, SCRIPT)


@pytest.fixture
def shop(engine_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    for variable in ("PGPASSWORD", "MYSQL_PWD"):
        monkeypatch.setenv(variable, engine_shop.password)
    return engine_shop


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write records in the format of the file's extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([dict(record) for record in records]), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        with path.open("w", newline="") as file:
            names = dict.fromkeys(name for record in records for name in record)
            writer = csv.DictWriter(file, [*names], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(records)
    return path


def check(shop: Shop, loaded: Benchmark) -> None:
    """Assert that the only question is on the shop, and its gold runs there."""
    assert loaded.skipped == ()
    (example,) = loaded.examples
    assert example.dialect == shop.dialect
    assert bool(example.engine_url) == (shop.engine != "sqlite")
    assert {table.name for table in read_schema(example.db_path).tables} == {"customers", "orders"}
    with make_executor(ExecutorConfig(threads=1)) as executor:
        outcome = executor.execute(example.database, example.gold_sql)
        assert (outcome.status, outcome.error) == ("ok", None)
        write_ = executor.execute(example.database, "DELETE FROM customers")
        assert write_.status != "ok"
    if shop.password:
        assert shop.password not in repr(loaded)


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_data_database_applies_to_all_questions_of_a_file(shop: Shop, ending: str, tmp_path: Path) -> None:
    write(tmp_path / f"train.{ending}", [shop.record()])
    check(shop, load_split(tmp_path, "train", 0, shop.database))
    check(shop, load_benchmark(tmp_path / f"train.{ending}", "", 0, shop.database))
    write(tmp_path / f"dev.{ending}", [shop.record(id="7", db_id=shop.name, dialect=shop.dialect)])
    check(shop, load_split(tmp_path, "dev", 0, shop.database))


def test_setting_names_the_database_of_a_command(shop: Shop) -> None:
    assert single_database(shop.database) == shop.database
    assert single_database(shop.database.removeprefix("duckdb:")) == shop.database
    with pytest.raises(InputError, match="give one by --db"):
        single_database(shop.without_name)


@pytest.mark.parametrize(
    ("ending", "position"),
    [("csv", ":3"), ("tsv", ":3"), ("json", ": item 2"), ("jsonl", ":2"), ("parquet", ": row 2")],
)
def test_questions_have_their_place_in_the_file(ending: str, position: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.executescript(SCRIPT)
    path = write(tmp_path / f"train.{ending}", [{"question": f"{i}?", "sql": "SELECT 1", "id": i} for i in (7, 8)])
    assert load_benchmark(path).lines["8"] == f"{path}{position}"
    assert load_benchmark(path).notes[-1] == f"matched with {tmp_path}/shop.sqlite (2 questions)"


def test_plain_folder_prefers_its_files(tmp_path: Path) -> None:
    for name in ("train/databases/shop/shop.sqlite", "other.sqlite"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.executescript(SCRIPT)
    records = [{"id": name, "db_id": name, "question": "?", "sql": "SELECT 1"} for name in ("shop", "other")]
    write(tmp_path / "train" / "questions.jsonl", records)
    paths = [example.db_path for example in load_split(tmp_path, "train", 0, f"{tmp_path}/other.sqlite").examples]
    assert paths == [f"{tmp_path}/train/databases/shop/shop.sqlite", f"{tmp_path}/other.sqlite"]


def test_questions_select_a_database_of_the_server_or_folder(shop: Shop, tmp_path: Path) -> None:
    for field in ("db_id", "db", "database"):
        path = write(tmp_path / field / "train.csv", [shop.record(**{field: shop.name})])
        if shop.engine == "sqlite":  # a folder has files of the usual endings
            link = path.parent / "files" / f"{shop.name}.sqlite"
            link.parent.mkdir()
            link.symlink_to(shop.database)
            check(shop, load_benchmark(path, "", 0, str(link.parent)))
        else:
            check(shop, load_benchmark(path, "", 0, shop.without_name))


def test_questions_name_their_database_by_url_or_file(shop: Shop, tmp_path: Path) -> None:
    for field in ("db", "db_id", "database", "db_path"):
        check(shop, load_benchmark(write(tmp_path / field / "train.jsonl", [shop.record(**{field: shop.database})])))
    named = shop.record(db=shop.without_name, db_id=shop.name, dialect=shop.dialect)
    if shop.engine in ("postgresql", "mariadb"):
        check(shop, load_benchmark(write(tmp_path / "both" / "train.csv", [named])))


@pytest.mark.parametrize("engine_shop", [PARAMS[name] for name in ENGINES if name != "sqlite"], indirect=True)
def test_plain_folder_needs_no_sample_of_its_database(shop: Shop, tmp_path: Path) -> None:
    record = shop.record(id="1", db_id=shop.name, dialect=shop.dialect, db=shop.database)
    write(tmp_path / "train" / "questions.jsonl", [record])
    check(shop, load_split(tmp_path, "train"))
    del record["db"]
    write(tmp_path / "dev" / "questions.jsonl", [record])
    check(shop, load_split(tmp_path, "dev", 0, shop.database))


def test_missing_databases_are_reported_with_the_names_tried(shop: Shop, tmp_path: Path) -> None:
    path = write(tmp_path / "train.csv", [shop.record(db_id="nowhere"), shop.record(db_id=shop.name)])
    loaded = load_benchmark(path, "", 0, shop.database)
    assert len(loaded.examples) == 1
    ((uid, reason),) = loaded.skipped
    assert (uid, loaded.lines[uid]) == ("train_0", f"{path}:2")
    assert reason.startswith("no database nowhere: tried ")
    assert "nowhere" in reason.partition("tried")[2]
    write(tmp_path / "train.csv", [shop.record(db_id="nowhere")])
    with pytest.raises(
        InputError, match=r"train\.csv: no usable question \(no database nowhere: tried [^\n]*$"
    ) as failure:
        load_benchmark(path, "", 0, shop.database)
    assert "rename a field" not in str(failure.value)


def test_another_dialect_than_that_of_the_database_is_reported(shop: Shop, tmp_path: Path) -> None:
    other = "mysql" if shop.dialect != "mysql" else "postgresql"
    path = write(tmp_path / "train.csv", [shop.record(), shop.record(dialect=other), shop.record(dialect="oracle")])
    first, second = (reason for _, reason in load_benchmark(path, "", 0, shop.database).skipped)
    assert f"dialect {other!r}" in first
    assert shop.engine == "sqlite" or f"its database has {shop.dialect!r}" in first
    assert second == "dialect 'oracle' is not one of sqlite, mysql, postgresql, duckdb"


def test_prompts_name_the_engine_and_show_its_values(shop: Shop, tmp_path: Path) -> None:
    path = write(tmp_path / "train.csv", [shop.record()])
    (example,) = load_benchmark(path, "", 0, shop.database).examples
    before, after = prompt_texts(example, compact_style(RENDERERS["profile"]), None)
    assert after.endswith(f"{NAMES.get(example.dialect, '')} SQL:".lstrip())
    assert "Chile" in before
    assert "amount" in before


def test_streamed_questions_are_on_the_database(shop: Shop, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [shop.record(id=str(number)) for number in range(30)])
    streamed = open_stream(tmp_path, "train", 10, DatabaseResolver(shop.database))
    assert streamed is not None
    assert streamed[7].dialect == shop.dialect
    assert bool(streamed[7].engine_url) == (shop.engine != "sqlite")


def test_samples_of_several_databases_are_one_note(
    make_shop: Callable[[str, str], Shop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))
    shops = [make_shop("duckdb", SCRIPT) for _ in range(2)]
    path = write(tmp_path / "train.csv", [shop.record(db=shop.database) for shop in shops])
    notes = [note for note in load_benchmark(path).notes if note.startswith("the model sees ")]
    folder = tmp_path / "cache/samples"
    assert notes == [f"the model sees samples of 2 databases, 200 rows per table: {folder} (delete it for new ones)"]


def test_database_is_named_in_notes_and_digests_without_its_password(shop: Shop, tmp_path: Path) -> None:
    path = write(tmp_path / "train.csv", [shop.record(), shop.record()])
    loaded = load_benchmark(path, "", 0, shop.database)
    matched = next(note for note in loaded.notes if note.startswith("matched with "))
    shown = shop.name if shop.password else shop.database.removeprefix("duckdb:")
    assert f"{shown} (2 questions)" in matched
    assert not shop.password or shop.password not in " ".join(loaded.notes)
    without_url = [dataclasses.replace(example, engine_url="") for example in loaded.examples]
    assert (digests(loaded.examples) == digests(without_url)) == (shop.engine == "sqlite")
