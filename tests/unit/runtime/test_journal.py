"""Journals of work in progress: resumption, incomplete lines, changed settings and concurrent workers."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxrl_sql.runtime.folder import RunFolderError
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.types import InputError

SETTINGS = {"model": "a", "samples": 4, "stop": ("x",)}


def test_journal_drops_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "new/work.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.add({"id": "1", "text": "ä\u2028"})
        journal.add({"id": "2"})
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"id": "3", "te', encoding="utf-8")
    with Journal(path, SETTINGS) as journal:
        assert journal.records == [{"id": "1", "text": "ä\u2028"}, {"id": "2"}]
        journal.add({"id": "3"})
    assert path.read_text(encoding="utf-8") == whole + '{"id": "3", "crc": "c05f7aaf"}\n'


def test_empty_journal_accepts_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    Journal(path, SETTINGS).__exit__(None, None, None)
    with Journal(path, {**SETTINGS, "model": "b"}) as journal:
        journal.add({"id": "1"})
    with pytest.raises(InputError, match="started with model='b', not 'a'"):
        Journal(path, SETTINGS)


def test_journal_with_other_settings_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.add({"id": "1"})
    before = path.read_bytes()
    with pytest.raises(InputError, match="started with samples=4, not 5"):
        Journal(path, {**SETTINGS, "samples": 5})
    with pytest.raises(InputError, match="started with stop="):
        Journal(path, {"model": "a", "samples": 4})
    assert path.read_bytes() == before
    path.write_text('{"id": "1"}\n')
    with pytest.raises(InputError, match="not this work's file"):
        Journal(path, SETTINGS)


def test_message_of_other_settings_names_the_different_keys_and_the_option(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, {"sets": {"dev": "01", "unseen": "02"}}) as journal:
        journal.add({"id": "1"})
    message = r"started with other sets \(different: own_dev, unseen\): choose another --out, or delete the file"
    with pytest.raises(InputError, match=message):
        Journal(path, {"sets": {"dev": "01", "own_dev": "02"}}, option="--out")


def test_last_line_without_a_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.add({"id": "1"})
    whole = path.read_bytes()
    path.write_bytes(whole.rstrip())
    with Journal(path, SETTINGS) as journal:
        journal.add({"id": "2"})
    assert path.read_bytes() == whole + b'{"id": "2", "crc": "c19d1098"}\n'


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("place", [3, 0.5, -3])
def test_line_with_a_flipped_bit_is_rejected(number: int, place: float, tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, SETTINGS) as journal:
        for name in "abc":
            journal.add({"id": name, "score": 0.5, "text": "ä"})
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = bytearray(lines[number - 1])
    damaged[place if isinstance(place, int) else len(damaged) // 2] ^= 1
    path.write_bytes(b"".join([*lines[: number - 1], damaged, *lines[number:]]))
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"work\.jsonl: line {number} is damaged: restore the file from a copy, or"):
        Journal(path, SETTINGS)
    assert path.read_bytes() == before
    if number > 1:  # as the message suggests
        path.write_bytes(b"".join([*lines[: number - 1], *lines[number:]]))
        with Journal(path, SETTINGS) as journal:
            assert [record["id"] for record in journal.records] == [name for name in "abc" if name != "abc"[number - 2]]


def test_line_after_a_truncated_line_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, {}) as journal:
        with limited_file_size(60), pytest.raises(RunFolderError):
            journal.add({"id": "x" * 100})
        journal.add({"id": "2"})
    with Journal(path, {}) as journal:
        assert journal.records == [{"id": "2"}]


def test_second_worker_is_rejected_without_data_loss(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.add({"id": "1"})
        with pytest.raises(InputError, match=r"work.jsonl: another process is using it"):
            Journal(path, SETTINGS)
        journal.add({"id": "2"})
    with Journal(path, SETTINGS) as journal:
        assert journal.records == [{"id": "1"}, {"id": "2"}]


def test_killed_worker_releases_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    script = (
        "import time; from jaxrl_sql.runtime.journal import Journal\n"
        f"journal = Journal({str(path)!r}, {{}}); journal.add({{'id': '1'}})\n"
        "print('at work', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"at work\n"
        with pytest.raises(InputError, match="another process"):
            Journal(path, {})
        other.send_signal(signal.SIGKILL)
        other.wait()
    with Journal(path, {}) as journal:
        assert journal.records == [{"id": "1"}]


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of files, like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_is_an_error_of_one_line_and_the_journal_resumes(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    message = r"work\.jsonl cannot be written: File too large; repeat the command to resume"
    with limited_file_size(100):
        with Journal(path, {}) as journal:
            journal.add({"id": "1"})
            with pytest.raises(RunFolderError, match=message):
                journal.add({"id": "x" * 100})
        with pytest.raises(RunFolderError, match=message):
            Journal(tmp_path / "other/work.jsonl", {"long": "x" * 100})
    with Journal(path, {}) as journal:
        assert journal.records == [{"id": "1"}]


def test_lone_surrogate_is_stored_as_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with Journal(path, {}) as journal:
        journal.add({"text": "\ud83d!"})
    with Journal(path, {}) as journal:
        assert journal.records == [{"text": "?!"}]
