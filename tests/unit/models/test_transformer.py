"""The decoder: grouped, cached and padded computations equal the plain one."""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.batch import Segment
from jaxrl_sql.models import (
    ModelConfig,
    Norms,
    Rope,
    forward,
    hidden_states,
    init_params,
    prediction_states,
    unembed,
)
from jaxrl_sql.models.attention.xla import attend
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.parallel.mesh import AXES
from jaxrl_sql.types import InputError

QWEN3 = ModelConfig(
    family="qwen3",
    vocab_size=61,
    d_model=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    d_ff=48,
    rope=Rope(10_000.0),
    norms=Norms(),
    tie_embeddings=True,
    qk_norm=True,
    qkv_bias=False,
    max_positions=128,
)
QWEN2 = dataclasses.replace(
    QWEN3, family="qwen2", head_dim=8, tie_embeddings=False, qk_norm=False, qkv_bias=True, n_kv_heads=4
)
# All options of a layer, and a window (4) shorter than a prompt (9) and a completion (6).
GEMMA3 = dataclasses.replace(
    QWEN3,
    family="gemma3_text",
    rope=Rope(10_000.0, RopeScaling("llama3", 8.0, original_max_positions=32)),
    sliding=SlidingWindow(4, (True, False), 100.0),
    activation="gelu_tanh",
    norms=Norms(is_zero_centered=True, has_post_norms=True),
    scale_embeddings=True,
    query_scalar=24.0,
    attn_score_cap=3.0,
    final_logit_cap=2.0,
)
CONFIGS = pytest.mark.parametrize(
    "config",
    [pytest.param(QWEN3, marks=pytest.mark.nightly), pytest.param(QWEN2, marks=pytest.mark.nightly), GEMMA3],
    ids=["qwen3-tied-gqa", "qwen2-untied", "gemma3-sliding"],
)
B, P, G, T = 3, 9, 4, 6
PROMPT_LEN = np.array([9, 4, 1])


def make_params(config: ModelConfig) -> Any:
    """Move every leaf away from its initial value, so that norms and biases have an effect."""
    params, rng = init_params(config, jax.random.key(0)), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + (0.1 * rng.normal(size=leaf.shape)).astype(leaf.dtype), params)


def make_batch(config: ModelConfig) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return prompt [B,P], its lengths [B], completion [B,G,T] and its lengths [B,G], which include 1 and T."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, config.vocab_size, (B, P))
    completion = rng.integers(0, config.vocab_size, (B, G, T))
    completion_len = rng.integers(1, T + 1, (B, G))
    completion_len[0, :2] = 1, T
    return tuple(jnp.asarray(x, jnp.int32) for x in (prompt, PROMPT_LEN, completion, completion_len))  # type: ignore[return-value]


def nll(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]


def grouped_nll(params: Any, config: ModelConfig, batch: Any, remat: str = "none") -> jax.Array:
    prompt, prompt_len, completion, completion_len = batch
    hidden = prediction_states(params, config, (Segment(prompt, prompt_len),), completion, completion_len, remat)
    inside = jnp.arange(T) < completion_len[..., None]
    return jnp.where(inside, nll(unembed(params, config, hidden), completion), 0.0)


def repeated_rows(batch: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return each prompt and completion as one row without padding between them: rows [N,P+T], lengths [N] and the
    indices [N,T] of the positions that predict the completion's tokens."""
    prompt, prompt_len, completion, completion_len = (np.asarray(x) for x in batch)
    rows = np.zeros((B * G, P + T), np.int32)
    for n, (b, g) in enumerate(np.ndindex(B, G)):
        p = prompt_len[b]
        rows[n, :p], rows[n, p : p + T] = prompt[b, :p], completion[b, g]
    starts = np.repeat(prompt_len, G)
    index = starts[:, None] - 1 + np.arange(T)
    return jnp.asarray(rows), jnp.asarray(starts + completion_len.reshape(-1)), jnp.asarray(index)


def repeated_nll(params: Any, config: ModelConfig, batch: Any, rows: Any) -> jax.Array:
    """Compute the same by running every prompt G times."""
    tokens, lengths, index = rows
    logits = forward(params, config, tokens, lengths)
    logits = jnp.take_along_axis(logits, index[..., None], axis=1).reshape(B, G, T, -1)
    inside = jnp.arange(T) < batch[3][..., None]
    return jnp.where(inside, nll(logits, batch[2]), 0.0)


# Small arrays are compiled many times here and run once each: without XLA's optimizations this takes half as long,
# and computes the same function.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
# Weights per token: an error that cancels in a plain sum changes the result.
WEIGHT = jax.random.normal(jax.random.key(2), (B, G, T))


def weighted_sum(losses: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the weighted sum of losses [B,G,T], and the losses."""
    return jnp.sum(WEIGHT * losses), losses


GROUPED = jit(grouped_nll, static_argnums=(1, 3))
GROUPED_GRAD = jit(jax.grad(lambda *args: jnp.sum(WEIGHT * grouped_nll(*args))), static_argnums=(1, 3))
REPEATED_GRAD = jit(jax.grad(lambda *args: weighted_sum(repeated_nll(*args)), has_aux=True), static_argnums=1)
STATES = jit(prediction_states, static_argnums=1)
FORWARD = jit(forward, static_argnums=(1, 4))


def assert_trees_close(got: Any, expected: Any, rtol: float) -> None:
    """Compare each leaf, relative to its largest element."""
    got_leaves, expected_leaves = jax.tree.leaves_with_path(got), jax.tree.leaves(expected)
    assert len(got_leaves) == len(expected_leaves)
    for (path, leaf), other in zip(got_leaves, expected_leaves, strict=True):
        scale = float(np.abs(other).max())
        assert scale > 0, f"{jax.tree_util.keystr(path)} is zero"
        error = float(np.abs(np.asarray(leaf) - np.asarray(other)).max())
        assert error <= rtol * scale, f"{jax.tree_util.keystr(path)}: {error} of {scale}"


@CONFIGS
def test_grouped_equals_repeated_in_value_and_every_gradient_leaf(config: ModelConfig) -> None:
    params, batch = make_params(config), make_batch(config)
    rows = repeated_rows(batch)
    repeated, losses = REPEATED_GRAD(params, config, batch, rows)
    np.testing.assert_allclose(GROUPED(params, config, batch, "none"), losses, rtol=1e-5, atol=1e-5)
    assert_trees_close(GROUPED_GRAD(params, config, batch, "none"), repeated, 1e-5)


@pytest.mark.nightly  # tests/unit/algo/test_memory.py compares gradients under recomputation
@pytest.mark.parametrize("remat", ["full", "query,key,value"])
def test_remat_changes_no_gradient(remat: str) -> None:
    params, batch = make_params(GEMMA3), make_batch(GEMMA3)
    plain = GROUPED_GRAD(params, GEMMA3, batch, "none")
    assert_trees_close(GROUPED_GRAD(params, GEMMA3, batch, remat), plain, 1e-6)


def test_unknown_remat_name_is_rejected_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"'qeury'.*query, key"):
        jax.eval_shape(lambda params: grouped_nll(params, QWEN3, make_batch(QWEN3), "qeury"), make_params(QWEN3))


@CONFIGS
def test_decode_from_the_prompts_cache_equals_forward(config: ModelConfig, plain_decode: ModuleType) -> None:
    fill, step = (jit(item, static_argnums=1) for item in (plain_decode.prefill, plain_decode.decode_step))
    params, (prompt, prompt_len, completion, completion_len) = make_params(config), make_batch(config)
    expected = STATES(params, config, (Segment(prompt, prompt_len),), completion, completion_len)
    prefix, last = fill(params, config, prompt, prompt_len)
    np.testing.assert_allclose(
        np.broadcast_to(np.asarray(last)[:, None], (B, G, config.d_model)), np.asarray(expected)[:, :, 0], atol=1e-5
    )
    cache = plain_decode.init_decode_cache(config, B, G, T, jnp.float32)
    for t in range(T - 1):
        token, active = np.asarray(completion)[:, :, t], t < np.asarray(completion_len)
        hidden, cache = step(params, config, prefix, cache, token, active)
        predicts = t + 1 < np.asarray(completion_len)
        np.testing.assert_allclose(np.asarray(hidden)[predicts], np.asarray(expected)[:, :, t + 1][predicts], atol=1e-5)
    np.testing.assert_array_equal(cache.length, np.minimum(completion_len, T - 1))


@CONFIGS
def test_right_padding_changes_nothing(config: ModelConfig) -> None:
    params, (prompt, prompt_len, completion, completion_len) = make_params(config), make_batch(config)
    plain = GROUPED(params, config, (prompt, prompt_len, completion, completion_len), "none")
    # The padding contains ids of real tokens: positions must decide, not ids.
    wider = jnp.pad(prompt, ((0, 0), (0, 5)), constant_values=7)
    hidden = STATES(
        params,
        config,
        (Segment(wider, prompt_len),),
        jnp.pad(completion, ((0, 0), (0, 0), (0, 3)), constant_values=7),
        completion_len,
    )
    inside = np.arange(T) < np.asarray(completion_len)[..., None]
    score = jit(lambda params, hidden: nll(unembed(params, config, hidden[:, :, :T]), completion))
    np.testing.assert_allclose(np.where(inside, score(params, hidden), 0.0), plain, atol=2e-6)
    other = jnp.where(jnp.arange(P) < prompt_len[:, None], prompt, (prompt + 11) % config.vocab_size)
    np.testing.assert_array_equal(
        GROUPED(params, config, (other, prompt_len, completion, completion_len), "none"), plain
    )


def test_other_rows_of_a_batch_change_nothing() -> None:
    params, (prompt, prompt_len, completion, completion_len) = make_params(GEMMA3), make_batch(GEMMA3)
    plain = GROUPED(params, GEMMA3, (prompt, prompt_len, completion, completion_len), "none")
    changed = (prompt.at[1:].add(1) % 61, prompt_len.at[1:].set(2), completion.at[1:].add(3) % 61, completion_len)
    np.testing.assert_array_equal(GROUPED(params, GEMMA3, changed, "none")[0], plain[0])
    siblings = completion.at[:, 1:].add(3) % 61
    np.testing.assert_array_equal(
        GROUPED(params, GEMMA3, (prompt, prompt_len, siblings, completion_len), "none")[:, 0], plain[:, 0]
    )


@pytest.mark.parametrize("config", [QWEN3, pytest.param(GEMMA3, marks=pytest.mark.nightly)], ids=["full", "sliding"])
def test_tree_of_three_levels_equals_the_concatenation(config: ModelConfig) -> None:
    """Schema (1 row) -> questions (2 rows) -> answers (6 rows), each with its own lengths."""
    params, rng = make_params(config), np.random.default_rng(3)
    sizes, rows, last = (5, 4, 3), (1, 2, 6), 3
    tokens = [rng.integers(0, 61, (2, r, s)).astype(np.int32) for r, s in zip(rows, sizes, strict=True)]
    lengths = [rng.integers(1, s + 1, (2, r)) for r, s in zip(rows, sizes, strict=True)]
    blocks = tuple(Segment(jnp.asarray(t), jnp.asarray(n)) for t, n in zip(tokens, lengths, strict=True))
    joined, starts = np.zeros((2, 6, sum(sizes)), np.int32), np.zeros((2, 6), int)
    for b, r in np.ndindex(2, 6):
        path = (0, r // 3, r)
        pieces = [t[b, row, : n[b, row]] for t, n, row in zip(tokens, lengths, path, strict=True)]
        whole = np.concatenate(pieces)
        joined[b, r, : len(whole)] = whole
        starts[b, r] = len(whole) - len(pieces[2])
    inside = jnp.asarray(np.arange(last) < lengths[2][..., None])[..., None]
    index = jnp.asarray(starts[..., None] + np.arange(last))[..., None]
    plain = (Segment(jnp.asarray(joined), jnp.asarray(starts + lengths[2])),)
    weight = jax.random.normal(jax.random.key(5), (2, 6, last, config.d_model))

    def in_tree(p: Any) -> tuple[jax.Array, jax.Array]:
        states = jnp.where(inside, hidden_states(p, config, blocks)[2], 0.0)
        return jnp.sum(weight * states), states

    def concatenated(p: Any) -> tuple[jax.Array, jax.Array]:
        states = jnp.take_along_axis(hidden_states(p, config, plain)[0], index, axis=2)
        states = jnp.where(inside, states, 0.0)
        return jnp.sum(weight * states), states

    got, got_states = jit(jax.grad(in_tree, has_aux=True))(params)
    expected, expected_states = jit(jax.grad(concatenated, has_aux=True))(params)
    np.testing.assert_allclose(got_states, expected_states, atol=1e-5)
    assert_trees_close(got, expected, 1e-5)


def test_blocks_that_form_no_tree_are_rejected() -> None:
    blocks = (Segment(jnp.zeros((1, 2, 3), jnp.int32), jnp.ones((1, 2), jnp.int32)),)
    blocks += (Segment(jnp.zeros((1, 3, 3), jnp.int32), jnp.ones((1, 3), jnp.int32)),)
    with pytest.raises(ValueError, match="3 rows"):
        jax.eval_shape(lambda params: hidden_states(params, QWEN3, blocks), make_params(QWEN3))


def test_more_tokens_than_positions_are_rejected_before_compilation() -> None:
    tokens, length = jnp.zeros((1, 129), jnp.int32), jnp.array([129])
    with pytest.raises(InputError, match=r"129 tokens.*max_positions"):
        jax.eval_shape(lambda params: forward(params, QWEN3, tokens, length), make_params(QWEN3))


def test_empty_rows_have_finite_states_and_gradients() -> None:
    params, (prompt, _, completion, _) = make_params(QWEN3), make_batch(QWEN3)
    nothing, none = jnp.zeros(B, jnp.int32), jnp.zeros((B, G), jnp.int32)

    def total(p: Any) -> jax.Array:
        hidden = prediction_states(p, QWEN3, (Segment(prompt, nothing),), completion, none)
        return jnp.sum(hidden**2)

    value, grads = jit(jax.value_and_grad(total))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("t", [1, 5], ids=["multiply-and-sum", "matrix-product"])
def test_attention_is_softmax_over_all_parts_and_zero_without_keys(t: int) -> None:
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 4, t, 4, 8)).astype(np.float32)
    sizes, rows = (6, 3), (2, 4)
    ks, vs = (
        [rng.normal(size=(2, r, 2, s, 8)).astype(np.float32) for r, s in zip(rows, sizes, strict=True)] for _ in "kv"
    )
    seen = [rng.random((2, r, 1, s)) < 0.6 for r, s in zip(rows, sizes, strict=True)]
    seen[0][0, 0], seen[1][0, 1] = False, False  # row 1 of the first prompt attends to nothing
    expected = np.zeros_like(q)
    for b, r, i, h in np.ndindex(2, 4, t, 4):
        keys = np.concatenate([ks[0][b, r // 2, h // 2][seen[0][b, r // 2, 0]], ks[1][b, r, h // 2][seen[1][b, r, 0]]])
        values = np.concatenate(
            [vs[0][b, r // 2, h // 2][seen[0][b, r // 2, 0]], vs[1][b, r, h // 2][seen[1][b, r, 0]]]
        )
        if len(keys):
            weight = np.exp(keys @ q[b, r, i, h] / np.sqrt(8))
            expected[b, r, i, h] = weight @ values / weight.sum()

    def run(q: jax.Array, ks: Any, vs: Any) -> jax.Array:
        return attend(q, [(k, v, jnp.asarray(s)) for k, v, s in zip(ks, vs, seen, strict=True)])

    np.testing.assert_allclose(jit(run)(q, ks, vs), expected, atol=1e-5)
    assert not expected[0, 1].any()
    grads = jit(jax.grad(lambda *a: jnp.sum(run(*a) ** 2), argnums=(0, 1, 2)))(q, ks, vs)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert not np.asarray(grads[0][0, 1]).any()


def test_receptive_field_is_the_sum_of_the_windows() -> None:
    """Each of two sliding layers of 4 reaches 3 tokens back: 6 in one sequence, across blocks and in decode."""
    config = dataclasses.replace(GEMMA3, sliding=SlidingWindow(4, (True, True), 100.0))
    params, (prompt, prompt_len, completion, completion_len) = make_params(config), make_batch(config)
    plain = STATES(params, config, (Segment(prompt, prompt_len),), completion, completion_len)
    for changed in range(P):
        other = np.array(prompt)
        other[:, changed] = (other[:, changed] + 1) % config.vocab_size
        states = STATES(params, config, (Segment(other, prompt_len),), completion, completion_len)
        moved = np.abs(np.asarray(states) - np.asarray(plain))[0, 1].max(axis=-1) > 1e-6
        # State t belongs to position P - 1 + t: the first prompt and its second row have full length.
        np.testing.assert_array_equal(moved, P - 1 + np.arange(T) - changed <= 6)


def test_scores_outside_the_range_of_exp_stay_finite() -> None:
    q = 1e4 * jnp.ones((1, 1, 1, 1, 4))
    k = jnp.stack([jnp.ones(4), -jnp.ones(4)])[None, None, None]
    v = jnp.arange(8.0).reshape(1, 1, 1, 2, 4)
    out = jit(lambda q, k, v: attend(q, [(k, v, jnp.ones((1, 1, 1, 2), bool))]))(q, k, v)
    np.testing.assert_allclose(out[0, 0, 0, 0], v[0, 0, 0, 0])


def test_bfloat16_compute_keeps_float32_weights_and_stays_near() -> None:
    params, (prompt, prompt_len, _, _) = make_params(QWEN3), make_batch(QWEN3)
    exact = FORWARD(params, QWEN3, prompt, prompt_len)
    rough = FORWARD(params, QWEN3, prompt, prompt_len, jnp.bfloat16)
    assert rough.dtype == jnp.float32
    error = float(np.abs(np.asarray(rough) - np.asarray(exact))[0].max())
    assert 1e-4 < error < 0.05 * float(np.abs(exact).max())
    grads = jax.eval_shape(jax.grad(lambda p: forward(p, QWEN3, prompt, prompt_len, jnp.bfloat16).sum()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(("tokens", "split"), [(8, "tensor"), (7, None)])
def test_layer_states_are_sharded_by_tokens(tokens: int, split: str | None) -> None:
    """Layer states are most of the memory of an update; a token count that `tensor` does not divide is not split."""
    mesh = jax.sharding.AbstractMesh((1, 2, 2), AXES, axis_types=(jax.sharding.AxisType.Auto,) * 3)
    params = jax.eval_shape(lambda: init_params(QWEN3, jax.random.key(0)))
    block = Segment(jax.ShapeDtypeStruct((2, 1, tokens), jnp.int32), jax.ShapeDtypeStruct((2, 1), jnp.int32))
    with jax.sharding.use_abstract_mesh(mesh):
        result = jax.make_jaxpr(lambda params, block: hidden_states(params, QWEN3, (block,)))(params, block)
    (scan,) = (eqn for eqn in result.eqns if eqn.primitive.name == "scan")
    before = [item for item in result.eqns if item.primitive.name == "sharding_constraint"][-1]
    inside = [entry for entry in scan.params["jaxpr"].eqns if entry.primitive.name == "sharding_constraint"][-1]
    for pinned in (before, inside):
        assert pinned.params["sharding"].spec[2] == split
