"""Open engines by the name at the beginning of their address, such as `postgresql://…`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from jaxrl_sql.databases.engines.base import DatabaseEngine, DatabaseReader, Server
from jaxrl_sql.databases.engines.duckdb import Duckdb
from jaxrl_sql.databases.engines.duckdb_reader import DuckdbReader
from jaxrl_sql.databases.engines.mysql import Mysql
from jaxrl_sql.databases.engines.postgresql import Postgresql
from jaxrl_sql.text2sql.env.address import Address, parse_address
from jaxrl_sql.types import InputError

T = TypeVar("T")
SERVERS: Mapping[str, type[Server]] = {"postgresql": Postgresql, "mysql": Mysql}
"""Servers whose databases can be sampled."""

DUCKDB = "duckdb:"
"""The beginning of a DuckDB file's URL."""


def open_reader(url: str) -> DatabaseReader:
    """Open a server's database, or a DuckDB file, to read it; raises InputError if that is impossible."""
    if url.startswith(DUCKDB):
        return DuckdbReader(Path(url.removeprefix(DUCKDB)))
    return _with_roles(parse_address(url), lambda server: server.reader())


def check_connection(address: Address) -> None:
    """Connect to a server's database once, to read it; raises InputError if that is impossible."""

    def connect(server: Server) -> None:
        with closing(server.connect(is_read_only=True)):
            pass

    _with_roles(address, connect)


def _with_roles(address: Address, use: Callable[[Server], T]) -> T:
    """Call `use` with the server of an address, and return its result.

    An address with `?roles=N` means N numbered roles, over which queries are distributed; here the first is used. If
    the password is wrong, the error explains the option, because a single role may have been meant.
    """
    try:
        return use(SERVERS[address.engine](address.single))
    except InputError as error:
        if (roles := address.option("roles")) and "password" in str(error):
            first, last = address.users[0], address.users[-1]
            hint = f"; ?roles={roles} means the roles {first} to {last}: leave it out for a single role"
            raise type(error)(f"{error}{hint}") from None
        raise


_TARGETS: Mapping[str, type[DatabaseEngine]] = {**SERVERS, "duckdb": Duckdb}


def open_target(address: Address) -> DatabaseEngine:
    """Return an engine to write to; raises InputError if it is unreachable, too old, or without its driver."""
    if address.engine not in _TARGETS:
        raise InputError(f"{address.engine} is not one of {', '.join(_TARGETS)}")
    engine = _TARGETS[address.engine](address)
    engine.prepare()
    return engine
