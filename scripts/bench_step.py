"""Time the update that computes each prompt once against the same code repeating it for every completion.

`python scripts/bench_step.py`: 4 layers, width 256, vocabulary 4,096, AdamW in float32; 8 prompts of 256 tokens and 2
of 1,024, G = 8 completions of 128 tokens. The two take turns within one run; figures are medians of `--runs`.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from functools import partial

import jax
import numpy as np

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_step
from jaxrl_sql.batch import GroupBatch, Segment, TrainState
from jaxrl_sql.config import GrpoConfig, OptimConfig
from jaxrl_sql.models import ModelConfig, count_params, init_params
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.runtime.memory import keep_freed_memory

MODEL = ModelConfig("qwen3", 4096, 256, 4, 4, 2, 64, 768, 1e4, 1e-6, True, True, False, 4096)
SHAPES = ((8, 256, 8, 128, 2.5), (2, 1024, 8, 128, 3.3))


def random_batch(b: int, p: int, g: int, t: int) -> GroupBatch:
    """Draw a full batch: B prompts of P tokens, G completions of T."""
    r = np.random.default_rng(0)
    per_token = jax.numpy.asarray(r.normal(-8, 0.1, (b, g, t)), "float32")
    return GroupBatch(
        shared=(Segment(jax.numpy.asarray(r.integers(0, MODEL.vocab_size, (b, p))), jax.numpy.full((b,), p)),),
        completion=jax.numpy.asarray(r.integers(0, MODEL.vocab_size, (b, g, t))),
        completion_len=jax.numpy.full((b, g), t),
        loss_mask=jax.numpy.ones((b, g, t), bool),
        drawn_logprobs=per_token,
        sampler_logprobs=per_token,
        old_logprobs=per_token,
        reference_logprobs=per_token,
        advantage=jax.numpy.asarray(r.normal(0, 1, (b, g)), "float32"),
        weight=jax.numpy.ones((b, g)),
        truncated=jax.numpy.zeros((b, g), bool),
    )


def repeat_prompts(batch: GroupBatch) -> GroupBatch:
    """Give every completion its own copy of the prompt: groups of one."""
    b, g, _ = batch.completion.shape
    alone = jax.tree.map(lambda x: x.reshape(b * g, 1, *x.shape[2:]), dataclasses.replace(batch, shared=()))
    (prompt,) = batch.shared
    own = Segment(prompt.tokens.repeat(g, axis=0), prompt.length.repeat(g, axis=0))
    return dataclasses.replace(alone, shared=(own,))


def main() -> int:
    """Print one line a shape; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    keep_freed_memory()  # as the commands do
    cfg = GrpoConfig(kl=0.04)
    optimizer = make_optimizer(OptimConfig(lr=1e-5), 100)
    step = make_step(make_policy(MODEL), partial(grpo_loss, cfg=cfg, on_policy=True), optimizer)
    params = init_params(MODEL, jax.random.key(0))
    reached = True
    sys.stdout.write(f"{jax.devices()[0].device_kind}, {count_params(MODEL):,} parameters, medians of {runs}\n")
    for b, p, g, t, goal in SHAPES:
        grouped = random_batch(b, p, g, t)
        states: dict[str, TrainState] = {}
        seconds: dict[str, list[float]] = {"grouped": [], "repeated": []}
        batches = {"grouped": grouped, "repeated": repeat_prompts(grouped)}
        for name in batches:
            states[name] = init_state(jax.tree.map(lambda x: x.copy(), params), optimizer)
        for run in range(runs + 1):
            for name, batch in batches.items():
                began = time.perf_counter()
                states[name], metrics = step(states[name], batch)
                jax.block_until_ready(metrics)
                if run:
                    seconds[name].append(time.perf_counter() - began)
        one, many = (statistics.median(seconds[name]) for name in ("grouped", "repeated"))
        reached &= many / one >= goal
        sys.stdout.write(
            f"B={b} P={p} G={g} T={t}: grouped {one:.2f} s, repeated {many:.2f} s, {many / one:.2f}x (goal {goal}x)\n"
        )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
