"""Compare the executor with a bare loop over the same SQLite and with methods of other projects, in one run.

`python scripts/bench_executor.py` samples loads from a seed into a temporary folder. The variants (see
`executor_rivals.py`, and `bare_loop` in the core's examples) take turns, each in a separate process. Each ratio
divides the throughput of our executor with threads by that of a variant; the first ratio divides processes by threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from harness import Goal, Report, make_parser, run_turns

ROOT = Path(__file__).resolve().parents[1]
N_DATABASES = 4
N_ITEMS = 2_000
N_SALES = 20_000
N_EVENTS = 130_000
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT {n} UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
# Each text contains the number of the query, so that all texts differ.
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
SLOW = RIVALS[:3]  # the load `tiny` has a tenth of the queries here; only rates are compared
NAMES = {
    "ours_scored": "ours in threads: score_many",
    "ours": "ours in threads: execute_many",
    "ours_scored_process": "ours in processes (the default): score_many",
    "ours_process": "ours in processes (the default): execute_many",
    "bare": "bare loop",
    "thread_exception": "threads, exception set in a helper thread",
    "process_exception": "processes, exception set in a helper thread",
    "thread_interrupt": "a thread and a connection per query, interrupt",
    "thread_progress": "threads, kept connections, progress handler",
    "apsw_progress": "threads, kept connections, progress handler (apsw)",
}
Rates = dict[tuple[str, int], float]
"""Queries per second, by (method, threads)."""


@dataclasses.dataclass(frozen=True)
class Load:
    """Queries, and our method of running them."""

    name: str
    queries: list[tuple[str, str]]
    ours: str
    deadline_ms: int = 30_000
    passes: int = 3  # the first of several opens connections and runs golds, and is omitted
    goal_bare: float | None = None  # the minimum share of the bare loop's rate


@dataclasses.dataclass(frozen=True)
class Check:
    """A ratio within one turn, and its goal."""

    label: str
    ratio: Callable[[Rates], float]
    goal: Callable[[Rates], float] | None


# --- loads


def make_databases(folder: Path) -> list[Path]:
    """Write a shop database and copies of it."""
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
    """Sample the five loads."""
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


# --- comparisons


def make_checks(load: Load, threads: int) -> Iterator[Check]:
    """Return the ratios of a load: over the bare loop, over each alternative, and those of this load only."""
    ours, bare = (load.ours, threads), ("bare", threads)
    least = load.goal_bare
    processes = f"{load.ours}_process"
    yield Check("ours in processes / in threads", lambda r: r[processes, threads] / r[ours], None)
    yield Check("ours / bare loop", lambda r: r[ours] / r[bare], None if least is None else lambda _: least)
    for name in RIVALS:
        rival = (name, threads)
        yield Check(
            f"ours / {NAMES[name]}",
            lambda r, rival=rival: r[ours] / r[rival],
            lambda r, rival=rival: 0.85 * r[bare] / r[rival],
        )
    if load.name in {"tiny", "mix"}:
        yield Check(
            f"scaling to {threads} threads / the bare loop's",
            lambda r: r[ours] / r[load.ours, 1] / (r[bare] / r["bare", 1]),
            lambda _: 0.95,
        )
        yield Check(
            "bare loop with authorizer and deadline / without",
            lambda r: r[bare] / r["bare_unguarded", threads],
            lambda _: 0.9 if load.name == "tiny" else 0.97,
        )
    if load.name == "large":
        yield Check(
            "Python rows in one thread / apsw",
            lambda r: r["ours_rows", 1] / r["apsw_progress", 1],
            lambda _: 1.0,
        )
    if load.name == "duplicates":
        yield Check(
            "ours / with a comment that makes all texts differ",
            lambda r: r[ours] / r["ours_distinct", threads],
            lambda _: 1.7,
        )


def variants_of(load: Load, threads: int) -> list[tuple[str, int]]:
    """List the variants that these ratios need."""
    variants_needed = [
        ("bare", threads),
        (load.ours, threads),
        (f"{load.ours}_process", threads),
        *((name, threads) for name in RIVALS),
    ]
    if load.name in {"tiny", "mix"}:
        variants_needed += [("bare", 1), (load.ours, 1), ("bare_unguarded", threads)]
    if load.name == "large":
        variants_needed += [("ours_rows", 1), ("apsw_progress", 1)]
    if load.name == "duplicates":
        variants_needed.append(("ours_distinct", threads))
    return list(dict.fromkeys(variants_needed))


# --- measuring


def measure(load: Load, method: str, threads: int, bare_loop: Path, workload: Path) -> tuple[float, tuple[int, ...]]:
    """Run a load by one method in a new process; return queries per second and the numbers run, failed and late."""
    share = load.queries[: len(load.queries) // 10] if method in SLOW and load.name == "tiny" else load.queries
    workload.write_text("".join(f"{path}\t{sql}\n" for path, sql in share), encoding="utf-8")
    rest = [str(workload), str(threads), str(load.passes), str(load.deadline_ms)]
    if method.startswith("bare"):
        command = [str(bare_loop), *rest, *(["unguarded"] if method == "bare_unguarded" else [])]
    else:
        command = [sys.executable, str(ROOT / "scripts" / "executor_rivals.py"), method, *rest]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    passes = [line.split() for line in printed.splitlines()]
    seconds = statistics.median(float(line[0]) for line in passes[1:] or passes)
    return len(share) / seconds, tuple(int(count) for count in passes[-1][1:])


def bench(report: Report, load: Load, options: argparse.Namespace, workload: Path) -> None:
    """Measure a load in all variants."""
    counts: dict[tuple[str, int], tuple[int, ...]] = {}

    def run(method: str, threads: int) -> float:
        rate, verdicts = measure(load, method, threads, options.bare_loop, workload)
        # The turn with the most timeouts counts, so that a false one is visible.
        counts[method, threads] = max(counts.get((method, threads), verdicts), verdicts, key=lambda each: each[2])
        return rate

    variants = {key: partial(run, *key) for key in variants_of(load, options.threads)}
    rates = run_turns(variants, report.turns, warm_up=0, rotate=True)
    for (method, threads), values in rates.items():
        if method in NAMES and threads == options.threads:
            ran, failed, late = counts[method, threads]
            note = f"{ran:,} ran, {failed:,} failed, {late:,} late"
            report.add(NAMES[method], values, "queries/s", column=load.name, note=note)
    turns: list[Rates] = [dict(zip(rates, values, strict=True)) for values in zip(*rates.values(), strict=True)]
    for check in make_checks(load, options.threads):
        goal = None if check.goal is None else Goal(statistics.median(check.goal(turn) for turn in turns))
        report.add(check.label, [check.ratio(turn) for turn in turns], "x", goal, column=load.name)
    ours, bare = counts[load.ours, options.threads], counts["bare", options.threads]
    differences = sum(abs(a - b) for a, b in zip(ours, bare, strict=True))
    name = "verdicts that differ from the bare loop's"
    report.add(name, differences, "", Goal(0, at_most=True), column=load.name)


def main() -> int:
    """Measure the loads; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--bare-loop", type=Path, default=ROOT / "target" / "release" / "examples" / "bare_loop")
    parser.add_argument("--threads", type=int, default=2, help="threads or processes of each variant (default: 2)")
    parser.add_argument("--loads", default=",".join(LOADS), help="loads, separated by commas (default: all)")
    options = parser.parse_args()
    if not options.bare_loop.is_file():
        parser.error(
            f"{options.bare_loop} is not built: make bench-executor, or cargo build --release --example bare_loop"
        )
    wanted = options.loads.split(",")
    if unknown := set(wanted) - set(LOADS):
        parser.error(f"no such load: {', '.join(sorted(unknown))}; there are {', '.join(LOADS)}")
    report = Report(options)
    with tempfile.TemporaryDirectory() as folder:
        for load in make_loads(make_databases(Path(folder)), options.quick):
            if load.name in wanted:
                bench(report, load, options, Path(folder) / "workload.tsv")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
