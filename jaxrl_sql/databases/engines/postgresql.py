"""PostgreSQL: write copies of SQLite databases, one transaction each, and read a database for a sample."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from jaxrl_sql.databases.engines.base import (
    CONNECT_SECONDS,
    LOCK_SECONDS,
    READ_SECONDS,
    DatabaseReader,
    DatabaseWriter,
    Server,
    State,
)
from jaxrl_sql.databases.engines.catalog import (
    Catalog,
    CatalogColumn,
    CatalogForeignKey,
    CatalogTable,
    KeyValues,
    TablePath,
    TextRow,
)
from jaxrl_sql.databases.engines.kinds import ColumnKind, Rows
from jaxrl_sql.databases.engines.tables import EngineRules, NameRules, PlannedColumn, PlannedTable
from jaxrl_sql.text2sql.env.executor import revoke_script
from jaxrl_sql.text2sql.schema.quote import quote_text
from jaxrl_sql.types import Cell, InputError

_OLDEST = 130_000  # version 13.0, as the server reports it
_TYPES: Mapping[ColumnKind, str] = {
    "integer": "bigint",
    "real": "double precision",
    "text": "text",
    "date": "date",
    "timestamp": "timestamp",
    "blob": "bytea",
}
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
# The number of tables, views and indexes of users.
_RELATION_COUNT = """
SELECT count(*) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
"""
# A dump sets the owner of each table, a role that need not exist here.
_NO_OWNER = re.compile(r'ERROR:\s+role ".*" does not exist')
# Characters that COPY's text format escapes.
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# Settings of a reader's session. The first three lines make the formats of values and the meaning of names independent
# of the role's and the server's settings. Then there are the limits. The last lines make the first rows of a table
# reproducible: plans use indexes, and a scan starts at the first page.
_SESSION = f"""
SET client_encoding = 'UTF8'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC';
SET bytea_output = 'hex'; SET standard_conforming_strings = on; SET extra_float_digits = 1;
SET search_path = pg_catalog; SET quote_all_identifiers = off;
SET default_transaction_read_only = on; SET lock_timeout = '{LOCK_SECONDS}s'; SET statement_timeout = '{READ_SECONDS}s';
SET jit = off; SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off;
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
"""
# (oid, schema, name, whether the role may use the schema, whether it can read the table, whether it has row security,
# whether it is a view). Partitions are not listed; a partitioned table is read with its partitions. Foreign tables
# count as views: neither has keys, and the server may take long to read the first rows. Views of extensions are not
# listed.
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE'),
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), c.relrowsecurity,
       c.relkind IN ('v', 'm', 'f')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (c.relkind IN ('r', 'p', 'f') OR c.relkind IN ('v', 'm') AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
      )) AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.oid
"""
_COLUMNS = """
SELECT attrelid::int8, attnum::int8, attname, format_type(atttypid, atttypmod), atttypid::int8, atttypmod, attnotnull,
       col_description(attrelid, attnum)
FROM pg_attribute WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped ORDER BY 1, 2
"""
_CATALOG_TYPES = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype, t.typcategory, t.typelem::int8, t.typbasetype::int8, t.typtypmod
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'p'
"""
_ENUMS = (
    "SELECT enumtypid::int8, string_agg(quote_literal(enumlabel), ', ' ORDER BY enumsortorder) FROM pg_enum GROUP BY 1"
)
# (table, referenced table, `p`rimary, `u`nique or `f`oreign key, column numbers, referenced column numbers, operators
# that compare a foreign key's columns with the referenced ones).
_KEYS = """
SELECT k.conrelid::int8, k.confrelid::int8, k.contype, k.conkey::int8[], k.confkey::int8[],
       ARRAY(SELECT 'OPERATOR(' || quote_ident(n.nspname) || '.' || o.oprname || ')'
             FROM unnest(k.conpfeqop) WITH ORDINALITY AS e(oid, place)
             JOIN pg_operator o ON o.oid = e.oid JOIN pg_namespace n ON n.oid = o.oprnamespace ORDER BY e.place)
FROM pg_constraint k
WHERE k.contype IN ('p', 'u', 'f') AND k.conparentid = 0 AND k.conrelid = ANY(%s::oid[])
ORDER BY k.conrelid, k.contype, k.conname
"""

# The kinds of built-in types; the sample holds the server's text for the others of PostgreSQL's catalog.
_KINDS = {
    "int2": "integer", "int4": "integer", "int8": "integer", "oid": "integer", "float4": "float", "float8": "float",
    "bool": "boolean", "text": "text", "varchar": "text", "name": "text", "char": "text", "bpchar": "padded",
    "date": "date", "time": "time", "timetz": "time", "timestamp": "timestamp", "timestamptz": "zoned",
    "bytea": "bytes",
}  # fmt: skip
# The kinds of types of extensions, by name.
_EXTENSIONS = {"citext": "caseless", "hstore": "other", "ltree": "other"}


class Postgresql(Server):
    """A server, accessed as a user who may create databases, or read one."""

    rules = EngineRules(
        "PostgreSQL", _TYPES, NameRules(63, counts_bytes=True, reserved=_SYSTEM_COLUMNS), holds_nul=False
    )
    driver_name = "psycopg2"
    clients, client_package = ("psql",), "postgresql-client"

    def prepare(self) -> None:
        """Read the version; raises InputError for a server that is too old."""
        with closing(self.connect()) as connection:
            if connection.server_version < _OLDEST:
                version = connection.server_version // 10_000
                raise InputError(
                    f"{self.address.shown}: the server is too old ({version}): PostgreSQL 13 or later is required"
                )
            self.version = f"PostgreSQL {connection.get_parameter_status('server_version')}"

    def state(self, name: str) -> State:
        """Return whether a database is absent, empty, or has tables."""
        if not self.ask("SELECT 1 FROM pg_catalog.pg_database WHERE datname = %s", name):
            return "absent"
        return "full" if self.ask(_RELATION_COUNT, database=name)[0][0] else "empty"

    def drop(self, name: str) -> None:
        """Remove a database, and close other sessions' connections to it."""
        self.ask(f"DROP DATABASE IF EXISTS {self.quote_name(name)} WITH (FORCE)")

    def grant_read(self, name: str, readers: Sequence[str]) -> None:
        """Grant roles read access to a database.

        If the current user is a superuser, also revoke functions that readers do not need, such as those for files.
        """
        roles = self.quote_list(readers)
        self.ask(f"GRANT CONNECT ON DATABASE {self.quote_name(name)} TO {roles}")
        self.ask(f"GRANT USAGE ON SCHEMA public TO {roles}", database=name)
        self.ask(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {roles}", database=name)
        ((is_superuser,),) = self.ask("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
        if is_superuser:
            self.ask(revoke_script(), database=name)

    @contextmanager
    def open(self, name: str) -> Iterator[DatabaseWriter]:
        """Yield a writer in a transaction, which is committed at the end, or rolled back after an error.

        After the commit, ANALYZE computes the planner's statistics.
        """
        if self.state(name) == "absent":
            self.ask(
                f"CREATE DATABASE {self.quote_name(name)} TEMPLATE template0 ENCODING 'UTF8' "
                "LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        with closing(self.connect(name)) as connection:
            if connection.get_parameter_status("server_encoding") != "UTF8":
                raise InputError(
                    f"{self.address.display_name(name)}: its encoding is not UTF8: drop it, and it is created with UTF8"
                )
            connection.autocommit = False
            try:
                writer = _PostgresqlWriter(connection, self.rules, self.driver.Error)
                yield writer
                connection.commit()
                connection.autocommit = True
                writer.run("ANALYZE")
            except self.driver.Error as error:
                raise self.make_error(f"the database {name} cannot be written", error) from error

    def reader(self) -> DatabaseReader:
        """Open the address's database to read it."""
        return _PostgresqlReader(self)

    def client_options(self, database: str) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the environment of psql."""
        arguments = ["--no-psqlrc", "--quiet", "--output", os.devnull, "--dbname", self.address.public_url(database)]
        return arguments, {"PGPASSWORD": self.address.password}

    def is_harmless_error(self, line: str) -> bool:
        """Return whether an error line only reports that the owner of a dump's table does not exist here."""
        return _NO_OWNER.search(line) is not None

    def _connect(self, database: str, *, is_read_only: bool) -> Any:
        address = self.address
        connection = self.driver.connect(
            host=address.host, port=address.port, user=address.user, password=address.password or None,
            dbname=database or "postgres", connect_timeout=CONNECT_SECONDS, client_encoding="UTF8",
            application_name="jaxrl_sql.databases", **address.tls_settings(),
        )  # fmt: skip
        connection.autocommit = True
        if is_read_only:
            with connection.cursor() as cursor:
                cursor.execute(_SESSION)
        return connection


class _PostgresqlWriter(DatabaseWriter):
    """A transaction that writes a database."""

    num_streams = 0

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        with self.connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {self.quote_name(table.name)} FROM STDIN", _Stream(map(_format_copy, rows)))

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        lines = super().finish(tables)
        # By default all roles may create temporary tables, and before version 15 permanent ones.
        self.run(f"REVOKE ALL ON DATABASE {self.quote_name(self.connection.info.dbname)} FROM PUBLIC")
        self.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        return lines

    def index_statement(self, table: PlannedTable, number: int) -> str:
        return f"CREATE INDEX ON {self.quote_name(table.name)} ({self.quote_list(table.indexes[number])})"

    def type_of(self, table: PlannedTable, column: PlannedColumn) -> str:
        # This collation compares texts byte by byte, as SQLite does.
        return super().type_of(table, column) + (' COLLATE "C"' if column.kind == "text" else "")

    def literal(self, text: str) -> str:
        # An E'…' literal: backslashes are escaped whatever `standard_conforming_strings` is.
        return "E" + quote_text(text.replace("\\", "\\\\"))

    def stream(self) -> Any:
        # psycopg2 streams the rows of a cursor with a name; each name is used once.
        self.num_streams += 1
        return self.connection.cursor(f"copied_{self.num_streams}")

    def attempt(self, description: str, sql: str) -> list[str]:
        # An error would end the whole transaction.
        self.run("SAVEPOINT before")
        lines = super().attempt(description, sql)
        self.run("ROLLBACK TO SAVEPOINT before" if lines else "RELEASE SAVEPOINT before")
        return lines


class _Stream:
    """Blocks of bytes as a readable file, from which psycopg2 sends COPY's data."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.remaining = b""

    def read(self, size: int) -> bytes:
        if not self.remaining:
            self.remaining = next(self.blocks, b"")
        block, self.remaining = self.remaining[:size], self.remaining[size:]
        return block


def _format_copy(rows: Rows) -> bytes:
    """Return rows in COPY's text format."""
    return "".join("\t".join(map(_format_cell, row)) + "\n" for row in rows).encode()


def _format_cell(value: Cell) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    # Bytes are written as \x…, with the backslash escaped.
    return f"\\\\x{value.hex()}" if isinstance(value, bytes) else repr(value)


class _PostgresqlReader(DatabaseReader):
    """A connection that reads a database for a sample."""

    # By SQLSTATE: lock_not_available, query_canceled, undefined_table, undefined_column.
    reasons: ClassVar = {"55P03": "locked", "57014": "slow", "42P01": "changed", "42703": "changed"}

    def catalog(self) -> Catalog:
        try:
            with self.connection.cursor() as cursor:
                return _catalog(cursor)
        except self.driver.Error as error:
            raise self.make_table_error(self.shown, error) from None

    def missing_grants(self, users: Sequence[str]) -> str:
        tables = f"({_TABLES}) AS t(oid, schema, name, has_usage, is_readable)"
        rows = self.run(self.shown, f"SELECT DISTINCT schema FROM {tables} WHERE NOT is_readable ORDER BY 1")
        schemas = self.quote_list([str(schema) for (schema,) in rows])
        # Numbered roles usually have the rights of the role without a number.
        groups = self.run(
            self.shown,
            "SELECT rolname FROM pg_roles WHERE rolname || '_1' = session_user AND pg_has_role(oid, 'MEMBER')",
        )
        roles = self.quote_list([str(role) for (role,) in groups] or users)
        if not schemas:
            return ""
        return f"GRANT USAGE ON SCHEMA {schemas} TO {roles}; GRANT SELECT ON ALL TABLES IN SCHEMA {schemas} TO {roles}"

    def parents(self, parent: CatalogTable, key: CatalogForeignKey, keys: Sequence[KeyValues]) -> list[TextRow]:
        columns = zip(zip(*keys, strict=True), key.types, strict=True)
        arrays = ", ".join(f"{_array(values)}::{type_name}[]" for values, type_name in columns)
        # The keys become rows `k(c0, c1, …)`: one array per column, unnested together.
        names = [f"c{i}" for i in range(len(key.columns))]
        sides = zip(key.targets, key.operators, names, strict=True)
        on = " AND ".join(f"p.{self.quote_name(target)} {operator} k.{name}" for target, operator, name in sides)
        parent_columns = ", ".join(f"p.{self.quote_name(name)}" for name in parent.names)
        keyed = f"unnest({arrays}) AS k({', '.join(names)})"
        return self.run(
            parent.title, f"SELECT {parent_columns} FROM {keyed} JOIN {self.qualified_name(parent)} AS p ON {on}"
        )

    def texts(self, sql: str) -> list[TextRow]:
        # A converter for all types of this cursor keeps each value as the server's text.
        extensions = self.driver.extensions
        as_text = extensions.new_type(tuple(extensions.string_types), "TEXT", lambda value, _cursor: value)
        with self.connection.cursor() as cursor:
            extensions.register_type(as_text, cursor)
            cursor.execute(sql)
            return list(cursor.fetchall())

    def code(self, error: Any) -> object:
        return error.pgcode


def _array(values: Sequence[str]) -> str:
    """Return the literal of an array of texts, before its cast."""
    inside = ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return quote_text("{" + inside + "}")


class _Type(NamedTuple):
    """A row of the catalog `pg_type`.

    `variety` is its `typtype` (`b`ase, `d`omain, `e`num, `r`ange, `m`ultirange, `c`omposite), `category` its
    `typcategory` (`A` for arrays). `element` is the oid of an array's element type. `base` and `modifier` are the oid
    and the type modifier (such as a precision) of the type that a domain restricts.
    """

    schema: str
    name: str
    variety: str
    category: str
    element: int
    base: int
    modifier: int


def _catalog(cursor: Any) -> Catalog:
    """Return the tables that the role can read, their foreign keys, and a line for each omission.

    Tables are in the order in which the executor's sessions find them: first the role's search path, then the other
    schemas by name. Of several tables with one name, only the first can be named without its schema.
    """

    def select(sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        cursor.execute(sql, values or None)
        return cursor.fetchall()

    cursor.execute("RESET search_path")
    ((search_path,),) = select("SELECT pg_catalog.current_schemas(false)::text[]")
    cursor.execute("SET search_path = pg_catalog")
    rank = {schema: place for place, schema in enumerate(search_path)}
    paths: dict[int, TablePath] = {}
    first: dict[str, str] = {}
    views = set()
    notes = []
    rows = sorted(select(_TABLES), key=lambda row: rank.get(row[1], len(rank)))
    for oid, schema, name, is_usable, is_readable, has_policies, is_view in rows:
        other = first.setdefault(name.casefold(), schema) if is_usable else schema
        if is_readable and other != schema:
            notes.append(
                f"{schema}.{name} is left out: {other}.{name} has its name and is before it in the search_path"
            )
            continue
        if is_readable:
            paths[oid] = (schema, name)
            views |= {oid} if is_view else set()
        else:
            notes.append(f"{schema}.{name} is left out: the role may not read it")
        if is_readable and has_policies:
            notes.append(f"{schema}.{name} has row security: only rows that the role may see are sampled")
    if added := sorted({schema for schema, _ in paths.values()}.difference(search_path)):
        notes.insert(0, f"the search_path of queries ends with {', '.join(added)}: tables need no schema's name")
    choices = {int(oid): labels for oid, labels in select(_ENUMS)}
    types = {oid: _Type(*rest) for oid, *rest in select(_CATALOG_TYPES)}
    columns: dict[int, dict[int, CatalogColumn]] = defaultdict(dict)
    for oid, number, name, type_name, type_oid, modifier, not_null, comment in select(_COLUMNS, [*paths]):
        kind = _kind(type_oid, modifier, types)
        columns[oid][number] = CatalogColumn(name, type_name, kind, not_null, comment or "", choices.get(type_oid, ""))
    keys = select(_KEYS, [*paths])
    tables = tuple(replace(_table(oid, path, columns[oid], keys), is_view=oid in views) for oid, path in paths.items())
    return Catalog(tables, tuple(_foreign_keys(keys, paths, columns)), tuple(notes))


def _table(
    oid: int, path: TablePath, columns: Mapping[int, CatalogColumn], keys: Sequence[Sequence[Any]]
) -> CatalogTable:
    constraints = [
        (constraint_type, tuple(columns[number].name for number in numbers))
        for table_oid, _, constraint_type, numbers, *_ in keys
        if table_oid == oid
    ]
    primary = next((names for constraint_type, names in constraints if constraint_type == "p"), ())
    unique = tuple(names for constraint_type, names in constraints if constraint_type == "u")
    return CatalogTable(path, tuple(columns.values()), primary, unique, order=primary)


def _foreign_keys(
    keys: Sequence[Sequence[Any]], paths: Mapping[int, TablePath], columns: Mapping[int, Mapping[int, CatalogColumn]]
) -> Iterator[CatalogForeignKey]:
    """Yield the foreign keys between tables that can be read."""
    for child, parent, constraint_type, numbers, targets, operators in keys:
        if constraint_type == "f" and parent in paths:
            sources = [columns[child][number] for number in numbers]
            yield CatalogForeignKey(
                paths[child],
                tuple(column.name for column in sources),
                paths[parent],
                tuple(columns[parent][number].name for number in targets),
                tuple(column.type for column in sources),
                tuple(operators),
            )


def _kind(oid: int, modifier: int, types: Mapping[int, _Type]) -> str:
    """Return the kind of a type's values; "" for composite types, and for most types of extensions."""
    pg_type = types.get(oid)
    if pg_type is None or pg_type.variety not in "bderm":
        return ""
    if pg_type.variety == "d":
        return _kind(pg_type.base, pg_type.modifier, types)
    if pg_type.category == "A" and pg_type.element:
        return "other" if _kind(pg_type.element, -1, types) else ""
    if pg_type.variety != "b":
        return "text" if pg_type.variety == "e" else "other"
    if pg_type.schema != "pg_catalog":
        return _EXTENSIONS.get(pg_type.name, "")
    return _numeric_kind(modifier) if pg_type.name == "numeric" else _KINDS.get(pg_type.name, "other")


def _numeric_kind(modifier: int) -> str:
    """Return `whole` for a numeric that was declared without decimals, else `numeric`.

    The type modifier is 4 plus the precision in its upper 16 bits and the signed 11-bit scale below; -1 means neither.
    """
    if modifier < 0:
        return "numeric"
    scale = (modifier - 4) & 0x7FF
    return "whole" if scale == 0 or scale >= 0x400 else "numeric"  # from 0x400 on the scale is negative
