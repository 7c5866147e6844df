"""Thousands of queries while their server restarts, sessions are killed, and connections are exhausted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pymysql
import pytest

from sqlexec_rs import Executor
from sqlexec_rs.servers import Server, ServerError

FAULTS = {
    "postgresql": {
        "kill": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'",
        "close": "ALTER ROLE reader CONNECTION LIMIT 0",
        "open": "ALTER ROLE reader CONNECTION LIMIT -1",
        "sleep": "pg_sleep(0.001)",
        "count": "SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader'",
    },
    "mariadb": {
        "kill": "KILL USER reader",
        "close": "ALTER USER reader ACCOUNT LOCK",
        "open": "ALTER USER reader ACCOUNT UNLOCK",
        "sleep": "SLEEP(0.001)",
        "count": "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'reader'",
    },
}


def run_patiently(server: Server, script: str) -> None:
    """Run a script on a server that may still be starting."""
    end = time.monotonic() + 60
    while True:
        try:
            return server.run(script)
        except ServerError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def ask_owner(server: Server, sql: str) -> int:
    """Return the number that a query of the owner gives; readers cannot see sessions."""
    url = urlsplit(server.owner)
    options: dict[str, Any] = {"host": url.hostname, "port": url.port, "user": url.username, "password": url.password}
    database = url.path[1:]
    is_postgresql = server.engine == "postgresql"
    opened = psycopg2.connect(dbname=database, **options) if is_postgresql else None
    with closing(opened or pymysql.connect(database=database, **options)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize(
    ("engine", "n_queries"),
    [
        pytest.param("postgresql", 2_500, marks=pytest.mark.slow),
        pytest.param("postgresql", 10_000, marks=pytest.mark.nightly),
        pytest.param("mariadb", 10_000, marks=pytest.mark.nightly),
    ],
)
def test_every_answer_is_right_or_db_error(
    engine: str, n_queries: int, start_server: Callable[[str, str], Server]
) -> None:
    server = start_server(engine, "SELECT 1;")
    faults = FAULTS[engine]
    is_over = threading.Event()

    def make_faults() -> int:
        n_rounds = 0
        while not is_over.is_set():
            for fault in ("kill", "close", "kill", "open", "kill"):
                run_patiently(server, faults[fault])
                time.sleep(0.1)
            server.restart()
            run_patiently(server, faults["open"])
            n_rounds += 1
            time.sleep(1)
        return n_rounds

    with Executor(threads=4) as executor, ThreadPoolExecutor(1) as faulty:
        rounds = faulty.submit(make_faults)
        outcomes = []
        try:
            while len(outcomes) < n_queries:
                numbers = range(len(outcomes), len(outcomes) + 200)
                texts = [f"SELECT {i}, '{i}', {faults['sleep']}" for i in numbers]
                outcomes += executor.execute_many([(server.reader, sql) for sql in texts])
                end = time.monotonic() + 60
                while executor.execute(server.reader, "SELECT 1").status != "ok" and time.monotonic() < end:
                    time.sleep(0.05)
        finally:
            is_over.set()
        n_rounds = rounds.result()
        assert {outcome.status for outcome in outcomes} <= {"ok", "db_error"}
        wrong = [
            (i, row) for i, outcome in enumerate(outcomes) for row in outcome.rows if (row[0], row[1]) != (i, str(i))
        ]
        assert wrong == []
        assert all(outcome.row_count == (outcome.status == "ok") for outcome in outcomes)
        n_right = sum(outcome.status == "ok" for outcome in outcomes)
        stats = executor.stats()
        print(f"{n_rounds} rounds, {n_right} of {n_queries} answered, {stats['connections_lost']} sessions lost")
        assert n_right > n_queries // 10
        again = executor.execute_many([(server.reader, f"SELECT {i} + 1") for i in range(200)])
        assert [outcome.rows for outcome in again] == [[(i + 1,)] for i in range(200)]
        assert executor.stats()["connections_open"] <= 4
        assert ask_owner(server, faults["count"]) <= 4, "the server has no other sessions of the test"
