"""Soak the executor: `make soak ARGS=--minutes=60`.

In each round threads and worker processes answer a batch of queries on changing databases. Writers in other
processes change them during the batch, with a log (WAL) and without. Between batches they are overwritten in place,
replaced and touched. Workers are killed and batches cancelled meanwhile. Every answer must equal SQLite's on a
shadow copy, for the state before or after the batch. At the end no file remains, and the memory of this process and
of all workers has stopped growing in the first fifth of the time. Exit code 1 reports the violated condition.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from test_processes import workers

from sqlexec_rs import Executor, Job, Limits, Outcome

N_ROWS = 2_000
BATCH = 2_000
THREADS = 2
ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
CHANGE = "UPDATE t SET x = x + {n}, s = 'row ' || (x + {n}) WHERE id % 3 = {n} % 3"
# Stays connected while it has lines to read, so a log and its index remain, too.
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
for line in sys.stdin:
    connection.execute(line)
    print("done", flush=True)
connection.close()
"""


class WrongError(Exception):
    """A condition of the soak is violated."""


class Database:
    """A changing database and its shadow, which only this process reads."""

    def __init__(self, folder: Path, number: int, mode: str) -> None:
        self.path, self.shadow = folder / f"{number}.sqlite", folder.parent / "shadows" / f"{number}.sqlite"
        connection = sqlite3.connect(self.path)
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x INTEGER, s TEXT)")
        rows = ((i, i * 7 % 1_000 + number, f"row {i}") for i in range(N_ROWS))
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.commit()
        connection.close()
        self.has_log, self.changes = mode == "wal", 0
        shutil.copyfile(self.path, self.shadow)
        self.known: dict[str, list[tuple[Any, ...]]] = {}

    def answers(self, queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        """Return the shadow's current answers."""
        connection = sqlite3.connect(self.shadow)
        for sql in set(queries) - self.known.keys():
            self.known[sql] = connection.execute(sql).fetchall()
        connection.close()
        return [self.known[sql] for sql in queries]

    def change(self) -> str:
        """Change the shadow, and return the statement."""
        self.changes += 1
        statement = CHANGE.format(n=self.changes)
        connection = sqlite3.connect(self.shadow)
        connection.execute(statement)
        connection.commit()
        connection.close()
        self.known = {}
        return statement

    def overwrite(self, draw: random.Random) -> str:
        """Copy the shadow's state after a change to the file; return the method."""
        self.change()
        way = draw.choice(["overwritten in place", "replaced", "overwritten with its times kept"])
        if way == "replaced":
            shutil.copyfile(self.shadow, self.path.with_suffix(".new"))
            self.path.with_suffix(".new").replace(self.path)
            return way
        times = self.path.stat()
        shutil.copyfile(self.shadow, self.path)
        if way.endswith("kept"):
            os.utime(self.path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return way


@contextmanager
def writers(databases: Sequence[Database]) -> Iterator[list[subprocess.Popen[str]]]:
    """Keep a writer connected to each database."""
    with ExitStack() as stack:
        result = []
        for database in databases:
            command = [sys.executable, "-c", WRITER, str(database.path)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            result.append(stack.enter_context(process))
        yield result
        for process in result:
            assert process.stdin is not None
            process.stdin.close()


def write(process: subprocess.Popen[str], statement: str) -> None:
    assert process.stdin is not None
    process.stdin.write(statement + "\n")
    process.stdin.flush()


def await_write(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "done\n":
        raise WrongError("a writer could not write")


def query(draw: random.Random) -> str:
    """Return a query; some repeat, and are thus answered from the cache."""
    n = draw.randrange(N_ROWS)
    sql = draw.choice(
        [
            "SELECT x, s FROM t WHERE id = {n}",
            "SELECT count(*), sum(x), min(x), max(x) FROM t",
            "SELECT s FROM t WHERE x % 97 = {m} ORDER BY id LIMIT 5",
            "SELECT count(*) FROM t WHERE s LIKE '%{m}%'",
            "SELECT a.s, b.x FROM t a JOIN t b ON b.id = a.id + 1 WHERE a.id BETWEEN {n} AND {n} + 3 ORDER BY a.id",
            "SELECT x % 10 AS k, count(*), group_concat(id) FROM t WHERE id < 50 GROUP BY k ORDER BY k",
        ]
    )
    return sql.format(n=n, m=n % 97)


def resident(pid: int) -> int:
    """Return the memory of a process in MiB; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


class Soak:
    """The state and counts of a soak."""

    def __init__(self, seed: int, root: Path) -> None:
        self.draw, self.counts = random.Random(seed), Counter[str]()
        for name in ("databases", "shadows"):
            (root / name).mkdir()
        self.folder = root / "databases"
        self.crashed, self.n_crashed = set[tuple[Path, str]](), 0
        self.databases = [Database(self.folder, i, "wal" if i % 2 else "delete") for i in range(8)]

    def round(self, executors: Sequence[Executor], connected: Sequence[tuple[Database, subprocess.Popen[str]]]) -> None:
        """Change, query and compare once. Raises WrongError."""
        draw = self.draw
        written = {id(item) for item, _ in connected}
        for database in self.databases:
            if id(database) not in written and draw.random() < 0.3:
                self.counts[database.overwrite(draw)] += 1
            elif draw.random() < 0.1:
                database.path.touch()
                self.counts["touched"] += 1
        queries = [(draw.choice(self.databases), query(draw)) for _ in range(BATCH)]
        before = self.expected_rows(queries)
        jobs = [executor.submit([(entry.path, sql) for entry, sql in queries]) for executor in executors]
        cancelled = self.meanwhile(executors, connected)
        outcomes = [job.result() for job in jobs]
        for _, process in connected:
            await_write(process)
        after = self.expected_rows(queries)
        for number, job in enumerate(cancelled):
            for index, outcome in enumerate(job.result()):
                if outcome.status == "crashed":
                    self.crash((Path(str(number)), str(index)), outcome)
                elif outcome.status != "cancelled":
                    raise WrongError(f"a cancelled batch holds {outcome!r}")
        for mode, result in zip(("threads", "processes"), outcomes, strict=True):
            for (database, sql), outcome, *wanted in zip(queries, result, before, after, strict=True):
                self.compare(mode, database, sql, outcome, wanted)
        self.n_crashed += len(self.crashed)
        self.crashed = set()

    def expected_rows(self, requests: Sequence[tuple[Database, str]]) -> list[list[tuple[Any, ...]]]:
        of_each = {
            id(database): iter(database.answers([q for other, q in requests if other is database]))
            for database in self.databases
        }
        return [next(of_each[id(item)]) for item, _ in requests]

    def meanwhile(
        self, executors: Sequence[Executor], connected: Sequence[tuple[Database, subprocess.Popen[str]]]
    ) -> list[Job]:
        """Write, kill and cancel while batches run; return the cancelled batches."""
        draw, cancelled = self.draw, []
        for item, process in connected:
            time.sleep(draw.random() * 0.02)
            write(process, item.change())
            self.counts["written to"] += 1
        if draw.random() < 0.2:
            for pid in draw.sample(result := workers(os.getpid()), min(len(result), 1)):
                os.kill(pid, signal.SIGKILL)
                self.counts["workers killed"] += 1
        if draw.random() < 0.2:
            for executor in executors:
                job = executor.submit([(self.databases[0].path, f"{ENDLESS} -- {draw.random()}") for _ in range(4)])
                time.sleep(draw.random() * 0.05)
                job.cancel()
                cancelled.append(job)
                self.counts["batches cancelled"] += 1
        return cancelled

    def crash(self, run: tuple[Path, str], outcome: Outcome) -> None:
        """Count a run that ended with its worker; equal queries of a batch are one run. Raises WrongError."""
        self.crashed.add(run)
        self.counts["answers that a killed worker owed"] += 1
        if self.n_crashed + len(self.crashed) > self.counts["workers killed"]:
            raise WrongError(f"{run}: a worker crashed that nobody killed: {outcome.error}")

    def compare(
        self, mode: str, item: Database, sql: str, outcome: Outcome, wanted: Sequence[list[tuple[Any, ...]]]
    ) -> None:
        self.counts[f"queries in {mode}"] += 1
        if outcome.status == "crashed" and mode == "processes":
            self.crash((item.path, sql), outcome)
        elif outcome.status != "ok":
            raise WrongError(f"{mode}, {item.path.name}: {sql}: {outcome!r} ({outcome.error})")
        elif outcome.rows not in wanted:
            raise WrongError(f"{mode}, {item.path.name}: {sql}: {outcome.rows} is not in {wanted}")
        elif wanted[0] != wanted[1]:
            self.counts["of a state before" if outcome.rows == wanted[0] else "of a state after"] += 1


def soak(soaked: Soak, minutes: float, rest: float) -> None:
    """Repeat rounds until time is up, resting `rest` seconds after each. Raises WrongError."""
    temporary = soaked.folder.with_name("temporary")
    temporary.mkdir()
    os.environ["SQLITE_TMPDIR"] = str(temporary)
    start_time, course = time.monotonic(), []
    with ExitStack() as stack:
        # One of them writes without a log. They end last: writers remove the log, readers do not.
        kept_databases = [
            database for database in soaked.databases if database.has_log or database is soaked.databases[0]
        ]
        connected = list(zip(kept_databases, stack.enter_context(writers(kept_databases)), strict=True))
        executors = [
            stack.enter_context(Executor(THREADS, Limits(timeout_ms=60_000), isolation=way, cache_bytes=4 << 20))
            for way in ("thread", "process")
        ]
        while (passed := time.monotonic() - start_time) < 60 * minutes:
            soaked.round(executors, connected)
            time.sleep(rest)
            course.append((passed, resident(os.getpid()), sum(map(resident, workers(os.getpid())))))
        for executor in executors:
            soaked.counts.update({f"stats: {name}": n for name, n in executor.stats().items() if "crash" in name})
    if workers(os.getpid()):
        raise WrongError("workers are left")
    left = [entry.name for entry in temporary.iterdir()]
    names = {entry.name for entry in soaked.folder.iterdir()} - {item.path.name for item in soaked.databases}
    if left or names:
        raise WrongError(f"files are left: {left} {sorted(names)}")
    settled = [element for element in course if element[0] > 12 * minutes] or course
    first, last = settled[: len(settled) // 8 + 1], settled[-(len(settled) // 8) - 1 :]
    for what, column, room in (("this process", 1, 24), ("all workers", 2, 24)):
        grown = [sorted(sample[column] for sample in part)[len(part) // 2] for part in (first, last)]
        print(f"soak: {what}: {grown[0]} MiB after {minutes / 5:.1f} minutes, {grown[1]} at the end")
        if grown[1] > grown[0] + room:
            raise WrongError(f"{what} grew from {grown[0]} to {grown[1]} MiB")


def main() -> int:
    """Soak, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds between two rounds, for other work in between")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    soaked, failure = Soak(options.seed, root), ""
    try:
        soak(soaked, options.minutes, options.rest)
    except WrongError as error:
        failure = str(error)
    shutil.rmtree(root)
    counted = ", ".join(f"{n:,} {what}" for what, n in soaked.counts.items())
    print(f"soak: seed {options.seed}, {failure or 'nothing wrong'}: {counted}")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
