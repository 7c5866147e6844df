"""A user's database on a server: its SQL runs there, and a small sample shows its schema and values."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.databases.engines.registry import DUCKDB
from jaxrl_sql.databases.sample.sample import ROWS, sample, sample_id
from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.text2sql.env.address import open_url, parse_address
from jaxrl_sql.types import InputError


class ServedDatabase(NamedTuple):
    """A database of another engine than SQLite: engine, URL, URL without its password, and the file that shows it."""

    engine: str
    url: str
    public_url: str
    shown_by: Path


def open_served(
    text: str, stand_in: Path | None, leave_out: Sequence[str], report: Callable[[str], object]
) -> ServedDatabase:
    """Return a database with the SQLite file that shows it: `stand_in`, or a sample without some tables and columns.

    A sample has 200 rows per table, and their parents. It is cached; delete it to sample again. A DuckDB file that
    has changed is sampled again. Raises InputError for an invalid URL, and a server that cannot be reached.
    """
    url = open_url(text)
    if stand_in is not None and not stand_in.is_file():
        raise InputError(f"--stand-in {stand_in}: no such file")
    if stand_in is not None and leave_out:
        raise InputError(f"--leave-out {leave_out[0]}: a sample leaves it out; --stand-in {stand_in} is shown as it is")
    if text.startswith(DUCKDB):
        return ServedDatabase("duckdb", url, text, stand_in or _sample(url, _version(url), leave_out, report))
    address = parse_address(text)
    public_url = address.public_url(address.database)
    return ServedDatabase(address.engine, url, public_url, stand_in or _sample(text, public_url, leave_out, report))


def _version(url: str) -> str:
    """Return the URL of a DuckDB file with its size and time; raises InputError if it is absent."""
    path = Path(url.removeprefix(DUCKDB)).resolve()
    if not path.is_file():
        raise InputError(f"{url}: no such file")
    return f"{DUCKDB}{path} {path.stat().st_size} {path.stat().st_mtime_ns}"


def _sample(url: str, public_url: str, leave_out: Sequence[str], report: Callable[[str], object]) -> Path:
    """Return the cached sample of a server's database without some tables and columns, or take it."""
    cache = cache_folder() or Path(tempfile.mkdtemp(prefix="jaxrl_sql-"))
    identity = json.dumps([public_url, sorted(set(leave_out))])
    folder = cache / "samples" / hashlib.blake2b(identity.encode(), digest_size=10).hexdigest()
    name = sample_id(url)
    path = folder / name / f"{name}.sqlite"
    notes = path.with_name("notes.txt")
    if path.is_file():
        for note in notes.read_text(encoding="utf-8").splitlines() if notes.is_file() else ():
            report(note)
        report(f"an earlier sample shows the database: {path} (delete {path.parent} for a new one)")
        return path
    result = sample(url, folder, ROWS, leave_out)
    notes.write_text("".join(f"{note}\n" for note in result.notes), encoding="utf-8")
    for note in result.notes:
        report(note)
    report(f"a sample of {ROWS} rows per table shows the database: {result.path}")
    return result.path
