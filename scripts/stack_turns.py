"""What a benchmark and its workers say to each other: "go" on standard input, a line of JSON back for each step.

A worker is a process of its own, so that its memory is as in a run, and waits while others take their turns. Only the
standard library, because bench_stacks.py's run in other environments.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

# The work that every stack does: a Qwen3 of this shape, prompts of random tokens, answers of full length, one update.
LAYERS, WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 4, 256, 768, 4, 2, 64, 4096
KL = 0.04
QUICK = "BENCH_STACKS_QUICK"  # in the environment: a smoke run, which measures nothing
BFLOAT16 = "BENCH_STACKS_BFLOAT16"  # in the environment: a stack's own bfloat16, over weights in float32
PROMPTS, PROMPT_TOKENS, GROUP, NEW_TOKENS = (2, 64, 4, 16) if os.environ.get(QUICK) else (8, 256, 8, 128)


class Turns:
    """A worker's side: libraries may print what they like, what is told goes to whoever started the worker."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def ready(self, versions: str) -> None:
        """Say that everything is compiled and warm."""
        self._say({"versions": versions})

    def wait(self) -> bool:
        """Wait for the next turn; False when there is none."""
        return sys.stdin.readline().strip() == "go"

    def tell(self, seconds: dict[str, float]) -> None:
        """Tell the seconds of a step and of its parts."""
        self._say(seconds)

    def serve(self, step: Callable[[], dict[str, float]]) -> None:
        """Make a step a turn until there are none."""
        while self.wait():
            self.tell(step())

    def _say(self, what: object) -> None:
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()


class Worker:
    """A benchmark's side: a process that makes a step when it is told to."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str] = {}) -> None:
        self.name = name
        self.taken: list[dict[str, float]] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
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
            sys.exit(f"{self.name} ended with code {self.process.wait()}")
        return json.loads(said)
