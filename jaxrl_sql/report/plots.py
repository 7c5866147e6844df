"""The curves of a run, each an SVG that stands in the page itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxrl_sql.report.load import Run, first_grpo_step, names, series

COLORS = ("#1f6fb2", "#d9822b", "#2f9e62", "#c0392b", "#7d5bbe", "#8c6d46", "#d16ba5", "#6b7280", "#a3a51f", "#17a2b8")
STYLE = {
    "axes.edgecolor": "#9aa3ad",
    "axes.grid": True,
    "axes.labelcolor": "#4b5563",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
    "svg.fonttype": "none",  # words stay words: smaller, and the page can be searched
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
}
STATUS_COLORS = {"ok": "#2f9e62", "syntax_error": "#c0392b", "schema_error": "#d9822b", "no_sql": "#6b7280"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of a chart, under its word; `phase` keeps the rows of one phase only."""

    name: str
    word: str
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: curves over the steps, in one of the kinds.

    smooth: long curves stand faint behind their running mean; exact: lines; points: lines with a mark at each value;
    stack: areas on top of each other.
    """

    title: str
    curves: tuple[Curve, ...]
    kind: Literal["smooth", "exact", "points", "stack"] = "smooth"
    percent: bool = False


def charts(run: Run) -> list[Chart]:
    """Return the charts that the run has numbers for, most asked first."""
    evals = names(run, "eval/", "/accuracy")
    statuses = names(run, "status/")
    chosen = [
        Chart("Reward", (Curve("reward/mean", "mean"), Curve("reward/std_within_group", "deviation within a group"))),
        Chart(
            "Greedy accuracy",
            tuple(Curve(name, name.split("/")[1]) for name in evals),
            "points",
            percent=True,
        ),
        Chart(
            "What became of the SQL",
            tuple(Curve(n, n.removeprefix("status/")) for n in statuses),
            "stack",
            percent=True,
        ),
        Chart("Groups without a signal", (Curve("reward/zero_variance", "share of groups"),), percent=True),
        Chart("SFT loss", (Curve("sft/loss", "loss a token"), Curve("sft/held_out_loss", "held out"))),
        Chart("SFT token accuracy", (Curve("sft/token_accuracy", "right tokens"),), percent=True),
        Chart("Entropy", (Curve("policy/entropy", "nats a token"),)),
        Chart("KL", (Curve("policy/kl", "to the reference"),)),
        Chart(
            "Sampler against trainer",
            (
                Curve("policy/sampler_delta_mean", "mean |Δ logprob|"),
                Curve("policy/sampler_delta_mean/from_1024", "from token 1,024 on"),
                Curve("policy/sampler_delta_max", "maximum"),
                Curve("policy/sampler_kl", "KL, k3"),
            ),
        ),
        Chart("Ratio", (Curve("policy/ratio_mean", "mean ratio"), Curve("policy/ratio_max", "maximum"))),
        Chart(
            "Clipped and capped",
            (
                Curve("policy/clip_fraction_low", "ratio below its bound"),
                Curve("policy/clip_fraction_high", "ratio above its bound"),
                Curve("policy/importance_capped", "importance weight at its cap"),
            ),
            percent=True,
        ),
        Chart("Explained variance of the value head", (Curve("value/explained_variance", "share"),)),
        Chart("Response length", (Curve("length/mean", "tokens"),)),
        Chart("Truncated answers", (Curve("length/truncated", "share"),), percent=True),
        Chart("Gradient norm", (Curve("optim/grad_norm", "before clipping"),)),
        Chart("Learning rate", (Curve("optim/lr", "learning rate"),), "exact"),
        Chart(
            "Seconds of a GRPO step",
            tuple(
                Curve(f"time/{key}", word, "grpo")
                for key, word in (("rollout", "rollout"), ("sql_wait", "waiting for SQL"), ("update", "update"))
            ),
            "stack",
        ),
        Chart("Tokens a second", (Curve("speed/tokens_per_s", "sampled in rollouts", "grpo"),)),
    ]
    return [chart for chart in chosen if any(series(run, curve.name, curve.phase) for curve in chart.curves)]


def draw(run: Run, chart: Chart) -> str:
    """Draw a chart as an `<svg>` element; curves without numbers are left out."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": chart.title}):
        figure = Figure(figsize=(5.4, 2.9), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        found = [(curve.word, series(run, curve.name, curve.phase)) for curve in chart.curves]
        found = [(word, points) for word, points in found if points]
        if chart.kind == "stack":
            _draw_stack(axes, found)
        else:
            _draw_lines(axes, found, chart.kind)
        _mark_phases(axes, run)
        if chart.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        axes.set_xlabel("step")
        if len(found) > 1 or chart.kind == "points":
            figure.legend(loc="outside upper left", fontsize=8, ncols=min(len(found), 4))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and up to `window` - 1 before it."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _draw_lines(axes: Axes, found: Sequence[tuple[str, list[tuple[int, float]]]], kind: str) -> None:
    """Draw curves as lines, as their chart's kind says."""
    for color, (word, points) in zip(COLORS, found, strict=False):
        steps, values = [step for step, _ in points], [value for _, value in points]
        if kind != "smooth" or len(values) < 40:
            mark = "o" if kind == "points" or len(values) < 3 else None
            axes.plot(steps, values, color=color, label=word, marker=mark, markersize=4)
        else:
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            axes.plot(steps, smooth(values, max(5, len(values) // 25)), color=color, label=word)


def _draw_stack(axes: Axes, found: Sequence[tuple[str, list[tuple[int, float]]]]) -> None:
    """Draw curves on top of each other; a step that lacks one counts it as 0."""
    steps = sorted({step for _, points in found for step, _ in points})
    heights = [[dict(points).get(step, 0.0) for step in steps] for _, points in found]
    spare = iter([color for color in COLORS if color not in STATUS_COLORS.values()] * 3)
    colors = [STATUS_COLORS[word] if word in STATUS_COLORS else next(spare) for word, _ in found]
    if len(steps) == 1:  # an area of one step has no width
        steps, heights = [steps[0] - 1, steps[0]], [[row[0], row[0]] for row in heights]
    axes.stackplot(steps, heights, labels=[word for word, _ in found], colors=colors, alpha=0.85)
    axes.margins(x=0, y=0.02)


def _mark_phases(axes: Axes, run: Run) -> None:
    """Draw a line where GRPO begins, on charts that show steps on both sides of it."""
    first = first_grpo_step(run)
    if first is not None:
        left, right = axes.get_xlim()
        if left < first - 1 and right > first + 1 and any(row["step"] < first for row in run.metrics):
            axes.axvline(first, color="#9aa3ad", linestyle=":", linewidth=1)
            axes.set_xlim(left, right)
