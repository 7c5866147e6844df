"""Texts with a lone surrogate, which is not a character: no engine runs them as another text."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sqlexec_rs import Executor
from sqlexec_rs.servers import Server

HALVES = ["\ud800", "\udbff", "\udc00", "\udfff", "\udc80"]
WHY = "the text holds half a surrogate pair, which is not a character, at character 9"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(x TEXT); INSERT INTO t VALUES (char(65533))")
    return path


def check_refused(ex: Executor, database: str | Path, half: str) -> None:
    sql, gold = f"SELECT '{half}'", "SELECT '\ufffd'"
    for out in (ex.execute(database, sql), ex.explain(database, sql), ex.execute_many([(database, sql)])[0]):
        assert (out.status, out.error) == ("syntax_error", WHY)
    score = ex.score(database, sql, gold)
    assert (score["pred_status"], score["gold_status"], score["bird"]) == ("syntax_error", "ok", 0.0)
    for golds in (sql, [sql]):
        score = ex.score(database, gold, golds)
        assert (score["pred_status"], score["gold_status"], score["bird"]) == ("ok", "syntax_error", 0.0)
    scores = ex.score_many([database], [sql], [gold])
    assert scores["bird"].tolist() == [0.0]


@pytest.mark.parametrize("half", HALVES)
def test_a_lone_surrogate_is_refused(executor: Executor, shop: Path, half: str) -> None:
    check_refused(executor, shop, half)
    assert executor.execute(shop, "SELECT '\U0001f600'").rows == [("\U0001f600",)], "a complete pair is a character"


def test_a_lone_surrogate_is_refused_by_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "shop.duckdb"
    duckdb.connect(str(path)).close()
    with Executor(threads=1, isolation="process") as ex:
        check_refused(ex, f"duckdb:{path}", HALVES[0])


@pytest.mark.parametrize("engine", ["postgresql", "mariadb"])
def test_a_lone_surrogate_is_refused_by_servers(server_database: Callable[[str, str], Server], engine: str) -> None:
    with Executor(threads=1) as ex:
        check_refused(ex, server_database(engine, "SELECT 1;").reader, HALVES[0])


@pytest.mark.parametrize("name", ["shop\ud800.sqlite", "postgresql://h/d\ud800", "duckdb:\udfff"])
def test_a_name_with_a_lone_surrogate_is_refused(executor: Executor, name: str) -> None:
    for call in (
        lambda: executor.execute(name, "SELECT 1"),
        lambda: executor.score(name, "SELECT 1", "SELECT 1"),
        lambda: executor.score([name], "SELECT 1", "SELECT 1"),
    ):
        with pytest.raises(ValueError, match="the name of a database holds half a surrogate pair"):
            call()


def test_values_and_tables_with_a_lone_surrogate_are_refused(executor: Executor, shop: Path) -> None:
    for parameters in (("\ud800",), {"x": "\ud800"}, {"\ud800": 1}):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            executor.execute(shop, "SELECT :x", parameters)
    for gold in ((["x"], [("\ud800",)]), (["\ud800"], [("a",)])):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            executor.score(shop, "SELECT 1", gold)
