"""The interface of an engine whose databases are sampled, and the parts that engines share."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from jaxrl_sql.databases.sample.catalog import Catalog, ForeignKey, Key, Record, Table
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.types import InputError

LOCK_SECONDS = 1
"""How long a statement waits for a lock of another session."""

READ_SECONDS = 5
"""How long a statement may take. An ALTER TABLE of another session waits at most this long."""

LOCKED = f"is locked by another session for more than {LOCK_SECONDS} s: run it again later"
CHANGED = "was changed while it was sampled: run it again"
TOO_SLOW = f"takes more than {READ_SECONDS} s to read: --leave-out the table, or its large columns"


class Source(ABC):
    """A server's database, by one connection. Each statement is a read-only transaction of its own.

    Every method raises InputError, in one line and without the password.
    """

    driver_name: ClassVar[str]
    package: ClassVar[str]
    quote: ClassVar[str]
    """The sign around names, doubled inside."""
    reasons: ClassVar[Mapping[object, str]]
    """The meaning of a driver's errors, by code."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.shown = address.named(address.database)
        try:
            self.driver = importlib.import_module(self.driver_name)
        except ImportError:
            raise InputError(f"{self.shown}: a sample needs {self.driver_name}: pip install {self.package}") from None
        try:
            self.connection = self._connect()
        except (self.driver.Error, OSError, RuntimeError) as error:
            raise InputError(f"{self.shown}: {self._first_line(error)}") from None

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @abstractmethod
    def catalog(self) -> Catalog:
        """Return the tables that the role can read."""

    def first_rows(self, table: Table, count: int) -> list[Record]:
        """Return the first rows of a table by its `order`."""
        order = f" ORDER BY {self._listed(table.order)}" if table.order else ""
        return self.run(
            table.title, f"SELECT {self._listed(table.names)} FROM {self._name(table)}{order} LIMIT {count}"
        )

    @abstractmethod
    def parents(self, parent: Table, key: ForeignKey, keys: Sequence[Key]) -> list[Record]:
        """Return the rows of `parent` that have the keys; a row may come twice."""

    def run(self, title: str, sql: str) -> list[Record]:
        """Run a statement on the table `title` and return its rows as texts."""
        try:
            return self._texts(sql)
        except UnicodeDecodeError:
            raise InputError(f"{title} holds text that is not UTF-8: --leave-out its column") from None
        except self.driver.Error as error:
            raise self._refused(title, error) from None

    @abstractmethod
    def _connect(self) -> Any:
        """Return a connection in autocommit mode whose session only reads, with bounds for locks and time."""

    @abstractmethod
    def _texts(self, sql: str) -> list[Record]:
        """Run a statement and return its rows as texts."""

    @abstractmethod
    def _code(self, error: Any) -> object:
        """Return the code of a driver's error."""

    def _quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, 2 * self.quote) + self.quote

    def _listed(self, names: Iterable[str]) -> str:
        return ", ".join(map(self._quoted, names))

    def _name(self, table: Table) -> str:
        return ".".join(map(self._quoted, table.path))

    def _refused(self, title: str, error: Any) -> InputError:
        """Return the error of a statement in one line."""
        reason = self.reasons.get(self._code(error))
        return InputError(f"{title} {reason}" if reason else f"{title}: {self._first_line(error)}")

    def _first_line(self, error: Exception) -> str:
        """Return the first line of an error, without the password."""
        lines = [line.strip() for line in str(error.args[-1] if error.args else error).splitlines() if line.strip()]
        return self.address.redacted(lines[0] if lines else type(error).__name__)
