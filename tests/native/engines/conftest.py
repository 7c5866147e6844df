"""A database of the same rows on each engine, for the tests in this folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import duckdb
import psycopg2
import pymysql
import pytest

from sqlexec_rs import Executor, Limits
from sqlexec_rs.servers import Server

ROWS = {
    "duckdb": """
        INSERT INTO item SELECT i, 'item ' || i, i / 4.0, i % 2 = 0, DATE '2020-01-01' + i::INTEGER, i * 0.1
        FROM range(1, 501) t(i);
        CREATE TYPE size AS ENUM ('small', 'large');
    """,
    "postgresql": """
        INSERT INTO item SELECT i, 'item ' || i, i / 4.0, i % 2 = 0, date '2020-01-01' + i, i * 0.1
        FROM generate_series(1, 500) i;
    """,
    "mariadb": """
        INSERT INTO item SELECT seq, concat('item ', seq), seq / 4.0, seq % 2 = 0,
                                date '2020-01-01' + INTERVAL seq DAY, seq * 0.1e0
        FROM seq_1_to_500;
    """,
}
SCHEMA = """
CREATE TABLE item(id integer PRIMARY KEY, name varchar(50), price numeric(8, 2), is_new boolean, since date,
                  weight double precision);
{rows}
CREATE VIEW cheap AS SELECT * FROM item WHERE price < 10;
CREATE SEQUENCE numbers;
"""
# The state of a server that a reader might change. Other tests have readers and databases there concurrently.
STATES = {
    "postgresql": """
        SELECT (SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM item t), (SELECT last_value FROM numbers),
               (SELECT md5(string_agg(c.oid || relname || relacl::text, ',' ORDER BY c.oid)) FROM pg_class c
                WHERE relnamespace = 'public'::regnamespace),
               (SELECT count(*) FROM pg_largeobject_metadata),
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())),
               (SELECT md5(string_agg(rolname || rolsuper, ',' ORDER BY rolname)) FROM pg_roles
                WHERE rolname NOT LIKE 'reader%' OR rolname LIKE '{user}%'),
               (SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}' AND state <> 'idle') AS busy
    """,
    "mariadb": """
        SELECT (SELECT MD5(GROUP_CONCAT(CONCAT_WS(',', id, name, price, is_new, since, weight) ORDER BY id)) FROM item),
               (SELECT next_not_cached_value FROM numbers),
               (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema IN (DATABASE(), 'mysql')),
               (SELECT MD5(GROUP_CONCAT(user, priv ORDER BY user)) FROM mysql.global_priv
                WHERE (user NOT LIKE 'reader%' OR user LIKE '{user}%')
                AND NOT (user = 'PUBLIC' AND JSON_VALUE(priv, '$.access') = 0)),  -- another test grants it EXECUTE
               @@global.max_connections,
               (SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{user}' AND command <> 'Sleep')
               + (IS_FREE_LOCK('sqlexec') = 0) AS busy
    """,
}


class Database(NamedTuple):
    """A database of an engine: the reader's URL, and its server or file."""

    engine: str
    url: str
    server: Server | None = None
    file: Path | None = None

    @property
    def scheme(self) -> str:
        """Return the engine's name in URLs and messages."""
        return "mysql" if self.engine == "mariadb" else self.engine

    @property
    def name(self) -> str:
        return urlsplit(self.url).path[1:]

    @property
    def user(self) -> str:
        return urlsplit(self.url).username or ""

    def url_of(self, user: str, password: str | None = None) -> str:
        """Return the URL of another user, with the reader's password by default."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=f"{user}:{password or parts.password}@{parts.netloc.rpartition('@')[2]}").geturl()

    def connect(self, url: str = "") -> Any:
        """Return a connection of the driver that published scorers use."""
        if self.file is not None:
            return duckdb.connect(str(self.file), read_only=True)
        parts = urlsplit(url or self.url)
        options = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
        if self.engine == "postgresql":
            return psycopg2.connect(dbname=parts.path[1:], **options)
        return pymysql.connect(database=parts.path[1:], charset="utf8mb4", **options)

    def fetch(self, sql: str) -> list[Any]:
        """Return the driver's rows."""
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def run(self, script: str) -> None:
        """Run statements as the server's owner."""
        assert self.server is not None
        self.server.run(script)

    def read_state(self) -> str:
        """Return a digest of all state that a query might change."""
        if self.file is not None:
            files = sorted(path for path in self.file.parent.rglob("*") if path.is_file())
            return repr([(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files])
        assert self.server is not None
        end = time.monotonic() + 60
        while True:  # a session closed during a run may need a moment to notice
            with closing(self.connect(self.server.owner)) as connection, connection.cursor() as cursor:
                if self.engine == "mariadb":
                    cursor.execute("SET group_concat_max_len = 1000000")
                cursor.execute(STATES[self.engine].format(user=self.user))
                (state,) = cursor.fetchall()
            if state[-1] == 0 or time.monotonic() > end:
                return repr(state)
            time.sleep(0.05)


@pytest.fixture(params=ROWS)
def engine(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine; a test that uses it, or its database, runs on all unless it selects some."""
    return str(request.param)


@pytest.fixture(scope="module")
def databases(
    server_database: Callable[[str, str], Server], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Database]:
    """Return a function that creates the database of an engine, once per module."""
    by_engine: dict[str, Database] = {}

    def get(engine: str) -> Database:
        if engine not in by_engine:
            script = SCHEMA.format(rows=ROWS[engine])
            if engine == "duckdb":
                file = tmp_path_factory.mktemp("duckdb") / "shop.db"
                with duckdb.connect(str(file)) as connection:
                    connection.execute(script)
                by_engine[engine] = Database(engine, f"duckdb:{file}", file=file)
            else:
                server = server_database(engine, script)
                by_engine[engine] = Database(engine, server.reader, server=server)
        return by_engine[engine]

    return get


@pytest.fixture
def database(engine: str, databases: Callable[[str], Database]) -> Database:
    return databases(engine)


@pytest.fixture
def db(database: Database) -> str:
    """Return the reader's URL of the database."""
    return database.url


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, Executor]]:
    """Return executors in threads and in processes: DuckDB always uses processes, servers never do."""
    with Executor(threads=1, isolation="thread", worker_grace_ms=1_000) as in_threads, Executor(threads=2) as others:
        yield {"duckdb": in_threads, "postgresql": others, "mariadb": others}


@pytest.fixture
def executor(engine: str, executors: dict[str, Executor]) -> Executor:
    return executors[engine]


@pytest.fixture
def small() -> Limits:
    """Return limits that a small test does not reach on a busy machine."""
    return Limits(timeout_ms=20_000, max_rows=10_000, max_bytes=1 << 20)
