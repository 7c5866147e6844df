"""Measure the executor on database servers, beside a bare loop in Rust and beside Python's drivers, in one run.

`python scripts/bench_servers.py`: a server is started in a temporary folder, filled, and stopped at the end. The ways
to run a load take turns; a ratio is taken within a turn, and what is printed is the median of `--runs` turns. All ways
have `--threads` kept connections and keep every row. The bare loop and the driver send a query and nothing else; "in a
read-only transaction" is the driver with what a reader needs who has not read the SQL. Exit code 1 when a goal is
missed, but for `--quick`, which only shows that all of it works.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pymysql

from sqlexec_rs import Executor, servers

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.85
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
}
DRIVERS = {"postgresql": "psycopg2", "mariadb": "PyMySQL"}
# Each text holds the number of the query, so that no two are equal.
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
    """Return a connection of the driver of Python's, which commits each statement by itself."""
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        connection = psycopg2.connect(url)
        connection.set_session(autocommit=True)
        return connection
    address = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    return pymysql.connect(**address, database=parts.path[1:], autocommit=True)


def drive(url: str, threads: int, queries: list[str], is_guarded: bool) -> float:
    """Run queries by the driver of Python's, a connection a thread; return seconds."""
    connections = [connect(url) for _ in range(threads)]
    numbers = itertools.count()

    def work(connection: Any) -> None:
        with connection.cursor() as cursor:
            while (number := next(numbers)) < len(queries):
                if is_guarded:
                    cursor.execute("START TRANSACTION READ ONLY")
                cursor.execute(queries[number])
                cursor.fetchall()
                if is_guarded:
                    cursor.execute("ROLLBACK")

    workers = [threading.Thread(target=work, args=(connection,)) for connection in connections]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return seconds


def bare(program: Path, url: str, threads: int, queries: list[str], folder: Path) -> float:
    """Run queries by the bare loop; return seconds."""
    (folder / "queries").write_text("\n".join(queries), encoding="utf-8")
    command = [str(program), url, str(threads), str(folder / "queries")]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def bench(engine: str, name: str, executor: Executor, url: str, options: argparse.Namespace, folder: Path) -> bool:
    """Measure a load, print its rows, and tell whether the goal is reached."""
    texts, n = LOADS[name]
    driver = DRIVERS[engine]
    n = max(2, n // 20) if options.quick else n
    numbers = itertools.count()
    rates: dict[str, list[float]] = {}
    for turn in range(1 if options.quick else options.runs):
        # Another text each time, so that nothing is answered without the server; the gold is run once a batch.
        draw = [[texts[i % len(texts)].format(n=next(numbers)) for i in range(n)] for _ in range(5)]
        ways: list[tuple[str, Callable[[], float]]] = [
            ("ours: execute_many", lambda q=draw[0]: timed(lambda: executor.execute_many([(url, sql) for sql in q]))),
            ("ours: score_many", lambda q=draw[1]: timed(lambda: executor.score_many([url] * n, q, [q[0]] * n))),
            ("bare loop", lambda q=draw[2]: bare(options.bare_loop, url, options.threads, q, folder)),
            (driver, lambda q=draw[3]: drive(url, options.threads, q, False)),
            (f"{driver} in a read-only transaction", lambda q=draw[4]: drive(url, options.threads, q, True)),
        ]
        for way, run in ways[turn % len(ways) :] + ways[: turn % len(ways)]:  # nobody is always first
            rates.setdefault(way, []).append(n / run())
    ours = rates["ours: execute_many"]
    is_reached = True
    for way, rate_of in rates.items():
        ratio = statistics.median(a / b for a, b in zip(ours, rate_of, strict=True))
        goal, word = "", ""
        if way == "bare loop":
            is_reached = ratio >= GOAL
            goal, word = f"{GOAL:.2f}", "reached" if is_reached else "missed"
        rate = statistics.median(rate_of)
        print(
            f"| {engine} | {name} | {way} | {rate:,.{0 if rate >= 100 else 1}f} | {ratio:.2f} | {goal} | {word} |",
            flush=True,
        )
    return is_reached


def main() -> int:
    """Print the table; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = ROOT / "target" / "release" / "examples" / "bare_server"
    parser.add_argument("--bare-loop", type=Path, default=default)
    parser.add_argument("--runs", type=int, default=5, help="turns of all ways (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="connections of each way (default: 2)")
    parser.add_argument("--quick", action="store_true", help="one turn of small loads: a smoke run, no figures")
    options = parser.parse_args()
    reached = []
    print("| server | load | way | queries a second | ours over it | goal | |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bench-servers-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        for engine, schema in SCHEMAS.items():
            server = servers.start(engine, folder / engine)
            try:
                server.run(schema)
                with Executor(threads=options.threads) as executor:
                    warm = [(server.reader, f"SELECT {i}, count(*) FROM event") for i in range(4 * options.threads)]
                    executor.execute_many(warm)
                    reached += [bench(engine, name, executor, server.reader, options, folder) for name in LOADS]
            finally:
                server.stop()
    return 0 if options.quick or all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
