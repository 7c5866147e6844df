"""Gradients of bfloat16 weights are summed in float32, for tokens that occur a thousand times too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import Jaxpr, jaxprs_in_params

from jaxrl_sql.algo.loss import grpo_loss, sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import LossFn, init_state, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import GrpoConfig, KlConfig, OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.policy import make_policy

V, D = 48, 16
TIED = ModelConfig("qwen2", V, D, 1, 2, 1, 8, 24, Rope(1e4), Norms(), True, False, True, 1024)
UNTIED = dataclasses.replace(TIED, family="qwen3", tie_embeddings=False, qk_norm=True, qkv_bias=False)
GEMMA = dataclasses.replace(
    TIED, family="gemma3_text", norms=Norms(is_zero_centered=True, has_post_norms=True), scale_embeddings=True
)
B, G, P, T = 4, 2, 512, 128
LOSSES: dict[str, LossFn] = {
    "sft": sft_loss,
    "grpo": partial(grpo_loss, cfg=GrpoConfig(kl=KlConfig(coef=0.05)), on_policy=True),
}
# Keeps the gradients that it receives in place of an optimizer's state.
KEEPS = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, _, params: (jax.tree.map(jnp.zeros_like, params), grads),
)


@pytest.fixture(scope="module")
def batch() -> GroupBatch:
    """Make a batch of 3,072 tokens with Zipf frequencies: the first occurs more than a thousand times."""
    rng = np.random.default_rng(0)
    share = np.arange(1, V + 1) ** -1.3
    drawn = rng.choice(V, B * (P + G * T), p=share / share.sum()).astype(np.int32)
    assert np.bincount(drawn)[0] > 1000
    tokens = {
        name: jnp.asarray(rng.normal(-4, 0.3, (B, G, T)), jnp.float32)
        for name in ("behavior_logprobs", "rollout_logprobs", "reference_logprobs")
    }
    return GroupBatch(
        shared=(Segment(jnp.asarray(drawn[: B * P].reshape(B, P)), jnp.full((B,), P)),),
        completion=jnp.asarray(drawn[B * P :].reshape(B, G, T)),
        completion_len=jnp.full((B, G), T),
        loss_mask=jnp.ones((B, G, T), bool),
        reward=jnp.ones((B, G)),
        weight=jnp.ones((B, G)),
        advantage=jnp.asarray(rng.normal(size=(B, G, 1)), jnp.float32),
        truncated=jnp.zeros((B, G), bool),
        **tokens,
    )


def policy(config: ModelConfig, remat: str = "none", compute: Any = None) -> Any:
    """Return a policy that computes the logits of a part of the batch in four pieces."""
    return make_policy(config, remat=remat, compute_dtype=compute, kept_bytes=B * G * T * V)


def optimizer_gradients(params: Any, scored: Any, loss: str, batch: GroupBatch, parts: int) -> Any:
    """Return the gradients that reach the optimizer."""
    step = jax.jit(make_step(scored, LOSSES[loss], KEEPS, parts))
    return step(init_state(params, KEEPS), batch)[0].opt_state


@pytest.mark.parametrize(
    ("config", "loss", "remat", "parts"),
    [
        pytest.param(TIED, "sft", "none", 1, marks=pytest.mark.nightly),
        pytest.param(TIED, "grpo", "full", 2, marks=pytest.mark.nightly),
        pytest.param(UNTIED, "grpo", "none", 1, marks=pytest.mark.nightly),
        pytest.param(GEMMA, "sft", "query,key", 1, marks=pytest.mark.nightly),
    ],
    ids=["tied-sft", "tied-grpo-full-parts", "untied-grpo", "gemma-sft-named"],
)
def test_gradients_of_bfloat16_weights_are_summed_in_float32(
    batch: GroupBatch, config: ModelConfig, loss: str, remat: str, parts: int
) -> None:
    narrow = init_params(config, jax.random.key(0), jnp.bfloat16)
    # The reference has the same weights in float32, and also computes in bfloat16: only sums can differ.
    wide = jax.tree.map(lambda x: np.asarray(x, np.float32), narrow)
    got = optimizer_gradients(narrow, policy(config, remat), loss, batch, parts)
    want = optimizer_gradients(wide, policy(config, remat, "bfloat16"), loss, batch, parts)
    for (path, item), other in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        assert item.dtype == jnp.float32, path
        assert np.linalg.norm(np.asarray(item) - np.asarray(other)) <= 0.01 * np.linalg.norm(other), path
    for name in ("embed",) if config.tie_embeddings else ("embed", "unembed"):
        ours, theirs = (np.asarray(x[name] if name == "embed" else x[name].T) for x in (got, want))
        error = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
        assert error.max() <= 0.01, (name, int(error.argmax()))


@pytest.mark.slow
def test_embedding_gradient_has_no_bfloat16_scatter_and_no_table_sum(batch: GroupBatch) -> None:
    optimizer = make_optimizer(OptimConfig(), 10)
    for config in (TIED, UNTIED):
        params = init_params(config, jax.random.key(0), jnp.bfloat16)
        step = make_step(policy(config, "full"), sft_loss, optimizer, 2)
        program = jax.make_jaxpr(step)(init_state(params, optimizer), batch)
        sums = [
            (equation.primitive.name, str(out.aval))
            for equation in equations(program.jaxpr)
            for out in equation.outvars
            if equation.primitive.name in {"add", "add_any", "scatter-add", "scatter_add"}
            and out.aval.dtype == jnp.bfloat16
            and ("scatter" in equation.primitive.name or sorted(out.aval.shape) == sorted((V, D)))
        ]
        assert sums == []
        adds = [item for item in equations(program.jaxpr) if item.primitive.name in {"scatter-add", "scatter_add"}]
        assert any(out.aval.shape == (V, D) for add in adds for out in add.outvars), "the look-up has no gradient"


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Yield all equations of a program, including nested programs."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)
