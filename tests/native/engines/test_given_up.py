"""Queries that a server does not end at their deadline: refused functions, and limits on given-up sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from sqlexec_rs import Executor, Limits
from sqlexec_rs.servers import Server, check

MOST = 4
"""The number of given-up sessions up to which a server gets new runs."""

# Calls that do not check for cancellation and end by themselves after some seconds.
LONG = {
    "postgresql": (
        "SELECT (SELECT array_agg(i) FROM generate_series(1, 30000) i) "
        "&& (SELECT array_agg(-i - {}) FROM generate_series(1, 30000) i)"
    ),
    "mariadb": "SELECT ENCRYPT('x', '$6$rounds=2000000$a{}')",
}
RUNNING = {"postgresql": "", "mariadb": ": they occupy the server's processors until they end or the server restarts"}
"""The end of the line of `servers check`, after the count."""
OPTIONS = {"postgresql": "", "mariadb": "?allow=encrypt"}


def wait_for_the_end(executor: Executor) -> None:
    """Wait until no session is counted as given up."""
    end = time.monotonic() + 60
    while executor.stats()["sessions_given_up"] > 0:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("engine", LONG, indirect=True)
def test_given_up_sessions_are_counted_and_block_new_runs(database: Any, engine: str) -> None:
    url = database.url + OPTIONS[engine]
    with Executor(threads=MOST) as executor:
        assert executor.execute(url, "SELECT 0").status == "ok"
        assert executor.stats()["sessions_given_up"] == 0
        texts = [(url, LONG[engine].format(i)) for i in range(MOST)]
        outcomes = executor.execute_many(texts, limits=Limits(timeout_ms=100))
        assert [outcome.status for outcome in outcomes] == ["timeout"] * MOST
        assert executor.stats()["sessions_given_up"] == MOST
        assert check(url)[-1].endswith(f"{MOST if engine == 'mariadb' else 0}" + RUNNING[engine])
        held = executor.submit([(url, "SELECT 1")])
        time.sleep(0.3)
        assert not held.done()
        held.cancel()
        assert held.result()[0].status == "cancelled"
        assert executor.execute(url, "SELECT 2").status == "ok"
        assert executor.stats()["sessions_given_up"] < MOST
        wait_for_the_end(executor)


# A session ends with each run that may have called a function of dblink, which keeps connections.
LASTING = "CREATE EXTENSION dblink; REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC;"


def test_sessions_that_end_with_their_runs_are_not_counted_as_given_up(
    server_database: Callable[[str, str], Server],
) -> None:
    url = server_database("postgresql", LASTING).reader
    sql = "SELECT {}, set_config('TimeZone', 'Asia/Tokyo', false)"
    with Executor(threads=2) as executor:
        assert executor.execute(url, sql.format(0)).status == "ok"
        assert executor.stats()["sessions_given_up"] == 0
        long = sql.format("generate_series(1, 3)")
        assert executor.execute(url, long, limits=Limits(max_rows=1)).status == "too_large"
        assert executor.stats()["sessions_given_up"] == 0
        outcomes = executor.execute_many([(url, sql.format(i)) for i in range(20)])
        assert [outcome.rows[0][0] for outcome in outcomes] == list(range(20))
        stats = executor.stats()
        assert (stats["sessions_given_up"], stats["connections_open"], stats["connections_lost"]) == (0, 0, 0)


@pytest.mark.parametrize("engine", LONG, indirect=True)
def test_an_unknown_name_of_an_allowed_function_is_refused(executor: Executor, database: Any) -> None:
    outcome = executor.execute(f"{database.url}?allow=nothing", "SELECT 1")
    assert outcome.status == "db_error"
    assert "allow=nothing: not a refused function" in (outcome.error or "")


@pytest.mark.parametrize("url", ["postgresql://u:secret@127.0.0.1:1/d", "mysql://u:secret@127.0.0.1:1/d"])
def test_an_unknown_url_option_is_refused_with_the_nearest_name(url: str) -> None:
    with Executor(threads=1) as executor:
        outcome = executor.execute(f"{url}?sslmod=verify-full", "SELECT 1")
    assert outcome.status == "db_error"
    assert (outcome.error or "").endswith("known: allow, roles, sslmode, sslrootcert. Did you mean sslmode?")
    assert "secret" not in repr(outcome)


REVOKED = [
    "SELECT xpath('//a//a//a//a', '<a/>'::xml)",
    "SELECT xpath_exists('//a', '<a/>'::xml)",
    "SELECT XMLEXISTS('//a' PASSING '<a/>')",
    "SELECT query_to_xml('SELECT 1', true, true, '')",
    "SELECT * FROM ts_stat('SELECT ''a''::tsvector')",
    "SELECT normalize('a', NFD)",
    "SELECT 'a' IS NFD NORMALIZED",
    "SELECT position('a'::bytea in 'ab'::bytea)",
    "SELECT position(B'1' in B'01')",
    "SELECT btrim('a'::bytea, 'a'::bytea)",
    "SELECT path '((0,0),(1,1))' <-> path '((2,2),(3,3))'",
    "SELECT path '((0,0),(1,1))' ?# path '((2,2),(3,3))'",
    "SELECT polygon '((0,0),(1,1))' <-> polygon '((2,2),(3,3))'",
    "SELECT polygon '((0,0),(1,1))' && polygon '((2,2),(3,3))'",
    "SELECT '{}'::jsonb @? '$.a'",
    "SELECT jsonb_path_query('\"1\"'::jsonb, '$.datetime(\"YYYY\")')",
]
ORDINARY = [
    "SELECT position('a' in 'ba'), strpos('ba', 'a'), btrim(' a '), translate('a', 'a', 'b'), 'ab' LIKE '%b'",
    "SELECT to_date('2020', 'YYYY'), to_timestamp('2020', 'YYYY'), to_timestamp(1), to_char(now(), 'YYYY')",
    "SELECT '{\"a\": 1}'::jsonb @> '{\"a\": 1}', ARRAY[1] && ARRAY[1], '<a/>'::xml::text",
    "SELECT to_tsvector('simple', 'a b') @@ to_tsquery('simple', 'a'), point(1, 1) <-> point(2, 2)",
]


def test_an_own_server_revokes_functions_that_ignore_cancellation(start_server: Callable[[str, str], Server]) -> None:
    server = start_server("postgresql", "CREATE DATABASE other")
    with Executor(threads=1) as executor:
        for url in (server.reader, server.reader.rpartition("/")[0] + "/other"):
            for sql in REVOKED:
                outcome = executor.execute(url, sql)
                assert outcome.status == "forbidden", (sql, outcome)
                assert "permission denied" in (outcome.error or "")
            for sql in ORDINARY:
                assert executor.execute(url, sql).error is None, sql


@pytest.fixture(scope="module")
def server_of_modes(start_server: Callable[[str, str], Server]) -> Server:
    """Return a MariaDB server whose global `sql_mode` tests change."""
    return start_server("mariadb", "SELECT 1")


def test_executable_comments_are_detected_in_each_sql_mode(server_of_modes: Server) -> None:
    server = server_of_modes
    harmless = [("SELECT '/*!'", "/*!"), ("SELECT 'a''/*! '", "a'/*! "), ("SELECT 1 /* /*! */", 1)]
    run = {
        "": "SELECT '\\\\' /*! , 1 */",
        "NO_BACKSLASH_ESCAPES": "SELECT '\\' /*! , 1 */ -- '",
        "ANSI_QUOTES": "SELECT '\\'', 1 AS \"a\\\" /*! , 2 */ -- \"",
        "ANSI_QUOTES,NO_BACKSLASH_ESCAPES": 'SELECT 1 AS "\\" /*! , 2 */ -- "',
    }
    for mode in run:
        server.run(f"SET GLOBAL sql_mode = '{mode}'")
        with Executor(threads=1) as executor:
            for sql, value in harmless:
                assert executor.execute(server.reader, sql).rows == [(value,)], (mode, sql)
            for sql in run.values():
                assert executor.execute(server.reader, sql).status == "forbidden", (mode, sql)


def test_functions_are_detected_under_the_sql_mode_of_the_session(server_of_modes: Server) -> None:
    """The owner may change the mode at any time; a session keeps its initial mode."""
    server = server_of_modes
    xml = "EXTRACTVALUE('<a>1</a>', '/a')"
    escaped, plain, in_quotes = f"SELECT '\\'', {xml}, ''", f"SELECT '\\', {xml}, ''", f'SELECT "\\", {xml} -- "'
    modes = {
        "": {escaped: "forbidden", plain: "syntax_error", in_quotes: "ok"},
        "NO_BACKSLASH_ESCAPES": {escaped: "syntax_error", plain: "forbidden", in_quotes: "forbidden"},
        "ANSI": {escaped: "forbidden", plain: "syntax_error", in_quotes: "forbidden"},
    }
    lasting = "SELECT @a := 1"  # its session is reset
    for mode, expected in modes.items():
        server.run(f"SET GLOBAL sql_mode = '{mode}'")
        with Executor(threads=1) as executor:
            for other in modes:
                statuses = {sql: executor.execute(server.reader, sql).status for sql in expected}
                assert statuses == expected, (mode, other)
                server.run(f"SET GLOBAL sql_mode = '{other}'")
                assert executor.execute(server.reader, lasting).status == "ok"


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_names_and_strings_that_look_like_calls_are_not_refused(executor: Executor, database: Any) -> None:
    columns = "WITH RECURSIVE area (id) AS (SELECT 1), `row_count`(a, `b`) AS (SELECT id, 2 FROM area) SELECT b FROM "
    assert executor.execute(database.url, columns + "row_count").rows == [(2,)]
    assert executor.execute(database.url, columns + "row_count WHERE ROW_COUNT() > 0").status == "forbidden"
    assert executor.execute(database.url, "SELECT 'O\\'Hare', 'Area (km)'").rows == [("O'Hare", "Area (km)")]
    for call in ("AREA(a) AS (a)", "AREA(a) AS (SELECT 1)", "WITHIN(a, a)AS(a)", "ROW_COUNT() AS (1)"):
        # The server's grammar has no such call.
        assert executor.execute(database.url, f"SELECT {call} FROM (SELECT 1 AS a) t").status == "syntax_error", call


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_format_calls_as_printed_in_views_are_not_refused(executor: Executor, database: Any) -> None:
    database.run("CREATE VIEW dates AS SELECT to_date(a, 'YYYY-MM') AS b FROM (VALUES ('2020-02')) t(a)")
    ((text,),) = executor.execute(database.url, "SELECT pg_get_viewdef('dates'::regclass)").rows
    assert "'YYYY-MM'::text" in text
    assert executor.execute(database.url, text.rstrip(";")).rows == [("2020-02-01",)]
    lengthened = "SELECT to_date('2020', 'YYYY'::text || repeat(' ', 9))"
    assert executor.execute(database.url, lengthened).status == "forbidden"


@pytest.mark.slow
def test_listing_views_does_not_count_as_run_time(server_database: Callable[[str, str], Server]) -> None:
    views = "\n".join(f"CREATE VIEW v{i} AS SELECT 1;" for i in range(2_000))
    url = server_database("mariadb", views).reader
    with Executor(threads=1) as executor:
        end, statuses = time.monotonic() + 5, []
        while time.monotonic() < end:  # the list is requested again within 5 seconds
            statuses.append(executor.execute(url, "SELECT 1", limits=Limits(timeout_ms=8)).status)
            time.sleep(0.02)
        assert statuses.count("ok") > len(statuses) // 2, "a busy machine may be late at times"
        assert executor.stats()["connections_lost"] == 0
