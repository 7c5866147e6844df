"""MariaDB and MySQL: write copies of SQLite databases table by table, and read a database for a sample."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar

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
    NUMBERS,
    Catalog,
    CatalogColumn,
    CatalogForeignKey,
    CatalogTable,
    KeyValues,
    TextRow,
)
from jaxrl_sql.databases.engines.kinds import ColumnKind, Rows
from jaxrl_sql.databases.engines.tables import EngineRules, NameRules, PlannedColumn, PlannedTable
from jaxrl_sql.types import InputError

Select = Callable[[str], Sequence[TextRow]]
"""Return the rows of a query, as texts."""

_VERSION = "SELECT VERSION()"
_TYPES: Mapping[ColumnKind, str] = {
    "integer": "bigint",
    "real": "double",
    "text": "text",
    "date": "date",
    "timestamp": "datetime",
    "blob": "blob",
}
# Text is compared byte by byte, including trailing spaces, like SQLite's BINARY.
_COLLATIONS = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
# Column names that InnoDB reserves.
_SYSTEM_COLUMNS = frozenset({"db_row_id", "db_trx_id", "db_roll_ptr", "fts_doc_id"})
# InnoDB's keys have at most 3,072 bytes. 700 characters of up to four bytes leave 272 bytes for numbers.
_KEY_LENGTH = 700
# The largest value of the types `text` and `blob`; `longtext` and `longblob` hold more.
_TEXT_BYTES = 65_535
# Error codes for a statement that is too long: the server reports it, or closes the connection.
_TOO_LARGE = (1153, 2006, 2013)
_WRITER_SESSION = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"
_READER_SESSION = (
    f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}, innodb_lock_wait_timeout = {LOCK_SECONDS}, "
    "time_zone = '+00:00', sql_mode = ''"
)
# Time limits of a reader's statements. MariaDB would also turn a long list of keys into a table, whose texts have
# another collation than the column.
_MARIADB_LIMITS = f"SET SESSION max_statement_time = {READ_SECONDS}, in_predicate_conversion_threshold = 0"
_MYSQL_LIMITS = f"SET SESSION max_execution_time = {1000 * READ_SECONDS}"
_TABLES = """
SELECT table_name, table_type FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'VIEW')
ORDER BY create_time, table_name
"""
_COLUMNS = """
SELECT table_name, column_name, data_type, column_type, is_nullable, column_comment, collation_name, numeric_scale
FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position
"""
_UNIQUE = """
SELECT table_name, index_name, column_name, sub_part
FROM information_schema.statistics WHERE table_schema = DATABASE() AND non_unique = 0
ORDER BY table_name, index_name, seq_in_index
"""
_FOREIGN_KEYS = """
SELECT table_name, constraint_name, column_name, referenced_table_schema, referenced_table_name, referenced_column_name
FROM information_schema.key_column_usage
WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL
ORDER BY table_name, constraint_name, ordinal_position
"""

# The kinds of types, by their names without lengths; texts and decimals are in `_kind`.
_TEXT_TYPES = frozenset("char varchar tinytext text mediumtext longtext enum set json".split())
_KINDS = {
    "float": "float", "double": "float", "date": "date", "time": "time", "datetime": "timestamp",
    "timestamp": "timestamp", "uuid": "other", "inet4": "other", "inet6": "other",
}  # fmt: skip
_KINDS |= dict.fromkeys("tinyint smallint mediumint int bigint year".split(), "integer")
_KINDS |= dict.fromkeys("binary varbinary tinyblob blob mediumblob longblob bit".split(), "bytes")
_KINDS |= dict.fromkeys("geometry point linestring polygon multipoint multilinestring multipolygon".split(), "bytes")
_KINDS |= dict.fromkeys(("geometrycollection", "geomcollection"), "bytes")


class Mysql(Server):
    """A MariaDB or MySQL server, accessed as a user who may create databases or read one."""

    rules = EngineRules(
        "MariaDB",
        _TYPES,
        NameRules(64, reserved=_SYSTEM_COLUMNS, is_basic=True, mark="`"),
        holds_infinity=False,
        key_length=_KEY_LENGTH,
    )
    driver_name = "pymysql"
    clients, client_package = ("mariadb", "mysql"), "mariadb-client"
    collation = ""

    def prepare(self) -> None:
        """Read the version and choose a collation; raises InputError for a server that is too old."""
        version = self.ask(_VERSION)[0][0]
        self.version = version if "MariaDB" in version else f"MySQL {version}"
        parts = re.match(r"(\d+)\.(\d+)", version)
        number = (int(parts[1]), int(parts[2])) if parts else (0, 0)
        if number < ((10, 5) if "MariaDB" in version else (8, 0)):
            raise InputError(
                f"{self.address.shown}: the server is too old ({version}): MariaDB from 10.5, MySQL from 8.0"
            )
        collations = {name for (name,) in self.ask("SELECT collation_name FROM information_schema.collations")}
        self.collation = next(name for name in _COLLATIONS if name in collations)

    def state(self, name: str) -> State:
        """Return whether a database is absent, empty or holds tables."""
        if not self.ask("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", name):
            return "absent"
        count = self.ask("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s", name)
        return "full" if count[0][0] else "empty"

    def drop(self, name: str) -> None:
        """Remove a database."""
        self.ask(f"DROP DATABASE IF EXISTS {self.quote_name(name)}")

    def grant_read(self, name: str, readers: Sequence[str]) -> None:
        """Grant users read access to a database: `NAME` from all hosts, `NAME@HOST` from one host."""
        users = [part for reader in readers for part in (reader.rsplit("@", 1) if "@" in reader else (reader, "%"))]
        grantees = ", ".join(["%s@%s"] * len(readers))
        # In a GRANT the name of a database is a pattern.
        pattern = re.sub(r"([_%\\])", r"\\\1", name)
        self.ask(f"GRANT SELECT ON {self.quote_name(pattern).replace('%', '%%')}.* TO {grantees}", *users)

    @contextmanager
    def open(self, name: str) -> Iterator[DatabaseWriter]:
        """Yield a writer; its incomplete tables remain after a failure."""
        self.ask(
            f"CREATE DATABASE IF NOT EXISTS {self.quote_name(name)} CHARACTER SET utf8mb4 COLLATE {self.collation}"
        )
        with closing(self.connect(name)) as connection:
            try:
                yield _MysqlWriter(connection, self)
            except self.driver.Error as error:
                hint = ": raise max_allowed_packet if a row is larger" if error.args[0] in _TOO_LARGE else ""
                raise self.make_error(f"the database {name} cannot be written", error, hint) from error

    def reader(self) -> DatabaseReader:
        """Open the address's database to read it."""
        return _MysqlReader(self)

    def client_options(self, database: str) -> tuple[list[str], dict[str, str]]:
        """Return the arguments and the environment of mariadb, or of mysql."""
        address = self.address
        host_options = ["--host", address.host, "--protocol=tcp"]
        if address.host.startswith("/"):
            host_options = ["--socket", address.host]
        ca_options = [f"--ssl-ca={address.option('sslrootcert')}"] if address.option("sslrootcert") else []
        tls_options = ["--ssl-verify-server-cert", *ca_options] if address.tls_context() else []
        arguments = ["--port", str(address.port), "--user", address.user, *host_options, *tls_options, database]
        return arguments, {"MYSQL_PWD": address.password}

    def _connect(self, database: str, *, is_read_only: bool) -> Any:
        address = self.address
        connection = self.driver.connect(
            host="localhost" if address.host.startswith("/") else address.host,
            unix_socket=address.host if address.host.startswith("/") else None,
            port=address.port, user=address.user, password=address.password, database=database or None,
            charset="utf8mb4", connect_timeout=CONNECT_SECONDS, autocommit=True, ssl=address.tls_context(),
            **({"conv": {}} if is_read_only else {}),
        )  # fmt: skip
        limits = _MARIADB_LIMITS if "MariaDB" in connection.get_server_info() else _MYSQL_LIMITS
        statements = (
            (_READER_SESSION, limits, "SET SESSION TRANSACTION READ ONLY") if is_read_only else (_WRITER_SESSION,)
        )
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        return connection


class _MysqlWriter(DatabaseWriter):
    """A connection that writes a database."""

    comments_inline = True

    def __init__(self, connection: Any, server: Mysql) -> None:
        super().__init__(connection, server.rules, server.driver.Error)
        self.collation = server.collation
        self.streaming = server.driver.cursors.SSCursor

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        placeholders = ", ".join(["%s"] * len(table.columns))
        insert = f"INSERT INTO {self.quote_name(table.name).replace('%', '%%')} VALUES ({placeholders})"
        with self.connection.cursor() as cursor:
            # PyMySQL joins rows in one INSERT of at most `max_stmt_length` bytes. 4,096 bytes are a margin for the rest
            # of the packet.
            cursor.execute("SELECT @@max_allowed_packet")
            cursor.max_stmt_length = min(cursor.max_stmt_length, cursor.fetchone()[0] - 4096)
            self.connection.begin()
            for chunk in rows:
                cursor.executemany(insert, chunk)
            self.connection.commit()

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        lines = super().finish(tables)
        for table in tables:
            self.run(f"ANALYZE TABLE {self.quote_name(table.name)}")
        return lines

    def index_statement(self, table: PlannedTable, number: int) -> str:
        return f"ALTER TABLE {self.quote_name(table.name)} ADD INDEX ({self.quote_list(table.indexes[number])})"

    def column(self, table: PlannedTable, column: PlannedColumn) -> str:
        comment = f" COMMENT {self.connection.escape(column.comment)}" if column.comment else ""
        return super().column(table, column) + comment

    def type_of(self, table: PlannedTable, column: PlannedColumn) -> str:
        type_name = super().type_of(table, column)
        if column.kind not in ("text", "blob"):
            return type_name
        if column.name in table.keyed:  # a key needs a column of limited length
            return f"{'varchar' if column.kind == 'text' else 'varbinary'}({max(column.longest, 1)})"
        return type_name if column.widest <= _TEXT_BYTES else f"long{type_name}"

    def table_options(self) -> str:
        # `finish` computes the planner's statistics once. Automatic updates would change plans, and with them the order
        # of rows with equal sort keys.
        return f" ENGINE=InnoDB STATS_AUTO_RECALC=0 CHARACTER SET utf8mb4 COLLATE {self.collation}"

    def stream(self) -> Any:
        return self.connection.cursor(self.streaming)


class _MysqlReader(DatabaseReader):
    """A connection that reads a database for a sample."""

    # Time limits: of a lock (1205), and of a statement in MariaDB (1969) and MySQL (3024). Changes: a table's
    # definition (1412), a missing table (1146) or column (1054).
    reasons: ClassVar = {
        1205: "locked", 1969: "slow", 3024: "slow", 1412: "changed", 1146: "changed", 1054: "changed",
    }  # fmt: skip

    def catalog(self) -> Catalog:
        return _catalog(lambda sql: self.run(self.shown, sql), self.address.database)

    def parents(self, parent: CatalogTable, key: CatalogForeignKey, keys: Sequence[KeyValues]) -> list[TextRow]:
        rows = ", ".join(f"({', '.join(map(_literal, key.types, values))})" for values in keys)
        where = f"({self.quote_list(key.targets)}) IN ({rows})"
        return self.run(
            parent.title, f"SELECT {self.quote_list(parent.names)} FROM {self.qualified_name(parent)} WHERE {where}"
        )

    def texts(self, sql: str) -> list[TextRow]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(map(_text, row)) for row in cursor.fetchall()]

    def code(self, error: Any) -> object:
        return error.args[0] if error.args else 0


def _text(value: Any) -> str | None:
    """Return a value as a text: bytes in hexadecimal."""
    return value.hex() if isinstance(value, bytes) else value


def _literal(kind: str, text: str) -> str:
    """Return the SQL literal of a value of a kind, written as text by the server; backslashes are escaped."""
    if kind in NUMBERS:
        return text
    return f"x'{text}'" if kind == "bytes" else "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _catalog(select: Select, database: str) -> Catalog:
    """Return the tables that the user can read, their foreign keys, and a line for each omission."""
    columns: dict[str, dict[str, CatalogColumn]] = defaultdict(dict)
    for table, name, data_type, column_type, nullable, comment, collation, scale in _without_nulls(select(_COLUMNS)):
        kind = _kind(data_type.lower(), column_type.lower(), collation, scale)
        columns[table][name] = CatalogColumn(name, column_type, kind, nullable == "NO", comment)
    unique = _unique(select)
    tables: dict[str, CatalogTable] = {}
    for name, table_type in _without_nulls(select(_TABLES)):
        primary = unique[name].pop("PRIMARY", ())
        tables[name] = CatalogTable(
            (database, name), tuple(columns[name].values()), primary, (*unique[name].values(),), primary,
            is_view=table_type == "VIEW",
        )  # fmt: skip
    foreign_keys, notes = [], []
    for key in _foreign_keys(select, database, columns):
        parent = tables.get(key.parent[1]) if key.parent[0] == database else None
        if parent is None or key.child[1] not in tables:
            continue
        if set(key.targets) in (set(parent.primary_key), *map(set, parent.unique)):
            foreign_keys.append(key)
        else:
            notes.append(f"{key.title} references columns that are not a key: the sample has no such foreign key")
    return Catalog(tuple(tables.values()), tuple(foreign_keys), tuple(notes))


def _unique(select: Select) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the columns of unique keys by table and index; the primary key's index has the name PRIMARY.

    Keys of column prefixes or expressions are omitted, because a sample declares only keys of whole columns.
    """
    unique: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    partial: set[tuple[str, str]] = set()
    for table, index, column, prefix_length in _without_nulls(select(_UNIQUE)):
        if prefix_length or not column:  # a prefix index, or an index of an expression
            partial.add((table, index))
        unique[table][index] = (*unique[table].get(index, ()), column)
    for table, index in partial:
        del unique[table][index]
    return unique


def _foreign_keys(
    select: Select, database: str, columns: dict[str, dict[str, CatalogColumn]]
) -> Iterator[CatalogForeignKey]:
    grouped: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    for table, constraint, *rest in _without_nulls(select(_FOREIGN_KEYS)):
        grouped[table, constraint].append(tuple(rest))
    for (table, _), rows in grouped.items():
        names, schemas, parents, targets = zip(*rows, strict=True)
        kinds = tuple(columns[table][name].kind for name in names)
        yield CatalogForeignKey((database, table), names, (schemas[0], parents[0]), targets, kinds)


def _without_nulls(rows: Sequence[TextRow]) -> list[tuple[str, ...]]:
    return [tuple(value or "" for value in row) for row in rows]


def _kind(data_type: str, column_type: str, collation: str, scale: str) -> str:
    """Return the kind of a type's values; the collation of a text decides whether case matters.

    `data_type` is the name of the type alone, `column_type` with its length and attributes.
    """
    if data_type in _TEXT_TYPES:
        return "caseless" if "_ci" in collation else "text"
    if data_type == "decimal":
        return "numeric" if int(scale or 0) else "whole"
    if data_type == "bigint" and "unsigned" in column_type:
        return "whole"
    return _KINDS.get(data_type, "")
