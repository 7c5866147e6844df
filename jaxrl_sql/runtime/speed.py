"""How fast a command answers, and the most memory that it took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Speed:
    """Questions answered since the command began, tokens written for them, and the seconds that took (compiling too).

    `clock` counts seconds. What an earlier, broken-off command answered is not in it.
    """

    clock: Callable[[], float] = time.perf_counter
    questions: int = 0
    tokens: int = 0
    answering: float = 0.0
    began: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count."""
        self.began = self.clock()

    def add(self, questions: int, tokens: int, seconds: float) -> None:
        """Count questions that were answered."""
        self.questions, self.tokens = self.questions + questions, self.tokens + tokens
        self.answering += seconds

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens written a second of answering."""
        return self.tokens / self.answering if self.answering else 0.0

    def metrics(self) -> Mapping[str, float]:
        """Return all numbers by name; seconds, and bytes of memory."""
        return {
            "questions": self.questions,
            "tokens": self.tokens,
            "speed/tokens_per_s": self.tokens_per_s,
            "time/answering": self.answering,
            "time/total": self.clock() - self.began,
            "memory/peak": peak_memory(),
        }


def peak_memory() -> int:
    """Return the most memory that this process has had, in bytes (host memory; not that of an accelerator)."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10
