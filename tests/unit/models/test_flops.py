"""FLOP formulas compared with XLA's count and with counting by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.batch import Segment
from jaxrl_sql.models import ModelConfig, Norms, Rope, count_params, init_params, prediction_states, unembed
from jaxrl_sql.models.flops import (
    decode_bytes,
    decode_flops,
    grouped_forward_flops,
    layer_weights,
    update_flops,
    visible_pairs,
)
from jaxrl_sql.models.spec import SlidingWindow

# One layer, because XLA counts the body of a scan once. Wide enough for matrix products to dominate.
ONE = ModelConfig("qwen2", 512, 256, 1, 4, 2, 64, 768, Rope(1e4), Norms(), True, False, True, 512)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("b", "p", "g", "t"), [(2, 96, 4, 32), (1, 64, 2, 128)])
def test_forward_flops_equal_xlas_within_four_percent(b: int, p: int, g: int, t: int) -> None:
    def logits(params: object, tokens: jax.Array, completion: jax.Array) -> jax.Array:
        shared = (Segment(tokens, jnp.full(b, p)),)
        return unembed(params, ONE, prediction_states(params, ONE, shared, completion, jnp.full((b, g), t)))

    params = jax.eval_shape(lambda: init_params(ONE, jax.random.key(0)))
    ids = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((b, p), (b, g, t))]
    counted = jax.jit(logits).lower(params, *ids).compile().cost_analysis()["flops"]
    assert grouped_forward_flops(ONE, b, p, g, t, counts_masked=True) == pytest.approx(counted, rel=0.04)


def test_attention_pairs_equal_those_of_the_masks() -> None:
    p, g, t = 5, 3, 4
    for window in (None, 1, 3, 7):
        query, key = np.indices((p + t, p + t))
        seen = (key <= query) & (query - key < (window or p + t))
        assert visible_pairs(p, g, t, window) == seen[:p].sum() + g * seen[p:].sum()


def test_windows_and_repeated_prompts_change_the_flops() -> None:
    deep = dataclasses.replace(ONE, n_layers=4)
    full = grouped_forward_flops(deep, 1, 100, 8, 20)
    sliding = dataclasses.replace(deep, sliding=SlidingWindow(10, (True, False, True, True), 1e4))
    saved = 2 * 2 * 4 * 64 * 3 * (visible_pairs(100, 8, 20) - visible_pairs(100, 8, 20, 10))
    assert full - grouped_forward_flops(sliding, 1, 100, 8, 20) == saved
    assert update_flops(deep, 1, 100, 8, 20) == 3 * full
    repeated = grouped_forward_flops(deep, 8, 100, 1, 20)
    assert repeated - full == 7 * 2 * 4 * (layer_weights(deep) * 100 + 2 * 4 * 64 * visible_pairs(100, 0, 0))


def test_decode_step_reads_each_matrix_once_and_each_prompt_once_per_group() -> None:
    vectors = 2 * 256 + 256 + (4 + 2 + 2) * 64  # norms, and the biases of q, k, v
    assert decode_bytes(ONE, 0, 0, 0, 0) == 2 * (count_params(ONE) - vectors)
    token = 2 * 2 * 2 * 64
    assert decode_bytes(ONE, 3, 50, 8, 10.5) - decode_bytes(ONE, 0, 0, 0, 0) == token * 3 * (50 + 8 * 10.5)


def test_decode_flops_equal_those_of_the_forward_pass() -> None:
    b, p, g, t = 2, 30, 3, 12
    steps = sum(decode_flops(ONE, b, p, g, written) for written in range(t))
    assert steps + grouped_forward_flops(ONE, b, p, 0, 0) == grouped_forward_flops(ONE, b, p, g, t)
