"""Description files next to a database: found, reported if faulty, and shown unless they repeat the name."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.text2sql.schema import omnisql, read_descriptions, read_schema, read_values
from jaxrl_sql.text2sql.schema.render import profile
from jaxrl_sql.types import Example, InputError

HEAD = "original_column_name,column_name,column_description,data_format,value_description\n"
SCRIPT = 'CREATE TABLE School(CDSCode TEXT PRIMARY KEY, "Academic  Year" TEXT, ncesdist INT, plain, free_meals REAL);'
FIRST = (
    HEAD
    + "cdscode,CDSCode,CDSCode,integer,\n"
    + ' Academic Year ,Academic Year,"the year, as\nin 2014-2015",text,commonsense evidence:\n'
    + '"`NCESDist`",,National Center for Educational Statistics district number,integer,1 is none\n'
    + "plain,,,,\n"
    + "free_meals,Free Meals (K-12),Free meals,real,\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a database in the layout of BIRD and Spider."""
    path = tmp_path / "sets" / "dev_databases" / "schools" / "schools_v1.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT + "INSERT INTO School VALUES ('01', '2014-2015', 3, NULL, 0.5);")
    return path


def describe(path: Path, content: bytes, name: str = "school.csv") -> Path:
    folder = path.parent / "database_description"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def test_profile_shows_descriptions_before_values(path: Path) -> None:
    describe(path, FIRST.encode())
    shown = profile(read_schema(path), read_values(path), read_descriptions(path))
    assert "--National Center for Educational Statistics district number, values: 1 is none; MIN 3 MAX 3\n" in shown
    assert "--the year, as in 2014-2015; Example 2014-2015\n" in shown
    assert "CDSCode TEXT, --Example 01\n" in shown


def test_descriptions_are_shown_unless_they_repeat_the_name(path: Path) -> None:
    describe(path, FIRST.encode())
    descriptions = read_descriptions(path)
    assert descriptions.errors == ()
    assert descriptions.columns["school", "ncesdist"] == (
        "National Center for Educational Statistics district number", "", "integer", "1 is none",
    )  # fmt: skip
    assert omnisql(read_schema(path), read_values(path), descriptions) == (
        "CREATE TABLE School (\n"
        "    CDSCode TEXT, -- example: ['01']\n"
        "    `Academic  Year` TEXT, -- the year, as in 2014-2015, example: ['2014-2015']\n"
        "    ncesdist INTEGER, -- National Center for Educational Statistics district number, "
        "values: 1 is none, example: [3]\n"
        "    plain,\n"
        "    free_meals REAL, -- Free Meals (K-12), example: [0.5]\n"
        "    PRIMARY KEY (CDSCode)\n"
        ");"
    ).replace("INTEGER", "INT")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_descriptions_are_read_in_any_encoding(path: Path, encoding: str) -> None:
    describe(path, (HEAD + "plain,,größer – als,,\n").encode(encoding), "School.CSV")
    assert read_descriptions(path).of("school", "PLAIN") == "größer – als"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "no column original_column_name"),
        (b"a,b\n1,2\n", "no column original_column_name"),
        (HEAD.encode(), "no column is described"),
        (b"\xff\xfe\x00\x01" * 50, "no column original_column_name"),
        ((HEAD + 'plain,,"x,,\nother,,y,,\n').encode(), "read in part (a quote is opened and never closed)"),
        ((HEAD + f"plain,,{'x' * 200_000},,\n").encode(), "read in part (field larger than field limit"),
    ],
)
def test_faulty_files_are_reported_and_the_others_read(path: Path, content: bytes, error: str) -> None:
    describe(path, FIRST.encode())
    faulty = describe(path, content, "zoo.csv")
    descriptions = read_descriptions(path)
    assert len(descriptions.errors) == 1
    assert descriptions.errors[0].startswith(f"{faulty}: {error}")
    assert descriptions.of("School", "free_meals") == "Free Meals (K-12)"
    prompts = make_prompts([Example("q", "d", str(path), "Q?", "SELECT 1")] * 2, compact_style(), Letters(), 1000)
    assert prompts.errors == descriptions.errors


class Letters:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))


def test_rows_before_an_error_and_ragged_rows_are_read(path: Path) -> None:
    describe(
        path,
        (
            HEAD + "plain,,first\nfree_meals,,second,real,x,too,many\n,,nothing,,\n" + f"ncesdist,{'x' * 200_000}\n"
        ).encode(),
    )
    descriptions = read_descriptions(path)
    assert (descriptions.of("school", "plain"), descriptions.of("school", "free_meals")) == (
        "first",
        "second, values: x",
    )
    assert len(descriptions.errors) == 1


def test_long_texts_are_truncated(path: Path) -> None:
    describe(path, (HEAD + f"plain,,{'word ' * 100},,\n").encode())
    description = read_descriptions(path).of("School", "plain")
    assert len(description) == 200
    assert description.endswith("…")


def natural(*columns: tuple[str, str], db_id: str = "schools") -> dict[str, object]:
    return {
        "db_id": db_id,
        "table_names_original": ["School"],
        "column_names_original": [[-1, "*"], *([0, original] for original, _ in columns)],
        "column_names": [[-1, "*"], *([0, name] for _, name in columns)],
    }


@pytest.mark.parametrize("name", ["tables.json", "dev_tables.json"])
def test_natural_names_of_spider_are_used_without_other_descriptions(path: Path, name: str) -> None:
    records = [
        natural(("plain", "no"), db_id="other"),
        {"db_id": "torn"},
        natural(("ncesdist", "district"), ("plain", "Plain")),
    ]
    file = path.parents[2] / name
    file.write_text(json.dumps(records))
    descriptions = read_descriptions(path)
    assert (descriptions.of("School", "ncesdist"), descriptions.of("School", "plain")) == ("district", "")
    assert descriptions.errors == (f"{file}: record 1 cannot be read (KeyError('table_names_original'))",)
    describe(path, (HEAD + "ncesdist,,better,,\n").encode())
    assert read_descriptions(path).of("School", "ncesdist") == "better"


@pytest.mark.parametrize("content", ["", "7", '{"db_id": 1}', "[1]"])
def test_invalid_file_of_natural_names_is_reported(path: Path, content: str) -> None:
    (path.parents[2] / "tables.json").write_text(content)
    descriptions = read_descriptions(path)
    assert (len(descriptions.errors), dict(descriptions.columns)) == (1, {})


def test_changed_file_is_read_again_and_a_missing_file_is_no_error(path: Path) -> None:
    assert read_descriptions(path) == ({}, ())
    file = describe(path, (HEAD + "plain,,one,,\n").encode())
    first = read_descriptions(path)
    assert read_descriptions(path) is first
    file.write_text(HEAD + "plain,,two,,\n")
    os.utime(file, ns=(1, 1))
    assert read_descriptions(path).of("School", "plain") == "two"
    with pytest.raises(InputError, match="no database file"):
        read_descriptions(path.with_name("none.sqlite"))
