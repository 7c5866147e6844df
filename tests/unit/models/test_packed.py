"""Packed answers are scored, valued and learned from as those that have a row each."""

from __future__ import annotations

import dataclasses
from functools import partial
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
from jaxrl_sql.config import GrpoConfig
from jaxrl_sql.data.pack import with_learned_alone, with_packed_rows
from jaxrl_sql.models import ModelConfig, init_params
from jaxrl_sql.models.attention import TreeAttention, splash
from jaxrl_sql.models.packed import of_completions, packed_rows
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.models.value import add_value_head
from jaxrl_sql.ops.micro_batches import MicroBatches
from jaxrl_sql.types import InputError

PLAIN = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, 1e4, 1e-6, True, True, False, 128)
SLIDING = dataclasses.replace(PLAIN, sliding=SlidingWindow(5, (True, False), 1e4))
B, G, P, T = 3, 6, 8, 16


def make_batch() -> GroupBatch:
    """Return a batch whose answers are of all lengths, an empty one and one of the most among them."""
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


@pytest.mark.parametrize(
    ("config", "attention"),
    [(PLAIN, "xla"), (SLIDING, "xla"), (PLAIN, SPLASH)],
    ids=["plain", "sliding", "splash"],
)
@pytest.mark.parametrize("remat", [pytest.param("none", marks=pytest.mark.slow), "full"])
def test_packed_answers_score_as_those_in_rows_of_their_own(
    config: ModelConfig, attention: str | TreeAttention, remat: str
) -> None:
    """Log-probability, entropy and value of each token, and the gradient of a loss over all of them, in float32."""
    params, batch = init_params(config, jax.random.key(3)), make_batch()
    packed = with_packed_rows(batch)
    assert packed.packed_length is not None
    assert packed.packed_length.shape == (B, 3)
    inside = np.arange(T) < batch.completion_len[..., None]
    critic = add_value_head(params, config)
    critic = dataclasses.replace(critic, value={"weight": jnp.linspace(-1, 1, 32), "bias": jnp.ones(())})
    want, got = (scored(config, critic, one, remat, by) for one, by in ((batch, "xla"), (packed, attention)))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a)[inside], np.asarray(b)[inside], rtol=1e-5, atol=1e-5)
        assert np.all(np.asarray(a)[~inside] == 0)

    def loss(params: Any, batch: GroupBatch, by: str | TreeAttention) -> jax.Array:
        found = grpo_loss(
            scored(config, params, batch, remat, by), batch, cfg=GrpoConfig(entropy_bonus=0.1), on_policy=False
        )
        return found.sum / found.weight

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    wanted, found = gradient(params, batch, "xla"), gradient(params, packed, attention)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for (path, a), b in zip(jax.tree.leaves_with_path(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


def conditionals(jaxpr: Any) -> list[int]:
    """Return of each choice in a program among how many ways it is."""
    found = []
    for equation in jaxpr.eqns:
        found += [len(equation.params["branches"])] if equation.primitive.name == "cond" else []
        for inner in jaxprs_in_params(equation.params):
            found += conditionals(inner)
    return found


def test_a_part_runs_the_rows_that_its_prompts_need() -> None:
    """Of three parts one needs two rows and the others three: the same sums as in one piece of rows of their own."""
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    packed, policy, rate = with_packed_rows(batch), make_policy(PLAIN, 0.7), optax.sgd(1.0)
    assert packed.packed_length is not None
    assert (np.asarray(packed.packed_length) > 0).sum(axis=1).tolist() == [3, 2, 3]
    objective = partial(grpo_loss, cfg=GrpoConfig(entropy_bonus=0.1), on_policy=False)

    def learned(batch: GroupBatch, parts: int, by_rows: bool) -> Any:
        step = make_step(policy, objective, rate, parts, by_rows)
        state = init_state(jax.tree.map(lambda x: x.copy(), params), rate)
        ways = conditionals(jax.make_jaxpr(step)(state, batch).jaxpr)
        return ways, step(state, batch)

    _, (want, wanted) = learned(batch, 1, by_rows=False)
    one_size, _ = learned(packed, 3, by_rows=False)
    ways, (got, metrics) = learned(packed, 3, by_rows=True)
    assert ways == [*one_size, 2] == [2]
    assert_sums(got.trainable, want.trainable, params)
    for name, (total, weight) in wanted.items():
        np.testing.assert_allclose(metrics[name], (total, weight), rtol=1e-4, atol=1e-5, err_msg=name)
    inside = np.arange(T) < batch.completion_len[..., None]
    scored_alone, scored_packed = (
        np.asarray(make_scorer(policy, parts)(params, None, one)[0]) for one, parts in ((batch, 1), (packed, 3))
    )
    np.testing.assert_allclose(scored_packed, np.where(inside, scored_alone, 0), rtol=1e-5, atol=1e-5)


# Tokens that may run at a time, of three prompts of 8 with three packed rows of 16, or six that are not: what fits.
BUDGETS = {
    "all": (True, 168),
    "prompts-of-few-rows": (True, 120),
    "a-prompt": (True, 56),
    "two-rows": (True, 40),
    "a-row": (True, 24),
    "answers-two-by-two": (False, 40),
    "four-answers": (False, 72),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in {"two-rows", "four-answers"} else [pytest.mark.slow]) for name in BUDGETS],
)
def test_a_budget_of_tokens_changes_no_sum(name: str) -> None:
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    is_packed, tokens = BUDGETS[name]
    policy, rate, micro_batches = make_policy(PLAIN, 0.7), optax.sgd(1.0), MicroBatches(1, tokens)
    within = with_packed_rows(batch) if is_packed else batch
    objective = partial(grpo_loss, cfg=GrpoConfig(entropy_bonus=0.1, loss_agg_mode="sequence_mean"), on_policy=False)
    (want, wanted), (got, metrics) = (
        make_step(policy, objective, rate, by)(init_state(jax.tree.map(lambda x: x.copy(), params), rate), one)
        for one, by in ((batch, 1), (within, micro_batches))
    )
    assert_sums(got.trainable, want.trainable, params)
    for key, (total, weight) in wanted.items():
        np.testing.assert_allclose(metrics[key], (total, weight), rtol=1e-4, atol=1e-5, err_msg=key)
    inside = np.arange(T) < batch.completion_len[..., None]
    alone, here = (
        np.asarray(make_scorer(policy, by)(params, None, one)[0]) for one, by in ((batch, 1), (within, micro_batches))
    )
    np.testing.assert_allclose(here[inside], alone[inside], rtol=1e-5, atol=1e-5)


def test_a_budget_without_room_for_an_answer_is_refused() -> None:
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    with pytest.raises(InputError, match="a prompt of 8 tokens and one answer of 16, with padding, are 24"):
        make_scorer(make_policy(PLAIN), MicroBatches(1, 23))(params, None, batch)


def assert_sums(got: Any, want: Any, before: Any) -> None:
    """Compare how far parameters were moved, by one part in 100,000 of the longest way."""
    for (path, a), b, old in zip(
        jax.tree.leaves_with_path(got), jax.tree.leaves(want), jax.tree.leaves(before), strict=True
    ):
        moved = np.asarray(b) - np.asarray(old)
        np.testing.assert_allclose(
            a - old, moved, rtol=0, atol=2e-5 * np.abs(moved).max(), err_msg=jax.tree_util.keystr(path)
        )


@pytest.mark.parametrize("few", [True, False])
def test_scoring_learned_tokens_alone_changes_no_sum_of_theirs(few: bool) -> None:
    params, batch = init_params(PLAIN, jax.random.key(3)), make_batch()
    if few:
        batch = dataclasses.replace(batch, loss_mask=batch.loss_mask & (np.arange(T) % 2 == 0))
    packed = with_learned_alone(with_packed_rows(batch))
    assert packed.scored is not None
    assert packed.scored.shape == (B, 24 if few else 32)  # of 48 places
    learned = batch.loss_mask & (np.arange(T) < batch.completion_len[..., None])
    want, got = (np.asarray(scored(PLAIN, params, one).logprob) for one in (batch, packed))
    np.testing.assert_allclose(got, np.where(learned, want, 0), rtol=1e-5, atol=1e-5)

    def loss(params: Any, batch: GroupBatch) -> jax.Array:
        found = sft_loss(scored(PLAIN, params, batch), batch)
        return found.sum / found.weight

    wanted, found = (jax.jit(jax.value_and_grad(loss))(params, one) for one in (batch, packed))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for (path, a), b in zip(jax.tree.leaves_with_path(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max(), err_msg=jax.tree_util.keystr(path))


def test_rows_hold_the_tokens_of_their_answers() -> None:
    packed = with_packed_rows(make_batch())
    rows = packed_rows(packed)
    assert rows.tokens.shape == (B, 3, T)
    assert rows.owner is not None
    assert rows.offset is not None
    back = of_completions(rows.tokens.astype(jnp.float32), packed)
    inside = np.arange(T) < packed.completion_len[..., None]
    np.testing.assert_array_equal(back, np.where(inside, packed.completion, 0))
    held = np.arange(T) < np.asarray(packed.packed_length)[..., None]
    assert (np.asarray(rows.owner) >= 0).tolist() == held.tolist()
    offsets, owners = of_completions(rows.offset, packed), of_completions(rows.owner, packed)
    np.testing.assert_array_equal(offsets, np.where(inside, np.arange(T), 0))
    np.testing.assert_array_equal(owners, np.where(inside, np.arange(G)[:, None], 0))
