"""Throughput and peak memory of a command that answers questions."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Speed:
    """Questions answered since the command started, tokens generated for them, and seconds of answering.

    The seconds, `answering_s`, include compilation. `clock` counts seconds. Answers of an earlier, interrupted command
    are not counted.
    """

    clock: Callable[[], float] = time.perf_counter
    questions: int = 0
    tokens: int = 0
    answering_s: float = 0.0
    start_time: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.start_time = self.clock()

    def add(self, questions: int, tokens: int, seconds: float) -> None:
        """Count questions that were answered, the tokens generated for them, and the seconds that this took."""
        self.questions, self.tokens = self.questions + questions, self.tokens + tokens
        self.answering_s += seconds

    @property
    def tokens_per_s(self) -> float:
        """Return the generated tokens per second of answering."""
        return self.tokens / self.answering_s if self.answering_s else 0.0

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics by name; times in seconds, memory in bytes."""
        return {
            "questions": self.questions,
            "tokens": self.tokens,
            "speed/tokens_per_s": self.tokens_per_s,
            "time/answering": self.answering_s,
            "time/total": self.clock() - self.start_time,
            "memory/peak": peak_memory(),
        }


def peak_memory() -> int:
    """Return the peak host memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
