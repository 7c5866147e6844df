"""Schemas: reading them from a database, and their text forms."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxrl_sql.databases.copy_database import copy_database
from jaxrl_sql.text2sql.schema import Column, ForeignKey, Schema, Table, compact, ddl, quote_name, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import open_read_only
from jaxrl_sql.types import InputError

COMPANY = """
CREATE TABLE departments(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE employees(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, dept_id INT REFERENCES Departments);
CREATE TABLE marks(
  employee INT, year INT, mark, PRIMARY KEY (year, employee), FOREIGN KEY (employee) REFERENCES employees(ID)
);
CREATE VIEW everyone AS SELECT name FROM employees;
"""


def _make(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_tables_columns_and_keys_are_read(tmp_path: Path) -> None:
    departments, employees, marks = read_schema(_make(tmp_path / "c.sqlite", COMPANY)).tables
    assert [(column.name, column.type, column.not_null) for column in departments.columns] == [
        ("id", "INTEGER", False),
        ("name", "TEXT", True),
    ]
    assert employees.foreign_keys == (ForeignKey(("dept_id",), "departments", ("id",)),)  # target from its key
    assert marks.primary_key == ("year", "employee")
    assert marks.foreign_keys == (ForeignKey(("employee",), "employees", ("id",)),)  # in the table's spelling


def test_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(tmp_path / "c.sqlite", COMPANY)
    monkeypatch.chdir(tmp_path)
    with closing(open_read_only("c.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM marks").fetchone() == (0,)


def test_compact_has_one_line_per_table(tmp_path: Path) -> None:
    assert compact(read_schema(_make(tmp_path / "c.sqlite", COMPANY))) == (
        "departments(id, name)\nemployees(id, name, dept_id=departments.id)\nmarks(employee=employees.id, year, mark)"
    )


def test_ddl_runs_and_is_equivalent(tmp_path: Path) -> None:
    schema = read_schema(_make(tmp_path / "c.sqlite", COMPANY))
    text = ddl(schema)
    assert text.startswith(
        "CREATE TABLE departments (\n    id INTEGER,\n    name TEXT NOT NULL,\n    PRIMARY KEY (id)\n);\n\nCREATE TABLE"
    )
    assert "    FOREIGN KEY (dept_id) REFERENCES departments (id)\n);" in text
    assert read_schema(_make(tmp_path / "again.sqlite", text)) == schema


ODD = '''
CREATE TABLE "two words"(
  "a ""b""" TEXT, "order" INT, "1st", naïve, Sales$, "", "select,from" REFERENCES "group"("key")
);
CREATE TABLE "group"("key" UNIQUE, "x=y");
CREATE TABLE self(id INTEGER PRIMARY KEY, boss REFERENCES self, other REFERENCES self(boss));
'''


def test_unusual_names_round_trip(tmp_path: Path) -> None:
    schema = read_schema(_make(tmp_path / "odd ?#%.sqlite", ODD))
    assert compact(schema).split("\n") == [
        '"two words"("a ""b""", "order", "1st", naïve, Sales$, "", "select,from"="group".key)',
        '"group"(key, "x=y")',
        "self(id, boss=self.id, other=self.boss)",
    ]
    assert read_schema(_make(tmp_path / "again.sqlite", ddl(schema))) == schema


def test_composite_dangling_and_generated_columns(tmp_path: Path) -> None:
    script = """
    CREATE TABLE p(a, b, PRIMARY KEY (b, a));
    CREATE TABLE c(x, y, z REFERENCES gone(id), w REFERENCES p(lost), v AS (x || y),
      FOREIGN KEY (x, y) REFERENCES p);
    """
    schema = read_schema(_make(tmp_path / "k.sqlite", script))
    assert schema.tables[1].foreign_keys == (ForeignKey(("x", "y"), "p", ("b", "a")),)
    assert compact(schema) == "p(a, b)\nc(x=p.b, y=p.a, z, w, v)"


@pytest.mark.parametrize(
    "connect", [sqlite3.connect, apsw.Connection], ids=["python", "executor"]
)  # their SQLite libraries
@pytest.mark.parametrize("word", sorted(apsw.keywords))  # SQLite's own list
def test_keyword_is_quoted_if_necessary(word: str, connect: Callable[[str], Any]) -> None:
    name = quote_name(word)
    with closing(connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE {name}({name} INT, other)")
        connection.execute(f'INSERT INTO "{word}" VALUES (41, 1)')
        for query in (
            f"SELECT {name} FROM {name}",
            f"SELECT x.{name} FROM {name} AS x JOIN {name} ON x.other = {name}.other",
            f"SELECT max({name}) FROM {name} WHERE {name} > 0 GROUP BY {name} ORDER BY {name}",
        ):
            assert connection.execute(query).fetchone()[0] == 41, query


NAMES = st.one_of(
    st.sampled_from(sorted(apsw.keywords)).flatmap(lambda word: st.sampled_from([word, word.lower(), word.title()])),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12),
)
TYPES = st.one_of(st.just(""), st.sampled_from(["INT", "VARCHAR(10)", "double precision", "DECIMAL(4, 2)"]), NAMES)


@settings(deadline=None, max_examples=200)
@given(NAMES, NAMES, TYPES, st.booleans())
def test_every_name_and_type_round_trips(table: str, column: str, kind: str, not_null: bool) -> None:
    assume(not table.lower().startswith("sqlite_"))
    schema = Schema((Table(table, (Column(column, kind.strip(), not_null), Column(f"{column}2", "INT"))),))
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(ddl(schema))
        connection.execute(f"INSERT INTO {quote_name(table)} VALUES (41, 42)")
        query = f"SELECT x.{quote_name(column)} FROM {quote_name(table)} AS x ORDER BY {quote_name(column)}"
        assert connection.execute(query).fetchone()[0] in (41, "41")
        assert connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchone()[0] == table
        rows = connection.execute('SELECT name, type, "notnull" FROM pragma_table_info(?)', (table,)).fetchall()
    assert rows[0][0] == column
    assert rows[0][2] == not_null
    assert rows[0][1].split() == kind.split()


def test_plain_names_are_not_quoted() -> None:
    assert [quote_name(name) for name in ("Name", "_x1", "größe", "date", "rank", "key")] == [
        "Name", "_x1", "größe", "date", "rank", "key",
    ]  # fmt: skip


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = _make(tmp_path / "v.sqlite", "CREATE TABLE a(x)")
    first = read_schema(path)
    assert read_schema(str(path)) is first
    _make(path, "CREATE TABLE b(y)")
    os.utime(path, ns=(1, 1))
    assert compact(read_schema(path)) == "a(x)\nb(y)"


def test_shadow_tables_of_virtual_tables_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE VIRTUAL TABLE Note USING fts5(title, body); CREATE TABLE note_tags (y INT);"
            "CREATE VIRTUAL TABLE place USING rtree(id, low, high); CREATE VIEW broken AS SELECT a FROM absent;"
        )
    assert [table.name for table in read_schema(path).tables] == ["Note", "note_tags", "place"]
    assert [column.name for column in read_schema(path).tables[0].columns] == ["title", "body"]


def test_missing_and_corrupt_files_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.sqlite: no database file"):
        read_schema(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(InputError, match="is a folder, not a database file"):
        read_schema(tmp_path)
    corrupt = tmp_path / "bad.sqlite"
    corrupt.write_bytes(b"no database at all " * 300)
    with pytest.raises(InputError, match="not a readable SQLite database"):
        read_schema(corrupt)
    page = _make(tmp_path / "page.sqlite", COMPANY).read_bytes()
    corrupt.write_bytes(page[:100] + b"\xff" * (len(page) - 100))
    with pytest.raises(InputError, match="not a readable SQLite database"):
        read_schema(corrupt)


def test_reading_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = _make(tmp_path / "r.sqlite", COMPANY)
    before = path.read_bytes(), path.stat().st_mtime_ns
    read_schema(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [file.name for file in tmp_path.iterdir()] == ["r.sqlite"]


def test_empty_file_keeps_its_log(tmp_path: Path) -> None:
    """A database in the middle of `cp` has this form. SQLite would delete the log, even on a read-only connection."""
    path, log = tmp_path / "shop.sqlite", tmp_path / "shop.sqlite-wal"
    path.write_bytes(b"")
    log.write_bytes(b"committed rows")
    readers: list[Callable[[], object]] = [
        lambda: read_schema(path),
        lambda: open_read_only(path),
        lambda: copy_database(path, tmp_path / "copy.sqlite"),
    ]
    for read in readers:
        with pytest.raises(InputError, match=r"shop\.sqlite: is empty, and shop\.sqlite-wal is not"):
            read()
        assert log.read_bytes() == b"committed rows"


def test_empty_file_keeps_its_journal(tmp_path: Path) -> None:
    """A database that is being restored may have this form, with the journal of a crash next to it."""
    path, journal = tmp_path / "shop.sqlite", tmp_path / "shop.sqlite-journal"
    path.write_bytes(b"")
    journal.write_bytes(b"rows to be restored")
    assert read_schema(path).tables == ()
    assert journal.read_bytes() == b"rows to be restored"
