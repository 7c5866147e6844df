"""Ways of opening files, as set from Python; `core/tests/suite/access.rs` has the full list."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from sqlexec_rs import Executor

N_DATABASES = 30


@pytest.fixture
def databases(tmp_path: Path) -> list[Path]:
    return make_databases(tmp_path)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return databases without writers: a recently written file is checked, and thus open."""
    paths = make_databases(tmp_path_factory.mktemp("settled"))
    time.sleep(2.1)
    return paths


def make_databases(folder: Path) -> list[Path]:
    paths = [folder / f"{i}.sqlite" for i in range(N_DATABASES)]
    for i, path in enumerate(paths):
        write(path, f"CREATE TABLE t(x); INSERT INTO t VALUES ({i})")
    return paths


def write(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA synchronous = OFF; {script}")
    connection.close()


def open_paths(folder: Path) -> list[Path]:
    """Return the files of a folder that this process has open."""
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if link.parent == folder]


def numbers(ex: Executor, paths: list[Path]) -> list[int]:
    return [outcome.rows[0][0] for outcome in ex.execute_many([(path, "SELECT x FROM t") for path in paths])]


@pytest.mark.parametrize(
    ("immutable", "copy_up_to_bytes"), [(False, 0), (True, 0), (False, 1 << 20), (True, 1 << 20), (False, 1 << 62)]
)
def test_answers_are_equal_for_each_way_of_opening_files(
    settled: list[Path], isolation: str, immutable: bool, copy_up_to_bytes: int
) -> None:
    with Executor(
        threads=2, isolation=isolation, immutable=immutable, copy_up_to_bytes=copy_up_to_bytes, cache_bytes=0
    ) as ex:
        for _ in range(2):
            assert numbers(ex, settled) == list(range(N_DATABASES))
        stats = ex.stats()
        assert (stats["copied_bytes"] > 0) == (stats["databases_copied"] > 0) == (copy_up_to_bytes > 0)
        assert stats["connections_open"] >= N_DATABASES
        if isolation == "thread" and Path("/proc/self/fd").exists():
            assert bool(open_paths(settled[0].parent)) == (copy_up_to_bytes == 0), "a copy keeps no file open"
    assert ex.stats()["copied_bytes"] == 0


def test_an_in_memory_copy_follows_its_file(databases: list[Path], isolation: str) -> None:
    size = databases[0].stat().st_size
    with Executor(threads=1, isolation=isolation, copy_up_to_bytes=size, copies_bytes=5 * size, cache_bytes=0) as ex:
        assert numbers(ex, databases) == list(range(N_DATABASES))
        assert ex.stats()["copied_bytes"] == 5 * size
        write(databases[-1], "UPDATE t SET x = 1000")
        shutil.copyfile(databases[3], databases[-2])
        assert numbers(ex, databases[-2:]) == [3, 1000]
        assert ex.execute(databases[-1], "DELETE FROM t").status == "forbidden"


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(OverflowError):
        Executor(copy_up_to_bytes=-1)
    with pytest.raises(OverflowError):
        Executor(copies_bytes=1 << 64)


def test_cell_size_check_refuses_a_page_with_any_invalid_cell(tmp_path: Path, isolation: str) -> None:
    """The third of three cells of a table's page begins after the page's end, undetected without the check."""
    path = tmp_path / "malformed.sqlite"
    write(path, "CREATE TABLE t(x); INSERT INTO t VALUES ('a'), ('b'), ('c')")
    content = bytearray(path.read_bytes())
    page_size = int.from_bytes(content[16:18], "big")
    third_pointer = page_size + 8 + 2 * 2
    content[third_pointer : third_pointer + 2] = (page_size - 2).to_bytes(2, "big")
    path.write_bytes(content)
    first, third = "SELECT x FROM t WHERE rowid = 1", "SELECT x FROM t WHERE rowid = 3"
    for checks, expected in [(False, [("ok", 1), ("ok", 0)]), (True, [("db_error", 0), ("db_error", 0)])]:
        with Executor(threads=1, isolation=isolation, cell_size_check=checks) as ex:
            outcomes = ex.execute_many([(path, first), (path, third)])
            assert [(outcome.status, outcome.row_count) for outcome in outcomes] == expected
            assert all("malformed" in (outcome.error or "") for outcome in outcomes) == checks
