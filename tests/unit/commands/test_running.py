"""Exit codes of commands, and one-line errors."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.text2sql.env.executor import Executor


def write_text() -> None:
    """Write to a full disk."""
    Path("/dev/full").write_text("questions", encoding="utf-8")


def write_rows() -> None:
    """Write rows to a database that cannot grow."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t(x)")
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (write_text, "error: a file cannot be written: No space left on device\n"),
        (write_rows, "error: a database cannot be written: database or disk is full\n"),
    ],
)
def test_full_disk_is_reported_in_one_line(
    work: Callable[[], None], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_errors(work) == 1
    assert capsys.readouterr().err == error


def raise_type_error() -> None:
    """Raise an internal error."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("SELECT lost")


def test_internal_error_is_raised() -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        report_errors(raise_type_error)


def test_unusable_platform_of_jax_is_reported_with_those_that_work() -> None:
    program = (
        "import sys, jax\n"
        "from jaxrl_sql.commands.running import report_errors\n"
        "sys.exit(report_errors(lambda: jax.numpy.zeros(2) and 0))"
    )
    there = os.environ | {"JAX_PLATFORMS": "abacus"}
    done = subprocess.run([sys.executable, "-c", program], env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: JAX_PLATFORMS=abacus: Unable to initialize backend 'abacus'")
    assert "; found here: " in done.stderr
    assert done.stderr.count("\n") == 1


def use_closed_executor() -> None:
    """Run a query on a closed executor."""
    executor = Executor()
    executor.close()
    executor.execute("one.sqlite", "SELECT 1")


def test_closed_executor_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_errors(use_closed_executor) == 1
    assert capsys.readouterr().err.count("\n") == 1


def interrupt() -> None:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_prints_one_line_and_returns_the_usual_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert report_errors(interrupt) == 130
    assert capfd.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3)])
def test_exit_code_is_the_commands_result(result: int | None, code: int) -> None:
    assert report_errors(lambda: result) == code
