"""Copies on a MariaDB or MySQL server: a database each, whose tables are filled one after another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from jaxrl_sql.databases.copy.kinds import Kind, plain_rows
from jaxrl_sql.databases.copy.names import NameRules
from jaxrl_sql.databases.copy.planned import PlannedColumn, PlannedTable, Rules
from jaxrl_sql.databases.copy.source import CHUNK, Rows
from jaxrl_sql.databases.copy.target import State, refused, unreachable
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.types import InputError

try:
    import pymysql
    from pymysql.cursors import SSCursor
except ImportError as error:
    raise InputError("MariaDB is written to by PyMySQL: pip install 'jaxrl-sql[mysql]'") from error

_SECONDS = 10
_VERSION = "SELECT VERSION()"
_TYPES: Mapping[Kind, str] = {
    "integer": "bigint",
    "real": "double",
    "text": "text",
    "date": "date",
    "timestamp": "datetime",
    "blob": "blob",
}
# Text is compared byte by byte, and blanks at its end count: SQLite's BINARY.
_COLLATIONS = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
# InnoDB's own columns.
_SYSTEM_COLUMNS = frozenset({"db_row_id", "db_trx_id", "db_roll_ptr", "fts_doc_id"})
# A key has 3,072 bytes, four for a character; the rest is for numbers.
_KEY_LENGTH = 700
_TEXT_BYTES = 65_535
# How a server ends a statement that is longer than it takes: it says so, or closes the connection.
_TOO_LARGE = (1153, 2006, 2013)
_MODE = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"


class Mysql:
    """A server, by a user who may make databases."""

    rules = Rules(
        "MariaDB",
        _TYPES,
        NameRules(64, reserved=_SYSTEM_COLUMNS, is_basic=True),
        holds_infinity=False,
        key_length=_KEY_LENGTH,
    )

    def __init__(self, address: Address) -> None:
        self.address = address
        version = self._ask(_VERSION)[0][0]
        self.version = version if "MariaDB" in version else f"MySQL {version}"
        found = re.match(r"(\d+)\.(\d+)", version)
        number = (int(found[1]), int(found[2])) if found else (0, 0)
        if number < ((10, 5) if "MariaDB" in version else (8, 0)):
            raise InputError(f"{address.shown}: the server is too old ({version}): MariaDB from 10.5, MySQL from 8.0")
        known = {name for (name,) in self._ask("SELECT collation_name FROM information_schema.collations")}
        self.collation = next(name for name in _COLLATIONS if name in known)

    def state(self, name: str) -> State:
        """Return whether a database is there, and holds tables."""
        if not self._ask("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", name):
            return "absent"
        count = self._ask("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s", name)
        return "full" if count[0][0] else "empty"

    def drop(self, name: str) -> None:
        """Remove a database."""
        self._ask(f"DROP DATABASE IF EXISTS {_name(name)}")

    def let_read(self, name: str, readers: Sequence[str]) -> None:
        """Let users read a database, from everywhere or, called `NAME@HOST`, from a host."""
        users = [part for reader in readers for part in (reader.rsplit("@", 1) if "@" in reader else (reader, "%"))]
        places = ", ".join(["%s@%s"] * len(readers))
        # In a GRANT the name of a database is a pattern.
        pattern = re.sub(r"([_%\\])", r"\\\1", name)
        self._ask(f"GRANT SELECT ON {_name(pattern).replace('%', '%%')}.* TO {places}", *users)

    @contextmanager
    def open(self, name: str) -> Iterator[_Session]:
        """Yield a session; what it began stays there when it breaks off."""
        self._ask(f"CREATE DATABASE IF NOT EXISTS {_name(name)} CHARACTER SET utf8mb4 COLLATE {self.collation}")
        with closing(self._connect(name)) as connection:
            try:
                yield _Session(connection, self.collation)
            except pymysql.Error as error:
                hint = ": raise max_allowed_packet if a row is larger" if error.args[0] in _TOO_LARGE else ""
                what = f"the database {name} cannot be written"
                raise refused(self.address, what, f"{_said(error)}{hint}") from error

    def _connect(self, database: str | None) -> Any:
        address = self.address
        try:
            connection = pymysql.connect(
                host="localhost" if address.host.startswith("/") else address.host,
                unix_socket=address.host if address.host.startswith("/") else None,
                port=address.port, user=address.user, password=address.password, database=database,
                charset="utf8mb4", connect_timeout=_SECONDS, autocommit=True, ssl=address.tls_context(),
            )  # fmt: skip
            with connection.cursor() as cursor:
                cursor.execute(_MODE)
        except (pymysql.Error, OSError) as error:
            raise unreachable(address, _said(error)) from None
        return connection

    def _ask(self, sql: str, *values: str) -> Sequence[tuple[Any, ...]]:
        with closing(self._connect(self.address.database or None)) as connection, connection.cursor() as cursor:
            try:
                cursor.execute(sql, values or None)
            except pymysql.Error as error:
                raise refused(self.address, sql.partition(" CHARACTER")[0], _said(error)) from None
            return tuple(cursor.fetchall())


class _Session:
    """A connection that writes a database."""

    def __init__(self, connection: Any, collation: str) -> None:
        self.connection = connection
        self.collation = collation

    def create(self, tables: Sequence[PlannedTable]) -> None:
        for table in tables:
            columns = [self._column(column, is_keyed=column.name in table.keyed) for column in table.columns]
            # Statistics stay as they are counted at the end: plans, and what ties come first, change with them.
            tail = f"ENGINE=InnoDB STATS_AUTO_RECALC=0 CHARACTER SET utf8mb4 COLLATE {self.collation}"
            self._run(f"CREATE TABLE {_name(table.name)} ({', '.join(columns)}) {tail}")

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        places = ", ".join(["%s"] * len(table.columns))
        insert = f"INSERT INTO {_name(table.name).replace('%', '%%')} VALUES ({places})"
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            cursor.max_stmt_length = min(cursor.max_stmt_length, cursor.fetchone()[0] - 4096)
            self.connection.begin()
            for chunk in rows:
                cursor.executemany(insert, chunk)
            self.connection.commit()

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        told = [line for table in tables for line in self._keys(table)]
        for table in tables:
            for key in table.foreign_keys:
                own, theirs = _listed(key.columns), _listed(key.targets)
                told += self._try(
                    f"{table.name}: the foreign key ({', '.join(key.columns)})",
                    f"ALTER TABLE {_name(table.name)} ADD FOREIGN KEY {own} REFERENCES {_name(key.table)} {theirs}",
                )
        for table in tables:
            self._run(f"ANALYZE TABLE {_name(table.name)}")
        return told

    def read(self, table: PlannedTable) -> Iterator[Rows]:
        with self.connection.cursor(SSCursor) as cursor:
            cursor.execute(f"SELECT * FROM {_name(table.name)}")
            while rows := cursor.fetchmany(CHUNK):
                yield plain_rows(rows)

    def _column(self, column: PlannedColumn, *, is_keyed: bool) -> str:
        kind = _TYPES[column.kind]
        if column.kind == "text":
            sizes = "text" if column.widest <= _TEXT_BYTES else "longtext"
            kind = f"varchar({max(column.longest, 1)})" if is_keyed else sizes
        if column.kind == "blob":
            sizes = "blob" if column.widest <= _TEXT_BYTES else "longblob"
            kind = f"varbinary({max(column.longest, 1)})" if is_keyed else sizes
        comment = f" COMMENT {self.connection.escape(column.comment)}" if column.comment else ""
        return f"{_name(column.name)} {kind} {'NOT NULL' if column.not_null else 'NULL'}{comment}"

    def _keys(self, table: PlannedTable) -> Iterator[str]:
        alter = f"ALTER TABLE {_name(table.name)} ADD"
        if table.primary_key:
            columns = _listed(table.primary_key)
            yield from self._try(f"{table.name}: the primary key", f"{alter} PRIMARY KEY {columns}")
        for unique in table.uniques:
            yield from self._try(
                f"{table.name}: the unique constraint ({', '.join(unique)})", f"{alter} UNIQUE {_listed(unique)}"
            )
        for index in table.indexes:
            yield from self._try(f"{table.name}: the index ({', '.join(index)})", f"{alter} INDEX {_listed(index)}")

    def _try(self, what: str, sql: str) -> list[str]:
        """Run a statement that may fail without harm; return what failed."""
        try:
            self._run(sql)
        except pymysql.Error as error:
            return [f"{what} is left out: {_said(error)}"]
        return []

    def _run(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)


def _said(error: BaseException) -> str:
    return " ".join(map(str, error.args))


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(map(_name, names))})"
