"""Load the metrics, samples and configuration of a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from jaxrl_sql.types import Fields, InputError, Json

MetricRow = Fields
"""A line of a file of the run: `step`, `phase` and metrics, or a saved answer."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run; `skipped` counts unreadable lines (the last line of a killed run may be incomplete).

    `config` is the text of its configuration and `settings` its content, as nested sections. `about` is the content of
    `about.json`: the number of parameters, and a record per session. Each is empty if it cannot be read.
    """

    folder: Path
    metrics: tuple[MetricRow, ...]
    samples: tuple[MetricRow, ...]
    config: str
    skipped: int
    settings: Fields = field(default_factory=dict)
    about: Fields = field(default_factory=dict)

    def setting(self, key: str, default: Json = None) -> Json:
        """Return the value of a key such as `grpo.steps` in the run's configuration."""
        value: Json = self.settings
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return default if value is None else value


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The accuracy of one split, before and after GRPO; `by_difficulty` holds (before, after, count) by difficulty.

    `steps` are those of the two evaluations, and `count` is the number of questions. `valid` and `truncated` are the
    shares of answers that run, and that ended at the token limit, in the last evaluation.
    """

    split: str
    steps: tuple[int, int]
    before: float
    after: float
    count: int
    valid: float | None
    truncated: float | None
    by_difficulty: Mapping[str, tuple[float, float, int]]


def load_run(folder: str | Path) -> RunFiles:
    """Read a run folder; raises InputError if it has no metrics."""
    folder = Path(folder)
    if not (folder / "metrics.jsonl").is_file():
        raise InputError(f"{folder}: not a run folder: it has no metrics.jsonl")
    metrics, skipped_metrics = _read_lines(folder / "metrics.jsonl")
    samples, skipped_samples = _read_lines(folder / "samples.jsonl")
    text = config_of(folder)
    about = _read_object(folder / "about.json")
    return RunFiles(folder, metrics, samples, text, skipped_metrics + skipped_samples, settings_of(text), about)


def config_of(folder: Path) -> str:
    """Return the text of a folder's configuration; "" without one."""
    config = folder / "config.yaml"
    return config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""


def settings_of(text: str) -> Fields:
    """Return the content of a configuration; empty if it is invalid."""
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError:
        settings = None
    return settings if isinstance(settings, dict) else {}


def series(run: RunFiles, name: str, phase: str | None = None) -> list[tuple[int, float]]:
    """Return (step, value) of a metric in the order of the file; values that are not finite are omitted."""
    points = []
    for row in run.metrics:
        value = row.get(name)
        if (phase is None or row.get("phase") == phase) and isinstance(value, int | float) and math.isfinite(value):
            points.append((int(row["step"]), float(value)))
    return points


def metric_names(run: RunFiles, prefix: str, suffix: str = "") -> list[str]:
    """Return the names of a run's metrics with a prefix and suffix, in order of first occurrence."""
    names = dict.fromkeys(name for row in run.metrics for name in row)
    return [name for name in names if name.startswith(prefix) and name.endswith(suffix)]


def first_grpo_step(run: RunFiles) -> int | None:
    """Return the first step of GRPO, or None when there was none."""
    return next((int(row["step"]) for row in run.metrics if row.get("phase") == "grpo"), None)


def split_results(run: RunFiles) -> list[SplitResult]:
    """Return each split's accuracy at the last evaluation before GRPO and at the last evaluation.

    Without GRPO, the first evaluation takes the place of the one before GRPO.
    """
    grpo_start = first_grpo_step(run)
    results = []
    for name in metric_names(run, "eval/", "/accuracy"):
        split = name.split("/")[1]
        rows = [row for row in run.metrics if isinstance(row.get(name), int | float)]
        if not rows:
            continue
        before_grpo = [row for row in rows if grpo_start is not None and row["step"] < grpo_start]
        before, after = before_grpo[-1] if before_grpo else rows[0], rows[-1]
        prefix = f"eval/{split}/accuracy/"
        by_difficulty = {
            key.removeprefix(prefix): (
                float(before.get(key, math.nan)),
                float(after[key]),
                int(after.get(f"eval/{split}/count/{key.removeprefix(prefix)}", 0)),
            )
            for key in after
            if key.startswith(prefix)
        }
        count = int(after.get(f"eval/{split}/count", 0))
        valid, truncated = (after.get(f"eval/{split}/{share}") for share in ("valid", "truncated"))
        steps = int(before["step"]), int(after["step"])
        results.append(SplitResult(split, steps, before[name], after[name], count, valid, truncated, by_difficulty))
    return results


def _read_object(path: Path) -> Fields:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = None
    return value if isinstance(value, dict) else {}


def _read_lines(path: Path) -> tuple[tuple[MetricRow, ...], int]:
    """Return the objects with a step in a JSON-lines file, and the number of other lines."""
    if not path.is_file():
        return (), 0
    rows: list[MetricRow] = []
    skipped = 0
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        else:
            skipped += 1
    return tuple(rows), skipped
