"""Rows are derived from a query so that it returns some. Each case runs, and constraints hold before and after."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.datagen.augment import Change, fill, fill_by
from jaxrl_sql.datagen.augment.required_rows import value_for
from jaxrl_sql.text2sql.evals.ties import is_tied
from jaxrl_sql.text2sql.schema.read import read_schema

TABLES = """
CREATE TABLE city(id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT DEFAULT 'x', founded DATE);
CREATE TABLE "work er"(
  id TEXT PRIMARY KEY, name TEXT, pay REAL, city_id INT NOT NULL REFERENCES city(id), code INT UNIQUE);
CREATE TABLE task(id INTEGER PRIMARY KEY, title TEXT, hours INT CHECK (hours BETWEEN 0 AND 1000));
CREATE TABLE done(
  worker TEXT REFERENCES "work er"(id), task INT REFERENCES task(id), grade INT, PRIMARY KEY (worker, task));
CREATE TABLE lonely(a INT NOT NULL, b TEXT, c INT GENERATED ALWAYS AS (a + 1));
INSERT INTO city VALUES (1, 'Oslo', 'Norway', '1040-01-01'), (2, 'Rome', 'Italy', '0750-01-01');
INSERT INTO "work er" VALUES ('w1', 'Ann', 10.5, 1, 7), ('w2', 'Bob', 20.5, 2, 8);
INSERT INTO task VALUES (1, 'dig', 10), (2, 'sew', 20);
INSERT INTO done VALUES ('w1', 1, 5), ('w2', 2, 4);
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        connection.executescript(TABLES)
    return tmp_path / "a.sqlite"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
        assert not connection.in_transaction
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def count(connection: sqlite3.Connection) -> int:
    names = ("city", '"work er"', "task", "done", "lonely")
    return sum(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM city WHERE country = 'Peru'",
        "SELECT name FROM city WHERE country = \"Peru\" AND name != 'Lima' AND founded > '2000-01-01'",
        "SELECT name FROM city WHERE founded < '0001-01-01' AND id > 500 AND id <= 501",
        "SELECT name FROM city WHERE name LIKE 'S%o_a' OR country = 'Mali'",
        "SELECT name FROM city WHERE country IN ('Chad', 'Mali') AND name IS NOT NULL",
        "SELECT id FROM city WHERE founded IS NULL",
        "SELECT count(*), country FROM city GROUP BY country HAVING count(*) >= 4",
        "SELECT w.name FROM \"work er\" AS w JOIN city AS c ON w.city_id = c.id WHERE c.name = 'Lima' AND w.pay > 99.5",
        "SELECT T1.name FROM city T1 JOIN \"work er\" T2 ON T1.id = T2.city_id GROUP BY T1.id HAVING count(*) > 3",
        "SELECT w.name FROM \"work er\" w, done d, task t WHERE w.id = d.worker AND d.task = t.id AND t.title = 'fly'",
        'SELECT 1 FROM "work er" w JOIN done ON w.id = worker JOIN task t ON task = t.id WHERE t.id = 1 AND pay > 20',
        "SELECT worker FROM done WHERE task = 1 INTERSECT SELECT worker FROM done WHERE task = 2",
        'SELECT name FROM "work er" EXCEPT SELECT w.name FROM "work er" w JOIN done d ON w.id = d.worker',
        'SELECT name FROM "work er" WHERE id NOT IN (SELECT worker FROM done)',
        "SELECT name FROM city WHERE id IN (SELECT city_id FROM \"work er\" WHERE pay > 500)",
        "SELECT name FROM \"work er\" WHERE name = 'C' AND pay >= (SELECT max(pay) FROM \"work er\" WHERE city_id = 2)",
        "SELECT title FROM task WHERE hours = (SELECT max(grade) FROM done WHERE worker = 'w9')",
        "SELECT title FROM task WHERE id = (SELECT task FROM done WHERE grade = 99)",
        "SELECT b FROM lonely WHERE c > 0 AND a = 3",
        "WITH rich AS (SELECT id, name FROM \"work er\" WHERE pay > 1000) SELECT name FROM rich",
        "SELECT x.name FROM (SELECT name, id FROM city WHERE country = 'Cuba') AS x",
        "SELECT name FROM city c WHERE EXISTS (SELECT 1 FROM \"work er\" w WHERE w.city_id = c.id AND w.pay = 3)",
        "SELECT name FROM city ORDER BY id LIMIT 1 OFFSET 4",
        "SELECT name FROM city WHERE lower(country) = 'fiji' AND country LIKE 'fiji'",
        "SELECT name FROM city WHERE (country = 'A' AND name = 'B') AND NOT founded = '2000-01-01'",
    ],
)  # fmt: skip
def test_added_rows_make_the_gold_return_rows(connection: sqlite3.Connection, path: Path, sql: str) -> None:
    assert connection.execute(sql).fetchall() == []
    before = count(connection)
    change = fill(connection, read_schema(path), "q", sql, ["SELECT name FROM city"], random.Random(0))
    assert isinstance(change, Change), change
    assert connection.execute(sql).fetchall()
    inserted = change.details["inserted"]
    assert count(connection) == before + len(inserted) <= before + 12
    for item in inserted:
        assert set(item["row"]) <= {column.name for table in read_schema(path).tables for column in table.columns}


@pytest.mark.parametrize(
    ("sql", "others", "says"),
    [
        ("SELECT title FROM task WHERE hours > 5000", [], "CHECK"),
        ("SELECT name FROM city WHERE id = 5 AND id = 6", [], "contradicts"),
        ("SELECT name FROM city WHERE 1 = 0", [], "the gold stays empty"),
        ("SELECT 1 WHERE 0", [], "names no table"),
        ("SELEKT", [], "cannot be parsed"),
        (
            "SELECT name FROM city WHERE country = 'Peru'",
            ["SELECT name FROM city WHERE (SELECT count(*) FROM city) = 2"],
            "another gold would be empty",
        ),
    ],
)
def test_unfillable_gold_has_a_reason_and_changes_nothing(
    connection: sqlite3.Connection, path: Path, sql: str, others: list[str], says: str
) -> None:
    before = list(connection.iterdump())
    why = fill(connection, read_schema(path), "q", sql, others, random.Random(0))
    assert isinstance(why, str)
    assert says in why
    assert list(connection.iterdump()) == before


def test_added_rows_make_no_tie_in_another_gold(connection: sqlite3.Connection, path: Path) -> None:
    """A row like Bob's would have the same pay: the worker with the highest pay must stay unique."""
    best = 'SELECT name FROM "work er" ORDER BY pay DESC LIMIT 1'
    sql = "SELECT name FROM \"work er\" WHERE name = 'Cy'"
    filled = 0
    for seed in range(8):
        change = fill(connection, read_schema(path), "q", sql, [best], random.Random(seed))
        if isinstance(change, Change):
            pays = [pay for (pay,) in connection.execute('SELECT pay FROM "work er" ORDER BY pay DESC LIMIT 2')]
            assert pays[0] != pays[1]
            connection.execute('DELETE FROM "work er" WHERE name = ?', ("Cy",))
            filled += 1
        else:
            assert change == "another gold would have a tie"
    assert filled > 4


@pytest.mark.parametrize(
    ("sql", "tied"),
    [
        ("SELECT worker FROM done ORDER BY grade LIMIT 1", False),
        ("SELECT worker FROM done ORDER BY grade > 0 LIMIT 1", True),
        ("SELECT worker FROM done ORDER BY grade > 0 LIMIT 2", False),
        ("SELECT worker, count(*) AS n FROM done GROUP BY worker ORDER BY n DESC LIMIT 1", True),
        ("SELECT worker, count(*) FROM done GROUP BY worker ORDER BY 2 DESC LIMIT 1", True),
        ("SELECT worker, grade FROM done ORDER BY 2 LIMIT 1", False),
        ("SELECT worker FROM done ORDER BY grade > 0", False),
        ("SELECT worker FROM done ORDER BY 1.5 LIMIT 1", True),  # not a column's number
        ("SELECT worker FROM done LIMIT 1", False),
        ("SELECT worker FROM done ORDER BY nowhere LIMIT 1", False),
        ("SELECT (", False),
    ],
)
def test_ties_at_a_limit_are_detected(connection: sqlite3.Connection, sql: str, tied: bool) -> None:
    assert is_tied(connection, sql) == tied


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("INSERT INTO city(name, country) VALUES ('Lima', 'Peru')", ""),
        ("INSERT INTO city(name, country) VALUES ('Lima', 'Peru'); DELETE FROM task", "other than INSERT"),
        ("PRAGMA writable_schema = 1", "other than INSERT"),
        ("INSERT INTO city(name, country) VALUES (NULL, 'Peru')", "does not run"),
        ("INSERT INTO city(name) VALUES ('Lima')", "stays empty"),
        (
            "INSERT INTO city(name, country) VALUES ('Lima', 'Peru'); INSERT INTO done VALUES ('w9', 9, 9)",
            "has no parent",
        ),
        ("INSERT INTO sqlite_master VALUES (1, 2, 3, 4, 5)", "does not run"),
        ("I am sorry, (", "answer"),
    ],
)
def test_model_written_script_may_only_insert_rows(connection: sqlite3.Connection, script: str, says: str) -> None:
    before = list(connection.iterdump())
    change = fill_by(connection, "q", "SELECT name FROM city WHERE country = 'Peru'", [], script)
    if says:
        assert isinstance(change, str)
        assert says in change
        assert list(connection.iterdump()) == before
    else:
        assert isinstance(change, Change)
        assert connection.execute("SELECT name FROM city WHERE country = 'Peru'").fetchall() == [("Lima",)]


@pytest.mark.parametrize(
    ("conditions", "value"),
    [
        ([("=", 5), ("=", 5)], ("is", 5)),
        ([("=", 5), ("=", 6)], ("none", None)),
        ([("=", 5), ("!=", 5)], ("none", None)),
        ([(">", 5)], ("is", 6)),
        ([("<=", 5)], ("is", 4)),
        ([(">", 5), ("<", 8)], ("is", 6)),
        ([(">", 5), ("<", 6)], ("is", 5.5)),
        ([(">", "2010-05-06")], ("is", "2011-05-06")),
        ([("like", "%cat%")], ("is", "cat")),
        ([("null", True)], ("is", None)),
        ([("null", True), ("=", 1)], ("none", None)),
        ([("!=", 5)], ("free", None)),
    ],
)
def test_values_satisfy_their_conditions(conditions: list[tuple[str, object]], value: tuple[str, object]) -> None:
    assert value_for(iter(conditions)) == value
