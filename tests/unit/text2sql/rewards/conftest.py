"""Fixtures of a small database, an executor, and the scoring of a response: from text to reward, without mocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.rewards.score import ScoredResponse
from jaxrl_sql.types import Example, Response

SCRIPT = """
CREATE TABLE emp(id INTEGER PRIMARY KEY, name TEXT, pay REAL, dept INT);
INSERT INTO emp VALUES (1, 'Ada', 10.0, 1), (2, 'Bo', 20.5, 1), (3, 'Cy', NULL, 2), (4, 'Bo', 7.0, NULL);
CREATE TABLE hits(n INT);
"""

Score = Callable[..., ScoredResponse]


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    with make_executor(ExecutorConfig(threads=2, vm_steps=200_000, max_rows=1000)) as executor:
        yield executor


@pytest.fixture(scope="session")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rewards") / "emp.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
        connection.executemany("INSERT INTO hits VALUES (?)", [(n,) for n in range(100)])
        connection.commit()
    return str(path)


@pytest.fixture(scope="session")
def score(executor: Executor, db: str) -> Score:
    """Return a function (recipe, gold, response) -> scored answer, with the recipe's own prompt style."""

    def run(
        name: str, gold: str | tuple[str, ...], response: Response, opening_tag: str = "", dialect: str = "sqlite"
    ) -> ScoredResponse:
        first, *others = (gold,) if isinstance(gold, str) else gold
        example = Example("q", "emp", db, "?", first, dialect=dialect, other_golds=tuple(others))
        recipe = RECIPES[name]
        (scored,) = recipe.collect(recipe.submit(executor, [example], [response], recipe.style("chat"), opening_tag))
        assert recipe.score(executor, [example], [response], opening_tag) == [scored.reward]
        return scored

    return run
