"""Measure a snapshot of 300 tables and 10 million rows: minutes, peak memory, and what others wait for meanwhile.

`python scripts/bench_snapshot.py`: a PostgreSQL server is started in a temporary folder, filled, and stopped at the
end. While the snapshot is taken, one session changes rows of all tables and another changes the definitions of tables,
which needs each for itself, the largest table's every second time; what is printed is the longest that either waited,
beside the longest without a snapshot. Exit code 1 when a goal is missed (ten minutes, a second of waiting); `--quick`
only shows that all of it works.
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
from typing import Self

import psycopg2

from jaxrl_sql.datagen.copy.snapshot import snapshot
from sqlexec_rs import servers
from sqlexec_rs.servers import Server

TABLES = 300
LEVELS = 6  # tables of a level refer to tables of the level above it
LARGEST_SHARE = 0.4  # of all rows are in one table
GOAL_SECONDS = 600.0
GOAL_WAIT = 1.0


def fill(server: Server, rows: int) -> dict[str, int]:
    """Make the tables and return their rows: one large, the others of sizes from small to large."""
    weights = [1.0 / (1 + i % 60) for i in range(TABLES - 1)]
    rest = rows * (1 - LARGEST_SHARE) / sum(weights)
    sizes = [int(rows * LARGEST_SHARE), *(max(10, int(weight * rest)) for weight in weights)]
    names = [f"t{i:03}" for i in range(TABLES)]
    with closing(psycopg2.connect(server.owner)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
            # Two parents among the tables of the level above, and every tenth table refers to itself.
            above = [names[place] for place in range(1, i) if place % LEVELS == (i - 1) % LEVELS] if i % LEVELS else []
            parents = [above[(i * k) % len(above)] for k in (1, 3)] if above else []
            own = "parent int," if i % 10 == 9 else ""
            cursor.execute(
                f"CREATE TABLE {name}(id int, {own} {''.join(f'p{k} int, ' for k in range(len(parents)))}"
                "name text, kind varchar(12), amount numeric(10, 2), day date, at timestamptz, flag boolean, note text)"
            )
            columns = ["i", *(["nullif(i / 4, 0)"] if own else [])]
            columns += [
                f"1 + (i::int8 * {7 + 4 * k} % {sizes[names.index(one)]})::int" for k, one in enumerate(parents)
            ]
            cursor.execute(
                f"INSERT INTO {name} SELECT {', '.join(columns)}, 'name ' || i, 'kind ' || i % 97, i / 4.0,"
                " date '2000-01-01' + i % 9000, timestamptz '2020-01-01' + i * interval '1 minute', i % 3 = 0,"
                f" CASE WHEN i % 5 > 0 THEN 'a note of some words ' || i END FROM generate_series(1, {size}) i"
            )
            cursor.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
            for k, parent in enumerate(parents):
                cursor.execute(f"ALTER TABLE {name} ADD FOREIGN KEY (p{k}) REFERENCES {parent} NOT VALID")
            if own:
                cursor.execute(f"ALTER TABLE {name} ADD FOREIGN KEY (parent) REFERENCES {name} NOT VALID")
        cursor.execute("ANALYZE")
        # Who waits for a vacuum, waits a second until it is called off: that is not what is measured.
        cursor.execute("ALTER SYSTEM SET autovacuum = off")
        cursor.execute("SELECT pg_reload_conf()")
    return dict(zip(names, sizes, strict=True))


class Waits:
    """How long statements of a session take: the longest, and how many there were."""

    def __init__(self, server: Server, statement: Callable[[int], str]) -> None:
        self._server, self._statement = server, statement
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
        with closing(psycopg2.connect(self._server.owner)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            while not self._is_done.wait(0.01):
                begun = time.monotonic()
                cursor.execute(self._statement(self.count))
                self.longest = max(self.longest, time.monotonic() - begun)
                self.count += 1


def change_schema(count: int) -> str:
    """Return a change that needs a table for itself, as ADD COLUMN does: every second one of the largest table."""
    name = "t000" if count % 2 else f"t{count % TABLES:03}"
    return f"ALTER TABLE {name} ALTER note SET DEFAULT '{count}'"


def change_rows(count: int) -> str:
    """Return a change of some rows."""
    return f"UPDATE t{count * 7 % TABLES:03} SET flag = NOT flag WHERE id BETWEEN {count % 1000} AND {count % 1000 + 9}"


def watch(server: Server, work: Callable[[], object]) -> tuple[float, Waits, Waits]:
    """Do some work beside both sessions; return its seconds and how they waited."""
    with Waits(server, change_schema) as schema, Waits(server, change_rows) as rows:
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
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of all tables")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--take", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.take:
        take(os.environ["SNAPSHOT_URL"], Path(options.take[0]), int(options.take[1]))
        return 0
    rows = options.rows // 100 if options.quick else options.rows
    is_missed = False
    with tempfile.TemporaryDirectory(prefix="bench-snapshot-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = servers.start("postgresql", folder / "server")
        try:
            begun = time.monotonic()
            sizes = fill(server, rows)
            print(f"{len(sizes)} tables, {sum(sizes.values()):,} rows, the largest {max(sizes.values()):,}:"
                  f" made in {time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
            _, schema, changed = watch(server, lambda: time.sleep(1 if options.quick else 20))
            print(f"alone: ALTER TABLE at most {schema.longest:.2f} s, UPDATE {changed.longest:.2f} s", flush=True)
            for most in (1_000, 10_000):
                command = [sys.executable, __file__, "--take", str(folder / str(most)), str(most)]

                def run(command: list[str] = command) -> None:
                    subprocess.run(command, check=True, env={**os.environ, "SNAPSHOT_URL": server.reader})

                seconds, schema, changed = watch(server, run)
                print(f"  beside it: {schema.count:,} ALTER TABLE, at most {schema.longest:.2f} s;"
                      f" {changed.count:,} UPDATE, at most {changed.longest:.2f} s", flush=True)  # fmt: skip
                is_missed |= seconds > GOAL_SECONDS or schema.longest > GOAL_WAIT
        finally:
            server.stop()
    return int(is_missed and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
