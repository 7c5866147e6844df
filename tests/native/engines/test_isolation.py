"""A candidate reads neither a gold's SQL nor another candidate's, on any engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqlexec_rs import Executor, Limits, Outcome
from sqlexec_rs.servers import ROLES, Server

MARKER = "item 7"
SLEEPS = {"postgresql": "pg_sleep({}) IS NULL", "mariadb": "SLEEP({}) = 1"}
ACTIVITY = """
SELECT string_agg(query, '|'), count(*) FROM pg_stat_activity WHERE usename = current_user AND pid <> pg_backend_pid()
"""
BACKENDS = """
SELECT string_agg(pg_stat_get_backend_activity(i), '|'), count(*) FROM pg_stat_get_backend_idset() i
WHERE pg_stat_get_backend_userid(i) = current_user::regrole AND pg_stat_get_backend_pid(i) <> pg_backend_pid()
"""
# The attack of an answer that searches for the gold that runs now, or ran last, and runs it.
COPY = """
SELECT coalesce(string_agg(query_to_xml(query, true, true, '')::text, ''), '') FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND query ~ '^SELECT'
"""


def wait_for_run(database: Any) -> None:
    """Wait until a session of the reader runs a query."""
    busy = {
        "postgresql": f"SELECT 1 FROM pg_stat_activity WHERE usename = '{database.user}' AND state = 'active'",
        "mariadb": f"SELECT 1 FROM information_schema.processlist WHERE user = '{database.user}' AND command = 'Query'",
    }
    end = time.monotonic() + 60
    with closing(database.connect(database.server.owner)) as connection, connection.cursor() as cursor:
        while True:
            cursor.execute(busy[database.engine])
            if cursor.fetchall():
                return
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("form", ["plain", "cursor", "plan"])
def test_session_queries_are_not_visible_to_their_role(database: Any, db: str, form: str) -> None:
    chance = "" if form == "plain" else " AND random() >= 0"
    sql = f"SELECT name FROM item WHERE name = '{MARKER}'{chance}"
    with Executor(threads=1) as executor:
        outcome = (executor.explain if form == "plan" else executor.execute)(db, sql)
        assert outcome.status == "ok"
        for query in (ACTIVITY, BACKENDS):
            ((texts, n),) = database.fetch(query)
            assert n >= 1, "the session exists"
            assert MARKER not in texts
        slow = f"SELECT count(*) FROM item a, item b, item c, item d WHERE a.name = '{MARKER}'{chance}"
        job = executor.submit([(db, slow)])
        wait_for_run(database)
        for query in (ACTIVITY, BACKENDS):
            assert MARKER not in database.fetch(query)[0][0]
        job.cancel()


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_error_offsets_exclude_the_hidden_prefix(db: str) -> None:
    with Executor(threads=1) as executor:
        for sql in ("SELECT nam FROM item", "SELECT 'é', nam FROM item WHERE random() > 0"):
            outcome = executor.execute(db, sql)
            assert outcome.status == "schema_error"
            assert outcome.error_offset == len(sql[: sql.index("nam")].encode())


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_candidate_cannot_find_and_run_the_gold(db: str) -> None:
    golds = [f"SELECT name FROM item WHERE id = {i}" for i in range(40)]
    rows: list[str] = []

    def keep(_path: Path, sql: str, outcome: Outcome) -> None:
        if "query_to_xml" in sql:
            rows.append(repr(outcome.rows))

    with Executor(threads=2, on_run=keep) as executor:
        copies = [f"{COPY} -- {i}" for i in range(40)]
        executor.submit_score([db] * 40, copies, golds, ["bird"]).result()
    assert len(rows) == 40
    assert "item " not in "".join(rows)


@pytest.mark.parametrize("engine", ["postgresql", "mariadb"], indirect=True)
def test_golds_run_under_a_separate_role(database: Any) -> None:
    user: dict[str, set[str]] = {"gold": set(), "candidate": set()}

    def keep(_path: Path, sql: str, outcome: Outcome) -> None:
        user["gold" if "gold" in sql else "candidate"].add(outcome.rows[0][0].partition("@")[0])

    n = 40
    golds = [f"SELECT current_user, 'gold', {i}, {SLEEPS[database.engine].format(0.002)}" for i in range(n)]
    candidates = [f"SELECT current_user, {i}, {SLEEPS[database.engine].format(0.002)}" for i in range(n)]
    with Executor(threads=3, on_run=keep) as executor:
        executor.submit_score([database.server.readers] * n, candidates, golds, ["bird"]).result()
    assert user["gold"] == {f"{database.user}_{ROLES}"}
    assert user["candidate"] <= {f"{database.user}_{i}" for i in range(1, 4)}
    assert len(user["candidate"]) > 1


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_single_role_is_refused_if_the_server_keeps_query_texts(database: Any, db: str) -> None:
    database.run("CREATE EXTENSION pg_stat_statements")
    try:
        with Executor(threads=1) as executor:
            for url in (db, f"{db}?roles=1"):
                outcome = executor.execute(url, "SELECT 1")
                assert outcome.status == "db_error"
                for part in ("pg_stat_statements", "?roles=N", "CREATE ROLE", "_2"):
                    assert part in (outcome.error or "")
            assert executor.execute(database.server.readers, "SELECT 1").status == "ok"
            database.run("REVOKE EXECUTE ON FUNCTION pg_stat_statements FROM PUBLIC")
            assert executor.execute(db, "SELECT 1").status == "ok"
    finally:
        database.run("DROP EXTENSION pg_stat_statements")


SESSIONS = (
    "SELECT info FROM information_schema.processlist",
    "SELECT info FROM information_schema.`PROCESSLIST`",
    "SELECT info FROM information_schema.processl\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}st",
    "SHOW PROCESSLIST",
    "SHOW /* */ FULL PROCESSLIST",
    "SHOW EXPLAIN FOR {id}",
    "SHOW ANALYZE FORMAT=JSON FOR {id}",
    "EXPLAIN FOR CONNECTION {id}",
    "DESC FORMAT=JSON FOR CONNECTION {id}",
)


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_queries_cannot_read_the_mariadb_process_list(database: Any, db: str) -> None:
    slow = f"SELECT name FROM item WHERE name = '{MARKER}' OR {SLEEPS['mariadb'].format(30)}"
    with Executor(threads=2) as executor:
        job = executor.submit([(db, slow)])
        wait_for_run(database)
        with closing(database.connect(database.server.owner)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM information_schema.processlist WHERE user = '{database.user}'")
            number = cursor.fetchall()[0][0]
        for text in SESSIONS:
            sql = text.format(id=number)
            outcome = executor.execute(db, sql)
            assert (sql, outcome.status) == (sql, "forbidden")
            assert MARKER not in repr(outcome)
        outcome = executor.execute(db, "EXPLAIN SELECT * FROM item")
        assert outcome.status == "ok"
        job.cancel()


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_a_user_that_can_read_the_query_log_is_refused(database: Any) -> None:
    everything = f"{database.user}_all"
    database.run(f"CREATE USER {everything} IDENTIFIED BY 'm'; GRANT SELECT ON *.* TO {everything}")
    url = database.url_of(everything, "m")
    with Executor(threads=1) as executor:
        assert executor.execute(url, "SELECT 1").status == "ok"
    database.run("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = 1")
    try:
        with Executor(threads=1) as executor:
            outcome = executor.execute(url, "SELECT 1")
            assert outcome.status == "db_error"
            assert "SELECT on mysql.general_log" in (outcome.error or "")
            assert executor.execute(database.url, "SELECT 1").status == "ok"
    finally:
        database.run("SET GLOBAL general_log = 0; SET GLOBAL log_output = 'FILE'")


# Queries for SQL that an engine in this process, or its worker, has run before.
REMEMBERED = {
    "duckdb": (
        "FROM duckdb_prepared_statements()",
        "FROM duckdb_logs()",
        "FROM duckdb_variables()",
        "FROM pragma_last_profiling_output()",
        "SELECT current_query()",
        "FROM duckdb_temporary_files()",
    ),
    "sqlite": (
        "SELECT * FROM sqlite_stmt",
        "SELECT * FROM sqlite_dbpage",
        "SELECT * FROM dbstat",
        "SELECT * FROM temp.sqlite_master",
    ),
}


@pytest.mark.parametrize("kind", REMEMBERED)
def test_file_engines_show_no_query_of_another_run(databases: Callable[[str], Any], tmp_path: Any, kind: str) -> None:
    path = str(tmp_path / "empty.sqlite")
    if kind == "duckdb":
        path = databases("duckdb").url
    else:
        (tmp_path / "empty.sqlite").touch()
    with Executor(threads=1) as executor:
        assert executor.execute(path, f"SELECT '{MARKER}', 'secret'").status == "ok"
        for sql in REMEMBERED[kind]:
            assert MARKER not in repr(executor.execute(path, sql, limits=Limits(timeout_ms=20_000)).rows)


def test_own_servers_hide_the_sessions_of_a_role(shared_server: Callable[[str], Server]) -> None:
    reader = shared_server("postgresql").reader
    with Executor(threads=1) as executor:
        for view in ("pg_stat_activity", "pg_locks", "pg_prepared_xacts"):
            assert executor.execute(reader, f"SELECT * FROM {view}").status == "forbidden"
        assert executor.execute(reader, "SELECT * FROM pg_stat_database").status == "ok"
