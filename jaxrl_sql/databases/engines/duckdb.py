"""DuckDB as the target of a copy: a file per database, written under a temporary name and renamed once complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from jaxrl_sql.databases.engines.base import DatabaseEngine, DatabaseWriter, State
from jaxrl_sql.databases.engines.kinds import ColumnKind, Rows
from jaxrl_sql.databases.engines.tables import EngineRules, PlannedTable
from jaxrl_sql.types import InputError

_OLDEST = 2  # major version
_TYPES: Mapping[ColumnKind, str] = {
    "integer": "BIGINT",
    "real": "DOUBLE",
    "text": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "blob": "BLOB",
}


class Duckdb(DatabaseEngine):
    """A folder with a file `ID.duckdb` for each database."""

    rules = EngineRules("DuckDB", _TYPES, refers_ahead=False)
    driver_name = "duckdb"

    def prepare(self) -> None:
        """Read the version and create the folder; raises InputError for a package that is too old."""
        version = self.driver.__version__
        self.version = f"DuckDB {version}"
        if int(version.split(".")[0]) < _OLDEST:
            raise InputError(f"{self.version} is too old: pip install -U 'duckdb>={_OLDEST}.0'")
        try:
            Path(self.address.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.address.shown}: no folder can be created there ({error.strerror}): name another"
            ) from None

    def state(self, name: str) -> State:
        """Return whether a file exists, which implies that it is complete."""
        return "full" if self._file(name).exists() else "absent"

    def drop(self, name: str) -> None:
        """Remove a file."""
        self._file(name).unlink(missing_ok=True)

    def grant_read(self, name: str, readers: Sequence[str]) -> None:
        """Raise InputError: a file has no users."""
        raise InputError(f"--reader {readers[0]}: the file {self._file(name)} has no users: omit it with duckdb:")

    @contextmanager
    def open(self, name: str) -> Iterator[DatabaseWriter]:
        """Yield a writer of a temporary file next to the database's path."""
        partial_file = Path(self.address.folder, f"{name}.duckdb.part")
        _remove(partial_file)
        try:
            with closing(self.driver.connect(partial_file)) as connection:
                connection.execute("SET enable_progress_bar = false")
                yield _DuckdbWriter(connection, self.rules, self.driver.Error)
            partial_file.replace(self._file(name))
        except self.driver.Error as error:
            raise self.make_error(f"{name} cannot be written", error) from error
        finally:
            _remove(partial_file)

    def _file(self, name: str) -> Path:
        return Path(self.address.folder, f"{name}.duckdb")


class _DuckdbWriter(DatabaseWriter):
    """A connection to a new file."""

    declares_keys = True

    def load(self, table: PlannedTable, rows: Iterable[Rows]) -> None:
        # DuckDB inserts an array per column much faster than single rows.
        columns = ", ".join(f"unnest(?::{self.type_of(table, column)}[])" for column in table.columns)
        insert = f"INSERT INTO {self.quote_name(table.name)} SELECT {columns}"
        self.connection.execute("BEGIN")
        for chunk in rows:
            self.connection.execute(insert, [list(column) for column in zip(*chunk, strict=True)])
        self.connection.execute("COMMIT")


def _remove(partial_file: Path) -> None:
    """Remove an incomplete file and its write-ahead log."""
    for path in (partial_file, Path(f"{partial_file}.wal")):
        path.unlink(missing_ok=True)
