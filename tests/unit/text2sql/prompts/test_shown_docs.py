"""The examples of the pages on prompts and schema forms are equal to the rendered schemas and prompts."""

import importlib.util
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.text2sql.prompts.prompts import Pruning, make_prompts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle, compact_style
from jaxrl_sql.text2sql.schema import RENDERERS, read_schema
from jaxrl_sql.types import Example

PAGES = Path(__file__).parents[4] / "docs" / "explanation"
PAGE = "".join((PAGES / f"{name}.md").read_text(encoding="utf-8") for name in ("schema_forms", "prompts_and_schema"))
QUESTION = "What did groups pay on average at the Plaza Museum?"
GOLD = "SELECT avg(price) FROM visit JOIN museum ON id = museum_id WHERE name = 'Plaza Museum' AND \"group\" = 'yes'"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Example:
    path = tmp_path / "set" / "database" / "museums" / "museums.sqlite"
    (path.parent / "database_description").mkdir(parents=True)
    (path.parent / "database_description" / "museum.csv").write_text(blocks("csv")[0])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(blocks("sql")[0])
    (tmp_path / "set" / "tables.json").write_text(json.dumps([tables_record(path)]))
    return Example("q1", "museums", str(path), QUESTION, GOLD)


def tables_record(path: Path) -> dict[str, Any]:
    """Return the entry of a database in Spider's tables file."""
    tables = read_schema(path).tables
    columns = [(number, column) for number, table in enumerate(tables) for column in table.columns]
    position = {(tables[number].name, column.name): i for i, (number, column) in enumerate(columns, 1)}
    return {
        "db_id": "museums",
        "table_names_original": [table.name for table in tables],
        "column_names_original": [[-1, "*"], *([number, column.name] for number, column in columns)],
        "column_names": [[-1, "*"], *([number, column.name.replace("_", " ")] for number, column in columns)],
        "column_types": ["text", *("text" if column.type == "TEXT" else "number" for _, column in columns)],
        "primary_keys": [[position[table.name, name] for name in table.primary_key] for table in tables],
        "foreign_keys": [
            [position[table.name, key.columns[0]], position[key.table, key.targets[0]]]
            for table in tables
            for key in table.foreign_keys
        ],
    }


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_each_mode_has_an_example(example: Example, name: str) -> None:
    shown = RENDERERS[name](example, read_schema(example.db_path))
    result = re.search(rf"^`{name}`.*?\n\n```\w*\n(.*?)\n```", PAGE, re.DOTALL | re.MULTILINE)
    assert result is not None
    assert shown == result[1]


class Characters:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


def prompt(example: Example, style: PromptStyle, pruning: Pruning | None = None) -> str:
    return make_prompts([example], style, Characters(), 10_000, pruning).prompts[0].text


def test_pruned_prompt(example: Example) -> None:
    assert f"```\n{prompt(example, compact_style(), Pruning(140, 0))}\n```" in PAGE


@pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="the package bm25s is not installed")
def test_values_named_by_a_question(example: Example) -> None:
    style = compact_style(RENDERERS["omnisql"])._replace(retrieve=20)
    line = "    name TEXT, -- example: ['Plaza Museum', 'Glass House'],"
    assert line[:-1] in prompt(example, style)
    assert line[4:-1] in PAGE
    line = "Values in the database: museum.name = 'Plaza Museum'"
    assert f"\n\n{line}\nQ: " in prompt(example, style._replace(in_question=True))
    assert line in PAGE
