"""Copies as files of DuckDB's in a folder: each is written beside its place, and moved there when it is whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from jaxrl_sql.databases.copy.kinds import Kind, plain_rows
from jaxrl_sql.databases.copy.planned import PlannedTable, Rules
from jaxrl_sql.databases.copy.source import CHUNK, Rows
from jaxrl_sql.databases.copy.target import State, refused
from jaxrl_sql.text2sql.env.address import Address
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_text
from jaxrl_sql.types import InputError

try:
    import duckdb
except ImportError as error:
    raise InputError("DuckDB's files are written by the package duckdb: pip install 'jaxrl-sql[duckdb]'") from error

_OLDEST = 2
_TYPES: Mapping[Kind, str] = {
    "integer": "BIGINT",
    "real": "DOUBLE",
    "text": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "blob": "BLOB",
}


class DuckdbFiles:
    """A folder with a file `ID.duckdb` for each database."""

    rules = Rules("DuckDB", _TYPES, refers_ahead=False)

    def __init__(self, address: Address) -> None:
        self.address = address
        self.version = f"DuckDB {duckdb.__version__}"
        if int(duckdb.__version__.split(".")[0]) < _OLDEST:
            raise InputError(f"{self.version} is too old: pip install -U 'duckdb>={_OLDEST}.0'")
        try:
            Path(address.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{address.shown}: no folder can be made there ({error.strerror}): name another") from None

    def state(self, name: str) -> State:
        """Return whether a file is there: one that is was whole when it was moved there."""
        return "full" if self._file(name).exists() else "absent"

    def drop(self, name: str) -> None:
        """Remove a file."""
        self._file(name).unlink(missing_ok=True)

    def let_read(self, name: str, readers: Sequence[str]) -> None:
        """Raise InputError: who may read a file is not DuckDB's to say."""
        raise InputError(f"--reader {readers[0]}: the file {self._file(name)} has no users: leave it out with duckdb:")

    @contextmanager
    def open(self, name: str) -> Iterator[_Session]:
        """Yield a session on a file beside the place of the database's."""
        part = Path(self.address.folder, f"{name}.duckdb.part")
        _remove(part)
        try:
            with closing(duckdb.connect(part)) as connection:
                connection.execute("SET enable_progress_bar = false")
                yield _Session(connection)
            part.replace(self._file(name))
        except duckdb.Error as error:
            raise refused(self.address, f"{name} cannot be written", error) from error
        finally:
            _remove(part)

    def _file(self, name: str) -> Path:
        return Path(self.address.folder, f"{name}.duckdb")


class _Session:
    """A connection to a new file."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def create(self, tables: Sequence[PlannedTable]) -> None:
        # Foreign keys can only be declared with their table.
        for table in tables:
            parts = [
                f"{_name(column.name)} {_TYPES[column.kind]}{' NOT NULL' if column.not_null else ''}"
                for column in table.columns
            ]
            parts += [f"PRIMARY KEY {_listed(table.primary_key)}"] if table.primary_key else []
            parts += [f"UNIQUE {_listed(unique)}" for unique in table.uniques]
            parts += [
                f"FOREIGN KEY {_listed(key.columns)} REFERENCES {_name(key.table)} {_listed(key.targets)}"
                for key in table.foreign_keys
            ]
            self.connection.execute(f"CREATE TABLE {_name(table.name)} ({', '.join(parts)})")

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        columns = ", ".join(f"unnest(?::{_TYPES[column.kind]}[])" for column in table.columns)
        insert = f"INSERT INTO {_name(table.name)} SELECT {columns}"
        self.connection.execute("BEGIN")
        for chunk in rows:
            self.connection.execute(insert, [list(column) for column in zip(*chunk, strict=True)])
        self.connection.execute("COMMIT")

    def finish(self, tables: Sequence[PlannedTable]) -> list[str]:
        told = []
        for table in tables:
            name = _name(table.name)
            for place, index in enumerate(table.indexes, 1):
                made = f"CREATE INDEX {_name(f'{table.name}_index_{place}')} ON {name} {_listed(index)}"
                try:
                    self.connection.execute(made)
                except duckdb.Error as error:
                    told.append(f"{table.name}: the index ({', '.join(index)}) is left out: {error}")
            for column in table.columns:
                if column.comment:
                    what = f"{name}.{_name(column.name)}"
                    self.connection.execute(f"COMMENT ON COLUMN {what} IS {quote_text(column.comment)}")
        return told

    def read(self, table: PlannedTable) -> Iterator[Rows]:
        cursor = self.connection.execute(f"SELECT * FROM {_name(table.name)}")
        while rows := cursor.fetchmany(CHUNK):
            yield plain_rows(rows)


def _remove(part: Path) -> None:
    for path in (part, Path(f"{part}.wal")):
        path.unlink(missing_ok=True)


def _name(name: str) -> str:
    return quote_name(name, always=True)


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(map(_name, names))})"
