"""Samples of server databases: omitted tables and columns, locks, refusals and commands."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.ask import to_stderr
from jaxrl_sql.commands.copy import main as copy
from jaxrl_sql.commands.mcp import main as mcp
from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.databases.engines import postgresql as postgresql_module
from jaxrl_sql.databases.engines.registry import SERVERS
from jaxrl_sql.databases.sample.external import describe_samples, open_external
from jaxrl_sql.databases.sample.sample import SampleReport, sample
from jaxrl_sql.inference.ask import database_example
from jaxrl_sql.serving.mcp import McpDatabase
from jaxrl_sql.text2sql.env.address import parse_address
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.schema.read import Column, read_schema
from jaxrl_sql.types import InputError

pytestmark = pytest.mark.servers

Database = Any
"""A database on a server, `ServerDatabase` of conftest.py."""

Make = Callable[[str, str], Database]
"""Makes a database of an engine by a script."""


def rows_of(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def columns_of(report: SampleReport, name: str) -> tuple[Column, ...]:
    return next(table.columns for table in read_schema(report.path).tables if table.name == name)


def tables_of(report: SampleReport) -> dict[str, list[Any]]:
    """Return all rows of a sample, by table."""
    return {name: rows_of(report.path, f'SELECT * FROM "{name}"') for name in report.rows}


class TestOmissions:
    def test_tables_columns_and_their_keys_are_omitted(self, shop: Database, tmp_path: Path) -> None:
        schema = shop.schema
        names = ["customer.email", f"{schema}.item", "sale.id"]
        report = sample(shop.reader, tmp_path, 30, names)
        assert report.rows == {"customer": 60, "sale": 30, "line": 53, "remark": 30}
        assert [name for _, name, *_ in rows_of(report.path, "PRAGMA table_info(sale)")] == ["customer_id", "code"]
        assert [name for _, name, *_ in rows_of(report.path, "PRAGMA table_info(customer)")] == ["id", "name"]
        assert rows_of(report.path, "PRAGMA foreign_key_list(line)") == []
        assert set(report.notes) == {
            f"{schema}.sale: no primary key (id) in the sample: a column is left out",
            f"{schema}.sale (code): no foreign key to {schema}.item in the sample: a part of it is left out",
            f"{schema}.line (sale_id): no foreign key to {schema}.sale in the sample: a part of it is left out",
        }
        assert b"@shop.example" not in report.path.read_bytes()

    def test_first_rows_are_the_same_without_a_column(self, shop: Database, tmp_path: Path) -> None:
        path = sample(shop.reader, tmp_path, 30, ["remark.id"]).path
        assert rows_of(path, "SELECT txt FROM remark") == [(f"remark {i}",) for i in range(1, 31)]

    def test_types_without_a_sqlite_form_are_omitted_and_reported(self, make_database: Make, tmp_path: Path) -> None:
        script = (
            "CREATE TYPE pair AS (a int, b int); CREATE TABLE t(id int PRIMARY KEY, p pair, ps pair[], d int);"
            "CREATE TABLE pairs(p pair PRIMARY KEY); CREATE TABLE bare()"
        )
        database = make_database("postgresql", script)
        report = sample(database.reader, tmp_path / "all", 10)
        assert {name: [column.name for column in columns_of(report, name)] for name in report.rows} == {
            "t": ["id", "d"]
        }
        assert report.notes == (
            "public.t.p is left out: SQLite cannot hold its type (public.pair)",
            "public.t.ps is left out: SQLite cannot hold its type (public.pair[])",
            "public.pairs is left out: it has no column of a type that SQLite can hold",
            "public.bare is left out: it has no column of a type that SQLite can hold",
        )
        assert sample(database.reader, tmp_path / "named", 10, ["public.t.p", "t.ps"]).notes == report.notes[2:]
        with pytest.raises(InputError, match=r"no table that the role can read \(public\.pairs is left out: it has"):
            sample(database.reader, tmp_path / "none", 10, ["t"])

    @pytest.mark.parametrize(
        ("script", "leave_out", "message"),
        [
            ('CREATE TABLE t(a int, "A" int)', [], r"public\.t: columns a and A have the same name in SQLite"),
            (
                'CREATE TABLE t(a int); CREATE TABLE "T"(a int)',
                [],
                r"public\.t and public\.T have the same name in SQLite",
            ),
            ("CREATE TABLE sqlite_x(a int)", [], r"SQLite reserves names that begin with sqlite_"),
            ("CREATE TABLE t(a int)", ["t.a"], r"public\.t has no columns: omit it with --leave-out public\.t"),
            ("CREATE TABLE tab(a int)", ["tap"], r"--leave-out tap: there is no such table or column; .* is tab$"),
            ("SELECT 1", [], r"there is no table that the role can read"),
        ],
    )
    def test_unusable_schemas_and_names_are_rejected(
        self, make_database: Make, tmp_path: Path, script: str, leave_out: list[str], message: str
    ) -> None:
        with pytest.raises(InputError, match=message) as caught:
            sample(make_database("postgresql", script).reader, tmp_path, 10, leave_out)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("roles", ["", "?roles=2"])
    def test_missing_rights_are_reported_with_their_grants(
        self, make_database: Make, tmp_path: Path, roles: str
    ) -> None:
        tables = "; ".join(f"CREATE TABLE grid.t{i}(a int)" for i in range(5))
        database = make_database(
            "postgresql",
            f'CREATE SCHEMA grid; {tables}; CREATE SCHEMA "Wind Ops"; CREATE TABLE "Wind Ops".t(a int)',
        )
        database.run(f'REVOKE USAGE ON SCHEMA grid, "Wind Ops" FROM {database.role}')
        with pytest.raises(InputError, match=r"grid\.t0 is left out.*; and 3 more\). To be run by") as caught:
            sample(database.reader + roles, tmp_path, 10)
        database.run(str(caught.value).partition("by an owner of the tables: ")[2])
        assert len(sample(database.reader + roles, tmp_path, 10, ["t0"]).rows) == 5

    def test_unreadable_tables_are_omitted_and_reported(self, make_database: Make, tmp_path: Path) -> None:
        database = make_database(
            "postgresql",
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE secret(id int REFERENCES a);"
            "CREATE TABLE part(id int); ALTER TABLE part ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY p ON part USING (id > 1); INSERT INTO part VALUES (1), (2), (3)",
        )
        database.run(f"REVOKE ALL ON secret FROM {database.role}")
        report = sample(database.reader, tmp_path, 10)
        assert tables_of(report) == {"a": [], "part": [(2,), (3,)]}
        assert report.notes == (
            "public.secret is left out: the role may not read it",
            "public.part has row security: only rows that the role may see are sampled",
        )

    def test_references_to_non_key_columns_are_reported(self, make_database: Make, tmp_path: Path) -> None:
        script = "CREATE TABLE a(x int, KEY (x)) ENGINE = InnoDB; CREATE TABLE b(x int REFERENCES a(x));"
        database = make_database("mariadb", script + "CREATE TABLE old(x int) ENGINE = MyISAM")
        report = sample(database.reader, tmp_path, 10)
        note = f"{database.name}.b (x) references columns that are not a key: the sample has no such foreign key"
        assert (report.rows.keys(), report.notes) == ({"a", "b", "old"}, (note,))


class TestViews:
    VIEWS: ClassVar = {
        "postgresql": "CREATE SCHEMA raw; CREATE TABLE raw.item(id int PRIMARY KEY, name text);"
        "INSERT INTO raw.item VALUES (1, 'nail'), (2, 'saw');"
        "CREATE VIEW item_names AS SELECT name FROM raw.item;"
        "CREATE VIEW wrong AS SELECT 1 / (id - 1) AS x FROM raw.item;"
        "CREATE MATERIALIZED VIEW old AS SELECT id FROM raw.item; CREATE MATERIALIZED VIEW unfilled AS SELECT 1 AS x"
        " WITH NO DATA",
        "mariadb": "CREATE TABLE item(id int PRIMARY KEY, name text);"
        "INSERT INTO item VALUES (1, 'nail'), (2, 'saw'); CREATE VIEW item_names AS SELECT name FROM item;"
        "CREATE TABLE gone(x int); CREATE VIEW wrong AS SELECT x FROM gone; DROP TABLE gone",
    }

    @pytest.mark.parametrize("engine", VIEWS)
    def test_views_are_sampled_without_a_table(
        self, engine: str, make_database: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        database = make_database(engine, self.VIEWS[engine])
        both = sample(database.reader, tmp_path / "both", 10)
        assert both.rows.keys() == {"item"}
        why = "it is a view or a foreign table, and the database has tables"
        assert f"{database.schema}.item_names is left out: {why}" in both.notes
        names = ["item"]
        if engine == "postgresql":
            database.run(f"REVOKE ALL ON raw.item FROM {database.role}")
            names = []
        report = sample(database.reader, tmp_path / "views", 10, names)
        assert tables_of(report)["item_names"] == [("nail",), ("saw",)]
        assert report.rows.keys() == {"item_names", "old"} if engine == "postgresql" else {"item_names"}
        assert any(".wrong is left out: " in note for note in report.notes)
        example = database_example(database.reader, leave_out=names, report=to_stderr)
        assert ".wrong is left out: " in capsys.readouterr().err
        assert "item_names" in [table.name for table in read_schema(example.db_path).tables]
        command = ["--db", database.reader, "--out", str(tmp_path / "out"), "--n", "30", "--leave-out", *names]
        assert synth(command if names else command[:-1]) == 0
        assert "item_names" in (tmp_path / "out/questions.jsonl").read_text()

    def test_an_earlier_sample_reports_its_omissions_again(
        self, make_database: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path))
        database = make_database("postgresql", "CREATE TYPE pair AS (a int); CREATE TABLE t(id int, p pair)")
        lines: list[str] = []
        for _ in range(2):
            lines.append(open_external(database.reader, None, [], lines.append).sample_note)
        assert lines.count("public.t.p is left out: SQLite cannot hold its type (public.pair)") == 2
        assert sum("an earlier sample" in line for line in lines) == 1


class TestLocks:
    def test_sessions_are_read_only_with_lock_and_statement_timeouts(self, shop: Database) -> None:
        address = parse_address(shop.owner)
        source = SERVERS[address.engine](address).reader()
        if shop.engine == "postgresql":
            names = ("lock_timeout", "statement_timeout", "default_transaction_read_only")
            settings = [source.run("", f"SHOW {name}")[0][0] for name in names]
            assert settings == ["1s", "5s", "on"]
        else:
            (settings,) = source.run("", "SELECT @@lock_wait_timeout, @@max_statement_time, @@tx_read_only")
            assert settings == ("1", "5.000000", "1")
        with closing(source), pytest.raises(InputError, match=r"(?i)read.only transaction"):
            source.run("item", f"DELETE FROM {shop.schema}.item")

    def test_tables_can_be_altered_between_reads(self, pair: Database, tmp_path: Path) -> None:
        lines: list[str] = []

        def alter(line: str) -> None:
            lines.append(line)
            for table in ("a", "b"):
                pair.run(f"ALTER TABLE {table} ADD COLUMN more{len(lines)} int")

        report = sample(pair.reader, tmp_path, 20, report=alter)
        assert sorted(lines) == [f"{pair.schema}.a: 20 rows", f"{pair.schema}.b: 20 rows"]
        assert tables_of(report)["a"] == [(i,) for i in (*range(1, 21), *range(41, 61))]
        assert report.notes == ()

    def test_locked_table_is_an_error_of_one_line(self, shop: Database, tmp_path: Path) -> None:
        with shop.locked("sale"), pytest.raises(InputError) as caught:
            sample(shop.reader, tmp_path, 30)
        message = f"{shop.schema}.sale is locked by another session for more than 1 s: run it again later"
        assert (str(caught.value), list(tmp_path.iterdir())) == (message, [])

    def test_slow_read_is_stopped(self, make_database: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgresql_module, "_SESSION", postgresql_module._SESSION.replace("5s", "100ms"))
        database = make_database(
            "postgresql",
            "CREATE TABLE slow(id int); ALTER TABLE slow ENABLE ROW LEVEL SECURITY; INSERT INTO slow VALUES (1);"
            "CREATE POLICY p ON slow USING (pg_sleep(20) IS NOT NULL)",
        )
        with pytest.raises(InputError, match=r"public\.slow takes more than .* s to read: omit the table"):
            sample(database.reader, tmp_path, 30)

    @pytest.mark.parametrize("change", ["RENAME TO c", "RENAME COLUMN a TO c"])
    def test_table_changed_before_its_read_is_rejected(self, pair: Database, tmp_path: Path, change: str) -> None:
        with pytest.raises(InputError, match=r"\.b was changed while it was sampled: run it again"):
            sample(pair.reader, tmp_path, 30, report=lambda _: pair.run(f"ALTER TABLE b {change}"))
        assert list(tmp_path.iterdir()) == []

    def test_parents_deleted_during_the_sample_are_counted(self, pair: Database, tmp_path: Path) -> None:
        def delete(line: str) -> None:
            if ".b:" in line:
                pair.run("DELETE FROM b WHERE true; DELETE FROM a WHERE true;")

        report = sample(pair.reader, tmp_path, 20, report=delete)
        assert report.notes == ("b: the sample lacks the parent in a of 20 rows",)


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda url: url.replace("127.0.0.1", "no-host.invalid") + "?sslmode=disable", r"no-host\.invalid"),
            (lambda url: re.sub(r":\d+/", ":1/", url), r"://127\.0\.0\.1:1/\w+: .*([Rr]efused|Can't connect)"),
            (lambda url: url.replace(":", ":wrong", 2).replace("wrong//", "//"), r"(authentication failed|denied)"),
            (lambda url: url + "_none", r"\w_none"),
            (lambda url: url.rpartition("/")[0], r"the URL names no database"),
            (lambda url: re.sub(r"^\w+", "oracle", url), r"oracle"),
            (lambda _: "duckdb:folder", r"duckdb:folder: no such file"),
        ],
    )
    def test_invalid_url_is_rejected_in_one_line_without_its_password(
        self, shop: Database, tmp_path: Path, change: Callable[[str], str], message: str
    ) -> None:
        with pytest.raises(InputError, match=message) as caught:
            sample(change(shop.reader), tmp_path, 10)
        assert "\n" not in str(caught.value)
        assert urlsplit(shop.reader).password not in str(caught.value)

    def test_missing_driver_is_named(self, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg2", None)
        monkeypatch.setitem(sys.modules, "pymysql", None)
        with pytest.raises(InputError, match=r"pip install 'jaxrl-sql\[(postgresql|mysql)\]'"):
            sample(shop.reader, tmp_path, 10)


class TestCommands:
    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))

    def test_copy_writes_a_sample(self, shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--rows", "850", "--leave-out", "remark", "line", "--leave-out", "customer.email"]
        assert copy(["--from", shop.reader, "--to", str(tmp_path), *options]) == 0
        out, err = capsys.readouterr()
        assert out == f"{tmp_path / shop.name / shop.name}.sqlite: 2,000 rows of 3 tables\n"
        assert "sale: 800 rows" in err
        assert copy(["--from", shop.reader, "--to", str(tmp_path)]) == 2
        assert f"{shop.name} already exists: remove it, or choose another folder" in capsys.readouterr().err
        assert copy(["--from", shop.reader, "--to", str(tmp_path / "2"), "--rows", "0"]) == 2
        assert capsys.readouterr() == ("", "error: --rows 0: must be at least 1\n")

    def test_samples_are_cached_per_omissions(self, shop: Database) -> None:
        databases = [
            open_external(shop.reader, None, names, print)
            for names in ([], ["customer.email"], ["customer.email", "item"], ["item", "customer.email"], [])
        ]
        shown = [database.sample_path for database in databases]
        assert shown[0] == shown[4] != shown[1] != shown[2] == shown[3]
        assert [b"@shop.example" in path.read_bytes() for path in shown[:3]] == [True, False, False]
        assert ["an earlier sample" in database.sample_note for database in databases] == [
            False,
            False,
            False,
            True,
            True,
        ]
        assert describe_samples(databases[3:4]) == [databases[3].sample_note]

    def test_ask_shows_no_omitted_column(self, shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
        example = database_example(shop.reader, leave_out=["customer.email", "item"])
        tables = {table.name: table.columns for table in read_schema(example.db_path).tables}
        assert tables.keys() == {"customer", "sale", "line", "remark"}
        assert [column.name for column in tables["customer"]] == ["id", "name"]
        command = ["--model", "configs/recipes_start", "--db", shop.reader]
        assert ask([*command, "--leave-out", "custmer", "How many?"]) == 2
        assert "custmer: there is no such table or column; the nearest is customer" in capsys.readouterr().err

    def test_mcp_shows_no_omitted_column(self, shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
        with Executor(threads=1) as executor:
            schema = McpDatabase(shop.reader, None, executor, 10, ["customer.email"]).schema(None)
        assert ("name TEXT" in schema, "email" in schema) == (True, False)
        assert mcp(["--db", shop.reader, "--leave-out", "customer.mail"]) == 2
        assert "the nearest is customer.email" in capsys.readouterr().err

    def test_synth_asks_about_no_omitted_column(
        self, shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["--db", shop.reader, "--out", str(tmp_path / "out"), "--n", "6"]
        assert synth([*command, "--leave-out", "customer.email", "remark", "line", "item"]) == 0
        lines = [json.loads(line) for line in (tmp_path / "out" / "questions.jsonl").read_text().splitlines()]
        assert lines
        assert "email" not in repr(lines)
        tables = read_schema(next((tmp_path / "out").rglob("*.sqlite"))).tables
        assert [table.name for table in tables] == ["customer", "sale"]
        capsys.readouterr()
        assert synth([*command, "--leave-out", "sails"]) == 2
        assert "the nearest is sale" in capsys.readouterr().err

    def test_omissions_with_an_existing_local_file_are_rejected(self, shop: Database, tmp_path: Path) -> None:
        path = tmp_path / "shop.sqlite"
        path.touch()
        with pytest.raises(InputError, match=r"--leave-out item: .*--stand-in .*shop\.sqlite replaces the sample"):
            open_external(shop.reader, path, ["item"], print)
