"""Hold the gradients of weights kept in bfloat16 against float32's, token by token.

`python scripts/check_gradients.py [--untied] [--remat full] [--parts 2]`: 65,536 tokens with Zipf frequencies go
through the update of a small model; what its optimizer gets for each token's row of the embeddings, and of the matrix
to logits where it is another, is compared with the same weights in float32. `sums` computes the reference in bfloat16
too and adds it up in float32, so that the sums alone differ; `all` computes it in float32 throughout, so that the
rounding of activations counts as well. Exit code 1 where a token's sums are more than 1 % off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.step import init_state, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.models import ModelConfig, init_params
from jaxrl_sql.models.policy import make_policy

B, G, P, T, VOCAB, EXPONENT = 16, 12, 1024, 256, 4096, 1.3
TOLERANCE = 0.01
CLASSES = ((1, 10), (10, 100), (100, 1_000), (1_000, 10_000), (10_000, 1_000_000))


def zipf_batch() -> tuple[GroupBatch, np.ndarray]:
    """Draw a batch of B·(P + G·T) = 65,536 tokens -> (batch, how often each token stands in it [V])."""
    rng = np.random.default_rng(0)
    share = np.arange(1, VOCAB + 1) ** -EXPONENT
    drawn = rng.choice(VOCAB, B * (P + G * T), p=share / share.sum()).astype(np.int32)
    prompt, completion = drawn[: B * P].reshape(B, P), drawn[B * P :].reshape(B, G, T)
    ones = jnp.ones((B, G, T))
    answers = dict.fromkeys(("reward", "weight"), jnp.ones((B, G)))
    tokens = dict.fromkeys(("behavior_logprobs", "rollout_logprobs"), ones)
    batch = GroupBatch(
        shared=(Segment(jnp.asarray(prompt), jnp.full((B,), P)),),
        completion=jnp.asarray(completion), completion_len=jnp.full((B, G), T), loss_mask=ones > 0,
        truncated=jnp.zeros((B, G), bool), **tokens, **answers,
    )  # fmt: skip
    return batch, np.bincount(drawn, minlength=VOCAB)


def delivered(params: Any, config: ModelConfig, batch: GroupBatch, compute: Any, remat: str, parts: int) -> Any:
    """Return the gradients as the update hands them to its optimizer."""
    keep = optax.GradientTransformation(
        lambda params: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params),
        lambda grads, _, params: (jax.tree.map(jnp.zeros_like, params), grads),
    )
    step = make_step(make_policy(config, remat=remat, compute_dtype=compute), sft_loss, keep, parts)
    own = jax.tree.map(lambda x: x.copy(), params)  # the update donates its state
    return jax.device_get(step(init_state(own, keep), batch)[0].opt_state)


def rows_of(gradient: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, rows [V,D]) of what has a row a token."""
    yield "embeddings", np.asarray(gradient["embed"], np.float64)
    if "unembed" in gradient:
        yield "to logits", np.asarray(gradient["unembed"], np.float64).T


def main() -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--untied", action="store_true", help="a matrix to logits of its own")
    parser.add_argument("--remat", default="none")
    parser.add_argument("--parts", type=int, default=1, help="grpo.gradient_accumulation_steps")
    given = parser.parse_args()
    config = ModelConfig("qwen2", VOCAB, 64, 1, 2, 1, 32, 128, 1e4, 1e-6, not given.untied, False, True, P + T)
    batch, counts = zipf_batch()
    narrow = init_params(config, jax.random.key(0), jnp.bfloat16)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
    ways = {
        "got": delivered(narrow, config, batch, None, given.remat, given.parts),
        "sums": delivered(wide, config, batch, "bfloat16", given.remat, given.parts),
        "all": delivered(wide, config, batch, "float32", given.remat, given.parts),
    }
    types = sorted({str(x.dtype) for x in jax.tree.leaves(ways["got"])})
    print(f"weights in bfloat16; gradients reach the optimizer in {', '.join(types)}")
    worst = 0.0
    print("matrix, reference | tokens seen … times | of them | median error | largest | norm / its norm")
    for name, got in rows_of(ways["got"]):
        for against in ("sums", "all"):
            want = dict(rows_of(ways[against]))[name]
            size = np.linalg.norm(want, axis=1)
            error, norm = (np.linalg.norm(x, axis=1) / np.maximum(size, 1e-30) for x in (got - want, got))
            for low, high in CLASSES:
                some = (counts >= low) & (counts < high) & (size > 0)
                errors = f"{np.median(error[some]):.2%} | {error[some].max():.2%}"
                print(f"{name}, {against} | {low:,} to {high:,} | {some.sum()} | {errors} | {norm[some].mean():.3f}")
            worst = max(worst, error.max()) if against == "sums" else worst
    got_leaves = dict(jax.tree.leaves_with_path(ways["got"]))
    for path, leaf in jax.tree.leaves_with_path(ways["sums"]):
        off = np.linalg.norm(np.asarray(got_leaves[path], np.float64) - leaf) / np.linalg.norm(leaf)
        print(f"{jax.tree_util.keystr(path)} as a whole, sums: {off:.3%} off")
    print(f"sums at most {worst:.2%} off, goal {TOLERANCE:.0%}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
