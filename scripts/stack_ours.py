"""Our step as a worker of bench_stacks.py."""

from __future__ import annotations

import importlib.metadata
import os

import jax
import stack_turns as work
from bench_rollout import MODEL
from bench_step import Shape, fresh, grouped_step

from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import init_params
from jaxrl_sql.runtime.memory import keep_freed_memory


def main() -> None:
    """Make steps as asked."""
    turns = work.Turns()
    keep_freed_memory()
    shape = Shape(work.PROMPTS, work.PROMPT_TOKENS, work.GROUP, work.NEW_TOKENS, 0.0, 0.0)
    assert (MODEL.n_layers, MODEL.d_model, MODEL.d_ff, MODEL.vocab_size) == (
        work.LAYERS,
        work.WIDTH,
        work.FEED_FORWARD,
        work.VOCABULARY,
    )
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    params = init_params(MODEL, jax.random.key(0))
    dtype = "bfloat16" if work.BFLOAT16 in os.environ else "float32"
    whole, state = grouped_step(shape, params, optimizer, dtype), fresh(params, optimizer)

    def step() -> dict[str, float]:
        nonlocal state
        state, seconds = whole(state)
        return seconds

    step()
    turns.ready(f"jaxrl-sql {importlib.metadata.version('jaxrl-sql')}, jax {jax.__version__}")
    turns.serve(step)


if __name__ == "__main__":
    main()
