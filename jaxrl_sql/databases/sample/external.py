"""Open a user's database of another engine: SQL runs on the engine, and prompts show schema and values of a sample.

The sample is a small SQLite file with the first rows of each table. The option `--stand-in` replaces it with the user's
own SQLite file.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.databases.engines.registry import DUCKDB, check_connection, open_reader
from jaxrl_sql.databases.sample.sample import ROWS, sample, sample_id
from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.address import Address, parse_address, url_with_password
from jaxrl_sql.types import InputError

_FORMAT = 2  # changes with the content of samples
_DAY = 24 * 60  # minutes


class ExternalDatabase(NamedTuple):
    """A database on a server, or a DuckDB file.

    `url` is its address for the executor, with the password; `public_url` has none. `sample_path` is the SQLite file
    from which prompts take schema and values. `sample_note` is a message with the path of the sample and its size, or
    "" for the user's own file.
    """

    engine: str
    url: str
    public_url: str
    sample_path: Path
    sample_note: str = ""


def open_external(
    given_url: str, stand_in: Path | None, leave_out: Sequence[str], report: Callable[[str], object]
) -> ExternalDatabase:
    """Return the database of a URL with its sample: the SQLite file `stand_in` if set, else a sample.

    The sample omits the tables and columns `leave_out` (`table`, `table.column`, or either after the schema). It has
    the first 200 rows of each table, and the rows of other tables that their foreign keys reference. It is cached until
    the tables, columns or keys that the role can read change, or a DuckDB file changes; delete it to sample again.
    `report` is called with each difference between sample and database. Raises InputError for an invalid URL, and for a
    server that cannot be reached.
    """
    executor_url = url_with_password(given_url)
    if stand_in is not None and not stand_in.is_file():
        raise InputError(f"--stand-in {stand_in}: no such file")
    if stand_in is not None and leave_out:
        raise InputError(f"--leave-out {leave_out[0]}: --stand-in {stand_in} replaces the sample: give one of the two")
    if given_url.startswith(DUCKDB):
        version = _version(executor_url)
        path_and_note = (stand_in,) if stand_in else _sample(executor_url, version, leave_out, report)
        return ExternalDatabase("duckdb", executor_url, given_url, *path_and_note)
    address = parse_address(given_url)
    if stand_in:
        _check_once(address)
    public_url = address.public_url(address.database)
    path_and_note = (stand_in,) if stand_in else _sample(given_url, public_url, leave_out, report)
    return ExternalDatabase(address.engine, executor_url, public_url, *path_and_note)


def _catalog_digest(url: str) -> str:
    """Return a hash of the tables, columns and keys that the role can read."""
    with closing(open_reader(url)) as reader:
        return _digest(repr(reader.catalog()))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _age(changed: float) -> str:
    """Return the time since a file's change in minutes, hours or days, so that notes of several sets are equal."""
    minutes = int((time.time() - changed) // 60)
    if minutes >= _DAY:
        return quantity(minutes // _DAY, "days")
    return quantity(minutes // 60, "hours") if minutes >= 60 else f"{max(minutes, 0)} min"


@cache
def _check_once(address: Address) -> None:
    """Connect to a database once per process.

    With `--stand-in`, a wrong password or a stopped server would otherwise not be noticed before the first query.
    """
    check_connection(address)


def describe_samples(databases: Sequence[ExternalDatabase]) -> list[str]:
    """Return a message with the sample that prompts show, or a summary for several samples; [] without samples."""
    notes = {database.public_url: database for database in databases if database.sample_note}
    if len(notes) < 2:
        return [database.sample_note for database in notes.values()]
    folder = next(iter(notes.values())).sample_path.parents[3]
    return [
        f"the model sees samples of {len(notes)} databases, {ROWS} rows per table: {folder} (delete it for new ones)"
    ]


def _version(url: str) -> str:
    """Return the URL of a DuckDB file with its size and time of change, which identifies its sample in the cache.

    Raises InputError if it is absent.
    """
    path = Path(url.removeprefix(DUCKDB)).resolve()
    if not path.is_file():
        raise InputError(f"{url}: no such file")
    return f"{DUCKDB}{path} {path.stat().st_size} {path.stat().st_mtime_ns}"


def _sample(url: str, identity: str, leave_out: Sequence[str], report: Callable[[str], object]) -> tuple[Path, str]:
    """Return (path, note) of the cached sample of a database without `leave_out`, or create it.

    `identity` identifies the database in the cache: its URL without the password, or that of a version of a file. A
    server's sample is cached per state of the catalog.
    """
    catalog = "" if url.startswith(DUCKDB) else _catalog_digest(url)
    cache = cache_folder() or Path(tempfile.mkdtemp(prefix="jaxrl_sql-"))
    folder = cache / "samples" / _digest(json.dumps([_FORMAT, identity, sorted(set(leave_out))])) / _digest(catalog)
    name = sample_id(url)
    path = folder / name / f"{name}.sqlite"
    notes = path.with_name("notes.txt")
    if path.is_file():
        for note in notes.read_text(encoding="utf-8").splitlines() if notes.is_file() else ():
            report(note)
        age = _age(path.stat().st_mtime)
        return path, f"the model sees an earlier sample ({age} old): {path.parent} (delete it for a new one)"
    if folder.parent.is_dir():
        report("a new sample: tables, columns or rights have changed since the last one")
    result = sample(url, folder, ROWS, leave_out)
    notes.write_text("".join(f"{note}\n" for note in result.notes), encoding="utf-8")
    for note in result.notes:
        report(note)
    return result.path, f"the model sees a sample of {ROWS} rows per table: {result.path.parent}"
