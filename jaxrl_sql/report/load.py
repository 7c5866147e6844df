"""What a run folder tells: metrics, samples and configuration, read from disk as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from jaxrl_sql.types import Fields, InputError, Json

Row = Fields


@dataclass(frozen=True, slots=True)
class Run:
    """The files of a run; `skipped` counts lines that could not be read (the last one of a killed run is torn).

    `config` is the text of its configuration, `settings` what stands in it; `about` is its `about.json`. Both are empty
    where they cannot be read.
    """

    folder: Path
    metrics: tuple[Row, ...]
    samples: tuple[Row, ...]
    config: str
    skipped: int
    settings: Fields = field(default_factory=dict)
    about: Fields = field(default_factory=dict)

    def setting(self, key: str, default: Json = None) -> Json:
        """Return the value of a key such as `grpo.steps` in the run's configuration."""
        found: Json = self.settings
        for name in key.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return default if found is None else found


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The accuracy of one split, before and after GRPO; `grades` holds (before, after, count) by difficulty."""

    split: str
    before: float
    after: float
    count: int
    valid: float | None
    truncated: float | None
    grades: Mapping[str, tuple[float, float, int]]


def load_run(folder: str | Path) -> Run:
    """Read a run folder; raises InputError when it holds no metrics."""
    folder = Path(folder)
    if not (folder / "metrics.jsonl").is_file():
        raise InputError(f"{folder}: no metrics.jsonl there, so it is no run folder")
    metrics, torn_metrics = _read_lines(folder / "metrics.jsonl")
    samples, torn_samples = _read_lines(folder / "samples.jsonl")
    text = config_of(folder)
    about = _read_object(folder / "about.json")
    return Run(folder, metrics, samples, text, torn_metrics + torn_samples, settings_of(text), about)


def config_of(folder: Path) -> str:
    """Return the text of a folder's configuration; "" where there is none."""
    config = folder / "config.yaml"
    return config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""


def settings_of(text: str) -> Fields:
    """Return what a configuration holds; nothing where it is none."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    return found if isinstance(found, dict) else {}


def series(run: Run, name: str, phase: str | None = None) -> list[tuple[int, float]]:
    """Return (step, value) of a metric in the order of the file, without what is no finite number."""
    points = []
    for row in run.metrics:
        value = row.get(name)
        if (phase is None or row.get("phase") == phase) and isinstance(value, int | float) and math.isfinite(value):
            points.append((int(row["step"]), float(value)))
    return points


def names(run: Run, prefix: str, suffix: str = "") -> list[str]:
    """Return the metrics with that beginning and end, in the order in which they first occur."""
    every = dict.fromkeys(name for row in run.metrics for name in row)
    return [name for name in every if name.startswith(prefix) and name.endswith(suffix)]


def first_grpo_step(run: Run) -> int | None:
    """Return the first step of GRPO, or None when there was none."""
    return next((int(row["step"]) for row in run.metrics if row.get("phase") == "grpo"), None)


def split_results(run: Run) -> list[SplitResult]:
    """Return each split's accuracy at its last evaluation before GRPO and at its last evaluation of all.

    A run without GRPO is compared with its own first evaluation.
    """
    first = first_grpo_step(run)
    results = []
    for name in names(run, "eval/", "/accuracy"):
        split = name.split("/")[1]
        rows = [row for row in run.metrics if isinstance(row.get(name), int | float)]
        if not rows:
            continue
        earlier = [row for row in rows if first is not None and row["step"] < first]
        before, after = (earlier or rows)[-1 if earlier else 0], rows[-1]
        start = f"eval/{split}/accuracy/"
        grades = {
            key.removeprefix(start): (
                float(before.get(key, math.nan)),
                float(after[key]),
                int(after.get(f"eval/{split}/count/{key.removeprefix(start)}", 0)),
            )
            for key in after
            if key.startswith(start)
        }
        count = int(after.get(f"eval/{split}/count", 0))
        valid, truncated = (after.get(f"eval/{split}/{share}") for share in ("valid", "truncated"))
        results.append(SplitResult(split, before[name], after[name], count, valid, truncated, grades))
    return results


def _read_object(path: Path) -> Fields:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {}


def _read_lines(path: Path) -> tuple[tuple[Row, ...], int]:
    """Return the objects with a step of a JSON-lines file, and how many other lines there were."""
    if not path.is_file():
        return (), 0
    rows: list[Row] = []
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
