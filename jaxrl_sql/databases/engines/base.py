"""The interface of a database engine (PostgreSQL, MySQL, DuckDB): write databases, and read a server's database.

Two packages use it and know no engine. `databases.copy` copies SQLite files to an engine. `databases.sample` writes a
small SQLite file with a part of a server's database, from which prompts take schema and values.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from textwrap import shorten
from typing import Any, ClassVar, Literal

from jaxrl_sql.databases.engines.catalog import Catalog, CatalogForeignKey, CatalogTable, KeyValues, TextRow
from jaxrl_sql.databases.engines.kinds import CHUNK, Rows, plain_rows
from jaxrl_sql.databases.engines.tables import EngineRules, PlannedColumn, PlannedTable
from jaxrl_sql.text2sql.env.address import PASSWORD_VARIABLES, Address
from jaxrl_sql.text2sql.schema.quote import quote_text
from jaxrl_sql.types import InputError


class MissingDatabaseError(InputError):
    """The server has no database of this name, or none that the user may use."""


State = Literal["absent", "empty", "full"]
"""Whether a database does not exist, exists without tables, or has tables."""

CONNECT_SECONDS = 10
"""Time limit for opening a connection."""

LOCK_SECONDS = 1
"""How long a reader's statement waits for a lock of another session."""

READ_SECONDS = 5
"""Time limit of a reader's statement. An ALTER TABLE of another session waits at most this long."""

Reason = Literal["locked", "changed", "slow"]
"""Why a reader's statement failed, if the cause is another session or the size of a table."""

# The message of each reason, after the table's name.
_REASONS: Mapping[Reason, str] = {
    "locked": f"is locked by another session for more than {LOCK_SECONDS} s: run it again later",
    "changed": "was changed while it was sampled: run it again",
    "slow": f"takes more than {READ_SECONDS} s to read: omit the table, or its large columns, with --leave-out",
}
_CHECK_LOGIN = "check the user and the password"
# The advice for a server that refuses a connection, by a part of its message.
_CHECKS = {
    "ssl": "check sslmode and sslrootcert",
    "password": _CHECK_LOGIN,
    "permission denied": "give a user who may make databases",
    "access denied": _CHECK_LOGIN,
    "does not exist": "check the names of user and database",
    "unknown database": "check the name of the database",
}


# "… denied for user … to database …" (MySQL) and "permission denied for database …" (PostgreSQL) count as missing.
_NO_DATABASE = re.compile(r"database .* does not exist|unknown database|to database|for database", re.IGNORECASE)


class DatabaseWriter(ABC):
    """A database that is being written: call `create`, then `load` for each table, then `finish`.

    An engine's `open` yields the writer. If its block raises an error, PostgreSQL and DuckDB discard the tables; in
    MySQL the incomplete tables remain. `error` is the base class of the driver's errors.
    """

    declares_keys: ClassVar[bool] = False
    """Whether CREATE TABLE declares all keys, because the engine cannot add them later."""
    comments_inline: ClassVar[bool] = False
    """Whether a column's definition in CREATE TABLE includes its comment."""

    def __init__(self, connection: Any, rules: EngineRules, error: type[Exception]) -> None:
        self.connection = connection
        self.rules = rules
        self.error = error
        self.quote_name, self.quote_list = rules.names.quote_name, rules.names.quote_list

    def create(self, tables: Sequence[PlannedTable]) -> None:
        """Create the tables, without rows."""
        for table in tables:
            parts = [self.column(table, column) for column in table.columns]
            if self.declares_keys:
                parts += [clause for _, clause in (*self._keys(table), *self._references(table))]
            self.run(f"CREATE TABLE {self.quote_name(table.name)} ({', '.join(parts)}){self.table_options()}")

    @abstractmethod
    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        """Insert the rows of a table that `create` has created."""

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        """Create keys, indexes and comments; return a line for each that the engine rejects."""
        lines: list[str] = []
        for table in tables:
            lines += self._add(table, self._keys(table))
            for number, index in enumerate(table.indexes):
                description = f"{table.name}: the index ({', '.join(index)})"
                lines += self.attempt(description, self.index_statement(table, number))
        for table in tables:
            lines += self._add(table, self._references(table))
            for column in () if self.comments_inline else table.columns:
                if column.comment:
                    where = f"{self.quote_name(table.name)}.{self.quote_name(column.name)}"
                    self.run(f"COMMENT ON COLUMN {where} IS {self.literal(column.comment)}")
        return lines

    def read(self, table: PlannedTable) -> Iterator[Rows]:
        """Yield a table's current rows, in any order."""
        with closing(self.stream()) as cursor:
            cursor.execute(f"SELECT * FROM {self.quote_name(table.name)}")
            while rows := cursor.fetchmany(CHUNK):
                yield plain_rows(rows)

    def index_statement(self, table: PlannedTable, number: int) -> str:
        """Return the statement that creates the index `table.indexes[number]`."""
        name = self.quote_name(f"{table.name}_index_{number + 1}")
        return f"CREATE INDEX {name} ON {self.quote_name(table.name)} ({self.quote_list(table.indexes[number])})"

    def column(self, table: PlannedTable, column: PlannedColumn) -> str:
        """Return the definition of a column."""
        return f"{self.quote_name(column.name)} {self.type_of(table, column)}{' NOT NULL' if column.not_null else ''}"

    def type_of(self, _table: PlannedTable, column: PlannedColumn) -> str:
        """Return the engine's name of a column's type."""
        return self.rules.types[column.kind]

    def table_options(self) -> str:
        """Return the text after the closing bracket of each CREATE TABLE statement."""
        return ""

    def literal(self, text: str) -> str:
        """Return a text as an SQL literal."""
        return quote_text(text)

    def stream(self) -> Any:
        """Return a cursor that streams the rows of its result."""
        return self.connection.cursor()

    def attempt(self, description: str, sql: str) -> list[str]:
        """Run a statement that creates a key or an index; return a message with `description` if it fails, else []."""
        try:
            self.run(sql)
        except self.error as error:
            return [f"{description} is dropped: {one_line(error)}"]
        return []

    def run(self, sql: str) -> None:
        """Run a statement."""
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(sql)

    def _keys(self, table: PlannedTable) -> Iterator[tuple[str, str]]:
        """Yield (description for messages, SQL clause) of the primary key and of each unique key."""
        if table.primary_key:
            yield "the primary key", f"PRIMARY KEY ({self.quote_list(table.primary_key)})"
        for unique in table.uniques:
            yield f"the unique constraint ({', '.join(unique)})", f"UNIQUE ({self.quote_list(unique)})"

    def _references(self, table: PlannedTable) -> Iterator[tuple[str, str]]:
        """Yield (description for messages, SQL clause) of each foreign key."""
        for key in table.foreign_keys:
            parent = f"{self.quote_name(key.table)} ({self.quote_list(key.targets)})"
            clause = f"FOREIGN KEY ({self.quote_list(key.columns)}) REFERENCES {parent}"
            yield f"the foreign key ({', '.join(key.columns)})", clause

    def _add(self, table: PlannedTable, keys: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Add keys to a table that was created without them; yield a line for each that the engine rejects."""
        for description, clause in () if self.declares_keys else keys:
            statement = f"ALTER TABLE {self.quote_name(table.name)} ADD {clause}"
            yield from self.attempt(f"{table.name}: {description}", statement)


class DatabaseEngine(ABC):
    """A server, or a folder of DuckDB files, that holds databases.

    Its Python driver is an optional dependency; creating the object raises InputError if the driver is not installed.
    """

    rules: ClassVar[EngineRules]
    driver_name: ClassVar[str]
    """The Python module of the driver."""
    version = ""
    """The engine's name and version; empty before `prepare`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.quote_name, self.quote_list = self.rules.names.quote_name, self.rules.names.quote_list
        try:
            self.driver: Any = importlib.import_module(self.driver_name)
        except ImportError:
            raise InputError(
                f"{self.rules.engine} needs {self.driver_name}: pip install 'jaxrl-sql[{address.engine}]'"
            ) from None

    @abstractmethod
    def prepare(self) -> None:
        """Read the version and prepare to write; raises InputError if that is impossible here."""

    @abstractmethod
    def state(self, name: str) -> State:
        """Return whether a database exists, and whether it has tables."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a database with everything in it."""

    @abstractmethod
    def grant_read(self, name: str, readers: Sequence[str]) -> None:
        """Grant users read access to a database."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[DatabaseWriter]:
        """Start writing a database, and create it if missing."""

    def make_error(self, description: str, error: Exception, hint: str = "") -> InputError:
        """Return an InputError with the engine's address, the failed action, the driver's message and a hint."""
        return InputError(f"{self.address.shown}: {description}: {self.address.redact(one_line(error))}{hint}")


class Server(DatabaseEngine):
    """An engine that clients connect to: PostgreSQL, MariaDB or MySQL."""

    clients: ClassVar[tuple[str, ...]]
    """Names of the command-line client that runs a file of SQL; the first installed one is used."""
    client_package: ClassVar[str]
    """The Debian package that installs this client."""

    def connect(self, database: str = "", *, is_read_only: bool = False) -> Any:
        """Return a connection in autocommit mode, by default to the address's database.

        With `is_read_only` its session is read-only, with time limits for locks and statements. Raises InputError if
        the server refuses.
        """
        name = database or self.address.database
        try:
            return self._connect(name, is_read_only=is_read_only)
        except (self.driver.Error, OSError, RuntimeError) as error:
            where = self.address.display_name(name) if name else self.address.shown
            message = self.address.redact(one_line(error))
            check = next((check for part, check in _CHECKS.items() if part in message.lower()), "")
            if check == _CHECK_LOGIN:
                variable = PASSWORD_VARIABLES[self.address.engine]
                check = f"{check} ({variable})" if self.address.password else f"set {variable} to the password"
            kind = MissingDatabaseError if _NO_DATABASE.search(message) else InputError
            raise kind(f"{where}: {message}: {check or 'check the host and the port'}") from None

    @abstractmethod
    def reader(self) -> DatabaseReader:
        """Open the address's database to read it."""

    @abstractmethod
    def client_options(self, database: str) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and environment variables of the command-line client for a database."""

    def is_harmless_error(self, _line: str) -> bool:
        """Return whether an error line that the client prints while it loads a dump may be ignored."""
        return False

    def ask(self, sql: str, *values: str, database: str = "") -> list[tuple[Any, ...]]:
        """Run a statement on a new connection in autocommit mode and return its rows.

        `values` replace the placeholders `%s`. The default database is that of the address.
        """
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            try:
                cursor.execute(sql, values or None)
                return list(cursor.fetchall()) if cursor.description else []
            except self.driver.Error as error:
                raise self.make_error(shorten(sql, 80, placeholder=" …"), error) from None

    @abstractmethod
    def _connect(self, database: str, *, is_read_only: bool) -> Any:
        """Return a connection; raises the driver's errors."""


class DatabaseReader(ABC):
    """A server's database, read by one connection. Each statement is a separate read-only transaction.

    Every method raises InputError, in one line and without the password.
    """

    reasons: ClassVar[Mapping[object, Reason]]
    """The reason of a failure by the driver's error code (`code`)."""

    def __init__(self, server: Server) -> None:
        self.address, self.driver = server.address, server.driver
        self.quote_name, self.quote_list = server.quote_name, server.quote_list
        self.shown = self.address.display_name(self.address.database)
        self.connection = server.connect(is_read_only=True)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @abstractmethod
    def catalog(self) -> Catalog:
        """Return the tables that the user can read, in the order of their creation."""

    def missing_grants(self, _users: Sequence[str]) -> str:
        """Return the statements that let `users` read the tables which they cannot read; "" if none are known."""
        return ""

    def first_rows(self, table: CatalogTable, count: int) -> list[TextRow]:
        """Return the first `count` rows of a table, sorted by the columns `table.order`."""
        order = f" ORDER BY {self.quote_list(table.order)}" if table.order else ""
        columns = self.quote_list(table.names)
        return self.run(table.title, f"SELECT {columns} FROM {self.qualified_name(table)}{order} LIMIT {count}")

    @abstractmethod
    def parents(self, parent: CatalogTable, key: CatalogForeignKey, keys: Sequence[KeyValues]) -> list[TextRow]:
        """Return the rows of the referenced table `parent` whose columns `key.targets` equal one of `keys`.

        A row may be returned twice.
        """

    def run(self, title: str, sql: str) -> list[TextRow]:
        """Run a statement on the table `title` and return its rows as texts."""
        try:
            return self.texts(sql)
        except UnicodeDecodeError:
            raise InputError(f"{title} holds text that is not UTF-8: omit its column with --leave-out") from None
        except self.driver.Error as error:
            raise self.make_table_error(title, error) from None

    @abstractmethod
    def texts(self, sql: str) -> list[TextRow]:
        """Run a statement and return its rows as texts; raises the driver's errors."""

    @abstractmethod
    def code(self, error: Any) -> object:
        """Return the code of a driver's error, a key of `reasons`."""

    def qualified_name(self, table: CatalogTable) -> str:
        """Return the quoted name of a table, with its schema."""
        return ".".join(map(self.quote_name, table.path))

    def make_table_error(self, title: str, error: Any) -> InputError:
        """Return the error of a statement on the table `title`: the text of its reason, or the driver's first line."""
        reason = self.reasons.get(self.code(error))
        lines = [line for line in str(error.args[-1] if error.args else error).splitlines() if line.strip()]
        message = self.address.redact(lines[0] if lines else type(error).__name__)
        return InputError(f"{title} {_REASONS[reason]}" if reason else f"{title}: {message}")


def one_line(error: Exception) -> str:
    """Return a driver's error in one line."""
    return " ".join(" ".join(map(str, error.args)).split()) or type(error).__name__
