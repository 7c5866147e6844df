"""Databases of generated data, and of servers that tests start."""

from __future__ import annotations

import functools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from jaxrl_sql.datagen.synth.spec import Database
from jaxrl_sql.datagen.synth.store import write_database
from sqlexec_rs.servers import Server


@pytest.fixture(scope="module")
def connect_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Sequence[Database]], dict[str, sqlite3.Connection]]]:
    """Write databases to files and connect to them; all are closed in the end."""
    folder = tmp_path_factory.mktemp("databases")
    opened: dict[str, sqlite3.Connection] = {}

    def connect(databases: Sequence[Database]) -> dict[str, sqlite3.Connection]:
        for database in databases:
            write_database(database, folder / database.db_id)
            opened[database.db_id] = sqlite3.connect(folder / database.db_id)
        return opened

    yield connect
    for connection in opened.values():
        connection.close()


def insert_rows(table: str, count: int, row: Callable[[int], str]) -> str:
    """Return the statement that inserts rows 1 to `count`."""
    return f"INSERT INTO {table} VALUES {', '.join(f'({row(i)})' for i in range(1, count + 1))};"


# Sale 1 references customer 900, sale 2 customer 899: parents of first rows are no first rows.
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
    """A database of a server, with the URLs of its owner and of a role that can only SELECT."""

    def __init__(self, server: Server, name: str) -> None:
        self.engine, self.name = server.engine, name
        self.schema = "public" if self.engine == "postgresql" else name
        owner, reader = (f"{url.rpartition('/')[0]}/{name}" for url in (server.owner, server.reader))
        self.server, self.owner, self.reader = replace(server, owner=owner, reader=reader), owner, reader
        server.run(f"CREATE DATABASE {name};")
        if self.engine == "mariadb":
            server.run(f"GRANT SELECT ON {name}.* TO reader")
        else:
            self.run("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader;")
            self.run("ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO reader;")

    def run(self, script: str) -> None:
        """Run statements as the owner: names are in double quotes, and a lock is awaited for 2 s."""
        mariadb = "SET SESSION sql_mode = 'ANSI_QUOTES', lock_wait_timeout = 2;"
        self.server.run((mariadb if self.engine == "mariadb" else "SET lock_timeout = '2s';") + script)

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Lock a table in another session."""
        import psycopg2
        import pymysql

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
def servers(start_server: Callable[[str, str], Server]) -> Callable[[str], Server]:
    """Return a function that returns the server of an engine."""
    return functools.cache(lambda engine: start_server(engine, "SELECT 1"))


@pytest.fixture
def make_database(servers: Callable[[str], Server]) -> Callable[[str, str], ServerDatabase]:
    """Return a function that makes a database of an engine by a script."""

    def make(engine: str, script: str) -> ServerDatabase:
        database = ServerDatabase(servers(engine), f"test_{os.urandom(6).hex()}")
        database.run(script)
        return database

    return make


@pytest.fixture(scope="module", params=("postgresql", "mariadb"))
def engine(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine."""
    return str(request.param)


@pytest.fixture(scope="module")
def shop(engine: str, servers: Callable[[str], Server]) -> ServerDatabase:
    """Return a shop that no test changes."""
    database = ServerDatabase(servers(engine), "shop")
    database.run(SHOP)
    return database


@pytest.fixture
def pair(engine: str, make_database: Callable[[str, str], ServerDatabase]) -> ServerDatabase:
    """Return a database with one foreign key, of b 1 to 60 to a 60 to 1."""
    script = "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE b(id int PRIMARY KEY, a int REFERENCES a(id));"
    script += insert_rows("a", 60, str) + insert_rows("b", 60, lambda i: f"{i}, {61 - i}")
    return make_database(engine, script)
