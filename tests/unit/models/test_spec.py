"""The table of weights: what follows from it agrees with itself and with numbers that are known."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, count_params, init_params, param_specs
from jaxrl_sql.models.spec import leaf_of
from jaxrl_sql.types import InputError

SMALL = ModelConfig("qwen3", 50, 24, 3, 4, 2, 8, 40, 1e4, 1e-6, False, True, False, 64)
# Published shapes and parameter counts.
QWEN3_0_6B = ModelConfig("qwen3", 151_936, 1024, 28, 16, 8, 128, 3072, 1e6, 1e-6, True, True, False, 40_960)
QWEN25_0_5B = ModelConfig("qwen2", 151_936, 896, 24, 14, 2, 64, 4864, 1e6, 1e-6, True, False, True, 32_768)


def test_parameter_counts_are_the_published_ones() -> None:
    assert count_params(QWEN3_0_6B) == 596_049_920
    assert count_params(QWEN25_0_5B) == 494_032_768


@pytest.mark.parametrize(
    "config", [SMALL, dataclasses.replace(SMALL, qkv_bias=True, qk_norm=False, tie_embeddings=True)]
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


def test_init_is_a_function_of_key_and_path_alone() -> None:
    params = init_params(SMALL, jax.random.key(3))
    again = init_params(SMALL, jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    assert not np.array_equal(params["embed"], init_params(SMALL, jax.random.key(4))["embed"])
    # Another leaf in the table does not move the others.
    tied = init_params(dataclasses.replace(SMALL, tie_embeddings=True), jax.random.key(3))
    np.testing.assert_array_equal(tied["layers"]["q"], params["layers"]["q"])
    assert not np.array_equal(params["layers"]["gate"], params["layers"]["up"])
    assert not np.array_equal(params["layers"]["gate"][0], params["layers"]["gate"][1])
    assert init_params(SMALL, jax.random.key(3), jnp.bfloat16)["embed"].dtype == jnp.bfloat16


def test_init_has_the_scale_the_table_says() -> None:
    params = init_params(SMALL, jax.random.key(0))
    for spec in param_specs(SMALL):
        leaf = np.asarray(leaf_of(params, spec))
        assert abs(leaf.mean() - spec.init.mean) < 0.1 * max(spec.init.std, 1e-6), spec.name
        # A normal cut at two standard deviations has 0.88 of the width.
        assert abs(leaf.std() - 0.88 * spec.init.std) <= 0.1 * spec.init.std, spec.name


@pytest.mark.parametrize(
    ("change", "said"),
    [({"n_kv_heads": 3}, "n_heads"), ({"head_dim": 7}, "head_dim"), ({"n_layers": 0}, "n_layers is 0")],
)
def test_impossible_sizes_are_refused_by_name(change: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        dataclasses.replace(SMALL, **change)


def test_the_room_loads_without_torch_and_transformers() -> None:
    code = (
        "import sys, jaxrl_sql.models; print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
