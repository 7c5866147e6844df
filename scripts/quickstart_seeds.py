"""Run the quickstart with several seeds and print GRPO's gain in greedy accuracy on unseen databases.

`dev` holds unseen databases of known domains, `dev_unseen` databases of unseen domains.

`python scripts/quickstart_seeds.py [--seeds 0 1 2] [key.sub=value …]`; each run has a folder in `--out`. An
existing run is read and not repeated.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import machine_facts, write_result

from jaxrl_sql.report.load import load_run, series

SETS = ("dev", "dev_unseen")
GOAL = 10


def run_once(config: str, folder: Path, seed: int, overrides: list[str]) -> float:
    """Train with one seed unless its report exists; return the minutes (0 if it existed)."""
    if (folder / "report.html").exists():
        return 0.0
    start_time = time.perf_counter()
    command = [sys.executable, "-m", "jaxrl_sql.train", "--config", config, f"seed={seed}", f"run.dir={folder}"]
    subprocess.run([*command, *overrides], check=True)
    return (time.perf_counter() - start_time) / 60


def main() -> int:
    """Print a table per evaluated set; the exit code is 1 if the mean gain on any set is below 10 points."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart_seeds"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accuracies and facts of the machine")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    options = parser.parse_args()
    lines, gains = ["seed  set           before   after    gain   SQL wait   minutes"], {name: [] for name in SETS}
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        folder = options.out / f"seed{seed}"
        minutes = run_once(options.config, folder, seed, options.overrides)
        run = load_run(folder)
        waits, steps = (sum(value for _, value in series(run, f"time/{name}")) for name in ("sql_wait", "step"))
        for name in SETS:
            accuracy = [100 * value for _, value in series(run, f"eval/{name}/accuracy")]
            before, after = accuracy[0], accuracy[-1]
            gains[name].append(after - before)
            for time_of, value in (("before", before), ("after", after)):
                column = f"{name}, {time_of}"
                rows.append({"name": f"seed {seed}", "column": column, "median": round(value, 1), "unit": "%"})
            lines.append(
                f"{seed:4d}  {name:12}  {before:5.1f} %  {after:5.1f} %  {after - before:+5.1f}"
                f"  {100 * waits / steps:6.2f} %  {minutes:8.1f}"
            )
    for name, points in gains.items():
        spread = statistics.stdev(points) if len(points) > 1 else 0.0
        lines.append(f"{name}: mean gain {statistics.mean(points):+.1f} points (std {spread:.1f}; goal +{GOAL})")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    lines.append(f"largest process {peak:.1f} GiB")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json is not None:
        write_result(options.json, rows, machine_facts())
    return 0 if all(statistics.mean(points) >= GOAL for points in gains.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
