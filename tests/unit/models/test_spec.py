"""The weight table: derived quantities are consistent and equal published numbers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, count_params, init_params, param_specs
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow, leaf_of
from jaxrl_sql.types import InputError

SMALL = ModelConfig("qwen3", 50, 24, 3, 4, 2, 8, 40, Rope(1e4), Norms(), False, True, False, 64)
# Published shapes and parameter counts.
QWEN3_0_6B = ModelConfig("qwen3", 151_936, 1024, 28, 16, 8, 128, 3072, Rope(1e6), Norms(), True, True, False, 40_960)
QWEN25_0_5B = ModelConfig("qwen2", 151_936, 896, 24, 14, 2, 64, 4864, Rope(1e6), Norms(), True, False, True, 32_768)
LLAMA32_1B = ModelConfig(
    "llama", 128_256, 2048, 16, 32, 8, 64, 8192, Rope(5e5), Norms(1e-5), True, False, False, 131_072
)
GEMMA3_270M = ModelConfig(
    *("gemma3_text", 262_144, 640, 18, 4, 1, 256, 2048, Rope(1e6)),
    norms=Norms(is_zero_centered=True, has_post_norms=True),
    tie_embeddings=True,
    qk_norm=True,
    qkv_bias=False,
    max_positions=32_768,
)
GEMMA3_1B = dataclasses.replace(GEMMA3_270M, d_model=1152, n_layers=26, d_ff=6912)


def test_parameter_counts_equal_the_published_ones() -> None:
    assert count_params(LLAMA32_1B) == 1_235_814_400
    assert count_params(GEMMA3_270M) == 268_098_176
    assert count_params(GEMMA3_1B) == 999_885_952
    assert count_params(QWEN3_0_6B) == 596_049_920
    assert count_params(QWEN25_0_5B) == 494_032_768


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        dataclasses.replace(SMALL, qkv_bias=True, qk_norm=False, tie_embeddings=True),
        dataclasses.replace(SMALL, norms=Norms(has_post_norms=True)),
    ],
)
def test_specs_describe_the_parameters_leaf_by_leaf(config: ModelConfig) -> None:
    params, specs = init_params(config, jax.random.key(0)), param_specs(config)
    assert len(jax.tree.leaves(params)) == len(specs)
    for spec in specs:
        assert leaf_of(params, spec).shape == spec.shape
        assert len(spec.axes) == len(spec.shape)
        assert np.prod(spec.hf_shape) * len(spec.hf_names()) == np.prod(spec.shape)
    names = [name for spec in specs for name in spec.hf_names()]
    assert len(names) == len(set(names))


def test_init_depends_on_key_and_path_only() -> None:
    params = init_params(SMALL, jax.random.key(3))
    again = init_params(SMALL, jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    assert not np.array_equal(params["embed"], init_params(SMALL, jax.random.key(4))["embed"])
    # Another leaf in the table does not change the others.
    tied = init_params(dataclasses.replace(SMALL, tie_embeddings=True), jax.random.key(3))
    np.testing.assert_array_equal(tied["layers"]["q"], params["layers"]["q"])
    assert not np.array_equal(params["layers"]["gate"], params["layers"]["up"])
    assert not np.array_equal(params["layers"]["gate"][0], params["layers"]["gate"][1])
    assert init_params(SMALL, jax.random.key(3), jnp.bfloat16)["embed"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "config", [SMALL, dataclasses.replace(SMALL, norms=Norms(is_zero_centered=True, has_post_norms=True))]
)
def test_init_has_the_scale_of_the_table(config: ModelConfig) -> None:
    params = init_params(config, jax.random.key(0))
    assert float(params["final_norm"][0]) == (0.0 if config.norms.is_zero_centered else 1.0)
    for spec in param_specs(config):
        leaf = np.asarray(leaf_of(params, spec))
        assert abs(leaf.mean() - spec.init.mean) < 0.1 * max(spec.init.std, 1e-6), spec.name
        # A normal distribution truncated at two standard deviations has 0.88 of the standard deviation.
        assert abs(leaf.std() - 0.88 * spec.init.std) <= 0.1 * spec.init.std, spec.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_kv_heads": 3}, "n_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"n_layers": 0}, "n_layers is 0"),
        ({"activation": "relu"}, "activation is 'relu'; valid are silu, gelu_tanh"),
        ({"final_logit_cap": 0.0}, "final_logit_cap is 0.0, must be positive"),
        ({"sliding": SlidingWindow(4, (True, False), 1e4)}, "sliding names 2 layers, n_layers is 3"),
    ],
)
def test_invalid_sizes_are_rejected_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlidingWindow(0, (True,), 1e4), "window of 0 tokens"),
        (lambda: SlidingWindow(4, (False, False), 1e4), "in 0 layers"),
        (lambda: RopeScaling("yarn", 4.0), "'yarn'; valid are linear, llama3"),
        (lambda: RopeScaling("linear", 0.0), "factor 0.0"),
        (lambda: RopeScaling("llama3", 8.0, 4.0, 4.0), "low_freq_factor 4.0, must be .* below high_freq_factor"),
    ],
)
def test_invalid_windows_and_scalings_are_rejected_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.nightly
def test_models_package_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, jaxrl_sql.models; print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
