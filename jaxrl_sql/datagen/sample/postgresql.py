"""Read a PostgreSQL database: each statement is a read-only transaction, with bounds for locks and time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from jaxrl_sql.data.schema.quote import quote_name, quote_text
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
from jaxrl_sql.datagen.sample.postgresql_catalog import read_catalog
from jaxrl_sql.sqlenv.address import Address
from jaxrl_sql.types import InputError

# Values have one form whatever the settings of the role and the server are, and names have one meaning. Plans use
# indexes, and a scan starts at the first page, so that the first rows are always the same.
_SESSION = f"""
SET client_encoding = 'UTF8'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC';
SET bytea_output = 'hex'; SET standard_conforming_strings = on; SET extra_float_digits = 1;
SET search_path = pg_catalog; SET quote_all_identifiers = off;
SET default_transaction_read_only = on; SET lock_timeout = '{LOCK_SECONDS}s'; SET statement_timeout = '{READ_SECONDS}s';
SET jit = off; SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
"""


class PostgresqlSource:
    """A PostgreSQL database, by one connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._shown = address.named(address.database)
        try:
            self._driver = importlib.import_module("psycopg2")
        except ImportError:
            raise InputError("a sample of PostgreSQL needs psycopg2: pip install psycopg2-binary") from None
        try:
            self._connection = self._driver.connect(
                host=address.host, port=address.port, user=address.user, password=address.password,
                dbname=address.database, connect_timeout=10, application_name="jaxrl_sql.datagen.sample",
                **address.tls_settings(),
            )  # fmt: skip
        except self._driver.Error as error:
            raise InputError(f"{self._shown}: {self._shortened(error)}") from None
        self._connection.autocommit = True
        extensions = self._driver.extensions
        self._as_text = extensions.new_type(tuple(extensions.string_types), "TEXT", lambda value, _cursor: value)
        self._rows(self._shown, _SESSION)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def catalog(self) -> Catalog:
        """Return the tables that the role can read, in the order of their schemas and of their creation."""
        return read_catalog(lambda sql, *values: self._rows(self._shown, sql, values))

    def first_rows(self, table: Table, count: int) -> list[Record]:
        """Return the first rows of a table by its `order`."""
        order = f" ORDER BY {', '.join(map(_quoted, table.order))}" if table.order else ""
        return self._records(table, f"SELECT {_columns(table)} FROM {_name(table)} AS p{order} LIMIT {count}")

    def parents(self, parent: Table, key: ForeignKey, keys: Sequence[Key]) -> list[Record]:
        """Return the rows of `parent` that have the keys."""
        arrays = ", ".join(
            f"{_array(values)}::{kind}[]" for values, kind in zip(zip(*keys, strict=True), key.types, strict=True)
        )
        names = [f"c{place}" for place in range(len(key.columns))]
        sides = zip(key.targets, key.operators, names, strict=True)
        on = " AND ".join(f"p.{_quoted(target)} {operator} k.{name}" for target, operator, name in sides)
        keyed = f"unnest({arrays}) AS k({', '.join(names)})"
        return self._records(parent, f"SELECT {_columns(parent)} FROM {keyed} JOIN {_name(parent)} AS p ON {on}")

    def _records(self, table: Table, sql: str) -> list[Record]:
        """Return rows as the server's texts."""
        return self._rows(table.title, sql, as_text=True)

    def _rows(self, title: str, sql: str, values: Sequence[Any] = (), *, as_text: bool = False) -> list[Any]:
        """Run a statement and return its rows; raises InputError in one line."""
        try:
            with self._connection.cursor() as cursor:
                if as_text:
                    self._driver.extensions.register_type(self._as_text, cursor)
                cursor.execute(sql, values or None)
                return cursor.fetchall() if cursor.description else []
        except UnicodeDecodeError:
            raise InputError(f"{title} holds text that is not UTF-8: --leave-out its column") from None
        except self._driver.Error as error:
            if error.pgcode == "55P03":
                raise locked(title) from None
            if error.pgcode == "57014":
                raise too_slow(title) from None
            if error.pgcode in ("42P01", "42703"):
                raise changed(title) from None
            raise InputError(f"{title}: {self._shortened(error)}") from None

    def _shortened(self, error: Exception) -> str:
        """Return the first line of an error, without the password."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return self._address.redacted(lines[0] if lines else type(error).__name__)


def _quoted(name: str) -> str:
    return quote_name(name, always=True)


def _name(table: Table) -> str:
    return ".".join(map(_quoted, table.path))


def _columns(table: Table) -> str:
    return ", ".join(f"p.{_quoted(name)}" for name in table.names)


def _array(values: Sequence[str]) -> str:
    """Return the literal of an array of texts, before its cast."""
    inside = ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return quote_text("{" + inside + "}")
