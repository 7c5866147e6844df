"""Run every gold of Spider's dev and train sets, and compare the rows with those of apsw and Python's sqlite3.

apsw has the SQLite version that is bundled here, so its rows must be identical in cells, types and order. Python's
sqlite3 is an older SQLite, whose floats may differ in the last digits. Rows sorted by such a float may then have
another order; both cases are counted separately. Text that is not valid UTF-8 is compared by its bytes. The exit code
is 1 if a figure is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from harness import machine_facts, write_result

from jaxrl_sql.text2sql.schema.sqlite_file import open_read_only
from sqlexec_rs import Executor, Limits, Outcome, sqlite_version

# The golds that fail are errors of Spider (a missing column, for example).
EXPECTED = {"spider_dev": (972, 972), "spider_train": (7_490, 7_493)}
TIMEOUT_MS = 60_000
VERDICTS = ("identical", "last digits", "order of ties", "different", "both fail", "only ours fails", "only they fail")

Rows = list[tuple[object, ...]]
# Arguments: a database, SQL and the number of its columns.
Fetch = Callable[[Path, str, int], Rows]


@dataclass(frozen=True)
class Gold:
    """A gold SQL and its database."""

    uid: str
    path: Path
    sql: str


@dataclass
class Tally:
    """The counts and seconds of one data set."""

    name: str
    statuses: Counter[str] = field(default_factory=Counter)
    differing: dict[str, Counter[str]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def read_golds(folder: Path) -> list[Gold]:
    """Return the golds of a data set in the order of its file."""
    golds = []
    for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        path = folder / "databases" / row["db_id"] / f"{row['db_id']}.sqlite"
        golds.append(Gold(str(row["id"]), path, row["sql"]))
    return golds


def decode(raw: bytes) -> str:
    """Decode text as the executor does: invalid UTF-8 becomes surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


def fetch_sqlite3(connections: dict[Path, sqlite3.Connection]) -> Fetch:
    """Return a function that runs SQL with Python's sqlite3 on open connections."""

    def fetch(path: Path, sql: str, _width: int) -> Rows:
        if path not in connections:
            connections[path] = open_read_only(path)
            connections[path].text_factory = decode
        return connections[path].execute(sql).fetchall()

    return fetch


def fetch_apsw(connections: dict[Path, apsw.Connection]) -> Fetch:
    """Return a function that runs SQL with apsw on open connections.

    apsw rejects text that is not UTF-8, so such a query runs again with every text column cast to a blob.
    """

    def fetch(path: Path, sql: str, width: int) -> Rows:
        if path not in connections:
            connections[path] = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return list(connections[path].execute(sql))
        except UnicodeDecodeError:
            return fetch_as_bytes(connections[path], sql, width)

    return fetch


def fetch_as_bytes(connection: apsw.Connection, sql: str, width: int) -> Rows:
    """Fetch rows with text cast to blobs in SQL and decoded here."""
    names = ", ".join(f"c{i}" for i in range(width))
    cell = "typeof(c{0}), CASE typeof(c{0}) WHEN 'text' THEN CAST(c{0} AS BLOB) ELSE c{0} END"
    cells = ", ".join(cell.format(i) for i in range(width))
    rows = connection.execute(f"WITH q({names}) AS ({sql.strip().rstrip(';')}) SELECT {cells} FROM q")
    return [
        tuple(decode(value) if kind == "text" else value for kind, value in zip(row[::2], row[1::2], strict=True))
        for row in rows
    ]


def same(left: Sequence[object], right: Sequence[object]) -> bool:
    """Return whether two rows are equal cell by cell and type by type."""
    return len(left) == len(right) and all(type(a) is type(b) and a == b for a, b in zip(left, right, strict=True))


def nearly_same(left: Sequence[object], right: Sequence[object]) -> bool:
    """Return whether two rows differ at most in the last digits of floats."""
    if len(left) != len(right):
        return False
    return all(map(nearly_equal, left, right))


def nearly_equal(left: object, right: object) -> bool:
    """Return whether two values are equal, or floats that differ at most in the last digits."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-300)
    return same([left], [right])


def round_key(row: Sequence[object]) -> str:
    """Return a sort key for rows that does not depend on the last digits of floats."""
    return repr([f"{value:.9g}" if isinstance(value, float) else value for value in row])


def verdict(ours: Rows, theirs: Rows) -> str:
    """Compare two lists of rows: `identical`, `last digits`, `order of ties` or `different`."""
    if len(ours) != len(theirs):
        return "different"
    if all(map(same, ours, theirs)):
        return "identical"
    if all(map(nearly_same, ours, theirs)):
        return "last digits"
    is_reordered = all(map(nearly_same, sorted(ours, key=round_key), sorted(theirs, key=round_key)))
    return "order of ties" if is_reordered else "different"


def compare(gold: Gold, outcome: Outcome, fetch: Fetch, errors: tuple[type[Exception], ...]) -> str:
    """Run a gold in the other library and compare: a verdict, or which side failed."""
    try:
        theirs = fetch(gold.path, gold.sql, len(outcome.columns))
    except errors:
        return "both fail" if outcome.status != "ok" else "only they fail"
    if outcome.status != "ok":
        return "only ours fails"
    return verdict(outcome.rows, theirs)


def check(folder: Path, executor: Executor, limit: int | None) -> Tally:
    """Run and compare the golds of one data set."""
    golds = read_golds(folder)[:limit]
    tally = Tally(folder.name)
    begun = time.perf_counter()
    outcomes = executor.execute_many([(gold.path, gold.sql) for gold in golds])
    tally.seconds["executor"] = time.perf_counter() - begun
    tally.statuses.update(outcome.status for outcome in outcomes)
    tally.failed = [f"{g.uid}: {o.status}: {o.error}" for g, o in zip(golds, outcomes, strict=True) if o.status != "ok"]
    others: list[tuple[str, Fetch, tuple[type[Exception], ...]]] = [
        (f"apsw {apsw.sqlite_lib_version()}", fetch_apsw({}), (apsw.Error,)),
        (f"sqlite3 {sqlite3.sqlite_version}", fetch_sqlite3({}), (sqlite3.Error,)),
    ]
    for name, fetch, errors in others:
        begun = time.perf_counter()
        verdicts = tally.differing.setdefault(name, Counter())
        for gold, outcome in zip(golds, outcomes, strict=True):
            result = compare(gold, outcome, fetch, errors)
            verdicts[result] += 1
            if result not in {"identical", "both fail", "last digits"}:
                tally.failed.append(f"{gold.uid}: {name}: {result}: {gold.sql}")
        tally.seconds[name] = time.perf_counter() - begun
    return tally


def show(tally: Tally) -> None:
    """Print the table of one data set."""
    total = tally.statuses.total()
    print(f"\n{tally.name}: {tally.statuses['ok']:,} of {total:,} golds run; {dict(tally.statuses)}")
    print(f"  {'compared with':<18}" + "".join(f"{column:>17}" for column in VERDICTS) + f"{'seconds':>10}")
    for name, verdicts in tally.differing.items():
        counts = "".join(f"{verdicts[column]:>17,}" for column in VERDICTS)
        print(f"  {name:<18}{counts}{tally.seconds[name]:>10.2f}")
    print(f"  executor: {tally.seconds['executor']:.2f} s for all, {total / tally.seconds['executor']:,.0f} queries/s")
    for line in tally.failed:
        print(f"  - {line}")


def rows_of(tally: Tally) -> Iterator[dict[str, object]]:
    """Yield the counts of one data set as rows of a JSON result."""
    counts = {"golds": tally.statuses.total(), "run": tally.statuses["ok"]}
    for name, verdicts in tally.differing.items():
        counts[f"rows equal to {name}"] = verdicts["identical"]
        counts[f"differ from {name}"] = sum(verdicts[each] for each in VERDICTS[1:4])
    for column, count in counts.items():
        yield {"name": tally.name, "column": column, "median": count}


def is_as_expected(tally: Tally) -> bool:
    """Return whether the expected number of golds ran, and apsw agrees on every row."""
    expected = EXPECTED.get(tally.name)
    counts = (tally.statuses["ok"], tally.statuses.total())
    of_apsw = next(iter(tally.differing.values()))
    agrees = all(of_apsw[bad] == 0 for bad in VERDICTS if bad not in {"identical", "both fail"})
    of_sqlite3 = list(tally.differing.values())[1]
    return (expected is None or counts == expected) and agrees and of_sqlite3["different"] == 0


def main() -> int:
    """Check the sets, print the tables and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("JAXRL_SQL_DATA"), help="default: $JAXRL_SQL_DATA")
    parser.add_argument("--sets", nargs="+", default=list(EXPECTED))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts and facts of the machine")
    parser.add_argument("--limit", type=int, help="golds of each set; default all (the expected counts are of all)")
    args = parser.parse_args()
    if args.data is None or not Path(args.data).is_dir():
        print("check_golds: give --data DIR or set JAXRL_SQL_DATA to the folder with spider_dev and spider_train")
        return 2
    if apsw.sqlite_lib_version() != sqlite_version():
        print(f"check_golds: apsw has SQLite {apsw.sqlite_lib_version()}, the executor {sqlite_version()}")
        return 2
    print(f"executor with SQLite {sqlite_version()}")
    with Executor(limits=Limits(timeout_ms=TIMEOUT_MS)) as executor:
        tallies = [check(Path(args.data) / name, executor, args.limit) for name in args.sets]
    for tally in tallies:
        show(tally)
    if args.json is not None:
        write_result(args.json, [row for tally in tallies for row in rows_of(tally)], machine_facts())
    is_good = all(is_as_expected(tally) for tally in tallies)
    print("\ncheck_golds: as expected" if is_good else "\ncheck_golds: NOT as expected")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
