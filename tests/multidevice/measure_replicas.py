"""Script: one of the processes that sample together from replicas of a policy on a training mesh.

Writes `<replicas>x<tensor>.<process>.json`: the samples of all processes' replicas, and those of this process.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import steps

from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.parallel.mesh import replica_grid
from jaxrl_sql.parallel.processes import start_processes
from jaxrl_sql.rollout import EngineConfig, ReplicatedEngine, Sample, SamplingParams
from jaxrl_sql.rollout.sampling import UNFINISHED
from jaxrl_sql.text2sql.env.turns import Action, Observation

# For each grid of replicas, the training mesh (sharded differently) and the sampling modes.
GRIDS = {
    (4, 2): ((2, 4, 1), ("greedy", "drawn", "turns", "ahead", "not ahead")),
    (2, 4): ((1, 4, 2), ("drawn",)),
    (8, 1): ((1, 2, 4), ("turns",)),
}


class Talker(steps.Letters):
    """Letters whose tokens can encode observations."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) - 48 for c in text]


class Echo:
    """Answers the first turns with the text that it received, and counts the requests."""

    stop = ""

    def __init__(self, number: int) -> None:
        self.left = number % 3

    def next(self, action: Action) -> Observation | None:
        self.left -= 1
        return Observation(action.text[:2] + "12") if self.left >= 0 else None


def one_call(engine: ReplicatedEngine, name: str) -> list[Sample]:
    """Sample all prompts in one call: greedily, at random, or in turns."""
    begin = (lambda prompt, sample: Echo(prompt + sample)) if name == "turns" else None
    sampling = SamplingParams(float(name != "greedy"), max_new_tokens=6, max_total_tokens=30, n=2)
    return list(engine.generate(steps.make_prompts(), sampling, turns=begin))


def two_calls(engine: ReplicatedEngine, starts_next: bool) -> tuple[list[Sample], list[Sample], int]:
    """Sample four prompts, then four -> this process's samples, all samples, and the number of unfinished ones.

    With `starts_next` the first call starts the second's samples.
    """
    prompts = steps.make_prompts()
    samplings = [SamplingParams(max_new_tokens=8 + 5 * number, n=2, seed=1) for number in range(len(prompts))]
    count = len(prompts) if starts_next else 4
    first = list(engine.generate(prompts[:count], samplings[:count], ahead=4 if starts_next else None))
    gathered = engine.gather(first)
    next_samples = [
        dataclasses.replace(sample, prompt_index=sample.prompt_index - 4)
        for sample in gathered
        if sample.prompt_index >= 4
    ]
    second = list(engine.generate(prompts[4:], samplings[4:], 1, carried=next_samples))
    local_calls = [[sample for sample in first if sample.prompt_index < 4], second]
    all_calls = [[sample for sample in gathered if sample.prompt_index < 4], engine.gather(second)]
    local_samples, all_samples = (
        [*calls[0], *(dataclasses.replace(sample, prompt_index=sample.prompt_index + 4) for sample in calls[1])]
        for calls in (local_calls, all_calls)
    )
    return local_samples, all_samples, sum(sample.finish_reason == UNFINISHED for sample in next_samples)


def measure(grid: tuple[int, int]) -> dict[str, Any]:
    """Sample with a grid's modes -> the samples of each mode."""
    shape, kinds = GRIDS[grid]
    mesh, result = make_mesh(*shape), dict[str, Any]()
    with jax.set_mesh(mesh):
        params = steps.place_params(mesh, steps.make_params())
        engine = ReplicatedEngine(steps.CONFIG, params, Talker(), EngineConfig(3), replica_grid(mesh, *grid))
        for name in kinds:
            if "ahead" in name:
                local, whole, result[f"{name}: unfinished"] = two_calls(engine, name == "ahead")
            else:
                local = one_call(engine, name)
                whole = engine.gather(local)
            in_order = sorted(whole, key=lambda element: (element.prompt_index, element.index))
            result[name] = [dataclasses.asdict(item) for item in in_order]
            result[f"{name}: own"] = sorted({entry.prompt_index for entry in local})
        result["replicas"] = [replica.number for replica in engine.replicas]
    return result


def main(processes: int, folder: Path) -> None:
    """Measure each grid."""
    start_processes(processes)
    for grid in GRIDS:
        name = f"{'x'.join(map(str, grid))}.{jax.process_index()}.json"
        (folder / name).write_text(json.dumps(measure(grid)), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
