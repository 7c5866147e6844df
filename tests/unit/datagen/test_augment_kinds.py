"""Rows added for golds have values of their columns' kinds."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.datagen.augment import Change, fill
from jaxrl_sql.datagen.augment.column_kind import date_form, has_same_kind, nearest_value, next_value
from jaxrl_sql.text2sql.schema.read import read_schema

TABLES = """
CREATE TABLE player(
  code TEXT PRIMARY KEY, name TEXT, birthday TEXT, joined DATE, goals INTEGER, zip TEXT, day INTEGER, pay REAL);
CREATE TABLE match(day DATE PRIMARY KEY, time TEXT, goals INTEGER);
CREATE TABLE later(code TEXT, since DATETIME, at TIMESTAMP, year YEAR);
INSERT INTO player VALUES ('A-008', 'Ann', '1984-03-01', '03/15/2001', 3, '02139', 20010315, 10.5),
  ('A-009', 'Bob', '1987-06-09', '11/02/2003', 8, '90210', 20031102, 20.25);
INSERT INTO match VALUES ('2020-02-28', '20:45', 2), ('2020-02-29', '18:00', 0);
"""
SHAPES = {
    "code": r"A-\d{3}", "birthday": r"\d{4}-\d\d-\d\d", "joined": r"\d\d/\d\d/\d{4}", "zip": r"\d{5}",
    "day": r"\d{8}|\d{4}-\d\d-\d\d", "time": r"\d\d:\d\d", "since": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
}  # fmt: skip


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)) as connection:
        connection.executescript(TABLES)
        yield connection


def fill_rows(connection: sqlite3.Connection, path: Path, sql: str) -> Change | str:
    assert connection.execute(sql).fetchall() == [], "the query returns rows without the added ones"
    return fill(connection, read_schema(path), "q", sql, [], random.Random(0))


@pytest.mark.parametrize(
    "sql",
    [
        # The mean of dates stored as text is the mean of their years, 1985.5, and no birthday.
        "SELECT name FROM player WHERE birthday > (SELECT AVG(birthday) FROM player) AND name = 'Cy'",
        "SELECT name FROM player WHERE birthday > '1990-01-01' AND birthday < '1990-01-04'",
        "SELECT name FROM player WHERE birthday > 1990",
        "SELECT name FROM player WHERE birthday LIKE '1991%'",
        "SELECT name FROM player WHERE birthday LIKE '%-12-%'",
        "SELECT name FROM player WHERE birthday > '2019-12-31'",
        "SELECT name FROM player WHERE joined LIKE '%2010'",
        "SELECT name FROM player WHERE goals > 10.5 AND goals < 11.9",
        "SELECT name FROM player WHERE goals > (SELECT AVG(goals) FROM player) AND name = 'Cy'",
        "SELECT name FROM player WHERE goals > '70'",
        "SELECT name FROM player WHERE zip LIKE '10%'",
        "SELECT name FROM player WHERE code LIKE '%77'",
        "SELECT name FROM player WHERE day > 20040101",
        "SELECT name FROM player WHERE name = 'Cy'",
        "SELECT time FROM match WHERE goals = 5",
        "SELECT time FROM match WHERE time > '21:00'",
        "SELECT code FROM later WHERE since > '2020-05-05 10:00:00'",
        "SELECT code FROM later WHERE code = 'z'",
    ],
)
def test_added_rows_keep_the_kinds_of_columns(connection: sqlite3.Connection, tmp_path: Path, sql: str) -> None:
    change = fill_rows(connection, tmp_path / "a.sqlite", sql)
    assert isinstance(change, Change), change
    assert connection.execute(sql).fetchall()
    for inserted in change.details["inserted"]:
        for name, value in inserted["row"].items():
            assert re.fullmatch(SHAPES.get(name, r"(?s).*"), str(value)) or (inserted["table"] == "later"), inserted
            if name in ("goals", "year"):
                assert isinstance(value, int), inserted
            if name in ("since", "at"):
                assert date_form([value]) == "%Y-%m-%d %H:%M:%S", inserted


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM player WHERE goals > 5.2 AND goals < 5.8",
        "SELECT name FROM player WHERE birthday = 1986.625",
        "SELECT name FROM player WHERE goals = 5.5",
        "SELECT name FROM player WHERE birthday = 'soon'",
    ],
)
def test_no_row_is_added_with_values_unlike_the_columns(
    connection: sqlite3.Connection, tmp_path: Path, sql: str
) -> None:
    before = list(connection.iterdump())
    why = fill_rows(connection, tmp_path / "a.sqlite", sql)
    assert isinstance(why, str)
    assert "has no values " in why
    assert list(connection.iterdump()) == before


@pytest.mark.parametrize(
    ("known", "coming"),
    [
        (["2020-02-28", "2019-01-01"], "2020-02-29"),
        (["02/28/2020"], "02/29/2020"),
        ([20200228], 20200229),
        (["18:59", "07:00"], "19:00"),
        (["w9", "w10"], "w11"),
        (["0041", "0042"], "0043"),
        (["A-009"], "A-010"),
        (["Ann", "Bob"], None),
        ([1, 2], None),
        ([], None),
    ],
)
def test_next_value_of_a_sequence(known: list[Any], coming: Any) -> None:
    assert next_value(known) == coming


def test_value_within_conditions_or_none() -> None:
    assert nearest_value([(">", 5.5)], 6.5, [1, 2]) == 6
    assert nearest_value([(">", 5.2), ("<", 5.8)], 5.5, [1, 2]) is None
    assert nearest_value([(">", 5.2), ("<", 5.8)], 5.5, [1.5]) == 5.5
    assert nearest_value([(">", "5")], "5z", [1, 12]) == 6
    assert nearest_value([("like", "B%")], "B", ["A-17"]) == "B-17"
    assert nearest_value([(">", "2020-02-28")], "2021-02-28", ["2019-01-01"]) == "2021-02-28"
    assert nearest_value([("<", "2020-03-01")], "2019-03-01", ["12:00"]) == "12:00", "no date in a column of times"
    assert has_same_kind("soon", ["later"])
    assert not has_same_kind("soon", ["2020-01-01"], is_named=True)
    assert has_same_kind("soon", ["A-17"], is_named=True)
    assert not has_same_kind("soon", ["A-17"])
