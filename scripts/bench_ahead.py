"""Time steps whose free slots begin the next step's answers (`rollout.ahead`) beside steps that wait for the longest.

`python scripts/bench_ahead.py [--runs 3] [--steps 72] [settings…]`: the quickstart's model and questions on two devices
(virtual ones, of this machine's processors), a copy of the policy on each, runs of `train` in turns. At a temperature
of 1.1 most answers end after some thirty tokens and one of fifteen goes on to the limit of 1,024, so a rollout waits
for few. A figure is the median over the runs of a run's mean step, without the first third, in which shapes are new. A
short rollout follows a long one, where the longest was begun a step before; so the mean of the steps that neither
compiled nor loaded a program is taken of either kind, and weighed by how many steps were of it. Settings go to both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each answer has a slot, and many wait for few.
SETTINGS = (
    "mesh.fsdp=2", "rollout.mesh=2x1", "validation.max_num_seqs=32", "data.limit_eval=8", "grpo.prompts=4",
    "grpo.oversample=2", "grpo.packing=true", "rollout.max_num_seqs=64", "sampling.max_new_tokens=1024",
    "sampling.temperature=1.1", "run.checkpoint_every=1000", "run.display=none",
)  # fmt: skip
NUMBERS = (
    "time/step", "time/rollout", "time/update", "rollout/steps", "length/mean", "rollout/stale_tokens",
    "policy/importance_capped", "reward/mean",
)  # fmt: skip
GOAL = 1.2


def run(folder: Path, name: str, ahead: int, steps: int, settings: list[str]) -> dict[str, float]:
    """Train, and return the means of a run's numbers."""
    out = folder / name
    command = [
        sys.executable, "-m", "jaxrl_sql.train", "--config", "configs/quickstart.yaml", *SETTINGS, *settings,
        f"run.dir={out}", f"rollout.ahead={ahead}", f"grpo.steps={steps}",
        f"run.compilation_cache={folder / 'compiled'}",
    ]  # fmt: skip
    patient = "--xla_cpu_collective_call_terminate_timeout_seconds=600"  # where other work keeps a device from its turn
    devices = {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": patient}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **devices}, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    late = [row for row in rows if row.get("phase") == "grpo" and row["step"] > steps // 3]
    found = {key: mean(late, key) for key in NUMBERS if key in late[0]}
    print(f"{name}: {sum(not row['time/compile'] for row in late)} of {len(late)} steps, " + told(found), flush=True)
    return found


def mean(rows: list[dict[str, float]], key: str) -> float:
    """Return the mean of a number over steps, those that compiled counted as those of their kind that did not."""
    most = max(row["rollout/steps"] for row in rows)
    kinds = [[row for row in rows if (row["rollout/steps"] > most / 2) == is_long] for is_long in (False, True)]
    return sum(
        len(kind) / len(rows) * statistics.fmean(row[key] for row in kind if not row["time/compile"])
        for kind in kinds
        if kind
    )


def told(numbers: dict[str, float]) -> str:
    """Return numbers as words."""
    return "  ".join(f"{key} {value:.4g}" for key, value in numbers.items())


def main() -> int:
    """Print both ways' numbers; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each")
    parser.add_argument("--steps", type=int, default=72, help="steps of a run")
    asked, settings = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [
            [run(Path(folder), f"{number}-{ahead}", ahead, asked.steps, settings) for ahead in (0, 1)]
            for number in range(asked.runs)
        ]
    medians = [{key: statistics.median(one[key] for one in way) for key in way[0]} for way in zip(*found, strict=True)]
    for name, one in zip(("waits for the longest", "a step ahead"), medians, strict=True):
        print(f"{name:24}" + told(one))
    ratio = medians[0]["time/step"] / medians[1]["time/step"]
    print(f"a step is {ratio:.2f}x as fast (goal {GOAL}x)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
