"""The engines that databases are copied to; each driver is imported when it is asked for, because it is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.types import InputError

if TYPE_CHECKING:
    from jaxrl_sql.databases.copy.target import Target


def open_target(address: Address) -> Target:
    """Return the engine of an address; raises InputError where it cannot be reached, is too old, or has no driver."""
    if address.engine == "duckdb":
        from jaxrl_sql.databases.copy.duckdb_files import DuckdbFiles  # noqa: PLC0415

        return DuckdbFiles(address)
    if address.engine == "postgresql":
        from jaxrl_sql.databases.copy.postgresql import Postgresql  # noqa: PLC0415

        return Postgresql(address)
    if address.engine == "mysql":
        from jaxrl_sql.databases.copy.mysql import Mysql  # noqa: PLC0415

        return Mysql(address)
    raise InputError(f"{address.engine}: there are postgresql, mysql and duckdb")
