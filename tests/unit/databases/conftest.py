"""Databases in files and on servers, and destinations for copies."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import duckdb
import psycopg2
import pymysql
import pytest

from jaxrl_sql.commands.copy import main
from sqlexec_rs.servers import Server

ENGINES = ("duckdb", "postgresql", "mariadb")


class CopyTarget(NamedTuple):
    """Destination of a copy: `to` and `reader` as the command takes them, and a prefix for this test."""

    engine: str
    to: str
    reader: str
    prefix: str
    out: Path

    def arguments(self, source: Path, *more: str) -> list[str]:
        return ["--from", str(source), "--to", self.to, "--out", str(self.out), "--prefix", self.prefix, *more]

    def entry(self, db_id: str) -> dict[str, Any]:
        return json.loads((self.out / "manifest.json").read_text(encoding="utf-8"))["databases"][db_id]

    def fetch(self, db_id: str, sql: str) -> list[tuple[Any, ...]]:
        """Return rows as the engine's driver returns them."""
        name = self.prefix + db_id
        if self.engine == "duckdb":
            with closing(duckdb.connect(Path(self.to.partition(":")[2], f"{name}.duckdb"), read_only=True)) as reading:
                return reading.execute(sql).fetchall()
        parts = urlsplit(self.to)
        options = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
        opened = (
            psycopg2.connect(dbname=name, **options)
            if self.engine == "postgresql"
            else pymysql.connect(database=name, charset="utf8mb4", **options)
        )
        with closing(opened) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(bytes(cell) if isinstance(cell, memoryview) else cell for cell in row) for row in cursor]

    def run(self, script: str) -> None:
        """Run a statement on the engine as a privileged user."""
        parts = urlsplit(self.to)
        options = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
        opened = psycopg2.connect(dbname="postgres", **options) if self.engine == "postgresql" else None
        with closing(opened or pymysql.connect(**options)) as connection:
            connection.autocommit = True if self.engine == "postgresql" else connection.autocommit
            with connection.cursor() as cursor:
                cursor.execute(script)


@pytest.fixture(scope="module")
def copy_server(server_database: Callable[[str, str], Server]) -> Callable[[str], Server]:
    """Return a function that starts a server of an engine once, or skips."""
    started: dict[str, Server] = {}

    def get(engine: str) -> Server:
        if engine not in started:
            started[engine] = server_database(engine, "SELECT 1;")
        return started[engine]

    return get


@pytest.fixture
def make_target(copy_server: Callable[[str], Server], tmp_path: Path) -> Callable[[str], CopyTarget]:
    """Return a function that makes a destination on an engine."""

    def make(engine: str) -> CopyTarget:
        prefix, out = f"t{uuid4().hex[:10]}_", tmp_path / "out"
        if engine == "duckdb":
            return CopyTarget(engine, f"duckdb:{tmp_path / 'files'}", "", prefix, out)
        server = copy_server(engine)
        return CopyTarget(engine, server.owner, server.readers, prefix, out)

    return make


@pytest.fixture(params=ENGINES)
def target(request: pytest.FixtureRequest, make_target: Callable[[str], CopyTarget]) -> CopyTarget:
    """Return a destination; a test with this fixture runs at all engines."""
    return make_target(request.param)


@pytest.fixture
def make_file() -> Callable[..., Path]:
    """Return a function that makes `folder/db_id/db_id.sqlite`; `rows` maps quoted table names to rows."""

    def make(folder: Path, db_id: str, script: str, rows: dict[str, Sequence[Sequence[Any]]] | None = None) -> Path:
        path = folder / db_id / f"{db_id}.sqlite"
        path.parent.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
            for table, values in (rows or {}).items():
                places = ", ".join("?" * len(values[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({places})", values)
            connection.commit()
        return folder

    return make


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], str]:
    """Return a function that returns the one-line error of a command."""

    def refuse(arguments: Sequence[str]) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.endswith("\n")
        return error

    return refuse


def insert_rows(table: str, count: int, row: Callable[[int], str]) -> str:
    """Return the statement that inserts rows 1 to `count`."""
    return f"INSERT INTO {table} VALUES {', '.join(f'({row(i)})' for i in range(1, count + 1))};"


# Sale 1 references customer 900, sale 2 customer 899: the parents are not among the first rows.
SHOP = (
    "CREATE TABLE customer(id int PRIMARY KEY, name varchar(30) NOT NULL, email varchar(40) UNIQUE);"
    "CREATE TABLE item(id int PRIMARY KEY, code varchar(8) UNIQUE, price numeric(8, 2));"
    "CREATE TABLE sale(id bigint PRIMARY KEY, customer_id int NOT NULL REFERENCES customer(id),"
    " code varchar(8) REFERENCES item(code));"
    "CREATE TABLE line(sale_id bigint REFERENCES sale(id), place int, note varchar(30), PRIMARY KEY (sale_id, place));"
    "CREATE TABLE remark(id int PRIMARY KEY, sale_id bigint, place int, txt varchar(30),"
    " FOREIGN KEY (sale_id, place) REFERENCES line(sale_id, place));"
    + insert_rows("customer", 900, lambda i: f"{i}, 'name {i}', 'c{i}@shop.example'")
    + insert_rows("item", 300, lambda i: f"{i}, 'I-{i}', {i / 4}")
    + insert_rows("sale", 800, lambda i: f"{i}, {901 - i}, " + (f"'I-{1 + i % 300}'" if i % 5 else "NULL"))
    + insert_rows("line", 800, lambda i: f"{801 - i}, {i % 3}, 'note {i}'")
    + insert_rows("remark", 800, lambda i: f"{i}, {801 - i}, {i % 3 if i % 4 else 'NULL'}, 'remark {i}'")
)


class ServerDatabase:
    """A database on a server, with the URLs of its owner and of a read-only role."""

    def __init__(self, server: Server) -> None:
        self.server, self.engine = server, server.engine
        self.owner, self.reader = server.owner, server.reader
        self.name, self.role = urlsplit(server.owner).path[1:], urlsplit(server.reader).username
        self.schema = "public" if self.engine == "postgresql" else self.name

    def run(self, script: str) -> None:
        """Run statements as the owner: names are in double quotes, and the lock timeout is 2 s."""
        mariadb = "SET SESSION sql_mode = 'ANSI_QUOTES', lock_wait_timeout = 2;"
        self.server.run((mariadb if self.engine == "mariadb" else "SET lock_timeout = '2s';") + script)

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Lock a table in another session."""
        url = urlsplit(self.owner)
        driver, lock = {
            "postgresql": (psycopg2, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"),
            "mariadb": (pymysql, f"LOCK TABLES {table} WRITE"),
        }[self.engine]
        address = {"host": url.hostname, "port": url.port, "user": url.username, "password": url.password}
        with closing(driver.connect(**address, database=self.name)) as connection:
            connection.cursor().execute(lock)
            yield


@pytest.fixture(scope="module")
def make_database(server_database: Callable[[str, str], Server]) -> Callable[[str, str], ServerDatabase]:
    """Return a function that makes a database of an engine by a script."""

    def make(engine: str, script: str) -> ServerDatabase:
        database = ServerDatabase(server_database(engine, "SELECT 1;"))
        database.run(script)
        return database

    return make


@pytest.fixture(scope="module", params=("postgresql", "mariadb"))
def engine(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine."""
    return str(request.param)


@pytest.fixture(scope="module")
def shop(engine: str, make_database: Callable[[str, str], ServerDatabase]) -> ServerDatabase:
    """Return a shop that no test changes."""
    return make_database(engine, SHOP)


@pytest.fixture
def pair(engine: str, make_database: Callable[[str, str], ServerDatabase]) -> ServerDatabase:
    """Return a database with one foreign key, from b 1 to 60 to a 60 to 1."""
    script = "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY, a int REFERENCES a(id));"
    script += insert_rows("a", 60, str) + insert_rows("b", 60, lambda i: f"{i}, {61 - i}")
    return make_database(engine, script)
