"""A small database and an executor for the tests of evaluation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.executor import Executor, Limits

ROWS = "(1, 'x', 5), (2, 'y', 5), (3, 'y', 4), (4, NULL, 2)"


def make_database(path: Path, rows: str = ROWS) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"CREATE TABLE t(a INT, b TEXT, c REAL); INSERT INTO t VALUES {rows};")
    return str(path)


@pytest.fixture
def db(tmp_path: Path) -> str:
    """Return a database with one table, t(a, b, c) of four rows."""
    return make_database(tmp_path / "t.sqlite")


@pytest.fixture
def variant(tmp_path: Path) -> str:
    """Return a database of the same schema, with other rows."""
    return make_database(tmp_path / "variant.sqlite", "(1, 'z', 1), (2, 'z', 2)")


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """Return an executor of two threads."""
    with Executor(threads=2, limits=Limits(timeout_ms=5_000)) as executor:
        yield executor
