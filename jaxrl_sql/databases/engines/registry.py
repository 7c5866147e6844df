"""The engines by their names in addresses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jaxrl_sql.databases.engines.base import DatabaseEngine, DatabaseReader, Server
from jaxrl_sql.databases.engines.duckdb import Duckdb
from jaxrl_sql.databases.engines.duckdb_reader import DuckdbReader
from jaxrl_sql.databases.engines.mysql import Mysql
from jaxrl_sql.databases.engines.postgresql import Postgresql
from jaxrl_sql.text2sql.env.address import Address, parse_address
from jaxrl_sql.types import InputError

SERVERS: Mapping[str, type[Server]] = {"postgresql": Postgresql, "mysql": Mysql}
"""Servers whose databases can be sampled."""

DUCKDB = "duckdb:"
"""The beginning of a DuckDB file's URL."""


def open_reader(url: str) -> DatabaseReader:
    """Open a server's database, or a DuckDB file, to read it; raises InputError if that is impossible."""
    if url.startswith(DUCKDB):
        return DuckdbReader(Path(url.removeprefix(DUCKDB)))
    address = parse_address(url).single
    return SERVERS[address.engine](address).reader()


_TARGETS: Mapping[str, type[DatabaseEngine]] = {**SERVERS, "duckdb": Duckdb}


def open_target(address: Address) -> DatabaseEngine:
    """Return an engine to write to; raises InputError if it is unreachable, too old, or without its driver."""
    if address.engine not in _TARGETS:
        raise InputError(f"{address.engine} is not one of {', '.join(_TARGETS)}")
    engine = _TARGETS[address.engine](address)
    engine.prepare()
    return engine
