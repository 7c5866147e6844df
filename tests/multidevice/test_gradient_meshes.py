"""Weights in bfloat16 on eight virtual devices: each gradient equals float32's, for any sharding of the embedding.

Tests start this file as a script, since JAX fixes the number of devices at start.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

MESHES = {"tied": (2, 2, 2), "untied": (1, 4, 2)}


@pytest.mark.parametrize("name", ["tied", pytest.param("untied", marks=pytest.mark.nightly)])
def test_bfloat16_gradients_are_summed_in_float32(run_processes: Any, name: str) -> None:
    ((out, _),) = run_processes([__file__, name], 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured["types"] == ["float32"]
    assert measured["seen"] > 500
    assert measured["error"] <= 0.01, measured


def _measure(name: str) -> dict[str, Any]:
    """Return the largest relative error of a leaf and of a token's row, and the gradients' types."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from jaxrl_sql.algo.loss import sft_loss
    from jaxrl_sql.algo.step import init_state, make_step
    from jaxrl_sql.batch import GroupBatch, Segment
    from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, shard_params
    from jaxrl_sql.models.policy import make_policy
    from jaxrl_sql.parallel import make_mesh, shard_batch

    b, g, p, t, vocab = 4, 2, 256, 64, 32
    rng = np.random.default_rng(0)
    share = np.arange(1, vocab + 1) ** -1.3
    drawn = rng.choice(vocab, b * (p + g * t), p=share / share.sum()).astype(np.int32)
    ones = np.ones((b, g, t), np.float32)
    answers: Any = dict.fromkeys(("reward", "weight"), ones[..., 0])
    tokens: Any = dict.fromkeys(("behavior_logprobs", "rollout_logprobs"), ones)
    host: Any = GroupBatch(
        shared=(Segment(drawn[: b * p].reshape(b, p), np.full((b,), p, np.int32)),),  # type: ignore[arg-type]
        completion=drawn[b * p :].reshape(b, g, t), completion_len=np.full((b, g), t, np.int32),  # type: ignore[arg-type]
        loss_mask=ones > 0, truncated=ones[..., 0] < 0, **tokens, **answers,  # type: ignore[arg-type]
    )  # fmt: skip
    keeps = optax.GradientTransformation(
        lambda params: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params),
        lambda grads, _, params: (jax.tree.map(jnp.zeros_like, params), grads),
    )
    config = ModelConfig("qwen3", vocab, 16, 1, 2, 2, 8, 32, Rope(1e4), Norms(), name == "tied", True, False, 512)
    mesh = make_mesh(*MESHES[name])
    narrow = init_params(config, jax.random.key(0), jnp.bfloat16)
    result = []
    with jax.set_mesh(mesh):
        batch = shard_batch(host, mesh, b)
        wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
        for params, compute in ((narrow, None), (wide, "bfloat16")):
            policy = make_policy(config, remat="full", compute_dtype=compute, kept_bytes=b * g * t * vocab // 4)
            step = make_step(policy, sft_loss, keeps)
            result.append(step(init_state(shard_params(params, config, mesh), keeps), batch)[0].opt_state)
    got, want = (jax.tree.map(np.asarray, entry) for entry in result)
    for item in (got, want):  # the embedding rows separately
        item["rows"] = [list(item["embed"]), list(item["unembed"].T) if "unembed" in item else []]
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return {
        "types": sorted({str(x.dtype) for x in jax.tree.leaves(got)}),
        "seen": int(np.bincount(drawn)[0]),
        "error": max(float(np.linalg.norm(a - e) / np.linalg.norm(e)) for a, e in pairs),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    print(json.dumps(_measure(*sys.argv[1:])))
