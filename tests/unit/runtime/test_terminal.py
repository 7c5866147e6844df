"""Data printed to a terminal is plain text: it moves no cursor, sets no color and reverses no line."""

from __future__ import annotations

import ast
import io
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.ask import answer_interactively, show
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.inference.ask import Reply
from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.runtime.tables import show_counts, show_table
from jaxrl_sql.runtime.terminal import print_text, printable
from jaxrl_sql.types import InputError

PACKAGES = [Path(__file__).parents[3] / name for name in ("jaxrl_sql", "sqlexec_rs/python/sqlexec_rs")]
EVIL = "\x1b[31mEVIL\x1b[0m\r\x9b2J\u202e\u2028\ud800"
SHOWN = r"\x1b[31mEVIL\x1b[0m\r\x9b2J\u202e\u2028\ud800"
# Modules that write file content, or lines without data, to standard output.
WRITES = {
    "jaxrl_sql/__main__.py", "jaxrl_sql/commands/launch.py", "jaxrl_sql/commands/running.py",
    "jaxrl_sql/commands/view.py", "jaxrl_sql/parallel/watch.py",
    "sqlexec_rs/python/sqlexec_rs/bench.py", "sqlexec_rs/python/sqlexec_rs/cli.py",
    "sqlexec_rs/python/sqlexec_rs/running.py", "sqlexec_rs/python/sqlexec_rs/scoring.py",
    "sqlexec_rs/python/sqlexec_rs/servers/__main__.py",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (EVIL, SHOWN),
        ("a\tb\nc é 東京 👩\u200d🔧 עברית", "a\tb\nc é 東京 👩\u200d🔧 עברית"),
        ("\x00\x7f", r"\x00\x7f"),
        ("a\r\nb", "a\r\nb"),
        ("", ""),
    ],
)
def test_control_characters_are_escaped_and_other_text_is_unchanged(text: str, shown: str) -> None:
    assert printable(text) == shown
    stream = io.StringIO()
    print_text(text, stream)
    assert stream.getvalue() == f"{shown}\n"


class Terminal(io.StringIO):
    """An in-memory stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_ask_escapes_its_sql_on_a_terminal_only() -> None:
    sql = "SELECT '\u200fשלום'\r\n, '\x1b[31m'"
    streams = io.StringIO(), Terminal()
    for stream in streams:
        show(Reply(sql, None, "", (), 1, ()), False, stream)
    assert [stream.getvalue().rstrip("\n") for stream in streams] == [sql, printable(sql)]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_tables_escape_titles_columns_and_cells(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    show_table(stream, EVIL, (EVIL, "n"), [(EVIL, EVIL)])
    show_counts(stream, {EVIL: 1})
    assert stream.getvalue().count(SHOWN) == 5
    assert "\x1b[31m" not in stream.getvalue()


@pytest.mark.parametrize("mode", ["plain", "rich"])
def test_displays_escape_titles_notes_and_tasks(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with make_display(mode, 3, f"{EVIL} [red]", stream, beat_s=0) as display:
        with display.task(EVIL, 5, EVIL):
            display.note(EVIL)
        display.update(1, {f"eval/{EVIL}/accuracy": 0.5, "eval/b/accuracy": 0.5, "phase": EVIL})
    assert f"{SHOWN} [red]" in stream.getvalue()
    assert stream.getvalue().count(SHOWN) >= 4
    assert "\x1b[31mEVIL" not in stream.getvalue()


def test_errors_of_commands_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise InputError(EVIL)

    questions = iter(["q", ""])
    assert report_errors(fail) == 2
    assert answer_interactively(fail, False, lambda: next(questions)) == 0  # type: ignore[arg-type] # it returns nothing
    with pytest.raises(SystemExit):
        Parser().error(EVIL)
    assert capsys.readouterr().err.count(SHOWN) == 3


def test_synth_escapes_table_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(tmp_path / "d.sqlite")) as connection:
        connection.execute(f'CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, "b{EVIL[:14]}" BLOB)')
        connection.executemany("INSERT INTO item VALUES (?, ?, x'00')", [(i, f"n{i}") for i in range(9)])
        connection.commit()
    assert synth(["--db", str(tmp_path / "d.sqlite"), "--out", str(tmp_path / "out"), "--n", "3"]) == 0
    out = capsys.readouterr().out
    assert r"b\x1b[31mEVIL" in out
    assert "\x1b" not in out


def writes(path: Path) -> Iterator[int]:
    """Yield the line numbers of a file's writes to standard output or standard error."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"\b(print|write)\b", text):  # parsing all files takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name("print") | ast.Attribute(attr="write") as called):
                if ast.unparse(called) in ("print", "sys.stdout.write", "sys.stderr.write"):
                    yield node.lineno


def test_commands_print_only_with_escaping_functions() -> None:
    root = PACKAGES[0].parent
    writing = {
        str(path.relative_to(root)) for package in PACKAGES for path in package.rglob("*.py") if any(writes(path))
    }
    assert writing == WRITES
