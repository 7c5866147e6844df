"""Copy SQLite files to an engine: plan all copies, then write each, read it back and compare it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxrl_sql.databases.copy.digest import TableDigest
from jaxrl_sql.databases.copy.manifest import Manifest, ManifestEntry, make_entry
from jaxrl_sql.databases.copy.mirror import mirror_path, write_mirror
from jaxrl_sql.databases.copy.plan import plan_copy
from jaxrl_sql.databases.engines.base import DatabaseEngine, DatabaseWriter
from jaxrl_sql.databases.engines.kinds import Converter, Rows, to_real, to_text
from jaxrl_sql.databases.engines.sqlite import SourceFile, SqliteReader, open_source
from jaxrl_sql.databases.engines.tables import CopyPlan, EngineRules, PlannedTable
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import Cell, InputError, JaxrlSqlError

Report = Callable[[str], object]

_MAX_FLOAT = 1.7976931348623157e308


class CopyError(JaxrlSqlError):
    """A copy has other rows than its source."""


class CopyOptions(NamedTuple):
    """Options of a copy.

    `prefix` precedes each name, `readers` may read the copies, `left_out` are omitted (table, column) in lower case,
    and `replaces` replaces texts and floats that the engine cannot store.
    """

    prefix: str = ""
    readers: tuple[str, ...] = ()
    left_out: frozenset[tuple[str, str]] = frozenset()
    replaces: bool = False

    def name(self, db_id: str) -> str:
        """Return the name of a database at its target."""
        return self.prefix + db_id

    @property
    def settings(self) -> dict[str, Any]:
        """Return the options that determine the written rows."""
        return {"left_out": sorted(".".join(pair) for pair in self.left_out), "replace": self.replaces}


def copy_files(
    files: Sequence[SourceFile], target: DatabaseEngine, manifest: Manifest, options: CopyOptions, report: Report
) -> list[ManifestEntry]:
    """Copy files that are not copied yet; return the manifest's entry of each.

    Nothing is written before all copies are planned. Raises InputError for an existing database that is not in the
    manifest and for values that the engine cannot store, and CopyError if the rows that are read back differ.
    """
    _refuse_unknown_columns(files, options)
    pending = [file for file in files if not _is_done(file, target, manifest, options)]
    _refuse_occupied_names(pending, target, manifest, options)
    plans: list[CopyPlan] = []
    for file in pending:
        with open_source(file) as source:
            plans.append(plan_copy(source, target.rules, options.left_out, replaces=options.replaces))
    for file in files:
        if file not in pending:
            manifest.set_path(file)
            _grant_read(target, options, file)
            report(f"{file.db_id}: already copied, {_counts_text(manifest.databases[file.db_id])}")
            continue
        entry = _copy_file(file, plans[pending.index(file)], target, manifest, options)
        report(f"{file.db_id}: copied to {entry['target']}, {_counts_text(entry)}, digests equal")
        for line in entry["notes"]:
            report(f"  {line}")
    return [manifest.databases[file.db_id] for file in files]


def _counts_text(entry: ManifestEntry) -> str:
    tables = entry["tables"].values()
    return f"{quantity(len(tables), 'tables')}, {quantity(sum(table['rows'] for table in tables), 'rows')}"


def _is_done(file: SourceFile, target: DatabaseEngine, manifest: Manifest, options: CopyOptions) -> bool:
    """Return whether the current content of a file is at its target, by the manifest, and the database exists."""
    entry = manifest.databases.get(file.db_id)
    if entry is None or entry["name"] != options.name(file.db_id) or entry["settings"] != options.settings:
        return False
    if not mirror_path(manifest.path.parent, file.db_id).is_file():
        return False
    return entry["source"]["digest"] == file.digest and target.state(entry["name"]) == "full"


def _refuse_occupied_names(
    files: Sequence[SourceFile], target: DatabaseEngine, manifest: Manifest, options: CopyOptions
) -> None:
    names = [options.name(file.db_id) for file in files]
    max_bytes = target.rules.names.length
    for name in names:
        if max_bytes and len(name.encode()) > max_bytes:
            raise InputError(
                f"{name}: longer than the {max_bytes} bytes that a database's name may have: "
                "rename the file, or give a shorter --prefix"
            )
        if "/" in name or "\0" in name:
            raise InputError(f"{name}: invalid name of a database: --prefix must not contain /")
    occupied = [name for name in names if not manifest.was_created_here(name) and target.state(name) == "full"]
    if occupied:
        more = f" and {len(occupied) - 1} more" if occupied[1:] else ""
        raise InputError(
            f"{target.address.display_name(occupied[0])}{more}: not empty, not in {manifest.path}: remove it, or "
            "pass --prefix"
        )


def _refuse_unknown_columns(files: Sequence[SourceFile], options: CopyOptions) -> None:
    unknown = set(options.left_out)
    for file in files if unknown else ():
        for table in read_schema(file.path).tables:
            unknown -= {(table.name.lower(), column.name.lower()) for column in table.columns}
    if unknown:
        raise InputError(f"--leave-out {'.'.join(min(unknown))}: no database has this column")


def _copy_file(
    file: SourceFile, plan: CopyPlan, target: DatabaseEngine, manifest: Manifest, options: CopyOptions
) -> ManifestEntry:
    name = options.name(file.db_id)
    was_created_here = manifest.was_created_here(name)
    manifest.begin(file.db_id, name)
    if was_created_here:
        target.drop(name)
    # The source is closed first: if it has changed, the copy is rolled back.
    with target.open(name) as writer, open_source(file) as source:
        writer.create(plan.tables)
        digests = {}
        for table in plan.tables:
            written = _RowConverter(source, table, target.rules)
            writer.load(table, written.rows())
            digests[table.name] = written.digest
        refusals = writer.finish(plan.tables)
        for table in plan.tables:
            _compare(file, writer, table, digests[table.name])
        path = mirror_path(manifest.path.parent, file.db_id)
        rows = lambda table: _RowConverter(source, table, target.rules).rows()  # noqa: E731
        write_mirror(path, plan.tables, target.rules, rows, file.path)
    _grant_read(target, options, file)
    plan = plan._replace(notes=(*plan.notes, *refusals))
    entry = make_entry(file, name, target.address.display_name(name), plan, digests, options.settings)
    manifest.finish(file.db_id, entry)
    return entry


def _grant_read(target: DatabaseEngine, options: CopyOptions, file: SourceFile) -> None:
    if options.readers:
        target.grant_read(options.name(file.db_id), options.readers)


def _compare(file: SourceFile, writer: DatabaseWriter, table: PlannedTable, expected: TableDigest) -> None:
    digest = TableDigest()
    for rows in writer.read(table):
        digest = digest.plus(rows)
    if digest != expected:
        raise CopyError(
            f"{file.db_id}: the table {table.source.name} differs after copying: "
            f"{quantity(expected.rows, 'rows')} of digest {expected.digest:016x} were written, {digest.rows} of "
            f"{digest.digest:016x} were read"
        )


class _RowConverter:
    """Convert a table's rows for the engine's columns, and compute their digest."""

    def __init__(self, source: SqliteReader, table: PlannedTable, rules: EngineRules) -> None:
        self.source = source
        self.table = table
        self.rules = rules
        self.digest = TableDigest()

    def rows(self) -> Iterator[Rows]:
        """Yield the converted rows."""
        converters = [self._change(i) for i in range(len(self.table.columns))]
        for chunk in self.source.rows(self.table.source.table):
            rows = _convert_rows(chunk, converters) if any(converters) else chunk
            self.digest = self.digest.plus(rows)
            yield rows

    def _change(self, column: int) -> Converter | None:
        """Return the conversion of a column's values, or None."""
        kind, seen = self.table.columns[column].kind, self.table.source.stats[column]
        if kind == "text" and (seen.not_utf8 or (seen.nul and not self.rules.holds_nul)):
            return self._clean_text
        if kind == "real":
            if seen.infinite and not self.rules.holds_infinity:
                return _finite
            return to_real if seen.integers else None
        return to_text if seen.is_mixed else None

    def _clean_text(self, value: Cell) -> Cell:
        text = to_text(value)
        if not isinstance(text, str):
            return text
        clean = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return clean if self.rules.holds_nul else clean.replace("\0", "\ufffd")


def _convert_rows(rows: Rows, converters: Sequence[Converter | None]) -> Rows:
    columns = zip(zip(*rows, strict=True), converters, strict=True)
    return list(zip(*(column if convert is None else map(convert, column) for column, convert in columns), strict=True))


def _finite(value: Cell) -> Cell:
    return max(-_MAX_FLOAT, min(_MAX_FLOAT, float(value))) if isinstance(value, int | float) else value
