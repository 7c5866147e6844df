"""The command that copies databases: existing and interrupted copies, readers, and refusals."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jaxrl_sql.commands.copy import main
from jaxrl_sql.databases.engines.duckdb import Duckdb
from jaxrl_sql.text2sql.env.address import parse_address
from sqlexec_rs import Executor

SERVERS = ("postgresql", "mariadb")


CopyTarget = Any
"""A server or folder to copy to, `CopyTarget` of conftest.py."""

MakeFile = Callable[..., Path]
"""Makes a SQLite file in a folder by a script, and returns the folder."""

Refusal = Callable[[Sequence[str]], str]
"""Returns the one line with which a command is refused."""


def test_existing_copy_is_not_repeated(
    tmp_path: Path, target: CopyTarget, capsys: pytest.CaptureFixture[str], make_file: MakeFile
) -> None:
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)", {"t": [(1,)]})
    make_file(folder, "two", "CREATE TABLE t (x INT)", {"t": [(2,)]})
    assert main(target.arguments(folder)) == 0
    first = (target.out / "manifest.json").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(target.arguments(folder)) == 0
    assert capsys.readouterr().out.count("already copied") == 2
    assert (target.out / "manifest.json").read_text(encoding="utf-8") == first
    with closing(sqlite3.connect(folder / "two" / "two.sqlite")) as connection:
        connection.execute("INSERT INTO t VALUES (3)")
        connection.commit()
    assert main(target.arguments(folder)) == 0
    assert "one: already copied, 1 table, 1 row\ntwo: copied" in capsys.readouterr().out
    assert sorted(target.fetch("two", "SELECT x FROM t")) == [(2,), (3,)]


KILLED = """
import os, signal, sys
from jaxrl_sql.databases.copy import copying
from jaxrl_sql.commands.copy import main
compare = copying._compare
def kill(file, writer, table, wanted):
    if (file.db_id, table.name) == ("two", "u"):
        os.kill(os.getpid(), signal.SIGKILL)
    compare(file, writer, table, wanted)
copying._compare = kill
main(sys.argv[1:])
"""


def test_killed_copy_resumes(
    tmp_path: Path, target: CopyTarget, capsys: pytest.CaptureFixture[str], make_file: MakeFile
) -> None:
    for db_id in ("one", "two", "zoo"):
        script = "CREATE TABLE t (x INT); CREATE TABLE u (y TEXT)"
        make_file(tmp_path / "in", db_id, script, {"t": [(1,), (2,)], "u": [("a",)]})
    arguments = target.arguments(tmp_path / "in")
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    manifest = json.loads((target.out / "manifest.json").read_text(encoding="utf-8"))
    assert (list(manifest["databases"]), manifest["unfinished"]) == (["one"], [f"{target.prefix}two"])
    assert main(arguments) == 0
    message = capsys.readouterr().out
    assert "one: already copied" in message
    assert "two: copied" in message
    assert "zoo: copied" in message
    assert sorted(target.fetch("two", "SELECT x FROM t")) == [(1,), (2,)]
    manifest = json.loads((target.out / "manifest.json").read_text(encoding="utf-8"))
    assert (sorted(manifest["databases"]), manifest["unfinished"]) == (["one", "two", "zoo"], [])
    files = [file.name for file in (tmp_path / "files").glob("*")]
    assert all(name.endswith(".duckdb") for name in files)


def test_foreign_database_is_not_changed(
    tmp_path: Path, target: CopyTarget, make_file: MakeFile, refusal: Refusal
) -> None:
    folder = make_file(tmp_path / "in", "mine", "CREATE TABLE t (x INT)", {"t": [(1,)]})
    assert main(target.arguments(folder)) == 0
    message = refusal([*target.arguments(folder), "--out", str(tmp_path / "elsewhere")])
    assert f"{target.prefix}mine" in message
    assert "not empty" in message
    assert target.fetch("mine", "SELECT x FROM t") == [(1,)]


@pytest.mark.parametrize("engine", SERVERS)
def test_empty_database_is_used(
    engine: str, tmp_path: Path, make_target: Callable[[str], CopyTarget], make_file: MakeFile
) -> None:
    target = make_target(engine)
    target.run(f"CREATE DATABASE {target.prefix}mine")
    folder = make_file(tmp_path / "in", "mine", "CREATE TABLE t (x TEXT)", {"t": [("b",), ("B",), ("a",)]})
    assert main(target.arguments(folder)) == 0
    assert target.fetch("mine", "SELECT x FROM t ORDER BY x") == [("B",), ("a",), ("b",)]


@pytest.mark.parametrize("engine", SERVERS)
def test_reader_can_only_read(
    engine: str, tmp_path: Path, make_target: Callable[[str], CopyTarget], make_file: MakeFile
) -> None:
    target = make_target(engine)
    folder = make_file(tmp_path / "in", "pub_lic", "CREATE TABLE t (x INT)", {"t": [(1,)]})
    assert main(target.arguments(folder, "--reader", target.reader)) == 0
    url = parse_address(target.reader).url(f"{target.prefix}pub_lic")
    with Executor(threads=1) as executor:  # it refuses a user who can do more than read
        assert executor.execute(url, "SELECT x FROM t").rows == [(1,)]
    assert main(target.arguments(folder, "--prefix", f"{target.prefix}b", "--out", str(tmp_path / "b"))) == 0
    with Executor(threads=1) as executor:
        assert executor.execute(url.replace(target.prefix, f"{target.prefix}b"), "SELECT x FROM t").status == "db_error"
    again = [*target.arguments(folder, "--prefix", f"{target.prefix}b", "--out", str(tmp_path / "b"))]
    assert main([*again, "--reader", target.reader]) == 0  # an existing copy is only granted to the reader
    with Executor(threads=1) as executor:
        assert executor.execute(url.replace(target.prefix, f"{target.prefix}b"), "SELECT x FROM t").rows == [(1,)]
    target.run(f"CREATE DATABASE {target.prefix}pubxlic")
    with Executor(threads=1) as executor:
        other = executor.execute(url.replace("pub_lic", "pubxlic"), "SELECT 1")
    if engine == "mariadb":  # `_` in a GRANT stands for any character
        assert other.status == "db_error"


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"port": 1}, "check the host and the port"),
        ({"host": "no-such-host.invalid"}, "check the host and the port"),
        ({"password": "wr0ng-pass"}, "check the user and the password"),
        ({"user": "nobody1"}, "check the user and the password"),
        ({"database": "nowhere1"}, "check the name"),
    ],
)
def test_unreachable_server_is_reported_without_the_password(
    engine: str,
    change: dict[str, Any],
    text: str,
    tmp_path: Path,
    make_target: Callable[[str], CopyTarget],
    make_file: MakeFile,
    refusal: Refusal,
) -> None:
    target = make_target(engine)
    parts = urlsplit(target.to)
    arguments = {
        "user": parts.username,
        "password": parts.password,
        "host": parts.hostname,
        "port": parts.port,
    } | change
    where = f"{arguments['host']}:{arguments['port']}/{arguments.get('database', '')}"
    url = f"{parts.scheme}://{arguments['user']}:{arguments['password']}@{where}"
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)")
    message = refusal(["--from", str(folder), "--to", url, "--out", str(target.out)])
    assert text in message
    assert str(arguments["host"]) in message
    assert arguments["password"] not in message


@pytest.mark.parametrize(
    ("engine", "old"),
    [("postgresql", "PostgreSQL 13 or later"), ("mariadb", "10.4.9-MariaDB"), ("mariadb", "5.7.1")],
)
def test_old_server_version_is_rejected(
    engine: str,
    old: str,
    tmp_path: Path,
    make_target: Callable[[str], CopyTarget],
    monkeypatch: pytest.MonkeyPatch,
    make_file: MakeFile,
    refusal: Refusal,
) -> None:
    target = make_target(engine)
    if engine == "postgresql":
        monkeypatch.setattr("jaxrl_sql.databases.engines.postgresql._OLDEST", 10**9)
    else:
        monkeypatch.setattr("jaxrl_sql.databases.engines.mysql._VERSION", f"SELECT '{old}'")
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)")
    message = refusal(target.arguments(folder))
    assert "the server is too old" in message
    assert old in message


WITHOUT_DRIVERS = """
import sys
sys.modules.update(dict.fromkeys(["psycopg2", "pymysql", "duckdb"]))
from jaxrl_sql.commands.copy import main
source, out, *places = sys.argv[1:]
print([main(["--from", source, "--to", place, "--out", out]) for place in places])
"""


def test_missing_driver_is_named(tmp_path: Path, make_file: MakeFile) -> None:
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)")
    places = ["postgresql://u:s3cret@127.0.0.1:1/x", "mysql://u:s3cret@127.0.0.1:1/x", f"duckdb:{tmp_path / 'files'}"]
    command = [sys.executable, "-c", WITHOUT_DRIVERS, str(folder), str(tmp_path / "out"), *places]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ})
    assert done.stdout == "[2, 2, 2]\n", done.stderr
    errors = done.stderr.splitlines()
    assert len(errors) == 3
    for error, extra in zip(errors, ("postgresql", "mysql", "duckdb"), strict=True):
        assert f"pip install 'jaxrl-sql[{extra}]'" in error


def test_server_as_source_is_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", "postgresql://u:s3cret@127.0.0.1:1/x", "--to", str(tmp_path / "out"), "--rows", "5"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "127.0.0.1:1" in message
    assert "s3cret" not in message


def test_invalid_input_is_rejected_in_one_line(tmp_path: Path, make_file: MakeFile, refusal: Refusal) -> None:
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)")
    to, out = f"duckdb:{tmp_path / 'files'}", str(tmp_path / "out")

    def refusal_of(*changes: str) -> str:
        return refusal(["--from", str(folder), "--to", to, "--out", out, *changes])

    assert "neither a folder" in refusal_of("--from", str(tmp_path / "absent"))
    assert "no SQLite file" in refusal_of("--from", str(tmp_path / "in" / "one" / ".."), "--from", str(tmp_path))
    assert "a file has no users" in refusal_of("--reader", "somebody")
    assert "no such database" in refusal_of("--only", "two")
    assert "expected TABLE.COLUMN" in refusal_of("--leave-out", "x")
    assert "must not contain /" in refusal_of("--prefix", "../")
    (tmp_path / "in" / "bad.sqlite").write_bytes(b"no database" * 100)
    assert "bad.sqlite: " in refusal_of()
    (tmp_path / "in" / "bad.sqlite").unlink()
    (tmp_path / "in" / "one.db").write_bytes(b"")
    assert "has the same id one" in refusal_of()
    (tmp_path / "in" / "one.db").unlink()
    assert main(["--from", str(folder), "--to", to, "--out", out]) == 0
    assert "its copies are at duckdb:" in refusal_of("--to", f"duckdb:{tmp_path / 'others'}")
    (tmp_path / "out" / "manifest.json").write_text("{}", encoding="utf-8")
    assert "not a manifest" in refusal_of()


def test_file_that_changes_during_the_copy_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_file: MakeFile, refusal: Refusal
) -> None:
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)", {"t": [(1,)]})
    from jaxrl_sql.databases.copy import copying

    compare = copying._compare

    def write(*arguments: Any) -> None:
        with closing(sqlite3.connect(folder / "one" / "one.sqlite", timeout=0)) as connection:
            connection.execute("PRAGMA journal_mode")
            path = folder / "one" / "one.sqlite"
            path.write_bytes(path.read_bytes() + b"\0" * 4096)
        compare(*arguments)

    monkeypatch.setattr(copying, "_compare", write)
    message = refusal(["--from", str(folder), "--to", f"duckdb:{tmp_path / 'd'}", "--out", str(tmp_path / "out")])
    assert "changed during the copy" in message
    assert not list((tmp_path / "d").glob("*.duckdb"))


def test_copied_rows_that_differ_are_an_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    make_file: MakeFile,
) -> None:
    folder = make_file(tmp_path / "in", "one", "CREATE TABLE t (x INT)", {"t": [(1,)]})
    monkeypatch.setattr(Duckdb, "rules", Duckdb.rules._replace(types={"integer": "VARCHAR"}))
    assert main(["--from", str(folder), "--to", f"duckdb:{tmp_path / 'd'}", "--out", str(tmp_path / "out")]) == 1
    assert "one: the table t differs after copying: 1 row of digest" in capsys.readouterr().err
    assert not list((tmp_path / "d").glob("*.duckdb"))
