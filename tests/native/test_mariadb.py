"""The executor on a MariaDB server, which the tests start: statuses, values, limits, and what a user may do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from sqlexec_rs import Executor, Limits, servers
from sqlexec_rs.servers import Server, __main__

SCHEMA = """
CREATE TABLE item(id integer PRIMARY KEY, name varchar(50), price numeric(8, 2), is_new boolean, since date,
                  weight double);
INSERT INTO item SELECT seq, concat('item ', seq), seq / 4.0, seq % 2 = 0, date '2020-01-01' + INTERVAL seq DAY,
                        seq * 0.1e0
FROM seq_1_to_500;
CREATE VIEW cheap AS SELECT * FROM item WHERE price < 10;
CREATE SEQUENCE numbers;
"""


@pytest.fixture(scope="session")
def server(start_server: Callable[[str, str], Server]) -> Server:
    return start_server("mariadb", SCHEMA)


@pytest.fixture(scope="session")
def db(server: Server) -> str:
    return server.reader


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """Return an executor in processes, which is the default: SQL of a server runs in the server all the same."""
    with Executor(threads=2) as executor:
        yield executor


def connect(url: str) -> Any:
    """Return a connection of the driver that published scorers use."""
    parts = urlsplit(url)
    assert parts.port is not None
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
    )


SMALL = Limits(timeout_ms=20_000, max_rows=10_000, max_bytes=1 << 20)
STATUSES = [
    ("SELECT name FROM item WHERE id = 3", "ok"),
    ("SELECT 1;", "ok"),
    ("  (SELECT 1) UNION (SELECT 2); -- so", "ok"),
    ("# a comment\nSELECT 'it\\'s; so'", "ok"),
    ("WITH a AS (SELECT 1 AS x) SELECT x FROM a", "ok"),
    ("VALUES (1), (2)", "ok"),
    ("SHOW TABLES", "ok"),
    ("EXPLAIN SELECT * FROM item", "ok"),
    ("SELECT '1; DROP TABLE item'", "ok"),
    ("", "no_sql"),
    ("-- nothing\n /* at all */ ;", "no_sql"),
    ("SELEC 1", "syntax_error"),
    ("SELECT 1 FROM item WHERE", "syntax_error"),
    ("SELECT 'open", "syntax_error"),
    ("SELECT 1 UNION SELECT 1, 2", "syntax_error"),
    ("SELECT 1 \0", "syntax_error"),
    ("SELECT nmae FROM item", "schema_error"),
    ("SELECT 1 FROM itm", "schema_error"),
    ("SELECT frobnicate(1)", "schema_error"),
    ("SELECT id FROM item a, item b", "schema_error"),
    ("SELECT 9223372036854775807 + 1", "runtime_error"),
    ("SELECT (SELECT id FROM item)", "runtime_error"),
    ("SELECT SLEEP(30)", "timeout"),
    ("SELECT BENCHMARK(1000000000, MD5('x'))", "timeout"),
    ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t", "timeout"),
    ("SELECT * FROM seq_1_to_20000", "too_large"),
    ("SELECT * FROM seq_1_to_20000 LIMIT 20000", "too_large"),
    ("SELECT repeat('x', 2000000)", "too_large"),
    ("SELECT repeat('x', 2000000000)", "too_large"),
    ("SELECT 1; SELECT 2", "forbidden"),
    ("DELETE FROM item", "forbidden"),
    ("SELECT 1 INTO @a", "forbidden"),
    ("SELECT 1 INTO OUTFILE '/tmp/sqlexec-hostile'", "forbidden"),
    ("SET STATEMENT max_statement_time=0 FOR SELECT 1", "forbidden"),
    ("SELECT /*! 1 */", "forbidden"),
    ("SELECT * FROM mysql.global_priv", "forbidden"),
]


@pytest.mark.parametrize(("sql", "status"), STATUSES)
def test_a_text_has_a_status(executor: Executor, db: str, sql: str, status: str) -> None:
    limits = SMALL.replace(timeout_ms=100) if status == "timeout" else SMALL
    outcome = executor.execute(db, sql, limits=limits)
    assert (outcome.status, outcome.error) == (status, None if status == "ok" else outcome.error)
    assert (outcome.error is None) == (status == "ok")


def test_an_error_says_where(executor: Executor, db: str) -> None:
    outcome = executor.execute(db, "SELECT 'é' FRM item WHERE x y")
    assert "SELECT 'é' FRM item WHERE x y".encode()[outcome.error_offset :] in {b"item WHERE x y", b"y"}


VALUES = """
SELECT NULL, true, false, CAST(-5 AS SIGNED), 9223372036854775807, 0.5e0, 1e-7, 'é', '', X'00FF', CAST('a' AS BINARY),
       1.50, 7.00, YEAR('2020-01-01'), CAST('[1]' AS JSON), b'101', CAST(1.1 AS FLOAT), CONCAT(1, 'a'), ELT(1, 'x')
"""


def test_values_are_the_drivers(executor: Executor, db: str) -> None:
    sql = VALUES.replace("CAST('[1]' AS JSON)", "JSON_ARRAY(1)")
    connection = connect(db)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        (theirs,) = cursor.fetchall()
    (ours,) = executor.execute(db, sql).rows
    assert list(ours) == list(theirs)
    assert [type(value) for value in ours[:4]] == [type(None), int, int, int]


def test_columns_have_the_drivers_values(executor: Executor, server: Server, db: str) -> None:
    server.run("""
        CREATE TABLE every(a tinyint, b smallint unsigned, c mediumint, d bigint unsigned, e float, f double,
          g decimal(10, 3), h bit(9), i year, j char(3), k varchar(9), l text, m blob, n varbinary(4),
          o enum('x', 'y'), p set('u', 'v'), q json);
        INSERT INTO every VALUES (-1, 65535, 5, 9223372036854775807, 0.1, 0.1, 2.500, b'101', 2020, 'a', 'é', 'long',
          X'00FF', 'ab', 'y', 'u,v', '{"a": 1}');
        INSERT INTO every(a) VALUES (NULL);
    """)
    connection = connect(db)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM every")
        theirs = cursor.fetchall()
    assert executor.execute(db, "SELECT * FROM every").rows == [tuple(row) for row in theirs]


def test_columns_are_those_of_each_query(db: str) -> None:
    texts = [
        "SELECT id AS a, name AS b FROM item WHERE id = 1",
        "SELECT id AS a, name AS b FROM item WHERE id = 2",
        "SELECT 1 / 0 AS a FROM nothing",
        "SELECT name AS a, id AS b FROM item WHERE id = 2",
        "SELECT id AS a FROM item WHERE id = 2",
        "SELECT id AS a, name AS b FROM item WHERE id = 3",
    ]
    with Executor(threads=1) as executor:
        outcomes = [executor.execute(db, sql) for sql in texts]
    assert [(outcome.columns, outcome.rows) for outcome in outcomes if outcome.status == "ok"] == [
        (["a", "b"], [(1, "item 1")]),
        (["a", "b"], [(2, "item 2")]),
        (["a", "b"], [("item 2", 2)]),
        (["a"], [(2,)]),
        (["a", "b"], [(3, "item 3")]),
    ]


def test_what_has_no_type_here_is_the_servers_text(executor: Executor, db: str) -> None:
    sql = (
        "SELECT DATE '2020-02-01', TIMESTAMP '2020-02-01 10:00:00', TIME '10:00:00', TIMESTAMP '2020-02-01 10:00:00.25'"
    )
    assert executor.execute(db, "SELECT 18446744073709551615, 0.3").rows == [(2.0**64, 0.3)], "as doubles"
    expected = [("2020-02-01", "2020-02-01 10:00:00", "10:00:00", "2020-02-01 10:00:00.25")]
    assert executor.execute(db, sql).rows == expected


def test_parameters_are_bound_by_position(executor: Executor, db: str) -> None:
    values: list[Any] = [7, "é'", 0.25, b"\x00\xff", None]
    sql = "SELECT ? + 1, CONCAT(?, '\\''), ? * 2, ?, ?"
    assert executor.execute(db, sql, parameters=values).rows == [(8, "é''", 0.5, b"\x00\xff", None)]
    assert executor.execute(db, "SELECT ?", parameters={"a": 1}).status == "runtime_error"
    assert executor.execute(db, "SELECT ?, ?", parameters=[1]).status != "ok"
    assert executor.execute(db, "SELECT ?; DELETE FROM item", parameters=[1]).status == "forbidden"


def test_nothing_is_left_of_a_run(executor: Executor, db: str) -> None:
    with Executor(threads=1) as one:
        for sql in ["SELECT @a := 5, @b := 'x'", "SELECT GET_LOCK('sqlexec', 0)", "SELECT RAND(3)"]:
            assert one.execute(db, sql).status == "ok"
        assert one.execute(db, "SELECT @a, @b").rows == [(None, None)]
        assert one.execute(db, "SELECT COUNT(*) FROM item").rows == [(500,)]
        assert one.execute(db, "SELECT CAST('x' AS SIGNED)").rows == [(0,)]
        assert one.execute(db, "SHOW WARNINGS").rows == []
        for n in (5, 500):
            plain = one.execute(
                db, "SELECT id FROM item", limits=Limits(max_rows=n, timeout_ms=n * 1_000, on_excess="cut")
            )
            assert plain.row_count == n, "what bounds a run is set anew"
        settings = "SELECT @@time_zone, @@tx_read_only, @@character_set_results, @@sql_select_limit"
        assert one.execute(db, settings).rows == [("+00:00", 1, "utf8mb4", 1_000_001)]
        assert executor.execute(db, "SELECT IS_FREE_LOCK('sqlexec')").rows == [(1,)]


# What people who mean harm ask of a server, and texts that are too long for a line.
HOSTILE = [
    *Path(__file__).with_name("hostile_mariadb.sql").read_text(encoding="utf-8").splitlines()[1:],
    "SELECT 1 WHERE " + "(" * 20_000 + "true" + ")" * 20_000,
    "SELECT -" + "(" * 5_000 + "1" + ")" * 5_000,
    "SELECT " + " + ".join(["1"] * 50_000),
    "SELECT 1 " + "UNION SELECT 1 " * 5_000,
    f"SELECT '{'x' * 900_000}'",
    "SELECT 1 IN (" + ",".join(map(str, range(100_000))) + ")",
    "SELECT " + ", ".join(["1"] * 5_000),
    "-- \n; DELETE FROM item",
    "SELECT 1\N{LINE SEPARATOR}; DELETE FROM item",
]


def read_state(server: Server) -> str:
    """Return what the server holds and does, as the owner sees it."""
    query = """
        SELECT (SELECT MD5(GROUP_CONCAT(CONCAT_WS(',', id, name, price, is_new, since, weight) ORDER BY id)) FROM item),
               (SELECT next_not_cached_value FROM numbers), (SELECT COUNT(*) FROM information_schema.tables),
               (SELECT COUNT(*) FROM mysql.global_priv), @@global.max_connections, IS_FREE_LOCK('sqlexec'),
               (SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'reader' AND command <> 'Sleep')
    """
    connection = connect(server.owner)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET group_concat_max_len = 1000000")
        end = time.monotonic() + 30
        while True:  # a session that was closed in the middle of a run may need a moment to notice
            cursor.execute(query)
            (state,) = cursor.fetchall()
            if (state[-1] == 0 and state[-2] == 1) or time.monotonic() > end:
                return repr(state)
            time.sleep(0.05)


# What behind EXPLAIN would run something, or tell of another's; none of it is a query.
SMUGGLED = [
    "ANALYZE SELECT SLEEP(30)",
    "ANALYZE FORMAT=JSON SELECT SLEEP(30)",
    "FORMAT=JSON SELECT SLEEP(30)",
    "EXTENDED SELECT 1",
    "PARTITIONS SELECT 1",
    "FOR CONNECTION 1",
    "item",
    "item id",
    "mysql.user",
    "(ANALYZE SELECT SLEEP(30))",
    "/*! ANALYZE */ SELECT SLEEP(30)",
    "/*M! ANALYZE */ SELECT SLEEP(30)",
    "# \n ANALYZE SELECT SLEEP(30)",
    "EXPLAIN SELECT 1",
    "SHOW PROCESSLIST",
    "DESCRIBE item",
    "DELETE FROM item",
    "UPDATE item SET id = 0",
    "INSERT INTO item(id) VALUES (0)",
    "REPLACE INTO item(id) VALUES (0)",
    "SELECT 1; DELETE FROM item",
    "SET STATEMENT max_statement_time=0 FOR SELECT SLEEP(30)",
]


def test_a_plan_is_made_and_nothing_of_it_is_run(executor: Executor, server: Server, db: str) -> None:
    before = read_state(server)
    limits = SMALL.replace(timeout_ms=2_000)
    for sql in ("SELECT name, SLEEP(30) FROM item WHERE id = 3", "(SELECT 1)", "WITH a AS (SELECT 1) SELECT * FROM a;"):
        plan = executor.explain(db, sql, limits=limits)
        assert plan.status == "ok", plan.error
        assert "possible_keys" in plan.columns
        assert not any(column.startswith("r_") for column in plan.columns), "nothing was measured"
    plan = executor.explain(db, "SELECT * FROM item WHERE id = ?", [3])
    assert plan.rows[0][plan.columns.index("key")] == "PRIMARY"
    for sql in SMUGGLED:
        refused = executor.explain(db, sql, limits=limits)
        assert refused.status in {"forbidden", "syntax_error"}, (sql, refused)
        assert refused.stopped_by is None, sql
    assert executor.explain(db, "SELECT 1 FROM item INTO OUTFILE '/tmp/sqlexec-hostile'").status == "forbidden"
    assert read_state(server) == before


@pytest.mark.parametrize(
    ("sql", "status"),
    [
        ("", "no_sql"),
        ("SELEC 1", "syntax_error"),
        ("SELECT 1 FROM item WHERE", "syntax_error"),
        ("SELECT nmae FROM item", "schema_error"),
        ("SELECT 1 UNION SELECT 2", "too_large"),
        ("SHOW TABLES", "forbidden"),
    ],
)
def test_what_has_no_plan_has_the_status_of_a_run(executor: Executor, db: str, sql: str, status: str) -> None:
    assert executor.explain(db, sql, limits=SMALL.replace(max_rows=1)).status == status


def test_a_setting_is_shown_as_a_run_sees_it(executor: Executor, db: str) -> None:
    shown = executor.show(db, "time_zone")
    assert (shown.columns, shown.rows) == (["time_zone"], [("+00:00",)])
    assert executor.show(db, "max_statement_time", limits=Limits(timeout_ms=7_000)).rows == [(7,)]
    assert executor.show(db, "global.tx_read_only").rows == [(0,)]
    assert executor.show(db, "nosuch").status == "schema_error"
    with pytest.raises(ValueError, match="plain name"):
        executor.show(db, "a; DROP TABLE item")


def test_harm_is_not_done(ask_for_harm: Callable[[str, list[str]], None], server: Server, db: str) -> None:
    before = read_state(server)
    ask_for_harm(db, HOSTILE)
    assert read_state(server) == before
    assert not (Path("/") / "tmp" / "sqlexec-hostile").exists()


def test_users_of_several_roles_cannot_end_the_sessions_of_each_other(server: Server, db: str) -> None:
    def numbered(number: int) -> Any:
        return connect(db.replace("//reader:", f"//reader_{number}:"))

    with numbered(1) as one, numbered(2) as other, connect(db) as reader, connect(db) as fellow:
        for attack in (f"KILL {other.thread_id()}", f"KILL QUERY {other.thread_id()}", "SET ROLE reader_2"):
            with one.cursor() as cursor, pytest.raises(pymysql.Error, match=r"not owner|Invalid role"):
                cursor.execute(attack)
        with one.cursor() as cursor:
            cursor.execute("KILL USER reader_2")  # of those that are one's own
            cursor.execute("SELECT DISTINCT user FROM information_schema.processlist")
            assert cursor.fetchall() == (("reader_1",),)
        with other.cursor() as cursor:
            assert cursor.execute("SELECT 1") == 1
        with reader.cursor() as cursor:  # those of one user can
            cursor.execute(f"KILL {fellow.thread_id()}")
        with pytest.raises(pymysql.Error):
            fellow.ping(reconnect=False)


def test_a_user_that_can_write_is_refused(executor: Executor, server: Server) -> None:
    outcome = executor.execute(server.owner, "SELECT 1")
    assert outcome.status == "db_error"
    assert "ALL PRIVILEGES on *.*" in (outcome.error or "")
    assert "GRANT SELECT ON `main`.* TO reader" in (outcome.error or "")
    server.run(
        "CREATE TABLE open(n integer); CREATE USER writer IDENTIFIED BY 'w'; GRANT INSERT ON main.open TO writer"
    )
    error = executor.execute(f"mysql://writer:w@127.0.0.1:{server.port}/main", "SELECT 1").error
    assert "it has INSERT on `main`.`open`" in (error or "")


def test_a_url_that_leads_nowhere_is_one_line_without_its_password(executor: Executor, server: Server) -> None:
    place = f"127.0.0.1:{server.port}/main"
    cases = {
        f"mysql://reader:secret@{place}": "Access denied",
        f"mysql://reader@{place}": "Access denied",
        f"mysql://nobody:secret@{place}": "Access denied",
        "mysql://reader:secret@127.0.0.1:1/main": "refused",
        "mysql://reader:secret@127.0.0.1": "a database",
        server.reader[: server.reader.rindex("/")] + "/nosuch": "Access denied",
    }
    for url, why in cases.items():
        outcome = executor.execute(url, "SELECT 1")
        assert outcome.status == "db_error"
        assert why in (outcome.error or "")
        assert "\n" not in (outcome.error or "")
        assert "secret" not in (outcome.error or "")


def test_a_server_without_room_is_a_db_error(server: Server, db: str) -> None:
    server.run("CREATE USER crowded IDENTIFIED BY 'c' WITH MAX_USER_CONNECTIONS 1; GRANT SELECT ON main.* TO crowded")
    url = f"mysql://crowded:c@127.0.0.1:{server.port}/main"
    with connect(url), Executor(threads=1) as executor:
        outcome = executor.execute(url, "SELECT 1")
        assert outcome.status == "db_error"
        assert "max_user_connections" in (outcome.error or "")
    with Executor(threads=1) as executor:
        end = time.monotonic() + 30  # the server may take a moment to see that the other is gone
        while executor.execute(url, "SELECT 1").status != "ok":
            assert time.monotonic() < end
            time.sleep(0.05)


def test_what_a_server_cannot_be_held_to_is_said(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["check", server.reader]) == 0
    told = capsys.readouterr().out
    assert "the user reader@% can read, and do nothing else" in told
    assert "memory: 256 MiB a run" in told
    assert __main__.main(["check", server.owner]) == 2
    assert "can do more than read" in capsys.readouterr().err
    with pytest.raises(servers.ServerError, match="begins with postgresql://"):
        servers.check("shop.sqlite")
