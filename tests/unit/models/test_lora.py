"""Low-rank adapters: no effect initially, the function of merged weights, and an unchanged base."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_sql.batch import Segment
from jaxrl_sql.models import ModelConfig, Norms, Rope, forward, init_params, unembed
from jaxrl_sql.models.lora import (
    Adapters,
    init_adapters,
    load_adapters,
    merge,
    policy_params,
    resolve_targets,
    save_adapters,
)
from jaxrl_sql.models.spec import SlidingWindow, param_specs
from jaxrl_sql.models.stacked_layers import split_layers
from jaxrl_sql.models.transformer import prediction_states
from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.types import InputError

QWEN3 = ModelConfig("qwen3", 61, 32, 2, 4, 2, 16, 48, Rope(1e4), Norms(), True, True, False, 128)
QWEN2 = dataclasses.replace(QWEN3, family="qwen2", tie_embeddings=False, qk_norm=False, qkv_bias=True, n_kv_heads=4)
GEMMA3 = dataclasses.replace(
    QWEN3, family="gemma3_text", sliding=SlidingWindow(4, (True, False), 100.0), activation="gelu_tanh",
    norms=Norms(is_zero_centered=True, has_post_norms=True), scale_embeddings=True,
)  # fmt: skip
CONFIGS = pytest.mark.parametrize(
    "config",
    [QWEN3, pytest.param(QWEN2, marks=pytest.mark.nightly), pytest.param(GEMMA3, marks=pytest.mark.nightly)],
    ids=["qwen3", "qwen2", "gemma3"],
)
ALL = ("q", "k", "v", "o", "gate", "up", "down")
RANK, ALPHA = 3, 6.0
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 9)).astype(np.int32)
LENGTHS = np.array([9, 5], np.int32)


# Small arrays, compiled often and run once: optimizing the programs would take longer than it saves.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
FORWARD = jit(forward, static_argnums=1)


def fresh(config: ModelConfig, targets: tuple[str, ...] = ("*",)) -> tuple[Adapters, Any]:
    base = init_params(config, jax.random.key(0))
    return init_adapters(config, RANK, ALPHA, targets, jax.random.key(1)), base


def to_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def trained(adapters: Adapters) -> Adapters:
    """Move B away from zero, like training."""
    r = np.random.default_rng(2)
    return jax.tree.map(lambda x: jnp.asarray(x + (0.05 * r.normal(size=x.shape)).astype(x.dtype)), to_host(adapters))


@CONFIGS
def test_new_adapters_change_no_logit(config: ModelConfig) -> None:
    adapters, base = fresh(config)
    got = FORWARD(policy_params(adapters, base), config, TOKENS, LENGTHS)
    want = FORWARD(base, config, TOKENS, LENGTHS)
    # On a GPU the two programs may sum a product in different orders.
    np.testing.assert_allclose(got, want, rtol=0, atol=0 if jax.default_backend() == "cpu" else 1e-5)
    assert adapters.scale == ALPHA / RANK
    assert all(pair.a.any() and not pair.b.any() for pair in adapters.pairs.values())


def test_base_is_used_unchanged() -> None:
    adapters, base = fresh(QWEN3)
    together = policy_params(trained(adapters), base)
    assert together["embed"] is base["embed"]
    assert all(together["layers"][name] is leaf for name, leaf in base["layers"].items())
    split = split_layers(base)
    apart = policy_params(trained(adapters), split)
    jax.tree.map(np.testing.assert_array_equal, apart, split_layers(together))
    assert all(apart["layers"][1][name] is leaf for name, leaf in split["layers"][1].items())
    assert policy_params(None, base) is base
    assert policy_params(base, None) is base


@CONFIGS
def test_adapters_equal_merged_weights(config: ModelConfig, plain_decode: ModuleType) -> None:
    adapters, base = fresh(config)
    adapters = trained(adapters)
    apart, merged = policy_params(adapters, base), merge(adapters, base)
    expected = FORWARD(merged, config, TOKENS, LENGTHS)
    plain = np.asarray(FORWARD(base, config, TOKENS, LENGTHS))
    assert np.abs(np.asarray(expected) - plain).max() > 0.1, "the adapters do nothing"
    np.testing.assert_allclose(FORWARD(apart, config, TOKENS, LENGTHS), expected, atol=2e-5)
    # The sampler computes the same tokens from a prefix and a cache.
    fill, step = (jit(item, static_argnums=1) for item in (plain_decode.prefill, plain_decode.decode_step))
    prefix, last = fill(apart, config, TOKENS[:1, :6], np.array([6]))
    expected, read_out = np.asarray(expected), jit(unembed, static_argnums=1)
    np.testing.assert_allclose(read_out(apart, config, last)[0], expected[0, 5], atol=2e-5)
    cache = plain_decode.init_decode_cache(config, 1, 2, 4, jnp.float32)
    for t in range(6, 9):
        token = jnp.full((1, 2), int(TOKENS[0, t]))
        hidden, cache = step(apart, config, prefix, cache, token, jnp.ones((1, 2), bool))
        for row in np.asarray(read_out(apart, config, hidden))[0]:
            np.testing.assert_allclose(row, expected[0, t], atol=2e-5)


@pytest.mark.parametrize(
    ("config", "remat"),
    [
        pytest.param(QWEN3, "query,key", marks=pytest.mark.nightly),
        pytest.param(QWEN2, "none", marks=pytest.mark.nightly),
        (GEMMA3, "full"),
    ],
    ids=["qwen3", "qwen2", "gemma3"],
)
def test_adapter_gradients_are_projections_of_the_full_gradient(config: ModelConfig, remat: str) -> None:
    """For W' = W + s·A·B the chain rule gives dA = s·dW'·Bᵀ and dB = s·Aᵀ·dW', for matrices [in, out] of a layer."""
    adapters, base = fresh(config)
    adapters = trained(adapters)
    shared = (Segment(jnp.asarray(TOKENS), jnp.asarray(LENGTHS)),)
    completion, length = jnp.asarray(TOKENS[:, None, :7]), jnp.array([[7], [3]])
    direction = jnp.asarray(np.random.default_rng(3).normal(size=(2, 1, 7, config.d_model)), jnp.float32)

    def loss(params: Any) -> jax.Array:
        hidden = prediction_states(params, config, shared, completion, length, remat)
        return jnp.sum(jnp.where(jnp.arange(7)[:, None] < length[..., None, None], hidden * direction, 0.0))

    got = jit(jax.grad(lambda a: loss(policy_params(a, base))))(adapters)
    full = jit(jax.grad(loss))(merge(adapters, base))["layers"]
    specs = {spec.path[-1]: spec for spec in param_specs(config)}
    for name, pair in adapters.pairs.items():
        n_out, n_in = specs[name].hf_shape
        dw = np.asarray(full[name]).reshape(-1, n_in, n_out)
        a, b = np.asarray(pair.a).reshape(-1, n_in, RANK), np.asarray(pair.b).reshape(-1, RANK, n_out)
        expected = {"a": adapters.scale * dw @ b.swapaxes(1, 2), "b": adapters.scale * a.swapaxes(1, 2) @ dw}
        for leaf, want in expected.items():
            grad = np.asarray(getattr(got.pairs[name], leaf)).reshape(want.shape)
            np.testing.assert_allclose(grad, want, atol=1e-4 * np.abs(want).max(), err_msg=f"{name}.{leaf}")


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (("q", "v"), ("q", "v")),
        (("*",), ALL),
        (("down", "[kq]"), ("q", "k", "down")),
        (("up", "u*"), ("up",)),
        (("q_proj", "down_proj"), ("q", "down")),
        (("v_proj", "k"), ("k", "v")),
        (("all-linear",), ALL),
        (("*_proj",), ALL),
    ],
)
def test_targets_are_names_and_patterns(targets: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert resolve_targets(QWEN3, targets) == names
    assert tuple(fresh(QWEN3, targets)[0].pairs) == names


@pytest.mark.parametrize("targets", [("q", "qq"), ("attn_norm",), ("embed",), ()])
def test_unknown_target_is_rejected_with_the_valid_ones(targets: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        init_adapters(QWEN2, RANK, ALPHA, targets, jax.random.key(0))
    assert "model.lora.targets" in str(caught.value)
    assert ", ".join(ALL) in str(caught.value)


def test_adapters_stay_float32_on_a_bfloat16_base() -> None:
    base = init_params(QWEN3, jax.random.key(0), jnp.bfloat16)
    adapters = trained(fresh(QWEN3)[0])
    logits = FORWARD(policy_params(adapters, base), QWEN3, TOKENS, LENGTHS)
    wide = jax.tree.map(lambda x: np.asarray(x, np.float32), base)
    expected = FORWARD(policy_params(adapters, wide), QWEN3, TOKENS, LENGTHS)
    assert 0 < np.abs(np.asarray(logits) - np.asarray(expected)).mean() < 0.05 * np.abs(expected).mean()
    gradient = jax.grad(lambda a: forward(policy_params(a, base), QWEN3, TOKENS, LENGTHS).mean())
    grads = jax.eval_shape(gradient, adapters)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    assert merge(adapters, base)["layers"]["q"].dtype == np.float32


def test_adapters_are_sharded_by_the_rule_table() -> None:
    mesh = make_mesh(1, 1, 1)
    adapters = init_adapters(QWEN3, RANK, ALPHA, ["q", "o"], jax.random.key(1), mesh)
    assert all(leaf.sharding.mesh == mesh for leaf in jax.tree.leaves(adapters))
    assert adapters.pairs["q"].a.shape == (2, 32, RANK)
    assert adapters.pairs["q"].b.shape == (2, RANK, 4, 16)
    assert adapters.pairs["o"].a.shape == (2, 4, 16, RANK)
    assert adapters.pairs["o"].b.shape == (2, RANK, 32)
    alone = init_adapters(QWEN3, RANK, ALPHA, ["o"], jax.random.key(1))
    np.testing.assert_array_equal(alone.pairs["o"].a, adapters.pairs["o"].a)


@CONFIGS
def test_files_have_the_peft_format(config: ModelConfig, tmp_path: Path) -> None:
    adapters = trained(fresh(config, ("q", "o", "down"))[0])
    save_adapters(tmp_path, config, adapters, "folder/of/base")
    fields = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert (fields["r"], fields["lora_alpha"], fields["base_model_name_or_path"]) == (RANK, ALPHA, "folder/of/base")
    assert fields["target_modules"] == ["q_proj", "o_proj", "down_proj"]
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 2 * 3 * 2
    first = "base_model.model.model.layers.1.self_attn.q_proj"
    np.testing.assert_array_equal(tensors[f"{first}.lora_A.weight"], adapters.pairs["q"].a[1].T)
    np.testing.assert_array_equal(tensors[f"{first}.lora_B.weight"], adapters.pairs["q"].b[1].reshape(RANK, -1).T)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_non_finite_adapters_are_rejected(tmp_path: Path, value: float) -> None:
    adapters = trained(fresh(QWEN3, ("q",))[0])
    save_adapters(tmp_path, QWEN3, adapters)
    path, name = (
        tmp_path / "adapter_model.safetensors",
        "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight",
    )
    tensors = load_file(path)
    tensors[name][0, 0] = value
    save_file(tensors, path)
    with pytest.raises(InputError, match=f"^{tmp_path}: the weights are broken: .* in {name}; "):
        load_adapters(tmp_path, QWEN3)
    save_adapters(tmp_path, QWEN3, adapters)
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": value}))
    with pytest.raises(InputError, match=r"the weights are broken: .* in lora_alpha; "):
        load_adapters(tmp_path, QWEN3)
