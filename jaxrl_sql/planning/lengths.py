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
    def maximum(self) -> int:
        """Return the longest length."""
        return math.ceil(self.values[-1])

    def take(self, count: int) -> np.ndarray:
        """Return `count` evenly spaced quantiles [count] int64, the longest last."""
        quantiles = (np.arange(count) + 1) / max(count, 1)
        return np.ceil(np.quantile(self.values, quantiles)).astype(np.int64)


class StepLengths(NamedTuple):
    """The lengths of a step's answers and prompts; None if all have the maximum length.

    schema: length of the common prefix of a database's prompts in tokens.
    """

    answers: Lengths | None = None
    prompts: Lengths | None = None
    schema: int = 0


ALL_LONGEST = StepLengths()


class Schedule(NamedTuple):
    """The decode steps of a rollout on one engine, and means over them.

    rows: decoding slots; generated: tokens of their answers so far; block_tokens: the same in whole blocks; prompts:
    prompts that they attend to. For answers begun in the previous rollout, `resumed_tokens` and `repeated_prompts` are
    computed a second time.
    """

    steps: float
    rows: float
    generated: float
    block_tokens: float
    prompts: float
    resumed_tokens: float = 0.0
    repeated_prompts: float = 0.0


def constant(max_length: int) -> Lengths:
    """Return the distribution in which all lengths are `max_length`."""
    return Lengths((float(max_length),))


def truncated_exponential(mean: float, max_length: int) -> Lengths:
    """Return the maximum-entropy distribution on [0, `max_length`] with this mean.

    It is a truncated exponential distribution (Jaynes 1957), here by a thousand of its quantiles.
    """
    if mean >= max_length:
        return constant(max_length)
    low, high = -2000.0 / max_length, 2000.0 / max_length
    for _ in range(200):  # bisection: the mean decreases with the rate
        rate = (low + high) / 2
        low, high = (rate, high) if _mean(rate, max_length) > mean else (low, rate)
    share = (np.arange(1000) + 0.5) / 1000
    if abs(rate * max_length) < 1e-6:
        return Lengths(tuple((share * max_length).tolist()))
    return Lengths(tuple((-np.log1p(share * np.expm1(-rate * max_length)) / rate).tolist()))


def _mean(rate: float, max_length: int) -> float:
    """Return the mean of the exponential distribution of a rate on [0, `max_length`]."""
    x = rate * max_length
    return max_length * (0.5 - x / 12 if abs(x) < 1e-4 else 1 / x - 1 / math.expm1(x) if x < 500 else 1 / x)


def read_lengths(text: str, key: str, limit: str, max_length: int) -> Lengths | None:
    """Read the value of the option `key`: a mean, MEAN:MAX, or a file of lengths; None for "" and 0.

    The file has a number per line, or is a JSON list. Raises InputError for invalid lengths, and for lengths above
    `max_length`, the value of the setting `limit`.
    """
    if text in {"", "0"}:
        return None
    limit_text = f"of up to {limit}={max_length} tokens"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+))?", text):
        mean, high = float(match[1]), int(match[2] or max_length)
        if not 0 < mean <= high <= max_length:
            raise InputError(f"{key} {text}: expected a mean, or MEAN:MAX, {limit_text}")
        return truncated_exponential(mean, high)
    try:
        content = Path(text).read_text(encoding="utf-8").strip()
        numbers = json.loads(content) if content.startswith("[") else content.split()
        values = sorted(float(number) for number in numbers)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{key} {text}: neither MEAN, MEAN:MAX, nor a file of numbers, one per line") from error
    if not values or values[0] < 0 or values[-1] > max_length:
        raise InputError(f"{key} {text}: expected lengths {limit_text}")
    return Lengths(tuple(values))


def shuffle_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return lengths in a fixed random order."""
    return np.random.default_rng(_ORDER).permutation(lengths)


def schedule(lengths: Lengths, questions: int, group: int, slots: int, block: int = 1) -> Schedule:
    """Return the schedule of `group` answers per question; a free slot takes the next answer.

    Each step adds a token to all rows, so the number of steps is that of the longest chain of answers in a slot.
    `block`: tokens per block of an answer's cache.
    """
    answer_lengths = shuffle_lengths(lengths.take(questions * group)).clip(1).tolist()
    free_at, steps, prompt_steps = [0] * min(slots, len(answer_lengths)), 0, 0
    for first in range(0, len(answer_lengths), group):
        ends, starts = [], []
        for length in answer_lengths[first : first + group]:
            start_time = heapq.heappop(free_at)
            heapq.heappush(free_at, start_time + length)
            starts.append(start_time)
            ends.append(start_time + length)
        steps = max(steps, *ends)
        prompt_steps += max(ends) - min(starts)
    total = sum(answer_lengths)
    cached_tokens = sum(length * (length + 1) / 2 for length in answer_lengths)
    block_tokens = sum(_in_blocks(length, block) for length in answer_lengths)
    return Schedule(steps, total / steps, cached_tokens / steps, block_tokens / steps, prompt_steps / steps)


# Number of consecutive simulated rollouts, and of the first ones that are not averaged.
_ROLLOUTS, _FIRST = 8, 2


def schedule_ahead(lengths: Lengths, questions: int, group: int, slots: int, block: int = 1) -> Schedule:
    """Return the mean schedule of rollouts whose free slots take answers of the next rollout (`rollout.ahead`).

    A rollout ends with its last answer, and answers that it began are continued first in the next rollout.
    """
    answer_lengths = np.sort(lengths.take(questions * group).clip(1))
    orders = [np.random.default_rng(number).permutation(answer_lengths).tolist() for number in range(_ROLLOUTS + 1)]
    simulated, generated_before = list[tuple[float, float, float, float]](), [0] * (questions * group)
    for lengths_now, lengths_next in pairwise(orders):
        remaining_lengths = [
            length - generated for length, generated in zip(lengths_now, generated_before, strict=True)
        ]
        # (tokens left, question, answer), begun answers first; the next rollout's questions have separate numbers.
        order = sorted(range(len(lengths_now)), key=lambda i: generated_before[i] == 0)
        requests = [(remaining_lengths[i], i // group, i) for i in order if remaining_lengths[i]]
        requests += [(length, questions + i // group, len(lengths_now) + i) for i, length in enumerate(lengths_next)]
        free_at, end, spans = [0] * slots, 0, dict[int, tuple[int, int]]()
        generated_ahead = [0] * len(lengths_now)
        for remaining, question, answer in requests:
            start_time = heapq.heappop(free_at)
            if question < questions:
                stop = start_time + remaining
                end = max(end, stop)
            elif start_time < end:
                stop = min(start_time + remaining, end)
                generated_ahead[answer - len(lengths_now)] = stop - start_time
            else:
                break
            heapq.heappush(free_at, stop)
            first, last = spans.get(question, (start_time, 0))
            spans[question] = first, max(last, stop)
        resumed_lengths = [
            generated for generated, length in zip(generated_before, lengths_now, strict=True) if 0 < generated < length
        ]
        again = len(
            {i // group for i in range(len(lengths_now)) if generated_before[i]}
            & {i // group for i in range(len(lengths_now)) if remaining_lengths[i]}
        )
        simulated.append((end, sum(last - first for first, last in spans.values()), sum(resumed_lengths), again))
        generated_before = generated_ahead
    steps, prompt_steps, resumed, again = np.mean(simulated[_FIRST:], axis=0).tolist()
    cached_tokens = sum(length * (length + 1) / 2 for length in answer_lengths.tolist())
    block_tokens = sum(_in_blocks(length, block) for length in answer_lengths.tolist())
    return Schedule(
        steps,
        float(answer_lengths.sum()) / steps,
        cached_tokens / steps,
        block_tokens / steps,
        prompt_steps / steps,
        resumed,
        again,
    )


def _in_blocks(length: int, block: int) -> float:
    """Return the sum over n = 1, 2, … `length` of n rounded up to whole blocks."""
    whole, rest = divmod(length, block)
    return block * (block * whole * (whole + 1) / 2 + rest * (whole + 1))
