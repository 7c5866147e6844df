"""Read a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jaxrl_sql.databases.sample.catalog import Catalog, ForeignKey, Key, Record, Table
from jaxrl_sql.databases.sample.postgresql_catalog import read_catalog
from jaxrl_sql.databases.sample.source import CHANGED, LOCK_SECONDS, LOCKED, READ_SECONDS, TOO_SLOW, Source
from jaxrl_sql.text2sql.schema.quote import quote_text

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


class PostgresqlSource(Source):
    """A PostgreSQL database."""

    driver_name, package, quote = "psycopg2", "psycopg2-binary", '"'
    reasons: ClassVar = {"55P03": LOCKED, "57014": TOO_SLOW, "42P01": CHANGED, "42703": CHANGED}

    def _connect(self) -> Any:
        address = self.address
        connection = self.driver.connect(
            host=address.host, port=address.port, user=address.user, password=address.password,
            dbname=address.database, connect_timeout=10, application_name="jaxrl_sql.databases.sample",
            **address.tls_settings(),
        )  # fmt: skip
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(_SESSION)
        return connection

    def catalog(self) -> Catalog:
        """Return the tables that the role can read, in the order of their schemas and of their creation."""
        try:
            with self.connection.cursor() as cursor:
                return read_catalog(cursor)
        except self.driver.Error as error:
            raise self._refused(self.shown, error) from None

    def parents(self, parent: Table, key: ForeignKey, keys: Sequence[Key]) -> list[Record]:
        """Return the rows of `parent` that have the keys."""
        columns = zip(zip(*keys, strict=True), key.types, strict=True)
        arrays = ", ".join(f"{_array(values)}::{kind}[]" for values, kind in columns)
        names = [f"c{place}" for place in range(len(key.columns))]
        sides = zip(key.targets, key.operators, names, strict=True)
        on = " AND ".join(f"p.{self._quoted(target)} {operator} k.{name}" for target, operator, name in sides)
        wanted = ", ".join(f"p.{self._quoted(name)}" for name in parent.names)
        keyed = f"unnest({arrays}) AS k({', '.join(names)})"
        return self.run(parent.title, f"SELECT {wanted} FROM {keyed} JOIN {self._name(parent)} AS p ON {on}")

    def _texts(self, sql: str) -> list[Record]:
        extensions = self.driver.extensions
        as_text = extensions.new_type(tuple(extensions.string_types), "TEXT", lambda value, _cursor: value)
        with self.connection.cursor() as cursor:
            extensions.register_type(as_text, cursor)
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _code(self, error: Any) -> object:
        return error.pgcode


def _array(values: Sequence[str]) -> str:
    """Return the literal of an array of texts, before its cast."""
    inside = ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return quote_text("{" + inside + "}")
