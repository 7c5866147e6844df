"""The charts of a run as data: titles, curves and points, which the page draws (`page/charts.js`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from jaxrl_sql.report.intervals import Evaluations, share_of
from jaxrl_sql.report.load import RunFiles, first_grpo_step, metric_names, series
from jaxrl_sql.runtime.metric_row import find_metric
from jaxrl_sql.runtime.training_metrics import TRAINING
from jaxrl_sql.types import Record

MAX_POINTS = 600
"""Largest number of points of a drawn curve."""
# Steps that compiled for a larger share of their time are omitted from times and speeds.
COMPILED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of a chart with its label; `phase` selects the rows of one phase."""

    name: str
    label: str
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of curves over steps; `axis` names the values, which are shares if `percent`.

    Kinds: `smooth` draws long curves faintly behind their running mean; `exact` draws lines, `points` lines with a mark
    at each value, `stack` stacked areas. `is_first`: shown at once; the other charts are shown on demand.
    """

    title: str
    axis: str
    curves: tuple[Curve, ...]
    kind: Literal["smooth", "exact", "points", "stack"] = "smooth"
    percent: bool = False
    is_first: bool = False


def charts(run: RunFiles) -> list[Chart]:
    """Return the charts with data, the most important first; metrics that are constant by the settings are omitted."""
    chosen = [*_first_charts(run), *_policy_charts(run), *_cost_charts()]
    return [chart for chart in chosen if any(points_of(run, curve) for curve in chart.curves)]


def chart_data(run: RunFiles, evaluations: Evaluations = MappingProxyType({})) -> list[Record]:
    """Return the charts of a run for the page, as JSON objects with the attributes of `Chart` and some more.

    A curve has its label (`word`), its points [step, value], and for long curves the running `means`. Accuracies have
    `bounds` [step, low, high], their 95 % intervals. `about` describes the metrics, `note` the marks that no legend
    explains, and `begins` is the first step of GRPO if another phase precedes it.
    """
    first_step = first_grpo_step(run)
    has_earlier_steps = first_step is not None and any(row["step"] < first_step for row in run.metrics)
    grpo_start = first_step if has_earlier_steps else None
    data = []
    for chart in charts(run):
        curves = [(curve.label, points_of(run, curve)) for curve in chart.curves]
        if chart.kind == "stack":
            curves = _fill_with_zeros(curves)
        drawn = [_curve(label, points, chart.kind) for label, points in curves if points]
        if chart.kind == "points":
            name_of = {curve.label: curve.name for curve in chart.curves}
            drawn = [{**curve, "bounds": _bounds(run, name_of[curve["word"]], evaluations)} for curve in drawn]
        data.append(
            {
                "title": chart.title,
                "axis": chart.axis,
                "note": _note(drawn, grpo_start),
                "about": meanings(chart),
                "kind": chart.kind,
                "percent": chart.percent,
                "first": chart.is_first,
                "begins": grpo_start,
                "curves": drawn,
            }
        )
    return data


def meanings(chart: Chart) -> str:
    """Return a line per metric of a chart: its formula and reading."""
    rows = dict.fromkeys(find_metric(curve.name, TRAINING) for curve in chart.curves)
    return "\n".join(f"{row.name}: {row.formula}. {row.reading}".strip() for row in rows if row is not None)


def points_of(run: RunFiles, curve: Curve) -> list[tuple[int, float]]:
    """Return the points of a curve; times and speeds omit steps that compiled."""
    points = series(run, curve.name, curve.phase)
    if not curve.name.startswith(("time/", "speed/")):
        return points
    compiled = find_compiled_steps(run)
    return [point for point in points if point[0] not in compiled] or points  # all points if every step compiled


def find_compiled_steps(run: RunFiles) -> set[int]:
    """Return the steps that spent much of their time in the compiler; the first step if a run did not measure it."""
    times = dict(series(run, "time/step", "grpo"))
    compiled = dict(series(run, "time/compile", "grpo"))
    if not compiled:
        return {min(times)} if times else set()
    return {step for step, seconds in compiled.items() if seconds > COMPILED_SHARE * times.get(step, 0.0)}


def updates_once(run: RunFiles) -> bool:
    """Return whether each batch has a single update, of the policy that sampled it, so that its π / π_old is 1."""
    keys = ("num_iterations", "minibatches", "steps_per_generation")
    counts = [run.setting(f"grpo.{key}", 1) for key in keys]
    return bool(run.settings) and counts == [1, 1, 1] and not run.setting("rollout.exact", False)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and up to `window` - 1 before it."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def downsample(points: Sequence[tuple[int, float]], max_points: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Return at most `max_points` points: the last step and the mean value of each segment of consecutive points."""
    if len(points) <= max_points:
        return list(points)
    size = -(-len(points) // max_points)  # points per segment, rounded up
    segments = [points[i : i + size] for i in range(0, len(points), size)]
    return [(segment[-1][0], sum(value for _, value in segment) / len(segment)) for segment in segments]


def _curve(label: str, points: Sequence[tuple[int, float]], kind: str) -> Record:
    drawn = downsample(points)
    curve: Record = {"word": label, "points": [[step, _five_digits(value)] for step, value in drawn]}
    if kind == "smooth" and len(drawn) >= 40:
        window = max(5, len(drawn) // 25)
        means = smooth([value for _, value in drawn], window)
        curve["means"] = [[step, _five_digits(mean)] for (step, _), mean in zip(drawn, means, strict=True)]
        curve["window"] = window * -(-len(points) // MAX_POINTS)  # in steps: a drawn point is the mean of several
    return curve


def _bounds(run: RunFiles, name: str, evaluations: Evaluations) -> list[list[float]]:
    """Return [step, low, high] of each evaluation of a split for which the number of questions is known.

    `name` is the metric `eval/SPLIT/accuracy`; `evaluations` may have the answers of some of the evaluations.
    """
    phase = name.removesuffix("/accuracy")
    counts = dict(series(run, f"{phase}/count"))
    groups_by_step = evaluations.get(phase, {})
    bounds = []
    for step, mean in series(run, name):
        share = share_of(mean, round(counts.get(step, 0)), groups_by_step.get(step, ()))
        if share is not None and counts.get(step):
            bounds.append([step, _five_digits(share["low"]), _five_digits(share["high"])])
    return bounds


def _note(curves: Sequence[Record], grpo_start: int | None) -> str:
    """Return the meaning of a chart's marks that its legend does not have."""
    notes = []
    windows = [curve["window"] for curve in curves if "window" in curve]
    if windows:
        notes += ["faint: each step", f"line: mean of {max(windows):,} steps"]
    if any(curve.get("bounds") for curve in curves):
        notes.append("bars: 95 % interval")
    if grpo_start is not None:
        notes.append("dotted: first step of GRPO")
    return "; ".join(notes)


def _fill_with_zeros(
    curves: Sequence[tuple[str, list[tuple[int, float]]]],
) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return stacked curves with 0 for missing steps."""
    steps = sorted({step for _, points in curves for step, _ in points})
    return [(label, [(step, dict(points).get(step, 0.0)) for step in steps]) for label, points in curves if points]


def _five_digits(value: float) -> float:
    return float(f"{value:.5g}")


def _first_charts(run: RunFiles) -> list[Chart]:
    evals, statuses = metric_names(run, "eval/", "/accuracy"), metric_names(run, "status/")
    accuracy = tuple(Curve(name, name.split("/")[1]) for name in evals)
    by_status = tuple(Curve(name, name.removeprefix("status/")) for name in statuses)
    reward = (Curve("reward/mean", "mean"), Curve("reward/std_within_group", "deviation within a group"))
    return [
        Chart("Reward", "reward", reward, is_first=True),
        Chart("Accuracy", "share of questions", accuracy, "points", percent=True, is_first=True),
        Chart("SQL by status", "share of answers", by_status, "stack", percent=True, is_first=True),
        Chart(
            "Groups without a signal",
            "share of groups",
            (Curve("reward/zero_variance", "share"),),
            percent=True,
            is_first=True,
        ),
        Chart(
            "SFT loss",
            "nats per token",
            (Curve("sft/loss", "training"), Curve("sft/held_out_loss", "held out")),
            is_first=True,
        ),
        Chart("Entropy", "nats per token", (Curve("policy/entropy", "nats per token"),), is_first=True),
    ]


def _policy_charts(run: RunFiles) -> list[Chart]:
    ratio_charts = [
        Chart("Ratio", "π / π_old", (Curve("policy/ratio_mean", "mean ratio"), Curve("policy/ratio_max", "maximum"))),
        Chart(
            "Clipped and capped",
            "share of tokens",
            (
                Curve("policy/clip_fraction_low", "ratio below its bound"),
                Curve("policy/clip_fraction_high", "ratio above its bound"),
                Curve("policy/importance_capped", "importance weight at its cap"),
            ),
            percent=True,
        ),
    ]
    return [
        Chart("KL", "nats per token", (Curve("policy/kl", "to the reference"),)),
        Chart(
            "Sampler against trainer",
            "nats per token",
            (
                Curve("policy/sampler_delta_mean", "mean |Δ logprob|"),
                Curve("policy/sampler_delta_mean/from_1024", "from token 1,024 on"),
                Curve("policy/sampler_delta_max", "maximum"),
                Curve("policy/sampler_kl", "KL, k3"),
            ),
        ),
        *([] if updates_once(run) else ratio_charts),
        Chart(
            "Tokens of an older policy",
            "share of a batch",
            (Curve("rollout/stale_tokens", "share of a batch"),),
            percent=True,
        ),
        Chart("Explained variance of the value head", "share", (Curve("value/explained_variance", "share"),)),
        Chart("Response length", "tokens per answer", (Curve("length/mean", "tokens"),)),
        Chart("Truncated answers", "share of answers", (Curve("length/truncated", "share"),), percent=True),
        Chart("Gradient norm", "norm", (Curve("optim/grad_norm", "before clipping"),)),
        Chart("Learning rate", "learning rate", (Curve("optim/lr", "learning rate"),), "exact"),
    ]


def _cost_charts() -> list[Chart]:
    components = (("rollout", "rollout"), ("sql_wait", "waiting for SQL"), ("update", "update"))
    times = tuple(Curve(f"time/{key}", label, "grpo") for key, label in components)
    return [
        Chart("Seconds per GRPO step", "seconds", times, "stack"),
        Chart("Tokens per second", "tokens per second", (Curve("speed/tokens_per_s", "sampled in rollouts", "grpo"),)),
    ]
