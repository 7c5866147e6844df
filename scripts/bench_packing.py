"""Time an update whose answers share rows (`grpo.packing`), and whose questions share a schema (`grpo.questions`).

`python scripts/bench_packing.py`: the quickstart's model and batch, 12 prompts of 192 tokens with 8 answers of up to
64, 26 in the mean, as its golds have; then 4 prompts of 1,024. The packed batch goes in one piece, and in `--parts`
(`grpo.gradient_accumulation_steps`), each of which runs the rows that it needs. All ways compute the same loss, take
turns within one run, and figures are medians of `--runs`.

Last, prompts that have all but 64 tokens in common: 12 of 256 as the quickstart's, two and four of a schema, and 8 of
1,024, four of a schema. Each alone, the schema once, and that with packed answers.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench_step import MODEL, Shape, fresh, random_batch

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import make_step
from jaxrl_sql.batch import GroupBatch, Segment, first_fit
from jaxrl_sql.config import GrpoConfig, OptimConfig
from jaxrl_sql.data.pack import with_packed_rows, with_schemas_once
from jaxrl_sql.models import ModelConfig, count_params, init_params
from jaxrl_sql.models.formats.hf import load_config
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.ops.micro_batches import order_for_parts
from jaxrl_sql.planning.lengths import between, shuffled
from jaxrl_sql.runtime.memory import keep_freed_memory

START = "configs/quickstart_start"
# How many times faster a packed update is to be.
SHAPES = (Shape(12, 192, 8, 64, 1.7, 0.0), Shape(4, 1024, 8, 64, 0.0, 0.0))
SCHEMAS = (
    (Shape(12, 256, 8, 64, 1.7, 0.0), 2),
    (Shape(12, 256, 8, 64, 1.7, 0.0), 4),
    (Shape(8, 1024, 8, 64, 1.6, 0.0), 4),
)
QUICK = Shape(4, 64, 4, 32, 0.0, 0.0)


def make_batch(shape: Shape, model: ModelConfig, mean: float) -> GroupBatch:
    """Draw a batch on the host whose answers have this mean length."""
    batch: GroupBatch = jax.tree.map(np.asarray, random_batch(*shape[:4]))
    lengths = shuffled(between(mean, shape.t).take(shape.b * shape.g)).clip(1).reshape(shape.b, shape.g)
    small = jax.tree.map(lambda x: x % model.vocab_size if x.dtype == np.int32 else x, batch)
    return dataclasses.replace(small, completion_len=lengths.astype(np.int32), shared=_within(batch, model))


def _within(batch: GroupBatch, model: ModelConfig) -> Any:
    """Return the prompts with tokens that the model has."""
    return tuple(dataclasses.replace(one, tokens=one.tokens % model.vocab_size) for one in batch.shared)


def time_updates(shape: Shape, model: ModelConfig, mean: float, runs: int, parts: int) -> float:
    """Print the seconds of the updates; return how many times faster the best packed one is."""
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    loss = partial(grpo_loss, cfg=GrpoConfig(), on_policy=True)
    policy, params = make_policy(model, attention="auto"), init_params(model, jax.random.key(0))
    batch = make_batch(shape, model, mean)
    rows = [len(first_fit(lengths, shape.t)[1]) for lengths in np.asarray(batch.completion_len)]
    packed = with_packed_rows(jax.tree.map(lambda x: x[order_for_parts(rows, parts)], batch))
    ways = {
        "apart": (make_step(policy, loss, optimizer), batch),
        "packed": (make_step(policy, loss, optimizer), packed),
        f"packed, {parts} parts": (make_step(policy, loss, optimizer, parts), packed),
    }
    need = sum(rows) / len(rows)
    return compare(f"update {shape}, {need:.1f} rows needed", ways, params, optimizer, runs)


def time_schemas(shape: Shape, model: ModelConfig, mean: float, runs: int, together: int) -> float:
    """Print the seconds of updates with and without what prompts have in common run once; return the best ratio."""
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    step = make_step(
        make_policy(model, attention="auto"), partial(grpo_loss, cfg=GrpoConfig(), on_policy=True), optimizer
    )
    batch = make_batch(shape, model, mean)
    (prompt,) = batch.shared
    tokens, common = np.array(prompt.tokens), shape.p - 64 if shape.p > 64 else shape.p // 2
    tokens[:, :common] = np.repeat(tokens[::together, :common], together, axis=0)
    batch = dataclasses.replace(batch, shared=(Segment(tokens, np.asarray(prompt.length)),))  # type: ignore[arg-type] # NumPy's
    once = with_schemas_once(batch, together)
    ways = {"apart": (step, batch), "schema once": (step, once), "and packed": (step, with_packed_rows(once))}
    title = f"update {shape}, {together} questions a schema of {common}"
    return compare(title, ways, init_params(model, jax.random.key(0)), optimizer, runs)


def compare(title: str, ways: dict[str, tuple[Any, GroupBatch]], params: Any, optimizer: Any, runs: int) -> float:
    """Print the seconds of updates that compute the same; return how many times faster than the first the best is."""
    states = {name: fresh(params, optimizer) for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    norms: dict[str, float] = {}
    for run in range(runs + 1):
        for name, (step, one) in ways.items():
            placed = jax.tree.map(jnp.asarray, one)
            began = time.perf_counter()
            states[name], metrics = step(states[name], placed)
            norm = float(metrics["optim/grad_norm"][0])
            if run:
                seconds[name].append(time.perf_counter() - began)
            else:
                norms[name] = norm
    median = {name: statistics.median(times) for name, times in seconds.items()}
    each = ", ".join(f"{name} {one:.3f} s ({median['apart'] / one:.2f}x)" for name, one in median.items())
    off = max(abs(norm / norms["apart"] - 1) for norm in norms.values())
    print(f"{title}: {each}; norms of gradients within {off:.0e}", flush=True)
    return median["apart"] / min(one for name, one in median.items() if name != "apart")


def main() -> int:
    """Time all shapes; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--mean", type=float, default=26.0, help="tokens of a mean answer")
    parser.add_argument("--quick", action="store_true", help="a smoke run: a small batch, once")
    options = parser.parse_args()
    keep_freed_memory()
    model = MODEL if options.quick else load_config(START)
    print(f"a model of the quickstart's shape, {count_params(model):,} weights; {jax.default_backend()}")
    is_reached = True
    runs, alone, schemas = (1, (QUICK,), ((QUICK, 4),)) if options.quick else (options.runs, SHAPES, SCHEMAS)
    for shape, together in (*((one, 1) for one in alone), *schemas):
        mean = min(options.mean, shape.t / 2)
        if together == 1:
            found = time_updates(shape, model, mean, runs, options.parts)
        else:
            found = time_schemas(shape, model, mean, runs, together)
        if shape.update_goal:
            print(f"goal {shape.update_goal}x: {'reached' if found >= shape.update_goal else 'missed'}")
            is_reached &= found >= shape.update_goal
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
