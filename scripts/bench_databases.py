"""Measure the speed of queries on many small databases in random order with few open files.

`python scripts/bench_databases.py`: 16,000 databases are copies of one small shop, each with another number. An
executor with at most 900 open files visits them in random order, with one query per visit. The limit of the process
(RLIMIT_NOFILE) is only slightly higher, so an executor that leaves files open fails. The baseline is a new executor
that opens ten such databases cold and closes none. The goal is half of its speed. `--quick` has 300 databases.
"""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any, Self

from harness import Goal, Report, make_parser, ratios, run_turns, time_call

from sqlexec_rs import Executor

GOAL = Goal(0.5)
N_TABLES = 9
N_COLD = 10
N_COLD_ROUNDS = 100
SPARE_FILES = 60  # files that Python and its libraries have open
MARK = 7_777_777_777_777  # six bytes of the first database, replaced by a number in each copy
SQL = "SELECT number FROM identity WHERE id = 1 -- {n}"  # the number prevents a shared run of two visits
COLD = f"{N_COLD} databases opened cold by a new executor"


def make_databases(folder: Path, n: int) -> list[Path]:
    """Write one database with sqlite3, and the others as copies of its bytes with another number."""
    first = folder / "first.sqlite"
    connection = sqlite3.connect(first)
    for i in range(N_TABLES):
        connection.execute(f"CREATE TABLE item{i}(id INTEGER PRIMARY KEY, name TEXT, price REAL, day TEXT)")
        connection.executemany(
            f"INSERT INTO item{i} VALUES (?, 'a name', 0.5, '2026-01-01')", [(j,) for j in range(20)]
        )
    connection.execute("CREATE TABLE identity(id INTEGER PRIMARY KEY, number INTEGER)")
    connection.execute("INSERT INTO identity VALUES (1, ?)", (MARK,))
    connection.commit()
    connection.close()
    content, mark = first.read_bytes(), MARK.to_bytes(6, "big")
    assert content.count(mark) == 1, "the number must occur exactly once"
    paths = []
    for i in range(n):
        path = folder / f"{i % 100:02}" / f"{i}.sqlite"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.replace(mark, number_of(i).to_bytes(6, "big")))
        os.utime(path, (1, 1))  # a recently changed file is read at each visit
        paths.append(path)
    return paths


def number_of(i: int) -> int:
    """Return the number of a database, which SQLite stores in the same number of bytes as the mark."""
    return MARK + 1 + i


class OpenFiles:
    """Counts this process's open files continuously in a separate thread."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, len(os.listdir("/proc/self/fd")))  # noqa: PTH208  a Path per file is slow


def visit(ex: Executor, paths: list[Path], order: list[int]) -> float:
    """Run a query on each database in this order, check every answer, and return the queries per second."""
    pairs = [(paths[i], SQL.format(n=n)) for n, i in enumerate(order)]
    seconds, outcomes = time_call(lambda: ex.execute_many(pairs))
    for i, outcome in zip(order, outcomes, strict=True):
        assert outcome.status == "ok", outcome.error
        assert outcome.rows == [(number_of(i),)], "the answer is another database's"
    return len(order) / seconds


def visit_cold(paths: list[Path], threads: int) -> float:
    """Run one query on each of ten databases in new executors; return the queries per second without their start."""
    rates = []
    for _ in range(N_COLD_ROUNDS):
        with Executor(threads=threads, isolation="thread", cache_bytes=0) as ex:
            rates.append(visit(ex, paths, list(range(N_COLD))))
    return statistics.median(rates)


def visit_many(paths: list[Path], rng: random.Random, max_open: int, threads: int, settings: dict[str, Any]) -> float:
    """Visit all databases in random order with a new executor, and return the queries per second."""
    order = list(range(len(paths)))
    rng.shuffle(order)
    with Executor(threads, isolation="thread", cache_bytes=0, max_open=max_open, **settings) as ex:
        return visit(ex, paths, order)


def main() -> int:
    """Measure the ways to read the databases; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--databases", type=int)
    parser.add_argument("--max-open", type=int, default=900, help="files that the executor may open (default: 900)")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    databases = options.databases or (300 if options.quick else 16_000)
    most_files = options.max_open + SPARE_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    settings: dict[str, dict[str, Any]] = {
        "files": {}, "immutable": {"immutable": True}, "copies": {"copy_up_to_bytes": 1 << 20},
    }  # fmt: skip
    rng = random.Random(0)
    report = Report(options)
    with tempfile.TemporaryDirectory() as folder, OpenFiles() as open_files:
        paths = make_databases(Path(folder), databases)
        for path in paths:
            path.read_bytes()  # the executor is cold, the disk is not
        variants = {COLD: partial(visit_cold, paths, options.threads)}
        for name, values in settings.items():
            many = partial(visit_many, paths, rng, options.max_open, options.threads, values)
            variants[f"{databases:,} databases at random, as {name}"] = many
        rates = run_turns(variants, report.turns, warm_up=0)
    for name, values in rates.items():
        report.add(name, values, "queries/s")
    for name in list(rates)[1:]:
        report.add(f"{name} / cold", ratios(rates[name], rates[COLD]), "x", GOAL)
    report.add("most open files", open_files.peak, "", Goal(most_files, at_most=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
