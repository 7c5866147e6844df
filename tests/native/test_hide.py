"""Hidden columns, as set from Python; `core/tests/suite/hidden.rs` has the full list."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sqlexec_rs import Executor

PROHIBITED = "access to users.email is prohibited: it is hidden"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE users(id INTEGER PRIMARY KEY, name, email); INSERT INTO users VALUES (1, 'Ann', 'ann@secret')"
        )
    return path


def test_a_hidden_column_is_refused_in_predictions_and_golds(database: Path, isolation: str) -> None:
    with Executor(threads=1, isolation=isolation, hide=[("Users", "EMAIL")]) as executor:
        assert executor.hide == [("Users", "EMAIL")]
        for sql in ("SELECT * FROM users", "SELECT name FROM users WHERE email <> ?"):
            outcome = executor.execute(database, sql, ["x"] if "?" in sql else None)
            assert (outcome.status, outcome.error, outcome.rows) == ("forbidden", PROHIBITED, [])
        assert executor.explain(database, "SELECT email FROM users").error == PROHIBITED
        assert executor.execute(database, "SELECT id, name FROM users").rows == [(1, "Ann")]
        score = executor.score(database, "SELECT name FROM users", "SELECT email FROM users")
        assert (score["pred_status"], score["gold_status"], score["bird"]) == ("ok", "forbidden", 0.0)


def test_hidden_columns_and_a_version_can_be_combined(database: Path, isolation: str) -> None:
    newer = "which needs SQLite 3.44, but sqlite_version is 3.40"
    with Executor(threads=1, isolation=isolation, hide=[("users", "email")], sqlite_version="3.40") as executor:
        for _ in range(2):  # no refusal affects the next statement
            for sql, status, error in (
                ("SELECT email FROM users", "forbidden", PROHIBITED),
                ("SELECT id, name FROM users", "ok", None),
                ("SELECT concat(name, '!') FROM users", "schema_error", f"no such function: concat(), {newer}"),
                ("SELECT name FROM users WHERE name LIKE 'A%'", "ok", None),
                ("SELECT email, concat(name, '!') FROM users", "forbidden", PROHIBITED),
                ("SELECT concat(email, '!') FROM users", "schema_error", f"no such function: concat(), {newer}"),
                ("SELECT 1_0, email FROM users", "syntax_error", "an underscore in a number needs SQLite 3.46"),
                ('SELECT date(email, "floor") FROM users', "forbidden", PROHIBITED),
                ("SELECT date('2024-01-31', \"floor\") FROM users", "syntax_error", "floor needs SQLite 3.46"),
                ("SELECT missing FROM users", "schema_error", "no such column: missing"),
                ("SELECT iif(id = 1, name, '') FROM users", "ok", None),
            ):
                outcome = executor.execute(database, sql)
                assert (outcome.status, (outcome.error or "").startswith(error or "")) == (status, True), sql
                assert outcome.rows == [] or error is None, sql
        assert executor.execute(database, "SELECT id, name FROM users").rows == [(1, "Ann")]


def test_none_hides_a_whole_table(database: Path) -> None:
    with Executor(threads=1, hide=[("users", None)]) as executor:
        assert executor.execute(database, "SELECT count(*) FROM users").status == "forbidden"


def test_hidden_columns_are_refused_on_other_engines(database: Path) -> None:
    with Executor(threads=1, hide=[("users", "email")]) as executor:
        for url in ("postgresql://u@127.0.0.1:1/d", "mysql://u@127.0.0.1:1/d", f"duckdb:{database}"):
            with pytest.raises(ValueError, match=r"cannot hide columns: .*GRANT SELECT"):
                executor.execute(url, "SELECT 1")


@pytest.mark.parametrize("hide", [["users.email"], [("users",)], [("a\0", "b")], "ab", [("users", 1)]])
def test_invalid_hide_values_are_refused(hide: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Executor(threads=1, hide=hide)  # type: ignore[arg-type]
