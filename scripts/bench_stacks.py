"""Time our GRPO step beside two well-known stacks on the same work, in turns within one run.

A Qwen3 of 4 layers, width 256, feed-forward 768, 4 query and 2 key/value heads of 64, vocabulary 4,096 (float32); 8
prompts of 256 tokens, 8 answers each of 128 new tokens, KL 0.04, one update. Each stack is a process of its own that
stays warm and waits for its turn; figures are medians of `--runs`. The goal is 2.5 times the better of them. With
`--bfloat16` each stack has its own bfloat16 over weights in float32, ours `model.compute_dtype` and TRL autocast; ours
in float32 takes turns with them, and its step is to take twice as long.

The others are never dependencies of ours. Each gets an environment of its own:

    python -m venv DIR && DIR/bin/pip install trl torch datasets accelerate      (measured with trl 1.16, torch 2.13)
    python -m venv DIR2 && DIR2/bin/pip install google-tunix                     (measured with 0.1.7)
    python scripts/bench_stacks.py --trl-python DIR/bin/python --tunix-python DIR2/bin/python

The value may be a command, such as "env PYTHONPATH=FOLDER/site-packages DIR/bin/python"; a folder with TRL's packages
has to be called site-packages, or the data set that its worker makes cannot be hashed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from stack_turns import BFLOAT16, QUICK

GOAL = 2.5
OWN_GOAL = 2.0  # of bfloat16 over float32
HERE = Path(__file__).parent


class Worker:
    """A stack that runs in a process of its own and makes a step when it is told to."""

    def __init__(self, name: str, python: list[str], bfloat16: bool) -> None:
        self.name = f"{name}, bfloat16" if bfloat16 else name
        self.taken: list[dict[str, float]] = []
        script = HERE / f"stack_{name}.py"
        environment = {**os.environ, BFLOAT16: "1"} if bfloat16 else None
        self.process = subprocess.Popen(
            [*python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.versions = self._read()["versions"]

    def step(self) -> None:
        """Make a step and keep its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.taken.append(self._read())

    def median(self) -> dict[str, float]:
        """Return each part's median."""
        return {part: statistics.median(one[part] for one in self.taken) for part in self.taken[0]}

    def close(self) -> None:
        """Let the process end, or end it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self) -> dict:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said:
            sys.exit(f"bench_stacks: {self.name} ended with code {self.process.wait()}")
        return json.loads(said)


def main() -> int:
    """Print a line a stack and the ratio; the exit code is 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", default="", help="a Python that has trl")
    parser.add_argument("--tunix-python", default="", help="a Python that has tunix")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bfloat16", action="store_true", help="each in its own bfloat16; Tunix is left out")
    parser.add_argument("--quick", action="store_true", help="a smoke run on little work: shows that all of it runs")
    given = parser.parse_args()
    if given.quick:
        os.environ[QUICK] = "1"
    others = {"trl": given.trl_python} if given.bfloat16 else {"trl": given.trl_python, "tunix": given.tunix_python}
    pythons = {name: shlex.split(python) for name, python in others.items() if python}
    if not pythons:
        parser.error(f"name at least one of {', '.join(f'--{name}-python' for name in others)}")
    pythons = {"ours": [sys.executable], **pythons}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, medians of {given.runs}", flush=True)
    workers: list[Worker] = []
    try:
        if given.bfloat16:
            workers.append(Worker("ours", pythons["ours"], bfloat16=False))
        for name, python in pythons.items():
            workers.append(Worker(name, python, given.bfloat16))
        for _ in range(given.runs):
            for worker in workers:
                worker.step()
    finally:
        for worker in workers:
            worker.close()
    medians = {worker.name: worker.median() for worker in workers}
    for worker in workers:
        parts = medians[worker.name]
        told = ", ".join(f"{part} {parts[part]:.2f}" for part in ("rollout", "reference", "update") if part in parts)
        print(f"{worker.name}: {parts['step']:.2f} s a step ({told}); {worker.versions}")
    ours = next(worker.name for worker in reversed(workers) if worker.name.startswith("ours"))
    best, other = min((parts["step"], name) for name, parts in medians.items() if not name.startswith("ours"))
    reached = compare(best / medians[ours]["step"], f"the better one, {other}", GOAL)
    if given.bfloat16:
        reached &= compare(medians["ours"]["step"] / medians[ours]["step"], "ours in float32", OWN_GOAL)
    return 0 if reached or given.quick else 1


def compare(ratio: float, what: str, goal: float) -> bool:
    """Print how many times faster our step is than what; say whether the goal is reached."""
    print(f"{ratio:.2f}x {what} (goal {goal}x)")
    return ratio >= goal


if __name__ == "__main__":
    sys.exit(main())
