"""Prompts with a shared prefix give the scores and updates of separate prompts; the prefix is computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.algo.step import init_state, make_scorer, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import GrpoConfig, LossConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.attention import TreeAttention, cudnn, splash
from jaxrl_sql.models.ops.micro_batches import MicroBatches
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.training.batching.pack import share_schemas, with_packed_rows
from jaxrl_sql.types import InputError

MODEL = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 192)
SLIDING = dataclasses.replace(MODEL, sliding=SlidingWindow(5, (True, False), 1e4))
B, Q, G, P, T = 4, 2, 5, 64, 16
SPLASH = partial(splash.attend_tree, interpret=True)


def separate_and_packed(always: set[str], **cases: tuple[Any, ...]) -> list[Any]:
    """Return each case with separate and with packed answers; cases not in `always` are nightly."""
    params = []
    for name, case in cases.items():
        for is_packed, way in ((False, "apart"), (True, "packed")):
            label = f"{name}-{way}"
            params.append(
                pytest.param(*case, is_packed, id=label, marks=() if label in always else pytest.mark.nightly)
            )
    return params


def make_batch() -> GroupBatch:
    """Return a batch whose first two prompts share 40 tokens, the others none."""
    r = np.random.default_rng(0)
    length = np.array([[16, 3, 9, 4, 3], [1, 5, 0, 7, 2], [6, 6, 6, 6, 6], [2, 2, 0, 11, 5]], np.int32)
    prompts = r.integers(0, 24, (B, P)).astype(np.int32)
    prompts[1, :40] = prompts[0, :40]
    prompts[1, 40], prompts[3, 0] = (prompts[0, 40] + 1) % 24, (prompts[2, 0] + 1) % 24
    numbers = r.normal(size=(3, B, G, T)).astype(np.float32)
    return GroupBatch(
        shared=(Segment(prompts, np.array([64, 43, 7, 30], np.int32)),),  # type: ignore[arg-type] # NumPy's
        completion=r.integers(0, 24, (B, G, T)).astype(np.int32), completion_len=length,
        loss_mask=r.random((B, G, T)) < 0.8, behavior_logprobs=numbers[0] - 3, rollout_logprobs=numbers[0] - 3,
        reward=numbers[1, :, :, 0], weight=(r.random((B, G)) < 0.9).astype(np.float32),
        truncated=np.zeros((B, G), bool), old_logprobs=numbers[0] - 3, advantage=numbers[2, :, :, :1],
    )  # fmt: skip


def test_shared_prefixes_and_remainders_join_to_the_prompts() -> None:
    batch = make_batch()
    begin, rest = share_schemas(batch, Q).shared
    assert (begin.tokens.shape, rest.tokens.shape) == ((B, P), (B, 64))
    assert begin.length.tolist() == [40, 40, 0, 0]
    assert rest.length.tolist() == [24, 3, 7, 30]
    for i, n in enumerate(batch.shared[0].length):
        result = [*begin.tokens[i, : begin.length[i]], *rest.tokens[i, : rest.length[i]]]
        assert result == batch.shared[0].tokens[i, :n].tolist()


def test_equal_prompts_keep_their_last_token_unshared() -> None:
    batch = jax.tree.map(lambda x: x[[0, 0]], make_batch())
    begin, rest = share_schemas(batch, 2).shared
    assert (begin.length.tolist(), rest.length.tolist()) == ([63, 63], [1, 1])


@cache
def differentiated(config: ModelConfig, attention: str | TreeAttention) -> Callable[..., Any]:
    """Return the compiled (loss, scores) and gradient of a batch."""

    def loss(params: Any, batch: GroupBatch) -> tuple[jax.Array, jax.Array]:
        scored = make_policy(config, 0.7, "full", attention=attention)(params, None, batch)
        result = grpo_loss(scored, batch, cfg=GrpoConfig(loss=LossConfig(entropy_bonus=0.1)), on_policy=False)
        return result.sum / result.weight, scored.logprob

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "attention", "is_packed"),
    separate_and_packed(
        {"plain-apart"},
        plain=(MODEL, "xla"),
        sliding=(SLIDING, "xla"),
        splash=(MODEL, SPLASH),
        cudnn=(MODEL, "cudnn"),
    ),
)
def test_scores_and_gradients_equal_those_of_separate_prompts(
    config: ModelConfig, attention: str | TreeAttention, is_packed: bool, plain_kernel: ModuleType
) -> None:
    if attention == "cudnn":
        kernel = cudnn.Kernel(plain_kernel.forward, plain_kernel.backward)
        attention = partial(cudnn.attend_tree, kernel=kernel)
    params, alone = init_params(config, jax.random.key(3)), make_batch()
    once = share_schemas(alone, Q)
    once = with_packed_rows(once) if is_packed else once

    if is_packed and attention is SPLASH:
        with pytest.raises(InputError, match="packed answers of several questions"):
            differentiated(config, attention)(params, once)
        return
    (want, scores), wanted = differentiated(config, "xla")(params, alone)
    (got, result), gradients = differentiated(config, attention)(params, once)
    inside = np.arange(T) < alone.completion_len[..., None]
    np.testing.assert_allclose(np.asarray(result)[inside], np.asarray(scores)[inside], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for (path, a), b in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


def token_counts(jaxpr: Any) -> set[tuple[int, ...]]:
    """Return the shapes of the states [*,*,*,D] that a program projects to the MLP width."""
    result: set[tuple[int, ...]] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and equation.outvars[0].aval.shape[-1:] == (MODEL.d_ff,):
            result.add(equation.outvars[0].aval.shape)
        for inner in jaxprs_in_params(equation.params):
            result |= token_counts(inner)
    return result


def test_shared_prefix_is_computed_once() -> None:
    params, batch = init_params(MODEL, jax.random.key(3)), share_schemas(make_batch(), Q)
    jaxpr = jax.make_jaxpr(lambda params, batch: make_policy(MODEL)(params, None, batch).logprob)(params, batch)
    tokens = {int(np.prod(shape[:-1])) for shape in token_counts(jaxpr.jaxpr)}
    assert tokens == {B // Q * P, B * 64, B * G * T}


def updated(batch: GroupBatch, parts: MicroBatches) -> tuple[Any, np.ndarray]:
    """Return a batch's updated parameters, and the token scores before the update, for these parts."""
    policy, loss = make_policy(MODEL), partial(grpo_loss, cfg=GrpoConfig(), on_policy=False)
    params = init_params(MODEL, jax.random.key(3))
    scores, _ = make_scorer(policy, parts)(params, None, batch)
    state, _ = make_step(policy, loss, optax.sgd(0.1), parts)(init_state(params, optax.sgd(0.1)), batch)
    return state.trainable, np.where(np.arange(T) < make_batch().completion_len[..., None], scores, 0)


@cache
def whole() -> tuple[Any, np.ndarray]:
    """Return those of separate prompts, in one part."""
    return updated(make_batch(), MicroBatches())


@pytest.mark.parametrize(
    ("micro_batches", "is_packed"),
    separate_and_packed(
        set(),
        tokens=(MicroBatches(1, 360),),
        parts=(MicroBatches(2),),
        whole=(MicroBatches(1, 720),),
    ),
)
def test_update_by_micro_batches_equals_the_whole(micro_batches: MicroBatches, is_packed: bool) -> None:
    """A shared prefix stays in one part; answers are restored to their positions."""
    once = share_schemas(make_batch(), Q)
    once = with_packed_rows(once) if is_packed else once
    result = updated(once, micro_batches)
    for a, b in zip(*map(jax.tree.leaves, (result, whole())), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_token_budget_that_splits_shared_prefixes_is_rejected() -> None:
    batch = share_schemas(make_batch(), Q)
    with pytest.raises(InputError, match="below the 352 tokens of 2 questions with their schema"):
        make_scorer(make_policy(MODEL), MicroBatches(1, 240))(init_params(MODEL, jax.random.key(3)), None, batch)
