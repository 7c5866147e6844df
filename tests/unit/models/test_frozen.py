"""Frozen weights: the parameter tree is split in two, and joined for the decoder."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.frozen import merge_params, split
from jaxrl_sql.models.lora import merge, policy_params
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.value import decay_mask
from jaxrl_sql.types import InputError

CONFIG = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)


def batch() -> GroupBatch:
    r = np.random.default_rng(0)
    tokens, blank = r.integers(0, 24, (2, 3, 8)).astype(np.int32), np.zeros((2, 3), np.float32)
    prompt = Segment(r.integers(0, 24, (2, 8)).astype(np.int32), np.array([8, 5], np.int32))
    length = np.full((2, 3), 8, np.int32)
    zeros = np.zeros((2, 3, 8), np.float32)
    return GroupBatch((prompt,), tokens, length, np.ones((2, 3, 8), bool), zeros, zeros, blank, blank + 1, blank > 0)


@pytest.mark.parametrize(
    "frozen",
    [
        pytest.param(["embed"], marks=pytest.mark.nightly),
        pytest.param(["embed", "*_norm"], marks=pytest.mark.slow),
        pytest.param(["q", "k", "v", "o"], marks=pytest.mark.nightly),
    ],
    ids=",".join,
)
def test_update_moves_the_trainable_weights_only(frozen: list[str]) -> None:
    """Under SGD the change of a weight depends on its gradient alone."""
    params, rate = init_params(CONFIG, jax.random.key(0)), optax.sgd(0.1)
    policy = make_policy(CONFIG)
    whole = make_step(policy, sft_loss, rate)(init_state(jax.tree.map(lambda x: x.copy(), params), rate), batch())[0]
    moving, fixed = split(params, CONFIG, frozen)
    before = jax.device_get(fixed)
    state, _ = make_step(policy, sft_loss, rate)(
        init_state(jax.tree.map(lambda x: x.copy(), moving), rate, fixed), batch()
    )
    wanted = merge_params(split(whole.trainable, CONFIG, frozen)[0], before)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(policy_params(state.trainable, state.frozen)), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=jax.tree_util.keystr(path))
    assert jax.tree.structure(merge(state.trainable, state.frozen)) == jax.tree.structure(params)


def test_frozen_weights_have_no_moments() -> None:
    params = init_params(CONFIG, jax.random.key(0))
    moving, fixed = split(params, CONFIG, ["embed", "*_norm"])
    optimizer = make_optimizer(OptimConfig(weight_decay=0.1), 10, decay_mask(CONFIG, ["embed", "*_norm"]))
    held = sum(leaf.size for leaf in jax.tree.leaves(init_state(moving, optimizer, fixed).opt_state))
    assert held < 2 * sum(leaf.size for leaf in jax.tree.leaves(moving)) + 10
    assert "embed" not in moving
    assert set(moving["layers"]) == {"q", "k", "v", "o", "gate", "up", "down"}


def test_names_that_match_no_or_all_weights_are_rejected() -> None:
    params = init_params(CONFIG, jax.random.key(0))
    with pytest.raises(InputError, match=r"model\.frozen: 'table' is not a weight; valid are embed, "):
        split(params, CONFIG, ["table"])
    with pytest.raises(InputError, match="nothing would be trained"):
        split(params, CONFIG, ["*"])
    assert split(params, CONFIG, [])[1] is None
