"""What bench_stacks.py and its workers say to each other: "go" on standard input, a line of JSON back for each step.

Only the standard library, because workers run in other environments.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

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
