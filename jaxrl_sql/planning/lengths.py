"""Distributions of prompt and answer lengths, and the schedule of decode steps that follows from them."""

from __future__ import annotations

import heapq
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl_sql.types import InputError

# Seed of the order of answers, which is independent of their lengths.
_ORDER = 0


class Lengths(NamedTuple):
    """A distribution of lengths in tokens by equally likely sorted `values`, with linear interpolation."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean length."""
        return float(np.mean(self.values))

    @property
    def most(self) -> int:
        """Return the longest length."""
        return math.ceil(self.values[-1])

    def take(self, count: int) -> np.ndarray:
        """Return `count` evenly spaced quantiles [count] int64, the longest last."""
        at = (np.arange(count) + 1) / max(count, 1)
        return np.ceil(np.quantile(self.values, at)).astype(np.int64)


class StepLengths(NamedTuple):
    """The lengths of a step's answers and prompts; None if all have the most tokens.

    schema: length of the common prefix of a database's prompts in tokens.
    """

    answers: Lengths | None = None
    prompts: Lengths | None = None
    schema: int = 0


ALL_LONGEST = StepLengths()


class Schedule(NamedTuple):
    """The decode steps of a rollout on one engine, and means over them.

    rows: decoding slots; generated: tokens of their answers so far; held: the same in whole blocks; prompts: prompts
    that they attend to. For answers begun in the previous rollout: resumed (their tokens) and again (their prompts)
    are computed a second time.
    """

    steps: float
    rows: float
    generated: float
    held: float
    prompts: float
    resumed: float = 0.0
    again: float = 0.0


def longest(most: int) -> Lengths:
    """Return the distribution in which all lengths are `most`."""
    return Lengths((float(most),))


def between(mean: float, most: int) -> Lengths:
    """Return the maximum-entropy distribution on [0, `most`] with this mean.

    It is a truncated exponential distribution (Jaynes 1957), here by a thousand of its quantiles.
    """
    if mean >= most:
        return longest(most)
    low, high = -2000.0 / most, 2000.0 / most
    for _ in range(200):  # bisection: the mean decreases with the rate
        rate = (low + high) / 2
        low, high = (rate, high) if _mean(rate, most) > mean else (low, rate)
    share = (np.arange(1000) + 0.5) / 1000
    if abs(rate * most) < 1e-6:
        return Lengths(tuple((share * most).tolist()))
    return Lengths(tuple((-np.log1p(share * np.expm1(-rate * most)) / rate).tolist()))


def _mean(rate: float, most: int) -> float:
    """Return the mean of the exponential distribution of a rate on [0, most]."""
    x = rate * most
    return most * (0.5 - x / 12 if abs(x) < 1e-4 else 1 / x - 1 / math.expm1(x) if x < 500 else 1 / x)


def read_lengths(text: str, key: str, limit: str, most: int) -> Lengths | None:
    """Read the value of the option `key`: a mean, MEAN:MAX, or a file of lengths; None for "" and 0.

    The file has a number per line, or is a JSON list. Raises InputError for invalid lengths, and for lengths above
    `most`, the value of the setting `limit`.
    """
    if text in {"", "0"}:
        return None
    up_to = f"of up to {limit}={most} tokens"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+))?", text):
        mean, top = float(match[1]), int(match[2] or most)
        if not 0 < mean <= top <= most:
            raise InputError(f"{key} {text}: expected a mean, or MEAN:MAX, {up_to}")
        return between(mean, top)
    try:
        content = Path(text).read_text(encoding="utf-8").strip()
        numbers = json.loads(content) if content.startswith("[") else content.split()
        values = sorted(float(number) for number in numbers)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{key} {text}: neither MEAN, MEAN:MAX, nor a file of numbers, one per line") from error
    if not values or values[0] < 0 or values[-1] > most:
        raise InputError(f"{key} {text}: expected lengths {up_to}")
    return Lengths(tuple(values))


def shuffled(lengths: np.ndarray) -> np.ndarray:
    """Return lengths in a fixed random order."""
    return np.random.default_rng(_ORDER).permutation(lengths)


def schedule(lengths: Lengths, questions: int, group: int, slots: int, block: int = 1) -> Schedule:
    """Return the schedule of `group` answers per question; a free slot takes the next answer.

    Each step adds a token to all rows, so the number of steps is that of the longest chain of answers in a slot.
    `block`: tokens per block of an answer's cache.
    """
    taken = shuffled(lengths.take(questions * group)).clip(1).tolist()
    free, steps, read = [0] * min(slots, len(taken)), 0, 0
    for first in range(0, len(taken), group):
        ends, begins = [], []
        for length in taken[first : first + group]:
            begin = heapq.heappop(free)
            heapq.heappush(free, begin + length)
            begins.append(begin)
            ends.append(begin + length)
        steps = max(steps, *ends)
        read += max(ends) - min(begins)
    written = sum(taken)
    written_before = sum(length * (length + 1) / 2 for length in taken)
    held = sum(_in_blocks(length, block) for length in taken)
    return Schedule(steps, written / steps, written_before / steps, held / steps, read / steps)


# Number of consecutive simulated rollouts, and of the first ones that are not averaged.
_ROLLOUTS, _FIRST = 8, 2


def schedule_ahead(lengths: Lengths, questions: int, group: int, slots: int, block: int = 1) -> Schedule:
    """Return the mean schedule of rollouts whose free slots take answers of the next rollout (`rollout.ahead`).

    A rollout ends with its last answer, and answers that it began are continued first in the next rollout.
    """
    taken = np.sort(lengths.take(questions * group).clip(1))
    orders = [np.random.default_rng(number).permutation(taken).tolist() for number in range(_ROLLOUTS + 1)]
    counted, done = list[tuple[float, float, float, float]](), [0] * (questions * group)
    for now, later in pairwise(orders):
        left = [length - have for length, have in zip(now, done, strict=True)]
        # (tokens left, question, answer), begun answers first; the next rollout's questions have separate numbers.
        order = sorted(range(len(now)), key=lambda i: done[i] == 0)
        requests = [(left[i], i // group, i) for i in order if left[i]]
        requests += [(length, questions + i // group, len(now) + i) for i, length in enumerate(later)]
        free, end, spans = [0] * slots, 0, dict[int, tuple[int, int]]()
        ahead = [0] * len(now)
        for wanted, question, answer in requests:
            begin = heapq.heappop(free)
            if question < questions:
                stop = begin + wanted
                end = max(end, stop)
            elif begin < end:
                stop = min(begin + wanted, end)
                ahead[answer - len(now)] = stop - begin
            else:
                break
            heapq.heappush(free, stop)
            first, last = spans.get(question, (begin, 0))
            spans[question] = first, max(last, stop)
        begun = [have for have, length in zip(done, now, strict=True) if 0 < have < length]
        again = len({i // group for i in range(len(now)) if done[i]} & {i // group for i in range(len(now)) if left[i]})
        counted.append((end, sum(last - first for first, last in spans.values()), sum(begun), again))
        done = ahead
    steps, read, resumed, again = np.mean(counted[_FIRST:], axis=0).tolist()
    written_before = sum(length * (length + 1) / 2 for length in taken.tolist())
    held = sum(_in_blocks(length, block) for length in taken.tolist())
    return Schedule(
        steps, float(taken.sum()) / steps, written_before / steps, held / steps, read / steps, resumed, again
    )


def _in_blocks(length: int, block: int) -> float:
    """Return the sum over n = 1, 2, … `length` of n rounded up to whole blocks."""
    whole, rest = divmod(length, block)
    return block * (block * whole * (whole + 1) / 2 + rest * (whole + 1))
