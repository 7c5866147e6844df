"""The interface of an engine, for writing databases and reading a server's database.

Copying and sampling use this interface and know no engine.
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

CONNECT_SECONDS = 10
"""Time limit of a connection."""

LOCK_SECONDS = 1
"""Time limit of a reader's statement for a lock of another session."""

READ_SECONDS = 5
"""Time limit of a reader's statement. An ALTER TABLE of another session waits at most this long."""

Reason = Literal["locked", "changed", "slow"]

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


_NO_DATABASE = re.compile(r"database .* does not exist|unknown database|to database|for database", re.IGNORECASE)


class DatabaseWriter(ABC):
    """A database to write; its rows are kept only if the engine's `open` ends without an error."""

    declares_keys: ClassVar[bool] = False
    """Whether keys are declared with their table, and cannot be added."""
    comments_inline: ClassVar[bool] = False
    """Whether comments are declared with their column."""

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
        """Write a table's rows."""

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        """Create keys, indexes and comments; return a line for each that the engine rejects."""
        lines: list[str] = []
        for table in tables:
            lines += self._add(table, self._keys(table))
            for number, index in enumerate(table.indexes):
                lines += self.attempt(f"{table.name}: the index ({', '.join(index)})", self.index(table, number))
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

    def index(self, table: PlannedTable, number: int) -> str:
        """Return the statement that creates the table's index at `place`."""
        name = self.quote_name(f"{table.name}_index_{number + 1}")
        return f"CREATE INDEX {name} ON {self.quote_name(table.name)} ({self.quote_list(table.indexes[number])})"

    def column(self, table: PlannedTable, column: PlannedColumn) -> str:
        """Return the definition of a column."""
        return f"{self.quote_name(column.name)} {self.type_of(table, column)}{' NOT NULL' if column.not_null else ''}"

    def type_of(self, _table: PlannedTable, column: PlannedColumn) -> str:
        """Return the type of a column."""
        return self.rules.types[column.kind]

    def table_options(self) -> str:
        """Return the end of each table's definition."""
        return ""

    def literal(self, text: str) -> str:
        """Return a text as an SQL literal."""
        return quote_text(text)

    def stream(self) -> Any:
        """Return a cursor that streams the rows of its result."""
        return self.connection.cursor()

    def attempt(self, what: str, sql: str) -> list[str]:
        """Run an optional statement; return a line if it failed."""
        try:
            self.run(sql)
        except self.error as error:
            return [f"{what} is dropped: {one_line(error)}"]
        return []

    def run(self, sql: str) -> None:
        """Run a statement."""
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(sql)

    def _keys(self, table: PlannedTable) -> Iterator[tuple[str, str]]:
        """Yield the words and the clause of the primary key and of each unique key."""
        if table.primary_key:
            yield "the primary key", f"PRIMARY KEY ({self.quote_list(table.primary_key)})"
        for unique in table.uniques:
            yield f"the unique constraint ({', '.join(unique)})", f"UNIQUE ({self.quote_list(unique)})"

    def _references(self, table: PlannedTable) -> Iterator[tuple[str, str]]:
        """Yield the words and the clause of each foreign key."""
        for key in table.foreign_keys:
            parent = f"{self.quote_name(key.table)} ({self.quote_list(key.targets)})"
            clause = f"FOREIGN KEY ({self.quote_list(key.columns)}) REFERENCES {parent}"
            yield f"the foreign key ({', '.join(key.columns)})", clause

    def _add(self, table: PlannedTable, keys: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Add keys to a table that was created without them; yield a line for each that the engine rejects."""
        for what, clause in () if self.declares_keys else keys:
            yield from self.attempt(f"{table.name}: {what}", f"ALTER TABLE {self.quote_name(table.name)} ADD {clause}")


class DatabaseEngine(ABC):
    """A server, or a folder of files, that holds databases. Its driver is an extra of the package."""

    rules: ClassVar[EngineRules]
    driver_name: ClassVar[str]
    version = ""
    """The engine's name and version, once it is prepared."""

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
        """Return whether a database exists, and holds tables."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a database with everything in it."""

    @abstractmethod
    def grant_read(self, name: str, readers: Sequence[str]) -> None:
        """Grant users read access to a database."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[DatabaseWriter]:
        """Start writing a database, and create it if missing."""

    def make_error(self, what: str, error: Exception, hint: str = "") -> InputError:
        """Return the error for an action that the engine rejects, with its message."""
        return InputError(f"{self.address.shown}: {what}: {self.address.redact(one_line(error))}{hint}")


class Server(DatabaseEngine):
    """An engine that clients connect to."""

    clients: ClassVar[tuple[str, ...]]
    """The names of the program that runs a file of SQL."""
    client_package: ClassVar[str]
    """The system's package of that program."""

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
        """Return the arguments and the environment of the program that runs a file of SQL in a database."""

    def is_harmless(self, _line: str) -> bool:
        """Return whether a dump is complete in spite of an error, a line of the program."""
        return False

    def ask(self, sql: str, *values: str, database: str = "") -> list[tuple[Any, ...]]:
        """Run a statement outside of a transaction, by default in the address's database, and return its rows."""
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
    """The meaning of a driver's errors, by code."""

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

    def first_rows(self, table: CatalogTable, count: int) -> list[TextRow]:
        """Return the first rows of a table by its `order`."""
        order = f" ORDER BY {self.quote_list(table.order)}" if table.order else ""
        return self.run(
            table.title, f"SELECT {self.quote_list(table.names)} FROM {self.path(table)}{order} LIMIT {count}"
        )

    @abstractmethod
    def parents(self, parent: CatalogTable, key: CatalogForeignKey, keys: Sequence[KeyValues]) -> list[TextRow]:
        """Return the rows of `parent` that have the keys; a row may come twice."""

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
        """Return the code of a driver's error."""

    def path(self, table: CatalogTable) -> str:
        """Return the name of a table with its schema."""
        return ".".join(map(self.quote_name, table.path))

    def make_table_error(self, title: str, error: Any) -> InputError:
        """Return the error of a statement on the table `title`: its reason, or the first line of its message."""
        reason = self.reasons.get(self.code(error))
        lines = [line for line in str(error.args[-1] if error.args else error).splitlines() if line.strip()]
        message = self.address.redact(lines[0] if lines else type(error).__name__)
        return InputError(f"{title} {_REASONS[reason]}" if reason else f"{title}: {message}")


def one_line(error: Exception) -> str:
    """Return a driver's error in one line."""
    return " ".join(" ".join(map(str, error.args)).split()) or type(error).__name__
