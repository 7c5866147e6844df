"""Samples of DuckDB files: tables, keys, comments, values and parents, read through the executor."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from jaxrl_sql.databases.sample.external import open_external
from jaxrl_sql.databases.sample.sample import sample
from jaxrl_sql.text2sql.schema.describe import read_descriptions
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError

SCRIPT = """
CREATE SCHEMA other;
CREATE TABLE parent (id INTEGER, part VARCHAR, "the name" VARCHAR UNIQUE, PRIMARY KEY (id, part));
CREATE TABLE child (id BIGINT PRIMARY KEY, parent INTEGER, part VARCHAR,
                    FOREIGN KEY (parent, part) REFERENCES parent (id, part));
INSERT INTO parent SELECT i, 'p''' || i, 'name ' || i FROM range(1, 1001) AS t(i);
INSERT INTO child SELECT i, 1001 - i, 'p''' || (1001 - i) FROM range(1, 501) AS t(i);
CREATE TABLE other.child (x INTEGER);
CREATE VIEW shown AS SELECT * FROM child;
COMMENT ON COLUMN parent."the name" IS 'as written';
"""
# Type, expression, declared type and value in the sample.
VALUES = [
    ("BOOLEAN", "true", "BOOLEAN", 1),
    ("HUGEINT", "170141183460469231731687303715884105727::HUGEINT", "NUMERIC", 1.7014118346046923e38),
    ("UBIGINT", "7", "NUMERIC", 7),
    ("DECIMAL(9, 0)", "12", "NUMERIC", 12),
    ("DECIMAL(9, 2)", "3.00", "REAL", 3.0),
    ("DOUBLE", "'NaN'::DOUBLE", "REAL", None),
    ("FLOAT", "0.5", "REAL", 0.5),
    ("BLOB", "'\\xAA\\x00'::BLOB", "BLOB", b"\xaa\x00"),
    ("DATE", "'2024-05-01'", "DATE", "2024-05-01"),
    ("TIMESTAMP", "'2024-05-01 10:00:00'", "TIMESTAMP", "2024-05-01 10:00:00"),
    ("TIMESTAMPTZ", "'2024-05-01 10:00:00+00'", "TIMESTAMPTZ", "2024-05-01 10:00:00"),
    ("INTEGER[]", "[1, 2]", "TEXT", "[1, 2]"),
    ("ENUM ('nan', 'b')", "'nan'", "TEXT", "nan"),
    ("UUID", "'00000000-0000-0000-0000-000000000001'", "TEXT", "00000000-0000-0000-0000-000000000001"),
]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], str]:
    def write(script: str) -> str:
        path = tmp_path / "a shop.duckdb"
        with closing(duckdb.connect(path)) as connection:
            connection.execute(script)
        return f"duckdb:{path}"

    return write


def rows_of(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_sample_has_first_rows_their_parents_keys_and_comments(make: Callable[[str], str], tmp_path: Path) -> None:
    report = sample(make(SCRIPT), tmp_path / "out", 20)
    assert report.path == tmp_path / "out/a_shop/a_shop.sqlite"
    assert report.rows == {"parent": 40, "child": 20, "other_child": 0}
    assert report.notes == ("main.shown is left out: it is a view or a foreign table, and the database has tables",)
    assert rows_of(report.path, "PRAGMA foreign_key_check") == []
    assert {number for (number,) in rows_of(report.path, "SELECT parent FROM child")} == set(range(981, 1001))
    tables = {table.name: table for table in read_schema(report.path).tables}
    assert tables["parent"].primary_key == ("id", "part")
    assert read_descriptions(report.path).of("parent", "the name") is not None


@pytest.mark.parametrize(("kind", "value", "declared", "cell"), VALUES, ids=[kind for kind, *_ in VALUES])
def test_values_are_those_of_the_executor(
    kind: str, value: str, declared: str, cell: Any, make: Callable[[str], str], tmp_path: Path
) -> None:
    url = make(f"CREATE TABLE t (id INTEGER, x {kind}); INSERT INTO t VALUES (1, {value}), (2, NULL)")
    report = sample(url, tmp_path / "out")
    assert rows_of(report.path, "SELECT x FROM t") == [(cell,), (None,)]
    assert rows_of(report.path, "SELECT type FROM pragma_table_info('t') WHERE name = 'x'") == [(declared,)]


def test_changed_file_is_sampled_again(
    make: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))
    lines: list[str] = []
    url = make("CREATE TABLE t (a INTEGER)")
    first = open_external(url, None, (), lines.append)
    again = open_external(url, None, (), print)
    assert again.sample_path == first.sample_path
    assert ["an earlier sample" in database.sample_note for database in (first, again)] == [False, True]
    make("CREATE TABLE u (a INTEGER)")
    second = open_external(url, None, (), lines.append)
    assert (second.engine, second.url) == ("duckdb", url)
    assert {table.name for table in read_schema(second.sample_path).tables} == {"t", "u"}


def test_unusable_files_are_reported_in_one_line(make: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"duckdb:.*nowhere\.duckdb: no such file$"):
        open_external(f"duckdb:{tmp_path}/nowhere.duckdb", None, (), print)
    (tmp_path / "text.duckdb").write_text("text" * 99)
    with pytest.raises(InputError, match=r"duckdb:.*text\.duckdb: ") as caught:
        open_external(f"duckdb:{tmp_path}/text.duckdb", None, (), print)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="there is no table that the role can read"):
        open_external(make("SELECT 1"), None, (), print)
