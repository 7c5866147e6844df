"""The documented example of a user's recipe matches its text."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.executor import Executor, Limits
from jaxrl_sql.text2sql.recipes import Recipe
from jaxrl_sql.text2sql.schema import read_schema
from jaxrl_sql.types import Example

FILE = Path(__file__).parents[4] / "docs" / "own_recipe.py"


@pytest.fixture(scope="module")
def documented_recipe() -> Recipe:
    spec = importlib.util.spec_from_file_location("own_recipe", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipe = module.MINE
    assert isinstance(recipe, Recipe)
    return recipe


def test_documented_recipe_parses_its_demonstrations_and_pays_as_documented(
    documented_recipe: Recipe, tmp_path: Path
) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    example = Example("q", "d", str(path), "?", "SELECT a FROM t", reasoning="All of them.")
    paid = {
        str(documented_recipe.respond(example, None)): 1.0,
        "Hm.\nSQL: SELECT a, b FROM t": 0.8 * (0.5 + 1 + 1) / 3,
        "Hm.\nSQL: SELECT lost FROM t": 0.0,
        "Hm.\nSQL: SELECT a FROM t\nSQL: SELECT a FROM t": 0.0,
        "SELECT a FROM t": 0.0,
    }
    with Executor(threads=1, limits=Limits(vm_steps=100_000)) as executor:
        rewards = documented_recipe.score(executor, [example] * len(paid), list(paid))
        assert [reward.total for reward in rewards] == pytest.approx(list(paid.values()))
        assert rewards[1].parts == {"correct": 0.0, "partial": pytest.approx(2.5 / 3), "format": 1.0}
        style = documented_recipe.style("tagged")
        assert style.parts(example, read_schema(path), "")[1].endswith("\nThink, then SQL:\n")
        answer = style.answer(example)
        assert answer == "All of them.\nSQL: SELECT a FROM t"
        (scored,) = documented_recipe.collect(documented_recipe.submit(executor, [example], [answer], style))
        assert scored.reward.total == 1.0


def test_documented_recipe_has_the_documented_length() -> None:
    code = FILE.read_text(encoding="utf-8").partition("def respond")[2].partition("if __name__")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
