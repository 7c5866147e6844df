"""The command `bench`: queries per second on a small generated database, by number of threads."""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlexec_rs._native import Executor

N_ITEMS = 2_000
N_SALES = 20_000
_BATCH = 100

# Each text contains the number of the query, so that all differ and none is cached.
_MIX = (
    "SELECT i.name, sum(s.amount) FROM sale s JOIN item i ON i.id = s.item_id WHERE s.item_id > {n} % 1000 GROUP BY 1",
    "SELECT name, price FROM item WHERE price > {n} % 50 ORDER BY price DESC, name LIMIT 20",
    "SELECT count(DISTINCT item_id), avg(amount) FROM sale WHERE day BETWEEN {n} % 300 AND {n} % 300 + 30",
    "SELECT name FROM item WHERE name LIKE '%' || ({n} % 100) || '%'",
    "SELECT nmae FROM item WHERE id = {n}",
)


def bench(options: argparse.Namespace) -> int:
    """Measure, print a line per number of threads, and return the exit code."""
    with Executor(threads=options.threads, isolation=options.isolation) as executor:
        max_threads = executor.threads
    workloads = (("tiny", _tiny), ("mix", _mixed))
    sys.stdout.write(f"{'threads':>7}" + "".join(f"{name + ' /s':>12}" for name, _ in workloads) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        path = make_database(Path(folder) / "bench.sqlite")
        n_threads = 1
        while True:
            rates = [measure(path, n_threads, make, options) for _, make in workloads]
            sys.stdout.write(f"{n_threads:>7}" + "".join(f"{rate:>12,.0f}" for rate in rates) + "\n")
            sys.stdout.flush()
            if n_threads == max_threads:
                return 0
            n_threads = min(2 * n_threads, max_threads)


def make_database(path: Path) -> Path:
    """Write a small shop: items and their sales."""
    draw = random.Random(0)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL)")
    connection.execute("CREATE TABLE sale(id INTEGER PRIMARY KEY, item_id INTEGER, day INTEGER, amount REAL)")
    items = [(i, f"item {draw.randrange(10_000)}", draw.random() * 100) for i in range(N_ITEMS)]
    connection.executemany("INSERT INTO item VALUES (?, ?, ?)", items)
    sales = [(draw.randrange(N_ITEMS), draw.randrange(365), draw.random()) for _ in range(N_SALES)]
    connection.executemany("INSERT INTO sale(item_id, day, amount) VALUES (?, ?, ?)", sales)
    connection.execute("CREATE INDEX by_item ON sale(item_id)")
    connection.commit()
    connection.close()
    return path


def measure(path: Path, n_threads: int, make: Callable[[int], str], options: argparse.Namespace) -> float:
    """Return the queries per second of `n_threads` threads, without caches and without creating Python rows."""
    n = 0
    with Executor(threads=n_threads, isolation=options.isolation, cache_bytes=0) as executor:
        executor.execute(path, "SELECT count(*) FROM sale")
        start = time.perf_counter()
        jobs = [executor.submit([(path, make(i)) for i in range(_BATCH)])]
        while jobs:
            n += _BATCH
            if time.perf_counter() - start < options.seconds:
                # Queue the next batch before waiting for the last, so that no thread is idle.
                jobs.append(executor.submit([(path, make(i)) for i in range(n, n + _BATCH)]))
            jobs.pop(0).wait()
        return n / (time.perf_counter() - start)


def _tiny(n: int) -> str:
    return f"SELECT name, price FROM item WHERE id = {n} % {N_ITEMS}"


def _mixed(n: int) -> str:
    return _MIX[n % len(_MIX)].format(n=n)
