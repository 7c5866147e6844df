"""Differences between SQLite builds: file names, LIKE on blobs, and functions and syntax of later versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from sqlexec_rs import Executor

NAMES = (":memory:", "file:t.sqlite", "file:t.sqlite?mode=memory", "file::memory:", "file:%74.sqlite", "")


@pytest.mark.parametrize("immutable", [False, True])
def test_database_names_are_always_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str, immutable: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(["t.sqlite", *NAMES[:-1]]):
        connection = sqlite3.connect(tmp_path / name)  # with the folder as a prefix it is a path for sqlite3, too
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


def test_like_matches_blobs_depending_on_the_setting(blobs: Path, isolation: str) -> None:
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
    assert results[True][1] == [(1, 1), (2, 1), (10, 1)], "SQLite's default matches a blob as text"


NEWER = (
    "SELECT unhex('41')",
    "SELECT octet_length(x) FROM t",
    "SELECT timediff('2024-01-02', '2024-01-01')",
    "SELECT concat(x, '!') FROM t",
    "SELECT \"concat_ws\"('-', x, x) FROM t",
    "SELECT string_agg(x, ',') FROM t",
    "SELECT group_concat(x, ',' ORDER BY x) FROM t",
    "SELECT jsonb('[1]')",
    "SELECT json_pretty('[1]')",
    "SELECT json_valid('[1]', 6)",
    "SELECT 1_000",
    "SELECT if(id = 1, 1, 2) FROM t",
    "SELECT iif(id = 1, 1) FROM t",
    "SELECT iif(id = 1, 1, id = 2, 2) FROM t",
    "SELECT unistr('a')",
    "SELECT value FROM jsonb_each('[1]')",
    "SELECT json_array_insert('[1]', '$[0]', 2)",
    "SELECT strftime('%I %p', '2024-01-01 13:00')",
    "SELECT strftime('%G-%V', '2024-01-01')",
    "SELECT datetime('2024-01-01', 'subsec')",
    "SELECT date('2024-01-31', '+1 month', 'floor')",
    "SELECT date('2024-01-31', '+0001-00-00')",
    "SELECT date('2024-01-15', 'end of month')",
    "SELECT strftime(\"%F\", '2024-01-01')",
    'SELECT strftime(("%Y" || "%G"), \'2024-01-01\')',
    "SELECT time('12:00', \"subsec\")",
    'SELECT date(\'2024-01-31\', "+1 month", "ceiling")',
    "SELECT date('2024-01-31', \"+0001-00-00\")",
    "SELECT date('2024-01-15', \"End of month\")",
    "SELECT floor FROM (SELECT date('2024-01-31', \"floor\") AS floor)",
    "SELECT date('2024-01-31', CASE WHEN 1 THEN ('floor') END)",
    "SELECT joined FROM newer",
)
OLDER = (
    "SELECT iif(id = 1, 1, 2), id -> '$', format('%d', id) FROM t",
    "SELECT group_concat(id, ','), sum(id) OVER (ORDER BY id) FROM t GROUP BY id ORDER BY id",
    "SELECT a.id FROM t AS a RIGHT JOIN t AS b ON a.id = b.id + 1 WHERE a.id IS NOT DISTINCT FROM b.x",
    "SELECT strftime('%Y-%m-%d %H:%M:%f %j %w %%I', '2024-01-01'), date('2024-01-31', '+1 month', 'start of month')",
    "SELECT unixepoch('2024-01-01'), json_valid('[1]'), sqrt(4), soundex('a'), '1_000', 'floor'",
    "SELECT id FROM t WHERE id IN (SELECT id FROM t ORDER BY x LIMIT 2)",
    "SELECT date(CASE WHEN x = 'floor' THEN '2024-01-01' ELSE '2024-01-02' END) FROM t",
    "SELECT date('2024-01-01', CASE WHEN x <> \"floor\" AND 'ceiling' != x THEN '+1 day' ELSE '+2 day' END) FROM t",
    "SELECT date('2024-01-01', CASE x WHEN 'floor' THEN '+1 day' ELSE '+2 day' END) FROM t",
    "SELECT date('2024-01-01', CASE 'floor' WHEN x THEN '+1 day' ELSE '+2 day' END) FROM t",
    "SELECT date('2024-01-01', CASE WHEN x = ('floor') THEN '+1 day' ELSE '+2 day' END) FROM t",
    "SELECT strftime(CASE WHEN x LIKE '%Park' THEN '%Y' ELSE '%m' END, '2024-01-01') FROM t",
    "SELECT strftime(CASE WHEN x NOT GLOB '%e' OR x IN ('%F', '%p') THEN '%Y' ELSE '%m' END, '2024-01-01') FROM t",
    "SELECT strftime(CASE WHEN x IS NOT '%e' OR x BETWEEN '%F' AND '%T' THEN '%Y' ELSE '%m' END, '2024-01-01') FROM t",
    'SELECT strftime("%Y-%m-%d", \'2024-01-01\', "+1 day"), "%F" FROM t',
    "SELECT date('2024-01-31', \"floor\") FROM (SELECT '+1 day' AS floor)",
    'WITH c("subsec", "%F") AS (SELECT \'+1 day\', \'%Y\') SELECT strftime("%F", \'2024-01-31\', "SUBSEC") FROM c',
    "SELECT '+1 day' AS ceiling FROM t WHERE date('2024-01-31', \"ceiling\") > ''",
)


@pytest.mark.skipif(not (3, 40) <= sqlite3.sqlite_version_info < (3, 54), reason="compares with an older SQLite")
def test_a_version_setting_refuses_newer_syntax(blobs: Path, isolation: str) -> None:
    with closing(sqlite3.connect(blobs)) as connection:
        connection.execute("CREATE VIEW newer AS SELECT concat(x, '!') AS joined FROM t")
        connection.commit()
        theirs = [_answer(connection, sql) for sql in NEWER + OLDER]
    with Executor(threads=1, isolation=isolation, sqlite_version=sqlite3.sqlite_version) as executor:
        assert executor.sqlite_version == sqlite3.sqlite_version
        ours = executor.execute_many([(blobs, sql) for sql in NEWER + OLDER])
    refused = {sql for sql, outcome in zip(NEWER + OLDER, ours, strict=True) if outcome.status != "ok"}
    assert {outcome.status for outcome in ours} == {"ok", "schema_error", "syntax_error"}
    assert refused == {sql for sql, rows in zip(NEWER + OLDER, theirs, strict=True) if rows in (None, [(None,)])}
    assert not refused.intersection(OLDER)
    named = f"sqlite_version is 3.{sqlite3.sqlite_version_info[1]}"
    assert [outcome.error for outcome in ours if outcome.error and named not in outcome.error] == []


def _answer(connection: sqlite3.Connection, sql: str) -> list[tuple[object, ...]] | None:
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.Error:
        return None


def test_all_syntax_runs_without_a_version_and_with_the_current_one(blobs: Path, isolation: str) -> None:
    for version in (None, "3.54.1"):
        with Executor(threads=1, isolation=isolation, sqlite_version=version) as executor:
            outcomes = executor.execute_many([(blobs, sql) for sql in (*NEWER[:-1], *OLDER)])
            assert {outcome.status for outcome in outcomes} == {"ok"}


@pytest.mark.parametrize("version", ["3.39", "3.4", "3", "4.40", "latest", "3.40.1.1", ""])
def test_an_invalid_or_too_old_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite_version must be 3\.40 or later"):
        Executor(threads=1, sqlite_version=version)
