"""Read a database of MariaDB or MySQL: each statement is a read-only transaction, with bounds for locks and time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from jaxrl_sql.datagen.sample.catalog import (
    LOCK_SECONDS,
    READ_SECONDS,
    Catalog,
    ForeignKey,
    Key,
    Record,
    Table,
    changed,
    locked,
    too_slow,
)
from jaxrl_sql.datagen.sample.mysql_catalog import read_catalog
from jaxrl_sql.datagen.sample.values import NUMBERS
from jaxrl_sql.sqlenv.address import Address
from jaxrl_sql.types import InputError

_SESSION = (
    f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}, innodb_lock_wait_timeout = {LOCK_SECONDS}, "
    "time_zone = '+00:00', sql_mode = ''"
)
_TIMEOUTS = {
    True: f"SET SESSION max_statement_time = {READ_SECONDS}",  # MariaDB, in seconds
    False: f"SET SESSION max_execution_time = {1000 * READ_SECONDS}",  # MySQL, in milliseconds
}
_LOCKED, _TOO_SLOW, _CHANGED = (1205,), (1969, 3024), (1412, 1146, 1054, 1051)


class MysqlSource:
    """A database of MariaDB or MySQL, by one connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._shown = address.named(address.database)
        try:
            self._driver = importlib.import_module("pymysql")
        except ImportError:
            raise InputError("a sample of MariaDB needs PyMySQL: pip install pymysql") from None
        where = {"unix_socket": address.host} if address.host.startswith("/") else {"host": address.host}
        try:
            self._connection = self._driver.connect(
                **where, port=address.port, user=address.user, password=address.password, database=address.database,
                charset="utf8mb4", connect_timeout=10, autocommit=True, conv={}, ssl=address.tls_context(),
            )  # fmt: skip
        except (self._driver.Error, OSError, RuntimeError) as error:
            raise InputError(f"{self._shown}: {self._shortened(error)}") from None
        is_mariadb = "MariaDB" in self._connection.get_server_info()
        for statement in (_SESSION, _TIMEOUTS[is_mariadb], "SET SESSION TRANSACTION READ ONLY"):
            self._rows(self._shown, statement)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def catalog(self) -> Catalog:
        """Return the tables that the user can read, in the order of their creation."""
        return read_catalog(lambda sql: self._rows(self._shown, sql), self._address.database)

    def first_rows(self, table: Table, count: int) -> list[Record]:
        """Return the first rows of a table by its `order`."""
        order = f" ORDER BY {', '.join(map(_quoted, table.order))}" if table.order else ""
        return self._rows(table.title, f"SELECT {_listed(table.names)} FROM {_name(table)}{order} LIMIT {count}")

    def parents(self, parent: Table, key: ForeignKey, keys: Sequence[Key]) -> list[Record]:
        """Return the rows of `parent` that have the keys."""
        rows = ", ".join(f"({', '.join(map(_literal, key.types, values))})" for values in keys)
        where = f"({_listed(key.targets)}) IN ({rows})"
        return self._rows(parent.title, f"SELECT {_listed(parent.names)} FROM {_name(parent)} WHERE {where}")

    def _rows(self, title: str, sql: str) -> list[Record]:
        """Run a statement and return its rows as texts; raises InputError in one line."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
                return [tuple(map(_text, row)) for row in cursor.fetchall()]
        except UnicodeDecodeError:
            raise InputError(f"{title} holds text that is not UTF-8: --leave-out its column") from None
        except self._driver.Error as error:
            code = error.args[0] if error.args else 0
            if code in _LOCKED:
                raise locked(title) from None
            if code in _TOO_SLOW:
                raise too_slow(title) from None
            if code in _CHANGED:
                raise changed(title) from None
            raise InputError(f"{title}: {self._shortened(error)}") from None

    def _shortened(self, error: Exception) -> str:
        """Return the first line of an error, without the password."""
        lines = str(error.args[-1] if error.args else error).splitlines()
        return self._address.redacted(lines[0] if lines else type(error).__name__)


def _text(value: Any) -> str | None:
    """Return a value as a text: bytes in hexadecimal."""
    return value.hex() if isinstance(value, bytes) else value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _name(table: Table) -> str:
    return ".".join(map(_quoted, table.path))


def _literal(kind: str, text: str) -> str:
    """Return a value of a kind as SQL writes it, where backslashes escape."""
    if kind in NUMBERS:
        return text
    return f"x'{text}'" if kind == "bytes" else "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
