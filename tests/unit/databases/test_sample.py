"""Samples of PostgreSQL and MariaDB databases: rows and their parents, values and names."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.databases.sample.sample import SampleReport, sample
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.schema.describe import read_descriptions
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError

pytestmark = pytest.mark.servers

Database = Any
"""A database on a server, `ServerDatabase` of conftest.py."""

Make = Callable[[str, str], Database]
"""Makes a database of an engine by a script."""


def insert(table: str, count: int, row: Callable[[int], str]) -> str:
    """Return the statement that inserts rows 1 to `count`."""
    return f"INSERT INTO {table} VALUES {', '.join(f'({row(i)})' for i in range(1, count + 1))};"


def rows_of(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def tables_of(report: SampleReport) -> dict[str, list[Any]]:
    """Return all rows of a sample, by table."""
    return {name: rows_of(report.path, f'SELECT * FROM "{name}"') for name in report.rows}


def ids(report: SampleReport, table: str) -> set[int]:
    return {number for (number,) in rows_of(report.path, f'SELECT id FROM "{table}"')}


# Key types, each with an expression for its values.
KEYS = {
    "postgresql": [
        ("text", "'it''s \\ \"' || i || ',{}'"),
        ("char(9)", "'ü' || i"),
        ("bytea", "decode(lpad(to_hex(i * 1000), 8, '0'), 'hex')"),
        ("date", "date '0001-01-01' - 20 + i"),
        ("timestamptz", "timestamptz '2000-01-01' + i * interval '1001 us'"),
        ("numeric(30, 3)", "i / 8.0 - 20"),
        ("uuid", "('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid"),
        ("int, k2 text", "i / 10, 'x' || i % 10"),
    ],
    "mariadb": [
        ("varchar(20)", "concat('it''s \\\\ \"', i)"),
        ("char(9) CHARACTER SET latin1", "concat('ü', i)"),
        ("varchar(20) COLLATE utf8mb4_bin", "concat(if(i % 2, 'a', 'A'), i DIV 2)"),
        ("binary(8)", "unhex(lpad(hex(i * 1000), 16, '0'))"),
        ("date", "DATE '2000-01-01' + INTERVAL i DAY"),
        ("datetime(6)", "TIMESTAMP '2000-01-01 00:00:00' + INTERVAL i * 1001 MICROSECOND"),
        ("timestamp(6)", "TIMESTAMP '2001-01-01 00:00:00' + INTERVAL i * 1001 MICROSECOND"),
        ("decimal(30, 3)", "i / 8 - 20"),
        ("bigint unsigned", "9000000000000000000 + i"),
        ("int(5) unsigned zerofill", "i"),
        ("enum('c', 'b', 'a') NOT NULL, k2 int NOT NULL", "1 + i % 3, i"),
        ("uuid", "concat('00000000-0000-0000-0000-', lpad(hex(i), 12, '0'))"),
        ("int, k2 varchar(9) DEFAULT 'x'", "i DIV 10, concat('x', i % 10)"),
    ],
}


class TestParents:
    def test_sample_holds_first_rows_and_their_parents_recursively(self, shop: Database, tmp_path: Path) -> None:
        report = sample(shop.reader, tmp_path, 20)
        assert report.path == tmp_path / shop.name / f"{shop.name}.sqlite"
        assert report.notes == ()
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert rows_of(report.path, "PRAGMA integrity_check") == [("ok",)]
        assert report.rows == {name: len(rows) for name, rows in tables_of(report).items()}
        first = set(range(1, 21))
        assert ids(report, "remark") == first
        lines = {(sale, place) for sale, place, _ in tables_of(report)["line"]}
        by_remarks = {(801 - i, i % 3) for i in first if i % 4}  # a key with a NULL references nothing
        assert lines == by_remarks | {(i, (801 - i) % 3) for i in first}
        sales = first | {sale for sale, _ in lines}
        assert ids(report, "sale") == sales
        assert ids(report, "customer") == first | {901 - i for i in sales}
        assert ids(report, "item") == first | {1 + i % 300 for i in sales if i % 5}

    def test_sample_of_an_unchanged_database_is_reproducible(self, shop: Database, tmp_path: Path) -> None:
        reports = [sample(shop.reader, tmp_path / str(number), 30) for number in range(2)]
        assert tables_of(reports[0]) == tables_of(reports[1])

    def test_small_tables_are_complete(self, shop: Database, tmp_path: Path) -> None:
        report = sample(shop.reader, tmp_path, 10_000)
        assert report.rows == {"customer": 900, "item": 300, "sale": 800, "line": 800, "remark": 800}
        assert sorted(tables_of(report)["line"]) == sorted((801 - i, i % 3, f"note {i}") for i in range(1, 801))

    def test_equal_rows_without_a_key_are_all_sampled(self, engine: str, make_database: Make, tmp_path: Path) -> None:
        script = "CREATE TABLE a(x int, y varchar(9));" + insert("a", 90, lambda i: f"{i % 2}, NULL")
        report = sample(make_database(engine, script).reader, tmp_path, 30)
        assert tables_of(report)["a"] == [(1, None), (0, None)] * 15

    def test_depth_of_a_self_reference_is_limited_and_counted(
        self, engine: str, make_database: Make, tmp_path: Path
    ) -> None:
        script = "CREATE TABLE staff(id int PRIMARY KEY, boss int REFERENCES staff(id));"
        script += insert("staff", 40, lambda i: f"{41 - i}, {42 - i if i > 1 else 'NULL'}")
        report = sample(make_database(engine, script).reader, tmp_path, 2)
        assert ids(report, "staff") == set(range(1, 11))  # two first rows, eight levels
        assert report.notes == ("staff: the sample lacks the parent in staff of 1 row",)

    def test_reference_cycles_are_followed(self, engine: str, make_database: Make, tmp_path: Path) -> None:
        script = "CREATE TABLE a(id int PRIMARY KEY, b int);"
        script += "CREATE TABLE b(id int PRIMARY KEY, a int REFERENCES a(id));"
        script += insert("a", 30, lambda i: f"{i}, {31 - i}") + insert("b", 30, lambda i: f"{i}, {(i + 2) // 3}")
        script += "ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b(id);"
        report = sample(make_database(engine, script).reader, tmp_path, 2)
        # a 1, 2 -> b 30, 29 -> a 10 -> b 21 -> a 7 -> b 24 -> a 8 -> b 23 -> a 8
        assert ids(report, "a") == {1, 2, 7, 8, 10}
        assert ids(report, "b") == {1, 2, 21, 23, 24, 29, 30}
        assert report.notes == ()

    def test_keys_without_a_parent_on_the_server_are_counted(
        self, engine: str, make_database: Make, tmp_path: Path
    ) -> None:
        script = "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY, a int);"
        script += insert("a", 50, lambda i: f"{i}") + insert("b", 20, lambda i: f"{i}, {i + 40}")
        script += "" if engine == "postgresql" else "SET foreign_key_checks = 0;"
        script += "ALTER TABLE b ADD FOREIGN KEY (a) REFERENCES a(id)" + " NOT VALID;" * (engine == "postgresql")
        report = sample(make_database(engine, script).reader, tmp_path, 30)
        assert report.rows == {"a": 40, "b": 20}
        assert report.notes == ("b: the sample lacks the parent in a of 10 rows",)

    def test_parents_are_looked_up_by_keys_of_each_type(self, engine: str, make_database: Make, tmp_path: Path) -> None:
        numbers = "generate_series(1, 100) i" if engine == "postgresql" else "(SELECT seq i FROM seq_1_to_100) s"
        script = ""
        for number, (kind, value) in enumerate(KEYS[engine]):
            key = "k, k2" if "k2" in kind else "k"
            script += (
                f"CREATE TABLE parent{number}(k {kind}, v int, PRIMARY KEY ({key}));"
                f"INSERT INTO parent{number}({key}, v) SELECT {value}, i FROM {numbers};"
                f"CREATE TABLE child{number}(id int PRIMARY KEY, k {kind},"
                f" FOREIGN KEY ({key}) REFERENCES parent{number}({key}));"
                f"INSERT INTO child{number}(id, {key}) SELECT (37 * v) % 101, {key} FROM parent{number};"
            )
        report = sample(make_database(engine, script).reader, tmp_path, 5)
        assert report.notes == ()
        wanted = [(i, v) for i in range(1, 6) for v in range(1, 101) if 37 * v % 101 == i]
        for number, (kind, _) in enumerate(KEYS[engine]):
            on = " AND ".join(f"p.{column} = c.{column}" for column in (("k", "k2") if "k2" in kind else ("k",)))
            joined = f"SELECT id, v FROM child{number} c JOIN parent{number} p ON {on} ORDER BY id"
            assert (rows_of(report.path, joined), report.rows[f"parent{number}"] <= 10) == (wanted, True), kind

    def test_key_references_its_parent_case_insensitively(self, make_database: Make, tmp_path: Path) -> None:
        script = "CREATE TABLE a(id int PRIMARY KEY, code varchar(9) UNIQUE);"
        script += "CREATE TABLE b(id int PRIMARY KEY, code varchar(9), FOREIGN KEY (code) REFERENCES a(code));"
        script += insert("a", 30, lambda i: f"{i}, 'I-{i}'") + insert("b", 5, lambda i: f"{i}, 'i-{i + 20}'")
        report = sample(make_database("mariadb", script).reader, tmp_path, 2)
        assert ids(report, "a") == {1, 2, 21, 22}
        assert report.notes == ()


POSTGRESQL_VALUES = r"""
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN euros AS numeric(10, 2);
CREATE TABLE v(
    id int PRIMARY KEY, a smallint, b bigint, c numeric(6, 2), d numeric, e numeric(20, 0), f real, g float8, h boolean,
    i text, j varchar(9), k char(4), l date, m time, n timestamp, o interval, p uuid, q json, r jsonb, s bytea, t int[],
    u mood, w euros, x inet, y text[], z int4range, oid oid, money money, bit bit(3), tz time with time zone
);
INSERT INTO v(id) VALUES (0);
INSERT INTO v VALUES
 (1, -32768, 9223372036854775807, 1.50, 0.1, 12345678901234567890, 0.1, 1e300, true,
  E'tab\tline\nback\\slash\\N"''\r', 'é%s', 'ab',
  '2024-02-29', '10:00:00.5', '2024-01-01 10:00:00.123456', '1 day 02:00', '00000000-0000-0000-0000-00000000000a',
  '{"a" : 1}', '{"b": [1, null]}', '\x00ff5c', '{1,NULL,3}', 'happy', 3.00, '10.0.0.1/8', '{"a,b","c\\d"}', '[1,5)',
  4294967295, 1.5, '101', '10:00:00+02'),
 (2, 0, -9223372036854775808, 3.00, 7, 42, 'Infinity', '-Infinity', false, '\N', '', '',
  'infinity', '24:00', '0044-03-15 00:00:00 BC',
  '-3 months', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'null', '"x"', '', '{}', 'sad',
  -0.01, '::1', '{}', 'empty', 0, -1, '000',
  '00:00:00+00');
"""
MARIADB_VALUES = r"""
CREATE TABLE v(
    id int PRIMARY KEY, a tinyint(1), b bigint, c decimal(6, 2), d decimal(20, 0), e float, f double, g varchar(30),
    h char(4), i text, j date, k time, l datetime(3), m timestamp NULL, n year, o bit(11), p binary(4), q varbinary(9),
    r blob, s enum('sad', 'happy'), t set('x', 'y'), u json, w bigint unsigned, x point, y uuid, z inet6,
    aa varchar(9) CHARACTER SET latin1, ab varchar(9) COLLATE utf8mb4_bin
);
INSERT INTO v(id) VALUES (0);
INSERT INTO v VALUES
 (1, 1, 9223372036854775807, 1.50, 12345678901234567890, 0.1, 1e300,
  'tab\tline\nback\\slash\'é%s🙂', 'ab', 'x', '2024-02-29',
  '-838:59:59', '2024-01-01 10:00:00.5', '2024-01-01 10:00:00', 2024, b'10100000001', 'a', x'00ff5c', x'00',
  'happy', 'x,y', '{\"a\" : 1}', 18446744073709551615, POINT(1, 2),
  '00000000-0000-0000-0000-00000000000a', '::1', 'Zürich', 'A'),
 (2, -1, -9223372036854775808, 3.00, 42, 1e10, -0.0, '', '', '', '1000-01-01', '00:00:01',
  '9999-12-31 23:59:59.999', NULL,
  1999, b'0', '', '', '', 'sad', '', 'null', 0, POINT(0, 0), NULL, 'ffff::', '', 'a')
"""
# Per engine: a script, its number of columns, and queries whose result depends on a declared type or collation.
VALUES = {
    "postgresql": (POSTGRESQL_VALUES, 30, [
        "SELECT c / 2, w / 2 FROM v ORDER BY id",
        "SELECT id FROM v WHERE k = 'ab' OR l > '2024-01-01'",
        "SELECT h, count(*) FROM v WHERE h IS NOT NULL GROUP BY h ORDER BY h",
        "SELECT id FROM v WHERE h",
    ]),
    "mariadb": (MARIADB_VALUES, 28, [
        "SELECT c / 2 FROM v WHERE c > 1 ORDER BY id",
        "SELECT id FROM v WHERE h = 'AB' OR j > '2024-01-01'",
        "SELECT id FROM v WHERE ab = 'A'",
        "SELECT id FROM v WHERE a ORDER BY id",
    ]),
}  # fmt: skip


class TestValues:
    def test_values_equal_those_of_the_executor(self, engine: str, make_database: Make, tmp_path: Path) -> None:
        script, columns, queries = VALUES[engine]
        database = make_database(engine, script)
        path = sample(database.reader, tmp_path, 10).path
        names = [column.name for column in read_schema(path).tables[0].columns]
        assert len(names) == columns
        queries = [*(f"SELECT {name} FROM v ORDER BY id" for name in names), *queries]
        with Executor(threads=2) as executor:
            sampled = executor.execute_many([(str(path), query) for query in queries])
            on_server = executor.execute_many([(database.reader, query) for query in queries])
        for query, outcome, other in zip(queries, sampled, on_server, strict=True):
            assert (outcome.status, outcome.rows) == ("ok", other.rows), query

    def test_times_with_a_zone_are_stored_in_utc_for_date_functions(self, make_database: Make, tmp_path: Path) -> None:
        script = "CREATE TABLE v(id int PRIMARY KEY, at timestamptz);"
        script += "INSERT INTO v VALUES (1, '2024-01-01 00:30:00+02'), (2, NULL), (3, '0044-03-15 00:00:00+00 BC')"
        path = sample(make_database("postgresql", script).reader, tmp_path, 10).path
        assert rows_of(path, "SELECT at, strftime('%Y', at) FROM v WHERE id < 3") == [
            ("2023-12-31 22:30:00", "2023"), (None, None),
        ]  # fmt: skip
        assert rows_of(path, "SELECT at FROM v WHERE id = 3") == [("0044-03-15 00:00:00 BC",)]

    def test_nan_becomes_null_and_is_counted(self, make_database: Make, tmp_path: Path) -> None:
        script = "CREATE TABLE v(id int PRIMARY KEY, a float8, b numeric(5, 1), c text);"
        script += "INSERT INTO v VALUES (1, 'NaN', 'NaN', 'NaN'), (2, 'Infinity', 1, NULL)"
        database = make_database("postgresql", script)
        report = sample(database.reader, tmp_path, 10)
        assert tables_of(report)["v"] == [(1, None, None, "NaN"), (2, float("inf"), 1.0, None)]
        assert report.notes == ("public.v.a: NaN became NULL 1 time", "public.v.b: NaN became NULL 1 time")
        database.run("ALTER TABLE v ALTER a SET NOT NULL")
        with pytest.raises(InputError, match=r"public\.v: .*v\.a.* omit the column with --leave-out"):
            sample(database.reader, tmp_path / "again", 10)
        assert not (tmp_path / "again" / database.name).exists()


class TestNames:
    def test_hostile_names_are_sampled(self, engine: str, make_database: Make, tmp_path: Path) -> None:
        script = (
            'CREATE TABLE "select"("a b" int PRIMARY KEY, "it\'s ""x`" int, "1%s" int, "grö\\ße" int, "order" int);'
        )
        script += 'CREATE TABLE "Sub.Table"("#" int PRIMARY KEY, "x.y" int REFERENCES "select"("a b"), "%" int);'
        script += insert('"select"', 50, lambda i: f"{i}, 2, 3, 4, 5")
        script += insert('"Sub.Table"', 50, lambda i: f"{i}, {51 - i}, 6")
        report = sample(make_database(engine, script).reader, tmp_path, 10, ["select.order", "Sub.Table.%"])
        names = [name for name, *_ in rows_of(report.path, "SELECT name FROM pragma_table_info('select')")]
        assert names == ["a b", "it's \"x`", "1%s", "grö\\ße"]
        joined = 'SELECT count(*) FROM "select" s JOIN "Sub.Table" t ON s."a b" = t."x.y"'
        assert (report.rows, rows_of(report.path, joined)) == ({"select": 20, "Sub.Table": 10}, [(10,)])

    def test_a_table_that_another_schema_hides_is_left_out(self, make_database: Make, tmp_path: Path) -> None:
        database = make_database(
            "postgresql",
            "CREATE SCHEMA crm; CREATE TABLE item(id int PRIMARY KEY); CREATE TABLE crm.item(id int PRIMARY KEY);"
            "CREATE TABLE crm.note(id int REFERENCES crm.item);"
            "INSERT INTO crm.item VALUES (1); INSERT INTO crm.note VALUES (1)",
        )
        report = sample(database.reader, tmp_path, 10)
        assert tables_of(report) == {"item": [], "note": [(1,)]}
        assert sample(database.reader, tmp_path / "3", 10, ["public.item"]).rows.keys() == {"note"}

    def test_partitions_and_child_tables_are_read_with_their_table(self, make_database: Make, tmp_path: Path) -> None:
        database = make_database(
            "postgresql",
            "CREATE TABLE log(id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
            "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
            "CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')"
            " PARTITION BY HASH (id);"
            "CREATE TABLE log_2a PARTITION OF log_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
            "CREATE TABLE log_2b PARTITION OF log_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
            "CREATE TABLE remark(id int PRIMARY KEY, log int, day date, FOREIGN KEY (log, day) REFERENCES log);"
            "INSERT INTO log SELECT i, date '2024-01-01' + i % 60 FROM generate_series(1, 600) i;"
            "INSERT INTO remark SELECT 601 - id, id, day FROM log;"
            "CREATE TABLE base(id int); CREATE TABLE heir(more int) INHERITS (base);"
            "INSERT INTO base VALUES (1); INSERT INTO heir VALUES (2, 3);",
        )
        report = sample(database.reader, tmp_path, 50)
        assert report.rows == {"log": 100, "remark": 50, "base": 2, "heir": 1}
        assert ids(report, "log") == {*range(1, 51), *range(551, 601)}
        assert tables_of(report)["base"] == [(1,), (2,)]
        assert report.notes == ()

    def test_comments_are_read_as_descriptions(self, engine: str, make_database: Make, tmp_path: Path) -> None:
        comment = "'weight, in \"kg\"\nor less'"
        script = "CREATE TABLE other(a int); CREATE TABLE item(id int PRIMARY KEY, "
        if engine == "postgresql":
            script += f"wt float8); COMMENT ON COLUMN item.wt IS {comment}"
        else:
            script += f"wt double COMMENT {comment})"
        report = sample(make_database(engine, script).reader, tmp_path, 10)
        assert read_descriptions(report.path).of("item", "wt") == 'weight, in "kg" or less'
        assert read_descriptions(report.path).errors == ()
        assert [file.name for file in (report.path.parent / "database_description").iterdir()] == ["item.csv"]
