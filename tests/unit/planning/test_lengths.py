"""Length distributions and the rollout schedules that follow from them, compared with plain loops."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from jaxrl_sql.planning.lengths import Lengths, constant, read_lengths, schedule, schedule_ahead, truncated_exponential
from jaxrl_sql.types import InputError


@pytest.mark.parametrize(("mean", "most"), [(1000, 4096), (2048, 4096), (3900, 4096), (40, 4096), (10, 20)])
def test_mean_and_maximum_give_an_exponential_distribution(mean: float, most: int) -> None:
    result = truncated_exponential(mean, most)
    assert result.mean == pytest.approx(mean, rel=0.01)
    assert 0 < result.values[0] <= result.values[-1] <= most
    if mean < most / 20:  # truncation has no effect on the median: ln 2 of the mean
        assert np.median(result.values) == pytest.approx(np.log(2) * mean, rel=0.02)


def test_constant_maximum_length_is_a_distribution() -> None:
    assert truncated_exponential(64, 64) == constant(64)
    assert constant(64).take(3).tolist() == [64, 64, 64]
    assert (constant(64).mean, constant(64).maximum) == (64, 64)


def test_lengths_are_evenly_spaced_quantiles() -> None:
    assert Lengths((0.0, 100.0)).take(4).tolist() == [25, 50, 75, 100]
    assert Lengths((1.0, 1.0, 9.0)).take(2).tolist() == [1, 9]


def test_lengths_are_read_from_arguments_and_files(tmp_path: Path) -> None:
    lines, listed = tmp_path / "lengths.txt", tmp_path / "lengths.json"
    lines.write_text("3\n1\n2\n", encoding="utf-8")
    listed.write_text("[3, 1, 2]", encoding="utf-8")
    key, limit = "--answer-tokens", "sampling.max_new_tokens"
    assert (
        read_lengths(str(lines), key, limit, 9) == read_lengths(str(listed), key, limit, 9) == Lengths((1.0, 2.0, 3.0))
    )
    assert read_lengths("5:8", key, limit, 9) == truncated_exponential(5, 8)
    assert read_lengths("5", key, limit, 9) == truncated_exponential(5, 9)
    assert read_lengths("", key, limit, 9) is read_lengths("0", key, limit, 9) is None
    for text in ("5:10", "10", "0:5", "8:5"):
        with pytest.raises(
            InputError, match=r"expected a mean, or MEAN:MAX, of up to sampling.max_new_tokens=9 tokens"
        ):
            read_lengths(text, key, limit, 9)
    lines.write_text("3\n10\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"expected lengths of up to sampling.max_new_tokens=9 tokens"):
        read_lengths(str(lines), key, limit, 9)
    lines.write_text("three\n", encoding="utf-8")
    for text in (str(lines), str(tmp_path / "none"), "-3", str(tmp_path)):
        with pytest.raises(InputError, match="neither MEAN, MEAN:MAX, nor a file of numbers"):
            read_lengths(text, key, limit, 9)


@pytest.mark.parametrize(("questions", "group", "slots"), [(5, 4, 3), (7, 2, 16), (1, 1, 1), (6, 8, 8)])
def test_schedule_equals_a_loop_over_steps(questions: int, group: int, slots: int) -> None:
    """Simulate single steps: a free slot starts the next answer in the step in which it becomes free."""
    lengths = truncated_exponential(6, 20)
    result = schedule(lengths, questions, group, slots)
    waiting = list(np.random.default_rng(0).permutation(lengths.take(questions * group)))
    numbers, running = list(range(len(waiting))), dict[int, tuple[int, int]]()
    steps = rows = local = read = 0
    written = dict[int, int]()
    while waiting or running:
        for slot in range(slots):
            if slot not in running and waiting:
                running[slot] = (numbers.pop(0), int(waiting.pop(0)))
        steps += 1
        rows += len(running)
        for slot, (number, left) in list(running.items()):
            written[number] = written.get(number, 0) + 1
            local += written[number]
            running[slot] = (number, left - 1)
        done = {number // group for number, _ in running.values()}
        read += len(done)
        running = {slot: item for slot, item in running.items() if item[1]}
    assert result.steps == steps
    assert result.rows == pytest.approx(rows / steps)
    assert result.generated == pytest.approx(local / steps)
    # A group between two of its answers counts as active.
    assert result.prompts == pytest.approx(read / steps, rel=0.25)
    assert result.prompts >= read / steps - 1e-9


@pytest.mark.parametrize(("questions", "group", "slots"), [(5, 4, 3), (7, 2, 16), (1, 1, 1), (6, 8, 8), (4, 4, 40)])
def test_schedule_ahead_equals_a_loop_over_steps(questions: int, group: int, slots: int) -> None:
    """Simulate eight rollouts by single steps, of which the last six count."""
    lengths = truncated_exponential(6, 20)
    result, sizes = schedule_ahead(lengths, questions, group, slots), np.sort(lengths.take(questions * group))
    orders = [np.random.default_rng(number).permutation(sizes) for number in range(9)]
    have, counted = np.zeros(questions * group, int), list[tuple[int, int, int, int]]()
    for now, later in pairwise(orders):
        began = [i for i in range(len(now)) if 0 < have[i] < now[i]]
        waiting = [(0, i) for i in (*began, *(i for i in range(len(now)) if not have[i]))]
        waiting += [(1, i) for i in range(len(later))]
        written, running, steps, read = [have, np.zeros_like(have)], dict[int, tuple[int, int]](), 0, 0
        resumed, indices = sum(have[began]), range(questions)
        again = sum(have[q * group :][:group].any() and (have < now)[q * group :][:group].any() for q in indices)
        while (written[0] < now).any():
            for slot in range(slots):
                if slot not in running and waiting:
                    running[slot] = waiting.pop(0)
            steps += 1
            for batch, i in running.values():
                written[batch][i] += 1
            read += len({(batch, i // group) for batch, i in running.values()})
            running = {slot: (b, i) for slot, (b, i) in running.items() if written[b][i] < (now, later)[b][i]}
        counted.append((steps, read, int(resumed), int(again)))
        have = written[1]
    steps, read, resumed, again = np.mean(counted[2:], axis=0)
    assert result.steps == pytest.approx(steps)
    assert result.rows == pytest.approx(sizes.sum() / steps)
    assert (result.resumed_tokens, result.repeated_prompts) == pytest.approx((resumed, again))
    assert read / steps - 1e-9 <= result.prompts <= 1.3 * read / steps


def test_rollouts_ahead_halve_the_steps_with_a_slot_per_answer() -> None:
    """With a slot per answer every second rollout is sampled during the previous one; with few slots none is."""
    lengths = constant(10)
    assert schedule_ahead(lengths, 4, 2, 16).steps == 5
    assert schedule_ahead(lengths, 4, 2, 8).steps == 10


def test_answers_of_equal_length_fill_their_slots() -> None:
    result = schedule(constant(10), 8, 4, 16)
    assert result == (20, 16.0, 16 * 5.5, 16 * 5.5, 4.0, 0.0, 0.0)


def test_held_tokens_are_counted_in_whole_blocks() -> None:
    result = schedule(constant(10), 8, 4, 16, block=4)
    # While a row of ten tokens is written it holds one block four times, two four times, and three twice.
    assert result.block_tokens == 16 * (4 * 4 + 4 * 8 + 2 * 12) / 10
    assert result.generated == 16 * 5.5
