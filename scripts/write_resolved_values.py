"""Write tests/unit/config/resolved_values.json, the values that every shipped configuration resolves to.

`python scripts/write_resolved_values.py`. An entry is a file of `configs/` as its command loads it: alone, under a
machine's file of `configs/on/`, with `--model`, or as `evaluate --as` takes it.
tests/unit/config/test_resolved_values.py compares. Write the table again to accept the changes that the test lists.

Each part of the table holds the most common value per key, and per entry the values that differ from it. The values of
`* + configs/on/MACHINE.yaml` hold over every recipe.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import (
    AugmentConfig,
    DistillConfig,
    EvaluateConfig,
    FilterConfig,
    TrainConfig,
    VerbalConfig,
    load_config,
)
from jaxrl_sql.config.check import flatten
from jaxrl_sql.config.load import SYSTEMS
from jaxrl_sql.config.prepare import PrepareConfig, load_prepare
from jaxrl_sql.inference.evaluation_config import EvaluationRequest, evaluation_layers

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/unit/config/resolved_values.json"
PREPARE = "data prepare"

ROOTS: dict[str, type] = {
    "train": TrainConfig,
    "augment": AugmentConfig,
    "distill": DistillConfig,
    "evaluate": EvaluateConfig,
    "filter": FilterConfig,
    "verbal": VerbalConfig,
    PREPARE: PrepareConfig,
}
"""The root configuration of each command. `sft` and `plan` load files as `train` does."""

as_text = json.JSONEncoder(ensure_ascii=False).encode
"""Return a value as text that distinguishes 1, 1.0 and true."""

# A model without a stored training configuration.
MODEL = "configs/quickstart_start"
# Files that scripts and pages also pass to `evaluate --model`.
EVALUATED = ("evaluate", "gemma_spider", "gpu_spider", "gpu_spider_rehearsal", "own_database")


class Entry(NamedTuple):
    """A command with its `--config` files, and `option`: empty, `--model`, or the system of `--as`."""

    command: str
    files: tuple[str, ...]
    option: str = ""

    @property
    def name(self) -> str:
        """The entry's name in the table: its files and option."""
        if self.option in SYSTEMS:
            return f"configs/as/{self.option}.yaml"
        return " + ".join((*self.files, self.option) if self.option else self.files)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names in the table whose values hold for this entry, the most specific first."""
        if len(self.files) < 2:
            return (self.name,)
        recipe, machine = self.files
        return self.name, f"* + {machine}", recipe


def entries() -> Iterator[Entry]:
    """Yield every shipped configuration with each command, overlay and option that the pages document for it."""
    files = sorted((ROOT / "configs").glob("*.yaml"))
    machines = sorted((ROOT / "configs/on").glob("*.yaml"))
    for path in files:
        yield Entry(path.stem if path.stem in ROOTS else "train", (_relative_path(path),))
    for path in files:
        if path.stem.startswith(SYSTEMS) and not path.stem.endswith("-tiny"):  # a published system's recipe
            yield from (Entry("train", (_relative_path(path), _relative_path(machine))) for machine in machines)
    yield from (Entry("evaluate", (f"configs/{name}.yaml",), "--model") for name in EVALUATED)
    yield from (Entry("evaluate", (), system) for system in SYSTEMS)
    yield from (Entry(PREPARE, (_relative_path(path),)) for path in sorted((ROOT / "configs/data").glob("*.yaml")))


def load(entry: Entry) -> Any:
    """Return the configuration of an entry as its command loads it."""
    if entry.command == PREPARE:
        return load_prepare(*entry.files)
    if entry.option:
        system = entry.option if entry.option in SYSTEMS else ""
        request = EvaluationRequest(data=["dev"], model=MODEL, system=system)
        files = [Path(file) for file in entry.files]
        return load_config(EvaluateConfig, files, *evaluation_layers(request, files=files))
    return load_config(ROOTS[entry.command], entry.files)


def values_of(config: Any) -> dict[str, Any]:
    """Return the value of every key, and the names in a section of named sections."""
    values = dataclasses.asdict(config)
    named = {key: list(values[key]) for key in ("sources", "evals") if key in values}
    return {**dict(flatten(values)), **named}


def generalize_key(key: str) -> str:
    """Return a key without the name that a file chose for a source or a set."""
    return re.sub(r"^(sources|evals)\.[^.]+\.", r"\1.*.", key)


def part_of_table(resolved: Mapping[Entry, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the most common value of each key, and per entry the values that differ."""
    pairs = {entry: values for entry, values in resolved.items() if len(entry.files) == 2}
    alone = {entry.name: values for entry, values in resolved.items() if entry not in pairs}
    counts: dict[str, Counter[str]] = {}
    for values in alone.values():
        for key, value in values.items():
            counts.setdefault(generalize_key(key), Counter())[as_text(value)] += 1
    common = {key: json.loads(count.most_common(1)[0][0]) for key, count in counts.items()}
    differing = {
        name: _differences(values, {key: common[generalize_key(key)] for key in values})
        for name, values in alone.items()
    }
    return {"common": common, "entries": differing | _over_recipes(pairs, alone)}


def _over_recipes(
    pairs: Mapping[Entry, Mapping[str, Any]], recipes: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the values of each machine's file over every recipe, and those of a pair that differ from both."""
    parts: dict[str, dict[str, Any]] = {}
    for machine in dict.fromkeys(entry.files[1] for entry in pairs):
        over = {entry: values for entry, values in pairs.items() if entry.files[1] == machine}
        changed = {key for entry, values in over.items() for key in _differences(values, recipes[entry.files[0]])}
        first = next(iter(over.values()))
        always = {
            key: value
            for key, value in first.items()
            if key in changed and {as_text(values[key]) for values in over.values()} == {as_text(value)}
        }
        parts[f"* + {machine}"] = always
        for entry, values in over.items():
            if differing := _differences(values, {**recipes[entry.files[0]], **always}):
                parts[entry.name] = differing
    return parts


def _differences(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if as_text(value) != as_text(others[key])}


def as_json(node: object, indent: str = "") -> str:
    """Return JSON with one key per line."""
    if not isinstance(node, Mapping) or not node:
        return as_text(node)
    lines = [f"{indent} {as_text(name)}: {as_json(value, f'{indent} ')}" for name, value in node.items()]
    return "\n".join(("{", ",\n".join(lines), f"{indent}}}"))


def _relative_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def main() -> int:
    """Write the table."""
    os.chdir(ROOT)
    os.environ.pop("JAXRL_SQL_DATA", None)
    resolved = {entry: values_of(load(entry)) for entry in entries()}
    prepared = {entry: values for entry, values in resolved.items() if entry.command == PREPARE}
    others = {entry: values for entry, values in resolved.items() if entry.command != PREPARE}
    table = {"settings": part_of_table(others), PREPARE: part_of_table(prepared)}
    TABLE.write_text(f"{as_json(table)}\n", encoding="utf-8")
    print(f"{TABLE.relative_to(ROOT)}: {len(resolved)} entries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
