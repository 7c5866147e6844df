"""SQLite's queries for other engines: the translated text, and equal rows of DuckDB and SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import duckdb
import pytest

from jaxrl_sql.text2sql.env.dialect import SQLGLOT
from jaxrl_sql.text2sql.env.scopes import EngineColumn, EngineTable
from jaxrl_sql.text2sql.env.to_engine import to_engine
from jaxrl_sql.types import InputError

SCHEMA = {
    "club": EngineTable(
        "club",
        {
            "id": EngineColumn("id", "integer", "integer"),
            "name": EngineColumn("name", "text", "text"),
            "founded": EngineColumn("founded", "text", "text"),
            "opened": EngineColumn("opened", "date", "numeric"),
            "open year": EngineColumn("open year", "integer", "integer"),
        },
        ("id",),
    ),
    "order": EngineTable(
        "order",
        {
            "club_id": EngineColumn("club_id", "text", "text"),
            "price": EngineColumn("price", "real", "real"),
            "user": EngineColumn("user", "text", "text"),
            "äpfel": EngineColumn("Äpfel", "integer", "integer"),
            "n": EngineColumn("n_", "integer", "integer"),
        },
    ),
}
SQLITE = """
CREATE TABLE Club (Id INTEGER PRIMARY KEY, Name TEXT, Founded TEXT, Opened DATE, "Open Year" INT);
CREATE TABLE "Order" (Club_Id TEXT, Price REAL, "user" TEXT, "Äpfel" INT, N INT);
INSERT INTO Club VALUES (1, 'Ann', '1990', '2020-01-01', 7), (2, 'bob', '850', '2021-06-30', 8),
  (3, 'ANDY', '2001', NULL, 9);
INSERT INTO "Order" VALUES ('1', 0.5, 'x', 1, 2), ('1', 1.5, 'x', 2, 3), ('3', 2.5, 'y', 3, 4), (NULL, 9, 'z', 4, 5);
"""
DUCKDB = """
CREATE TABLE club (id BIGINT PRIMARY KEY, name VARCHAR, founded VARCHAR, opened DATE, "open year" BIGINT);
CREATE TABLE "order" (club_id VARCHAR, price DOUBLE, "user" VARCHAR, "Äpfel" BIGINT, n_ BIGINT);
INSERT INTO club VALUES (1, 'Ann', '1990', '2020-01-01', 7), (2, 'bob', '850', '2021-06-30', 8),
  (3, 'ANDY', '2001', NULL, 9);
INSERT INTO "order" VALUES ('1', 0.5, 'x', 1, 2), ('1', 1.5, 'x', 2, 3), ('3', 2.5, 'y', 3, 4), (NULL, 9, 'z', 4, 5);
"""


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SQLITE)
        yield connection


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with closing(duckdb.connect()) as connection:
        connection.execute(DUCKDB)
        yield connection


@pytest.mark.parametrize(
    "sql",
    [
        # names: of any case, reserved, changed, in subqueries and common table expressions
        "SELECT NAME, \"Open Year\" FROM CLUB AS c WHERE C.ID > 1",
        "SELECT Club.Name FROM Club",
        "SELECT sum(N) FROM \"Order\" WHERE `Äpfel` > 1",
        "SELECT t.N + 1 FROM (SELECT N FROM \"Order\") AS t",
        "SELECT N FROM (SELECT * FROM \"Order\") WHERE N > 2",
        "WITH c AS (SELECT N, price AS p FROM \"Order\") SELECT max(C.n), sum(P) FROM c",
        "WITH Club AS (SELECT 5 AS id) SELECT ID FROM club",
        "SELECT Name FROM Club WHERE EXISTS (SELECT 1 FROM \"Order\" WHERE N > club.ID)",
        "SELECT count(*) FROM (SELECT Name FROM Club)",
        "SELECT Name AS \"The Name\" FROM Club ORDER BY \"The Name\"",
        # words in double quotes that name no column are texts
        'SELECT count(*) FROM Club WHERE name = "bob"',
        'SELECT count(*) FROM Club WHERE name = "user"',
        'SELECT Name FROM Club WHERE id IN (SELECT club_id FROM "Order" WHERE "user" = "y")',
        # affinity: texts and numbers are compared by the column's type
        "SELECT Name FROM Club WHERE Founded > 1500",
        "SELECT Name FROM Club WHERE Founded = 1990 OR Founded IN (850, 3)",
        "SELECT Name FROM Club WHERE Founded BETWEEN 1000 AND 3000",
        "SELECT Name FROM Club WHERE 1990 = Founded",
        "SELECT count(*) FROM Club JOIN \"Order\" ON Club.Id = Club_Id",
        "SELECT Name FROM Club WHERE Id NOT IN (SELECT Club_Id FROM \"Order\" WHERE Club_Id IS NOT NULL)",
        "SELECT count(*) FROM Club JOIN \"Order\" AS o ON o.Club_Id < Club.Id",
        "SELECT sum(Founded), avg(Founded), avg(DISTINCT Founded) FROM Club",
        # dates are compared as texts unless a date is written
        "SELECT Name FROM Club WHERE Opened > '2020-01-01'",
        "SELECT Name FROM Club WHERE Opened > '2020'",
        "SELECT Name FROM Club WHERE Opened LIKE '2021%'",
        "SELECT substr(Opened, 1, 4) FROM Club",
        "SELECT strftime('%Y', Opened) FROM Club",
        # case-insensitive LIKE
        "SELECT Name FROM Club WHERE Name LIKE 'an%'",
        "SELECT Name FROM Club WHERE Name NOT LIKE '%B'",
        "SELECT count(*) FROM Club WHERE Founded LIKE '%0'",
        "SELECT count(*) FROM Club WHERE Id LIKE '1%'",
        # columns selected in addition to a group
        "SELECT Name, count(*) FROM Club JOIN \"Order\" ON Id = Club_Id GROUP BY Id",
        "SELECT Name, count(*) FROM Club GROUP BY 1 ORDER BY Name",
        "SELECT Name AS x, count(*) FROM Club GROUP BY x",
        "SELECT Id FROM Club GROUP BY Id ORDER BY Founded DESC",
        "SELECT Id FROM Club GROUP BY Id HAVING Name LIKE 'a%'",
        "SELECT lower(Name) || '!', max(Id) FROM Club GROUP BY lower(Name) || '!'",
        # numbers
        "SELECT Id / 2, Id * 1.0 / 2, 7 / 2, count(*) / 2 FROM Club GROUP BY Id",
        "SELECT avg(Id), avg(Price), sum(Id) FROM Club JOIN \"Order\" ON 1 = 1",
        "SELECT sum(Name = 'Ann'), round(avg(Price), 2) FROM Club JOIN \"Order\" ON 1 = 1",
        "SELECT CAST(count(*) AS REAL) * 100 / 7 FROM Club",
        # NULLs come first
        "SELECT Opened FROM Club ORDER BY Opened",
        "SELECT Club_Id FROM \"Order\" ORDER BY Club_Id DESC LIMIT 1",
        "SELECT Name FROM Club UNION SELECT \"user\" FROM \"Order\" ORDER BY 1",
        "SELECT max(Id, 2), ifnull(Founded, 'none'), iif(Id > 1, 'a', 'b') FROM Club",
    ],
)  # fmt: skip
def test_duckdb_returns_the_rows_of_sqlite(sql: str, sqlite: sqlite3.Connection, engine: Any) -> None:
    translated = to_engine(sql, "duckdb", SCHEMA)
    assert translated is not None
    wanted = sqlite.execute(sql).fetchall()
    result = [
        tuple(str(cell) if hasattr(cell, "isoformat") else cell for cell in row)
        for row in engine.execute(translated).fetchall()
    ]
    assert wanted
    if "ORDER BY" in sql:
        assert result == wanted, translated
    else:
        assert sorted(result, key=repr) == sorted(wanted, key=repr), translated


@pytest.mark.parametrize(
    ("sql", "postgresql", "mysql"),
    [
        (
            "SELECT Name FROM Club AS t2 WHERE T2.Founded > 1500",
            "SELECT name FROM club AS t2 WHERE t2.founded > '1500'",
            "SELECT name FROM club AS t2 WHERE t2.founded > '1500'",
        ),
        (
            'SELECT "user", `order`.n FROM "Order"',
            'SELECT "user", "order".n_ FROM "order"',
            "SELECT user, `order`.n_ FROM `order`",
        ),
        (
            "SELECT Name FROM Club WHERE Name LIKE 'A%' AND Founded LIKE '19%'",
            "SELECT name FROM club WHERE name ILIKE 'A%' AND founded LIKE '19%'",
            "SELECT name FROM club WHERE LOWER(name) LIKE 'a%' AND founded LIKE '19%'",
        ),
        (
            "SELECT Name, count(*) FROM Club JOIN \"Order\" ON Id = Club_Id GROUP BY Id",
            'SELECT name, COUNT(*) FROM club JOIN "order" ON CAST(id AS TEXT) = club_id GROUP BY id',
            "SELECT name, COUNT(*) FROM club JOIN `order` ON CAST(id AS CHAR) = club_id GROUP BY id",
        ),
        (
            'SELECT "user", n FROM "Order" GROUP BY "user"',
            'SELECT "user", n_ FROM "order" GROUP BY "user", n_',
            "SELECT user, n_ FROM `order` GROUP BY user",
        ),
        (
            "SELECT avg(Id), avg(Price), Id / 2, Price * 1.5 FROM Club JOIN \"Order\" ON N = Id",
            'SELECT AVG(id), AVG(price), id / 2, price * 1.5 FROM club JOIN "order" ON n_ = id',
            "SELECT AVG(CAST(id AS DOUBLE)), AVG(price), id DIV 2, price * 1.5e0 FROM club JOIN `order` ON n_ = id",
        ),
        (
            'SELECT round(Price, 1), round(Price) FROM "Order"',
            'SELECT ROUND(CAST(price AS DECIMAL), 1), ROUND(price) FROM "order"',
            "SELECT ROUND(price, 1), ROUND(price) FROM `order`",
        ),
        (
            "SELECT count(*) FROM (SELECT Id FROM Club INTERSECT SELECT N FROM \"Order\")",
            'SELECT COUNT(*) FROM (SELECT id FROM club INTERSECT SELECT n_ FROM "order") AS q1',
            "SELECT COUNT(*) FROM (SELECT id FROM club INTERSECT SELECT n_ FROM `order`) AS q1",
        ),
        (
            "SELECT sum(Id = 1) FROM Club WHERE Name LIKE 'a\\_%'",
            "SELECT SUM(CAST(id = 1 AS INT)) FROM club WHERE name ILIKE 'a\\\\_%'",
            "SELECT SUM(id = 1) FROM club WHERE LOWER(name) LIKE 'a\\\\\\\\_%'",
        ),
    ],
)  # fmt: skip
def test_translation_for_servers(sql: str, postgresql: str, mysql: str) -> None:
    assert to_engine(sql, "postgresql", SCHEMA) == postgresql
    assert to_engine(sql, "mysql", SCHEMA) == mysql


@pytest.mark.parametrize(
    ("sql", "translated"),
    [
        ("SELECT T1.hubHeight FROM Turbine AS T1", 'SELECT T1."hubHeight" FROM "Turbine" AS T1'),
        ("SELECT Turbine.id FROM Turbine", 'SELECT "Turbine".id FROM "Turbine"'),
        ("SELECT Big FROM (SELECT max(hubHeight) AS Big FROM Turbine) AS T",
         'SELECT Big FROM (SELECT MAX("hubHeight") AS Big FROM "Turbine") AS T'),
    ],
)  # fmt: skip
def test_names_with_capitals_are_quoted_for_postgresql_only(sql: str, translated: str) -> None:
    columns = {"id": EngineColumn("id", "integer"), "hubheight": EngineColumn("hubHeight", "real")}
    schema = {"turbine": EngineTable("Turbine", columns, ("id",))}
    assert to_engine(sql, "postgresql", schema) == translated
    assert to_engine(sql, "duckdb", schema) == translated.replace('"', "")


@pytest.mark.parametrize("engine", SQLGLOT)
@pytest.mark.parametrize("sql", ["", "SELEC 1", "SELECT 1; SELECT 2", "SELECT 'a", "))", "\0"])
def test_text_without_a_query_is_not_translated(sql: str, engine: str) -> None:
    assert to_engine(sql, engine, SCHEMA) is None


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="there are postgresql, mysql, duckdb"):
        to_engine("SELECT 1", "oracle", SCHEMA)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT hubHeight FROM turbines WHERE online = 1", 'SELECT "hubHeight" FROM turbines WHERE online = TRUE'),
        ("SELECT T1.hubHeight FROM turbines AS T1", 'SELECT T1."hubHeight" FROM turbines AS T1'),
        ("SELECT id FROM turbines WHERE online IN (0, 1)", "SELECT id FROM turbines WHERE online IN (FALSE, TRUE)"),
        ("SELECT id AS N FROM turbines WHERE id = 1", "SELECT id AS N FROM turbines WHERE id = 1"),
    ],
)
def test_postgresql_names_in_mixed_case_are_quoted_and_booleans_are_no_numbers(sql: str, expected: str) -> None:
    columns = {
        "id": EngineColumn("id", "integer", "integer"),
        "hubheight": EngineColumn("hubHeight", "integer", "integer"),
        "online": EngineColumn("online", "boolean", "numeric"),
    }
    assert to_engine(sql, "postgresql", {"turbines": EngineTable("turbines", columns, ("id",))}) == expected
