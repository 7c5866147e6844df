"""Run the quickstart with several seeds and print what GRPO adds to greedy accuracy on unseen databases.

`python scripts/quickstart_seeds.py [--seeds 0 1 2] [key.sub=value …]`; each run has its folder in `--out`; one
that is already there is read instead of made again.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from jaxrl_sql.report.load import load_run, series


def run_once(config: str, folder: Path, seed: int, overrides: list[str]) -> float:
    """Train with one seed unless its report is there; return the minutes that it took (0 when it was there)."""
    if (folder / "report.html").exists():
        return 0.0
    began = time.perf_counter()
    command = [sys.executable, "-m", "jaxrl_sql.train", "--config", config, f"seed={seed}", f"run.dir={folder}"]
    subprocess.run([*command, *overrides], check=True)
    return (time.perf_counter() - began) / 60


def main() -> int:
    """Print the table; the exit code is 1 when the mean gain is below 10 points."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart_seeds"))
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    given = parser.parse_args()
    lines, gains = ["seed  before   after    gain   SQL wait   minutes"], []
    for seed in given.seeds:
        folder = given.out / f"seed{seed}"
        minutes = run_once(given.config, folder, seed, given.overrides)
        run = load_run(folder)
        accuracy = [value for _, value in series(run, "eval/dev_unseen/accuracy")]
        waits, steps = (sum(value for _, value in series(run, f"time/{name}")) for name in ("sql_wait", "step"))
        before, after = 100 * accuracy[0], 100 * accuracy[-1]
        gains.append(after - before)
        share = f"{100 * waits / steps:.2f} %"
        lines.append(f"{seed:4d}  {before:5.1f} %  {after:5.1f} %  {after - before:+5.1f}  {share:>8}  {minutes:8.1f}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
    lines.append(f"mean gain {statistics.mean(gains):+.1f} points (std {spread:.1f}); largest process {peak:.1f} GiB")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if statistics.mean(gains) >= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
