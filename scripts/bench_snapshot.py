"""Measure a snapshot of 300 tables and 10 million rows: minutes, peak memory, and what others wait for meanwhile.

`python scripts/bench_snapshot.py`: a server is started in a temporary folder, filled, and stopped at the end; with
`--engine mariadb` MariaDB's. While the snapshot is taken, one session changes rows of all tables and another changes
the definitions of tables, which needs each for itself, the largest table's every second time; what is printed is the
longest that either waited, beside the longest without a snapshot. Exit code 1 when a goal is missed (ten minutes, a
second of waiting); `--quick` only shows that all of it works.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import psycopg2
import pymysql

from jaxrl_sql.datagen.snapshot.take import snapshot
from sqlexec_rs import servers

TABLES = 300
LEVELS = 6  # tables of a level refer to tables of the level above it
LARGEST_SHARE = 0.4  # of all rows are in one table
GOAL_SECONDS = 600.0
GOAL_WAIT = 1.0


class Dialect(NamedTuple):
    """How a server spells things; `i` is the number of a row, from 1 to `{n}`."""

    moment: str
    divided: str
    values: str
    series: str
    unchecked: str
    before: str
    after: tuple[str, ...]


DIALECTS = {
    "postgresql": Dialect(
        "timestamptz",
        "/",
        "'name ' || i, 'kind ' || i % 97, i / 4.0, date '2000-01-01' + i % 9000,"
        " timestamptz '2020-01-01' + i * interval '1 minute', i % 3 = 0,"
        " CASE WHEN i % 5 > 0 THEN 'a note of some words ' || i END",
        "generate_series(1, {n}) AS i",
        "NOT VALID",
        "SELECT 1",
        # Who waits for a vacuum, waits a second until it is called off: that is not what is measured.
        ("ANALYZE", "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"),
    ),
    "mariadb": Dialect(
        "timestamp NULL",
        "DIV",
        "CONCAT('name ', i), CONCAT('kind ', i % 97), i / 4, DATE '2000-01-01' + INTERVAL i % 9000 DAY,"
        " TIMESTAMP '2020-01-01 00:00:00' + INTERVAL i MINUTE, i % 3 = 0,"
        " IF(i % 5, CONCAT('a note of some words ', i), NULL)",
        "(SELECT CAST(seq AS SIGNED) AS i FROM seq_1_to_{n}) AS numbers",
        "",
        "SET foreign_key_checks = 0",
        (),
    ),
}


def connect(engine: str, url: str) -> Any:
    """Return a connection in which each statement is a transaction of its own."""
    if engine == "postgresql":
        connection = psycopg2.connect(url)
        connection.autocommit = True
        return connection
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "", port=parts.port or 0, user=parts.username, password=parts.password or "",
        database=parts.path[1:], autocommit=True,
    )  # fmt: skip


def fill(engine: str, url: str, rows: int) -> list[int]:
    """Make the tables and return how many rows each has: one large, the others of sizes from small to large."""
    dialect = DIALECTS[engine]
    weights = [1.0 / (1 + i % 60) for i in range(TABLES - 1)]
    rest = rows * (1 - LARGEST_SHARE) / sum(weights)
    sizes = [int(rows * LARGEST_SHARE), *(max(10, int(weight * rest)) for weight in weights)]
    with closing(connect(engine, url)) as connection, connection.cursor() as cursor:
        cursor.execute(dialect.before)
        for i, size in enumerate(sizes):
            # Two parents among the tables of the level above, and every tenth table refers to itself.
            above = [one for one in range(1, i) if one % LEVELS == (i - 1) % LEVELS] if i % LEVELS else []
            parents = [above[(i * k) % len(above)] for k in (1, 3)] if above else []
            keys = {f"p{k}": parent for k, parent in enumerate(parents)} | ({"own": i} if i % 10 == 9 else {})
            values = [f"1 + i * {7 + 4 * k} % {sizes[parent]}" for k, parent in enumerate(parents)]
            values += [f"nullif(i {dialect.divided} 4, 0)"] * (i % 10 == 9)
            cursor.execute(
                f"CREATE TABLE t{i:03}(id int PRIMARY KEY, {''.join(f'{name} int, ' for name in keys)}"
                f" name varchar(30), kind varchar(12), amount numeric(10, 2), day date, at {dialect.moment},"
                " flag boolean, note varchar(60))"
            )
            source = dialect.series.format(n=size)
            cursor.execute(f"INSERT INTO t{i:03} SELECT {', '.join(['i', *values, dialect.values])} FROM {source}")
            for name, parent in keys.items():
                reference = f"FOREIGN KEY ({name}) REFERENCES t{parent:03}(id) {dialect.unchecked}"
                cursor.execute(f"ALTER TABLE t{i:03} ADD {reference}")
        for statement in dialect.after:
            cursor.execute(statement)
    return sizes


class Waits:
    """How long statements of a session take: the longest, and how many there were."""

    def __init__(self, connection: Any, statement: Callable[[int], str]) -> None:
        self._connection, self._statement = connection, statement
        self._is_done = threading.Event()
        self.longest, self.count = 0.0, 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._connection) as connection, connection.cursor() as cursor:
            while not self._is_done.wait(0.01):
                begun = time.monotonic()
                cursor.execute(self._statement(self.count))
                self.longest = max(self.longest, time.monotonic() - begun)
                self.count += 1


def change_schema(count: int) -> str:
    """Return a change that needs a table for itself, as ADD COLUMN does: every second one of the largest table."""
    name = "t000" if count % 2 else f"t{count % TABLES:03}"
    return f"ALTER TABLE {name} ALTER COLUMN note SET DEFAULT '{count}'"


def change_rows(count: int) -> str:
    """Return a change of some rows."""
    return f"UPDATE t{count * 7 % TABLES:03} SET flag = NOT flag WHERE id BETWEEN {count % 1000} AND {count % 1000 + 9}"


def watch(engine: str, url: str, work: Callable[[], object]) -> tuple[float, Waits, Waits]:
    """Do some work beside both sessions; return its seconds and how they waited."""
    sessions = [connect(engine, url), connect(engine, url)]
    with Waits(sessions[0], change_schema) as schema, Waits(sessions[1], change_rows) as rows:
        begun = time.monotonic()
        work()
        seconds = time.monotonic() - begun
    return seconds, schema, rows


def take(url: str, folder: Path, rows: int) -> None:
    """Take a snapshot in a process of its own, and print what it came to."""
    begun = time.monotonic()
    report = snapshot(url, folder, rows)
    seconds = time.monotonic() - begun
    kept = sum(count.kept for count in report.tables.values())
    of = sum(count.rows for count in report.tables.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = report.path.stat().st_size / 2**20
    more = sum(count.kept > rows for count in report.tables.values())
    print(
        f"--rows {rows}: {kept:,} of {of:,} rows of {len(report.tables)} tables ({more} of more than {rows:,})"
        f" in {seconds:.1f} s, peak memory {peak:.0f} MiB, file {size:.0f} MiB",
        flush=True,
    )


def main() -> int:
    """Run the benchmark; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=DIALECTS, default="postgresql")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of all tables")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--take", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.take:
        take(os.environ["SNAPSHOT_URL"], Path(options.take[0]), int(options.take[1]))
        return 0
    is_missed = False
    with tempfile.TemporaryDirectory(prefix="bench-snapshot-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = servers.start(options.engine, folder / "server")
        try:
            begun = time.monotonic()
            sizes = fill(options.engine, server.owner, options.rows // 100 if options.quick else options.rows)
            print(f"{len(sizes)} tables, {sum(sizes):,} rows, the largest {max(sizes):,}:"
                  f" made in {time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
            _, schema, changed = watch(options.engine, server.owner, lambda: time.sleep(1 if options.quick else 20))
            print(f"alone: ALTER TABLE at most {schema.longest:.2f} s, UPDATE {changed.longest:.2f} s", flush=True)
            for most in (1_000, 10_000):
                command = [sys.executable, __file__, "--take", str(folder / str(most)), str(most)]

                def run(command: list[str] = command) -> None:
                    subprocess.run(command, check=True, env={**os.environ, "SNAPSHOT_URL": server.reader})

                seconds, schema, changed = watch(options.engine, server.owner, run)
                print(f"  beside it: {schema.count:,} ALTER TABLE, at most {schema.longest:.2f} s;"
                      f" {changed.count:,} UPDATE, at most {changed.longest:.2f} s", flush=True)  # fmt: skip
                is_missed |= seconds > GOAL_SECONDS or schema.longest > GOAL_WAIT
        finally:
            server.stop()
    return int(is_missed and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
