"""Take a sample out of a server's database: one SQLite file that is consistent, closed under foreign keys, and small.

Rows are chosen by a hash of their primary keys, so that the same seed chooses the same rows. Tables are taken children
first: of a parent the rows that its children need come first, and chosen ones fill up to the number that was asked for.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxrl_sql.datagen.snapshot.closure import Choice, Node, Reference, Row, choose, explore, group_tables
from jaxrl_sql.datagen.snapshot.file import SnapshotFile, table_statistics, write_descriptions, write_statistics
from jaxrl_sql.datagen.snapshot.masking import Masker
from jaxrl_sql.datagen.snapshot.mysql import MysqlSource
from jaxrl_sql.datagen.snapshot.plan import Key, Plan, Record, Source, TablePlan, TableSample, make_plan
from jaxrl_sql.datagen.snapshot.postgresql import PostgresqlSource
from jaxrl_sql.datagen.snapshot.values import KINDS, make_converter
from jaxrl_sql.runtime.arguments import Parser
from jaxrl_sql.sqlenv.address import Address, parse_address
from jaxrl_sql.types import Cell, InputError

_KEY_BYTES = 16
_SOURCES: Mapping[str, Callable[[Address], Source]] = {"postgresql": PostgresqlSource, "mysql": MysqlSource}
_WITH_NAN = ("REAL", "NUMERIC")


@dataclass(frozen=True, slots=True)
class TableCount:
    """How many rows a table has on the server, and how many of them the copy has."""

    rows: int
    kept: int


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """Where the copy is, the tables by name, and a line for whatever is not as on the server."""

    path: Path
    tables: Mapping[str, TableCount]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return what the command prints at its end."""
        kept, rows = (sum(getattr(one, name) for one in self.tables.values()) for name in ("kept", "rows"))
        return [*self.notes, f"{self.path}: {kept} of {rows} rows of {len(self.tables)} tables"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a snapshot to a command's."""
    parser.add_argument("--rows", type=int, default=1_000, help="rows a table at most, but for parents; default 1000")
    for option, text in (
        ("--leave-out", "columns, or whole tables, not to be copied"),
        ("--mask", "columns whose values are masked"),
    ):
        parser.add_argument(option, nargs="+", action="extend", default=[], metavar="TABLE.COLUMN", help=text)
    parser.add_argument("--mask-key", type=Path, metavar="FILE", help="same key, same masks; default: a random one")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same rows; default 0")


def copy_out(arguments: Sequence[str]) -> None:
    """Take a snapshot as `--from URL --to FOLDER` and further options say, and print what was kept."""
    parser = Parser(
        prog="python -m jaxrl_sql.datagen.copy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", required=True, help="postgresql:// or mysql://USER:PASSWORD@HOST/NAME")
    parser.add_argument("--to", type=Path, required=True, help="folder to write to")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    report = snapshot(
        options.source,
        options.to,
        options.rows,
        leave_out=options.leave_out,
        mask=options.mask,
        mask_key=None if options.mask_key is None else _read_key(options.mask_key),
        seed=options.seed,
        report=_show,
    )
    sys.stdout.write("\n".join(report.lines()) + "\n")


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise InputError(f"--mask-key {path}: {error.strerror}") from None
    if len(key) < _KEY_BYTES:
        raise InputError(f"--mask-key {path}: {len(key)} bytes are too few for a secret: {_KEY_BYTES} are needed")
    return key


def snapshot(
    url: str,
    folder: Path,
    rows: int,
    *,
    leave_out: Sequence[str] = (),
    mask: Sequence[str] = (),
    mask_key: bytes | None = None,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> SnapshotReport:
    """Copy at most `rows` rows of each table, and what they refer to, into FOLDER/ID/ID.sqlite.

    Beside the file are ID.statistics.json, of the whole database, and database_description/, what is written about
    columns. Columns and tables are left out and columns masked by name; without a `mask_key` masks differ from one
    snapshot to the next. `report` is called with a line for each table, while no table is locked. Raises InputError,
    and leaves nothing behind.
    """
    if rows < 1:
        raise InputError(f"--rows {rows}: at least 1")
    address = parse_address(url).single
    target = folder / _db_id(address)
    if target.exists():
        raise InputError(f"{target} is there already: remove it, or give another folder")
    source = _SOURCES[address.engine](address)
    scratch = folder / f".{target.name}.{os.getpid()}.partial"
    try:
        plan = make_plan(source.read_catalog(), leave_out, mask)
        if not plan.tables:
            raise InputError(f"{address.named(address.database)}: there is no table that the role can read")
        scratch.mkdir(parents=True)
        file = SnapshotFile(scratch / f"{target.name}.sqlite", plan)
        try:
            sampler = _Sampler(source, plan, file, rows, seed, Masker(mask_key or secrets.token_bytes(32)), report)
            sampler.take_all()
            orphans = [
                f"{table}: {count} rows refer to rows of {parent} that are not to be seen on the server either"
                for (table, parent), count in sorted(file.count_orphans().items())
            ]
            statistics = {
                name: table_statistics(table, sampler.samples[name], sampler.kept[name], file, plan)
                for name, table in plan.tables.items()
            }
            file.commit()
        finally:
            file.close()
        notes = [*plan.notes, *sampler.notes, *orphans]
        notes += write_descriptions(scratch / "database_description", plan)
        facts = {**source.describe(), "seed": seed, "rows": rows, "notes": notes, "tables": statistics}
        write_statistics(scratch / f"{target.name}.statistics.json", facts)
        scratch.rename(target)
    finally:
        source.close()
        shutil.rmtree(scratch, ignore_errors=True)
    counts = {name: TableCount(sampler.samples[name].row_count, sampler.kept[name]) for name in plan.tables}
    return SnapshotReport(target / f"{target.name}.sqlite", counts, tuple(notes))


def _db_id(address: Address) -> str:
    if address.engine not in _SOURCES:
        raise InputError(f"{address.shown}: a sample is taken of {' or '.join(f'{name}://' for name in _SOURCES)}")
    if not address.database:
        raise InputError(
            f"{address.shown}: the URL names no database: {address.engine}://USER:PASSWORD@HOST:PORT/DATABASE"
        )
    return re.sub(r"[^\w-]+", "_", address.database)


class _Sampler:
    """Takes the tables of a plan, children first; `samples` and `kept` are by table."""

    def __init__(
        self,
        source: Source,
        plan: Plan,
        file: SnapshotFile,
        limit: int,
        seed: int,
        masker: Masker,
        report: Callable[[str], None],
    ) -> None:
        self._source, self._plan, self._file = source, plan, file
        self._limit, self._seed, self._masker, self._report = limit, seed, masker, report
        self._wanted: dict[Reference, set[Key]] = defaultdict(set)
        self.samples: dict[str, TableSample] = {}
        self.kept: dict[str, int] = {}
        self.notes: list[str] = []

    def take_all(self) -> None:
        """Take all tables."""
        for group in group_tables([*self._plan.tables], self._plan.references):
            self._take_group(group)

    def _take_group(self, group: Sequence[str]) -> None:
        for name in group:
            self.samples[name] = self._source.sample(self._plan.tables[name], self._limit, self._seed)
        inner = [one for one in self._plan.references if one.child in group and one.parent in group]
        choice = self._choose(group, inner)
        for name in group:
            rows = choice.kept[name]
            self.kept[name] = len(rows)
            outer = [one for one in self._plan.references if one.child == name and one.parent not in group]
            self._copy(self._plan.tables[name], rows, outer)
            total = self.samples[name].row_count
            self._report(f"{self._plan.tables[name].source.title}: {len(rows)} of {total} rows")
            if len(rows) > self._limit:
                self.notes.append(
                    f"{self._plan.tables[name].source.title}: {len(rows) - self._limit} rows more than {self._limit}, "
                    "as kept rows refer to them"
                )

    def _choose(self, group: Sequence[str], inner: Sequence[Reference]) -> Choice:
        """Choose rows of tables that refer to one another, or of one table alone."""
        candidates = {name: self.samples[name].rows for name in group}
        if all(self._is_whole(name) for name in group):
            return Choice(candidates, ())
        needed = self._needed(group)
        if not inner:
            rows = dict.fromkeys([*needed, *((name, row) for name in group for row in candidates[name])], ())
            return choose(self._limit, candidates, rows, needed)

        def parents_of(nodes: Sequence[Node]) -> Mapping[Node, Sequence[Node]]:
            return self._parents(nodes, inner)

        starts = [(name, row) for name in group for row in candidates[name]]
        graph = explore(starts, parents_of, self._limit + 1, explore(needed, parents_of))
        choice = choose(self._limit, candidates, graph, needed)
        while choice.empty:  # no row fits with what it refers to: the first is kept all the same
            needed.append((choice.empty[0], candidates[choice.empty[0]][0]))
            graph = explore(needed, parents_of, None, graph)
            choice = choose(self._limit, candidates, graph, needed)
        return choice

    def _is_whole(self, name: str) -> bool:
        return self.samples[name].row_count <= self._limit

    def _needed(self, group: Sequence[str]) -> list[Node]:
        """Return the rows that kept rows of other tables refer to; all of a whole table are kept anyway."""
        nodes: dict[Node, None] = {}
        for reference, server in self._plan.references.items():
            if reference.parent not in group or reference.child in group:
                continue
            keys = self._wanted.pop(reference, set())
            if keys and not self._is_whole(reference.parent):
                found = self._source.find(self._plan.tables[reference.parent], server, sorted(keys))
                nodes |= dict.fromkeys((reference.parent, row) for row in found if row is not None)
        return list(nodes)

    def _parents(self, nodes: Sequence[Node], references: Sequence[Reference]) -> Mapping[Node, Sequence[Node]]:
        """Return the rows to which rows refer by some references."""
        parents: dict[Node, list[Node]] = defaultdict(list)
        for name in dict.fromkeys(name for name, _ in nodes):
            own = [one for one in references if one.child == name]
            columns = list(dict.fromkeys(column for one in own for column in one.columns))
            read: list[tuple[Row, Record]] = []
            self._source.read(
                self._plan.tables[name], columns, [row for other, row in nodes if other == name], read.extend
            )
            for one in own:
                places = [columns.index(column) for column in one.columns]
                children: dict[Key, list[Row]] = defaultdict(list)
                for row, record in read:
                    if (key := _key(record, places)) is not None:
                        children[key].append(row)
                found = self._source.find(self._plan.tables[one.parent], self._plan.references[one], list(children))
                for rows, parent in zip(children.values(), found, strict=True):
                    for row in rows:
                        parents[name, row] += [] if parent is None else [(one.parent, parent)]
        return parents

    def _copy(self, table: TablePlan, rows: Sequence[Row], references: Sequence[Reference]) -> None:
        """Copy rows, masked, and remember to which rows they refer."""
        converters = [
            make_converter(
                column.kind, self._masker.kinds[KINDS[column.kind].mask] if column.name in table.masked else None
            )
            for column in table.columns
        ]
        names = table.names
        reals = [place for place, column in enumerate(table.columns) if KINDS[column.kind].declared in _WITH_NAN]
        lost: Counter[str] = Counter()
        places = [(self._wanted[one], [names.index(column) for column in one.columns]) for one in references]

        def take(records: list[tuple[Row, Record]]) -> None:
            cells: list[tuple[Cell, ...]] = []
            for _, record in records:
                for wanted, columns in places:
                    if (key := _key(record, columns)) is not None:
                        wanted.add(key)
                cells.append(tuple(convert(text) for convert, text in zip(converters, record, strict=True)))
                lost.update(names[place] for place in reals if record[place] == "NaN")
            self._file.insert(table, cells)

        self._source.read(table, names, rows, take)
        title = table.source.title
        self.notes += [f"{title}.{name}: NaN became NULL {count} times" for name, count in lost.items()]


def _key(record: Record, places: Sequence[int]) -> Key | None:
    """Return the key to which a row refers; None where a part of it is NULL, as then it refers to none."""
    key = tuple(value for place in places if (value := record[place]) is not None)
    return key if len(key) == len(places) else None
