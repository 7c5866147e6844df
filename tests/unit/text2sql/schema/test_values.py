"""Example values of columns, and the schemas that show them."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.schema import Schema, Values, omnisql, profile, read_schema, read_values
from jaxrl_sql.text2sql.schema.read import Table
from jaxrl_sql.types import InputError

SCRIPT = """
CREATE TABLE shop("the name" TEXT NOT NULL, price REAL, kind, note TEXT, PRIMARY KEY ("the name"));
CREATE TABLE sale(shop REFERENCES shop("the name"), n INTEGER, picture BLOB, empty);
INSERT INTO shop VALUES ('Ada', 1.5, 'b', 'x'), ('Bo', -2, 'a', 'x'), ('Cy', NULL, 'b', 'y'), ('Di', 7, 3, '');
INSERT INTO sale VALUES ('Ada', 10, x'00ff', NULL), ('Bo', 9, x'01', '');
"""


def _make(path: Path, script: str = SCRIPT) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_values_are_the_most_frequent_and_the_range_of_numbers(tmp_path: Path) -> None:
    values = read_values(_make(tmp_path / "d.sqlite"))
    assert values["shop", "the name"] == Values(("Ada", "Bo", "Cy"))
    assert values["shop", "price"] == Values((-2.0, 1.5, 7.0), -2.0, 7.0)
    assert values["shop", "kind"] == Values(("b", 3, "a"))  # a number among texts does not make the column numeric
    assert values["shop", "note"] == Values(("x", "y"))  # the empty text is skipped
    assert values["sale", "n"] == Values((9, 10), 9, 10)
    assert values["sale", "picture"] == values["sale", "empty"] == Values()


def test_long_texts_and_lines_are_truncated(tmp_path: Path) -> None:
    path = _make(tmp_path / "d.sqlite", "CREATE TABLE t(a); INSERT INTO t VALUES ('" + "x" * 99 + "'), ('a\n  b');")
    assert read_values(path)["t", "a"].frequent == ("a b", "x" * 39 + "…")


def test_values_are_read_once_per_version_of_the_file(tmp_path: Path) -> None:
    path = _make(tmp_path / "d.sqlite")
    first = read_values(path)
    assert read_values(path) is first
    _make(path, "INSERT INTO sale VALUES ('Di', 99, NULL, NULL);")
    os.utime(path, ns=(1, 1))
    assert read_values(path)["sale", "n"].high == 99


def test_unreadable_database_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no database file"):
        read_values(tmp_path / "none.sqlite")
    path = _make(tmp_path / "d.sqlite", "CREATE TABLE t(a); CREATE TABLE u(a UNIQUE); INSERT INTO t VALUES (1);")
    schema = read_schema(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x99" * 4096)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert schema.tables[0].name == "t"
    with pytest.raises(InputError, match="values cannot be read"):
        read_values(path)


def test_profile_has_the_content_of_paverls_prompt(tmp_path: Path) -> None:
    path = _make(tmp_path / "d.sqlite")
    assert profile(read_schema(path), read_values(path)) == (
        "CREATE TABLE shop (\n"
        '    "the name" TEXT NOT NULL, --Example Ada, Bo, Cy\n'
        "    price REAL, --MIN -2.0 MAX 7.0\n"
        "    kind, --Example b, 3, a\n"
        "    note TEXT, --Example x, y\n"
        '    PRIMARY KEY ("the name")\n'
        ");\n\n"
        "CREATE TABLE sale (\n"
        "    shop, --Example Ada, Bo\n"
        "    n INTEGER, --MIN 9 MAX 10\n"
        "    picture BLOB,\n"
        "    empty,\n"
        '    FOREIGN KEY (shop) REFERENCES shop ("the name")\n'
        ");"
    )


def without_not_null(schema: Schema) -> Schema:
    def of(table: Table) -> Table:
        return replace(table, columns=tuple(replace(column, not_null=False) for column in table.columns))

    return replace(schema, tables=tuple(map(of, schema.tables)))


def test_omnisql_schema_shows_two_values_and_is_valid_sql(tmp_path: Path) -> None:
    path = _make(tmp_path / "d.sqlite")
    schema = read_schema(path)
    text = omnisql(schema, read_values(path))
    assert "    price REAL, -- example: [-2.0, 1.5]\n" in text
    assert "    kind, -- example: ['b', 3]\n" in text
    assert "    empty,\n" in text
    assert read_schema(_make(tmp_path / "again.sqlite", text)) == without_not_null(schema)
    text = profile(schema, read_values(path))
    assert read_schema(_make(tmp_path / "profile.sqlite", text)) == schema


def test_omnisql_schema_writes_names_and_foreign_keys_like_its_authors(tmp_path: Path) -> None:
    """Keywords and names with other than word characters have backticks; constraint names are in lower case."""
    path = _make(
        tmp_path / "d.sqlite",
        """
        CREATE TABLE "Free Meals" (Date TEXT NOT NULL, "Count (K-12)" INT, Größe REAL, "2x" INT, "a`b" INT, Plain INT,
            PRIMARY KEY (Date, "2x"));
        CREATE TABLE "order" (Id INT, Day TEXT, "The 2x" INT, Owner INT REFERENCES "order" (Id),
            FOREIGN KEY (Day, "The 2x") REFERENCES "Free Meals" (Date, "2x"));
        """,
    )
    schema = read_schema(path)
    text = omnisql(schema, read_values(path))
    shown = omnisql(schema, read_values(path), dialect="postgresql")
    assert shown == text.replace("``", "\0").replace("`", '"').replace("\0", "`")
    assert text == (
        "CREATE TABLE `Free Meals` (\n"
        "    `Date` TEXT,\n"
        "    `Count (K-12)` INT,\n"
        "    `Größe` REAL,\n"
        "    `2x` INT,\n"
        "    `a``b` INT,\n"
        "    Plain INT,\n"
        "    PRIMARY KEY (`Date`, `2x`)\n"
        ");\n\n"
        "CREATE TABLE `order` (\n"
        "    Id INT,\n"
        "    `Day` TEXT,\n"
        "    `The 2x` INT,\n"
        "    Owner INT,\n"
        "    CONSTRAINT fk_order_owner FOREIGN KEY (Owner) REFERENCES `order` (Id),\n"
        "    CONSTRAINT fk_order_day_the_2x FOREIGN KEY (`Day`, `The 2x`) REFERENCES `Free Meals` (`Date`, `2x`)\n"
        ");"
    )
    assert read_schema(_make(tmp_path / "again.sqlite", text)) == without_not_null(schema)
