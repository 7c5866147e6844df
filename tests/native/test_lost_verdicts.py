"""Queries that end a server or a worker process: only they fail, and they are not run a third time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sqlexec_rs import Executor, Limits
from sqlexec_rs.servers import Server

NESTED = "CONCAT(REPEAT('-', 100000), '1')"
WKB = "UNHEX(CONCAT('00000000', REPEAT('010700000001000000', 50000), '0101000000', REPEAT('00', 16)))"
KILLER = f"SELECT UPDATEXML('<a/>', {NESTED}, '')"
N_RIGHT = 300

REFUSED = [
    "SELECT EXTRACTVALUE('<a/>', CONCAT(REPEAT('(', 1000), '1', REPEAT(')', 1000)))",
    KILLER,
    f"SELECT `UpdateXml` /* a */ ('<a/>', {NESTED}, '')",
    f"SELECT updatexml -- a\n ('<a/>', {NESTED}, '')",
    f"SELECT mariadb_schema.UPDATEXML('<a/>', {NESTED}, '')",
    f"SELECT `updatexml `('<a/>', {NESTED}, '')",
    f"SELECT updätexml('<a/>', {NESTED}, '')",
    f"SELECT 'a\\'', UPDATEXML('<a/>', {NESTED}, '')",
    "SELECT ST_GEOMFROMTEXT(CONCAT(REPEAT('GEOMETRYCOLLECTION(', 2000), 'POINT(1 1)', REPEAT(')', 2000)))",
    "SELECT GEOMCOLLFROMTEXT(REPEAT('GEOMETRYCOLLECTION(', 2000))",
    "SELECT PointFromText(REPEAT('GEOMETRYCOLLECTION(', 2000))",
    "SELECT ST_GeomFromGeoJSON('{}')",
    "SELECT PolyFromWKB(x'00')",
    f"SELECT ST_ASTEXT({WKB})",
    f"SELECT AREA({WKB})",
    f"SELECT WITHIN({WKB}, {WKB})",
    f"SELECT MBRCONTAINS({WKB}, POINT(1, 1))",
    f"EXPLAIN SELECT AREA({WKB})",
    f"SELECT 1 FROM (SELECT 1 AS a) t WHERE a IN (SELECT ENVELOPE({WKB}))",
]
ALLOWED = [
    ("SELECT EXTRACTVALUE('<a>1</a>', '/a')", "xml", "1"),
    ("SELECT EXTRACTVALUE('<a>1</a>', '/a')", "updatexml,ExtractValue", "1"),
    ("SELECT ST_ASTEXT(ST_GEOMFROMTEXT('POINT(1 2)'))", "spatial", "POINT(1 2)"),
]


def test_recursive_functions_are_refused_unless_allowed(
    server_database: Callable[[str, str], Server],
) -> None:
    server = server_database("mariadb", "SELECT 1;")
    with Executor(threads=1) as executor:
        for sql in REFUSED:
            outcome = executor.execute(server.reader, sql)
            assert outcome.status == "forbidden", (sql, outcome)
            assert "?allow=" in (outcome.error or "")
        for sql, allowed, value in ALLOWED:
            assert executor.execute(server.reader, sql).status == "forbidden"
            assert executor.execute(f"{server.reader}?allow={allowed}", sql).rows == [(value,)]
        assert executor.stats()["connections_lost"] == 0


def test_a_query_that_ends_the_server_affects_no_other_verdict(start_server: Callable[[str, str], Server]) -> None:
    """The server is restarted, other runs wait for it, and the query is run twice in total."""
    server = start_server("mariadb", "SELECT 1;")
    url = f"{server.readers}&allow=xml"
    with Executor(threads=4) as executor:
        texts = [f"SELECT {i}" for i in range(N_RIGHT)]
        outcomes = executor.execute_many([(url, sql) for sql in [*texts[:40], KILLER, *texts[40:]]])
        assert outcomes[40].status == "crashed", outcomes[40]
        assert outcomes[40].stopped_by is None
        del outcomes[40]
        assert [(outcome.status, outcome.rows) for outcome in outcomes] == [("ok", [(i,)]) for i in range(N_RIGHT)]
        n_lost = executor.stats()["connections_lost"]
        again = executor.execute_many([(url, KILLER), (url, "SELECT 7")], limits=Limits(timeout_ms=20_000))
        assert [outcome.status for outcome in again] == ["crashed", "ok"]
        assert executor.stats()["connections_lost"] == n_lost, "it is not sent a third time"


@pytest.mark.parametrize("engine", ["postgresql", "mariadb"])
def test_a_killed_own_server_restarts_and_queries_wait_for_it(
    engine: str, start_server: Callable[[str, str], Server]
) -> None:
    server = start_server(engine, "SELECT 1;")
    file = Path(server.folder) / ("data/postmaster.pid" if engine == "postgresql" else "pid")
    with Executor(threads=2) as executor:
        assert executor.execute(server.reader, "SELECT 1").status == "ok"
        os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
        outcomes = executor.execute_many([(server.reader, f"SELECT {i}") for i in range(50)])
        assert [outcome.rows for outcome in outcomes] == [[(i,)] for i in range(50)]


def test_a_retry_has_the_full_time_limit_after_a_server_restart(start_server: Callable[[str, str], Server]) -> None:
    server = start_server("postgresql", "SELECT 1;")
    with Executor(threads=1, limits=Limits(timeout_ms=1_500)) as executor:
        assert executor.execute(server.reader, "SELECT 1").status == "ok"
        job = executor.submit([(server.reader, "SELECT 7 FROM pg_sleep(0.7)")])
        while executor.stats()["queued"]:
            time.sleep(0.001)
        server.stop()
        time.sleep(1.6)
        server.restart()
        (outcome,) = job.result()
        assert (outcome.error, outcome.rows) == (None, [(7,)])
        assert executor.stats()["connections_lost"] == 1


@pytest.mark.slow
def test_a_server_that_does_not_return_is_given_up(start_server: Callable[[str, str], Server]) -> None:
    server = start_server("postgresql", "SELECT 1;")
    with Executor(threads=2) as executor:
        assert executor.execute(server.reader, "SELECT 1").status == "ok"
        server.stop()
        begun = time.monotonic()
        outcomes = executor.execute_many([(server.reader, f"SELECT {i}") for i in range(50)])
        assert {outcome.status for outcome in outcomes} == {"db_error"}
        assert time.monotonic() - begun < 60, "they wait concurrently"


def test_a_query_that_ends_its_session_twice_is_a_crash(server_database: Callable[[str, str], Server]) -> None:
    url = server_database("postgresql", "SELECT 1;").reader
    with Executor(threads=1) as executor:
        for _ in range(2):
            assert executor.execute(url, "SELECT pg_terminate_backend(pg_backend_pid())").status == "crashed"
        assert executor.stats()["connections_lost"] == 1, "it was run twice in total"
        assert executor.execute(url, "SELECT 1").status == "ok"
