"""Spider's training databases in three parts, which have none in common."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.data.schema.read import Column, Schema, Table

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gemma_spider", ROOT / "scripts" / "gemma_spider.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_are_the_same_each_time_and_have_nothing_in_common(script: ModuleType) -> None:
    names = [f"db_{i}" for i in range(139)]
    parts = script.deal(names)
    assert {name: len(part) for name, part in parts.items()} == {"grpo": 29, "choose": 10, "sft": 100}
    assert set.union(*parts.values()) == set(names)
    assert script.deal(names[::-1]) == parts


SCHEMA = Schema(
    (
        Table("city", tuple(Column(name, "text") for name in ("City_ID", "City", "Name"))),
        Table("hosting_city", tuple(Column(name, "text") for name in ("Year", "Host_City", "name"))),
    )
)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (
            "SELECT t2.year  FROM city AS t1 JOIN Hosting_City AS t2 ON t1.city_id  =  t2.host_city",
            "SELECT T2.Year FROM city AS T1 JOIN hosting_city AS T2 ON T1.City_ID = T2.Host_City",
        ),
        # A name that is none is a text; a column's name is its own table's.
        ('select count ( * ) from CITY where city = "york"', "SELECT COUNT(*) FROM city WHERE City = 'york'"),
        ('SELECT "city" FROM city', 'SELECT "City" FROM city'),
        (
            "SELECT c.NAME FROM city AS c UNION SELECT h.NAME FROM hosting_city AS h",
            "SELECT c.Name FROM city AS c UNION SELECT h.name FROM hosting_city AS h",
        ),
        ("SELECT FROM WHERE", None),
    ],
)
def test_a_gold_is_taught_in_the_schemas_spelling(script: ModuleType, sql: str, told: str | None) -> None:
    assert script.respelled(sql, SCHEMA) == told


@pytest.mark.data
def test_a_question_is_where_its_database_is(script: ModuleType, real_data: Path, tmp_path: Path) -> None:
    script.split(real_data, tmp_path)
    script.split(real_data, tmp_path)  # again changes nothing
    lines = (real_data / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    database = {one["id"]: one["db_id"] for one in map(json.loads, lines)}
    sft, grpo = ((tmp_path / f"{name}.ids").read_text(encoding="utf-8").split() for name in ("sft", "grpo"))
    taught = (tmp_path / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["sql"] for line in taught] == [json.loads(line)["sql"] for line in lines]
    changed = [one for one in map(json.loads, taught) if one.get("demonstration", one["sql"]) != one["sql"]]
    assert len(changed) > 7_000
    chosen = (tmp_path / "choose" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    choose = [json.loads(line)["id"] for line in chosen]
    assert sorted(sft + grpo + choose) == sorted(database)
    held = [{database[uid] for uid in part} for part in (sft, grpo, choose)]
    assert [len(part) for part in held] == [100, 29, 10]
    assert not (held[0] & held[1] | held[0] & held[2] | held[1] & held[2])
    for name in held[2]:
        assert (tmp_path / "choose" / "databases" / name).is_dir()
