"""Each kind of SQL has its status, and no file changes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqlexec_rs import STATUS_NAMES, Executor, Limits

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"

CASES = [
    # Reading
    ("SELECT 1", "ok"),
    ('SELECT * FROM item WHERE name = "saw"', "ok"),  # a double-quoted string
    ("  -- first\n SELECT 1; ;; /* last */ -- end", "ok"),
    ("SELECT ';' AS \"a;b\" -- ; x", "ok"),
    ("VALUES (1, 'a'), (2, 'b')", "ok"),
    ("WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 5) SELECT x FROM r", "ok"),
    ("SELECT name, row_number() OVER (ORDER BY price) FROM item", "ok"),
    ("SELECT json_extract('{\"a\": 1}', '$.a')", "ok"),
    ("SELECT name FROM sqlite_schema", "ok"),
    ("SELECT * FROM cheap", "ok"),
    ("EXPLAIN QUERY PLAN SELECT * FROM item", "ok"),
    ("PRAGMA table_info(item)", "ok"),
    ("PRAGMA table_xinfo('item')", "ok"),
    ("PRAGMA table_list", "ok"),
    ("PRAGMA foreign_key_list(part)", "ok"),
    ("PRAGMA index_list(item)", "ok"),
    ("PRAGMA index_info(by_name)", "ok"),
    ("PRAGMA index_xinfo(by_name)", "ok"),
    ("SELECT * FROM pragma_table_info('item')", "ok"),
    # Nothing to run
    ("", "no_sql"),
    (" \n\t;;", "no_sql"),
    ("-- only a comment", "no_sql"),
    ("/* only */ -- comments", "no_sql"),
    # Not SQL, or not SQL for this schema
    ("SELEC 1", "syntax_error"),
    ("SELECT FROM item", "syntax_error"),
    ("SELECT 'open", "syntax_error"),
    ("SELECT (1", "syntax_error"),
    ("SELECT 1\0", "syntax_error"),
    ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
    ("SELECT missing FROM item", "schema_error"),
    ("SELECT * FROM missing", "schema_error"),
    ("SELECT missing(1)", "schema_error"),
    ("SELECT upper(1, 2, 3)", "schema_error"),
    ("SELECT id FROM item, part", "schema_error"),
    ("SELECT id FROM item ORDER BY name COLLATE missing", "schema_error"),
    # Run-time errors
    ("SELECT abs(-9223372036854775808)", "runtime_error"),
    ("SELECT sum(x) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1)", "runtime_error"),
    ("SELECT json_extract('{', '$.a')", "runtime_error"),
    ("SELECT ?", "runtime_error"),
    # Endless
    (ENDLESS, "timeout"),
    ("SELECT count(*) FROM item a, item b, item c, item d, item e, item f, item g, item h, item i, item j", "timeout"),
    # Over a limit
    ("SELECT hex(zeroblob(20000000))", "too_large"),
    ("SELECT * FROM item a, item b, item c", "too_large"),
    ("SELECT " + "abs(" * 600 + "1" + ")" * 600, "too_large"),
    ("SELECT " + " + ".join(["1"] * 3000), "too_large"),
    ("SELECT 'a' LIKE '" + "%a" * 2000 + "'", "too_large"),
    # Other than reading
    ("SELECT 1; SELECT 2", "forbidden"),
    ("SELECT 1; DROP TABLE item", "forbidden"),
    ("INSERT INTO item VALUES (9, 'x', 1)", "forbidden"),
    ("UPDATE item SET price = 0", "forbidden"),
    ("DELETE FROM item", "forbidden"),
    ("REPLACE INTO item VALUES (1, 'x', 1)", "forbidden"),
    ("WITH x AS (SELECT 1) DELETE FROM item", "forbidden"),
    ("INSERT INTO item SELECT * FROM item RETURNING id", "forbidden"),
    ("DROP TABLE item", "forbidden"),
    ("CREATE TABLE t(x)", "forbidden"),
    ("CREATE TEMP TABLE t(x)", "forbidden"),
    ("CREATE TEMP VIEW v AS SELECT 1", "forbidden"),
    ("CREATE VIRTUAL TABLE f USING fts5(x)", "forbidden"),
    ("ALTER TABLE item RENAME TO thing", "forbidden"),
    ("ATTACH DATABASE '/tmp/other.sqlite' AS other", "forbidden"),
    ("ATTACH ':memory:' AS m", "forbidden"),
    ("DETACH DATABASE main", "forbidden"),
    ("VACUUM INTO '/tmp/copy.sqlite'", "forbidden"),
    ("REINDEX", "forbidden"),
    ("ANALYZE", "forbidden"),
    ("BEGIN", "forbidden"),
    ("COMMIT", "forbidden"),
    ("SAVEPOINT s", "forbidden"),
    ("SELECT load_extension('libm.so')", "forbidden"),
    ("SELECT LOAD_EXTENSION('libm.so', 'x')", "forbidden"),
    ("SELECT fts3_tokenizer('simple')", "forbidden"),
    ("PRAGMA journal_mode = WAL", "forbidden"),
    ("PRAGMA journal_mode", "forbidden"),
    ("PRAGMA writable_schema = ON", "forbidden"),
    ("PRAGMA user_version = 7", "forbidden"),
    ("PRAGMA query_only = OFF", "forbidden"),
    ("PRAGMA trusted_schema = ON", "forbidden"),
    ("PRAGMA temp_store_directory = '/tmp'", "forbidden"),
    ("PRAGMA wal_checkpoint", "forbidden"),
    ("EXPLAIN DELETE FROM item", "forbidden"),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL);
        CREATE INDEX by_name ON item(name);
        CREATE TABLE part(id INTEGER PRIMARY KEY, item_id INTEGER REFERENCES item(id), count INTEGER);
        CREATE VIEW cheap AS SELECT * FROM item WHERE price < 3;
    """)
    connection.executemany("INSERT INTO item VALUES (?, ?, ?)", [(i, f"name {i % 7}", i / 4) for i in range(60)])
    connection.commit()
    connection.close()
    return path


@pytest.fixture(scope="module")
def executor(isolation: str) -> Iterator[Executor]:
    limits = Limits(timeout_ms=30_000, vm_steps=3_000_000, max_rows=100_000)
    with Executor(threads=2, limits=limits, isolation=isolation) as ex:
        yield ex


@pytest.mark.parametrize(("sql", "status"), CASES, ids=[f"{i:02}-{sql[:30]!r}" for i, (sql, _) in enumerate(CASES)])
def test_each_query_has_its_status(executor: Executor, shop: Path, sql: str, status: str) -> None:
    outcome = executor.execute(shop, sql)
    assert outcome.status == status, outcome.error
    assert (outcome.error is None) == (status == "ok")
    if status != "ok":
        assert (outcome.rows, outcome.columns, outcome.row_count) == ([], [], 0)


def test_a_batch_gives_equal_statuses_and_leaves_the_file_unchanged(shop: Path, isolation: str) -> None:
    before = hashlib.sha256(shop.read_bytes()).hexdigest()
    limits = Limits(vm_steps=3_000_000, max_rows=100_000)
    with Executor(threads=4, limits=limits, isolation=isolation) as ex:
        outcomes = ex.execute_many([(shop, sql) for sql, _ in CASES])
    assert [outcome.status for outcome in outcomes] == [status for _, status in CASES]
    assert hashlib.sha256(shop.read_bytes()).hexdigest() == before
    assert [path.name for path in shop.parent.iterdir()] == ["shop.sqlite"]


def test_a_missing_or_damaged_database_is_a_db_error(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("no database, but long enough to have a header" * 10)
    (tmp_path / "folder.sqlite").mkdir()
    damaged = bytearray(_database(tmp_path / "whole.sqlite").read_bytes())
    damaged[100:400] = b"\xff" * 300
    (tmp_path / "damaged.sqlite").write_bytes(damaged)
    for name in ("missing.sqlite", "text.sqlite", "folder.sqlite", "damaged.sqlite", ":memory:", ""):
        outcome = executor.execute(tmp_path / name, "SELECT * FROM t")
        assert outcome.status == "db_error", name
        assert outcome.error
    assert executor.execute(":memory:", "SELECT 1").status == "db_error"
    assert executor.execute("file::memory:?mode=memory", "SELECT 1").status == "db_error"
    assert not (tmp_path / "missing.sqlite").exists()


def test_a_schema_that_is_not_utf8_is_a_db_error(executor: Executor, tmp_path: Path) -> None:
    path = tmp_path / "names.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(abcd, b)")
    connection.commit()
    connection.close()
    path.write_bytes(path.read_bytes().replace(b"abcd", b"a\xff\xfed"))
    assert executor.execute(path, "SELECT * FROM t").status == "db_error"
    assert executor.execute(path, "SELECT b FROM t").status == "ok"
    assert executor.execute(path, "DELETE FROM t").status == "forbidden"


def test_an_error_has_a_message_and_an_offset(executor: Executor, shop: Path) -> None:
    outcome = executor.execute(shop, "/* é */ SELECT id, missing FROM item")
    assert (outcome.error, outcome.error_offset) == ("no such column: missing", 20)
    assert "3000000 VM steps" in (executor.execute(shop, ENDLESS).error or "")


def test_status_names_match_the_documentation() -> None:
    first = "ok no_sql syntax_error schema_error runtime_error timeout too_large forbidden db_error crashed cancelled"
    assert " ".join(STATUS_NAMES) == first


def _database(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(x)")
    connection.commit()
    connection.close()
    return path
