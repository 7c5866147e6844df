"""Copied databases: keys, indexes, comments and collations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl_sql.commands.copy import main

CopyTarget = Any
"""A server or folder to copy to, `CopyTarget` of conftest.py."""

MakeFile = Callable[..., Path]
"""Makes a SQLite file in a folder by a script, and returns the folder."""

Refusal = Callable[[Sequence[str]], str]
"""Returns the one line with which a command is refused."""


KEYS = """
CREATE TABLE City (Id INTEGER PRIMARY KEY, Name TEXT NOT NULL UNIQUE, note TEXT);
CREATE TABLE person (code TEXT PRIMARY KEY, city INT REFERENCES City, boss TEXT REFERENCES person,
  born DATE, at DATETIME);
CREATE TABLE visit (person TEXT, city INTEGER, day TEXT, PRIMARY KEY (person, day),
  FOREIGN KEY (person) REFERENCES person (code), FOREIGN KEY (city) REFERENCES city (id));
CREATE TABLE stay (person TEXT, day TEXT, FOREIGN KEY (person, day) REFERENCES visit (person, day));
CREATE TABLE lost (city INT REFERENCES city (id), name INT REFERENCES city (name), note TEXT REFERENCES city (note));
CREATE TABLE loose (k TEXT PRIMARY KEY, v INT);
CREATE INDEX by_day ON visit (day DESC, city);
CREATE UNIQUE INDEX once ON stay (person, day);
CREATE INDEX odd ON visit (lower(day));
CREATE INDEX part ON visit (day) WHERE city > 1;
CREATE VIEW seen AS SELECT * FROM visit;
INSERT INTO City VALUES (1, 'Oslo', 'x'), (2, 'Lima', 'x');
INSERT INTO person VALUES ('a', 1, NULL, '2020-01-01', '2020-01-01 10:00:00'), ('b', 2, 'a', NULL, NULL);
INSERT INTO visit VALUES ('a', 1, '2024'), ('b', 2, '2024');
INSERT INTO stay VALUES ('a', '2024'), ('b', NULL), ('b', NULL);
INSERT INTO lost VALUES (1, 5, 'x'), (9, NULL, NULL);
INSERT INTO loose VALUES ('a', 1), (NULL, 2), (NULL, 3);
"""
EXPECTED_NOTES = [
    "the view seen is omitted",
    "visit: 2 indexes of expressions or partial indexes are dropped",
    "loose: its primary key (k) has NULL values and becomes a unique key",
    "lost: the foreign key (city) to City (Id) is dropped: 1 row references no row",
    "lost: the foreign key (name) to City (Name) is dropped: its columns have other types",
    "lost: the foreign key (note) to City (note) is dropped: it does not reference a key",
]


def test_keys_indexes_types_and_comments_are_copied(tmp_path: Path, target: CopyTarget, make_file: MakeFile) -> None:
    folder = make_file(tmp_path / "in" / "databases", "keys", KEYS)
    described = folder / "keys" / "database_description"
    described.mkdir()
    (described / "City.csv").write_text(
        "original_column_name,column_name,column_description\nNote,,what people's \\ say\n", encoding="utf-8"
    )
    assert main(target.arguments(tmp_path / "in")) == 0
    itself = "person: the foreign key (boss) to person is dropped: DuckDB needs the referenced rows first"
    assert target.entry("keys")["notes"] == EXPECTED_NOTES + ([itself] if target.engine == "duckdb" else [])
    constraints = {
        "duckdb": """SELECT table_name, constraint_type, list_sort(constraint_column_names)::VARCHAR
                     FROM duckdb_constraints() WHERE constraint_type <> 'NOT NULL'""",
        "postgresql": """SELECT conrelid::regclass::text, contype::text,
                         (SELECT array_agg(attname ORDER BY attname)::text FROM pg_attribute
                          WHERE attrelid = conrelid AND attnum = ANY (conkey)) FROM pg_constraint
                         WHERE connamespace = 'public'::regnamespace""",
        "mariadb": """SELECT table_name, constraint_type, (SELECT GROUP_CONCAT(column_name ORDER BY column_name)
                      FROM information_schema.key_column_usage AS k WHERE k.table_schema = c.table_schema
                      AND k.table_name = c.table_name AND k.constraint_name = c.constraint_name)
                      FROM information_schema.table_constraints AS c WHERE table_schema = DATABASE()""",
    }
    rows = target.fetch("keys", constraints[target.engine])
    result = {(table, kind[0].lower(), names.strip("{}[]").replace(" ", "")) for table, kind, names in rows}
    wanted = {
        ("city", "p", "id"), ("city", "u", "name"), ("person", "p", "code"), ("person", "f", "city"),
        ("person", "f", "boss"), ("visit", "p", "day,person"), ("visit", "f", "person"), ("visit", "f", "city"),
        ("stay", "f", "day,person"), ("stay", "u", "day,person"), ("loose", "u", "k"),
    }  # fmt: skip
    assert result == wanted - ({("person", "f", "boss")} if target.engine == "duckdb" else set())
    indexes = {
        "duckdb": "SELECT count(*) FROM duckdb_indexes()",
        "postgresql": "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%visit%(day, city)'",
        "mariadb": """SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
                      AND table_name = 'visit' AND index_name = 'day'""",
    }
    assert target.fetch("keys", indexes[target.engine]) == [(2 if target.engine == "mariadb" else 1,)]
    comments = {
        "duckdb": "SELECT comment FROM duckdb_columns() WHERE comment IS NOT NULL",
        "postgresql": "SELECT col_description('city'::regclass, 3)",
        "mariadb": "SELECT column_comment FROM information_schema.columns WHERE column_comment <> '' AND table_schema = DATABASE()",  # noqa: E501
    }
    assert target.fetch("keys", comments[target.engine]) == [("what people's \\ say",)]
    types = target.fetch("keys", "SELECT data_type FROM information_schema.columns WHERE table_name = 'person' "
                        f"AND table_schema = {'DATABASE()' if target.engine == 'mariadb' else 'current_schema()'} "
                        "ORDER BY ordinal_position")  # fmt: skip
    assert [kind.lower() for (kind,) in types] == {
        "duckdb": ["varchar", "bigint", "varchar", "date", "timestamp"],
        "postgresql": ["text", "bigint", "text", "date", "timestamp without time zone"],
        "mariadb": ["varchar", "bigint", "varchar", "date", "datetime"],
    }[target.engine]


def test_text_is_compared_and_sorted_byte_by_byte(tmp_path: Path, target: CopyTarget, make_file: MakeFile) -> None:
    texts = ["b", "B", "a", "é", "e", "Z", "a ", ""]
    script = "CREATE TABLE t (w TEXT UNIQUE); CREATE TABLE n (w TEXT COLLATE nocase)"
    source = make_file(tmp_path / "in", "words", script, {"t": [(word,) for word in texts]})
    assert main(target.arguments(source)) == 0
    assert target.entry("words")["notes"] == ["n: NOCASE and RTRIM are dropped: texts are compared byte by byte"]
    assert [word for (word,) in target.fetch("words", "SELECT w FROM t ORDER BY w")] == sorted(texts)
    assert target.fetch("words", "SELECT w FROM t WHERE w = 'a'") == [("a",)]


def test_key_too_long_for_mariadb_is_omitted(
    tmp_path: Path, make_target: Callable[[str], CopyTarget], make_file: MakeFile
) -> None:
    target = make_target("mariadb")
    script = "CREATE TABLE t (k TEXT PRIMARY KEY, s TEXT UNIQUE)"
    source = make_file(tmp_path / "in", "long", script, {"t": [("x" * 701, "y" * 700)]})
    assert main(target.arguments(source)) == 0
    assert target.entry("long")["notes"] == ["t: the primary key (k) is dropped: MariaDB holds 700 characters"]
    assert target.entry("long")["tables"]["t"]["unique"] == [["s"]]


def test_row_too_long_for_mariadb_is_reported(
    tmp_path: Path, make_target: Callable[[str], CopyTarget], make_file: MakeFile, refusal: Refusal
) -> None:
    target = make_target("mariadb")
    source = make_file(tmp_path / "in", "wide", "CREATE TABLE t (s TEXT)", {"t": [("x" * (1 << 20),)]})
    assert "raise max_allowed_packet" in refusal(target.arguments(source))
