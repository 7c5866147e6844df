"""Distributions of prompt and answer lengths, and the schedule of decode steps that follows from them.

A rollout samples `group` answers to each of `questions` questions. An engine decodes one answer per slot, and a free
slot takes the next answer. So lengths determine the number of decode steps, and how many slots are busy in them.
"""

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
_ORDER_SEED = 0


class Lengths(NamedTuple):
    """A distribution of lengths in tokens, by sorted and equally likely `values`, with linear interpolation."""

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
        """Return `count` evenly spaced quantiles [count] int64 in ascending order, with the maximum as the last."""
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
    """The decode steps of a rollout on one engine, and means over these steps.

    steps: number of decode steps.
    rows: mean number of decoding slots.
    generated: mean total of the tokens of their answers so far; block_tokens: the same, rounded up to whole KV blocks.
    prompts: mean number of prompts that they attend to.
    resumed_tokens, repeated_prompts: answers that the previous rollout began ahead continue with new weights, so their
        tokens and their prompts are computed again. These are the numbers of such tokens and prompts in the rollout.
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

    It is a truncated exponential distribution (Jaynes 1957), here represented by a thousand of its quantiles.
    """
    if mean >= max_length:
        return constant(max_length)
    low, high = -2000.0 / max_length, 2000.0 / max_length
    for _ in range(200):  # bisection: the mean decreases with the rate
        rate = (low + high) / 2
        low, high = (rate, high) if _mean(rate, max_length) > mean else (low, rate)
    probabilities = (np.arange(1000) + 0.5) / 1000
    if abs(rate * max_length) < 1e-6:  # the limit of rate 0 is the uniform distribution
        return Lengths(tuple((probabilities * max_length).tolist()))
    return Lengths(tuple((-np.log1p(probabilities * np.expm1(-rate * max_length)) / rate).tolist()))


def _mean(rate: float, max_length: int) -> float:
    """Return the mean of the exponential distribution of a rate (possibly negative) on [0, `max_length`]."""
    x = rate * max_length
    # A series near 0, and an approximation where expm1 would overflow.
    return max_length * (0.5 - x / 12 if abs(x) < 1e-4 else 1 / x - 1 / math.expm1(x) if x < 500 else 1 / x)


def read_lengths(text: str, key: str, limit: str, max_length: int) -> Lengths | None:
    """Read the value `text` of the option `key`: a mean, MEAN:MAX, or a file of lengths; None for "" and 0.

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
    return np.random.default_rng(_ORDER_SEED).permutation(lengths)


def schedule(lengths: Lengths, questions: int, group: int, slots: int, block: int = 1) -> Schedule:
    """Return the schedule of a rollout in which a free slot takes the next answer.

    Each step adds a token to the answer of each busy slot. So the number of steps is the largest sum of the lengths of
    a slot's successive answers. block: tokens per KV block of an answer.
    """
    answer_lengths = shuffle_lengths(lengths.take(questions * group)).clip(1).tolist()
    free_at, steps = [0] * min(slots, len(answer_lengths)), 0  # steps at which the slots become free (a heap)
    prompt_steps = 0  # sum over prompts of the steps in which its answers are decoded
    for first in range(0, len(answer_lengths), group):
        ends, starts = [], []
        for length in answer_lengths[first : first + group]:
            start = heapq.heappop(free_at)
            heapq.heappush(free_at, start + length)
            starts.append(start)
            ends.append(start + length)
        steps = max(steps, *ends)
        prompt_steps += max(ends) - min(starts)
    total = sum(answer_lengths)
    # Summed over all steps: an answer of n tokens has 1, 2, … n tokens in its n steps.
    cached_tokens = sum(length * (length + 1) / 2 for length in answer_lengths)
    block_tokens = sum(_in_blocks(length, block) for length in answer_lengths)
    return Schedule(steps, total / steps, cached_tokens / steps, block_tokens / steps, prompt_steps / steps)


# Number of consecutive simulated rollouts. The first of them are not averaged, as they have no or few begun answers.
_NUM_ROLLOUTS, _NUM_WARMUP = 8, 2


def schedule_ahead(lengths: Lengths, questions: int, group: int, slots: int, block: int = 1) -> Schedule:
    """Return the mean schedule of rollouts whose free slots take answers of the next rollout (`rollout.ahead`).

    The rollout ends with its own last answer. Answers of the next rollout that are unfinished then are continued first
    in the next rollout. The arguments are those of `schedule`.
    """
    answer_lengths = np.sort(lengths.take(questions * group).clip(1))
    orders = [np.random.default_rng(seed).permutation(answer_lengths).tolist() for seed in range(_NUM_ROLLOUTS + 1)]
    simulated, generated_before = list[tuple[float, float, float, float]](), [0] * (questions * group)
    for lengths_now, lengths_next in pairwise(orders):
        remaining_lengths = [
            length - generated for length, generated in zip(lengths_now, generated_before, strict=True)
        ]
        # (remaining tokens, question, answer), begun answers first. Questions and answers of the next rollout have the
        # numbers after those of this rollout.
        order = sorted(range(len(lengths_now)), key=lambda i: generated_before[i] == 0)
        requests = [(remaining_lengths[i], i // group, i) for i in order if remaining_lengths[i]]
        requests += [(length, questions + i // group, len(lengths_now) + i) for i, length in enumerate(lengths_next)]
        # Steps at which slots become free, the last step of the rollout, and first and last step by question.
        free_at, end, spans = [0] * slots, 0, dict[int, tuple[int, int]]()
        generated_ahead = [0] * len(lengths_now)
        for remaining, question, answer in requests:
            start = heapq.heappop(free_at)
            if question < questions:
                stop = start + remaining
                end = max(end, stop)
            elif start < end:  # an answer of the next rollout
                stop = min(start + remaining, end)
                generated_ahead[answer - len(lengths_now)] = stop - start
            else:  # no slot becomes free before the end
                break
            heapq.heappush(free_at, stop)
            first, last = spans.get(question, (start, 0))
            spans[question] = first, max(last, stop)
        resumed_lengths = [
            generated for generated, length in zip(generated_before, lengths_now, strict=True) if 0 < generated < length
        ]
        # Prompts that the previous rollout prefilled and that this rollout needs.
        repeated_prompts = len(
            {i // group for i in range(len(lengths_now)) if generated_before[i]}
            & {i // group for i in range(len(lengths_now)) if remaining_lengths[i]}
        )
        prompt_steps = sum(last - first for first, last in spans.values())
        simulated.append((end, prompt_steps, sum(resumed_lengths), repeated_prompts))
        generated_before = generated_ahead
    mean_steps, mean_prompt_steps, resumed_tokens, mean_repeated = np.mean(simulated[_NUM_WARMUP:], axis=0).tolist()
    cached_tokens = sum(length * (length + 1) / 2 for length in answer_lengths.tolist())
    block_tokens = sum(_in_blocks(length, block) for length in answer_lengths.tolist())
    return Schedule(
        mean_steps,
        float(answer_lengths.sum()) / mean_steps,
        cached_tokens / mean_steps,
        block_tokens / mean_steps,
        mean_prompt_steps / mean_steps,
        resumed_tokens,
        mean_repeated,
    )


def _in_blocks(length: int, block: int) -> float:
    """Return the sum over n = 1, 2, … `length` of n rounded up to whole blocks."""
    whole, rest = divmod(length, block)
    return block * (block * whole * (whole + 1) / 2 + rest * (whole + 1))
