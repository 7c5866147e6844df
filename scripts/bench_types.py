"""Time a step's parts in float32 and in bfloat16 on this machine, on layers of Gemma 3 270M's shapes.

`python scripts/bench_types.py`: 6 layers, 65,536 tokens, random weights kept in float32, AdamW. An update has 2 prompts
of 512 tokens with 8 completions of 64 each. Then 8 prompts of 256 tokens are prefilled, and 8 answers of 32 tokens
are sampled for each; their first token is told apart. What changes is `model.compute_dtype`. Each type has a process of
its own, as a run has, whose heap holds no other type's temporaries. They take turns, and figures are medians of
`--runs`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench_rollout import Endless, engine_run, make_load
from bench_step import fresh, random_batch
from stack_turns import Turns, Worker

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import make_step
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import ModelConfig, init_params
from jaxrl_sql.models.families.gemma3 import SWITCHES, new_sliding
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.ops import cpu
from jaxrl_sql.rollout import Engine, EngineConfig
from jaxrl_sql.runtime.memory import keep_freed_memory

TYPES = ("float32", "bfloat16")
GOAL = 3.0


def gemma(layers: int, vocab: int) -> ModelConfig:
    """Return the shapes of Gemma 3 270M with so many layers and tokens."""
    return ModelConfig(
        "gemma3_text", vocab, 640, layers, 4, 1, 256, 2048, 1e6, 1e-6, True,
        max_positions=32_768, sliding=new_sliding(layers), **SWITCHES,
    )  # fmt: skip


class Unending(Endless):
    """A tokenizer whose end token is none of the larger vocabulary either."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def get_vocab(self) -> dict[str, int]:
        """Return the one token that is asked for."""
        return {"end": self.vocab}


def updates(model: ModelConfig, dtype: Any, sizes: tuple[int, int, int, int]) -> Callable[[], dict[str, float]]:
    """Return what makes an update and tells its seconds."""
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    step = make_step(make_policy(model, compute_dtype=dtype, attention="auto"), sft_loss, optimizer)
    batch, state = random_batch(*sizes), fresh(init_params(model, jax.random.key(0)), optimizer)

    def update() -> dict[str, float]:
        nonlocal state
        began = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        return {"update": time.perf_counter() - began}

    return update


def rollouts(model: ModelConfig, dtype: Any, sizes: tuple[int, int, int, int]) -> Callable[[], dict[str, float]]:
    """Return what samples answers and tells the seconds of prefill with the first token, and of the other tokens."""
    b, p, g, t = sizes
    config = EngineConfig(b * g, compute_dtype=dtype)
    engine = Engine(model, init_params(model, jax.random.key(0)), Unending(model.vocab_size), config)

    def rollout() -> dict[str, float]:
        seconds = []
        for length in (1, t):
            load = make_load(b, p, np.full((b, g), length))
            began = time.perf_counter()
            engine_run(engine, load)
            seconds.append(time.perf_counter() - began)
        first, whole = seconds
        return {"prefill": first, "decoding": whole - first}

    return rollout


def work(part: str, dtype: str, sizes: tuple[int, int, int, int], model: ModelConfig) -> None:
    """Be the worker of one type: do its part when it is told to."""
    turns = Turns()
    keep_freed_memory()
    do = PARTS[part](model, jnp.dtype(dtype), sizes)
    for _ in range(WARM):
        do()
    turns.ready(jax.__version__)
    turns.serve(do)


PARTS = {"update": updates, "rollout": rollouts}
WARM = 3  # after compiling, until temporaries have found their places


def time_part(part: str, runs: int, sizes: tuple[int, int, int, int], model: ModelConfig) -> dict[str, float]:
    """Time a part by each type, in turns; print medians and return how many times faster the second type is."""
    shape = [model.n_layers, model.vocab_size, *sizes]
    workers = [Worker(name, [sys.executable, __file__, "--worker", part, name, *map(str, shape)]) for name in TYPES]
    for _ in range(runs):
        for worker in workers:
            worker.step()
    for worker in workers:
        worker.close()
    b, p, g, t = sizes
    tokens = {"update": b * (p + g * t), "prefill": b * p, "decoding": b * g * (t - 1)}
    print(f"B={b} P={p} G={g} T={t}")
    medians = {worker.name: worker.median() for worker in workers}
    ratios = {}
    for what, slow in medians[TYPES[0]].items():
        each = (f"{name} {m[what]:.2f} s ({tokens[what] / m[what]:,.0f} tokens/s)" for name, m in medians.items())
        ratios[what] = slow / medians[TYPES[1]][what]
        print(f"  {what}: {', '.join(each)}; {ratios[what]:.2f}x", flush=True)
    return ratios


def main() -> int:
    """Time all parts; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=65_536)
    parser.add_argument("--quick", action="store_true", help="a smoke run: 2 layers, 4,096 tokens, once")
    parser.add_argument("--worker", nargs=8, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        part, dtype, *shape = options.worker
        layers, vocab, b, p, g, t = map(int, shape)
        work(part, dtype, (b, p, g, t), gemma(layers, vocab))
        return 0
    model, runs = gemma(options.layers, options.vocab), options.runs
    update, rollout = (2, 512, 8, 64), (8, 256, 8, 32)
    if options.quick:
        model, runs, update, rollout = gemma(2, 4096), 1, (1, 32, 4, 16), (1, 32, 4, 4)
    fast = "fast" if cpu.has_bfloat16_products() else "no fast"
    print(f"{model.n_layers} layers; {jax.default_backend()}, whose CPU has {fast} products of bfloat16")
    ratio = time_part("update", runs, update, model)["update"]
    time_part("rollout", runs, rollout, model)
    if not options.quick:
        print(f"update: {ratio:.2f}x, goal {GOAL}x")
    return 0 if options.quick or ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
