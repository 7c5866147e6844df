"""What differs between builds of SQLite, and must not here: names of files, and LIKE on blobs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import apsw
import pytest

from sqlexec_rs import Executor

NAMES = (":memory:", "file:t.sqlite", "file:t.sqlite?mode=memory", "file::memory:", "file:%74.sqlite", "")


@pytest.mark.parametrize("immutable", [False, True])
def test_a_name_is_a_path_whatever_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str, immutable: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(["t.sqlite", *NAMES[:-1]]):
        connection = sqlite3.connect(tmp_path / name)  # with the folder before it, it is a path for sqlite3, too
        connection.execute("CREATE TABLE here(n)")
        connection.execute("INSERT INTO here VALUES (?)", (number,))
        connection.commit()
        connection.close()
    with Executor(threads=1, isolation=isolation, immutable=immutable) as executor:
        pairs = [(name, "SELECT n FROM here") for name in ["t.sqlite", *NAMES]]
        outcomes = executor.execute_many(pairs)
        assert [outcome.rows for outcome in outcomes] == [[(n,)] for n in range(len(NAMES))] + [[]]
        assert outcomes[-1].status == "db_error"
        for path in Path.cwd().iterdir():
            path.unlink()
        assert {executor.execute(*pair).status for pair in pairs} == {"db_error"}


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    path = tmp_path / "blobs.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    values = ["abc", b"abc", "", b"", None, 12, b"12", 1.5, b"\xff", "ABC"]
    connection.executemany("INSERT INTO t(x) VALUES (?)", [(value,) for value in values])
    connection.execute("CREATE INDEX by_x ON t(x)")
    connection.execute("CREATE VIEW v AS SELECT id, x LIKE 'a%' AS l FROM t")
    connection.commit()
    connection.close()
    return path


PATTERNS = ("'a%'", "'%b%'", "'1%'", "''", "NULL", "x", "x'6125'", "'%'")


def test_like_matches_blobs_or_does_not(blobs: Path, isolation: str) -> None:
    sqls = [
        f"SELECT id, x {no}{operator} {pattern} FROM t {where} ORDER BY id"
        for operator in ("LIKE", "GLOB")
        for pattern in PATTERNS
        for no in ("", "NOT ")
        for where in ("", f"WHERE x {no}{operator} {pattern}")
    ]
    sqls += ["SELECT id, l FROM v WHERE l", "SELECT id FROM t WHERE x LIKE 'a\\%' ESCAPE '\\' OR x LIKE 'A__'"]
    assert "LIKE_DOESNT_MATCH_BLOBS" in apsw.compile_options
    other = apsw.Connection(str(blobs))
    wanted = [list(other.execute(sql)) for sql in sqls]
    results = {}
    for like_blobs in (False, True):
        with Executor(threads=1, isolation=isolation, like_blobs=like_blobs) as executor:
            outcomes = executor.execute_many([(blobs, sql) for sql in sqls])
            assert {outcome.status for outcome in outcomes} == {"ok"}
            results[like_blobs] = [outcome.rows for outcome in outcomes]
    assert results[False] == wanted
    assert results[True] != wanted
    assert results[True][1] == [(1, 1), (2, 1), (10, 1)], "SQLite's default: a blob is matched as a text"
