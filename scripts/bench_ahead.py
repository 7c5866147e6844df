"""Time steps whose free slots begin the next step's answers (`rollout.ahead`) beside steps that wait for the longest.

`python scripts/bench_ahead.py [--runs 3] [--steps 24] [settings…]`: the quickstart's model and questions on two devices
(virtual ones, of this machine's processors), a copy of the policy on each, runs of `train` in turns. A figure is the
median over the runs of a run's median step, without the first steps and those that compiled. Settings go to both.
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
# Few answers wait for the longest of them, as Think2SQL's do: each has a slot, and the longest is some three times the
# mean.
SETTINGS = (
    "mesh.fsdp=2", "rollout.mesh=2x1", "validation.max_num_seqs=32", "data.limit_eval=8", "grpo.prompts=8",
    "grpo.oversample=1", "rollout.max_num_seqs=64", "run.checkpoint_every=1000", "run.display=none",
)  # fmt: skip
# Steps that are left out of a run: a first rollout has nothing begun, and early ones compile.
WARM = 4
NUMBERS = ("time/step", "time/rollout", "rollout/steps", "rollout/stale_tokens", "policy/importance_capped")
GOAL = 1.2


def run(folder: Path, name: str, ahead: int, steps: int, settings: list[str]) -> dict[str, float]:
    """Train, and return the medians of a run's numbers."""
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
    warm = [row for row in rows if row.get("phase") == "grpo" and row["step"] > WARM and not row["time/compile"]]
    found = {key: statistics.median(row[key] for row in warm) for key in NUMBERS if key in warm[0]}
    return found | {"reward/mean": statistics.fmean(row["reward/mean"] for row in warm)}


def main() -> int:
    """Print both ways' numbers; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each")
    parser.add_argument("--steps", type=int, default=24, help="steps of a run")
    asked, settings = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        for ahead in (0, 1):  # compiles what the others read
            run(Path(folder), f"warm-{ahead}", ahead, asked.steps, settings)
        found = [
            [run(Path(folder), f"{number}-{ahead}", ahead, asked.steps, settings) for ahead in (0, 1)]
            for number in range(asked.runs)
        ]
    medians = [{key: statistics.median(one[key] for one in way) for key in way[0]} for way in zip(*found, strict=True)]
    for name, one in zip(("waits for the longest", "a step ahead"), medians, strict=True):
        print(f"{name:24}" + "  ".join(f"{key} {value:.4g}" for key, value in one.items()))
    ratio = medians[0]["time/step"] / medians[1]["time/step"]
    print(f"a step is {ratio:.2f}x as fast (goal {GOAL}x)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
