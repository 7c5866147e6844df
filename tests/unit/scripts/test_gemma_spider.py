"""Spider's training databases in three disjoint parts, and the spelling of demonstrations."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.text2sql.schema.read import Column, Schema, Table

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gemma_spider", ROOT / "scripts" / "gemma_spider.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_are_reproducible_and_disjoint(script: ModuleType) -> None:
    names = [f"db_{i}" for i in range(139)]
    parts = script.assign_databases(names)
    assert {name: len(part) for name, part in parts.items()} == {"grpo": 29, "choose": 10, "sft": 100}
    assert set.union(*parts.values()) == set(names)
    assert script.assign_databases(names[::-1]) == parts


SCHEMA = Schema(
    (
        Table("city", tuple(Column(name, "text") for name in ("City_ID", "City", "Name"))),
        Table("hosting_city", tuple(Column(name, "text") for name in ("Year", "Host_City", "name"))),
    )
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT t2.year  FROM city AS t1 JOIN Hosting_City AS t2 ON t1.city_id  =  t2.host_city",
            "SELECT T2.Year FROM city AS T1 JOIN hosting_city AS T2 ON T1.City_ID = T2.Host_City",
        ),
        # An unknown quoted name is a string; a column has the spelling of its table.
        ('select count ( * ) from CITY where city = "york"', "SELECT COUNT(*) FROM city WHERE City = 'york'"),
        ('SELECT "city" FROM city', 'SELECT "City" FROM city'),
        (
            "SELECT c.NAME FROM city AS c UNION SELECT h.NAME FROM hosting_city AS h",
            "SELECT c.Name FROM city AS c UNION SELECT h.name FROM hosting_city AS h",
        ),
        ("SELECT FROM WHERE", None),
    ],
)
def test_demonstrations_have_the_spelling_of_the_schema(script: ModuleType, sql: str, expected: str | None) -> None:
    assert script.respell(sql, SCHEMA, "aliases") == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT t2.year  FROM city AS t1 JOIN Hosting_City AS t2 ON t1.city_id  =  t2.host_city",
            "SELECT hosting_city.Year FROM city JOIN hosting_city ON city.City_ID = hosting_city.Host_City",
        ),
        # An unknown quoted name is a string; a column has the spelling of its table.
        ('select count ( * ) from CITY where city = "york"', "SELECT COUNT(*) FROM city WHERE City = 'york'"),
        ('SELECT "city" FROM city', 'SELECT "City" FROM city'),
        (
            "SELECT c.NAME FROM city AS c UNION SELECT h.NAME FROM hosting_city AS h",
            "SELECT Name FROM city UNION SELECT name FROM hosting_city",
        ),
        # A subquery has its own tables; references to outer tables are qualified.
        (
            (
                "SELECT T1.City FROM city AS T1 JOIN hosting_city AS T2 ON T1.City_ID = T2.Host_City "
                "WHERE T2.Year > (SELECT AVG(T1.Year) FROM hosting_city AS T1)"
            ),
            (
                "SELECT city.City FROM city JOIN hosting_city ON city.City_ID = hosting_city.Host_City "
                "WHERE hosting_city.Year > (SELECT AVG(Year) FROM hosting_city)"
            ),
        ),
        (
            (
                "SELECT T1.Name FROM city AS T1 WHERE EXISTS"
                "(SELECT 1 FROM hosting_city AS T2 WHERE T2.Host_City = T1.City_ID)"
            ),
            "SELECT Name FROM city WHERE EXISTS(SELECT 1 FROM hosting_city WHERE Host_City = city.City_ID)",
        ),
        # A self-join needs its aliases.
        (
            "SELECT t1.city FROM city AS t1 JOIN city AS t2 ON t1.city_id = t2.name",
            "SELECT T1.City FROM city AS T1 JOIN city AS T2 ON T1.City_ID = T2.Name",
        ),
        (
            "SELECT x.city FROM (SELECT T1.city FROM city AS T1) AS x JOIN hosting_city AS T2 ON x.city = T2.name",
            "SELECT x.City FROM (SELECT City FROM city) AS x JOIN hosting_city ON x.City = hosting_city.name",
        ),
        ("SELECT FROM WHERE", None),
    ],
)
def test_demonstrations_may_use_table_names_as_qualifiers(script: ModuleType, sql: str, expected: str | None) -> None:
    assert script.respell(sql, SCHEMA, "tables") == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # Both tables have a Name; columns of a join condition are qualified.
        (
            "SELECT t2.year, T1.name FROM city AS t1 JOIN Hosting_City AS t2 ON t1.city_id  =  t2.host_city",
            "SELECT Year, city.Name FROM city JOIN hosting_city ON city.City_ID = hosting_city.Host_City",
        ),
        (
            (
                "SELECT T1.City FROM city AS T1 JOIN hosting_city AS T2 ON T1.City_ID = T2.Host_City "
                "WHERE T2.Year > (SELECT AVG(T1.Year) FROM hosting_city AS T1) GROUP BY T2.name ORDER BY MAX(T2.Year)"
            ),
            (
                "SELECT City FROM city JOIN hosting_city ON city.City_ID = hosting_city.Host_City "
                "WHERE Year > (SELECT AVG(Year) FROM hosting_city) GROUP BY hosting_city.name ORDER BY MAX(Year)"
            ),
        ),
        (
            "SELECT t2.year FROM city AS t1 JOIN Hosting_City AS t2 ON t2.host_city = t1.city_id AND t2.year",
            "SELECT Year FROM city JOIN hosting_city ON city.City_ID = hosting_city.Host_City AND hosting_city.Year",
        ),
        # A column of an outer table is qualified, and so is a column next to a derived table.
        (
            (
                "SELECT T1.Name FROM city AS T1 WHERE EXISTS"
                "(SELECT 1 FROM hosting_city AS T2 WHERE T2.Host_City = T1.City_ID)"
            ),
            "SELECT Name FROM city WHERE EXISTS(SELECT 1 FROM hosting_city WHERE Host_City = city.City_ID)",
        ),
        (
            "SELECT T2.year FROM (SELECT T1.city FROM city AS T1) AS x JOIN hosting_city AS T2 ON x.city = 'a'",
            "SELECT hosting_city.Year FROM (SELECT City FROM city) AS x JOIN hosting_city ON x.City = 'a'",
        ),
        (
            "SELECT t1.city FROM city AS t1 JOIN city AS t2 ON t1.city_id = t2.name",
            "SELECT T1.City FROM city AS T1 JOIN city AS T2 ON T1.City_ID = T2.Name",
        ),
    ],
)
def test_demonstrations_may_qualify_ambiguous_columns_only(script: ModuleType, sql: str, expected: str) -> None:
    assert script.respell(sql, SCHEMA, "columns") == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT t2.year, T1.name FROM city AS t1 JOIN Hosting_City AS t2 ON t2.host_city = t1.city_id",
            "SELECT hosting_city.Year, city.Name FROM city JOIN hosting_city ON city.City_ID = hosting_city.Host_City",
        ),
        ("SELECT count(*), name FROM city GROUP BY name", "SELECT COUNT(*), city.Name FROM city GROUP BY city.Name"),
        # A name that is no column of the query's tables is not qualified, nor is one that two tables have.
        (
            "SELECT year, count(*) AS n FROM hosting_city GROUP BY year ORDER BY n",
            "SELECT hosting_city.Year, COUNT(*) AS n FROM hosting_city GROUP BY hosting_city.Year ORDER BY n",
        ),
        (
            "SELECT city FROM city JOIN hosting_city USING (name) ORDER BY name",
            "SELECT city.City FROM city JOIN hosting_city USING (name) ORDER BY Name",
        ),
        (
            "SELECT name FROM city WHERE city_id NOT IN (SELECT host_city FROM hosting_city WHERE year > city_id)",
            (
                "SELECT city.Name FROM city WHERE NOT city.City_ID IN "
                "(SELECT hosting_city.Host_City FROM hosting_city WHERE hosting_city.Year > City_ID)"
            ),
        ),
        (
            "SELECT t1.city FROM city AS t1 JOIN city AS t2 ON t1.city_id = t2.name",
            "SELECT T1.City FROM city AS T1 JOIN city AS T2 ON T1.City_ID = T2.Name",
        ),
    ],
)
def test_demonstrations_may_qualify_all_columns(script: ModuleType, sql: str, expected: str) -> None:
    assert script.respell(sql, SCHEMA, "full") == expected


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT a FROM t", "one"),
        ("SELECT T1.a FROM t AS T1 JOIN u AS T2 ON T1.i = T2.i WHERE T2.b > (SELECT AVG(b) FROM u)", "join"),
        ("SELECT T1.a FROM t AS T1 JOIN u AS T2 ON T1.i = T2.i JOIN v AS T3 ON T2.j = T3.j", "joins"),
        ("SELECT a FROM t WHERE i NOT IN (SELECT i FROM u)", "subquery"),
        ("WITH counts AS (SELECT COUNT(*) AS n FROM t GROUP BY i) SELECT MAX(n) FROM counts", "with"),
    ],
)
def test_queries_are_classified_by_their_sources(script: ModuleType, sql: str, reads: str) -> None:
    assert script.classify_sources(sql) == reads


@pytest.mark.data
@pytest.mark.nightly
def test_generated_joins_use_the_databases_of_the_sft_phase(
    script: ModuleType, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GENERATED", 30)
    script.split(real_data, tmp_path, "aliases")
    script.add_joins(tmp_path)
    result = [
        json.loads(line) for line in (tmp_path / "mixed_train" / "questions.jsonl").read_text("utf-8").splitlines()
    ]
    ids = (tmp_path / "mixed.ids").read_text("utf-8").split()
    sft = set((tmp_path / "sft.ids").read_text("utf-8").split())
    added = [item for item in result if item["id"].startswith("generated_")]
    assert len(ids) == len(set(ids)) == len(sft) + len(added)
    databases = {entry["db_id"] for entry in result if entry["id"] in sft}
    assert {element["db_id"] for element in added} <= databases
    counts = Counter((question["db_id"], script.classify_sources(question["sql"])) for question in added)
    assert all(count <= script.ADDED[reads] for (_, reads), count in counts.items())
    assert sum(counts[db, "join"] for db in databases) > 300
    assert all((tmp_path / "mixed_train" / "databases" / db / f"{db}.sqlite").is_file() for db in databases)


@pytest.mark.nightly
@pytest.mark.data
def test_questions_are_in_the_part_of_their_database(script: ModuleType, real_data: Path, tmp_path: Path) -> None:
    script.split(real_data, tmp_path, "columns")
    script.split(real_data, tmp_path, "columns")  # a second call changes nothing
    lines = (real_data / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    database = {item["id"]: item["db_id"] for item in map(json.loads, lines)}
    sft, grpo = ((tmp_path / f"{name}.ids").read_text(encoding="utf-8").split() for name in ("sft", "grpo"))
    taught = (tmp_path / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["sql"] for line in taught] == [json.loads(line)["sql"] for line in lines]
    changed = [entry for entry in map(json.loads, taught) if entry.get("demonstration", entry["sql"]) != entry["sql"]]
    assert len(changed) > 7_000
    chosen = (tmp_path / "choose" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    choose = [json.loads(line)["id"] for line in chosen]
    assert sorted(sft + grpo + choose) == sorted(database)
    held = [{database[uid] for uid in part} for part in (sft, grpo, choose)]
    assert [len(part) for part in held] == [100, 29, 10]
    assert not (held[0] & held[1] | held[0] & held[2] | held[1] & held[2])
    joins = (tmp_path / "grpo-joins.ids").read_text(encoding="utf-8").split()
    sql = {element["id"]: element["sql"].lower() for element in map(json.loads, lines)}
    assert {uid for uid in grpo if " join " in sql[uid]} < set(joins) < set(grpo)
    assert joins == [uid for uid in grpo if uid in set(joins)]
    assert sum(" join " not in sql[uid] for uid in joins) == sum(" join " in sql[uid] for uid in joins) // 2 > 100
    for name in held[2]:
        assert (tmp_path / "choose" / "databases" / name).is_dir()
