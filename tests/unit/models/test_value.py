"""The value head: its input states, and its removal outside of the update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.lora import init_adapters, merge, policy_params
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.transformer import prediction_states
from jaxrl_sql.models.value import ActorCritic, add_value_head, decay_mask, policy_part

CONFIG = ModelConfig("qwen3", 64, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)


def make_batch() -> GroupBatch:
    r = np.random.default_rng(0)
    per_token, per_answer = jnp.zeros((2, 3, 5)), jnp.zeros((2, 3))
    return GroupBatch(
        shared=(Segment(jnp.asarray(r.integers(0, 64, (2, 7))), jnp.array([7, 4])),),
        completion=jnp.asarray(r.integers(0, 64, (2, 3, 5))),
        completion_len=jnp.asarray(r.integers(1, 6, (2, 3))),
        loss_mask=per_token == 0,
        behavior_logprobs=per_token,
        rollout_logprobs=per_token,
        reward=per_answer,
        weight=per_answer + 1,
        truncated=per_answer > 0,
    )


def with_head(trainable: Any) -> ActorCritic:
    """Add a nonzero value head to the policy."""
    head = {"weight": jax.random.normal(jax.random.key(5), (32,)), "bias": jnp.array(0.5)}
    return ActorCritic(trainable, head)


def test_values_use_the_states_that_predict_each_token() -> None:
    params, batch = init_params(CONFIG, jax.random.key(0)), make_batch()
    trainable, policy = with_head(params), make_policy(CONFIG, 0.8)
    score = jax.jit(policy)
    scored, plain = score(trainable, None, batch), score(params, None, batch)
    hidden = jax.jit(prediction_states, static_argnums=1)(
        params, CONFIG, batch.shared, batch.completion, batch.completion_len
    )
    expected = np.asarray(hidden) @ np.asarray(trainable.value["weight"]) + 0.5
    np.testing.assert_allclose(scored.value, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(scored.logprob, plain.logprob)
    assert plain.value is None


def test_new_head_outputs_zero_and_changes_no_policy() -> None:
    params = init_params(CONFIG, jax.random.key(0))
    scored = jax.jit(make_policy(CONFIG))(add_value_head(params, CONFIG), None, make_batch())
    assert scored.value is not None
    assert (np.asarray(scored.value) == 0).all()


def test_sampling_evaluation_and_export_use_the_policy_only() -> None:
    base = init_params(CONFIG, jax.random.key(0))
    adapters = jax.tree.map(lambda x: x + 0.1, init_adapters(CONFIG, 2, 4.0, ["q"], jax.random.key(1)))
    assert policy_params(with_head(base), None) is base
    assert policy_part(with_head(adapters)) is adapters
    assert policy_part(base) is base
    for take in (policy_params, merge):
        got, want = take(with_head(adapters), base), take(adapters, base)
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_weight_decay_skips_norms_and_biases_with_and_without_a_head() -> None:
    params = init_params(CONFIG, jax.random.key(0))
    cfg = OptimConfig(lr=0.1, warmup_steps=0, schedule="constant", weight_decay=0.5)
    optimizer = make_optimizer(cfg, 10, decay_mask(CONFIG))
    for trainable in (params, with_head(params)):
        nothing = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), trainable)
        updates, _ = jax.jit(optimizer.update)(nothing, jax.jit(optimizer.init)(trainable), trainable)
        policy = policy_part(updates)
        assert float(np.abs(policy["final_norm"]).max()) == 0.0
        np.testing.assert_allclose(policy["layers"]["q"], -0.05 * np.asarray(params["layers"]["q"]), rtol=1e-5)
    head = np.asarray(with_head(params).value["weight"])
    np.testing.assert_allclose(updates.value["weight"], -0.05 * head, rtol=1e-5)
    assert float(updates.value["bias"]) == 0.0
