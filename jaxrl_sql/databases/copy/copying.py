"""Copy SQLite files to an engine: plan all copies, then write each, read it back and compare it.

The rows are compared by a digest: a hash of all rows, independent of their order. A manifest, a JSON file in the output
folder, records finished copies, so that a repeated command copies only new or changed files. Each copy also has a
SQLite mirror there, from which prompts take schema and values.
"""

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
"""Called with each line of progress."""

_MAX_FLOAT = 1.7976931348623157e308


class CopyError(JaxrlSqlError):
    """Raised if a copy has other rows than its source."""


class CopyOptions(NamedTuple):
    """Options of a copy.

    `prefix` precedes the name of each copied database. `readers` are users who get read access. `left_out` has the
    omitted columns as (table, column) in lower case. With `replaces`, texts and floats that the engine cannot store are
    replaced, else they are an error.
    """

    prefix: str = ""
    readers: tuple[str, ...] = ()
    left_out: frozenset[tuple[str, str]] = frozenset()
    replaces: bool = False

    def name(self, db_id: str) -> str:
        """Return the name of the copy of the database `db_id`."""
        return self.prefix + db_id

    @property
    def settings(self) -> dict[str, Any]:
        """Return the options that determine the written rows, for the manifest."""
        return {"left_out": sorted(".".join(pair) for pair in self.left_out), "replace": self.replaces}


def copy_files(
    files: Sequence[SourceFile], target: DatabaseEngine, manifest: Manifest, options: CopyOptions, report: Report
) -> list[ManifestEntry]:
    """Copy the files that are not copied yet; return the manifest's entry of every file.

    Nothing is written before all copies are planned. Raises InputError for an existing database that is not in the
    manifest and for values that the engine cannot store. Raises CopyError if the rows that are read back differ.
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
    """Return whether a file is copied: the manifest has its content, name and settings, and copy and mirror exist."""
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
    # `open_source` ends before `target.open`. If the file has changed meanwhile, it raises, and the copy is rolled
    # back.
    with target.open(name) as writer, open_source(file) as source:
        writer.create(plan.tables)
        digests = {}
        for table in plan.tables:
            converter = _RowConverter(source, table, target.rules)
            writer.load(table, converter.rows())
            digests[table.name] = converter.digest  # complete once all rows are loaded
        rejected_keys = writer.finish(plan.tables)
        for table in plan.tables:
            _compare(file, writer, table, digests[table.name])
        # The mirror gets the same converted rows, which are read from the source again.
        path = mirror_path(manifest.path.parent, file.db_id)
        rows = lambda table: _RowConverter(source, table, target.rules).rows()  # noqa: E731
        write_mirror(path, plan.tables, target.rules, rows, file.path)
    _grant_read(target, options, file)
    plan = plan._replace(notes=(*plan.notes, *rejected_keys))
    entry = make_entry(file, name, target.address.display_name(name), plan, digests, options.settings)
    manifest.finish(file.db_id, entry)
    return entry


def _grant_read(target: DatabaseEngine, options: CopyOptions, file: SourceFile) -> None:
    if options.readers:
        target.grant_read(options.name(file.db_id), options.readers)


def _compare(file: SourceFile, writer: DatabaseWriter, table: PlannedTable, expected: TableDigest) -> None:
    """Read a copied table back; raise CopyError if its digest differs from that of the written rows."""
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
    """Convert a table's rows for the engine's columns; `digest` is that of the rows that `rows` has yielded."""

    def __init__(self, source: SqliteReader, table: PlannedTable, rules: EngineRules) -> None:
        self.source = source
        self.table = table
        self.rules = rules
        self.digest = TableDigest()

    def rows(self) -> Iterator[Rows]:
        """Yield the converted rows."""
        converters = [self._converter(i) for i in range(len(self.table.columns))]
        for chunk in self.source.rows(self.table.source.table):
            rows = _convert_rows(chunk, converters) if any(converters) else chunk
            self.digest = self.digest.plus(rows)
            yield rows

    def _converter(self, column: int) -> Converter | None:
        """Return the conversion of the values of the column with this index, or None if they need none."""
        kind, stats = self.table.columns[column].kind, self.table.source.stats[column]
        if kind == "text" and (stats.not_utf8 or (stats.nul and not self.rules.holds_nul)):
            return self._clean_text
        if kind == "real":
            if stats.infinite and not self.rules.holds_infinity:
                return _clip_infinity
            return to_real if stats.integers else None
        return to_text if stats.is_mixed else None

    def _clean_text(self, value: Cell) -> Cell:
        """Replace invalid UTF-8, and NUL if the engine cannot store it, by the replacement character U+FFFD."""
        text = to_text(value)
        if not isinstance(text, str):
            return text
        clean = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return clean if self.rules.holds_nul else clean.replace("\0", "\ufffd")


def _convert_rows(rows: Rows, converters: Sequence[Converter | None]) -> Rows:
    # Rows are transposed to columns and back, so that only columns with a converter are changed.
    columns = zip(zip(*rows, strict=True), converters, strict=True)
    return list(zip(*(column if convert is None else map(convert, column) for column, convert in columns), strict=True))


def _clip_infinity(value: Cell) -> Cell:
    """Convert a number to a float, and an infinite one to the largest float."""
    return max(-_MAX_FLOAT, min(_MAX_FLOAT, float(value))) if isinstance(value, int | float) else value
