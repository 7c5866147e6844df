"""The disk cache of a database, keyed by the content of its file."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.text2sql.schema import Values, read_values, values
from jaxrl_sql.text2sql.schema.cache import content_hash, load_or_compute, version_of
from jaxrl_sql.types import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(folder))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE t(a, b, c, d); INSERT INTO t VALUES (1, 1.5, 'x', NULL), (9e999, 2, 'é''\n', x'00');"
        )
    return path


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_values_are_read_from_the_cache_for_any_path_of_a_file(
    folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_values(path)
    assert first["t", "a"] == Values((1, float("inf")), 1, float("inf"))
    (entry,) = files(folder)
    assert entry.relative_to(folder).parts == ("values-3", entry.name[:2], entry.name)
    copy = path.with_name("copy.sqlite")
    shutil.copyfile(path, copy)
    with monkeypatch.context() as context:
        context.setattr(values, "_read", lambda _: pytest.fail("profiled again"))
        assert read_values(copy) == first
    assert [type(value) for result in read_values(copy).values() for value in result.frequent] == [
        type(value) for results in first.values() for value in results.frequent
    ]
    with closing(sqlite3.connect(copy)) as connection:
        connection.executescript("DELETE FROM t WHERE a = 1")
    os.utime(copy, ns=(1, 1))
    assert read_values(copy)["t", "b"] == Values((2,), 2, 2)
    assert len(files(folder)) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[[1]]", b"\xff\x00"])
def test_unreadable_entry_is_computed_again(folder: Path, path: Path, content: bytes) -> None:
    first = read_values(path)
    (entry,) = files(folder)
    good = entry.read_bytes()
    entry.write_bytes(content)
    values._read_version.cache_clear()
    assert read_values(path) == first
    assert files(folder) == [entry]
    assert entry.read_bytes() == good


def test_read_only_cache_folder_costs_only_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(path / "under a file"))
    values._read_version.cache_clear()
    assert read_values(path)["t", "c"].frequent == ("x", "é'")


def test_failed_computation_is_not_cached(folder: Path, path: Path) -> None:
    def fail() -> bytes:
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        load_or_compute("kind", version_of(path), bytes, bytes, fail)
    assert not folder.exists()


def test_write_ahead_log_is_part_of_the_key(path: Path) -> None:
    before = content_hash(version_of(path))
    content_hash.cache_clear()
    assert content_hash(version_of(path)) == before
    content_hash.cache_clear()
    path.with_name(f"{path.name}-wal").write_bytes(b"more")
    assert content_hash(version_of(path)) != before
    known = version_of(path)
    path.unlink()
    path.mkdir()
    content_hash.cache_clear()
    with pytest.raises(InputError, match="cannot be read"):
        content_hash(known)


def test_location_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXRL_SQL_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.delenv("JAXRL_SQL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "jaxrl_sql"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "jaxrl_sql"
