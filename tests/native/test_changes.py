"""Files that other processes write while an executor has them open: each answer is one state, and the current one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sqlexec_rs import Executor, Limits

N_ROWS = 60_000
# Connects and disconnects like a program that changes each copy of a row: after each commit all rows are equal.
WRITER = """
import sqlite3, sys
print("ready", flush=True)
for line in sys.stdin:
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
    connection.execute("UPDATE t SET x = x + 1")
    connection.close()
    print("done", flush=True)
"""

# Stays connected, so that its changes stay in the log.
KEEPER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    connection.execute("UPDATE t SET x = x + 1 WHERE id = 1")
    print("done", flush=True)
"""

# Alternately locks the file exclusively and releases it.
LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for number, line in enumerate(sys.stdin):
    connection.execute("COMMIT" if number % 2 else "BEGIN EXCLUSIVE")
    print("done", flush=True)
"""


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Return two databases that differ in one value: equal sizes, change counters and times."""
    paths = [tmp_path / name for name in ("one.sqlite", "two.sqlite")]
    for number, path in enumerate(paths, start=1):
        make(path, f"CREATE TABLE t(x); INSERT INTO t VALUES ({number})")
        os.utime(path, (1, 1))
    headers = [path.read_bytes()[:100] for path in paths]
    assert headers[0] == headers[1]
    return paths


def make(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


@pytest.mark.parametrize("keeps_times", [False, True])
def test_a_database_overwritten_in_place_is_detected(pair: list[Path], isolation: str, keeps_times: bool) -> None:
    """The inode and SQLite's change counter do not differ: both files have had the same number of transactions."""
    target = shutil.copy2(pair[0], pair[0].parent / "target.sqlite")
    inode = target.stat().st_ino
    # `copyfile` writes into the existing file; `copy2` also restores its times.
    copy = shutil.copy2 if keeps_times else shutil.copyfile
    with Executor(threads=1, isolation=isolation) as ex:
        for turn in range(6):
            copy(pair[turn % 2], target)
            assert target.stat().st_ino == inode
            for sql in (
                "SELECT x FROM t",
                f"SELECT x FROM t -- {turn}",
                "SELECT x FROM t WHERE x LIKE '%' || x || '%'",
            ):
                assert ex.execute(target, sql).rows == [(turn % 2 + 1,)], sql
            score = ex.score(target, f"SELECT {turn % 2 + 1}", "SELECT x FROM t")
            assert score["bird"] == 1.0, "golds are cached per state of the file"


def test_results_of_an_unchanged_file_are_cached(pair: list[Path]) -> None:
    time.sleep(2.1)  # a new file's identity changes once its time stamp can be trusted
    for isolation in ("thread", "process"):
        with Executor(threads=1, isolation=isolation) as ex:
            for _ in range(3):
                assert ex.execute(pair[0], "SELECT x FROM t").rows == [(1,)]
            assert ex.stats()["cache_hits"] == 2, isolation


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """Return a database in WAL mode whose last writer has removed the log."""
    path = tmp_path / "logged.sqlite"
    make(
        path,
        "PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, x, pad);"
        f"WITH r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < {N_ROWS})"
        "INSERT INTO t SELECT i, 0, hex(zeroblob(100)) FROM r",
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["logged.sqlite"]
    return path


@pytest.fixture
def writer(logged: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(logged)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def write_once(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()


def await_write(writer: subprocess.Popen[str]) -> None:
    assert writer.stdout is not None
    assert writer.stdout.readline() == "done\n"


@pytest.mark.parametrize("n_turns", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_a_scan_sees_commits_of_a_reconnecting_writer_atomically(
    logged: Path, writer: subprocess.Popen[str], isolation: str, n_turns: int
) -> None:
    slow = "SELECT min(x), max(x), count(*) FROM t WHERE length(replace(pad || x, '0', 'ab')) > 0"
    seen = []
    with Executor(threads=2, isolation=isolation, limits=Limits(timeout_ms=60_000)) as ex:
        for turn in range(n_turns):
            assert ex.execute(logged, f"SELECT min(x) = max(x) FROM t -- {turn}").rows == [(1,)]
            jobs = [ex.submit([(logged, f"{slow} -- {turn} {i}")]) for i in range(2)]
            write_once(writer)
            for job in jobs:
                (outcome,) = job.result()
                assert outcome.status == "ok", outcome.error
                seen += outcome.rows
            await_write(writer)
            ((now,),) = ex.execute(logged, f"SELECT max(x) FROM t -- after {turn}").rows
            assert now == turn + 1, "the write is visible"
    assert [row for row in seen if row[0] != row[1] or row[2] != N_ROWS] == []


# Writes often, with a new connection for each write.
VISITOR = """
import sqlite3, sys
for _ in range(int(sys.argv[2])):
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=float([*sys.argv, 60][3]))
    connection.execute("UPDATE t SET x = x + 1")
    connection.close()
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a database in WAL mode that is small enough to be checked after a recent change."""
    path = tmp_path / "small.sqlite"
    make(path, "PRAGMA journal_mode = WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, x); INSERT INTO t(x) VALUES (0), (0)")
    return path


def visiting(path: Path, n_writes: int) -> list[str]:
    return [sys.executable, "-c", VISITOR, str(path), str(n_writes)]


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_reading_a_file_keeps_the_locks_of_a_writer_in_the_process(small: Path, mode: str) -> None:
    """Closing a file releases this process's locks on it, including those of the caller's connection."""
    with Executor(threads=1) as ex, closing(sqlite3.connect(small, isolation_level=None)) as here:
        assert here.execute(f"PRAGMA journal_mode = {mode}").fetchall() == [(mode,)]
        here.execute("UPDATE t SET x = x + 1")
        here.execute("BEGIN")
        here.execute("UPDATE t SET x = x + 1")
        assert ex.execute(small, "SELECT max(x) FROM t").rows == [(1,)]
        refused = subprocess.run([*visiting(small, 1), "0"], check=False, stderr=subprocess.PIPE, text=True)
        assert "database is locked" in refused.stderr
        here.execute("COMMIT")
        ex.close()
        subprocess.run(visiting(small, 1), check=True)
        assert Path(f"{small}-wal").exists() == (mode == "wal"), "a connection keeps the log"
        assert here.execute("SELECT max(x) FROM t").fetchall() == [(3,)]


def test_an_open_connection_keeps_the_log(small: Path, isolation: str) -> None:
    command = [sys.executable, "-c", KEEPER, str(small)]
    with Executor(threads=1, isolation=isolation) as ex:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
            write_once(keeper)
            await_write(keeper)
            for turn in range(3):
                assert ex.execute(small, f"SELECT x FROM t WHERE id = 1 -- {turn}").rows == [(1,)]
            assert keeper.stdin is not None
            keeper.stdin.close()
        assert Path(f"{small}-wal").exists(), "the executor has it open"
        subprocess.run(visiting(small, 1), check=True)
        assert ex.execute(small, "SELECT x FROM t WHERE id = 1").rows == [(2,)]


@pytest.mark.parametrize("n_writes", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_small_files_with_reconnecting_writers_are_read_consistently(
    small: Path, isolation: str, n_writes: int
) -> None:
    seen = set()
    with (
        Executor(threads=2, isolation=isolation, limits=Limits(timeout_ms=60_000)) as ex,
        subprocess.Popen(visiting(small, n_writes)) as visitor,
    ):
        while visitor.poll() is None:
            jobs = [ex.submit([(small, f"SELECT min(x), max(x), count(*) FROM t -- {number}")]) for number in range(2)]
            for job in jobs:
                (outcome,) = job.result()
                assert outcome.status == "ok", outcome.error
                seen |= set(outcome.rows)
        assert visitor.wait() == 0, "no reader disturbs the writer"
        assert ex.execute(small, "SELECT max(x) FROM t").rows == [(n_writes,)]
    assert [row for row in seen if row[0] != row[1] or row[2] != 2] == []


def test_the_log_of_a_linked_database_is_found(logged: Path, isolation: str) -> None:
    """SQLite keeps the log next to the target of a link."""
    (logged.parent / "links").mkdir()
    link = logged.parent / "links" / "link.sqlite"
    link.symlink_to(logged)
    command = [sys.executable, "-c", KEEPER, str(logged)]
    with (
        Executor(threads=1, isolation=isolation) as ex,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper,
    ):
        for turn in range(4):
            assert ex.execute(link, "SELECT x FROM t WHERE id = 1").rows == [(turn,)]
            write_once(keeper)
            await_write(keeper)
        assert keeper.stdin is not None
        keeper.stdin.close()


def test_a_wal_database_without_a_log_is_read_without_creating_files(logged: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation) as ex:
        pairs = [(logged, f"SELECT count(*) FROM t -- {i}") for i in range(3)]
        assert [outcome.rows for outcome in ex.execute_many(pairs)] == [[(N_ROWS,)]] * 3
        assert [entry.name for entry in logged.parent.iterdir()] == ["logged.sqlite"]
    assert [entry.name for entry in logged.parent.iterdir()] == ["logged.sqlite"]


@pytest.fixture
def copied(logged: Path, tmp_path: Path) -> Path:
    """Return a database with a log that has one more row, copied without the index of the log."""
    folder = tmp_path / "copied"
    folder.mkdir()
    connection = sqlite3.connect(logged)
    connection.execute("INSERT INTO t SELECT id + 100000, -1, pad FROM t WHERE id = 1")
    connection.commit()
    for suffix in ("", "-wal"):
        shutil.copy(f"{logged}{suffix}", f"{folder / logged.name}{suffix}")
        os.utime(f"{folder / logged.name}{suffix}", (1, 1))
    connection.close()
    return folder / logged.name


def test_a_log_without_an_index_is_read_without_creating_files(copied: Path, isolation: str) -> None:
    """SQLite creates an index, leaves it there, and cannot read the database in a read-only folder."""
    names = sorted(entry.name for entry in copied.parent.iterdir())
    before = [entry.read_bytes() for entry in sorted(copied.parent.iterdir())]
    with Executor(threads=2, isolation=isolation) as ex:
        pairs = [(copied, f"SELECT count(*), min(x) FROM t -- {i}") for i in range(6)]
        assert [outcome.rows for outcome in ex.execute_many(pairs)] == [[(N_ROWS + 1, -1)]] * 6
        assert sorted(entry.name for entry in copied.parent.iterdir()) == names
    assert [entry.read_bytes() for entry in sorted(copied.parent.iterdir())] == before


def test_a_writer_to_a_log_without_an_index_is_detected(copied: Path, isolation: str) -> None:
    command = [sys.executable, "-c", KEEPER, str(copied)]
    with (
        Executor(threads=1, isolation=isolation) as ex,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper,
    ):
        for turn in range(4):
            rows = ex.execute(copied, f"SELECT x, (SELECT count(*) FROM t) FROM t WHERE id = 1 -- {turn}").rows
            assert rows == [(turn, N_ROWS + 1)]
            write_once(keeper)
            await_write(keeper)
        assert keeper.stdin is not None
        keeper.stdin.close()


def test_truncating_a_mapped_index_only_ends_a_worker(logged: Path) -> None:
    command = [sys.executable, "-c", KEEPER, str(logged)]
    with (
        Executor(threads=1) as ex,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper,
    ):
        write_once(keeper)
        await_write(keeper)
        time.sleep(2.1)  # until a connection to so large a file is kept
        assert [ex.execute(logged, f"SELECT count(*) + {i} FROM t").status for i in range(2)] == ["ok", "ok"]
        os.truncate(f"{logged}-shm", 0)
        statuses = {ex.execute(logged, f"SELECT count(*) - {i} FROM t").status for i in range(3)}
        keeper.kill()  # it has the index mapped, too
    assert "crashed" in statuses
    assert statuses <= {"crashed", "ok", "db_error"}


def test_a_query_waits_for_a_lock_until_the_deadline(tmp_path: Path, isolation: str) -> None:
    path = tmp_path / "locked.sqlite"
    make(path, "CREATE TABLE t(x); INSERT INTO t VALUES (1)")
    command = [sys.executable, "-c", LOCKER, str(path)]
    with (
        Executor(threads=1, isolation=isolation) as ex,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker,
    ):
        write_once(locker)
        await_write(locker)
        opener = threading.Timer(1.5, write_once, [locker])
        opener.start()
        assert ex.execute(path, "SELECT x FROM t", limits=Limits(timeout_ms=60_000)).rows == [(1,)]
        opener.join()
        await_write(locker)
        write_once(locker)
        await_write(locker)
        late = ex.execute(path, "SELECT x + 1 FROM t", limits=Limits(timeout_ms=700))
        assert (late.status, late.stopped_by) == ("timeout", "wall")
        endless = ex.execute(path, "SELECT x + 2 FROM t", limits=Limits(timeout_ms=None))
        assert endless.status == "db_error", "without a deadline there is no wait"
        assert endless.error is not None
        assert "locked" in endless.error
        assert locker.stdin is not None
        locker.stdin.close()


@pytest.mark.parametrize(
    ("sql", "is_kept"),
    [
        ("SELECT * FROM v_one", False),
        ("SELECT * FROM v_two", False),
        ("SELECT strftime('%f', 'n' || 'ow')", False),
        ("SELECT julianday(word) FROM t", False),
        ("SELECT date(word, '-1 day') FROM t", False),
        ("SELECT unixepoch()", False),
        ("SELECT timediff('now', day) FROM t", False),
        ("SELECT current_time", False),
        ("SELECT random()", False),
        ("SELECT date(day, '+1 month'), strftime('%Y', day), julianday(day) FROM t", True),
        ("SELECT name FROM t WHERE name = 'now' || '()'", True),
        ("SELECT CASE WHEN day < '2000' THEN date('now') END FROM t", True),
    ],
)
def test_results_that_depend_on_the_clock_are_not_cached(
    tmp_path: Path, isolation: str, sql: str, is_kept: bool
) -> None:
    path = tmp_path / "t.sqlite"
    make(
        path,
        "CREATE TABLE t(day, word, name); INSERT INTO t VALUES ('2024-02-29', 'now', 'now()');"
        "CREATE VIEW v_one AS SELECT julianday('now') AS j FROM t;"
        "CREATE VIEW v_two AS SELECT current_timestamp AS c",
    )
    with Executor(threads=1, isolation=isolation) as ex:
        outcomes = [ex.execute(path, sql) for _ in range(2)]
        assert [outcome.status for outcome in outcomes] == ["ok", "ok"], outcomes[0].error
        assert ex.stats()["cache_hits"] == int(is_kept)
