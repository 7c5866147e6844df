"""Print what `plan` says, by formula, of every published system's configuration on every machine of configs/on/.

`python scripts/plan_recipes.py [--answer-tokens 1000]`: a row a configuration, a column a machine; in a cell the most
GiB that a chip holds at a time, and the seconds of a step at best, of a supervised one where the configuration has no
other. What does not fit is struck out. Nothing is compiled, and no model need be here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models.shapes import published_shape
from jaxrl_sql.planning.chips import GIB, find_topology
from jaxrl_sql.planning.lengths import StepLengths, between
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.workload import longest_answer

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = (
    "arctic", "arctic_values", "arctic_batch", "paverl", "paverl_mixed", "sql_r1", "sql_r1_sft", "skyrl_sql",
    "skyrl_sql_no_schema", "skyrl_sql_single", "think2sql_8b", "think2sql", "think2sql_sft", "think2sql_sft_sql",
)  # fmt: skip
# An overlay, and the topology that it is for.
MACHINES = {
    "h100x8": "h100:8", "h100x8_packed": "h100:8", "v5p_4x4x2": "v5p:4x4x2", "v5p_4x4x2_packed": "v5p:4x4x2",
    "v5e_4x4": "v5e:4x4", "v5e_4x4_packed": "v5e:4x4", "gpu_80gb": "h100:1", "gpu_24gb": "l4:1",
}  # fmt: skip
SHAPES = {
    "OmniSQL-7B": "qwen2.5-coder-7b",
    "Qwen2.5-Coder-7B-Instruct": "qwen2.5-coder-7b",
    "Qwen2.5-Coder-1.5B-Instruct": "qwen2.5-coder-1.5b",
    "Qwen3-4B": "qwen3-4b",
    "Qwen3-8B": "qwen3-8b",
}


# Each configuration on each machine, but 16 chips of 16 GB are for Think2SQL 4B, and only sampled answers are packed.
PAIRS = [
    (recipe, machine)
    for recipe in RECIPES
    for machine in MACHINES
    if not machine.startswith("v5e_4x4") or recipe in {"think2sql", "think2sql_sft", "think2sql_sft_sql"}
    if not machine.endswith("_packed") or "_sft" not in recipe
]


def config_of(recipe: str, machine: str) -> TrainConfig:
    """Return a configuration under an overlay."""
    return load_config([CONFIGS / f"{recipe}.yaml", CONFIGS / "on" / f"{machine}.yaml"])


def plan_of(config: TrainConfig, machine: str, written: float = 0.0) -> Plan:
    """Return a configuration's plan on a machine, by formula; `written`: tokens of a mean answer (0: the longest).

    Prompts are all of the longest.
    """
    shape, topology = published_shape(SHAPES[Path(config.model.checkpoint).name]), find_topology(MACHINES[machine])
    mesh = mesh_sizes(f"{config.mesh.data}x{config.mesh.fsdp}x{config.mesh.tensor}", topology.chips)
    most = longest_answer(config)[1]
    answers = between(written, most) if written else None
    return make_plan(config, shape, topology, mesh, config.data.max_prompt_tokens, StepLengths(answers))


def cell(plan: Plan) -> str:
    """Return the most GiB at a time and the seconds of a step."""
    text = f"{plan.total / GIB:.1f}, {plan.seconds:,.0f} s"
    return text if plan.fits else f"~~{text}~~"


def rows(written: float) -> Iterator[tuple[str, list[str]]]:
    """Yield (configurations, cells), those of one plan in one row."""
    cells = {(recipe, on): cell(plan_of(config_of(recipe, on), on, written)) for recipe, on in PAIRS}
    made = ((recipe, [cells.get((recipe, on), "") for on in MACHINES]) for recipe in RECIPES)
    for found, alike in groupby(made, key=lambda row: row[1]):
        yield ", ".join(f"`{name}`" for name, _ in alike), found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer-tokens", type=float, default=1000.0, help="tokens of a mean answer (0: the longest)")
    written = parser.parse_args(arguments).answer_tokens
    chips = [find_topology(name) for name in MACHINES.values()]
    heads = [
        f"`on/{file}`: {top.name}, of {top.chip.memory / GIB:.1f}" for file, top in zip(MACHINES, chips, strict=True)
    ]
    lines = [["", *heads], ["---"] * (1 + len(heads)), *([name, *cells] for name, cells in rows(written))]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
