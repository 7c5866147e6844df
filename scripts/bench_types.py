"""Time a step's parts in float32 and in bfloat16 on this machine, on layers of Gemma 3 270M's shapes.

`python scripts/bench_types.py`: 6 layers, 65,536 tokens, random weights kept in float32, AdamW. An update has 2 prompts
of 512 tokens with 8 completions of 64 each. Then 8 prompts of 256 tokens are prefilled, and 8 answers of 32 tokens
are sampled for each; their first token is told apart. What changes is `model.compute_dtype`. Types take turns within
one run, figures are medians of `--runs`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench_rollout import Endless, engine_run, make_load
from bench_step import fresh, random_batch

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import make_step
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import ModelConfig, count_params, init_params
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


def time_updates(model: ModelConfig, params: Any, runs: int, sizes: tuple[int, int, int, int]) -> float:
    """Print the seconds of an update by each type; return how many times faster the second is."""
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    steps = {
        name: make_step(make_policy(model, compute_dtype=jnp.dtype(name), attention="auto"), sft_loss, optimizer)
        for name in TYPES
    }
    batch, state = random_batch(*sizes), fresh(params, optimizer)
    seconds: dict[str, list[float]] = {name: [] for name in TYPES}
    for run in range(runs + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            if run:
                seconds[name].append(time.perf_counter() - began)
    b, p, g, t = sizes
    return told(f"update B={b} P={p} G={g} T={t}", seconds, b * (p + g * t))


def time_rollouts(model: ModelConfig, params: Any, runs: int, sizes: tuple[int, int, int, int]) -> None:
    """Print the seconds of prefill with the first token, and of the other tokens, by each type."""
    b, p, g, t = sizes
    engines = {
        name: Engine(model, params, Unending(model.vocab_size), EngineConfig(b * g, compute_dtype=jnp.dtype(name)))
        for name in TYPES
    }
    first, whole = ({name: [] for name in TYPES} for _ in range(2))  # type: ignore[var-annotated]
    for run in range(runs + 1):
        for name, engine in engines.items():
            for length, seconds in ((1, first), (t, whole)):
                load = make_load(b, p, np.full((b, g), length))
                began = time.perf_counter()
                engine_run(engine, load)
                if run:
                    seconds[name].append(time.perf_counter() - began)
    told(f"prefill B={b} P={p} and a token for each of {b * g}", first, b * p)
    rest = {name: [w - f for w, f in zip(whole[name], first[name], strict=True)] for name in TYPES}
    told(f"decoding of {t - 1} tokens in {b * g} slots", rest, b * g * (t - 1))


def told(what: str, seconds: dict[str, list[float]], tokens: int) -> float:
    """Print medians and their ratio; return it."""
    median = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = median["float32"] / median["bfloat16"]
    each = ", ".join(f"{name} {one:.2f} s ({tokens / one:,.0f} tokens/s)" for name, one in median.items())
    print(f"{what}: {each}; {ratio:.2f}x", flush=True)
    return ratio


def main() -> int:
    """Time all parts; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=65_536)
    parser.add_argument("--quick", action="store_true", help="a smoke run: 2 layers, 4,096 tokens, once")
    options = parser.parse_args()
    keep_freed_memory()
    layers, vocab, runs = (2, 4096, 1) if options.quick else (options.layers, options.vocab, options.runs)
    model = gemma(layers, vocab)
    params = init_params(model, jax.random.key(0))
    fast = "fast" if cpu.has_bfloat16_products() else "no fast"
    print(f"{count_params(model):,} weights; {jax.default_backend()}, whose CPU has {fast} products of bfloat16")
    ratio = time_updates(model, params, runs, (1, 32, 4, 16) if options.quick else (2, 512, 8, 64))
    time_rollouts(model, params, runs, (1, 32, 4, 4) if options.quick else (8, 256, 8, 32))
    if not options.quick:
        print(f"update: {ratio:.2f}x, goal {GOAL}x")
    return 0 if options.quick or ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
