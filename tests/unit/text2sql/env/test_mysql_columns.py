"""MySQL's comparisons on a database: numeric columns keep their indexes, and text columns MySQL's semantics."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.env.dialect import find_untranslated_part, runnable_sql, to_sqlite
from jaxrl_sql.text2sql.env.mysql_columns import numeric_columns
from jaxrl_sql.types import Example

SCRIPT = """
CREATE TABLE part(id INTEGER PRIMARY KEY, k INT, price DECIMAL(8, 2), code TEXT, made DATE, mixed TEXT, loose);
CREATE TABLE use(id BIGINT UNSIGNED, part_id INT, mixed INT, share DOUBLE PRECISION);
CREATE INDEX by_k ON part(k);
CREATE INDEX by_part ON use(part_id, share);
CREATE VIEW shown AS SELECT k AS shown_k, code || 'x' AS shown_code FROM part;
INSERT INTO part VALUES (1, 7, 1.5, '007', '2024-01-31', '1', '5'), (2, 8, 2.5, '10', '2024-02-01', '02', 5);
INSERT INTO use VALUES (1, 2, 1, 0.5), (2, 1, 2, 1.5);
"""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("columns") / "part.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
    return str(path)


def run(db: str, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("sql", "table", "key"),
    [
        ("SELECT code FROM part WHERE id = 7", "part", "rowid=?"),
        ("SELECT code FROM part WHERE k IN (7, 8)", "part", "k=?"),
        ("SELECT code FROM part WHERE k BETWEEN 7 AND 8", "part", "k>? AND k<?"),
        ("SELECT b.id FROM part a JOIN part b ON b.id = a.id + 1 WHERE a.k = 7", "b", "rowid=?"),
        ("SELECT p.id FROM part p JOIN use u ON u.part_id = p.id - 1 WHERE u.share > 0", "u", "part_id=? AND share>?"),
        ("SELECT p.id AS id FROM part p WHERE p.id = 1 + 1", "p", "rowid=?"),
    ],
)
def test_numeric_column_keeps_its_index(db: str, sql: str, table: str, key: str) -> None:
    translated = to_sqlite(sql, "mysql", db)
    assert translated is not None
    plan = [str(row[3]) for row in run(db, f"EXPLAIN QUERY PLAN {translated}")]
    assert any(step.startswith(f"SEARCH {table} ") and step.endswith(f"({key})") for step in plan), (translated, plan)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT id FROM part WHERE code = 7", [(1,)]),
        ("SELECT id FROM part WHERE code = k", [(1,)]),
        ("SELECT id FROM part WHERE loose = 5", [(1,), (2,)]),
        ("SELECT id FROM part WHERE mixed = 2", [(2,)]),
        ("SELECT s.id FROM (SELECT code AS id FROM part) AS s WHERE s.id = 7", [("007",)]),
        ("SELECT s.id FROM (SELECT k AS id FROM part UNION SELECT code FROM part) AS s WHERE s.id = 10", [("10",)]),
        ("WITH c(k) AS (SELECT code FROM part) SELECT k FROM c WHERE k = 7", [("007",)]),
        ("SELECT id FROM part WHERE id > 20240131", []),
    ],
)
def test_column_that_may_contain_text_is_compared_like_in_mysql(db: str, sql: str, rows: list[object]) -> None:
    translated = to_sqlite(sql, "mysql", db)
    assert translated is not None, find_untranslated_part(sql, "mysql", db)
    assert run(db, translated) == rows


def test_answer_is_translated_with_the_columns_of_its_database(db: str) -> None:
    example = Example("", "part", db, "", "", dialect="mysql")
    assert runnable_sql("SELECT code FROM part WHERE id = 7", example) == "SELECT code FROM part WHERE id = 7"


def test_only_columns_numeric_in_every_table_count(db: str, tmp_path: Path) -> None:
    assert numeric_columns(db) == {"id", "k", "price", "part_id", "share", "shown_k"}
    (tmp_path / "no.sqlite").write_bytes(b"no database" * 100)
    assert numeric_columns(str(tmp_path / "no.sqlite")) == numeric_columns(str(tmp_path / "missing")) == frozenset()
    assert sorted(path.name for path in Path(db).parent.iterdir()) == ["part.sqlite"]
