"""Plan configs/own_gpu.yaml and own_gpu_full.yaml by formula, for four models on three GPUs.

`python scripts/own_gpu_plans.py` prints the table. With `--json docs/results/data/own_gpu.json` it replaces the stored
result, from which `scripts/write_results.py` writes the page. tests/unit/planning/test_own_gpu.py compares both.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jaxrl_sql.config import PlanConfig, load_config
from jaxrl_sql.models.shapes import name_of_hub_model, published_config
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.memory import PlannedModel
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.suggestions import Suggestion

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30
SIZES = ("0.5B", "1.5B", "3B", "7B")
CARDS: Mapping[str, str] = {"24 GB": "rtx4090:1", "40 GB": "a100-40gb:1", "80 GB": "h100:1"}
"""The topology of a GPU of each size."""
FILES: Mapping[str, str] = {"adapters": "own_gpu", "all weights": "own_gpu_full"}


@cache
def plan_of(weights: str, size: str, card: str, *overrides: str) -> Plan:
    """Return the plan of a model of this size on a card; `weights` is a key of FILES."""
    model = f"Qwen/Qwen2.5-Coder-{size}-Instruct"
    config = load_config(PlanConfig, ROOT / f"configs/{FILES[weights]}.yaml", [f"model.checkpoint={model}", *overrides])
    planned = PlannedModel(config.model, published_config(name_of_hub_model(model)))
    sections = config.workload(config.data.max_prompt_tokens)
    return make_plan(sections, planned, find_topology(CARDS[card]), mesh_sizes("1x1x1", 1))


def rows() -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the table: a row per model and trained weights, and one for larger batches of adapters."""
    for weights in FILES:
        for size in SIZES:
            for card in CARDS:
                plan = plan_of(weights, size, card)
                text = f"{plan.total / GIB:.1f}, {plan.seconds:.0f} s" if plan.fits else _describe_excess(plan)
                yield {"name": f"{size}, {weights}", "column": _column(card, plan), "text": text}
    for size in SIZES:
        for card in CARDS:
            plan = plan_of("adapters", size, card)
            text = _shorten_suggestion(plan.larger) if plan.larger else ""
            yield {"name": f"{size}, adapters, larger batches", "column": _column(card, plan), "text": text}


def _column(card: str, plan: Plan) -> str:
    return f"{card} ({plan.topology.chip.memory / GIB:.1f} GiB)"


def _describe_excess(plan: Plan) -> str:
    return f"{plan.total / GIB:.1f}, does not fit"


def _shorten_suggestion(larger: Suggestion) -> str:
    """Return suggested settings in few words."""
    texts = []
    for setting in larger.change.split():
        key, _, value = setting.partition("=")
        match key:
            case "rollout.max_num_seqs":
                texts.append(f"{value} slots")
            case "grpo.max_tokens_per_device":
                texts.append(f"{int(value):,} tokens")
            case _:
                texts.append(f"`{setting}`")
    return f"{larger.total / GIB:.1f}: {', '.join(texts)}"


def main() -> None:
    """Print the table or write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    arguments = parser.parse_args()
    result = {
        "benchmark": "own_gpu",
        "command": "python scripts/own_gpu_plans.py --json docs/results/data/own_gpu.json",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": {"note": "by formula"},
        "rows": list(rows()),
    }
    if arguments.json:
        lines = ",\n".join(f"  {json.dumps(row)}" for row in result.pop("rows"))
        head = json.dumps(result, indent=1).removesuffix("\n}")
        arguments.json.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
        return
    for row in result["rows"]:
        print(f"{row['name']:<34}{row['column']:<20}{row['text']}")


if __name__ == "__main__":
    main()
