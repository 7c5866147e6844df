"""The schemas of released code, to the byte: the expected texts are written by hand from the rules."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import DataConfig
from jaxrl_sql.text2sql.schema import RENDERERS, read_schema
from jaxrl_sql.types import Example, InputError

SCRIPT = """
CREATE TABLE dept (id INTEGER PRIMARY KEY AUTOINCREMENT, "Dept Name" TEXT NOT NULL, -- its name
  budget REAL);
CREATE TABLE "order" (dept INT REFERENCES dept, day TEXT, note TEXT, PRIMARY KEY (day, dept));
CREATE INDEX by_day ON "order"(day);
CREATE TABLE `2nd` (transaction_no INT, "transaction" BLOB, session TEXT);
CREATE VIEW v AS SELECT 1;
INSERT INTO dept ("Dept Name", budget) VALUES ('', 1.5), ('Tea', NULL), ('Tea', 2.0),
  ('A department with a very long and rich name', 2.0), ('Cups', 3.0);
"""
# The order, types and keys are the tables file's, which may differ from the database's.
RECORD: dict[str, Any] = {
    "db_id": "d",
    "table_names_original": ["dept", "order", "2nd", "sqlite_sequence"],
    "column_names_original": [
        [-1, "*"], [0, "id"], [0, "Dept Name"], [0, "budget"], [1, "dept"], [1, "day"], [1, "note"],
        [2, "transaction_no"], [2, "transaction"], [2, "session"], [3, "name"],
    ],
    "column_names": [
        [-1, "*"], [0, "dept id"], [0, "dept name"], [0, " "], [1, "department"], [1, "day"], [1, "free text"],
        [2, "transactionno"], [2, "bytes"], [2, "session"], [3, "name"],
    ],
    "column_types": [
        "text", "number", "text", "real", "number", "time", "text", "number", "others", "text", "text",
    ],
    "primary_keys": [1, [5, 4]],
    "foreign_keys": [[7, 4], [4, 1], [4, 1]],
}  # fmt: skip
STRICT = """CREATE TABLE dept (
    id number, -- dept id, example: [1, 2]
    `Dept Name` text, -- example: ['Tea', 'A department with a very long and rich n']
    budget real, -- example: [1.5, 2.0]
    PRIMARY KEY (id)
);

CREATE TABLE `order` (
    dept number, -- department
    `day` time,
    note text, -- free text
    PRIMARY KEY (dept, `day`),
    CONSTRAINT fk_order_dept FOREIGN KEY (dept) REFERENCES dept (id)
);

CREATE TABLE 2nd (
    transaction_no number, -- transactionno
    transaction others, -- bytes
    `session` text,
    CONSTRAINT fk_2nd_transaction_no FOREIGN KEY (transaction_no) REFERENCES `order` (dept)
);

CREATE TABLE sqlite_sequence (
    name text, -- example: ['dept']
);"""


@pytest.fixture
def example(tmp_path: Path) -> Example:
    path = tmp_path / "set/database/d/d.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
    (tmp_path / "set/tables.json").write_text(json.dumps([{"db_id": "other"}, RECORD]))
    return Example("q1", "d", str(path), "?", "SELECT 1")


def test_omnisql_strict_follows_the_tables_file(example: Example) -> None:
    """A last line with a comment keeps its comma, as in the released prompts."""
    assert RENDERERS["omnisql_strict"](example, read_schema(example.db_path)) == STRICT


def test_values_that_the_question_names_come_first_up_to_six(example: Example) -> None:
    matched = tuple(("dept", "Dept Name", value) for value in ("Cups", "Tea", "x  y", "b", "c", "d", "e"))
    schema = dataclasses.replace(read_schema(example.db_path), matched=matched)
    shown = RENDERERS["omnisql_strict"](example, schema)
    assert "`Dept Name` text, -- example: ['Cups', 'Tea', 'x  y', 'b', 'c', 'd']\n" in shown


def test_part_of_a_schema_has_its_columns_and_whole_references(example: Example) -> None:
    hidden = dataclasses.replace(example, hide=("dept.id", "dept.budget", "2nd"))
    shown = RENDERERS["omnisql_strict"](hidden, read_schema(hidden.db_path, hidden.hide))
    assert shown.startswith("CREATE TABLE dept (\n    `Dept Name` text, -- example: ['Tea', ")
    assert "budget" not in shown
    assert "2nd" not in shown
    assert "fk_order_dept" not in shown


def test_missing_tables_file_is_an_error(example: Example, tmp_path: Path) -> None:
    (tmp_path / "set/tables.json").unlink()
    with pytest.raises(InputError, match=r"omnisql_strict needs the tables file of the set \(tables\.json\) with d"):
        RENDERERS["omnisql_strict"](example, read_schema(example.db_path))


def test_changed_files_are_read_again(example: Example, tmp_path: Path) -> None:
    schema = read_schema(example.db_path)
    assert "dept id" in RENDERERS["omnisql_strict"](example, schema)
    path = tmp_path / "set/tables.json"
    path.write_text(path.read_text().replace("dept id", "key of the department"))
    assert "key of the department" in RENDERERS["omnisql_strict"](example, schema)


def test_raw_ddl_is_the_text_of_the_database(example: Example) -> None:
    statements = [
        (
            'CREATE TABLE dept (id INTEGER PRIMARY KEY AUTOINCREMENT, "Dept Name" TEXT NOT NULL, -- its name\n'
            "  budget REAL)"
        ),
        "CREATE TABLE sqlite_sequence(name,seq)",
        'CREATE TABLE "order" (dept INT REFERENCES dept, day TEXT, note TEXT, PRIMARY KEY (day, dept))',
        'CREATE TABLE `2nd` (transaction_no INT, "transaction" BLOB, session TEXT)',
    ]
    assert RENDERERS["raw_ddl"](example, read_schema(example.db_path)) == "\n\n".join(statements)


@pytest.mark.parametrize("settings", [{"hide": ["dept.id"]}, {"prune": True}, {"schema_budget": 100}])
def test_raw_ddl_cannot_be_reduced(settings: dict[str, Any]) -> None:
    (error,) = DataConfig(schema="raw_ddl", **settings).find_errors("data")
    assert error.startswith("data.schema=raw_ddl is the text of the database")
    assert not [*DataConfig(schema="omnisql_strict", **settings).find_errors("data")]
