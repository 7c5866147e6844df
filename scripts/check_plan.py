"""Set a plan beside what this machine's processor does: memory of an update and of decoding, and the phases of a step.

`python scripts/check_plan.py --config configs/quickstart.yaml [--steps 12] [key.sub=value …]`: an update of the longest
prompts is made, and answers are sampled from pools at their largest, each in a process of its own whose most memory is
read from the system while nothing is compiled; then a run of a few steps says how long its phases take. The machine
should be idle. Linux only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import init_params, load_tokenizer
from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.lengths import StepLengths, between
from jaxrl_sql.planning.plan import Plan, make_plan
from jaxrl_sql.planning.programs import Setting, programs
from jaxrl_sql.planning.workload import longest_answer
from jaxrl_sql.rollout import Engine, SamplingParams
from jaxrl_sql.run.command import prepare_process
from jaxrl_sql.run.plans import model_shape

SIZES = {"data": 1, "fsdp": 1, "tensor": 1}
MIB = 1 << 20
Measured = tuple[str, int, int]


def plan_of(config: TrainConfig, written: float = 0.0) -> Plan:
    """Plan a run on one device of this machine, by formula."""
    longest = config.data.max_prompt_tokens
    answers = between(written, longest_answer(config)[1]) if written else None
    return make_plan(config, model_shape(config), find_topology("cpu"), SIZES, longest, StepLengths(answers))


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    return _status("VmRSS")


def peak_of(work: Callable[[], Any]) -> int:
    """Return the most bytes that this process had while `work` ran."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the most so far
    jax.block_until_ready(work())
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) * 1024


def measure_update(config: TrainConfig) -> Measured:
    """Make an update of the longest prompts from arrays of zeros -> (name, bytes predicted, bytes measured)."""
    plan, mesh = plan_of(config), make_mesh(1, 1, 1)
    lower = programs(Setting(config, model_shape(config), mesh), plan.work)["update"]
    lowered = lower()
    compiled = lowered.compile()
    before = resident()
    inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), lowered.in_avals[0])
    peak = peak_of(lambda: compiled(*inputs))
    memory = plan.memory
    return "update", memory.weights + memory.optimizer + memory.gradients + memory.activations, peak - before


def measure_decoding(config: TrainConfig) -> Measured:
    """Sample answers to as many of the longest prompts as a step has -> (name, bytes predicted, bytes measured)."""
    plan, shape = plan_of(config), model_shape(config)
    load = plan.work.rollout
    assert load is not None
    before = resident()
    params = init_params(shape, jax.random.key(0), jnp.dtype(config.model.dtype))
    engine = Engine(shape, params, load_tokenizer(config.model.checkpoint), load.config)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, load.prompt).tolist() for _ in range(load.questions)]
    sampling = SamplingParams(max_new_tokens=config.sampling.max_new_tokens, n=load.group)
    list(engine.generate(prompts, sampling))  # compiles
    compiling = resident() - before - held()
    peak = peak_of(lambda: list(engine.generate(prompts, sampling)))
    return "decoding", plan.memory.weights + plan.memory.caches + plan.memory.decoding, peak - before - compiling


def held() -> int:
    """Return the bytes of all arrays that are alive."""
    return sum(x.nbytes for x in jax.live_arrays())


def measure_phases(path: Path, overrides: list[str], steps: int) -> dict[str, float]:
    """Make a run of so many steps -> the median seconds of each phase, and tokens of a mean answer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jaxrl_sql.train", "--config", str(path), *overrides]
        command += [f"run.dir={folder}/run", f"grpo.steps={steps}", "validation.every=0", "run.display=plain"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "time/step" in row]
    names = {"prefill": "time/prefill", "decode": "time/decode", "update": "time/update", "tokens": "length/mean"}
    # Steps that compile say nothing: the quicker half is taken.
    rows = sorted(rows, key=lambda row: row["time/step"])[: max(len(rows) // 2, 1)]
    return {name: statistics.median(row[metric] for row in rows) for name, metric in names.items()}


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.yaml"))
    parser.add_argument("--steps", type=int, default=16, help="of the run that says how long phases take; 0: no run")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value")
    given = parser.parse_args()
    prepare_process()
    config = load_config(given.config, given.overrides)
    fresh = multiprocessing.get_context("spawn")
    for measure in (measure_update, measure_decoding):
        with fresh.Pool(1) as pool:
            name, predicted, measured = pool.apply(measure, (config,))
        ratio = predicted / measured
        print(f"{name}: {predicted / MIB:,.0f} MiB by formula, {measured / MIB:,.0f} at most here: {ratio:.2f}")
    if given.steps:
        found = measure_phases(given.config, given.overrides, given.steps)
        plan = plan_of(config, found.pop("tokens"))
        predicted_s = {one.name: one.seconds(plan.topology.chip) for one in plan.phases}
        for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
            print(f"{name}: {seconds:.2f} s a step, {predicted_s[name]:.2f} at best by formula")
        same = sorted(found, key=lambda n: -found[n]) == sorted(found, key=lambda n: -predicted_s[n])
        print("in the predicted order" if same else "NOT in the predicted order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
