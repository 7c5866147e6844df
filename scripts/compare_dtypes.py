"""Go on training one small model with its weights kept in float32 and in bfloat16, at the rates of large models.

`python scripts/compare_dtypes.py [--steps 1000] [--rates 1e-6 1e-5]`: a model learns one random language (each token
follows from the one before it) at a high rate in float32, is rounded to bfloat16, and then learns another one in each
way from the same batches: float32 throughout; float32 weights under bfloat16 compute; weights in bfloat16, whose
updates are rounded by chance (`rounding.py`); and those rounded to the nearest. Printed are the loss on held-out text
before and after; the KL divergence there from what was begun with, and from what float32 came to; and of the way that
the weights went how far from float32's it ends as a share of that, the cosine between the two, and its length.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_sql.algo import step as algo_step
from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import ModelConfig, forward, init_params
from jaxrl_sql.models.policy import make_policy

VOCAB, B, G, P, T, BATCHES = 64, 4, 4, 8, 32, 32
CONFIG = ModelConfig("qwen3", VOCAB, 64, 2, 2, 1, 32, 192, 1e4, 1e-6, True, True, False, 64)
Language = np.ndarray


def make_language(seed: int, near: Language | None = None) -> Language:
    """Return what follows a token with which probability [V,V]; `near`: half of it is another's."""
    drawn = np.random.default_rng(seed).gamma(0.05, size=(VOCAB, VOCAB)) + 1e-6
    drawn /= drawn.sum(axis=-1, keepdims=True)
    return drawn if near is None else (drawn + near) / 2


def make_batches(language: Language, seed: int, count: int) -> GroupBatch:
    """Draw `count` batches of prompts with answers in a language, stacked."""
    rng = np.random.default_rng(seed)
    total = language.cumsum(axis=-1)
    text = rng.integers(0, VOCAB, (count * B * G, P + T)).astype(np.int32)
    for t in range(1, P + T):
        u = rng.random((len(text), 1))
        text[:, t] = np.minimum((total[text[:, t - 1]] < u).sum(axis=1), VOCAB - 1)
    # One prompt a row: each answer has its own.
    prompt, completion = text[:, :P].reshape(count, B * G, P), text[:, P:].reshape(count, B * G, 1, T)
    ones = jnp.ones(completion.shape)
    answers = dict.fromkeys(("reward", "weight"), ones[..., 0])
    tokens = dict.fromkeys(("behavior_logprobs", "rollout_logprobs"), ones)
    return GroupBatch(
        shared=(Segment(jnp.asarray(prompt), jnp.full(prompt.shape[:2], P)),),
        completion=jnp.asarray(completion), completion_len=jnp.full(completion.shape[:3], T), loss_mask=ones > 0,
        truncated=ones[..., 0] < 0, **tokens, **answers,
    )  # fmt: skip


def learn(params: Any, compute: Any, lr: float, steps: int, batches: GroupBatch) -> Any:
    """Make so many updates from parameters and return where they end."""
    optimizer = make_optimizer(OptimConfig(lr=lr, schedule="constant", warmup_steps=0), steps)
    update = make_step(make_policy(CONFIG, compute_dtype=compute), sft_loss, optimizer)

    @jax.jit
    def run(state: Any) -> Any:
        def one(state: Any, i: jax.Array) -> Any:
            return update(state, jax.tree.map(lambda x: x[i % BATCHES], batches))[0], None

        return jax.lax.scan(one, state, jnp.arange(steps))[0]

    return run(init_state(params, optimizer)).trainable


def nearest(params: Any, updates: Any, _step: jax.Array) -> Any:
    """Add updates to parameters and round to the nearest."""
    return optax.apply_updates(params, updates)


def main() -> int:
    """Train, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-6, 1e-5])
    given = parser.parse_args()
    first = make_language(0)
    second = make_language(1, near=first)
    begun = learn(init_params(CONFIG, jax.random.key(0)), None, 3e-3, 500, make_batches(first, 0, BATCHES))
    begun = jax.tree.map(lambda x: x.astype(jnp.bfloat16), begun)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), begun)
    taught, held = make_batches(second, 1, BATCHES), jax.tree.map(lambda x: x[0], make_batches(second, 2, 1))
    chance = algo_step.apply_updates
    text = jnp.concatenate([held.shared[0].tokens, held.completion[:, 0]], axis=1)
    lengths = jnp.full(len(text), P + T)

    @jax.jit
    def predicted(params: Any) -> jax.Array:
        return jax.nn.log_softmax(forward(params, CONFIG, text, lengths)[:, P - 1 : -1])

    def loss(params: Any) -> float:
        return -float(jnp.mean(jnp.take_along_axis(predicted(params), text[:, P:, None], axis=-1)))

    def divergence(params: Any, other: Any) -> float:
        p, q = predicted(params), predicted(other)
        return float(jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=-1)))

    ways: dict[str, tuple[Any, Any, Callable[..., Any]]] = {
        "float32": (wide, None, chance),
        "float32, bfloat16 compute": (wide, "bfloat16", chance),
        "bfloat16, rounded by chance": (begun, None, chance),
        "bfloat16, rounded to the nearest": (begun, None, nearest),
    }
    print(f"{given.steps} updates; held-out loss before: {loss(wide):.4f}")
    print("lr | weights | loss | KL from the start | KL from float32's | off its way | cosine | length of the way")
    for rate in given.rates:
        exact, reached = np.zeros(0), wide
        for name, (params, compute, apply) in ways.items():
            algo_step.apply_updates = apply
            ended = learn(jax.tree.map(jnp.copy, params), compute, rate, given.steps, taught)
            ended = jax.tree.map(lambda x: x.astype(jnp.float32), ended)
            moved = flat(ended) - flat(wide)
            exact, reached = (exact, reached) if exact.size else (moved, ended)
            off = np.linalg.norm(moved - exact) / np.linalg.norm(exact)
            cosine = moved @ exact / np.linalg.norm(moved) / np.linalg.norm(exact)
            way = f"{off:.3f} | {cosine:.3f} | {np.sqrt(np.mean(moved**2)):.2e}"
            apart = f"{divergence(ended, wide):.6f} | {divergence(ended, reached):.6f}"
            print(f"{rate:g} | {name} | {loss(ended):.4f} | {apart} | {way}", flush=True)
    return 0


def flat(params: Any) -> np.ndarray:
    """Return all parameters in one row of float64."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(params)])


if __name__ == "__main__":
    sys.exit(main())
