"""Opening a user's SQLite file reads all committed rows, with any file next to it, and changes nothing."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from jaxrl_sql.databases.copy.source import find_files
from jaxrl_sql.databases.copy_database import copy_database
from jaxrl_sql.databases.engines.sqlite import open_source
from jaxrl_sql.datagen.augment.distractor_tables import Donor, add_tables
from jaxrl_sql.text2sql.schema import link, read_schema, read_values
from jaxrl_sql.text2sql.schema.retrieve import read_texts
from jaxrl_sql.text2sql.schema.sqlite_file import open_read_only, read_file, readable
from jaxrl_sql.types import Example, InputError

SHOP = "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT); INSERT INTO item VALUES (1, 'nail'), (2, 'saw');"
LATE = "CREATE TABLE late(word TEXT); INSERT INTO late VALUES ('new');"
State = dict[str, tuple[bytes, int]]


def state(folder: Path) -> State:
    """Return the content and the time of each file."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def write(path: Path, script: str, mode: str = "wal") -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.executescript(script)
    connection.commit()
    return connection


@contextmanager
def open_elsewhere(path: Path) -> Iterator[None]:
    """Keep a database open in another process, with its last commit in the log: a process shares its index."""
    code = f"""
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.executescript({LATE!r})
print("open", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield
        process.communicate()


STATES = ("resting", "left by a reader", "open", "left by a crash", "without an index", "rollback")


@pytest.fixture(params=STATES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a database of two tables in a folder with only its log; `late` may be only in the log."""
    path = tmp_path / "written" / "shop ?#%.sqlite"
    path.parent.mkdir()
    write(path, SHOP, "delete" if request.param == "rollback" else "wal").close()
    if request.param == "open":
        with open_elsewhere(path):
            yield path
        return
    with closing(write(path, LATE)) as writer:
        files = [path]
        match request.param:
            case "left by a crash":
                files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm")]
            case "without an index":
                files = [path.with_name(path.name + end) for end in ("", "-wal")]
            case "rollback":
                writer.execute("PRAGMA journal_mode = delete")
            case _:
                writer.close()
        there = tmp_path / "there"
        there.mkdir()
        for file in files:
            shutil.copy(file, there)
        if request.param == "left by a reader":
            with closing(sqlite3.connect(f"{(there / path.name).as_uri()}?mode=ro", uri=True)) as reader:
                reader.execute("SELECT 1 FROM item").fetchall()
            assert len(list(there.iterdir())) == 3, "SQLite itself leaves a log and an index"
        yield there / path.name


def tables_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]


def frequent_values(path: Path, _: Path) -> object:
    return {name: values.frequent for (_, name), values in read_values(path).items() if name == "word"}


def copied_tables(path: Path, out: Path) -> object:
    copy_database(path, out / "copy.sqlite")
    return tables_of(out / "copy.sqlite")


def source_rows(path: Path, _: Path) -> object:
    (file,) = find_files(path)
    with open_source(file) as source:
        return [[row for rows in source.rows(table) for row in rows] for table in source.schema().tables]


def donated_tables(path: Path, out: Path) -> object:
    with closing(sqlite3.connect(out / "own.sqlite", uri=True)) as connection:
        schema = read_schema(path)
        changes = add_tables(connection, "own", schema, [Donor("shop", str(path))], 4, 9, random.Random(1))
        return sorted(change.details["table"] for change in changes)


def linked_tables(path: Path, _: Path) -> object:
    return sorted(
        table.name for table in link(Example("", "shop", str(path), "?", ""), read_schema(path), lambda _: True).tables
    )


def late_rows(path: Path, _: Path) -> object:
    with closing(open_read_only(path)) as connection:
        return connection.execute("SELECT word FROM late").fetchall()


READERS: dict[str, tuple[Callable[[Path, Path], object], object]] = {
    "read_schema": (lambda path, _: [table.name for table in read_schema(path).tables], ["item", "late"]),
    "read_values": (frequent_values, {"word": ("new",)}),
    "read_texts": (lambda path, _: read_texts(str(path))[1], [["nail", "saw"], ["new"]]),
    "link": (linked_tables, ["item", "late"]),
    "copy_database": (copied_tables, ["item", "late"]),
    "open_source": (source_rows, [[(1, "nail"), (2, "saw")], [("new",)]]),
    "add_tables": (donated_tables, ["item", "late"]),
    "open_read_only": (late_rows, [("new",)]),
}


@pytest.mark.parametrize("reader", READERS)
def test_committed_rows_are_read_and_no_file_changes(reader: str, shop: Path, tmp_path: Path) -> None:
    read, expected = READERS[reader]
    before = state(shop.parent)
    out = tmp_path / "out"
    out.mkdir()
    assert read(shop, out) == expected
    assert state(shop.parent) == before


def test_owner_writes_and_removes_the_log_after_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    write(path, SHOP).close()
    with closing(open_read_only(path)) as reader:
        assert reader.execute("SELECT count(*) FROM item").fetchone() == (2,)
        with closing(write(path, LATE)):
            assert [table.name for table in read_schema(path).tables] == ["item", "late"], "the log was not read"
    assert [file.name for file in tmp_path.iterdir()] == ["shop.sqlite"]


def test_schema_is_read_again_if_only_the_log_changed(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    with closing(write(path, SHOP)) as writer:
        assert [table.name for table in read_schema(path).tables] == ["item"]
        before = path.stat()
        writer.executescript(LATE)
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert [table.name for table in read_schema(path).tables] == ["item", "late"]


def test_file_that_changes_during_a_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    write(path, SHOP).close()
    results: list[int] = []

    def count(connection: sqlite3.Connection) -> int:
        results.append(connection.execute("SELECT count(*) FROM item").fetchone()[0])
        if len(results) < 3:
            write(path, f"INSERT INTO item(name) VALUES ('more {len(results)}')").close()
        return results[-1]

    assert read_file(path, count) == 4
    assert results == [2, 3, 4]


def test_constantly_written_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    write(path, SHOP).close()

    def disturb(_: sqlite3.Connection) -> None:
        write(path, "INSERT INTO item(name) VALUES ('more')").close()

    with pytest.raises(InputError, match=r"shop\.sqlite: changed during each attempt to read it"):
        read_file(path, disturb)


def test_errors_of_an_unchanged_file_are_raised(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    write(path, SHOP).close()
    with pytest.raises(sqlite3.OperationalError, match="no such table: gone"):
        read_file(path, lambda connection: connection.execute("SELECT * FROM gone"))


def test_failed_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.sqlite"
    with closing(write(path, SHOP)):
        shutil.copy(path, tmp_path / "copy.sqlite")
        shutil.copy(f"{path}-wal", tmp_path / "copy.sqlite-wal")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"copy\.sqlite-wal.* No such file.*: set TMPDIR to a folder with room"):
        open_read_only(tmp_path / "copy.sqlite")


def test_unreadable_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "copy.sqlite"
    with closing(write(tmp_path / "shop.sqlite", SHOP)):
        shutil.copy(tmp_path / "shop.sqlite", path)
    Path(f"{path}-wal").mkdir()  # tests may run as root, who can read any file
    with pytest.raises(InputError, match=r"copy\.sqlite-wal'\).*: give the reader access to .*copy\.sqlite-wal$"):
        open_read_only(path)


def test_connection_works_after_its_copy_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    with closing(write(path, SHOP + LATE)):
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", tmp_path / f"copy.sqlite{end}")
    with readable(tmp_path / "copy.sqlite") as uri:
        copy = Path(sqlite3.connect(uri, uri=True).execute("PRAGMA database_list").fetchone()[2])
        assert copy.parent != tmp_path
    assert not copy.parent.exists()
    with closing(open_read_only(tmp_path / "copy.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM item").fetchone() == (2,)
        assert connection.execute("SELECT word FROM late").fetchall() == [("new",)]
