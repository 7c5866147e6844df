"""Time an update whose answers share rows (`grpo.packing`), and whose questions share a schema (`grpo.questions`).

`python scripts/bench_packing.py` uses the quickstart's model and batch: 12 prompts of 192 tokens with 8 answers of up
to 64 tokens, 26 in the mean, as its golds have. A second batch has 4 prompts of 1,024. The packed batch runs in one
part and in `--parts` (`grpo.gradient_accumulation_steps`); each part runs the rows that it needs. All methods compute
the same loss.

The last batches have prompts that share all but 64 tokens: 12 of 256 with two and four per schema, and 8 of 1,024 with
four per schema. Variants: each prompt alone, the schema once, and the schema once with packed answers.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from typing import Any

from jaxrl_sql.inference.process import prepare_process

prepare_process()  # before JAX is imported, as the commands do

import jax
import jax.numpy as jnp
import numpy as np
from bench_step import MODEL, Shape, make_state, random_batch
from harness import Goal, Report, make_parser, ratios, run_turns, time_call

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import make_step
from jaxrl_sql.batch import GroupBatch, Segment, first_fit
from jaxrl_sql.config import GrpoConfig, OptimConfig
from jaxrl_sql.models import ModelConfig, init_params
from jaxrl_sql.models.formats.hf import load_config
from jaxrl_sql.models.ops.micro_batches import order_for_parts
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.planning.lengths import shuffle_lengths, truncated_exponential
from jaxrl_sql.training.batching.pack import share_schemas, with_packed_rows

START = "configs/quickstart_start"
# The goals: speed-up of the best packed update.
SHAPES = (Shape(12, 192, 8, 64, Goal(1.7)), Shape(4, 1024, 8, 64))
SCHEMAS = (
    (Shape(12, 256, 8, 64, Goal(1.7)), 2),
    (Shape(12, 256, 8, 64, Goal(1.7)), 4),
    (Shape(8, 1024, 8, 64, Goal(1.6)), 4),
)
QUICK = Shape(4, 64, 4, 32)


def make_batch(shape: Shape, model: ModelConfig, mean: float) -> GroupBatch:
    """Sample a batch on the host whose answers have this mean length."""
    batch: GroupBatch = jax.tree.map(np.asarray, random_batch(*shape[:4]))
    lengths = (
        shuffle_lengths(truncated_exponential(mean, shape.t).take(shape.b * shape.g)).clip(1).reshape(shape.b, shape.g)
    )
    small = jax.tree.map(lambda x: x % model.vocab_size if x.dtype == np.int32 else x, batch)
    return dataclasses.replace(small, completion_len=lengths.astype(np.int32), shared=_limit_tokens(batch, model))


def _limit_tokens(batch: GroupBatch, model: ModelConfig) -> Any:
    """Return the prompts with tokens of the model's vocabulary."""
    return tuple(dataclasses.replace(item, tokens=item.tokens % model.vocab_size) for item in batch.shared)


def time_updates(report: Report, shape: Shape, model: ModelConfig, mean: float, parts: int) -> None:
    """Compare updates with packed answers."""
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    loss = partial(grpo_loss, cfg=GrpoConfig(), on_policy=True)
    policy, params = make_policy(model, attention="auto"), init_params(model, jax.random.key(0))
    batch = make_batch(shape, model, mean)
    row_counts = [len(first_fit(lengths, shape.t)[1]) for lengths in np.asarray(batch.completion_len)]
    packed = with_packed_rows(jax.tree.map(lambda x: x[order_for_parts(row_counts, parts)], batch))
    ways = {
        "unpacked": (make_step(policy, loss, optimizer), batch),
        "packed": (make_step(policy, loss, optimizer), packed),
        f"packed, {parts} parts": (make_step(policy, loss, optimizer, parts), packed),
    }
    need = sum(row_counts) / len(row_counts)
    compare(report, f"update {shape}, {need:.1f} rows needed", ways, params, optimizer, shape.update_goal)


def time_schemas(report: Report, shape: Shape, model: ModelConfig, mean: float, prompts_per_schema: int) -> None:
    """Compare updates that compute the common part of prompts once."""
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    step = make_step(
        make_policy(model, attention="auto"), partial(grpo_loss, cfg=GrpoConfig(), on_policy=True), optimizer
    )
    batch = make_batch(shape, model, mean)
    (prompt,) = batch.shared
    tokens, common = np.array(prompt.tokens), shape.p - 64 if shape.p > 64 else shape.p // 2
    tokens[:, :common] = np.repeat(tokens[::prompts_per_schema, :common], prompts_per_schema, axis=0)
    batch = dataclasses.replace(batch, shared=(Segment(tokens, np.asarray(prompt.length)),))  # type: ignore[arg-type] # NumPy's
    once = share_schemas(batch, prompts_per_schema)
    ways = {"unpacked": (step, batch), "schema once": (step, once), "and packed": (step, with_packed_rows(once))}
    title = f"update {shape}, {prompts_per_schema} questions a schema of {common}"
    compare(report, title, ways, init_params(model, jax.random.key(0)), optimizer, shape.update_goal)


def compare(
    report: Report, title: str, ways: dict[str, tuple[Any, GroupBatch]], params: Any, optimizer: Any, goal: Goal | None
) -> None:
    """Time equivalent updates; the goal applies to the best one other than `unpacked`."""
    states = {name: make_state(params, optimizer) for name in ways}
    norms: dict[str, float] = {}

    def update(name: str) -> float:
        (step, batch), state = ways[name], states[name]
        placed = jax.tree.map(jnp.asarray, batch)
        taken, (states[name], metrics) = time_call(lambda: jax.block_until_ready(step(state, placed)))
        norms.setdefault(name, float(metrics["optim/grad_norm"][0]))
        return taken

    taken = run_turns({name: partial(update, name) for name in ways}, report.turns)
    for name, values in taken.items():
        report.add(f"{title}: {name}", values, "s")
    figures = [
        report.add(f"{title}: unpacked / {name}", ratios(taken["unpacked"], values), "x")
        for name, values in taken.items()
        if name != "unpacked"
    ]
    report.add(f"{title}: the best ratio", max(figure.median for figure in figures), "x", goal)
    off = max(abs(norm / norms["unpacked"] - 1) for norm in norms.values())
    report.add(f"{title}: difference of gradient norms", off, "", Goal(1e-4, at_most=True))


def main() -> int:
    """Measure all shapes; return the exit code."""
    parser = make_parser(__doc__, turns=9)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--mean", type=float, default=26.0, help="mean tokens per answer")
    options = parser.parse_args()
    model = MODEL if options.quick else load_config(START)
    report = Report(options)
    for shape in (QUICK,) if options.quick else SHAPES:
        time_updates(report, shape, model, min(options.mean, shape.t / 2), options.parts)
    for shape, prompts_per_schema in ((QUICK, 4),) if options.quick else SCHEMAS:
        time_schemas(report, shape, model, min(options.mean, shape.t / 2), prompts_per_schema)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
