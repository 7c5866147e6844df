"""Packed answers have the scores, values and updates of answers with a row each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

from jaxrl_sql.algo.loss import grpo_loss, sft_loss
from jaxrl_sql.algo.step import init_state, make_scorer, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import GrpoConfig, LossConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.attention import TreeAttention, splash
from jaxrl_sql.models.ops.micro_batches import MicroBatches
from jaxrl_sql.models.packed import of_completions, packed_rows
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.models.value import add_value_head
from jaxrl_sql.training.batching.pack import score_learned_only, with_packed_rows
from jaxrl_sql.types import InputError

PLAIN = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
SLIDING = dataclasses.replace(PLAIN, sliding=SlidingWindow(5, (True, False), 1e4))
B, G, P, T = 3, 6, 8, 16


def make_batch() -> GroupBatch:
    """Return a batch with answers of all lengths, including an empty and a full-length one."""
    r = np.random.default_rng(0)
    length = np.array([[16, 3, 9, 4, 3, 2], [1, 5, 0, 7, 2, 8], [6, 6, 6, 6, 6, 2]], np.int32)
    tokens = r.integers(0, 24, (B, G, T)).astype(np.int32)
    numbers = r.normal(size=(3, B, G, T)).astype(np.float32)
    prompt = Segment(r.integers(0, 24, (B, P)).astype(np.int32), np.array([8, 3, 5], np.int32))
    return GroupBatch(
        shared=(prompt,), completion=tokens, completion_len=length, loss_mask=r.random((B, G, T)) < 0.8,
        behavior_logprobs=numbers[0] - 3, rollout_logprobs=numbers[0] - 3, reward=numbers[1, :, :, 0],
        weight=(r.random((B, G)) < 0.9).astype(np.float32), truncated=np.zeros((B, G), bool),
        old_logprobs=numbers[0] - 3, advantage=numbers[2, :, :, :1],
    )  # fmt: skip


def scored(
    config: ModelConfig,
    params: Any,
    batch: GroupBatch,
    remat: str = "none",
    attention: str | TreeAttention = "xla",
) -> Any:
    return make_policy(config, 0.7, remat, attention=attention)(params, None, batch)


SPLASH = partial(splash.attend_tree, interpret=True)


@cache
def differentiated(config: ModelConfig, remat: str, attention: str | TreeAttention) -> Callable[..., Any]:
    """Return the compiled (loss, scores) and gradient of a batch."""

    def loss(params: Any, batch: GroupBatch) -> Any:
        scores = scored(config, params, batch, remat, attention)
        result = grpo_loss(scores, batch, cfg=GrpoConfig(loss=LossConfig(entropy_bonus=0.1)), on_policy=False)
        return result.sum / result.weight, scores

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def assert_gradients(result: Any, wanted: Any) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(result), jax.tree.leaves(wanted), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "attention", "remat"),
    [
        pytest.param(PLAIN, "xla", "full", id="full-plain"),
        pytest.param(PLAIN, SPLASH, "full", id="full-splash", marks=pytest.mark.nightly),
        pytest.param(SLIDING, "xla", "full", id="full-sliding", marks=pytest.mark.nightly),
        pytest.param(PLAIN, "xla", "none", id="none-plain", marks=pytest.mark.nightly),
        pytest.param(PLAIN, SPLASH, "none", id="none-splash", marks=pytest.mark.nightly),
        pytest.param(SLIDING, "xla", "none", id="none-sliding", marks=pytest.mark.nightly),
    ],
)
def test_packed_answers_score_like_answers_in_separate_rows(
    config: ModelConfig, attention: str | TreeAttention, remat: str
) -> None:
    """Compare log-probability, entropy and value of each token, and the gradient of a loss over all, in float32."""
    params, batch = init_params(config, jax.random.key(3)), make_batch()
    packed = with_packed_rows(batch)
    assert packed.packed_length is not None
    assert packed.packed_length.shape == (B, 3)
    inside = np.arange(T) < batch.completion_len[..., None]
    critic = add_value_head(params, config)
    critic = dataclasses.replace(critic, value={"weight": jnp.linspace(-1, 1, 32), "bias": np.ones((), np.float32)})
    (want, scores), wanted = differentiated(config, remat, "xla")(critic, batch)
    (got, packed_scores), gradients = differentiated(config, remat, attention)(critic, packed)
    for a, b in zip(packed_scores, scores, strict=True):
        np.testing.assert_allclose(np.asarray(a)[inside], np.asarray(b)[inside], rtol=1e-5, atol=1e-5)
        assert np.all(np.asarray(a)[~inside] == 0)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert_gradients(gradients, wanted)


POLICY = make_policy(PLAIN, 0.7)
OBJECTIVE = partial(
    grpo_loss, cfg=GrpoConfig(loss=LossConfig(entropy_bonus=0.1, agg_mode="sequence_mean")), on_policy=False
)


def conditionals(jaxpr: Any) -> list[int]:
    """Return the number of branches of each conditional in a program."""
    result = []
    for equation in jaxpr.eqns:
        result += [len(equation.params["branches"])] if equation.primitive.name == "cond" else []
        for inner in jaxprs_in_params(equation.params):
            result += conditionals(inner)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("by_rows", [True, False])
def test_micro_batch_has_a_branch_per_number_of_rows(by_rows: bool) -> None:
    """One of three parts needs two rows, the others three."""
    params, packed, rate = init_params(PLAIN, jax.random.key(3)), with_packed_rows(make_batch()), optax.sgd(1.0)
    assert packed.packed_length is not None
    assert (np.asarray(packed.packed_length) > 0).sum(axis=1).tolist() == [3, 2, 3]
    step = make_step(POLICY, OBJECTIVE, rate, 3, by_rows)
    assert conditionals(jax.make_jaxpr(step)(init_state(params, rate), packed).jaxpr) == ([2] if by_rows else [])


@pytest.mark.nightly  # tests/multidevice/test_packed_meshes.py compares parts on a mesh
@pytest.mark.parametrize("by_rows", [True, False])
def test_micro_batch_runs_only_the_rows_of_its_prompts(by_rows: bool) -> None:
    """The sums equal those of one part with a row per answer."""
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    packed, rate = with_packed_rows(batch), optax.sgd(1.0)
    step, before = make_step(POLICY, OBJECTIVE, rate, 3, by_rows), jax.tree.map(np.array, params)
    got, metrics = step(init_state(params, rate), packed)
    want, wanted, alone = whole()
    assert_sums(got.trainable, want, before)
    for name, (total, weight) in wanted.items():
        np.testing.assert_allclose(metrics[name], (total, weight), rtol=1e-4, atol=1e-5, err_msg=name)
    inside = np.arange(T) < batch.completion_len[..., None]
    scores = np.asarray(make_scorer(POLICY, 3)(before, None, packed)[0])
    np.testing.assert_allclose(scores, np.where(inside, alone, 0), rtol=1e-5, atol=1e-5)


def update_in_parts(batch: GroupBatch, micro_batches: int | MicroBatches) -> tuple[Any, Any, np.ndarray]:
    """Return a batch's updated parameters, the metrics of the update and the scores before it, for these parts."""
    params, rate = init_params(PLAIN, jax.random.key(3)), optax.sgd(1.0)
    scores = np.asarray(make_scorer(POLICY, micro_batches)(params, None, batch)[0])
    state, metrics = make_step(POLICY, OBJECTIVE, rate, micro_batches)(init_state(params, rate), batch)
    return state.trainable, metrics, scores


@cache
def whole() -> tuple[Any, Any, np.ndarray]:
    return update_in_parts(make_batch(), 1)


# Token budgets for three prompts of 8 with three packed rows of 16 or six unpacked rows.
BUDGETS = {
    "all": (True, 168),
    "prompts-of-few-rows": (True, 120),
    "a-prompt": (True, 56),
    "two-rows": (True, 40),
    "a-row": (True, 24),
    "answers-two-by-two": (False, 40),
    "four-answers": (False, 72),
}


@pytest.mark.nightly  # tests/multidevice/test_packed_meshes.py compares such budgets on a mesh
@pytest.mark.parametrize("name", BUDGETS)
def test_token_budget_changes_no_sum(name: str) -> None:
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    is_packed, tokens = BUDGETS[name]
    within = with_packed_rows(batch) if is_packed else batch
    want, wanted, alone = whole()
    got, metrics, here = update_in_parts(within, MicroBatches(1, tokens))
    assert_sums(got, want, params)
    for key, (total, weight) in wanted.items():
        np.testing.assert_allclose(metrics[key], (total, weight), rtol=1e-4, atol=1e-5, err_msg=key)
    inside = np.arange(T) < batch.completion_len[..., None]
    np.testing.assert_allclose(here[inside], alone[inside], rtol=1e-5, atol=1e-5)


def test_token_budget_below_one_answer_is_rejected() -> None:
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    with pytest.raises(InputError, match="a prompt of 8 tokens and one answer of 16, with padding, are 24"):
        make_scorer(make_policy(PLAIN), MicroBatches(1, 23))(params, None, batch)


def assert_sums(got: Any, want: Any, before: Any) -> None:
    """Compare parameter changes, with a tolerance of 1e-5 of the largest change."""
    for (path, a), b, old in zip(
        jax.tree.leaves_with_path(got), jax.tree.leaves(want), jax.tree.leaves(before), strict=True
    ):
        moved = np.asarray(b) - np.asarray(old)
        np.testing.assert_allclose(
            np.asarray(a) - np.asarray(old),
            moved,
            rtol=0,
            atol=2e-5 * np.abs(moved).max(),
            err_msg=jax.tree_util.keystr(path),
        )


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_scoring_trained_tokens_only_changes_no_sum(few: bool) -> None:
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    if few:
        batch = dataclasses.replace(batch, loss_mask=batch.loss_mask & (np.arange(T) % 2 == 0))
    packed = score_learned_only(with_packed_rows(batch))
    assert packed.scored is not None
    assert packed.scored.shape == (B, 24 if few else 32)  # of 48 positions
    learned = batch.loss_mask & (np.arange(T) < batch.completion_len[..., None])

    def loss(params: Any, batch: GroupBatch) -> Any:
        scores = scored(PLAIN, params, batch)
        result = sft_loss(scores, batch)
        return result.sum / result.weight, scores.logprob

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    ((want, wanted_scores), wanted), ((got, scores), results) = (gradient(params, item) for item in (batch, packed))
    np.testing.assert_allclose(scores, np.where(learned, wanted_scores, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert_gradients(results, wanted)


def test_packed_rows_hold_the_tokens_of_their_answers() -> None:
    packed = with_packed_rows(make_batch())
    rows = packed_rows(packed)
    assert rows.tokens.shape == (B, 3, T)
    assert rows.owner is not None
    assert rows.offset is not None
    back = of_completions(np.asarray(rows.tokens, np.float32), packed)
    inside = np.arange(T) < packed.completion_len[..., None]
    np.testing.assert_array_equal(back, np.where(inside, packed.completion, 0))
    held = np.arange(T) < np.asarray(packed.packed_length)[..., None]
    assert (np.asarray(rows.owner) >= 0).tolist() == held.tolist()
    offsets, owners = of_completions(rows.offset, packed), of_completions(rows.owner, packed)
    np.testing.assert_array_equal(offsets, np.where(inside, np.arange(T), 0))
    np.testing.assert_array_equal(owners, np.where(inside, np.arange(G)[:, None], 0))
