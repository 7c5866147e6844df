"""Ids without a token on eight virtual devices have no probability with a sharded vocabulary either.

Tests start this file as a script, since JAX fixes the number of devices at start.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

MISSING = ((0, 1), (10, 13), (50, 63))
MESHES = {"single": (1, 1, 1), "split": (2, 1, 4)}


def test_a_sharded_vocabulary_gives_missing_ids_no_probability(run_processes: Any) -> None:
    ((out, _),) = run_processes([__file__], 1)
    single, split = json.loads(out.splitlines()[-1])
    present = set(range(64)) - {i for first, last in MISSING for i in range(first, last)}
    for measured in (single, split):
        assert {token for ids in measured["ids"] for token in ids} <= present
        assert measured["delta"] < 1e-4
        assert measured["is_finite"]
    assert single["ids"] == split["ids"]
    assert single["loss"] == pytest.approx(split["loss"], rel=1e-5)


def _measure(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return an engine's samples on a mesh, the trainer's distance from the engine's scores, and the loss."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import steps

    from jaxrl_sql.algo.loss import sft_loss
    from jaxrl_sql.models import shard_params
    from jaxrl_sql.models.policy import make_policy
    from jaxrl_sql.parallel import make_mesh, shard_batch
    from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
    from jaxrl_sql.training.batching.pack import pack_groups
    from jaxrl_sql.types import Trajectory

    class Gaps(steps.Letters):
        def get_vocab(self) -> dict[str, int]:
            gaps = {i for first, last in MISSING for i in range(first, last)}
            return {text: i for text, i in super().get_vocab().items() if i not in gaps}

    mesh, params = make_mesh(*shape, devices=jax.devices()[: math.prod(shape)]), steps.make_params()
    params["unembed"] = params["unembed"].at[:, jnp.array([0, 11, 60])].mul(20.0)
    prompts = steps.make_prompts()
    with jax.set_mesh(mesh):
        params = shard_params(params, steps.CONFIG, mesh)
        engine = Engine(steps.CONFIG, params, Gaps(), EngineConfig(16))
        samples = sorted(
            engine.generate(prompts, SamplingParams(n=2, max_new_tokens=6)), key=lambda s: (s.prompt_index, s.index)
        )
        rows = [Trajectory(prompts[s.prompt_index], s.index, s.turns, s.finish_reason) for s in samples]
        ones = np.ones((len(prompts), 2), np.float32)
        batch = pack_groups([rows[i : i + 2] for i in range(0, len(rows), 2)], ones, ones, 6)
        policy, on_mesh = make_policy(steps.CONFIG, missing=MISSING), shard_batch(batch, mesh, len(prompts))

        def loss(params: Any) -> Any:
            scored = policy(params, None, on_mesh)
            lost = sft_loss(scored, on_mesh)
            return lost.sum / lost.weight + jnp.mean(scored.entropy), scored.logprob

        (value, logprob), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        gap = np.abs(np.asarray(logprob) - np.asarray(batch.rollout_logprobs))[np.asarray(batch.policy_mask())]
    return {
        "ids": [sample.token_ids for sample in samples],
        "delta": float(gap.max()),
        "loss": float(value),
        "is_finite": all(bool(np.isfinite(slope).all()) for slope in jax.tree.leaves(slopes)),
    }


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
    print(json.dumps([_measure(shape) for shape in MESHES.values()]))
