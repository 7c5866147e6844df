"""Measure the growth of the caller's memory over a million queries.

`python scripts/bench_memory.py`: look-ups, results of some rows, errors and duplicates in batches of 10,000, a tenth
of them scored. Resident memory is read after 10, 50 and 100 % of the queries. The cache of results is limited (1 MiB)
and full by then. The goal is a growth of at most `--most-mib` between the first and the last reading.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
from pathlib import Path

from harness import Goal, Report, make_parser, time_call

from sqlexec_rs import Executor, Limits

N_ITEMS = 2_000
BATCH = 10_000
READINGS = (0.1, 0.5, 1.0)
QUICK = 60_000
# Each text contains the number of the query; one in five repeats an earlier query.
TEXTS = (
    "SELECT name, price FROM item WHERE id = {n} % 2000",
    "SELECT id, name FROM item WHERE id > {n} % 1990 LIMIT 10 -- {n}",
    "SELECT nmae FROM item WHERE id = {n}",
    "SELECT count(*) FROM item WHERE price > {n} % 7 -- {n}",
    "SELEC {n}",
    "DELETE FROM item WHERE id = {n}",
    "SELECT 'text ' || {n}, {n} * 0.5, NULL",
)


def make_database(path: Path) -> Path:
    """Write a small shop database."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL)")
    connection.executemany("INSERT INTO item VALUES (?, 'item ' || ?, ?)", [(i, i, i % 10) for i in range(N_ITEMS)])
    connection.commit()
    connection.close()
    return path


def resident_mib() -> float:
    """Read this process's resident memory from /proc, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def run_batch(ex: Executor, path: Path, first: int, size: int, rng: random.Random) -> None:
    """Run queries numbered from `first`, read every answer, and score a tenth of them."""
    numbers = [rng.randrange(max(1, first)) if rng.random() < 0.2 else first + i for i in range(size)]
    pairs = [(path, TEXTS[n % len(TEXTS)].format(n=n)) for n in numbers]
    outcomes = ex.execute_many(pairs)
    n_ok = sum(len(outcome.rows) > 0 for outcome in outcomes if outcome.status == "ok")
    assert 0.4 * size < n_ok < 0.8 * size, n_ok
    some = [sql for _, sql in pairs[: size // 10]]
    scores = ex.score_many([path] * len(some), some, ["SELECT count(*) FROM item"] * len(some))
    assert len(scores["bird"]) == len(some)


def read_memory(report: Report, ex: Executor, path: Path, queries: int) -> list[float]:
    """Run all queries and return the readings."""
    rng = random.Random(0)
    batch = min(BATCH, queries // 10)
    n_batches = queries // batch
    due = {round(n_batches * share) for share in READINGS}
    readings = []
    for number in range(n_batches):
        run_batch(ex, path, number * batch, batch, rng)
        if number + 1 in due:
            readings.append(resident_mib())
            report.add(f"resident memory after {(number + 1) * batch:,} queries", readings[-1], "MiB")
    return readings


def main() -> int:
    """Measure the growth; return the exit code."""
    parser = make_parser(__doc__, turns=1)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isolation", choices=("process", "thread"), default="process")
    parser.add_argument("--most-mib", type=float, default=16.0, help="permitted growth in MiB (default: 16)")
    options = parser.parse_args()
    queries = options.queries or (QUICK if options.quick else 1_000_000)
    report = Report(options)
    with tempfile.TemporaryDirectory() as folder:
        path = make_database(Path(folder) / "shop.sqlite")
        limits = Limits(timeout_ms=None, vm_steps=1_000_000)
        with Executor(options.threads, limits, options.isolation, cache_bytes=1 << 20) as ex:
            taken, readings = time_call(lambda: read_memory(report, ex, path, queries))
            assert ex.stats()["cache_bytes"] <= 1 << 20
    report.add("growth of memory", readings[-1] - readings[0], "MiB", Goal(options.most_mib, at_most=True))
    report.add("queries with scores and Python rows", queries / taken, "per s")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
