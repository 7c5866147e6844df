"""Questions on small tables without keys never average ids, phone numbers, years or dates."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.commands.synth import main
from jaxrl_sql.datagen.synth.read_database import read_database

SHOP = """
CREATE TABLE customer(cid INTEGER, name TEXT, city TEXT, phone INTEGER, zip INTEGER, born INTEGER, points INTEGER);
CREATE TABLE product(ref INTEGER, title TEXT, price REAL, launched REAL, stock INTEGER, shelf INTEGER);
CREATE TABLE orders(nr INTEGER, cid INTEGER, product INTEGER, ordered INTEGER, sent INTEGER, pieces INTEGER,
  stars REAL);
CREATE TABLE clerk(badge INTEGER, clerk TEXT, wage INTEGER, season INTEGER, mobile TEXT, shift_month INTEGER);
"""
NAMING = {
    "customer.cid", "product.ref", "orders.nr", "orders.cid", "orders.product", "clerk.badge", "customer.phone",
    "customer.zip", "orders.ordered", "orders.sent", "clerk.shift_month",
}  # fmt: skip
YEARS = {"customer.born", "product.launched", "clerk.season"}
MEASURES = {"customer.points", "product.price", "product.stock", "orders.pieces", "orders.stars", "clerk.wage"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    cities = ("Oslo", "Lima", "Rome")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHOP)
        for i in range(6):
            customer = (
                i + 1,
                f"Cus {'ABCDEF'[i]}",
                cities[i % 3],
                5551200 + 37 * i,
                10115 + i % 3,
                1960 + 7 * i,
                i * i * 7 % 50,
            )
            connection.execute("INSERT INTO customer VALUES (?, ?, ?, ?, ?, ?, ?)", customer)
            wares = (17 + 4 * i, f"Ware {'uvwxyz'[i]}", 2.5 + 3 * i % 7, 1990.0 + 5 * (i % 4), 40 - 3 * i, i % 2 + 1)
            connection.execute("INSERT INTO product VALUES (?, ?, ?, ?, ?, ?)", wares)
            clerk = (
                (7, 3, 9, 1, 4, 8)[i],
                f"Clerk {'ABCDEF'[i]}",
                900 + 350 * i % 777,
                2001 + i % 4,
                f"0170{i}",
                i + 4,
            )
            connection.execute("INSERT INTO clerk VALUES (?, ?, ?, ?, ?, ?)", clerk)
        for i in range(14):
            moment = 1_700_000_000 + 86_400 * i * i
            order = (
                i + 1,
                i * 5 % 6 + 1,
                17 + 4 * (i * 7 % 6),
                20240101 + 3 * (i % 9),
                moment,
                i * 3 % 5 + 1,
                1 + i % 4 / 2,
            )
            connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)", order)
        connection.commit()
    return path


def kinds(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        columns = read_database(path, path.stem, lambda sql: connection.execute(sql).fetchall())
    return {f"{table.name}.{column.name}": column.kind for table in columns.joined.tables for column in table.columns}


def test_numeric_columns_of_small_tables_without_keys_have_kinds(shop: Path) -> None:
    columns = kinds(shop)
    assert {columns[name] for name in NAMING} == {"id", "category"}
    assert {columns[name] for name in ("customer.cid", "product.ref", "orders.product", "clerk.badge")} == {"id"}
    assert {name for name, kind in columns.items() if kind == "year"} == YEARS
    assert {name for name in MEASURES if columns[name] not in ("int", "real")} == set()


@pytest.mark.parametrize("style", ["grammar", "templates"])
def test_columns_that_are_no_quantities_are_neither_averaged_nor_compared(
    shop: Path, tmp_path: Path, style: str
) -> None:
    arguments = ["--db", str(shop), "--out", str(tmp_path / "out"), "--n", "300", "--style", style]
    assert main(arguments) == 0
    lines = [json.loads(line) for line in (tmp_path / "out/questions.jsonl").read_text().splitlines()]
    assert len(lines) > 150
    named = "|".join(sorted({name.partition(".")[2] for name in NAMING}))
    measured = (
        rf"(AVG|SUM|MIN|MAX)\((T\d\.)?({named})\)|ORDER BY (T\d\.)?({named})\b|\b({named}) ([<>]=?|BETWEEN|LIKE) "
    )
    years = "|".join(name.partition(".")[2] for name in YEARS)
    wrong = [line["sql"] for line in lines if re.search(rf"{measured}|(AVG|SUM)\((T\d\.)?({years})\)", line["sql"])]
    assert wrong == []
    assert any(re.search(r"AVG\((T\d\.)?(points|price|stock|pieces|wage|stars)\)", line["sql"]) for line in lines)


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("uid", [4, 9, 9, 2], "category"),
        ("kid", [4, 9, 9, 2], "int"),
        ("paid", [4, 9, 9, 2], "int"),
        ("zipcode", [10115, 90210, 10115], "category"),
        ("home_phone_number", [5551234, 5551235, 5551234], "category"),
        ("opened", [1999, 2004, 1999], "year"),
        ("opened", [1999.0, 2004.0, 1999.0], "year"),
        ("vintage", [1999, 2004, 1999], "year"),
        ("thing", [1999, 2004, 1999], "int"),
        ("price", [1999, 2004, 1999], "int"),
        ("elevation", [1810, 2089, 1810], "int"),
        ("engine_displacement", [1896, 1999, 1896], "int"),
        ("horsepower", [1900, 2000, 1900], "int"),
        ("opened_cases", [1000, 1200, 1000], "int"),
        ("season_wins", [1000, 1100, 1000], "int"),
        ("sales_per_year", [1500, 1900, 1500], "int"),
        ("yearly_visits", [1500, 1900, 1500], "int"),
        ("year_sales", [1500, 1900, 1500], "int"),
        ("year", [1999, 2004, 1999], "year"),
        ("birth_year", [1999, 2004, 1999], "year"),
        ("sales_year", [1999, 2004, 1999], "year"),
        ("year_built", [1999, 2004, 1999], "year"),
        ("yr", [1999, 2004, 1999], "year"),
        ("founded", [1999, 2004, 1999], "year"),
        ("employed_since", [1999, 2004, 1999], "year"),
        ("revenue", [1_500_000_000, 1_600_000_000, 1_500_000_000], "int"),
        ("amount", [1_500_000_000, 1_600_000_000, 1_500_000_000], "int"),
        ("population", [1_500_000_000, 1_300_000_000, 1_500_000_000], "int"),
        ("sales", [20200101, 20191231, 20191231], "int"),
        ("sales_date", [20200101, 20191231, 20191231], "category"),
        ("thing", [20200131, 20191230, 20191230], "category"),
        ("thing", [20209931, 20191230, 20191230], "int"),
        ("last_seen", [1_700_000_000, 1_600_000_000, 1_700_000_000], "category"),
        ("latitude", [51.25, 48.5, 48.5], "category"),
        ("months", [3, 7, 7], "int"),
        ("shows_per_day", [3, 7, 7], "int"),
        ("dno", [3, 7, 7], "category"),
        ("essn", [3, 7, 7], "category"),
        ("piano", [3, 7, 7], "int"),
        ("month", [3, 7, 7], "category"),
        ("speed", [1, 2, 3], "int"),
        ("cell", [3, 2, 1, 1], "category"),
    ],
)
def test_kind_of_a_single_column(tmp_path: Path, column: str, values: list[float], kind: str) -> None:
    path = tmp_path / "one.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE thing(name TEXT, {column})")
        connection.executemany("INSERT INTO thing VALUES (?, ?)", [(f"n{i}", v) for i, v in enumerate(values)])
        connection.commit()
    assert kinds(path)[f"thing.{column}"] == kind


def test_numbers_that_are_all_ids_of_another_table_are_ids(tmp_path: Path) -> None:
    """Ids with wide gaps do not match by chance. Small counts among 1, 2, 3, … are no evidence."""
    path = tmp_path / "school.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE course(title, instructor, seats); CREATE TABLE faculty(tag, name);")
        tags = (6112, 4230, 1193, 2424, 5718)
        connection.executemany("INSERT INTO faculty VALUES (?, ?)", [(tag, f"Prof {tag}") for tag in tags])
        courses = [(f"Course {i}", tags[i * 2 % 5 % 4], i % 4 + 1) for i in range(9)]
        connection.executemany("INSERT INTO course VALUES (?, ?, ?)", courses)
        connection.execute("CREATE TABLE room(nr, floor_name)")
        connection.executemany("INSERT INTO room VALUES (?, ?)", [(i + 1, f"Floor {i}") for i in range(6)])
        connection.commit()
    columns = kinds(path)
    assert (columns["course.instructor"], columns["faculty.tag"], columns["course.seats"]) == ("id", "id", "int")
