"""Samples out of a MariaDB server: what of it differs from PostgreSQL's."""

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
from urllib.parse import urlsplit

import pymysql
import pytest

from jaxrl_sql.data.schema.describe import read_descriptions
from jaxrl_sql.datagen.snapshot import mysql as snapshot_mysql
from jaxrl_sql.datagen.snapshot.take import SnapshotReport, snapshot
from jaxrl_sql.sqlenv.executor import Executor
from jaxrl_sql.types import InputError
from sqlexec_rs.servers import Server

SHOP = """
CREATE TABLE customer(id int PRIMARY KEY, name varchar(30) NOT NULL, email varchar(40) UNIQUE);
CREATE TABLE item(id int PRIMARY KEY, code varchar(8) UNIQUE, price numeric(8, 2));
CREATE TABLE sale(id bigint PRIMARY KEY, customer_id int NOT NULL, code varchar(8),
    FOREIGN KEY (customer_id) REFERENCES customer(id), FOREIGN KEY (code) REFERENCES item(code));
CREATE TABLE line(sale_id bigint, place int, note varchar(30), PRIMARY KEY (sale_id, place),
    FOREIGN KEY (sale_id) REFERENCES sale(id));
CREATE TABLE remark(sale_id bigint, place int, text text, FOREIGN KEY (sale_id, place) REFERENCES line(sale_id, place));
CREATE TABLE staff(id int PRIMARY KEY, boss int, FOREIGN KEY (boss) REFERENCES staff(id));
INSERT INTO customer SELECT seq, CONCAT('name ', seq), CONCAT('c', seq, '@shop.example') FROM seq_1_to_900;
INSERT INTO item SELECT seq, CONCAT('I-', seq), seq / 4.0 FROM seq_1_to_300;
INSERT INTO sale SELECT seq, 1 + seq * 7 % 900, IF(seq % 5 > 0, CONCAT('i-', 1 + seq % 300), NULL) FROM seq_1_to_2000;
INSERT INTO line SELECT 1 + seq % 2000, seq DIV 2000, CONCAT('note ', seq) FROM seq_0_to_5999;
INSERT INTO remark SELECT 1 + seq % 2000, NULLIF(seq % 3, 0), CONCAT('remark ', seq % 1400) FROM seq_0_to_2999;
INSERT INTO staff SELECT seq, NULLIF(seq DIV 3, 0) FROM seq_1_to_1000
"""


@pytest.fixture(scope="module")
def server(start_server: Callable[[str, str], Server]) -> Server:
    """Return a MariaDB server of its own."""
    return start_server("mariadb", "SELECT 1")


class Database:
    """A database of the server, its owner's and its reader's URL."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.owner = server.owner.rpartition("/")[0] + f"/{name}"
        self.reader = server.reader.rpartition("/")[0] + f"/{name}"
        server.run(f"CREATE DATABASE {name}; GRANT SELECT ON {name}.* TO reader")

    def connect(self) -> Any:
        """Return a connection of the owner's."""
        parts = urlsplit(self.owner)
        return pymysql.connect(
            host=parts.hostname or "", port=parts.port or 0, user=parts.username, password=parts.password or "",
            database=self.name, autocommit=True, charset="utf8mb4",
        )  # fmt: skip

    def run(self, script: str) -> list[Any]:
        """Run statements as the owner."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 20")
            for statement in filter(str.strip, script.split(";")):
                cursor.execute(statement)
            return list(cursor.fetchall())


@pytest.fixture
def make_database(server: Server) -> Callable[[str], Database]:
    """Return what makes a database by a script."""

    def make(script: str) -> Database:
        database = Database(server, f"test_{os.urandom(6).hex()}")
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


def test_every_kept_row_has_its_parents(shop: Database, tmp_path: Path) -> None:
    report = snapshot(shop.reader, tmp_path, 50)
    assert report.path == tmp_path / "shop" / "shop.sqlite"
    assert rows_of(report.path, "PRAGMA foreign_key_check") == []
    assert report.tables["staff"].kept == report.tables["remark"].kept == 50
    assert {name: count.rows for name, count in report.tables.items()} == {
        "customer": 900, "item": 300, "sale": 2000, "line": 6000, "remark": 3000, "staff": 1000,
    }  # fmt: skip
    for child, column, parent, target in (("sale", "customer_id", "customer", "id"), ("sale", "code", "item", "code")):
        needed = f"SELECT count(*) FROM {parent} WHERE {target} IN (SELECT {column} FROM {child})"
        if parent == "item":  # kept in whatever case they are referred to
            needed = "SELECT count(*) FROM item WHERE lower(code) IN (SELECT lower(code) FROM sale)"
        assert report.tables[parent].kept == max(50, rows_of(report.path, needed)[0][0])


def test_the_same_seed_chooses_the_same_rows(
    make_database: Callable[[str], Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make_database(SHOP)
    first = snapshot(database.reader, tmp_path / "1", 50, seed=3)
    database.run("ALTER TABLE sale FORCE; UPDATE remark SET text = CONCAT(text, '') ORDER BY text")
    monkeypatch.setattr(snapshot_mysql, "_MOST_SCANNED", 37)
    monkeypatch.setattr(snapshot_mysql, "_MOST_ROWS", 7)
    again = snapshot(database.reader, tmp_path / "2", 50, seed=3)
    assert tables_of(again) == tables_of(first)
    for name, facts in statistics_of(again).items():
        for column, known in facts["columns"].items():
            for fact in ("null_share", "min", "max"):
                assert known[fact] == statistics_of(first)[name]["columns"][column][fact]
    other = tables_of(snapshot(database.reader, tmp_path / "3", 50, seed=4))
    assert all(other[name] != rows for name, rows in tables_of(first).items())


def test_a_small_table_is_copied_whole(shop: Database, tmp_path: Path) -> None:
    report = snapshot(shop.reader, tmp_path, 10_000)
    assert report.notes == ()
    for name in ("line", "remark"):
        assert tables_of(report)[name] == sorted(shop.run(f"SELECT * FROM {name}"), key=repr)


VALUES = r"""
CREATE TABLE v(
    id int PRIMARY KEY, a tinyint(1), b bigint, c decimal(6, 2), d decimal(20, 0), e float, f double, g varchar(30),
    h char(4), i text, j date, k time, l datetime(3), m timestamp NULL, n year, o bit(11), p binary(4), q varbinary(9),
    r blob, s enum('sad', 'happy'), t set('x', 'y'), u json, w bigint unsigned, x point, y uuid, z inet6,
    aa varchar(9) CHARACTER SET latin1, ab varchar(9) COLLATE utf8mb4_bin
);
INSERT INTO v(id) VALUES (0);
INSERT INTO v VALUES
 (1, 1, 9223372036854775807, 1.50, 12345678901234567890, 0.1, 1e300,
  'tab\tline\nback\\slash\'"é%s🙂', 'ab', 'x', '2024-02-29',
  '-838:59:59', '2024-01-01 10:00:00.5', '2024-01-01 10:00:00', 2024, b'10100000001', 'a', x'00ff5c', x'00',
  'happy', 'x,y', '{"a" : 1}', 18446744073709551615, POINT(1, 2),
  '00000000-0000-0000-0000-00000000000a', '::1', 'Zürich', 'A'),
 (2, -1, -9223372036854775808, 3.00, 42, 1e10, -0.0, '', '', '', '1000-01-01', '00:00:01',
  '9999-12-31 23:59:59.999', NULL,
  1999, b'0', '', '', '', 'sad', '', 'null', 0, POINT(0, 0), NULL, 'ffff::', '', 'a')
"""


def test_a_query_gives_the_same_on_the_copy(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    database = make_database(VALUES)
    report = snapshot(database.reader, tmp_path, 10)
    names = list(statistics_of(report)["v"]["columns"])
    assert len(names) == 28
    queries = [
        *(f"SELECT {name} FROM v ORDER BY id" for name in names),
        "SELECT c / 2 FROM v WHERE c > 1 ORDER BY id",
        "SELECT id FROM v WHERE h = 'AB' OR j > '2024-01-01'",
        "SELECT id FROM v WHERE ab = 'A'",
        "SELECT id FROM v WHERE a ORDER BY id",
    ]
    with Executor(threads=2) as executor:
        ours = executor.execute_many([(str(report.path), query) for query in queries])
        theirs = executor.execute_many([(database.reader, query) for query in queries])
    for query, one, other in zip(queries, ours, theirs, strict=True):
        assert (one.status, one.rows) == (other.status, other.rows), query
        assert one.status == "ok"
    assert statistics_of(report)["v"]["columns"]["e"]["min"] == 0.1


def test_rows_are_known_by_keys_of_any_type(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    keys = {
        "text": ("varchar(20)", "CONCAT('Key ''\\\\\"', seq)"),
        "latin": ("char(9) CHARACTER SET latin1", "CONCAT('ü', seq)"),
        "exact": ("varchar(20) COLLATE utf8mb4_bin", "CONCAT(IF(seq % 2, 'a', 'A'), seq DIV 2)"),
        "bytes": ("binary(8)", "UNHEX(LPAD(HEX(seq * 1000), 16, '0'))"),
        "day": ("date", "DATE '2000-01-01' + INTERVAL seq DAY"),
        "moment": ("datetime(6)", "TIMESTAMP '2000-01-01 00:00:00' + INTERVAL seq * 1001 MICROSECOND"),
        "stamp": ("timestamp(6)", "TIMESTAMP '2001-01-01 00:00:00' + INTERVAL seq * 1001 MICROSECOND"),
        "dec": ("decimal(30, 3)", "seq / 8 - 20"),
        "big": ("bigint unsigned", "9000000000000000000 + seq"),
        "small": ("int(5) unsigned zerofill", "seq"),
        "mood": ("enum('c', 'b', 'a') NOT NULL, k2 int NOT NULL", "1 + seq % 3, seq"),
        "id": ("uuid", "CONCAT('00000000-0000-0000-0000-', LPAD(HEX(seq), 12, '0'))"),
        "two": ("int, k2 varchar(9) DEFAULT 'x'", "seq DIV 10, seq % 10"),
    }
    script = ""
    for name, (kind, value) in keys.items():
        key = "k, k2" if "k2" in kind else "k"
        second = ", k2" if "k2" in kind else ""
        script += f"CREATE TABLE `{name}`(k {kind}, v int, PRIMARY KEY ({key}));"
        script += f"INSERT INTO `{name}`(k{second}, v) SELECT {value}, seq FROM seq_1_to_300;"
        script += f"CREATE TABLE `{name} child`(id int PRIMARY KEY, k {kind},"
        script += f" FOREIGN KEY ({key}) REFERENCES `{name}`({key}));"
        script += f"INSERT INTO `{name} child`(id, k{second}) SELECT v, k{second} FROM `{name}`;"
    report = snapshot(make_database(script).reader, tmp_path, 40)
    assert rows_of(report.path, "PRAGMA foreign_key_check") == []
    assert {count.kept for count in report.tables.values()} == {40}
    for name in keys:
        if name != "big":  # beyond 64 bits with a sign keys are the nearest reals
            assert (
                len(rows_of(report.path, f'SELECT * FROM "{name}" p JOIN "{name} child" c ON p.k = c.k AND p.v = c.id'))
                == 40
            )


def test_rows_without_a_key_are_sampled_with_their_equals(
    make_database: Callable[[str], Database], tmp_path: Path
) -> None:
    database = make_database(
        "CREATE TABLE a(x int, y varchar(9)); INSERT INTO a SELECT seq % 7, NULLIF(seq % 2, 1) FROM seq_1_to_1000;"
        "CREATE TABLE b(x int, y int NOT NULL UNIQUE); INSERT INTO b SELECT seq % 7, seq FROM seq_1_to_1000"
    )
    report = snapshot(database.reader, tmp_path, 100)
    assert (report.tables["a"].kept, report.tables["a"].rows) == (100, 1000)
    assert len(set(tables_of(report)["b"])) == 100
    assert tables_of(snapshot(database.reader, tmp_path / "2", 100)) == tables_of(report)


def test_masks_leave_keys_whole_and_tell_no_value(shop: Database, tmp_path: Path) -> None:
    masks = ["sale.id", "item.code", "customer.email"]
    report = snapshot(shop.reader, tmp_path, 50, mask=masks, mask_key=b"a key of the test's")
    assert rows_of(report.path, "PRAGMA foreign_key_check") == []
    assert "shop.line.sale_id is masked, too: it refers to shop.sale.id" in report.notes
    for file in report.path.parent.rglob("*"):
        assert file.is_dir() or not any(word in file.read_bytes().lower() for word in (b"i-1", b"@shop.example"))


def test_comments_and_statistics_are_brought_along(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    database = make_database(
        "CREATE TABLE item(id int PRIMARY KEY, wt double COMMENT 'weight, in \"kg\"', n int, at date, t varchar(9))"
        " COMMENT 'what is sold'; INSERT INTO item"
        " SELECT seq, seq / 8, IF(seq % 4, seq % 40, NULL), DATE '2020-01-01' + INTERVAL seq DAY, CONCAT('t', seq)"
        " FROM seq_1_to_5000"
    )
    report = snapshot(database.reader, tmp_path, 10)
    assert read_descriptions(report.path).of("item", "wt") == 'weight, in "kg"'
    found = statistics_of(report)["item"]
    assert (found["comment"], found["rows"], found["rows_kept"]) == ("what is sold", 5000, 10)
    columns = found["columns"]
    assert [(columns[name]["min"], columns[name]["max"]) for name in ("id", "wt", "n", "at", "t")] == [
        (1, 5000), (0.125, 625.0), (1, 39), ("2020-01-02", "2033-09-09"), ("t1", "t999"),
    ]  # fmt: skip
    assert (columns["n"]["null_share"], columns["id"]["distinct"]) == (0.25, 5000)


def test_odd_names_are_kept(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    database = make_database(
        'CREATE TABLE `select`(`a b` int PRIMARY KEY, `it\'s "x"` varchar(9), `100%s` varchar(9), `größe` int);'
        "CREATE TABLE `Sub.Table`(`x.y` int, `%` varchar(9), FOREIGN KEY (`x.y`) REFERENCES `select`(`a b`));"
        "INSERT INTO `select` SELECT seq, 'a', 'b', 1 FROM seq_1_to_50;"
        "INSERT INTO `Sub.Table` SELECT seq, '%s' FROM seq_1_to_50"
    )
    report = snapshot(database.reader, tmp_path, 10, mask=["Sub.Table.%"])
    assert len(rows_of(report.path, 'SELECT * FROM "select" s JOIN "Sub.Table" t ON s."a b" = t."x.y"')) == 10


def test_what_has_no_snapshot_or_no_key_is_told(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    database = make_database(
        "CREATE TABLE a(id int PRIMARY KEY, x int, KEY (x)); CREATE TABLE b(x int, FOREIGN KEY (x) REFERENCES a(x));"
        "CREATE TABLE old(x int) ENGINE = MyISAM; INSERT INTO a VALUES (1, 2); INSERT INTO b VALUES (2)"
    )
    report = snapshot(database.reader, tmp_path, 10)
    assert tables_of(report) == {"a": [(1, 2)], "b": [(2,)]}
    assert set(report.notes) == {
        f"{database.name}.old is left out: MyISAM has no snapshots, InnoDB has",
        f"{database.name}.b (x) refers to what is no key: no foreign key in the copy",
    }


def test_rows_that_move_between_tables_are_seen_once(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    database = make_database(
        "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY); CREATE TABLE c(id int PRIMARY KEY);"
        "INSERT INTO a SELECT seq FROM seq_1_to_3000"
    )
    is_done = threading.Event()
    moves: list[str] = []

    def move() -> None:
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            for source, target in itertools.cycle([("a", "b"), ("b", "c"), ("c", "a")]):
                if is_done.is_set():
                    return
                some = f"id % 3 <> {len(moves) % 3}"
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO {target} SELECT id FROM {source} WHERE {some}")
                cursor.execute(f"DELETE FROM {source} WHERE {some}")
                cursor.execute("COMMIT")
                moves.append(source)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for number in range(3):
            begun = len(moves)

            def wait(_: str, begun: int = begun) -> None:
                while len(moves) == begun and mover.is_alive():  # each table is read in a changed database
                    pass

            tables = tables_of(snapshot(database.reader, tmp_path / str(number), 5000, report=wait))
            assert sorted(row for some in tables.values() for (row,) in some) == list(range(1, 3001))
    finally:
        is_done.set()
        mover.join()


def test_a_change_of_any_table_never_waits_between_two(
    make_database: Callable[[str], Database], tmp_path: Path
) -> None:
    database = make_database(SHOP)
    lines: list[str] = []

    def change(line: str) -> None:
        lines.append(line)
        for table in ("customer", "item", "sale", "line", "remark", "staff"):
            database.run(f"ALTER TABLE {table} ADD COLUMN more{len(lines)} int, ALGORITHM = INSTANT")

    report = snapshot(database.reader, tmp_path, 30, report=change)
    assert len(lines) == 6
    assert rows_of(report.path, "PRAGMA foreign_key_check") == []


@pytest.mark.parametrize(
    "change",
    [
        "SET foreign_key_checks = 0; TRUNCATE sale",
        "ALTER TABLE sale ADD COLUMN more int FIRST, ALGORITHM = COPY",
        "SET foreign_key_checks = 0; DROP TABLE sale",
        "ALTER TABLE sale RENAME TO sold",
        "ALTER TABLE sale RENAME COLUMN customer_id TO customer",
    ],
)
def test_a_table_that_is_changed_before_it_is_read_is_refused(
    make_database: Callable[[str], Database], tmp_path: Path, change: str
) -> None:
    database = make_database(SHOP)
    done = []

    def interfere(line: str) -> None:
        if not done and "remark" in line:
            done.append(database.run(change))

    with pytest.raises(InputError, match=r"\.sale was changed while it was copied: run it again"):
        snapshot(database.reader, tmp_path, 30, report=interfere)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_locked_is_told_in_one_line(make_database: Callable[[str], Database], tmp_path: Path) -> None:
    database = make_database(SHOP)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES sale WRITE")
        with pytest.raises(
            InputError, match=r"\.sale is locked by another session for more than 1 s: run it again later"
        ):
            snapshot(database.reader, tmp_path, 30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: re.sub(r":\d+/", ":1/", url), r"mysql://127\.0\.0\.1:1/shop: Can't connect"),
        (lambda url: url.replace(":", ":wrong", 2).replace("wrong//", "//"), r"Access denied for user"),
        (lambda url: url + "_none", r"mysql://127\.0\.0\.1:\d+/shop_none: "),
        (lambda url: url.removesuffix("/shop"), r"the URL names no database: mysql://USER"),
    ],
)
def test_a_wrong_url_is_told_in_one_line_without_its_password(
    shop: Database, tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        snapshot(change(shop.reader), tmp_path, 10)
    assert "\n" not in str(caught.value)
    assert shop.reader.split(":")[2].partition("@")[0] not in str(caught.value)


def test_an_old_server_and_a_missing_driver_are_told(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_mysql, "_OLDEST", {"MariaDB": (99, 0)})
    with pytest.raises(InputError, match=r"MariaDB 1\S+ is too old for a snapshot: 99\.0 is needed"):
        snapshot(shop.reader, tmp_path, 10)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(InputError, match="pip install pymysql"):
        snapshot(shop.reader, tmp_path, 10)
