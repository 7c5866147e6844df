"""Shared parts of the benchmark scripts: options, interleaved turns, goals, and a table with a JSON result.

A script parses its arguments with `make_parser`, measures its variants with `run_turns`, and adds each figure to a
`Report`. The report prints one row per figure: the median, the smallest and largest value, and the goal. `finish`
writes the JSON result and returns the exit code, which is 1 if a goal was missed. Compare figures of one run only:
variants take turns within it, and ratios are taken within a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Goal:
    """A limit for a figure: the least that it must reach, or with `at_most` the most that it may be."""

    limit: float
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        """Return whether a value is within the limit."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"at {'most' if self.at_most else 'least'} {number(self.limit)}"


class Figure(NamedTuple):
    """A measured quantity: one value per turn, its unit and its goal."""

    name: str
    values: tuple[float, ...]
    unit: str
    goal: Goal | None

    @property
    def median(self) -> float:
        """Return the median of the turns."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """Return whether the median meets the goal, or None without a goal."""
        return None if self.goal is None else self.goal.is_met(self.median)


def make_parser(description: str | None, turns: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn of small loads, without goals")
    parser.add_argument("--turns", type=int, help=f"turns of each variant (default: {turns}; 1 with --quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and facts of the machine")
    parser.set_defaults(default_turns=turns)
    return parser


def run_turns(
    variants: Mapping[K, Callable[[], T]], turns: int, *, warm_up: int = 1, rotate: bool = False
) -> dict[K, list[T]]:
    """Call each variant once per turn and return the results by variant.

    The first `warm_up` turns are dropped. With `rotate` each turn starts with another variant.
    """
    results: dict[K, list[T]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(-warm_up, turns):
        first = turn % len(names) if rotate else 0
        for name in names[first:] + names[:first]:
            result = variants[name]()
            if turn >= 0:
                results[name].append(result)
    return results


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Call a function and return the seconds that it took, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    return timed(call)[0]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio within each turn."""
    return [a / b for a, b in zip(over, under, strict=True)]


def number(value: float) -> str:
    """Return a number with three or more digits."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def machine_facts() -> dict[str, Any]:
    """Return the processor, cores, Python and, where a script imported it, JAX with its device."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    facts: dict[str, Any] = {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    if (jax := sys.modules.get("jax")) is not None:
        facts |= {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "devices": jax.device_count()}
    return facts


class Report:
    """Prints a benchmark's figures as a table and keeps them for the JSON result."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_quick: bool = options.quick
        self.turns: int = options.turns or (1 if options.quick else options.default_turns)
        self.figures: list[Figure] = []
        self._json: Path | None = options.json
        self._machine = machine_facts()
        self._load = os.getloadavg()[0]
        shown = ", ".join(f"{name} {value}" for name, value in self._machine.items())
        print(f"{shown}\nload {self._load:.1f} at the start, turns {self.turns}", flush=True)
        print("\n| figure | median | smallest to largest | goal | |\n|---|---|---|---|---|", flush=True)

    def add(self, name: str, values: float | Sequence[float], unit: str = "", goal: Goal | None = None) -> Figure:
        """Add a figure and print its row; one value, or one per turn."""
        figure = Figure(name, tuple(values) if isinstance(values, Sequence) else (values,), unit, goal)
        self.figures.append(figure)
        low, high = (number(bound(figure.values)) for bound in (min, max))
        spread = f"{low} to {high}" if len(figure.values) > 1 else ""
        verdict = {None: "", True: "met", False: "missed"}[None if self.is_quick else figure.is_met]
        median = f"{number(figure.median)} {unit}".rstrip()
        print(f"| {name} | {median} | {spread} | {goal or ''} | {verdict} |", flush=True)
        return figure

    def finish(self) -> int:
        """Write the JSON result; return 1 if a goal was missed, but 0 for a quick run."""
        load = os.getloadavg()[0]
        print(f"\nload {load:.1f} at the end")
        if self._json is not None:
            result = {
                "script": Path(sys.argv[0]).name,
                "arguments": sys.argv[1:],
                "is_quick": self.is_quick,
                "machine": self._machine,
                "load": {"start": self._load, "end": load},
                "figures": [
                    {
                        "name": figure.name, "unit": figure.unit, "median": figure.median, "values": figure.values,
                        "goal": None if figure.goal is None else str(figure.goal), "is_met": figure.is_met,
                    }
                    for figure in self.figures
                ],
            }  # fmt: skip
            self._json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        missed = [figure.name for figure in self.figures if figure.is_met is False]
        return int(bool(missed) and not self.is_quick)
