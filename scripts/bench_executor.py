"""Measure the executor beside a bare loop over the same SQLite and beside what is done elsewhere, in one run.

`python scripts/bench_executor.py`: loads are drawn from a seed into a temporary folder. The ways to run them (see
`executor_rivals.py`, and `bare_loop` in the core's examples) take turns, each in a process of its own; a ratio (of ours
in threads over another way, but for ours in processes, which is over threads) is taken within a turn, and what is
printed is the median of `--runs` turns. Exit code 1 when a goal is missed, but for
`--quick`, which only shows that all of it works.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
N_DATABASES = 4
N_ITEMS = 2_000
N_SALES = 20_000
N_EVENTS = 130_000
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT {n} UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
# Each text holds the number of the query, so that no two are equal.
MIX = (
    "SELECT i.name, sum(s.amount) FROM sale s JOIN item i ON i.id = s.item_id WHERE s.item_id > {n} % 1000 GROUP BY 1",
    "SELECT name, price FROM item WHERE price > {n} % 50 ORDER BY price DESC, name LIMIT 20",
    "SELECT count(DISTINCT item_id), avg(amount) FROM sale WHERE day BETWEEN {n} % 300 AND {n} % 300 + 30",
    "SELECT name FROM item WHERE name LIKE '%' || ({n} % 100) || '%'",
    "SELECT nmae FROM item WHERE id = {n}",
)
LARGE = (
    "SELECT id, kind, value FROM event WHERE id > {n} % 10000",
    "SELECT kind, day FROM event WHERE id > {n} % 10000 ORDER BY day",
)
LOADS = ("tiny", "mix", "large", "runaways", "duplicates")
RIVALS = ("thread_exception", "process_exception", "thread_interrupt", "thread_progress", "apsw_progress")
SLOW = RIVALS[:3]  # on look-ups they run a tenth of the queries: rates are compared
NAMES = {
    "ours_scored": "ours in threads: score_many",
    "ours": "ours in threads: execute_many",
    "ours_scored_process": "ours in processes (the default): score_many",
    "ours_process": "ours in processes (the default): execute_many",
    "bare": "bare loop",
    "thread_exception": "threads, exception set in a helper thread",
    "process_exception": "processes, exception set in a helper thread",
    "thread_interrupt": "a thread and a connection a query, interrupt",
    "thread_progress": "threads, kept connections, progress handler",
    "apsw_progress": "the same with apsw",
}
HEADER = """
| load | way | queries a second | ran / failed / late | ratio | goal | |
|---|---|---|---|---|---|---|"""

Rates = dict[tuple[str, int], float]
"""Queries a second, by (way, threads)."""


@dataclasses.dataclass(frozen=True)
class Load:
    """Queries, and by which way ours runs them."""

    name: str
    queries: list[tuple[str, str]]
    ours: str
    deadline_ms: int = 30_000
    passes: int = 3  # of several the first, which opens connections and runs golds, is left out
    goal_bare: float | None = None  # the least share of the bare loop's rate


@dataclasses.dataclass(frozen=True)
class Check:
    """A ratio within one turn, and the least that it should be there."""

    label: str
    ratio: Callable[[Rates], float]
    goal: Callable[[Rates], float] | None
    way: str | None = None  # the one that ours is compared with, when the ratio is that of their rates


# --- loads


def make_databases(folder: Path) -> list[Path]:
    """Write a shop, and copies of it."""
    rng = random.Random(0)
    first = folder / "shop0.sqlite"
    connection = sqlite3.connect(first)
    connection.executescript(
        "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL);"
        "CREATE TABLE sale(id INTEGER PRIMARY KEY, item_id INTEGER, day INTEGER, amount REAL);"
        "CREATE TABLE event(id INTEGER PRIMARY KEY, kind TEXT, day INTEGER, value REAL);"
    )
    items = [(i, f"item {rng.randrange(10_000)}", rng.random() * 100) for i in range(N_ITEMS)]
    sales = [(rng.randrange(N_ITEMS), rng.randrange(365), rng.random()) for _ in range(N_SALES)]
    events = [(f"kind {rng.randrange(500)}", rng.randrange(365), rng.random()) for _ in range(N_EVENTS)]
    connection.executemany("INSERT INTO item VALUES (?, ?, ?)", items)
    connection.executemany("INSERT INTO sale(item_id, day, amount) VALUES (?, ?, ?)", sales)
    connection.executemany("INSERT INTO event(kind, day, value) VALUES (?, ?, ?)", events)
    connection.execute("CREATE INDEX by_item ON sale(item_id)")
    connection.commit()
    connection.close()
    copies = [folder / f"shop{i}.sqlite" for i in range(1, N_DATABASES)]
    return [first, *(Path(shutil.copyfile(first, copy)) for copy in copies)]


def make_loads(paths: list[Path], is_quick: bool) -> list[Load]:
    """Draw the five loads."""
    rng = random.Random(1)

    def queries(texts: tuple[str, ...], n: int) -> list[tuple[str, str]]:
        return [(str(paths[i // len(texts) % len(paths)]), texts[i % len(texts)].format(n=i)) for i in range(n)]

    tiny = queries((f"SELECT name, price FROM item WHERE id = {{n}} % {N_ITEMS}",), 2_000 if is_quick else 20_000)
    n_mix = 100 if is_quick else 500
    twice = queries(MIX, n_mix // 2) * 2
    runaways = queries(MIX, n_mix)
    for n in range(3 if is_quick else 23):
        runaways[n] = (str(paths[n % len(paths)]), ENDLESS.format(n=n))
    rng.shuffle(twice)
    rng.shuffle(runaways)
    late_ms = 500 if is_quick else 1_000
    return [
        Load("tiny", tiny, "ours_scored", passes=6, goal_bare=0.75),
        Load("mix", queries(MIX, n_mix), "ours_scored", goal_bare=0.9),
        Load("large", queries(LARGE, 4 if is_quick else 24), "ours_scored", goal_bare=0.9),
        Load("runaways", runaways, "ours", deadline_ms=late_ms, passes=1),
        Load("duplicates", twice, "ours"),
    ]


# --- what is compared


def make_checks(load: Load, threads: int) -> Iterator[Check]:
    """Give the ratios of a load: over the bare loop, over each rival, and what only this load shows."""
    ours, bare = (load.ours, threads), ("bare", threads)
    least = load.goal_bare
    processes = f"{load.ours}_process"
    yield Check(NAMES[processes], lambda r: r[processes, threads] / r[ours], None, processes)
    yield Check(NAMES["bare"], lambda r: r[ours] / r[bare], None if least is None else lambda _: least, "bare")
    for name in RIVALS:
        rival = (name, threads)
        yield Check(
            NAMES[name],
            lambda r, rival=rival: r[ours] / r[rival],
            lambda r, rival=rival: 0.85 * r[bare] / r[rival],
            name,
        )
    if load.name in {"tiny", "mix"}:
        yield Check(
            f"scaling to {threads} threads, over the bare loop's",
            lambda r: r[ours] / r[load.ours, 1] / (r[bare] / r["bare", 1]),
            lambda _: 0.95,
        )
        yield Check(
            "(bare loop with authorizer and deadline over without)",
            lambda r: r[bare] / r["bare_unguarded", threads],
            lambda _: 0.9 if load.name == "tiny" else 0.97,
        )
    if load.name == "large":
        yield Check(
            "Python rows in one thread: over apsw",
            lambda r: r["ours_rows", 1] / r["apsw_progress", 1],
            lambda _: 1.0,
        )
    if load.name == "duplicates":
        yield Check(
            "over ours with a comment that makes all texts differ",
            lambda r: r[ours] / r["ours_distinct", threads],
            lambda _: 1.7,
        )


def ways_of(load: Load, threads: int) -> list[tuple[str, int]]:
    """List what must be measured for those ratios."""
    ways = [
        ("bare", threads),
        (load.ours, threads),
        (f"{load.ours}_process", threads),
        *((name, threads) for name in RIVALS),
    ]
    if load.name in {"tiny", "mix"}:
        ways += [("bare", 1), (load.ours, 1), ("bare_unguarded", threads)]
    if load.name == "large":
        ways += [("ours_rows", 1), ("apsw_progress", 1)]
    if load.name == "duplicates":
        ways.append(("ours_distinct", threads))
    return list(dict.fromkeys(ways))


# --- measuring


def measure(load: Load, way: str, threads: int, bare_loop: Path, workload: Path) -> tuple[float, tuple[int, ...]]:
    """Run a load one way in a new process; returns queries a second and how many ran, failed and were late."""
    share = load.queries[: len(load.queries) // 10] if way in SLOW and load.name == "tiny" else load.queries
    workload.write_text("".join(f"{path}\t{sql}\n" for path, sql in share), encoding="utf-8")
    rest = [str(workload), str(threads), str(load.passes), str(load.deadline_ms)]
    if way.startswith("bare"):
        command = [str(bare_loop), *rest, *(["unguarded"] if way == "bare_unguarded" else [])]
    else:
        command = [sys.executable, str(ROOT / "scripts" / "executor_rivals.py"), way, *rest]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    passes = [line.split() for line in printed.splitlines()]
    seconds = statistics.median(float(line[0]) for line in passes[1:] or passes)
    return len(share) / seconds, tuple(int(count) for count in passes[-1][1:])


def bench(load: Load, options: argparse.Namespace, workload: Path) -> bool:
    """Measure a load, print its rows, and tell whether every goal is reached."""
    ways = ways_of(load, options.threads)
    turns: list[Rates] = []
    counts: dict[tuple[str, int], tuple[int, ...]] = {}
    for turn in range(options.runs):
        rates: Rates = {}
        at = turn % len(ways)
        for way, threads in ways[at:] + ways[:at]:  # nobody is always first
            rates[way, threads], verdicts = measure(load, way, threads, options.bare_loop, workload)
            # What is told is the turn with the most timeouts: a false one shows.
            counts[way, threads] = max(counts.get((way, threads), verdicts), verdicts, key=lambda each: each[2])
        turns.append(rates)

    def show(label: str, way: str | None, *rest: str) -> None:
        rate = verdicts = ""
        if way is not None:
            median = statistics.median(rates[way, options.threads] for rates in turns)
            rate = f"{median:,.{0 if median >= 100 else 1}f}"
            verdicts = " / ".join(f"{count:,}" for count in counts[way, options.threads])
        print("|", " | ".join((load.name, label, rate, verdicts, *rest)), "|", flush=True)

    show(NAMES[load.ours], load.ours, "", "", "")
    is_reached = True
    for check in make_checks(load, options.threads):
        ratio = statistics.median(check.ratio(rates) for rates in turns)
        goal = None if check.goal is None else statistics.median(check.goal(rates) for rates in turns)
        is_reached &= goal is None or ratio >= goal
        word = "" if goal is None else "reached" if ratio >= goal else "missed"
        show(check.label, check.way, f"{ratio:.2f}", "" if goal is None else f"{goal:.2f}", word)
    ours, bare = counts[load.ours, options.threads], counts["bare", options.threads]
    if ours != bare:
        show("verdicts differ from the bare loop's", None, "", "", "missed")
    return is_reached and ours == bare


def main() -> int:
    """Print the table; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bare-loop", type=Path, default=ROOT / "target" / "release" / "examples" / "bare_loop")
    parser.add_argument("--runs", type=int, default=5, help="turns of all ways (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads or processes of each way (default: 2)")
    parser.add_argument("--loads", default=",".join(LOADS), help="which, with commas between (default: all)")
    parser.add_argument("--quick", action="store_true", help="one turn of small loads: a smoke run, no figures")
    options = parser.parse_args()
    if options.quick:
        options.runs = 1
    if not options.bare_loop.is_file():
        parser.error(
            f"{options.bare_loop} is not built: make bench-executor, or cargo build --release --example bare_loop"
        )
    wanted = options.loads.split(",")
    if unknown := set(wanted) - set(LOADS):
        parser.error(f"no such load: {', '.join(sorted(unknown))}; there are {', '.join(LOADS)}")
    busy = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {busy:.1f} at the start, {options.threads} threads, medians of {options.runs}")
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        loads = make_loads(make_databases(Path(folder)), options.quick)
        reached = [bench(load, options, Path(folder) / "workload.tsv") for load in loads if load.name in wanted]
    return 0 if options.quick or all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
