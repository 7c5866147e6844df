"""Samples out of a PostgreSQL server: closed, consistent, the same again, masked, and without locks."""

from __future__ import annotations

import itertools
import json
import os
import re
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from jaxrl_sql.data.schema.describe import read_descriptions
from jaxrl_sql.datagen.copy.__main__ import main
from jaxrl_sql.datagen.snapshot import postgresql as snapshot_postgresql
from jaxrl_sql.datagen.snapshot.take import SnapshotReport, snapshot
from jaxrl_sql.sqlenv.executor import Executor
from jaxrl_sql.types import InputError
from sqlexec_rs.servers import Server

KEY = b"a key for the masks of this test"
SHOP = """
CREATE TABLE customer(id int PRIMARY KEY, name text NOT NULL, email text UNIQUE);
CREATE TABLE item(id int PRIMARY KEY, code varchar(8) UNIQUE, price numeric(8, 2));
CREATE TABLE sale(id bigint PRIMARY KEY, customer_id int NOT NULL REFERENCES customer,
    code varchar(8) REFERENCES item(code));
CREATE TABLE line(sale_id bigint REFERENCES sale, place int, note text, PRIMARY KEY (sale_id, place));
CREATE TABLE remark(sale_id bigint, place int, text text, FOREIGN KEY (sale_id, place) REFERENCES line);
INSERT INTO customer SELECT i, 'name ' || i, 'c' || i || '@shop.example' FROM generate_series(1, 900) i;
INSERT INTO item SELECT i, 'I-' || i, i / 4.0 FROM generate_series(1, 300) i;
INSERT INTO sale
    SELECT i, 1 + i * 7 % 900, CASE WHEN i % 5 > 0 THEN 'I-' || 1 + i % 300 END FROM generate_series(1, 2000) i;
INSERT INTO line SELECT 1 + i % 2000, i / 2000, 'note ' || i FROM generate_series(0, 5999) i;
INSERT INTO remark
    SELECT 1 + i % 2000, CASE WHEN i % 3 > 0 THEN i % 3 END, 'remark ' || i FROM generate_series(0, 2999) i;
"""


@pytest.fixture(scope="module")
def server(start_server: Callable[[str, str], Server]) -> Server:
    """Return a PostgreSQL server of its own."""
    return start_server("postgresql", "SELECT 1")


class Database:
    """A database of the server, its owner's and its reader's URL."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.owner = server.owner.rpartition("/")[0] + f"/{name}"
        self.reader = server.reader.rpartition("/")[0] + f"/{name}"
        with closing(psycopg2.connect(server.owner)) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name}")
        self.run("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader")
        self.run("ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO reader")

    def run(self, script: str, *, lock_timeout: str = "5s") -> list[Any]:
        """Run statements as the owner."""
        with closing(psycopg2.connect(self.owner)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(f"SET lock_timeout = '{lock_timeout}'")
            cursor.execute(script)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def make_database(server: Server) -> Callable[[str], Database]:
    """Return what makes a database by a script."""
    numbers = itertools.count()

    def make(script: str) -> Database:
        database = Database(server, f"test_{os.urandom(4).hex()}_{next(numbers)}")
        database.run(script)
        return database

    return make


@pytest.fixture(scope="module")
def shop(server: Server) -> Database:
    """Return a shop that no test changes."""
    database = Database(server, "shop")
    database.run(SHOP)
    return database


def rows_of(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def tables_of(report: SnapshotReport) -> dict[str, list[Any]]:
    """Return all rows of the copy by table, sorted."""
    return {name: sorted(rows_of(report.path, f'SELECT * FROM "{name}"'), key=repr) for name in report.tables}


def statistics_of(report: SnapshotReport) -> dict[str, Any]:
    return json.loads(report.path.with_suffix("").with_suffix(".statistics.json").read_text(encoding="utf-8"))["tables"]


class TestClosure:
    def test_every_kept_row_has_its_parents(self, shop: Database, tmp_path: Path) -> None:
        report = snapshot(shop.reader, tmp_path, 50)
        assert report.path == tmp_path / "shop" / "shop.sqlite"
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert rows_of(report.path, "PRAGMA integrity_check") == [("ok",)]
        kept = {name: (count.kept, count.rows) for name, count in report.tables.items()}
        assert kept["remark"] == (50, 3000)
        assert kept == {name: (len(rows), kept[name][1]) for name, rows in tables_of(report).items()}
        assert [kept[name][1] for name in ("customer", "item", "sale", "line")] == [900, 300, 2000, 6000]

    def test_more_than_was_asked_for_is_kept_only_where_it_is_needed(self, shop: Database, tmp_path: Path) -> None:
        report = snapshot(shop.reader, tmp_path, 40)
        for child, columns, parent, targets in (
            ("remark", "sale_id, place", "line", "sale_id, place"),
            ("line", "sale_id", "sale", "id"),
            ("sale", "customer_id", "customer", "id"),
            ("sale", "code", "item", "code"),
        ):
            count = report.tables[parent].kept
            sql = f"SELECT count(*) FROM {parent} WHERE ({targets}) IN (SELECT {columns} FROM {child})"
            needed = rows_of(report.path, sql)[0][0]
            assert count == max(40, needed)
            assert any(note.startswith(f"public.{parent}: {count - 40} rows more") for note in report.notes) == (
                count > 40
            )

    def test_a_table_that_refers_to_itself_stays_within_its_limit(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE staff(id int PRIMARY KEY, boss int REFERENCES staff);"
            "INSERT INTO staff SELECT i, nullif(i / 3, 0) FROM generate_series(1, 3000) i"
        )
        report = snapshot(database.reader, tmp_path, 100)
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert report.tables["staff"].kept == 100

    def test_a_circle_that_is_longer_than_the_limit_is_kept_whole_and_told(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE a(id int PRIMARY KEY, b int); CREATE TABLE b(id int PRIMARY KEY, a int REFERENCES a);"
            "INSERT INTO a SELECT i, i FROM generate_series(1, 30) i;"
            "INSERT INTO b SELECT i, i % 30 + 1 FROM generate_series(1, 30) i;"
            "ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b"
        )
        report = snapshot(database.reader, tmp_path, 5)
        assert {name: count.kept for name, count in report.tables.items()} == {"a": 30, "b": 30}
        assert report.notes == (
            "public.a: 25 rows more than 5, as kept rows refer to them",
            "public.b: 25 rows more than 5, as kept rows refer to them",
        )

    def test_circles_between_tables_are_closed(self, make_database: Callable[[str], Database], tmp_path: Path) -> None:
        database = make_database(
            "CREATE TABLE team(id int PRIMARY KEY, lead int);"
            "CREATE TABLE player(id int PRIMARY KEY, team int REFERENCES team);"
            "CREATE TABLE goal(id int PRIMARY KEY, player int REFERENCES player);"
            "INSERT INTO team SELECT i, i * 10 FROM generate_series(1, 400) i;"
            "INSERT INTO player SELECT i, 1 + i % 400 FROM generate_series(1, 4000) i;"
            "INSERT INTO goal SELECT i, 1 + i * 11 % 4000 FROM generate_series(1, 9000) i;"
            "ALTER TABLE team ADD FOREIGN KEY (lead) REFERENCES player"
        )
        report = snapshot(database.reader, tmp_path, 60)
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert report.tables["goal"].kept == 60
        assert report.tables["player"].kept >= 60

    def test_references_that_lead_nowhere_on_the_server_are_told(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY, a int);"
            "INSERT INTO a SELECT generate_series(1, 50); INSERT INTO b SELECT i, i FROM generate_series(41, 60) i;"
            "ALTER TABLE b ADD FOREIGN KEY (a) REFERENCES a NOT VALID"
        )
        report = snapshot(database.reader, tmp_path, 30)
        assert report.tables["b"].kept == 20
        assert report.notes == ("b: 10 rows refer to rows of a that are not to be seen on the server either",)


class TestDeterminism:
    def test_the_same_seed_chooses_the_same_rows_wherever_they_are_stored(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            SHOP + "CREATE TABLE plain AS SELECT i % 700 AS a, i % 3 AS b FROM generate_series(1, 999) i;"
        )
        first = tables_of(snapshot(database.reader, tmp_path / "1", 50, seed=3))
        database.run("UPDATE sale SET id = id WHERE id % 2 = 0; UPDATE plain SET a = a WHERE b = 1")
        for table in ("customer", "sale", "plain"):
            database.run(f"VACUUM FULL {table}")
        assert tables_of(snapshot(database.reader, tmp_path / "2", 50, seed=3)) == first
        other = tables_of(snapshot(database.reader, tmp_path / "3", 50, seed=4))
        assert all(other[name] != rows for name, rows in first.items())

    def test_more_rows_are_chosen_besides_the_same(self, shop: Database, tmp_path: Path) -> None:
        few, many = (tables_of(snapshot(shop.reader, tmp_path / str(rows), rows))["remark"] for rows in (20, 200))
        assert set(few) < set(many)

    def test_rows_are_chosen_alike_in_many_parts_and_in_one(
        self, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = snapshot(shop.reader, tmp_path / "1", 50)
        monkeypatch.setattr(snapshot_postgresql, "_MOST_PAGES", 1)
        monkeypatch.setattr(snapshot_postgresql, "_MOST_ROWS", 7)
        parts = snapshot(shop.reader, tmp_path / "2", 50)
        assert tables_of(parts) == tables_of(whole)
        assert statistics_of(parts) == statistics_of(whole)

    def test_a_table_that_is_small_is_copied_whole(self, shop: Database, tmp_path: Path) -> None:
        report = snapshot(shop.reader, tmp_path, 10_000)
        assert all(count.kept == count.rows for count in report.tables.values())
        assert report.notes == ()
        assert tables_of(report)["line"] == sorted(shop.run("SELECT * FROM line"), key=repr)


VALUES = r"""
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


class TestValues:
    def test_a_query_gives_the_same_on_the_copy(self, make_database: Callable[[str], Database], tmp_path: Path) -> None:
        database = make_database(VALUES)
        report = snapshot(database.reader, tmp_path, 10)
        names = list(statistics_of(report)["v"]["columns"])
        assert len(names) == 30
        queries = [
            *(f"SELECT {name} FROM v ORDER BY id" for name in names),
            "SELECT c / 2, w / 2 FROM v ORDER BY id",
            "SELECT id FROM v WHERE k = 'ab' OR l > '2024-01-01'",
            "SELECT h, count(*) FROM v WHERE h IS NOT NULL GROUP BY h ORDER BY h",
            "SELECT id FROM v WHERE h",
        ]
        with Executor(threads=2) as executor:
            ours = executor.execute_many([(str(report.path), query) for query in queries])
            theirs = executor.execute_many([(database.reader, query) for query in queries])
        for query, one, other in zip(queries, ours, theirs, strict=True):
            assert (one.status, one.rows) == (other.status, other.rows), query
            assert one.status == "ok"

    def test_a_time_with_a_zone_is_in_utc_and_read_by_date_functions(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE v(id int PRIMARY KEY, at timestamptz);"
            "INSERT INTO v VALUES (1, '2024-01-01 00:30:00+02'), (2, NULL), (3, '0044-03-15 00:00:00+00 BC')"
        )
        path = snapshot(database.reader, tmp_path, 10).path
        assert rows_of(path, "SELECT at, strftime('%Y', at) FROM v WHERE id < 3") == [
            ("2023-12-31 22:30:00", "2023"), (None, None),
        ]  # fmt: skip
        assert rows_of(path, "SELECT at FROM v WHERE id = 3") == [("0044-03-15 00:00:00 BC",)]

    def test_nan_becomes_null_and_is_told(self, make_database: Callable[[str], Database], tmp_path: Path) -> None:
        database = make_database(
            "CREATE TABLE v(id int PRIMARY KEY, a float8, b numeric(5, 1));"
            "INSERT INTO v VALUES (1, 'NaN', 'NaN'), (2, 1, 1)"
        )
        report = snapshot(database.reader, tmp_path, 10)
        assert tables_of(report)["v"] == [(1, None, None), (2, 1.0, 1.0)]
        assert report.notes == ("public.v.a: NaN became NULL 1 times", "public.v.b: NaN became NULL 1 times")
        database.run("ALTER TABLE v ALTER a SET NOT NULL")
        with pytest.raises(InputError, match=r"public\.v: .*v\.a.* --leave-out the column"):
            snapshot(database.reader, tmp_path / "again", 10)
        assert not (tmp_path / "again" / database.name).exists()

    def test_names_are_kept_whatever_they_hold(self, make_database: Callable[[str], Database], tmp_path: Path) -> None:
        database = make_database(
            'CREATE TABLE "select"("a b" int PRIMARY KEY, "it""s" text, "100%s" text, "größe\\" text, "order" int);'
            'CREATE TABLE "Sub.Table"("x.y" int REFERENCES "select", "%" text);'
            """INSERT INTO "select" SELECT i, 'a', 'b', 'c', i FROM generate_series(1, 50) i;"""
            """INSERT INTO "Sub.Table" SELECT i, '%s' FROM generate_series(1, 50) i;"""
        )
        report = snapshot(database.reader, tmp_path, 10, mask=['public.select.it"s', "Sub.Table.%"])
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert report.tables.keys() == {"select", "Sub.Table"}
        names = [name for name, *_ in rows_of(report.path, "SELECT name FROM pragma_table_info('select')")]
        assert names == ["a b", 'it"s', "100%s", "größe\\", "order"]
        assert len(rows_of(report.path, 'SELECT * FROM "select" s JOIN "Sub.Table" t ON s."a b" = t."x.y"')) == 10

    def test_tables_of_several_schemas_have_one_name_each(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE SCHEMA crm; CREATE TABLE item(id int PRIMARY KEY); CREATE TABLE crm.item(id int PRIMARY KEY);"
            "CREATE TABLE crm.note(id int REFERENCES crm.item);"
            "INSERT INTO crm.item VALUES (1); INSERT INTO crm.note VALUES (1)"
        )
        report = snapshot(database.reader, tmp_path, 10)
        assert tables_of(report) == {"item": [], "crm_item": [(1,)], "note": [(1,)]}
        with pytest.raises(InputError, match=r"--leave-out item may mean public\.item, crm\.item"):
            snapshot(database.reader, tmp_path / "2", 10, leave_out=["item"])
        assert tables_of(snapshot(database.reader, tmp_path / "3", 10, leave_out=["public.item"])).keys() == {
            "item",
            "note",
        }

    def test_partitions_and_heirs_are_read_with_their_table(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE log(id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
            "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
            "CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')"
            " PARTITION BY HASH (id);"
            "CREATE TABLE log_2a PARTITION OF log_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
            "CREATE TABLE log_2b PARTITION OF log_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
            "CREATE TABLE remark(id int PRIMARY KEY, log int, day date, FOREIGN KEY (log, day) REFERENCES log);"
            "INSERT INTO log SELECT i, date '2024-01-01' + i % 60 FROM generate_series(1, 600) i;"
            "INSERT INTO remark SELECT id, id, day FROM log;"
            "CREATE TABLE base(id int); CREATE TABLE heir(more int) INHERITS (base);"
            "INSERT INTO base VALUES (1); INSERT INTO heir VALUES (2, 3);"
        )
        report = snapshot(database.reader, tmp_path / "1", 50)
        assert report.tables.keys() == {"log", "remark", "base", "heir"}
        assert (report.tables["log"].rows, report.tables["log"].kept) == (600, 50)
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert tables_of(report)["base"] == [(1,), (2,)]
        whole = tables_of(snapshot(database.reader, tmp_path / "2", 1000))["log"]
        assert whole == sorted(((i, str(day)) for i, day in database.run("SELECT * FROM log")), key=repr)

    def test_a_table_of_1600_columns_is_copied(self, make_database: Callable[[str], Database], tmp_path: Path) -> None:
        database = make_database(
            f"CREATE TABLE wide({', '.join(f'c{i} int' for i in range(1600))}); INSERT INTO wide VALUES (1, 2), (3, 4)"
        )
        report = snapshot(database.reader, tmp_path, 10)
        assert rows_of(report.path, "SELECT c0, c1, c1599 FROM wide ORDER BY 1") == [(1, 2, None), (3, 4, None)]
        assert statistics_of(report)["wide"]["columns"]["c1"]["max"] == 4


class TestMasks:
    def test_keys_and_what_refers_to_them_are_masked_alike(self, shop: Database, tmp_path: Path) -> None:
        plain = snapshot(shop.reader, tmp_path / "plain", 60)
        masked = snapshot(
            shop.reader, tmp_path / "masked", 60, mask=["sale.id", "customer.name", "item.code"], mask_key=KEY
        )
        assert rows_of(masked.path, "PRAGMA foreign_key_check") == []
        assert set(masked.notes) - set(plain.notes) == {
            "public.line.sale_id is masked, too: it refers to public.sale.id",
            "public.remark.sale_id is masked, too: it refers to public.line.sale_id",
            "public.sale.code is masked, too: it refers to public.item.code",
        }
        joined = (
            "SELECT count(*), sum(length(s.code)), sum(s.code IS NULL), sum(length(s.id)), group_concat(DISTINCT c.id)"
            " FROM remark r LEFT JOIN line l USING (sale_id, place) JOIN sale s ON s.id = r.sale_id"
            " JOIN customer c ON c.id = s.customer_id LEFT JOIN item i ON i.code = s.code"
        )
        ours, theirs = (rows_of(path, joined)[0] for path in (masked.path, plain.path))
        assert ours[:-1] == theirs[:-1]
        assert set(ours[-1].split(",")) == set(theirs[-1].split(","))
        raw = masked.path.read_bytes()
        assert b"name 1" not in raw
        assert b"I-1" not in raw
        assert b"note 1" in raw

    def test_masking_a_reference_masks_the_key(self, shop: Database, tmp_path: Path) -> None:
        report = snapshot(shop.reader, tmp_path, 30, mask=["public.sale.customer_id"], mask_key=KEY)
        assert "public.customer.id is masked, too: public.sale.customer_id refers to it" in report.notes
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []

    def test_the_key_and_nothing_else_decides_the_masks(self, shop: Database, tmp_path: Path) -> None:
        def names(number: int, key: bytes | None, rows: int) -> set[Any]:
            report = snapshot(shop.reader, tmp_path / str(number), rows, mask=["customer.name"], mask_key=key)
            return set(rows_of(report.path, "SELECT id, name FROM customer"))

        first = names(1, KEY, 30)
        assert names(2, KEY, 30) == first
        more = dict(names(3, KEY, 200))
        assert [more[number] for number, name in first if number in more] == [
            name for number, name in first if number in more
        ]
        assert names(4, None, 30).isdisjoint(first)
        assert names(5, None, 30).isdisjoint(names(6, None, 30))

    def test_masked_columns_tell_no_values_in_the_statistics(self, shop: Database, tmp_path: Path) -> None:
        report = snapshot(shop.reader, tmp_path, 30, mask=["customer.email"])
        email = statistics_of(report)["customer"]["columns"]["email"]
        assert email["is_masked"]
        assert (email["min"], email["max"], email["distinct"], email["null_share"]) == (None, None, 900, 0.0)
        for file in report.path.parent.rglob("*"):
            assert file.is_dir() or b"@shop.example" not in file.read_bytes()

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            ("v.h", r"public\.v\.h is of type boolean, which has no mask: --leave-out public\.v\.h"),
            ("v.t", r"public\.v\.t is of type integer\[\], which has no mask"),
            ("v", r"--mask public\.v is a table"),
            ("v.day", r"--mask v\.day: there is no such table or column; the nearest is v\.\w+"),
        ],
    )
    def test_what_has_no_mask_is_refused(
        self, make_database: Callable[[str], Database], tmp_path: Path, column: str, words: str
    ) -> None:
        database = make_database(VALUES)
        with pytest.raises(InputError, match=words):
            snapshot(database.reader, tmp_path, 10, mask=[column])

    def test_all_types_with_a_mask_keep_their_form(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(VALUES)
        names = [f"v.{name}" for name in "a b c d e f g i j k l m n p q r s u w tz".split()]
        plain = snapshot(database.reader, tmp_path / "1", 10, leave_out=["v.id"])
        masked = snapshot(database.reader, tmp_path / "2", 10, leave_out=["v.id"], mask=names)
        for name in names:
            sql = f"SELECT typeof({name}), {name} IN (1e300, 9e999, -9e999) OR length({name}) FROM v ORDER BY rowid"
            assert rows_of(masked.path, sql) == rows_of(plain.path, sql), name


class TestLeavingOut:
    def test_columns_and_tables_are_left_out(self, shop: Database, tmp_path: Path) -> None:
        report = snapshot(shop.reader, tmp_path, 30, leave_out=["customer.email", "public.item", "sale.id"])
        assert report.tables.keys() == {"customer", "sale", "line", "remark"}
        assert [name for _, name, *_ in rows_of(report.path, "PRAGMA table_info(sale)")] == ["customer_id", "code"]
        assert {note for note in report.notes if "refers to nothing" in note} == {
            "public.sale (code) refers to nothing in the copy: part of its foreign key is left out",
            "public.line (sale_id) refers to nothing in the copy: part of its foreign key is left out",
        }
        assert report.tables["sale"].kept == 30
        assert statistics_of(report)["customer"]["left_out"] == ["email"]

    def test_the_rows_are_the_same_whatever_is_left_out(self, shop: Database, tmp_path: Path) -> None:
        all_columns = rows_of(snapshot(shop.reader, tmp_path / "1", 30).path, "SELECT text FROM remark ORDER BY 1")
        fewer = snapshot(shop.reader, tmp_path / "2", 30, leave_out=["remark.place"]).path
        assert rows_of(fewer, "SELECT text FROM remark ORDER BY 1") == all_columns

    def test_a_type_without_a_form_is_refused_by_name_or_left_out(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TYPE pair AS (a int, b int); CREATE TABLE t(id int PRIMARY KEY, p pair, ps pair[], d int)"
        )
        with pytest.raises(InputError) as caught:
            snapshot(database.reader, tmp_path, 10)
        assert str(caught.value) == (
            "no form in SQLite for the type of public.t.p (public.pair), public.t.ps (public.pair[]): "
            "--leave-out public.t.p public.t.ps"
        )
        report = snapshot(database.reader, tmp_path, 10, leave_out=["public.t.p", "public.t.ps"])
        assert statistics_of(report)["t"]["columns"].keys() == {"id", "d"}

    @pytest.mark.parametrize(
        ("script", "options", "words"),
        [
            ('CREATE TABLE t(a int, "A" int)', {}, r"the columns a and A are one to SQLite: --leave-out one"),
            ('CREATE TABLE t(a int); CREATE TABLE "T"(a int)', {}, r"public\.t and public\.T are one name to SQLite"),
            ("CREATE TABLE sqlite_x(a int)", {}, r"SQLite keeps names that begin with sqlite_"),
            ("CREATE TABLE t(a int)", {"leave_out": ["t.a"]}, r"public\.t has no columns: --leave-out public\.t"),
            ("CREATE TABLE t(a int)", {"leave_out": ["t.a"], "mask": ["t.a"]}, r"t\.a is to be masked and to be left"),
            ("SELECT 1", {}, r"there is no table that the role can read"),
        ],
    )  # fmt: skip
    def test_what_sqlite_cannot_have_is_refused(
        self, make_database: Callable[[str], Database], tmp_path: Path, script: str, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InputError, match=words) as caught:
            snapshot(make_database(script).reader, tmp_path, 10, **options)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_what_the_role_may_not_read_is_left_out_and_told(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE secret(id int REFERENCES a);"
            "REVOKE ALL ON secret FROM reader;"
            "CREATE TABLE part(id int); ALTER TABLE part ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY p ON part USING (id > 1); INSERT INTO part VALUES (1), (2), (3)"
        )
        report = snapshot(database.reader, tmp_path, 10)
        assert tables_of(report) == {"a": [], "part": [(2,), (3,)]}
        assert report.notes == (
            "public.secret is left out: the role may not read it",
            "public.part has row security: only rows that the role may see are counted and copied",
        )


class TestStatistics:
    def test_statistics_are_those_of_the_whole_table(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE t(id int PRIMARY KEY, a int, b text, c date, d float8, e boolean);"
            "INSERT INTO t SELECT i, CASE WHEN i % 4 > 0 THEN i % 40 END, 'text ' || i,"
            " date '2020-01-01' + i, i / 8.0, i % 2 = 0"
            " FROM generate_series(1, 20000) i; ANALYZE t;"
            "CREATE TABLE fresh(a int); INSERT INTO fresh SELECT i % 9 FROM generate_series(1, 200) i;"
            "CREATE TABLE small(a int, b float8); INSERT INTO small VALUES (1, 'Infinity'), (1, 0.5), (NULL, 2)"
        )
        found = statistics_of(snapshot(database.reader, tmp_path, 100))
        assert (found["t"]["rows"], found["t"]["rows_kept"]) == (20000, 100)
        columns = found["t"]["columns"]
        assert [columns[name]["null_share"] for name in "abcde"] == [0.25, 0, 0, 0, 0]
        assert [(columns[name]["min"], columns[name]["max"]) for name in ("id", "a", "b", "c", "d", "e")] == [
            (1, 20000), (1, 39), ("text 1", "text 9999"), ("2020-01-02", "2074-10-04"), (0.125, 2500.0), (None, None),
        ]  # fmt: skip
        assert (columns["id"]["distinct"], columns["id"]["distinct_is_exact"]) == (20000, True)
        assert (columns["a"]["distinct"], columns["a"]["distinct_is_exact"]) == (30, False)
        assert found["fresh"]["columns"]["a"]["distinct"] is None
        assert found["small"]["columns"]["a"] | {"comment": ""} == {
            "type": "integer", "comment": "", "is_masked": False, "null_share": 1 / 3, "distinct": 1,
            "distinct_is_exact": True, "min": 1, "max": 1,
        }  # fmt: skip
        assert found["small"]["columns"]["b"]["max"] == "Infinity"

    def test_comments_are_read_as_descriptions(self, make_database: Callable[[str], Database], tmp_path: Path) -> None:
        database = make_database(
            "CREATE TABLE item(id int PRIMARY KEY, wt float8); CREATE TABLE other(a int);"
            "COMMENT ON TABLE item IS 'what is sold'; COMMENT ON COLUMN item.wt IS E'weight, in \"kg\"\nor less'"
        )
        report = snapshot(database.reader, tmp_path, 10)
        assert read_descriptions(report.path).of("item", "wt") == 'weight, in "kg" or less'
        assert read_descriptions(report.path).faults == ()
        assert statistics_of(report)["item"]["comment"] == "what is sold"
        assert [file.name for file in (report.path.parent / "database_description").iterdir()] == ["item.csv"]


class TestConsistency:
    def test_rows_that_move_between_tables_are_seen_once(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY);"
            "CREATE TABLE c(id int PRIMARY KEY);"
            "INSERT INTO a SELECT generate_series(1, 3000)"
        )
        is_done = threading.Event()
        moves = []

        def move() -> None:
            with closing(psycopg2.connect(database.owner)) as connection:
                connection.autocommit = True
                for source, target in itertools.cycle([("a", "b"), ("b", "c"), ("c", "a")]):
                    if is_done.is_set():
                        return
                    moved = f"DELETE FROM {source} WHERE id % 3 <> {len(moves) % 3} RETURNING id"
                    connection.cursor().execute(f"WITH moved AS ({moved}) INSERT INTO {target} SELECT id FROM moved")
                    moves.append(source)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for number in range(4):
                begun = len(moves)

                def wait(_: str, begun: int = begun) -> None:
                    while len(moves) == begun and mover.is_alive():  # each table is read in a changed database
                        pass

                tables = tables_of(snapshot(database.reader, tmp_path / str(number), 5000, report=wait))
                rows = sorted(row for some in tables.values() for (row,) in some)
                assert rows == list(range(1, 3001))
        finally:
            is_done.set()
            mover.join()

    def test_a_parent_that_is_deleted_meanwhile_is_still_kept(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(SHOP)

        def delete(line: str) -> None:
            if line.startswith("public.remark"):
                database.run("DELETE FROM remark; DELETE FROM line; DELETE FROM sale; DELETE FROM item")
                database.run("VACUUM")

        report = snapshot(database.reader, tmp_path, 30, report=delete)
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert all(count.kept >= 30 for count in report.tables.values())

    @pytest.mark.parametrize(
        "change",
        [
            "TRUNCATE sale CASCADE",
            "ALTER TABLE sale ALTER id TYPE numeric",
            "DROP TABLE sale CASCADE",
            "ALTER TABLE sale RENAME TO sold",
            "ALTER TABLE sale RENAME customer_id TO customer",
        ],
    )
    def test_a_table_that_is_changed_before_it_is_read_is_refused(
        self, make_database: Callable[[str], Database], tmp_path: Path, change: str
    ) -> None:
        database = make_database(SHOP)
        done = []

        def interfere(_: str) -> None:
            if not done:
                done.append(database.run(change))

        with pytest.raises(InputError, match=r"public\.(sale|line) was .* while it was copied: run it again"):
            snapshot(database.reader, tmp_path, 30, report=interfere)
        assert list(tmp_path.iterdir()) == []

    def test_a_partition_that_comes_or_goes_is_seen(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(
            "CREATE TABLE log(id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE child(id int REFERENCES log);"
            "CREATE TABLE one PARTITION OF log FOR VALUES FROM (0) TO (9); CREATE TABLE two(id int NOT NULL);"
            "INSERT INTO log VALUES (1); INSERT INTO two VALUES (11)"
        )
        attach = "ALTER TABLE log ATTACH PARTITION two FOR VALUES FROM (10) TO (19)"
        with pytest.raises(InputError, match=r"public\.log was emptied, rewritten or partitioned anew"):
            snapshot(database.reader, tmp_path, 30, report=lambda line: "child" in line and database.run(attach))


class TestLocks:
    def test_a_change_of_any_table_never_waits_between_two(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(SHOP)
        held: list[Any] = []

        def change(_: str) -> None:
            for table in ("customer", "item", "sale", "line", "remark"):
                database.run(f"ALTER TABLE {table} ADD COLUMN more{len(held)} int", lock_timeout="20s")
            held.append(
                database.run(
                    "SELECT relation::regclass::text FROM pg_locks WHERE pid <> pg_backend_pid()"
                    " AND locktype = 'relation' AND relation >= 16384"
                    " AND pid IN (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend')"
                )
            )

        report = snapshot(database.reader, tmp_path, 30, report=change)
        assert held == [[]] * 5
        assert rows_of(report.path, "PRAGMA foreign_key_check") == []
        assert statistics_of(report)["customer"]["columns"].keys() == {"id", "name", "email"}

    def test_a_table_that_is_locked_is_told_in_one_line(
        self, make_database: Callable[[str], Database], tmp_path: Path
    ) -> None:
        database = make_database(SHOP)
        with closing(psycopg2.connect(database.owner)) as connection:
            connection.cursor().execute("LOCK TABLE sale IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(InputError) as caught:
                snapshot(database.reader, tmp_path, 30)
        assert str(caught.value) == "public.sale is locked by another session for more than 1 s: run it again later"
        assert list(tmp_path.iterdir()) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                lambda url: url.replace("127.0.0.1", "no-such-host.invalid") + "?sslmode=disable",
                r"no-such-host\.invalid",
            ),
            (lambda url: re.sub(r":\d+/", ":1/", url), r"postgresql://127\.0\.0\.1:1/shop: .*refused"),
            (lambda url: url.replace(":", ":wrong", 2).replace("wrong//", "//"), r"password authentication failed"),
            (lambda url: url + "_none", r'database "shop_none" does not exist'),
            (lambda url: url.removesuffix("/shop"), r"the URL names no database"),
            (lambda url: url.replace("postgresql", "oracle"), r"oracle"),
            (lambda _: "duckdb:folder", r"duckdb:folder: a sample is taken of postgresql:// or mysql://"),
        ],
    )
    def test_a_wrong_url_is_told_in_one_line_without_its_password(
        self, shop: Database, tmp_path: Path, change: Callable[[str], str], words: str
    ) -> None:
        url = change(shop.reader)
        with pytest.raises(InputError, match=words) as caught:
            snapshot(url, tmp_path, 10)
        assert "\n" not in str(caught.value)
        assert shop.reader.split(":")[2].partition("@")[0] not in str(caught.value)

    def test_a_folder_that_is_there_is_refused(self, shop: Database, tmp_path: Path) -> None:
        snapshot(shop.reader, tmp_path, 10)
        with pytest.raises(InputError, match=r"shop is there already: remove it, or give another folder"):
            snapshot(shop.reader, tmp_path, 10)

    def test_no_rows_are_refused(self, shop: Database, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="--rows 0: at least 1"):
            snapshot(shop.reader, tmp_path, 0)

    def test_an_old_server_is_refused(self, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(snapshot_postgresql, "_OLDEST", 99)
        with pytest.raises(InputError, match=r"PostgreSQL \d+ is too old for a snapshot: 99 is needed"):
            snapshot(shop.reader, tmp_path, 10)

    def test_a_driver_that_is_missing_is_named(
        self, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "psycopg2", None)
        with pytest.raises(InputError, match="pip install psycopg2-binary"):
            snapshot(shop.reader, tmp_path, 10)


class TestCommand:
    def test_the_command_writes_and_says_what_it_wrote(
        self, shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "key").write_bytes(KEY)
        options = ["--rows", "2500", "--leave-out", "remark", "--leave-out", "customer.email", "--mask", "item.code"]
        command = ["--from", shop.reader, "--to", str(tmp_path), *options, "--mask-key", str(tmp_path / "key")]
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == [
            "public.sale.code is masked, too: it refers to public.item.code",
            f"{tmp_path}/shop/shop.sqlite: 5700 of 9200 rows of 4 tables",
        ]
        assert "public.sale: 2000 of 2000 rows" in err.splitlines()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--rows", "0"], "--rows 0: at least 1\n"),
            (["--mask-key", "no/such"], "--mask-key no/such: No such file or directory\n"),
            (
                ["--leave-out", "costumer"],
                "--leave-out costumer: there is no such table or column; the nearest is customer\n",
            ),
        ],
    )
    def test_what_cannot_be_done_is_one_line_and_exit_code_2(
        self, shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
    ) -> None:
        assert main(["--from", shop.reader, "--to", str(tmp_path), *options]) == 2
        assert capsys.readouterr() == ("", f"error: {words}")

    def test_a_key_that_is_short_is_refused(
        self, shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "key").write_bytes(b"short\n")
        assert main(["--from", shop.reader, "--to", str(tmp_path), "--mask-key", str(tmp_path / "key")]) == 2
        assert "5 bytes are too few for a secret: 16 are needed" in capsys.readouterr().err
