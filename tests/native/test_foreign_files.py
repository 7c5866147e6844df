"""A query leaves a database, its log, index and journal unchanged in any state."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor

SETUP = """
CREATE TABLE t(id INTEGER PRIMARY KEY, x TEXT);
WITH r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 3000) INSERT INTO t SELECT i, hex(randomblob(50)) FROM r;
"""
QUERIES = ["SELECT count(*) FROM t", "SELECT count(*) FROM t WHERE x LIKE '%A%' || id", "PRAGMA table_info(t)"]
ROWS, ROWS_WITH_LOG = 3000, 3001

State = Callable[[Path], None]


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return the content, mode, inode and times of each file."""
    files = {}
    for path in sorted(folder.iterdir()):
        stat = path.stat()
        files[path.name] = (path.read_bytes(), stat.st_mode, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return files


def copy(source: Path, path: Path, *ends: str) -> None:
    for end in ("", *ends):
        shutil.copyfile(f"{source}{end}", f"{path}{end}")


def with_log(path: Path, *ends: str) -> None:
    """Make a database with its last committed row only in its log, and these other files."""
    source = path.parent.parent / "source.sqlite"
    with closing(sqlite3.connect(source)) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        writer.executescript(SETUP)
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.execute("INSERT INTO t VALUES (100000, 'late')")
        writer.commit()
        copy(source, path, *ends)


def with_journal(path: Path) -> None:
    """Make a database whose writer crashed in a transaction."""
    source = path.parent.parent / "source.sqlite"
    with closing(sqlite3.connect(source, isolation_level=None)) as writer:
        writer.executescript(SETUP)
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN")
        writer.execute("UPDATE t SET x = upper(x) || 'changed'")
        copy(source, path, "-journal")
        writer.execute("ROLLBACK")
    assert Path(f"{path}-journal").read_bytes()[0] != 0


def at_rest(path: Path) -> None:
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        writer.executescript(SETUP)


def empty_with_log(path: Path) -> None:
    with_log(path, "-wal")
    path.write_bytes(b"")


def empty_with_log_and_index(path: Path) -> None:
    with_log(path, "-wal", "-shm")
    path.write_bytes(b"")


def empty_with_empty_log(path: Path) -> None:
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(b"")


def empty_with_journal(path: Path) -> None:
    with_journal(path)
    path.write_bytes(b"")


def copy_half(path: Path) -> None:
    with_log(path, "-wal")
    path.write_bytes(path.read_bytes()[: 40 * 4096])


def with_log_alone(path: Path) -> None:
    with_log(path, "-wal")


def with_stale_index(path: Path) -> None:
    with_log(path, "-wal", "-shm")


def with_empty_index(path: Path) -> None:
    with_log(path, "-wal")
    index = Path(f"{path}-shm")
    index.write_bytes(b"")
    index.chmod(0o600)


def with_empty_log(path: Path) -> None:
    at_rest(path)
    log = Path(f"{path}-wal")
    log.write_bytes(b"")
    log.chmod(0o600)


def in_a_read_only_folder(path: Path) -> None:
    with_log(path, "-wal")
    path.parent.chmod(0o555)


# The result of the first query: a number of rows, or a part of the error.
STATES: list[tuple[State, int | str | None]] = [
    (at_rest, ROWS),
    (with_log_alone, ROWS_WITH_LOG),
    (with_stale_index, ROWS_WITH_LOG),
    (with_empty_index, ROWS_WITH_LOG),
    (with_empty_log, ROWS),
    (in_a_read_only_folder, ROWS_WITH_LOG),
    (empty_with_log, "the database file is empty, and"),
    (empty_with_log_and_index, "the database file is empty, and"),
    (empty_with_empty_log, "no such table: t"),
    (empty_with_journal, None),
    (with_journal, "a program crashed while writing to this database"),
    (copy_half, None),
]
WAYS: dict[str, dict[str, Any]] = {
    "files": {},
    "immutable": {"immutable": True},
    "copies": {"copy_up_to_bytes": 1 << 20},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("state", "expected"), STATES, ids=[state.__name__ for state, _ in STATES])
def test_queries_change_no_file(
    tmp_path: Path, isolation: str, way: str, state: State, expected: int | str | None
) -> None:
    path = tmp_path / "set" / "shop.sqlite"
    path.parent.mkdir()
    state(path)
    before = snapshot(path.parent)
    with Executor(threads=1, isolation=isolation, **WAYS[way]) as ex:
        first = ex.execute(path, QUERIES[0])
        for sql in QUERIES * 2:
            ex.execute(path, sql)
            ex.explain(path, sql)
            assert snapshot(path.parent) == before, sql
    assert snapshot(path.parent) == before
    if isinstance(expected, int):
        assert first.rows == [(expected,)], first.error
    elif expected is not None:
        assert first.status in {"db_error", "schema_error"}
        assert expected in str(first.error)
        assert str(path) in str(first.error) or first.status == "schema_error"


def test_a_query_during_a_copy_loses_no_rows(tmp_path: Path, isolation: str) -> None:
    """`cp` truncates the file first, and the committed row is only in the log."""
    path = tmp_path / "set" / "shop.sqlite"
    path.parent.mkdir()
    with_log(path, "-wal")
    content = path.read_bytes()
    with Executor(threads=1, isolation=isolation) as ex:
        assert ex.execute(path, QUERIES[0]).rows == [(ROWS_WITH_LOG,)]
        with path.open("r+b") as file:
            file.truncate()
            assert ex.execute(path, QUERIES[0]).status == "db_error"
            file.write(content)
        assert ex.execute(path, QUERIES[0]).rows == [(ROWS_WITH_LOG,)]


def test_files_of_a_crashed_writer_are_read_after_recovery(tmp_path: Path, isolation: str) -> None:
    path = tmp_path / "set" / "shop.sqlite"
    path.parent.mkdir()
    with_journal(path)
    with Executor(threads=1, isolation=isolation) as ex:
        error = ex.execute(path, QUERIES[0]).error
        assert "PRAGMA user_version" in str(error)
        with closing(sqlite3.connect(path)) as writer:
            writer.execute("PRAGMA user_version").fetchall()
        assert ex.execute(path, QUERIES[0]).rows == [(ROWS,)]
        assert ex.execute(path, "SELECT count(*) FROM t WHERE x LIKE '%changed'").rows == [(0,)]
