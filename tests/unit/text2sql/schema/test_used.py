"""Columns used by a query, compared with the reports of SQLite's authorizer."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.schema import find_used_columns, read_schema

SCRIPT = """
CREATE TABLE shop(id INTEGER PRIMARY KEY, name TEXT, city TEXT, "open since" INT);
CREATE TABLE sale(id INTEGER PRIMARY KEY, shop_id REFERENCES shop, day TEXT, total REAL, note TEXT);
CREATE TABLE staff(shop_id REFERENCES shop, nick TEXT, boss TEXT, "order" INT, PRIMARY KEY (shop_id, nick));
CREATE TABLE codes(code TEXT);
CREATE TABLE nokey(a, b, c);
CREATE VIEW named AS SELECT name FROM shop;
CREATE INDEX city_of ON shop(city);
INSERT INTO shop VALUES (1, 'a', 'x', 1990);
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("used") / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
    return path


def read_by_sqlite(path: str | Path, sql: str) -> set[tuple[str, str]]:
    """Return the (table, column) pairs that SQLite reads, in lower case; "" if it reads no column of the table."""
    result = set()

    def see(action: int, table: str | None, column: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ and table and not table.startswith("sqlite_"):
            result.add((table.lower(), (column or "").lower()))
        return sqlite3.SQLITE_OK

    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.set_authorizer(see)
        connection.execute(f"EXPLAIN {sql}").fetchall()
    return result


def missed_columns(path: str | Path, sql: str) -> set[tuple[str, str]]:
    """Return the pairs that SQLite reads and `find_used_columns` misses; a row's number belongs to its table."""
    used = find_used_columns(sql, read_schema(path))
    assert used is not None, sql
    columns = {(table.lower(), column.lower()) for table, column in used.columns}
    tables = {table.lower() for table in used.tables}
    return {
        (table, column)
        for table, column in read_by_sqlite(path, sql)
        if (table not in tables if column in ("", "rowid") else (table, column) not in columns)
    }


# A query, and its columns: all that SQLite reads, and no others if each name has one meaning.
QUERIES = [
    ("SELECT name FROM shop", "shop.name"),
    ("SELECT NAME FROM Shop AS s WHERE S.City = 'x'", "shop.name shop.city"),
    ("SELECT count(*) FROM shop", ""),
    ("SELECT * FROM codes", "codes.code"),
    ("SELECT s.*, total FROM codes AS s JOIN sale ON note = code", "codes.code sale.total sale.note"),
    ("SELECT t.name FROM shop t JOIN sale u ON t.id = u.shop_id", "shop.name shop.id sale.shop_id"),
    ("SELECT name FROM shop ORDER BY city, \"open since\" LIMIT 1", "shop.name shop.city shop.open since"),
    ("SELECT name FROM shop WHERE city = \"x\"", "shop.name shop.city"),
    ("SELECT \"order\" FROM staff", "staff.order"),
    ("SELECT total FROM sale JOIN staff USING (shop_id)", "sale.total sale.shop_id staff.shop_id"),
    (
        "SELECT name FROM shop WHERE id IN (SELECT shop_id FROM sale WHERE day > '2')",
        "shop.name shop.id sale.shop_id sale.day",
    ),
    (
        "SELECT name FROM shop s WHERE EXISTS (SELECT 1 FROM sale WHERE shop_id = s.id AND city = note)",
        "shop.name shop.id shop.city sale.shop_id sale.note",
    ),
    ("SELECT name FROM shop WHERE city IN codes", "shop.name shop.city codes.code"),
    (
        "WITH b AS (SELECT shop_id, max(total) FROM sale GROUP BY 1) SELECT name FROM b JOIN shop ON id = shop_id",
        "sale.shop_id sale.total shop.name shop.id",
    ),
    ("WITH sale AS (SELECT day AS d FROM main.sale) SELECT d FROM sale", "sale.day"),
    ("SELECT x FROM (SELECT name AS x, city FROM shop) WHERE city = 'y'", "shop.name shop.city"),
    ("SELECT name FROM shop UNION SELECT nick FROM staff ORDER BY 1", "shop.name staff.nick"),
    ("SELECT name AS n FROM shop UNION ALL SELECT nick FROM staff ORDER BY n", "shop.name staff.nick"),
    ("SELECT sum(total) OVER (PARTITION BY day ORDER BY note) FROM sale", "sale.total sale.day sale.note"),
    ("SELECT a.nick FROM staff a JOIN staff b ON a.boss = b.nick", "staff.nick staff.boss"),
    ("SELECT day, count(DISTINCT shop_id) c FROM sale GROUP BY day HAVING c > 1", "sale.day sale.shop_id"),
    ("SELECT CASE WHEN total > 1 THEN note ELSE day END FROM sale", "sale.total sale.note sale.day"),
    ("SELECT s.name FROM (shop s JOIN sale t ON s.id = t.shop_id)", "shop.name shop.id sale.shop_id"),
    ("SELECT main.shop.name FROM main.shop", "shop.name"),
    ("SELECT rowid FROM nokey", ""),
    ("SELECT name FROM shop INDEXED BY city_of WHERE city = 'x'", "shop.name shop.city"),
    ("SELECT name FROM shop AS s NOT INDEXED WHERE s.city = 'x'", "shop.name shop.city"),
    ("SELECT 1", ""),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "columns"), QUERIES)
def test_columns_of_a_query_are_found(path: Path, sql: str, columns: str) -> None:
    assert missed_columns(path, sql) == set()
    used = find_used_columns(sql, read_schema(path))
    assert used is not None
    wanted = {tuple(name.split(".")) for name in columns.replace("open since", "open_since").split()}
    assert {(table, column.replace(" ", "_")) for table, column in used.columns} == wanted


# An ambiguous name counts for all its meanings: more columns than SQLite reads, never fewer.
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT total FROM sale NATURAL JOIN staff",
        "SELECT * FROM shop JOIN (SELECT * FROM sale) USING (id)",
        "SELECT name FROM shop ORDER BY (SELECT max(total) FROM sale WHERE shop_id = shop.id)",
        "WITH up(nick) AS (SELECT nick FROM staff UNION SELECT boss FROM staff JOIN up USING (nick)) SELECT * FROM up",
        "SELECT rowid, oid FROM shop",
        "SELECT name FROM shop WHERE id = (SELECT shop_id FROM sale ORDER BY total) EXCEPT SELECT city FROM shop",
    ],
)
def test_ambiguous_names_never_miss_a_column(path: Path, sql: str) -> None:
    assert missed_columns(path, sql) == set()


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELEC name",
        "SELECT name FROM shop; SELECT 1",
        "INSERT INTO codes VALUES (1)",
        "SELECT name FROM named",  # a view: its columns are not in the query
        "SELECT name FROM sqlite_master",
        "SELECT name FROM gone",
        "SELECT (((((",
    ],
)
def test_unparsed_query_returns_none(path: Path, sql: str) -> None:
    assert find_used_columns(sql, read_schema(path)) is None


def test_table_without_columns_counts_as_used(path: Path) -> None:
    used = find_used_columns("SELECT count(*) FROM Shop JOIN codes", read_schema(path))
    assert used is not None
    assert used.tables == {"shop", "codes"}


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["spider_dev", "bird_superhero", pytest.param("spider_train", marks=pytest.mark.nightly)]
)
def test_golds_of_the_real_sets_miss_no_column(real_data: Path, name: str) -> None:
    unknown = []
    for example in load_split(real_data, name).examples:
        if find_used_columns(example.gold_sql, read_schema(example.db_path)) is None:
            unknown.append(example.gold_sql)
            continue
        try:
            assert missed_columns(example.db_path, example.gold_sql) == set(), example.gold_sql
        except sqlite3.Error:
            assert name == "spider_train"  # it has three failing golds
    # One of those three names a missing table.
    assert len(unknown) == (name == "spider_train"), unknown
