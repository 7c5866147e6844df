"""The copying start: an untrained model predicts a repeated sequence, and not its first occurrence."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, forward, init_params
from jaxrl_sql.models.induction_init import init_induction
from jaxrl_sql.types import InputError

CONFIG = ModelConfig("qwen3", 512, 128, 3, 2, 2, 64, 64, Rope(1e4), Norms(), True, True, False, 256)


FORWARD = jax.jit(forward, static_argnums=1)


def gain(copying: bool) -> float:
    """Return the log-likelihood difference (nats) between the second half of a sequence, a repeat, and the first."""
    params = init_params(CONFIG, jax.random.key(0))
    if copying:
        params = init_induction(params, CONFIG, jax.random.key(1))
    half = np.random.default_rng(0).permutation(512)[:80]
    tokens = np.concatenate([half, half])
    logprobs = jax.nn.log_softmax(FORWARD(params, CONFIG, jnp.array([tokens]), jnp.array([160]))[0])
    seen = np.asarray(logprobs)[np.arange(159), tokens[1:]]
    return float(seen[80:].mean() - seen[:79].mean())


def test_repeated_sequence_is_predicted_with_the_copying_start_only() -> None:
    assert gain(copying=True) > 0.8
    assert abs(gain(copying=False)) < 0.2


def test_copying_start_replaces_embeddings_and_attention_only() -> None:
    plain = init_params(CONFIG, jax.random.key(0))
    a, b = (init_induction(plain, CONFIG, jax.random.key(i)) for i in (1, 2))
    assert jax.tree.structure(a) == jax.tree.structure(plain)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(plain), strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype, path
    assert (np.asarray(a["layers"]["up"]) == np.asarray(plain["layers"]["up"])).all()
    assert not (np.asarray(a["embed"]) == np.asarray(b["embed"])).all()


def test_copying_start_with_shared_key_heads_is_rejected() -> None:
    shared = dataclasses.replace(CONFIG, n_kv_heads=1)
    with pytest.raises(InputError, match="n_kv_heads"):
        init_induction(init_params(shared, jax.random.key(0)), shared, jax.random.key(0))
