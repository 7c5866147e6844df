"""Rows have SQLite's values and types."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import apsw
import pytest

from sqlexec_rs import Executor, Limits, sqlite_version

NUMBERS = [0, -1, 2**63 - 1, -(2**63), 0.1, -0.0, 1e308, float("inf")]
VALUES = [None, *NUMBERS, "", "é", "a\0b", b"", b"\x00\xff", "x" * 5000]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "values.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE v(id INTEGER PRIMARY KEY, x)")
    connection.executemany("INSERT INTO v(x) VALUES (?)", [(value,) for value in VALUES])
    connection.execute("INSERT INTO v(x) VALUES (CAST(x'61ff62' AS TEXT))")
    connection.commit()
    connection.close()
    return path


def test_values_of_each_type_are_returned(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as ex:
        rows = ex.execute(database, "SELECT x FROM v ORDER BY id").rows
    assert [type(row[0]) for row in rows[:-1]] == [type(value) for value in VALUES]
    assert [row[0] for row in rows[:-1]] == VALUES
    assert str(rows[6][0]) == "-0.0"


def test_invalid_utf8_text_keeps_its_bytes(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as ex:
        (text,) = ex.execute(database, "SELECT x FROM v ORDER BY id DESC LIMIT 1").rows[0]
        (blob,) = ex.execute(database, "SELECT CAST(x AS BLOB) FROM v ORDER BY id DESC LIMIT 1").rows[0]
        assert (text, blob) == ("a\udcffb", b"a\xffb")
        assert text.encode("utf-8", "surrogateescape") == blob
        # The same text as a gold table is bound unchanged.
        assert ex.score(database, "SELECT x FROM v ORDER BY id DESC LIMIT 1", (["x"], [(text,)]))["bird"] == 1.0


def test_column_names_match_sqlite(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as ex:
        outcome = ex.execute(database, 'SELECT id, x AS "the value", id, 1 + 1 FROM v LIMIT 0')
    assert (outcome.columns, outcome.rows, outcome.row_count) == (["id", "the value", "id", "1 + 1"], [], 0)
    assert outcome.elapsed_ms > 0


def test_rows_match_apsw(database: Path, isolation: str) -> None:
    assert apsw.sqlite_lib_version() == sqlite_version(), "install the apsw of the bundled SQLite's version"
    queries = [
        "SELECT id, x, typeof(x) FROM v WHERE id < 16 ORDER BY typeof(x), x",
        "SELECT avg(id), sum(id * 0.1), 1.0 / 3, total(id), group_concat(id) FROM v",
        "SELECT round(2.5), printf('%.17g', 0.1), julianday('2024-02-29'), 10 / 4, 10 % 4, 1e15 + 0.3",
    ]
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    with Executor(threads=1, isolation=isolation) as ex:
        for sql in queries:
            ours, theirs = ex.execute(database, sql).rows, list(connection.execute(sql))
            assert ours == theirs
            assert [[type(cell) for cell in row] for row in ours] == [[type(cell) for cell in row] for row in theirs]


def test_rows_are_built_once_and_limits_do_not_truncate(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as ex:
        outcome = ex.execute(database, "SELECT id FROM v")
        assert outcome.rows is outcome.rows
        assert ex.execute(database, "SELECT id FROM v", limits=Limits(max_rows=len(VALUES))).status == "too_large"
        assert ex.execute(database, "SELECT id FROM v", limits=Limits(max_rows=len(VALUES) + 1)).row_count == 16
        assert ex.execute(database, "SELECT x FROM v", limits=Limits(max_bytes=5000)).status == "too_large"
