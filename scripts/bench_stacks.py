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
import os
import shlex
import sys
from pathlib import Path

from stack_turns import BFLOAT16, QUICK, Worker

GOAL = 2.5
OWN_GOAL = 2.0  # of bfloat16 over float32
HERE = Path(__file__).parent


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
            workers.append(worker_of("ours", pythons["ours"], bfloat16=False))
        for name, python in pythons.items():
            workers.append(worker_of(name, python, given.bfloat16))
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


def worker_of(name: str, python: list[str], bfloat16: bool) -> Worker:
    """Start a stack's process."""
    variables = {BFLOAT16: "1"} if bfloat16 else {}
    return Worker(f"{name}, bfloat16" if bfloat16 else name, [*python, str(HERE / f"stack_{name}.py")], variables)


def compare(ratio: float, what: str, goal: float) -> bool:
    """Print how many times faster our step is than what; say whether the goal is reached."""
    print(f"{ratio:.2f}x {what} (goal {goal}x)")
    return ratio >= goal


if __name__ == "__main__":
    sys.exit(main())
