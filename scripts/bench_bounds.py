"""Measure the executor's overshoot of deadlines, its false timeouts, and the cost of comparing results.

`python scripts/bench_bounds.py` has three parts. The overshoot beyond a deadline of 100 ms, for endless queries in
threads and the whole adversarial list in worker processes (`overshoot`, an example of the core). The false timeouts of
runs that need far less than their budget, with eight threads per core. The time of the rule `bird` for results of
10,000 rows, against Python's sets of the same rows.
"""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from harness import Goal, Report, make_parser, run_turns, time_call

from sqlexec_rs import Executor, Limits

ROOT = Path(__file__).resolve().parents[1]
OVERSHOOT_GOALS = {("threads", "p99"): Goal(5.0, at_most=True), ("processes", "maximum"): Goal(50.0, at_most=True)}
N_ROWS = 10_000
N_PAIRS = 40
GROUP = 8  # answers that share a gold
COMPARISON_GOAL = Goal(20.0)
WORK = (
    "WITH RECURSIVE r(x) AS (SELECT {n} UNION ALL SELECT x + 1 FROM r WHERE x < {n} + 200000) SELECT sum(x * x) FROM r"
)


def overshoots(report: Report, program: Path) -> None:
    """Run the core's example, which measures in the caller of the pool."""
    printed = subprocess.run([str(program)], stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in printed.splitlines():
        way, runs, late, *figures = line.split()
        for name, figure in zip(("p50", "p99", "maximum"), figures, strict=True):
            goal = OVERSHOOT_GOALS.get((way, name))
            report.add(f"overshoot in {way}, {runs} runs, {late} late: {name}", float(figure), "ms", goal)


def false_timeouts(report: Report, path: Path) -> None:
    """Count timeouts of a load alone and under contention, with budgets of four times its time alone."""
    cores = os.cpu_count() or 1
    with Executor(threads=1, isolation="thread", cache_bytes=0) as ex:
        alone = [ex.execute(path, WORK.format(n=n)) for n in range(3)]
    assert all(outcome.status == "ok" for outcome in alone)
    steps = max(outcome.vm_steps for outcome in alone)
    needed_ms = statistics.median(outcome.elapsed_ms for outcome in alone)
    budget_ms = int(4 * needed_ms) + 1
    budgets = {
        "VM steps": Limits(timeout_ms=None, vm_steps=steps + 1_000),
        "CPU time": Limits(timeout_ms=None, cpu_ms=budget_ms),
        "wall time": Limits(timeout_ms=budget_ms),
    }
    for name, limits in budgets.items():
        with Executor(threads=8 * cores, limits=limits, isolation="thread", cache_bytes=0) as ex:
            outcomes = ex.execute_many([(path, WORK.format(n=n)) for n in range(16 * cores)])
        late = sum(outcome.status == "timeout" for outcome in outcomes)
        goal = None if name == "wall time" else Goal(0, at_most=True)
        report.add(f"false timeouts by {name}, {8 * cores} threads, of {len(outcomes)} runs", late, "", goal)


def comparisons(report: Report, path: Path) -> None:
    """Compare cached results, so that a score consists of the comparison and its overhead."""
    rng = random.Random(0)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE event(id INTEGER PRIMARY KEY, kind TEXT, value REAL, place INTEGER)")
    rows = [(f"kind {rng.randrange(500)}", rng.random(), rng.randrange(10**9)) for _ in range(N_ROWS)]
    connection.executemany("INSERT INTO event(kind, value, place) VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    os.utime(path, (1, 1))  # the identity of a file that changed recently changes once more when it is older
    gold = "SELECT id, kind, value FROM event WHERE {n} = {n}"
    other = f"SELECT id, kind, value + (place = {rows[0][2]}) FROM event ORDER BY place LIMIT 1000000 + {{n}}"
    for label, predicted, predictions_per_gold, score in (
        ("equal, in the same order", gold + " ORDER BY id", GROUP, 1.0),
        ("equal, in another order", gold + " ORDER BY place", GROUP, 1.0),
        ("equal, in another order, one answer a gold", gold + " ORDER BY place", 1, 1.0),
        ("one cell differs", other, GROUP, 0.0),
    ):
        golds = [gold.format(n=n // predictions_per_gold) for n in range(N_PAIRS)]
        texts = [predicted.format(n=n) for n in range(N_PAIRS)]
        name = f"comparing {N_ROWS:,} rows, {label}"
        pairs = run_turns({name: partial(compare, path, texts, golds, score)}, report.turns, warm_up=0)[name]
        ours, python = zip(*pairs, strict=True)
        report.add(name, [1e3 * value for value in ours], "ms")
        # The fastest turn: on a busy machine the others measure the machine.
        report.add(f"{name}: Python / ours", min(python) / min(ours), "x", COMPARISON_GOAL)


def compare(path: Path, texts: list[str], golds: list[str], score: float) -> tuple[float, float]:
    """Return the seconds that a comparison takes here and with Python's sets."""
    paths = [path] * len(texts)
    with Executor(threads=1) as ex:
        ex.score_many(paths, ["SELECT 1"] * len(texts), golds)  # now the golds are cached, and below the predictions
        predicted, references = (
            ex.execute_many([*zip(paths, texts, strict=True)]),
            ex.execute_many([*zip(paths, golds, strict=True)]),
        )
        before = ex.stats()["runs"]
        ours, scores = time_call(lambda: ex.score_many(paths, texts, golds))
        assert ex.stats()["runs"] == before, "something was run again"
    assert scores["bird"].tolist() == [score] * len(texts)
    seconds = []
    for a, b in zip(predicted, references, strict=True):
        mine, theirs = a.rows, b.rows
        item, is_equal = time_call(lambda mine=mine, theirs=theirs: set(map(tuple, mine)) == set(map(tuple, theirs)))
        assert is_equal == bool(score)
        seconds.append(item)
    return ours / len(texts), min(seconds)


def main() -> int:
    """Measure the parts; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--overshoot", type=Path, default=ROOT / "target" / "release" / "examples" / "overshoot")
    parser.add_argument("--only", choices=("overshoot", "timeouts", "comparison"))
    options = parser.parse_args()
    if options.only in {None, "overshoot"} and not options.overshoot.is_file():
        parser.error(f"{options.overshoot} is not built: make bench-bounds")
    report = Report(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bounds.sqlite"
        sqlite3.connect(path).execute("CREATE TABLE t(x)").connection.close()
        if options.only in {None, "overshoot"}:
            overshoots(report, options.overshoot)
        if options.only in {None, "timeouts"}:
            false_timeouts(report, path)
        if options.only in {None, "comparison"}:
            comparisons(report, path)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
