"""From records to the numbers by name: of one run, of several as mean and spread, of several benchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.text2sql.evals.dialogues import dialogue_metrics
from jaxrl_sql.text2sql.evals.endings import ending_metrics, finish_reasons
from jaxrl_sql.text2sql.evals.records import response_of, verdict_of
from jaxrl_sql.text2sql.evals.summary import Summary, summarize
from jaxrl_sql.types import Example, InputError, Record


class Counts(NamedTuple):
    """What is in no share: questions without a prediction, predictions for no question, and what cannot be judged."""

    missing: int = 0
    extra: int = 0
    left_out: int = 0


class Judged(NamedTuple):
    """A benchmark's judged questions: the summaries of its runs, and the numbers of all runs together."""

    name: str
    own: str
    summaries: tuple[Summary, ...]
    numbers: dict[str, float]


def judged(
    name: str, own: str, examples: Sequence[Example], runs: Sequence[Sequence[Record]], counts: Counts
) -> Judged:
    """Return the numbers of a benchmark, whose records of each run stand in the order of its examples.

    Of several runs each number is the mean; `<rule>/std` is the sample standard deviation of the rules'.
    """
    summaries = tuple(summarize(examples, [verdict_of(one) for one in run], own) for run in runs)
    endings = [finish_reasons(run) for run in runs]
    none = dict.fromkeys((reason for ends in endings for reason in ends), 0)  # a mean is over all runs
    found = [
        {
            **summary.metrics(),
            **ending_metrics(none | ends),
            **_votes(run),
            **_dialogues(run, own),
            **_beside(summary, counts),
        }
        for summary, run, ends in zip(summaries, runs, endings, strict=True)
    ]
    numbers = {key: mean for key, (mean, _) in spread(found).items()}
    if len(runs) > 1:
        rules = ("accuracy", *summaries[0].scores)
        numbers |= {f"{key}/std": std for key, (_, std) in spread(found).items() if key in rules}
        numbers["runs"] = float(len(runs))
    return Judged(name, own, summaries, numbers)


def together(sets: Sequence[Judged]) -> dict[str, float]:
    """Return the numbers of all benchmarks: one's as they are; of several under their names, and means.

    Means are weighted by the benchmarks' sizes (Think2SQL); below `macro/` each counts as much (Arctic-Text2SQL-R1).
    """
    if len(sets) == 1:
        return dict(sets[0].numbers)
    shared = [key for key in _rules(sets[0]) if all(key in one.numbers for one in sets)]
    sizes = [int(set_.numbers["count"]) for set_ in sets]
    numbers = {
        key: weighted([(one.numbers[key], size) for one, size in zip(sets, sizes, strict=True)]) for key in shared
    }
    numbers |= {f"macro/{key}": statistics.fmean(one.numbers[key] for one in sets) for key in shared}
    numbers |= {key: sum(one.numbers[key] for one in sets) for key in ("count", *Counts._fields)}
    return numbers | {f"{one.name}/{key}": value for one in sets for key, value in one.numbers.items()}


def _rules(one: Judged) -> list[str]:
    return ["accuracy", *one.summaries[0].scores]


def _beside(summary: Summary, counts: Counts) -> dict[str, float]:
    """Return what is in no share, and the accuracy if what is missing were wrong, as leaderboards count it."""
    numbers = {key: float(value) for key, value in counts._asdict().items()}
    if counts.missing:
        share = summary.accuracy
        numbers["accuracy/with_missing"] = share.total / (share.count + counts.missing)
    return numbers


def _votes(records: Sequence[Record]) -> dict[str, float]:
    """Return the accuracy of votes by their size, and the chance that one of k samples is right, where there were some.

    Questions whose gold failed are not among them.
    """
    numbers: dict[str, float] = {}
    for name in ("vote", "pass"):
        found: list[Mapping[str, float]] = [record[name] for record in records if name in record]
        sizes = [size for size in (found[0] if found else {}) if all(size in one for one in found)]
        numbers |= {f"{name}/{size}": sum(one[size] for one in found) / len(found) for size in sizes}
    return numbers


def _dialogues(records: Sequence[Record], own: str) -> dict[str, float]:
    """Return the numbers of dialogues, where answers had several turns."""
    if not any(isinstance(one["answer"], list) for one in records):
        return {}
    return dialogue_metrics([response_of(one) for one in records], [verdict_of(record) for record in records], own)


def spread(runs: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return the mean and the sample standard deviation of each number that every run has; of one run it is 0."""
    if not runs:
        raise InputError("runs to average: there are none")
    names = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: [run[name] for run in runs] for name in names}
    return {
        name: (statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0)
        for name, found in values.items()
    }


def weighted(benchmarks: Sequence[tuple[float, int]]) -> float:
    """Return the mean of (number, questions) over benchmarks, each as heavy as it has questions (Think2SQL)."""
    total = sum(count for _, count in benchmarks)
    if total <= 0:
        raise InputError("benchmarks to average: they have no questions")
    return math.fsum(value * count for value, count in benchmarks) / total
