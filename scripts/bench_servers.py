"""Compare the executor on other engines with a bare loop in Rust and with Python's drivers, in one run.

`python scripts/bench_servers.py` starts a server in a temporary folder, fills it, and stops it at the end; DuckDB has a
file there. All variants have `--threads` open connections and fetch every row. Drivers use one connection per thread,
asyncpg the same number in an event loop, DuckDB's module one cursor per thread. The bare loop and the drivers send only
the query; "in a read-only transaction" adds the protection that unread SQL needs. The goal applies to running and to
scoring, which compares each result with a gold's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import psycopg2
import pymysql
from harness import Goal, Report, make_parser, ratios, run_turns, seconds

from sqlexec_rs import Executor, servers

try:
    import asyncpg
except ImportError:
    asyncpg = None

ROOT = Path(__file__).resolve().parents[1]
GOAL = Goal(0.85)
EXECUTED, SCORED, BARE = "ours: execute_many", "ours: score_many", "bare loop"
SCHEMAS = {
    "postgresql": """
CREATE TABLE item(id integer PRIMARY KEY, name text, price numeric(8, 2));
INSERT INTO item SELECT i, 'item ' || i, i / 4.0 FROM generate_series(0, 1999) i;
CREATE TABLE sale(id integer PRIMARY KEY, item_id integer, amount float8);
INSERT INTO sale SELECT i, i % 2000, i * 0.5 FROM generate_series(1, 20000) i;
CREATE TABLE event(id integer PRIMARY KEY, kind text, value float8);
INSERT INTO event SELECT i, 'kind ' || i % 97, i * 0.25 FROM generate_series(1, 110000) i;
ANALYZE;
""",
    "mariadb": """
CREATE TABLE item(id integer PRIMARY KEY, name varchar(30), price numeric(8, 2));
INSERT INTO item SELECT seq, CONCAT('item ', seq), seq / 4.0 FROM seq_0_to_1999;
CREATE TABLE sale(id integer PRIMARY KEY, item_id integer, amount double);
INSERT INTO sale SELECT seq, seq % 2000, seq * 0.5 FROM seq_1_to_20000;
CREATE TABLE event(id integer PRIMARY KEY, kind varchar(30), value double);
INSERT INTO event SELECT seq, CONCAT('kind ', seq % 97), seq * 0.25 FROM seq_1_to_110000;
ANALYZE TABLE item, sale, event;
""",
    "duckdb": """
CREATE TABLE item(id integer PRIMARY KEY, name text, price numeric(8, 2));
INSERT INTO item SELECT i, 'item ' || i, i / 4.0 FROM range(2000) r(i);
CREATE TABLE sale(id integer PRIMARY KEY, item_id integer, amount double);
INSERT INTO sale SELECT i, i % 2000, i * 0.5 FROM range(1, 20001) r(i);
CREATE TABLE event(id integer PRIMARY KEY, kind text, value double);
INSERT INTO event SELECT i, 'kind ' || i % 97, i * 0.25 FROM range(1, 110001) r(i);
""",
}
DRIVERS = {"postgresql": "psycopg2", "mariadb": "PyMySQL"}
# Each text contains the number of the query, so that all texts differ.
LOADS = {
    "look-ups": (("SELECT name, price FROM item WHERE id = {n} % 2000",), 4_000),
    "mix": (
        (
            "SELECT name, sum(amount) FROM sale JOIN item ON item.id = item_id WHERE item_id > {n} % 999 GROUP BY 1",
            "SELECT count(DISTINCT item_id), avg(amount) FROM sale WHERE id > {n} % 300",
            "SELECT name FROM item WHERE name LIKE concat('%', {n} % 100, '%') ORDER BY price",
        ),
        150,
    ),
    "100,000 rows": (("SELECT id, kind, value FROM event WHERE id > {n} % 10000",), 10),
}


def connect(url: str) -> Any:
    """Return a connection of a Python driver, which commits each statement."""
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        connection = psycopg2.connect(url)
        connection.set_session(autocommit=True)
        return connection
    address = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    return pymysql.connect(**address, database=parts.path[1:], autocommit=True)


def share_queries(asks: Sequence[Callable[[str], object]], queries: list[str]) -> float:
    """Run queries with one client per thread; return seconds."""
    numbers = itertools.count()

    def work(ask: Callable[[str], object]) -> None:
        while (number := next(numbers)) < len(queries):
            ask(queries[number])

    workers = [threading.Thread(target=work, args=(ask,)) for ask in asks]

    def run() -> None:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return seconds(run)


def run_driver(url: str, threads: int, queries: list[str], is_guarded: bool) -> float:
    """Run queries with a Python driver, one connection per thread; return seconds."""
    connections = [connect(url) for _ in range(threads)]

    def ask_of(cursor: Any) -> Callable[[str], None]:
        def ask(sql: str) -> None:
            if is_guarded:
                cursor.execute("START TRANSACTION READ ONLY")
            cursor.execute(sql)
            cursor.fetchall()
            if is_guarded:
                cursor.execute("ROLLBACK")

        return ask

    taken = share_queries([ask_of(connection.cursor()) for connection in connections], queries)
    for connection in connections:
        connection.close()
    return taken


def run_asyncpg(url: str, n: int, queries: list[str]) -> float:
    """Run queries with asyncpg on `threads` connections in an event loop; return seconds."""

    async def run() -> float:
        # All texts differ, so prepared statements would not be reused.
        connections = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(n)]
        numbers = itertools.count()

        async def work(connection: Any) -> None:
            while (number := next(numbers)) < len(queries):
                await connection.fetch(queries[number])

        begun = time.perf_counter()
        await asyncio.gather(*map(work, connections))
        taken = time.perf_counter() - begun
        for connection in connections:
            await connection.close()
        return taken

    return asyncio.run(run())


def run_duckdb(url: str, threads: int, queries: list[str]) -> float:
    """Run queries with DuckDB's module, one cursor per thread; return seconds."""
    with duckdb.connect(url.partition(":")[2], read_only=True) as connection:
        cursors = [connection.cursor() for _ in range(threads)]
        return share_queries([lambda sql, cursor=cursor: cursor.execute(sql).fetchall() for cursor in cursors], queries)


def run_bare_loop(program: Path, url: str, threads: int, queries: list[str], folder: Path) -> float:
    """Run queries with the bare loop; return seconds."""
    (folder / "queries").write_text("\n".join(queries), encoding="utf-8")
    command = [str(program), url, str(threads), str(folder / "queries")]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def make_ways(
    engine: str, executor: Executor, url: str, options: argparse.Namespace, folder: Path
) -> dict[str, Callable[[list[str]], float]]:
    """Return by name the functions that run queries and return seconds."""
    threads = options.threads
    ways: dict[str, Callable[[list[str]], float]] = {
        EXECUTED: lambda q: seconds(lambda: executor.execute_many([(url, sql) for sql in q])),
        # The gold runs once per batch.
        SCORED: lambda q: seconds(lambda: executor.score_many([url] * len(q), q, [q[0]] * len(q))),
    }
    if engine == "duckdb":
        return ways | {"duckdb's module": lambda q: run_duckdb(url, threads, q)}
    driver = DRIVERS[engine]
    ways |= {
        BARE: lambda q: run_bare_loop(options.bare_loop, url, threads, q, folder),
        driver: lambda q: run_driver(url, threads, q, False),
        f"{driver} in a read-only transaction": lambda q: run_driver(url, threads, q, True),
    }
    if engine == "postgresql" and asyncpg:
        ways["asyncpg"] = lambda q: run_asyncpg(url, threads, q)
    return ways


def bench(report: Report, engine: str, load: str, ways: dict[str, Callable[[list[str]], float]]) -> None:
    """Measure a load in all variants."""
    texts, n = LOADS[load]
    n = max(2, n // 20) if report.is_quick else n
    numbers = itertools.count()

    def run(way: str) -> float:
        # A new text each time, so that every query reaches the server.
        queries = [texts[i % len(texts)].format(n=next(numbers)) for i in range(n)]
        return n / ways[way](queries)

    rates = run_turns({way: partial(run, way) for way in ways}, report.turns, warm_up=0, rotate=True)
    for way, values in rates.items():
        report.add(f"{engine}, {way}", values, "queries/s", column=load)
    for way in list(rates)[1:]:
        goal = GOAL if way == BARE else None
        report.add(f"{engine}, {EXECUTED} / {way}", ratios(rates[EXECUTED], rates[way]), "x", goal, column=load)
    if BARE in rates:
        report.add(f"{engine}, {SCORED} / {BARE}", ratios(rates[SCORED], rates[BARE]), "x", GOAL, column=load)


@contextmanager
def database(engine: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a filled database."""
    if engine == "duckdb":
        path = folder / "bench.duckdb"
        with duckdb.connect(path) as connection:
            connection.execute(SCHEMAS[engine])
        yield f"duckdb:{path}"
        return
    server = servers.start(engine, folder / engine)
    try:
        server.run(SCHEMAS[engine])
        yield server.reader
    finally:
        server.stop()


def main() -> int:
    """Measure the engines; return the exit code."""
    parser = make_parser(__doc__)
    default = ROOT / "target" / "release" / "examples" / "bare_server"
    parser.add_argument("--bare-loop", type=Path, default=default)
    parser.add_argument("--engines", nargs="+", choices=SCHEMAS, default=list(SCHEMAS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--threads", type=int, default=2, help="connections of each variant (default: 2)")
    options = parser.parse_args()
    report = Report(options)
    with tempfile.TemporaryDirectory(prefix="bench-servers-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        for engine in options.engines:
            with database(engine, folder) as url, Executor(threads=options.threads) as executor:
                warm = [(url, f"SELECT {i}, count(*) FROM event") for i in range(4 * options.threads)]
                executor.execute_many(warm)
                ways = make_ways(engine, executor, url, options, folder)
                for load in options.loads:
                    bench(report, engine, load, ways)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
