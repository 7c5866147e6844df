"""Compute metrics from records: of one run, of several runs (mean and deviation), and of several benchmarks.

A run answers all questions of a benchmark once. A rule compares a prediction's result with that of the gold, the
reference query; the own rule is the benchmark's. `docs/reference/metrics.md` lists all metrics.
"""

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


class ExcludedCounts(NamedTuple):
    """Counts of items that no share includes.

    `missing` are questions without a prediction, `extra` predictions without a question, and `left_out` questions that
    cannot be judged.
    """

    missing: int = 0
    extra: int = 0
    left_out: int = 0


class BenchmarkMetrics(NamedTuple):
    """A benchmark's results: the summaries of its runs, and the metrics over all runs by name (`numbers`)."""

    name: str
    own_rule: str
    summaries: tuple[Summary, ...]
    numbers: dict[str, float]


def compute_metrics(
    name: str, own_rule: str, examples: Sequence[Example], runs: Sequence[Sequence[Record]], counts: ExcludedCounts
) -> BenchmarkMetrics:
    """Return the metrics of a benchmark; the records of each run are in the order of `examples`.

    Over several runs, each metric is the mean, and `<rule>/std` is the sample standard deviation of a rule.
    """
    summaries = tuple(summarize(examples, [verdict_of(record) for record in run], own_rule) for run in runs)
    reason_counts = [finish_reasons(run) for run in runs]
    # A run without a finish reason that another run has gets its count 0, so that means cover all runs.
    zero_counts = dict.fromkeys((reason for run_counts in reason_counts for reason in run_counts), 0)
    run_metrics = [
        {
            **summary.metrics(),
            **ending_metrics(zero_counts | run_counts),
            **_vote_metrics(run),
            **_dialogue_metrics(run, own_rule),
            **_excluded_metrics(summary, counts),
        }
        for summary, run, run_counts in zip(summaries, runs, reason_counts, strict=True)
    ]
    metrics = {key: mean for key, (mean, _) in spread(run_metrics).items()}
    if len(runs) > 1:
        rules = ("accuracy", *summaries[0].scores)
        metrics |= {f"{key}/std": std for key, (_, std) in spread(run_metrics).items() if key in rules}
        metrics["runs"] = float(len(runs))
    return BenchmarkMetrics(name, own_rule, summaries, metrics)


def merge_metrics(sets: Sequence[BenchmarkMetrics]) -> dict[str, float]:
    """Return the metrics of all benchmarks: a single one's unchanged, several ones' prefixed by name, with means.

    Means over benchmarks are weighted by their numbers of questions, as Think2SQL's. Those with the prefix `macro/`
    weight benchmarks equally, as Arctic-Text2SQL-R1's.
    """
    if len(sets) == 1:
        return dict(sets[0].numbers)
    shared = [key for key in _rules(sets[0]) if all(key in benchmark.numbers for benchmark in sets)]
    sizes = [int(benchmark.numbers["count"]) for benchmark in sets]
    metrics = {
        key: weighted_mean([(benchmark.numbers[key], size) for benchmark, size in zip(sets, sizes, strict=True)])
        for key in shared
    }
    metrics |= {f"macro/{key}": statistics.fmean(benchmark.numbers[key] for benchmark in sets) for key in shared}
    metrics |= {key: sum(benchmark.numbers[key] for benchmark in sets) for key in ("count", *ExcludedCounts._fields)}
    return metrics | {
        f"{benchmark.name}/{key}": value for benchmark in sets for key, value in benchmark.numbers.items()
    }


def _rules(benchmark: BenchmarkMetrics) -> list[str]:
    return ["accuracy", *benchmark.summaries[0].scores]


def _excluded_metrics(summary: Summary, counts: ExcludedCounts) -> dict[str, float]:
    """Return the excluded counts, and the accuracy if missing predictions count as wrong, as on leaderboards."""
    metrics = {key: float(value) for key, value in counts._asdict().items()}
    if counts.missing:
        share = summary.accuracy
        metrics["accuracy/with_missing"] = share.total / (share.count + counts.missing)
    return metrics


def _vote_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Return the vote accuracy and pass@k by number of samples, without questions whose gold failed."""
    metrics: dict[str, float] = {}
    for name in ("vote", "pass"):
        curves: list[Mapping[str, float]] = [record[name] for record in records if name in record]
        sizes = [size for size in (curves[0] if curves else {}) if all(size in curve for curve in curves)]
        metrics |= {f"{name}/{size}": sum(curve[size] for curve in curves) / len(curves) for size in sizes}
    return metrics


def _dialogue_metrics(records: Sequence[Record], own_rule: str) -> dict[str, float]:
    """Return the dialogue metrics if any answer has several turns."""
    if not any(isinstance(record["answer"], list) for record in records):
        return {}
    return dialogue_metrics(
        [response_of(record) for record in records], [verdict_of(record) for record in records], own_rule
    )


def spread(runs: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return the mean and sample standard deviation (0 for one run) of each metric that every run has."""
    if not runs:
        raise InputError("no runs to average")
    names = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: [run[name] for run in runs] for name in names}
    return {
        name: (statistics.fmean(run_values), statistics.stdev(run_values) if len(run_values) > 1 else 0.0)
        for name, run_values in values.items()
    }


def weighted_mean(benchmarks: Sequence[tuple[float, int]]) -> float:
    """Return the mean of (value, number of questions) over benchmarks, weighted by questions (Think2SQL)."""
    total = sum(count for _, count in benchmarks)
    if total <= 0:
        raise InputError("benchmarks to average: they have no questions")
    return math.fsum(value * count for value, count in benchmarks) / total
