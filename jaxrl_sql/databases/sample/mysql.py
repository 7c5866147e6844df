"""Read a database of MariaDB or MySQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jaxrl_sql.databases.sample.catalog import Catalog, ForeignKey, Key, Record, Table
from jaxrl_sql.databases.sample.mysql_catalog import read_catalog
from jaxrl_sql.databases.sample.source import CHANGED, LOCK_SECONDS, LOCKED, READ_SECONDS, TOO_SLOW, Source
from jaxrl_sql.databases.sample.values import NUMBERS

_SESSION = (
    f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}, innodb_lock_wait_timeout = {LOCK_SECONDS}, "
    "time_zone = '+00:00', sql_mode = ''"
)
# MariaDB would turn a long list of keys into a table, whose texts have another collation than the column.
_MARIADB = f"SET SESSION max_statement_time = {READ_SECONDS}, in_predicate_conversion_threshold = 0"
_MYSQL = f"SET SESSION max_execution_time = {1000 * READ_SECONDS}"


class MysqlSource(Source):
    """A database of MariaDB or MySQL."""

    driver_name, package, quote = "pymysql", "pymysql", "`"
    reasons: ClassVar = {1205: LOCKED, 1969: TOO_SLOW, 3024: TOO_SLOW, 1412: CHANGED, 1146: CHANGED, 1054: CHANGED}

    def _connect(self) -> Any:
        address = self.address
        where = {"unix_socket": address.host} if address.host.startswith("/") else {"host": address.host}
        connection = self.driver.connect(
            **where, port=address.port, user=address.user, password=address.password, database=address.database,
            charset="utf8mb4", connect_timeout=10, autocommit=True, conv={}, ssl=address.tls_context(),
        )  # fmt: skip
        bounds = _MARIADB if "MariaDB" in connection.get_server_info() else _MYSQL
        with connection.cursor() as cursor:
            for statement in (_SESSION, bounds, "SET SESSION TRANSACTION READ ONLY"):
                cursor.execute(statement)
        return connection

    def catalog(self) -> Catalog:
        """Return the tables that the user can read, in the order of their creation."""
        return read_catalog(lambda sql: self.run(self.shown, sql), self.address.database)

    def parents(self, parent: Table, key: ForeignKey, keys: Sequence[Key]) -> list[Record]:
        """Return the rows of `parent` that have the keys."""
        rows = ", ".join(f"({', '.join(map(_literal, key.types, values))})" for values in keys)
        where = f"({self._listed(key.targets)}) IN ({rows})"
        return self.run(parent.title, f"SELECT {self._listed(parent.names)} FROM {self._name(parent)} WHERE {where}")

    def _texts(self, sql: str) -> list[Record]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(map(_text, row)) for row in cursor.fetchall()]

    def _code(self, error: Any) -> object:
        return error.args[0] if error.args else 0


def _text(value: Any) -> str | None:
    """Return a value as a text: bytes in hexadecimal."""
    return value.hex() if isinstance(value, bytes) else value


def _literal(kind: str, text: str) -> str:
    """Return a value of a kind as SQL writes it, where backslashes escape."""
    if kind in NUMBERS:
        return text
    return f"x'{text}'" if kind == "bytes" else "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
