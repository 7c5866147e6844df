"""What every engine does for a copy: it takes tables and rows, and gives the rows back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from jaxrl_sql.databases.copy.planned import PlannedTable, Rules
from jaxrl_sql.databases.copy.source import Rows
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.types import InputError

State = Literal["absent", "empty", "full"]


class Session(Protocol):
    """A database that is being written; what was written stays only when the session ends well."""

    def create(self, tables: Sequence[PlannedTable]) -> None:
        """Make the tables, without rows."""
        ...

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        """Write a table's rows."""
        ...

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        """Make keys, indexes and comments; return what could not be made."""
        ...

    def read(self, table: PlannedTable) -> Iterator[Rows]:
        """Yield a table's rows as they are now, in any order."""
        ...


class Target(Protocol):
    """A server, or a folder of files, that holds copies."""

    @property
    def address(self) -> Address:
        """Return where it is."""
        ...

    @property
    def rules(self) -> Rules:
        """Return what its tables can hold."""
        ...

    @property
    def version(self) -> str:
        """Return what it calls its version."""
        ...

    def state(self, name: str) -> State:
        """Return whether a database is there, and holds tables."""
        ...

    def drop(self, name: str) -> None:
        """Remove a database, whatever is in it."""
        ...

    def let_read(self, name: str, readers: Sequence[str]) -> None:
        """Let users read a database."""
        ...

    def open(self, name: str) -> AbstractContextManager[Session]:
        """Begin to write a database, which is made where it is absent."""
        ...


def unreachable(address: Address, error: object) -> InputError:
    """Return the error for a server that does not take a connection: what it said, and what to check."""
    said = address.redacted(error)
    checks = {
        "password": "check the user and the password",
        "permission denied": "give a user who may make databases",
        "access denied": "check the user and the password",
        "does not exist": "check the names of user and database",
        "unknown database": "check the name of the database",
    }
    check = next((what for words, what in checks.items() if words in said.lower()), "check the host and the port")
    return InputError(f"{address.shown}: {said}: {check}")


def refused(address: Address, what: str, error: object) -> InputError:
    """Return the error for what a server does not do: what was asked, and what it said."""
    return InputError(f"{address.shown}: {what}: {address.redacted(error)}")
