"""The decoder compared with the same arithmetic in NumPy, one sequence and one head at a time, in float64.

All options are on at once, also combinations without a reference implementation: a sliding window with its rotary
base, scaled positions in full layers, norms after each part, scaled embeddings, a query scale and both caps.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, forward, init_params
from jaxrl_sql.models.rope import RopeScaling, rope_frequencies
from jaxrl_sql.models.spec import SlidingWindow

Array = np.ndarray

GEMMA3 = ModelConfig(
    *("gemma3_text", 41, 24, 3, 4, 2, 8, 20, Rope(1e4, RopeScaling("linear", 8.0))),
    norms=Norms(is_zero_centered=True, has_post_norms=True),
    tie_embeddings=True,
    qk_norm=True,
    qkv_bias=False,
    max_positions=64,
    sliding=SlidingWindow(3, (True, False, True), 50.0),
    activation="gelu_tanh",
    scale_embeddings=True,
    query_scalar=20.0,
    attn_score_cap=1.5,
    final_logit_cap=2.0,
)


ALWAYS = {(3, "capped"), (40, "plain")}


def norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + GEMMA3.norms.eps) * (1 + weight)


def rotated(x: Array, position: int, theta: float, factor: float) -> Array:
    """Rotate one head [Q] as Q/2 complex numbers."""
    half = len(x) // 2
    angle = position / factor * theta ** (-np.arange(half) / half)
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * angle)
    return np.concatenate([pairs.real, pairs.imag])


def gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attended(w: dict[str, Array], config: ModelConfig, x: Array, slides: bool) -> Array:
    """Return the attention output [T,D] for normed states x [T,D]."""
    assert config.sliding is not None
    assert config.rope.scaling is not None
    theta, factor = (config.sliding.rope_theta, 1.0) if slides else (config.rope.theta, config.rope.scaling.factor)
    out = np.zeros_like(x)
    for head in range(config.n_heads):
        shared = head // (config.n_heads // config.n_kv_heads)
        queries = norm(x @ w["q"][:, head], w["q_norm"])
        keys, values = norm(x @ w["k"][:, shared], w["k_norm"]), x @ w["v"][:, shared]
        for t in range(len(x)):
            first = max(0, t - config.sliding.size + 1) if slides else 0
            query = rotated(queries[t], t, theta, factor)
            scores = np.array([query @ rotated(keys[s], s, theta, factor) for s in range(first, t + 1)])
            scores /= math.sqrt(config.query_scalar or config.head_dim)
            if config.attn_score_cap:
                scores = config.attn_score_cap * np.tanh(scores / config.attn_score_cap)
            weight = np.exp(scores - scores.max())
            out[t] += weight / weight.sum() @ values[first : t + 1] @ w["o"][head]
    return out


def reference(params: Any, config: ModelConfig, tokens: Array) -> Array:
    """Return logits [T,V]."""
    assert config.sliding is not None
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = params["embed"][tokens] * math.sqrt(config.d_model)
    for layer, slides in enumerate(config.sliding.layers):
        w = {name: leaf[layer] for name, leaf in params["layers"].items()}
        x = x + norm(attended(w, config, norm(x, w["attn_norm"]), slides), w["post_attn_norm"])
        y = norm(x, w["mlp_norm"])
        x = x + norm((gelu_tanh(y @ w["gate"]) * (y @ w["up"])) @ w["down"], w["post_mlp_norm"])
    logits = norm(x, params["final_norm"]) @ params["embed"].T
    return config.final_logit_cap * np.tanh(logits / config.final_logit_cap) if config.final_logit_cap else logits


@pytest.mark.parametrize(
    ("window", "caps"),
    [
        pytest.param(window, caps, id=f"{name}-{window}", marks=() if (window, name) in ALWAYS else pytest.mark.nightly)
        for name, caps in (("capped", (1.5, 2.0)), ("plain", (None, None)))
        for window in (1, 3, 40)
    ],
)
def test_logits_equal_the_reference(window: int, caps: tuple[float | None, float | None]) -> None:
    config = dataclasses.replace(
        GEMMA3,
        sliding=SlidingWindow(window, (True, False, True), 50.0),
        attn_score_cap=caps[0],
        final_logit_cap=caps[1],
    )
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf) + (0.2 * rng.normal(size=leaf.shape)).astype(leaf.dtype),
        init_params(config, jax.random.key(0)),
    )
    tokens = rng.integers(0, config.vocab_size, 11)
    expected = reference(params, config, tokens)
    program = jax.jit(forward, static_argnums=1)
    got = np.asarray(program(params, config, tokens[None], np.array([len(tokens)])))[0]
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert np.abs(expected).max() > 1


def test_llama3_scaling_keeps_fast_and_divides_slow_frequencies() -> None:
    scaling = RopeScaling("llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192)
    plain, scaled = (np.asarray(rope_frequencies(64, Rope(5e5, s)), np.float64) for s in (None, scaling))
    turns = 8192 * plain / (2 * np.pi)
    ratio = plain / scaled
    np.testing.assert_allclose(ratio[turns >= 4], 1.0, rtol=1e-6)
    np.testing.assert_allclose(ratio[turns <= 1], 8.0, rtol=1e-6)
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 1
    assert (np.diff(between) > 0).all()
    assert between.min() > 1
    assert between.max() < 8
    np.testing.assert_allclose(rope_frequencies(64, Rope(5e5, RopeScaling("linear", 4.0))), plain / 4, rtol=1e-6)
