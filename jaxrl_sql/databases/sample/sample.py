"""Sample a database: the first rows of each table, then the rows that they reference, level by level.

The parents of a row are the rows that its foreign keys reference; their parents are the next level. Each read is a
separate transaction, so a sample of a changing database may hold rows of different times. The number of rows whose
parent is not in the sample is reported: it changed meanwhile, is missing on the server, or is beyond the last level.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxrl_sql.databases.engines.base import DatabaseReader
from jaxrl_sql.databases.engines.catalog import Catalog, CatalogForeignKey, CatalogTable, KeyValues, TablePath, TextRow
from jaxrl_sql.databases.engines.registry import DUCKDB, open_reader
from jaxrl_sql.databases.sample.choose import choose
from jaxrl_sql.databases.sample.file import SampleFile, write_descriptions
from jaxrl_sql.databases.sample.values import KINDS, to_cell
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.address import parse_address
from jaxrl_sql.types import InputError

ROWS = 200
"""First rows per table by default; rows that others reference are read in addition."""

LEVELS = 8
"""Number of levels of parents that are read."""

_KEYS_PER_READ = 500
# SQLite's types of the columns whose values may be NaN on the server.
_WITH_NAN = ("REAL", "NUMERIC")


@dataclass(frozen=True, slots=True)
class SampleReport:
    """The path of a sample, the number of rows by table, and a line for each difference from the server."""

    path: Path
    rows: Mapping[str, int]
    notes: tuple[str, ...]


def sample(
    url: str,
    folder: Path,
    rows: int = ROWS,
    leave_out: Sequence[str] = (),
    report: Callable[[str], object] = lambda _: None,
) -> SampleReport:
    """Write the first `rows` rows of each table, and the rows that they reference, to FOLDER/ID/ID.sqlite.

    `url` is a server's database or `duckdb:FILE`, and ID its name. `leave_out` names tables and columns to omit. The
    comments of columns are written to database_description/ next to the file. `report` is called with a line per read
    table, while no table is locked. Raises InputError for a database that cannot be sampled, and then leaves no file.
    """
    if rows < 1:
        raise InputError(f"--rows {rows}: must be at least 1")
    target = folder / sample_id(url)
    if target.exists():
        raise InputError(f"{target} already exists: remove it, or choose another folder")
    source = open_reader(url)
    scratch = folder / f".{target.name}.{os.getpid()}.partial"
    try:
        chosen = _with_readable_views(source, choose(source.catalog(), leave_out))
        if not chosen.tables:
            more = f"; and {len(chosen.notes) - 3:,} more" if len(chosen.notes) > 3 else ""
            reason = f" ({'; '.join(chosen.notes[:3])}{more})" if chosen.notes else ""
            grants = source.missing_grants(parse_address(url).users if "://" in url else ())
            advice = f". To be run by an owner of the tables: {grants}" if grants else ""
            raise InputError(f"{source.shown}: there is no table that the role can read{reason}{advice}")
        scratch.mkdir(parents=True)
        file = SampleFile(scratch / f"{target.name}.sqlite", chosen, url.partition(":")[0])
        try:
            sampler = _Sampler(source, chosen, file)
            sampler.take_all(rows, report)
            file.commit()
            dangling = sorted(file.count_dangling().items())
        finally:
            file.close()
        notes = [*chosen.notes, *sampler.nan_notes()]
        notes += [
            f"{table}: the sample lacks the parent in {parent} of {quantity(n, 'rows')}"
            for (table, parent), n in dangling
        ]
        notes += write_descriptions(scratch / "database_description", chosen.tables)
        scratch.rename(target)
    finally:
        source.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return SampleReport(target / f"{target.name}.sqlite", sampler.counts, tuple(notes))


def _with_readable_views(source: DatabaseReader, catalog: Catalog) -> Catalog:
    """Return a catalog without views that fail when they are read, for example because of a forbidden function."""
    tables, notes = [], list(catalog.notes)
    for table in catalog.tables:
        try:
            if table.is_view:
                source.first_rows(table, 1)
        except InputError as error:
            notes.append(f"{table.title} is left out: {error}")
        else:
            tables.append(table)
    return catalog._replace(tables=tuple(tables), notes=tuple(notes))


def sample_id(url: str) -> str:
    """Return the name of a database's sample; raises InputError for a URL that cannot be sampled."""
    if url.startswith(DUCKDB):
        return re.sub(r"[^\w-]+", "_", Path(url.removeprefix(DUCKDB)).stem)
    address = parse_address(url)
    if not address.database:
        raise InputError(
            f"{address.shown}: the URL names no database: {address.engine}://USER:PASSWORD@HOST:PORT/DATABASE"
        )
    return re.sub(r"[^\w-]+", "_", address.database)


class _Sampler:
    """Reads rows into a file; `counts` has the number of rows by table.

    A row is identified by its primary key, or by all its values, so that no row is inserted twice. Only the first read
    of a table without a primary key may insert equal rows: there they are different rows.
    """

    def __init__(self, source: DatabaseReader, chosen: Catalog, file: SampleFile) -> None:
        self._source, self._chosen, self._file = source, chosen, file
        self._tables = {table.path: table for table in chosen.tables}
        # The identities of the inserted rows.
        self._seen: dict[TablePath, set[TextRow]] = defaultdict(set)
        # The values of foreign keys whose parents were inserted or looked up.
        self._known: dict[CatalogForeignKey, set[KeyValues]] = defaultdict(set)
        # The tables that have no more than their first rows.
        self._complete: set[TablePath] = set()
        self._nan_counts: Counter[str] = Counter()
        self.counts = {table.name: 0 for table in chosen.tables}

    def take_all(self, rows: int, report: Callable[[str], object]) -> None:
        """Read the first rows of all tables, and their parents."""
        new: dict[TablePath, list[TextRow]] = {}
        for table in self._chosen.tables:
            records = self._source.first_rows(table, rows)
            if len(records) < rows:
                self._complete.add(table.path)
            new[table.path] = self._add(table, records, is_first=True)
            report(f"{table.title}: {quantity(len(records), 'rows')}")
        for _ in range(LEVELS):
            new = self._take_parents(new)
            if not any(new.values()):
                break

    def nan_notes(self) -> list[str]:
        """Return a line for each column in which NaN became NULL."""
        return [f"{column}: NaN became NULL {quantity(count, 'times')}" for column, count in self._nan_counts.items()]

    def _take_parents(self, new: Mapping[TablePath, Sequence[TextRow]]) -> dict[TablePath, list[TextRow]]:
        """Read the rows that new rows reference, and return those that were not read before."""
        parents: dict[TablePath, list[TextRow]] = defaultdict(list)
        for foreign_key in self._chosen.foreign_keys:
            if foreign_key.parent in self._complete:
                continue
            parent = self._tables[foreign_key.parent]
            keys = list(self._new_keys(foreign_key, new.get(foreign_key.child, ())))
            for start in range(0, len(keys), _KEYS_PER_READ):
                records = self._source.parents(parent, foreign_key, keys[start : start + _KEYS_PER_READ])
                parents[parent.path] += self._add(parent, records, is_first=False)
        return parents

    def _new_keys(self, foreign_key: CatalogForeignKey, records: Sequence[TextRow]) -> dict[KeyValues, None]:
        """Return the values of a foreign key in some rows whose parents were neither inserted nor looked up.

        Values with NULL are omitted, because they reference nothing.
        """
        keys = dict.fromkeys(_keys(self._tables[foreign_key.child], foreign_key.columns, records))
        new = {key: None for key in keys if key not in self._known[foreign_key]}
        self._known[foreign_key].update(new)
        return new

    def _add(self, table: CatalogTable, records: Iterable[TextRow], *, is_first: bool) -> list[TextRow]:
        """Insert the rows that were not read before, and return them."""
        indices = [table.names.index(name) for name in table.primary_key]
        seen = self._seen[table.path]
        new = []
        for record in records:
            identity = tuple(record[i] for i in indices) or record
            if identity not in seen or (is_first and not indices):
                new.append(record)
            seen.add(identity)
        for foreign_key in self._chosen.foreign_keys:
            if foreign_key.parent == table.path:
                self._known[foreign_key].update(_keys(table, foreign_key.targets, new))
        kinds = [column.kind for column in table.columns]
        # SQLite stores NaN as NULL.
        for i, column in enumerate(table.columns):
            if KINDS[column.kind].declared in _WITH_NAN and (count := sum(row[i] == "NaN" for row in new)):
                self._nan_counts[f"{table.title}.{column.name}"] += count
        self._file.insert(table, (tuple(map(to_cell, kinds, record)) for record in new))
        self.counts[table.name] += len(new)
        return new


def _keys(table: CatalogTable, names: Sequence[str], records: Iterable[TextRow]) -> Iterable[KeyValues]:
    """Yield the values of the columns `names` in each row, except rows with NULL in them."""
    indices = [table.names.index(name) for name in names]
    for record in records:
        key = tuple(value for i in indices if (value := record[i]) is not None)
        if len(key) == len(indices):
            yield key
