"""The optimizers: state, rounding and weight decay."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_sql.algo.optim import make_optimizer, make_schedule
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.ops.stochastic_rounding import in_bfloat16
from jaxrl_sql.models.spec import weight_decay_tree

GEMMA = ModelConfig(
    "gemma3_text",
    64,
    32,
    2,
    4,
    2,
    8,
    48,
    Rope(1e4),
    Norms(is_zero_centered=True, has_post_norms=True),
    False,
    True,
    True,
    128,
)
PLAIN = OptimConfig(lr=1e-2, warmup_steps=0, schedule="constant", max_grad_norm=1e9)


def run(optimizer: optax.GradientTransformation, grads: list[np.ndarray]) -> tuple[np.ndarray, Any]:
    """Update a weight [600] that starts at 1 with each gradient in turn; return the weight and the optimizer state."""
    weight = np.ones(600, np.float32)
    state, update = jax.jit(optimizer.init)(weight), jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(grad, state, weight)
        weight = weight + np.asarray(updates)
    return weight, state


def noise(steps: int) -> list[np.ndarray]:
    r = np.random.default_rng(0)
    return [r.normal(0.3, 1.0, 600).astype(np.float32) for _ in range(steps)]


def float_leaves(tree: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def test_adamw_follows_the_published_rule() -> None:
    cfg = dataclasses.replace(PLAIN, beta2=0.9, weight_decay=0.1)
    got, state = run(make_optimizer(cfg, 9), noise(9))
    weight, m, v = np.ones(600), np.zeros(600), np.zeros(600)
    for t, grad in enumerate(noise(9), 1):
        m, v = 0.9 * m + 0.1 * grad, 0.9 * v + 0.1 * grad.astype(np.float64) ** 2
        weight = weight - 1e-2 * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-8) + 0.1 * weight)
    np.testing.assert_allclose(got, weight, rtol=1e-5)
    assert {leaf.dtype for leaf in float_leaves(state)} == {jnp.dtype("float32")}


def test_bfloat16_moments_take_half_the_memory_and_nearly_the_same_steps() -> None:
    wide, state = run(make_optimizer(PLAIN, 40), noise(40))
    narrow, small = run(make_optimizer(dataclasses.replace(PLAIN, moments="bfloat16"), 40), noise(40))
    assert {leaf.dtype for leaf in float_leaves(small)} == {jnp.dtype("bfloat16")}
    assert sum(x.nbytes for x in float_leaves(small)) * 2 == sum(x.nbytes for x in float_leaves(state))
    moved = np.abs(wide - 1).mean()
    assert np.abs(narrow - wide).mean() < 0.02 * moved
    again, _ = run(make_optimizer(dataclasses.replace(PLAIN, moments="bfloat16"), 40), noise(40))
    np.testing.assert_array_equal(again, narrow)


def test_float32_moments_stay_float32_with_bfloat16_weights() -> None:
    """Optax creates moments in the dtype of the weights."""
    optimizer = make_optimizer(PLAIN, 40)
    init, update = jax.jit(optimizer.init), jax.jit(optimizer.update)
    weights = np.ones(600, jnp.bfloat16)
    state = init(weights)
    assert {leaf.dtype for leaf in float_leaves(state)} == {jnp.dtype("float32")}
    updates, state = update(np.full(600, 0.3, jnp.bfloat16), state, weights)
    assert {leaf.dtype for leaf in float_leaves(state)} == {jnp.dtype("float32")}
    ones = np.ones(600, np.float32)
    wide = update(0.3 * ones, init(ones), ones)[0]
    np.testing.assert_allclose(np.asarray(updates, np.float32), wide, rtol=0.005)


def test_slow_second_moment_decays_in_bfloat16() -> None:
    """Small gradients follow large ones: at beta2 = 0.999 a step subtracts less than half of the last bit."""
    cfg = dataclasses.replace(PLAIN, beta2=0.999, moments="bfloat16")
    grads = [np.full(600, 1.0, np.float32)] * 5 + [np.full(600, 1e-3, np.float32)] * 300
    _, state = run(make_optimizer(cfg, 305), grads)
    adam = state[1].state
    expected = (1 - 0.999**5) * 0.999**300
    rounded = float(jnp.asarray((1 - 0.999**5), jnp.bfloat16))
    got = float(np.asarray(adam.nu, np.float32).mean())
    assert abs(got / expected - 1) < 0.02
    assert rounded / expected > 1.3, "round-to-nearest does not get stuck"


def test_stochastic_rounding_is_unbiased_and_keeps_exact_values() -> None:
    keep = optax.GradientTransformation(lambda params: params, lambda grads, *_: (grads, grads))
    wrapped = in_bfloat16(keep)
    values = np.concatenate([np.full(40_000, 1.001), [1.0, -2.5, 0.0, np.inf]]).astype(np.float32)
    state = jax.jit(wrapped.init)(np.zeros(40_004, np.float32))
    _, state = jax.jit(wrapped.update)(values, state)
    got = np.asarray(state.state, np.float32)
    np.testing.assert_array_equal(got[-4:], values[-4:])
    assert set(got[:-4]) == {1.0, 1.0078125}
    assert got[:-4].mean() == pytest.approx(1.001, abs=1e-4)


def test_adafactor_stores_rows_and_columns_and_learns() -> None:
    r = np.random.default_rng(0)
    target = jnp.asarray(r.normal(size=(2, 256, 192)), jnp.float32)
    optimizer = make_optimizer(dataclasses.replace(PLAIN, kind="adafactor", lr=0.05), 60)
    weight = jnp.zeros_like(target)
    state = jax.jit(optimizer.init)(weight)
    assert sum(x.size for x in float_leaves(state)) < 0.02 * weight.size

    @jax.jit
    def step(weight: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        updates, state = optimizer.update(weight - target, state, weight)
        return optax.apply_updates(weight, updates), state

    for _ in range(60):
        weight, state = step(weight, state)
    assert float(jnp.abs(weight - target).mean()) < 0.1 * float(jnp.abs(target).mean())


@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_weight_decay_applies_to_matrices_only(kind: str) -> None:
    params = jax.tree.map(lambda x: np.asarray(x) + 0.5, init_params(GEMMA, jax.random.key(0)))
    cfg = dataclasses.replace(PLAIN, kind=kind, weight_decay=0.1)
    optimizer = make_optimizer(cfg, 10, weight_decay_tree(GEMMA))
    state = jax.jit(optimizer.init)(params)
    updates, _ = jax.jit(optimizer.update)(jax.tree.map(np.zeros_like, params), state, params)
    for path, update in jax.tree.leaves_with_path(updates):
        name, weight = path[-1].key, params
        for key in path:
            weight = weight[key.key]
        keeps = name.endswith(("norm", "_bias"))
        np.testing.assert_allclose(update, 0 if keeps else -1e-3 * weight, rtol=1e-5, err_msg=name)


def test_learning_rate_is_flat_then_rises_then_decays() -> None:
    # First stage of PaVeRL-SQL over 100 updates: 3 % at a tenth of the peak, peak at 10 %, then a cosine to a tenth.
    cfg = OptimConfig(lr=1.0, schedule="cosine", flat_steps=3, warmup_from=0.1, warmup_steps=7, final_lr_ratio=0.1)
    rate = make_schedule(cfg, 100)
    at = [float(rate(step)) for step in (0, 2, 3, 10, 55, 100)]
    np.testing.assert_allclose(at, [0.1, 0.1, 0.1, 1, 0.55, 0.1], rtol=1e-6)
    assert all(rate(i) < rate(i + 1) for i in range(3, 9))
