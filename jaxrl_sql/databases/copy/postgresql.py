"""Copies on a PostgreSQL server: a database each, written in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from jaxrl_sql.databases.copy.kinds import Cell, Kind, plain_rows
from jaxrl_sql.databases.copy.names import NameRules
from jaxrl_sql.databases.copy.planned import PlannedColumn, PlannedTable, Rules
from jaxrl_sql.databases.copy.source import CHUNK, Rows
from jaxrl_sql.databases.copy.target import State, refused, unreachable
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.text2sql.env.readers import revoke_script
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_text
from jaxrl_sql.types import InputError

try:
    import psycopg2
except ImportError as error:
    raise InputError("PostgreSQL is written to by psycopg2: pip install 'jaxrl-sql[postgresql]'") from error

_OLDEST = 130_000
_SECONDS = 10
_TYPES: Mapping[Kind, str] = {
    "integer": "bigint",
    "real": "double precision",
    "text": "text",
    "date": "date",
    "timestamp": "timestamp",
    "blob": "bytea",
}
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_RELATIONS = """
SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
"""
# What COPY's text form writes otherwise.
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Postgresql:
    """A server, by a user who may make databases."""

    rules = Rules("PostgreSQL", _TYPES, NameRules(63, counts_bytes=True, reserved=_SYSTEM_COLUMNS), holds_nul=False)

    def __init__(self, address: Address) -> None:
        self.address = address
        with closing(self._connect(address.database or "postgres")) as connection:
            if connection.server_version < _OLDEST:
                version = connection.server_version // 10_000
                raise InputError(
                    f"{address.shown}: the server is too old ({version}): PostgreSQL from 13 on is copied to"
                )
            self.version = f"PostgreSQL {connection.get_parameter_status('server_version')}"

    def state(self, name: str) -> State:
        """Return whether a database is there, and holds anything."""
        if not self._ask("SELECT 1 FROM pg_catalog.pg_database WHERE datname = %s", name):
            return "absent"
        with closing(self._connect(name)) as connection, connection.cursor() as cursor:
            cursor.execute(_RELATIONS)
            return "full" if cursor.fetchone()[0] else "empty"

    def drop(self, name: str) -> None:
        """Remove a database, and end who is connected to it."""
        self._ask(f"DROP DATABASE IF EXISTS {_name(name)} WITH (FORCE)")

    def let_read(self, name: str, readers: Sequence[str]) -> None:
        """Let roles read a database; a superuser takes from everybody the functions that no reader needs."""
        roles = ", ".join(map(_name, readers))
        self._ask(f"GRANT CONNECT ON DATABASE {_name(name)} TO {roles}")
        self._ask(f"GRANT USAGE ON SCHEMA public TO {roles}", database=name)
        self._ask(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {roles}", database=name)
        ((is_superuser,),) = self._ask("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
        if is_superuser:
            self._ask(revoke_script(), database=name)

    @contextmanager
    def open(self, name: str) -> Iterator[_Session]:
        """Yield a session whose transaction is committed at its end, or rolled back; then let statistics be made."""
        if self.state(name) == "absent":
            made = f"CREATE DATABASE {_name(name)} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
            self._ask(made)
        with closing(self._connect(name)) as connection:
            if connection.get_parameter_status("server_encoding") != "UTF8":
                raise InputError(f"{self.address.named(name)}: its encoding is not UTF8: let the copy make it")
            try:
                yield _Session(name, connection)
                connection.commit()
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute("ANALYZE")
            except psycopg2.Error as error:
                raise refused(self.address, f"the database {name} cannot be written", error) from error

    def _connect(self, database: str) -> Any:
        address = self.address
        try:
            return psycopg2.connect(
                host=address.host, port=address.port, user=address.user, password=address.password or None,
                dbname=database, connect_timeout=_SECONDS, client_encoding="UTF8", **address.tls_settings(),
            )  # fmt: skip
        except psycopg2.Error as error:
            raise unreachable(address, error) from None

    def _ask(self, sql: str, *values: str, database: str = "") -> list[tuple[Any, ...]]:
        """Run a statement outside of a transaction, by default in the database that --to names."""
        with closing(self._connect(database or self.address.database or "postgres")) as connection:
            connection.autocommit = True
            try:
                with connection.cursor() as cursor:
                    cursor.execute(sql, values or None)
                    return cursor.fetchall() if cursor.description else []
            except psycopg2.Error as error:
                raise refused(self.address, sql.partition(" TEMPLATE")[0], error) from None


class _Session:
    """A transaction that writes a database."""

    def __init__(self, database: str, connection: Any) -> None:
        self.database = database
        self.connection = connection
        self.count = 0

    def create(self, tables: Sequence[PlannedTable]) -> None:
        for table in tables:
            columns = [
                f"{_name(column.name)} {_type(column)}{' NOT NULL' if column.not_null else ''}"
                for column in table.columns
            ]
            self._run(f"CREATE TABLE {_name(table.name)} ({', '.join(columns)})")

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        with self.connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {_name(table.name)} FROM STDIN", _Stream(map(_copied, rows)))

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        told = [line for table in tables for line in self._keys(table)]
        for table in tables:
            name = _name(table.name)
            told += [
                line
                for key in table.foreign_keys
                for line in self._try(
                    f"{table.name}: the foreign key ({', '.join(key.columns)})",
                    f"ALTER TABLE {name} ADD FOREIGN KEY {_listed(key.columns)} "
                    f"REFERENCES {_name(key.table)} {_listed(key.targets)}",
                )
            ]
            for column in table.columns:
                if column.comment:
                    self._run(f"COMMENT ON COLUMN {name}.{_name(column.name)} IS {_text(column.comment)}")
        # Everybody may make temporary tables, and before 15 others, too.
        self._run(f"REVOKE ALL ON DATABASE {_name(self.database)} FROM PUBLIC")
        self._run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        return told

    def read(self, table: PlannedTable) -> Iterator[Rows]:
        self.count += 1
        with self.connection.cursor(f"copied_{self.count}") as cursor:
            cursor.execute(f"SELECT * FROM {_name(table.name)}")
            while rows := cursor.fetchmany(CHUNK):
                yield plain_rows(rows)

    def _keys(self, table: PlannedTable) -> Iterator[str]:
        name = _name(table.name)
        if table.primary_key:
            columns = _listed(table.primary_key)
            yield from self._try(f"{table.name}: the primary key", f"ALTER TABLE {name} ADD PRIMARY KEY {columns}")
        for unique in table.uniques:
            what = f"{table.name}: the unique constraint ({', '.join(unique)})"
            yield from self._try(what, f"ALTER TABLE {name} ADD UNIQUE {_listed(unique)}")
        for index in table.indexes:
            what = f"{table.name}: the index ({', '.join(index)})"
            yield from self._try(what, f"CREATE INDEX ON {name} {_listed(index)}")

    def _try(self, what: str, sql: str) -> list[str]:
        """Run a statement that may fail without harm; return what failed."""
        self._run("SAVEPOINT before")
        try:
            self._run(sql)
        except psycopg2.Error as error:
            self._run("ROLLBACK TO SAVEPOINT before")
            return [f"{what} is left out: {' '.join(str(error).split())}"]
        self._run("RELEASE SAVEPOINT before")
        return []

    def _run(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)


def _type(column: PlannedColumn) -> str:
    return _TYPES[column.kind] + (' COLLATE "C"' if column.kind == "text" else "")


class _Stream:
    """Blocks of bytes as a file that is read."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.left = b""

    def read(self, size: int) -> bytes:
        if not self.left:
            self.left = next(self.blocks, b"")
        found, self.left = self.left[:size], self.left[size:]
        return found


def _copied(rows: Rows) -> bytes:
    """Return rows in COPY's text form."""
    return "".join("\t".join(map(_cell, row)) + "\n" for row in rows).encode()


def _cell(value: Cell) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    return f"\\\\x{value.hex()}" if isinstance(value, bytes) else repr(value)


def _name(name: str) -> str:
    return quote_name(name, always=True)


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(map(_name, names))})"


def _text(text: str) -> str:
    return "E" + quote_text(text.replace("\\", "\\\\"))
