"""Load the questions of a user's file with the databases that `data.database` or the records name.

A database is a SQLite file, a DuckDB file, or a server's database. SQL runs on the engine. For an engine other than
SQLite, prompts get schema and values from a cached sample: a SQLite file with the first rows of each table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.databases.engines.base import MissingDatabaseError
from jaxrl_sql.databases.sample.external import ExternalDatabase, describe_samples, open_external
from jaxrl_sql.text2sql import benchmarks
from jaxrl_sql.text2sql.benchmarks.benchmark import Benchmark, describe_databases
from jaxrl_sql.text2sql.benchmarks.databases import Databases
from jaxrl_sql.text2sql.benchmarks.detect import USER_FORMATS
from jaxrl_sql.text2sql.benchmarks.gather import PublishedQuestion
from jaxrl_sql.text2sql.env.address import is_address, parse_address
from jaxrl_sql.types import InputError

KEY = "data.database"
"""The setting that names the database of questions, in messages."""
_DUCKDB = "duckdb:"
_DUCKDB_ENDING = ".duckdb"
_DUCKDB_MAGIC = b"DUCK"  # bytes 8 to 11 of a file


class OpenedDatabase(NamedTuple):
    """A database that questions use.

    `path` is the SQLite file that prompts read: the database or a sample of it. `engine` and `url` are set for an
    engine other than SQLite. `error` is the reason why the database is unusable.
    """

    path: str = ""
    engine: str = "sqlite"
    url: str = ""
    error: str = ""


class DatabaseSource(NamedTuple):
    """The databases that `data.database` means: a single one, those of a folder, or those of a server.

    `name` is the default for questions that name none, or "" if every question must name its own. `open` opens the
    database of a name.
    """

    engine: str
    name: str
    open: Callable[[str], OpenedDatabase]


class SampleLog(NamedTuple):
    """Messages about differences between samples and databases, and the databases that have samples."""

    notes: list[str]
    databases: list[ExternalDatabase]


class DatabaseResolver:
    """Set the database of each question of a user's file; call the object with a question.

    `database` is the setting `data.database`. A record's own URL or file has precedence over it. A call raises
    InputError for a `database` that cannot be opened.
    """

    def __init__(self, database: str = "") -> None:
        self._log = SampleLog([], [])
        self._source = _make_source(database, self._log) if database else None
        self._opened: dict[tuple[str, str], OpenedDatabase] = {}

    @property
    def notes(self) -> list[str]:
        """Return messages about samples."""
        return [*self._log.notes, *describe_samples(self._log.databases)]

    def __call__(self, item: PublishedQuestion) -> PublishedQuestion:
        """Return the question with its database, or with the reason why it has none."""
        if item.url:
            return self._set_database(item, self._open_url(item.url), item.db_id)
        source = self._source
        if source is None or item.script or (item.db_path and not item.is_unnamed):
            return item
        # If `data.database` is of another engine, the database of a SQLite question is a file next to the questions.
        if item.dialect == "sqlite" != source.engine:
            return item
        name = item.db_id or source.name
        item = item._replace(db_path="", error="") if item.is_unnamed else item
        if not name:
            return item
        if (KEY, name) not in self._opened:
            self._opened[KEY, name] = source.open(name)
        return self._set_database(item, self._opened[KEY, name], name)

    def _open_url(self, url: str) -> OpenedDatabase:
        """Open the database of a record's own URL; after a failure, the server's other databases are not tried."""
        server = url if url.startswith(_DUCKDB) else parse_address(url).shown
        failed = self._opened.get((server, ""))
        if failed is None and (server, url) not in self._opened:
            try:
                self._opened[server, url] = _open_other_engine(url, self._log)
            except InputError as error:
                failed = self._opened[server, ""] = OpenedDatabase(error=str(error))
        return failed or self._opened[server, url]

    def _set_database(self, item: PublishedQuestion, opened: OpenedDatabase, name: str) -> PublishedQuestion:
        """Return the question with an opened database; `name` is its db_id if the record has none."""
        if opened.error:
            return item._replace(error=item.error or opened.error)
        more = {**item.more, "engine_url": opened.url}
        if opened.engine != "sqlite":
            more["dialect"] = opened.engine
        return item._replace(db_id=item.db_id or name, db_path=opened.path, more=more, is_unnamed=False)


def load_benchmark(folder: str | Path, split: str = "", limit: int = 0, database: str = "") -> Benchmark:
    """Load a benchmark's folder or a user's file of questions, as `text2sql.benchmarks.load_benchmark` does.

    `database` is the setting `data.database`: a SQLite file, `duckdb:FILE`, a folder of such files, or a server's URL.
    """
    databases = DatabaseResolver(database)
    return _add_notes(benchmarks.load_benchmark(folder, split, limit, databases), databases, database)


def load_split(root: str | Path, split: str, limit: int = 0, database: str = "") -> Benchmark:
    """Load a split for training, as `text2sql.benchmarks.load_split` does; `database` as in `load_benchmark`."""
    databases = DatabaseResolver(database)
    return _add_notes(benchmarks.load_split(root, split, limit, databases), databases, database)


def _add_notes(loaded: Benchmark, databases: DatabaseResolver, database: str) -> Benchmark:
    """Add notes on the databases that a user's questions were matched with."""
    notes = [*loaded.notes, *databases.notes]
    if loaded.name == "own":  # the format of a user's own file of questions
        notes.append(f"matched with {describe_databases(loaded.examples)}")
    if database and loaded.name not in USER_FORMATS:
        notes.append(f"{KEY} is not used: the questions of {loaded.name} name their own databases")
    return loaded._replace(notes=tuple(notes))


def single_database(database: str) -> str:
    """Return the only database of the setting `data.database`, as a value of the option `--db`.

    Raises InputError if the setting is empty or names several databases.
    """
    if not database:
        raise InputError(f"--db is missing: no configuration, and no run of the model, names a database ({KEY})")
    if is_address(database):
        if not parse_address(database).database:
            raise InputError(f"{KEY}={database} names a server with several databases: give one by --db")
        return database
    path = Path(database.removeprefix(_DUCKDB))
    if path.is_dir():
        raise InputError(f"{KEY}={database} is a folder of databases: give one by --db")
    if not path.is_file():
        raise InputError(f"{KEY}={database}: no such file: give the database by --db")
    return f"{_DUCKDB}{path}" if database.startswith(_DUCKDB) or _is_duckdb(path) else database


def _make_source(text: str, log: SampleLog) -> DatabaseSource:
    """Return the databases of a value of `data.database`; raises InputError if it names nothing that exists."""
    if is_address(text):
        return _make_server_source(text, log)
    path = Path(text.removeprefix(_DUCKDB))
    if not path.exists():
        raise InputError(f"{KEY}={text}: no such file or folder")
    if path.is_file() and (text.startswith(_DUCKDB) or _is_duckdb(path)):
        return _make_duckdb_source(path.parent, path.stem, path.suffix, log)
    if text.startswith(_DUCKDB):
        return _make_duckdb_source(path, "", _DUCKDB_ENDING, log)
    folder, name = (path, "") if path.is_dir() else (path.parent, path.stem)
    databases = Databases([folder])

    def open_file(db_id: str) -> OpenedDatabase:
        file = str(path) if name and db_id == name else databases.path(db_id)
        return (
            OpenedDatabase(file)
            if file
            else OpenedDatabase(error=f"no database {db_id}: tried {folder}/{db_id}.sqlite, .db")
        )

    return DatabaseSource("sqlite", name, open_file)


def _make_server_source(text: str, log: SampleLog) -> DatabaseSource:
    try:
        address = parse_address(text)
    except InputError as error:
        raise InputError(f"{KEY}: {error}") from None

    def open_named(db_id: str) -> OpenedDatabase:
        try:
            return _open_other_engine(address.url(db_id), log)
        except MissingDatabaseError as error:
            # A missing default database is an error of the setting, another one only of the question that names it.
            if db_id == address.database:
                raise InputError(f"{KEY}: {error}") from None
            return OpenedDatabase(error=f"no database {db_id}: tried {address.display_name(db_id)}")
        except InputError as error:
            raise InputError(f"{KEY}: {error}") from None

    return DatabaseSource(address.engine, address.database, open_named)


def _make_duckdb_source(folder: Path, name: str, ending: str, log: SampleLog) -> DatabaseSource:
    def open_file(db_id: str) -> OpenedDatabase:
        file = folder / f"{db_id}{ending}"
        if not file.is_file():
            return OpenedDatabase(error=f"no database {db_id}: tried {file}")
        return _open_other_engine(f"{_DUCKDB}{file}", log)

    return DatabaseSource("duckdb", name, open_file)


def _open_other_engine(url: str, log: SampleLog) -> OpenedDatabase:
    """Open the database of a URL of another engine, with its sample; raises InputError if that is impossible."""
    database = open_external(url, None, (), log.notes.append)
    log.databases.append(database)
    return OpenedDatabase(str(database.sample_path), database.engine, database.url)


def _is_duckdb(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(12)[8:] == _DUCKDB_MAGIC or path.suffix == _DUCKDB_ENDING
