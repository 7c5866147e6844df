"""Shared parts of the benchmark scripts: options, interleaved turns, goals, and a table with a JSON result.

A script parses its arguments with `make_parser`, measures its variants with `run_turns`, and adds each figure to a
`Report`. The report prints one row per figure: the median, the smallest and largest value, and the goal. `finish`
writes the JSON result and returns the exit code, which is 1 if a goal was missed. Compare figures of one run only:
variants take turns within it, and ratios are taken within a turn.

`--json docs/results/data/NAME.json` replaces a stored result; `scripts/write_results.py` then writes the pages anew.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
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
    """A measured quantity: one value per turn, its unit and its goal.

    On the page of results, figures with the same name share a row when each names a column.
    """

    name: str
    values: tuple[float, ...]
    unit: str
    goal: Goal | None
    column: str = ""

    @property
    def median(self) -> float:
        """Return the median of the turns."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """Return whether the median meets the goal, or None without a goal."""
        return None if self.goal is None else self.goal.is_met(self.median)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return the smallest and largest value, or None for a single value."""
        return (min(self.values), max(self.values)) if len(self.values) > 1 else None

    def as_row(self) -> dict[str, Any]:
        """Return the row of the JSON result, without absent fields."""
        row = {
            "name": self.name,
            "column": self.column or None,
            "median": round_figure(self.median),
            "spread": self.spread and [round_figure(value) for value in self.spread],
            "unit": self.unit or None,
            "goal": self.goal and str(self.goal),
            "is_met": self.is_met,
        }
        return {key: value for key, value in row.items() if value is not None}


def make_parser(description: str | None, turns: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn of small loads, without goals")
    parser.add_argument("--turns", type=int, help=f"turns of each variant (default: {turns}; 1 with --quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and facts of the machine")
    parser.set_defaults(default_turns=turns)
    return parser


def turns_of(options: argparse.Namespace) -> int:
    """Return the number of turns that the options of `make_parser` name."""
    return options.turns or (1 if options.quick else options.default_turns)


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


def time_call(call: Callable[[], T]) -> tuple[float, T]:
    """Call a function and return the seconds that it took, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    return time_call(call)[0]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio within each turn."""
    return [a / b for a, b in zip(over, under, strict=True)]


def without_json(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without `--json FILE`, which changes no figure."""
    rest = [text for text in arguments if not text.startswith("--json=")]
    if "--json" in rest:
        index = rest.index("--json")
        del rest[index : index + 2]
    return rest


def number(value: float) -> str:
    """Return a number with three or more digits."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def round_figure(value: float) -> float:
    """Return a value with four significant digits, or as an integer from 1,000; integers are unchanged."""
    return round(value) if isinstance(value, int) or abs(value) >= 1_000 else float(f"{value:.4g}")


def as_json(result: Mapping[str, Any]) -> str:
    """Return the JSON text of a result, with one line per field and per row."""
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in result["rows"])
    fields = [
        f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in result.items() if key != "rows"
    ]
    return "{\n" + ",\n".join([*fields, f' "rows": [\n  {rows}\n ]']) + "\n}\n"


def current_commit() -> str:
    """Return the short name of the checkout's commit with a plus sign if files differ, or an empty string."""
    if (program := shutil.which("git")) is None:
        return ""
    git = [program, "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return commit.stdout.strip() + ("+" if status.stdout else "")


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


def write_result(path: Path, rows: Sequence[Mapping[str, Any]], machine: Mapping[str, Any], **fields: Any) -> None:
    """Write the JSON result of the script that runs: its command, date, machine and commit, further fields, rows."""
    script = Path(sys.argv[0]).name
    result = {
        "benchmark": script.removeprefix("bench_").removesuffix(".py"),
        "command": shlex.join(["python", f"scripts/{script}", *without_json(sys.argv[1:])]),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": machine,
        "commit": current_commit(),
        **fields,
        "rows": rows,
    }
    path.write_text(as_json(result), encoding="utf-8")


class Report:
    """Prints a benchmark's figures as a table and keeps them for the JSON result."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_quick: bool = options.quick
        self.turns: int = turns_of(options)
        self.figures: list[Figure] = []
        self._json: Path | None = options.json
        self._machine = machine_facts()
        self._load = os.getloadavg()[0]
        shown = ", ".join(f"{name} {value}" for name, value in self._machine.items())
        print(f"{shown}\nload {self._load:.1f} at the start, turns {self.turns}", flush=True)
        print("\n| figure | median | smallest to largest | goal | |\n|---|---|---|---|---|", flush=True)

    def add(
        self,
        name: str,
        values: float | Sequence[float],
        unit: str = "",
        goal: Goal | None = None,
        *,
        column: str = "",
        note: str = "",
    ) -> Figure:
        """Add a figure and print its row; one value, or one per turn. The note is printed only."""
        figure = Figure(name, tuple(values) if isinstance(values, Sequence) else (values,), unit, goal, column)
        self.figures.append(figure)
        spread = " to ".join(map(number, figure.spread or ()))
        verdict = {None: "", True: "met", False: "missed"}[None if self.is_quick else figure.is_met]
        median = f"{number(figure.median)} {unit}".rstrip()
        label = ", ".join(filter(None, [column, name])) + (f" ({note})" if note else "")
        print(f"| {label} | {median} | {spread} | {goal or ''} | {verdict} |", flush=True)
        return figure

    def finish(self, machine: Mapping[str, Any] | None = None, **fields: Any) -> int:
        """Write the JSON result; return 1 if a goal was missed, but 0 for a quick run.

        `machine` and `fields` are further facts of the machine and further fields of the result.
        """
        load = os.getloadavg()[0]
        print(f"\nload {load:.1f} at the end")
        if self._json is not None:
            loads = {"start": round(self._load, 1), "end": round(load, 1)}
            rows = [figure.as_row() for figure in self.figures]
            facts = {**self._machine, **(machine or {})}
            write_result(self._json, rows, facts, is_quick=self.is_quick, turns=self.turns, load=loads, **fields)
        missed = [figure.name for figure in self.figures if figure.is_met is False]
        return int(bool(missed) and not self.is_quick)
